"""Streams in process workers whose processes the test plays: what is sent, and who loses what."""

from __future__ import annotations

from doubles import settle
from fake_children import Sample, played

from pipeline.engine.streams.flow import ENDED, apart
from pipeline.engine.streams.run import StreamRun
from pipeline.errors import PayloadTypeError, WorkerDiedError
from pipeline.workers.process.wire import SliceEnd


def stream_of(*data_ids, room=2):
    run = StreamRun([Sample(data_id, {"read": {"x": 1}}) for data_id in data_ids])
    run.allowed = [room] * len(data_ids)
    return run


def waits(made=2):
    return SliceEnd([made], [False], [[0]], False, 7)


async def started_stream(pool, child, *data_ids):
    """A stream whose generator waits in `child`, which has made two parts."""
    run = stream_of(*data_ids)
    pool.workers.submit([run])
    (job,) = child.take()
    child.begins(job)
    child.yields(job, {"x": "a"}, {"x": "b"}, end=waits())
    await settle()
    return run, job


def made(pool):
    return [
        (place, part if part is ENDED else part.open())
        for _, entries in pool.owner.made
        for place, part in apart(entries)
    ]


@played()
async def test_parts_are_returned_before_the_end_of_their_slice(pool, child):
    run, job = await started_stream(pool, child, 1)
    assert job.allowed == [2]
    assert made(pool) == [(0, {"x": "a"}), (0, {"x": "b"})]
    assert pool.finished == [run]
    assert (run.made, run.ended, run.groups, run.is_finished) == ([2], [False], [[0]], False)
    assert (run.ran_at, run.busy_ns, run.start_ns, run.has_work) == (0, 7, 1, False)


@played(2)
async def test_a_stream_continues_at_the_worker_where_it_started(pool, first, second):
    run, job = await started_stream(pool, first, 1)
    run.allowed = [5]
    pool.workers.submit([run])
    assert second.take() == []
    (piece,) = first.take()
    assert (piece.number, piece.stream, piece.allowed, piece.over) == (2, job.number, [5], [])
    first.yields(piece, None, end=SliceEnd([2], [True], [], True, 7))
    await settle()
    assert made(pool)[2:] == [(0, ENDED)]
    assert (run.is_finished, run.ended) == (True, [True])
    assert pool.memory.used == 0


@played(2)
async def test_new_streams_are_spread_over_idle_processes(pool, first, second):
    await started_stream(pool, first, 1)
    await started_stream(pool, second, 2)
    await started_stream(pool, first, 3)


@played()
async def test_requests_that_left_are_sent_with_the_slice(pool, child):
    run = stream_of(1, 2, 3)
    run.items[0].is_over = True  # is not even sent
    pool.workers.submit([run])
    (job,) = child.take()
    assert [item.data_id for item in job.items] == [2, 3]
    child.yields(job, {"x": "a"}, end=SliceEnd([1, 0], [False, False], [[0, 1]], False, 7))
    await settle()
    assert (run.made, run.groups) == ([0, 1, 0], [[1, 2]])
    run.items[2].is_over = True
    pool.workers.submit([run])
    assert child.take()[0].over == [1]


@played()
async def test_an_unsendable_request_of_a_stream_ends_alone(pool, child):
    run = stream_of(1, 2)
    run.items[0].log_id = 2**70
    pool.workers.submit([run])
    (job,) = child.take()
    child.yields(job, {"x": "a"}, end=waits(1))
    await settle()
    (_, (first,)), (_, (refused,)) = pool.owner.made
    assert first[0] == 1
    assert refused[0] == 0
    assert isinstance(refused[1], PayloadTypeError)
    assert run.ended == [True, False]


@played()
async def test_a_stream_without_sendable_requests_ends(pool, child):
    run = stream_of(1)
    run.items[0].log_id = 2**70
    pool.workers.submit([run])
    await settle()
    assert [[place for place, _ in entries] for _, entries in pool.owner.made] == [[0]]
    assert pool.finished == [run]
    assert (run.is_finished, run.has_work) == (True, False)


@played(2)
async def test_a_process_that_dies_takes_its_streams_along_and_no_others(pool, first, second):
    waiting, _ = await started_stream(pool, first, 1)
    other, _ = await started_stream(pool, second, 2)
    running, _ = await started_stream(pool, first, 3)
    running.allowed = waiting.allowed = [9]
    pool.workers.submit([running, waiting])
    piece, _ = first.take()
    first.status.begins_slice(piece.number)
    new = stream_of(4)
    new.worker = 0
    pool.workers.submit([new])
    first.yields(piece, {"x": "last"})
    first.dies()
    await settle()
    assert {run.items[0].data_id for run in pool.lost} == {1, 3}
    assert all(isinstance(error, WorkerDiedError) for _, error in pool.owner.losses)
    assert running.made == [3], "what was sent before counts"
    assert second.taken_ids == [[4]], "it had not begun"
    assert other not in pool.lost


@played(2)
async def test_a_process_that_hangs_takes_its_other_streams_along(pool, first, second):
    waiting, _ = await started_stream(pool, first, 1)
    hangs = stream_of(2)
    hangs.worker = 0
    pool.workers.submit([hangs])
    (job,) = first.take()
    first.begins(job)
    (worker,) = pool.workers.busy()
    assert worker.job is hangs
    hangs.is_superseded = True  # as the dispatcher does
    pool.workers.replace(worker, None)
    assert first.is_killed
    first.dies()
    await settle()
    assert waiting in pool.lost
    assert second.take() == []


@played()
async def test_slices_are_not_revoked(pool, child):
    run, _ = await started_stream(pool, child, 1)
    run.allowed = [9]
    pool.workers.submit([run])
    (piece,) = child.take()
    child.stops()
    child.continues()
    child.status.begins_slice(piece.number)
    child.yields(piece, {"x": "c"}, end=waits(3))
    await settle()
    assert run.made == [3]
    assert child.take() == []
