"""Process workers whose processes the test plays: every interleaving is chosen, none is raced."""

from __future__ import annotations

import asyncio
import logging
import time

import numpy as np
import pytest
from doubles import settle, virtual
from fake_children import KILLED, FakePool, Sample, played, run_of

from pipeline.engine.journal.spans import executions
from pipeline.engine.run.stages import BatchRun
from pipeline.errors import InitError, PayloadTypeError, ProductError, WorkerDiedError
from pipeline.workers.process.wire import ErrorFields
from pipeline.workers.shm.payload import SharedPayload

BIG = np.zeros(64 * 1024, np.uint8)


class Unpicklable:
    def __reduce__(self):
        raise TypeError("not this one")


# Start ----------------------------------------------------------------------------------------


@virtual
async def test_start_returns_when_every_worker_is_ready():
    async with FakePool(2) as pool:
        first, second = await pool.begin()
        assert (first.number, second.number) == (0, 1)
        assert first.region != second.region
        first.is_ready()
        await settle()
        assert not pool.starting.done()
        assert not pool.workers.is_ready
        second.is_ready()
        await pool.starting
        assert (pool.workers.count, pool.workers.is_ready) == (2, True)


@virtual
async def test_a_worker_whose_pid_becomes_known_later_has_the_same_life():
    async with FakePool() as pool:
        (child,) = await pool.begin()
        pid, child.pid = child.pid, None
        child.is_ready()
        await pool.starting
        before = dict(pool.workers.lives())
        child.pid = pid
        assert pool.workers.lives() == before
        child.dies(KILLED)
        await settle()
        pool.children[-1].is_ready()
        await settle()
        assert pool.workers.lives().keys() == before.keys()
        assert pool.workers.lives() != before


@virtual
async def test_a_worker_that_cannot_start_fails_the_start_with_its_traceback():
    async with FakePool(2) as pool:
        first, second = await pool.begin()
        first.is_ready()
        second.says(failure="no file\nTraceback: in init_op")
        await settle()
        second.dies("ended with exit code 0")
        with pytest.raises(InitError, match=r"(?s)'op' failed to start: no file.*in init_op"):
            await pool.starting


@virtual
async def test_a_worker_that_cannot_start_and_does_not_end_is_killed():
    async with FakePool() as pool:
        (child,) = await pool.begin()
        child.says(failure="no file")
        await asyncio.sleep(0.5)
        assert not child.is_killed, "it may still write what it has printed"
        await asyncio.sleep(1)
        assert child.is_killed


@virtual
async def test_a_process_that_dies_while_it_starts_fails_the_start():
    async with FakePool() as pool:
        (child,) = await pool.begin()
        child.dies("was killed by SIGSEGV (a native crash)")
        with pytest.raises(InitError, match=r"'op' failed to start: .* by SIGSEGV"):
            await pool.starting


@virtual
async def test_a_process_that_dies_once_it_is_ready_fails_the_start():
    async with FakePool() as pool:
        (child,) = await pool.begin()
        child.is_ready()
        child.dies()  # which is known before the report was read
        with pytest.raises(InitError, match=KILLED):
            await pool.starting


@virtual
async def test_a_failed_start_reports_no_second_failure():
    async with FakePool(2) as pool:
        first, second = await pool.begin()
        first.dies()
        second.dies("ended with exit code 3")
        with pytest.raises(InitError, match=KILLED):
            await pool.starting
        assert pool.owner.losses == []


@virtual
async def test_a_start_that_is_cancelled_can_be_stopped():
    async with FakePool(2) as pool:
        first, second = await pool.begin()
        first.is_ready()
        await settle()
        pool.starting.cancel()
        stopping = asyncio.ensure_future(pool.workers.stop(1.0))
        await settle()
        assert not first.is_killed
        assert first.end.recv(1) != b""
        assert second.is_killed, "it is busy starting and would not see that it should end"
        second.dies()
        first.dies()
        assert await stopping == 0


@virtual
async def test_a_stop_ends_the_wait_for_a_start():
    async with FakePool() as pool:
        (child,) = await pool.begin()
        stopping = asyncio.ensure_future(pool.workers.stop(1.0))
        await settle()
        child.dies()
        assert await stopping == 0
        with pytest.raises(InitError, match="stopped"):
            await pool.starting


@virtual
async def test_a_system_without_descriptors_fails_the_start_and_no_memory_is_lost():
    async with FakePool() as pool:
        pool.zygotes.refusals = [InitError("no socket")]
        with pytest.raises(InitError, match="no socket"):
            await pool.workers.start()
        following = pool.memory.open_region()
        assert following == 1, "the region after the server's own is free again"


@played()
async def test_a_restart_without_descriptors_is_tried_again(pool, child):
    pool.zygotes.refusals = [InitError("no socket")]
    child.dies()
    await asyncio.sleep(1.0)
    assert len(pool.children) == 2
    assert len(pool.zygotes.started_at) == 3


# Jobs -----------------------------------------------------------------------------------------


@played(2)
async def test_simultaneous_runs_are_sent_in_one_frame_to_each_worker(pool, first, second):
    pool.workers.submit([run_of(1), run_of(2), run_of(3, 4)])
    assert (first.taken_ids, second.taken_ids) == ([[1], [3, 4]], [[2]])
    assert (len(first.works), len(second.works)) == (1, 1)


@played(2)
async def test_a_run_with_a_worker_is_sent_there_and_not_moved(pool, first, second):
    runs = [run_of(number) for number in range(4)]
    for run in runs[:3]:
        run.worker = 1
    runs[3].worker = 9  # is not there
    pool.workers.submit(runs)
    await settle()
    (other,), own = first.take(), second.take()
    assert [[item.data_id for item in job.items] for job in (other, *own)] == [
        [3], [0], [1], [2]
    ]  # fmt: skip
    second.begins(own[0])
    first.answers(other)
    await asyncio.sleep(1)
    assert first.taken_ids == [], "who addresses batches balances them"


@played()
async def test_a_result_has_the_values_that_the_worker_reported(pool, child):
    run = run_of(1, 2, x="init")
    run.items[0].inputs["read"]["x"] = BIG
    pool.workers.submit([run])
    (job,) = child.take()
    child.answers(job)
    await settle()
    assert pool.finished == [run]
    big, small = (outcome.open() for outcome in run.outcomes)
    assert small == {"x": "init"}
    assert big["x"].nbytes == BIG.nbytes
    assert (run.start_ns, run.preprocess_end_ns, run.process_end_ns, run.end_ns) == (1, 2, 3, 4)
    assert not run.jumped


@played()
async def test_a_run_has_the_time_at_which_an_idle_worker_was_sent_it(pool, child):
    before_ns = time.monotonic_ns()
    first, second = run_of(1), run_of(2)
    pool.workers.submit([first, second])
    assert before_ns <= first.handed_ns <= time.monotonic_ns()
    assert second.handed_ns == 0, "it waits there behind the first"
    for job in child.take():
        child.answers(job)
    await settle()
    pool.workers.submit([second])
    assert second.handed_ns >= first.handed_ns


@played()
async def test_an_error_has_its_class_in_the_server(pool, child):
    run = run_of(1)
    pool.workers.submit([run])
    child.answers(*child.take(), payload=ErrorFields("ProductError", 51, "no face"))
    await settle()
    (error,) = run.outcomes
    assert isinstance(error, ProductError)
    assert (error.code, str(error)) == (51, "no face")


@played()
async def test_a_payload_of_a_worker_is_forwarded_unopened(pool, child):
    run = run_of(1, x=BIG)
    pool.workers.submit([run])
    child.answers(*child.take())
    await settle()
    payload = run.outcomes[0]
    following = BatchRun([Sample(1, {"op": payload})])
    used = pool.memory.used
    pool.workers.submit([following])
    (job,) = child.take()
    assert job.items[0].inputs["op"] == payload.serialized
    assert pool.memory.used == used


@played()
async def test_samples_that_are_over_are_not_sent(pool, child):
    run = run_of(1, 2, 3)
    run.items[1].is_over = True
    pool.workers.submit([run])
    (job,) = child.take()
    assert [sample.data_id for sample in job.items] == [1, 3]
    child.answers(job, payload="done")
    await settle()
    assert [outcome and outcome.open() for outcome in run.outcomes] == ["done", None, "done"]


@played()
async def test_executions_are_mapped_to_the_samples_that_were_sent(pool, child):
    run = run_of(1, 2, 3)
    run.items[1].is_over = True
    pool.workers.submit([run])
    (job,) = child.take()
    result = child.result(job, "done")
    result.rows, result.executions, result.execution_ends_ns = [5, 6], [0, 1], [2, 3]
    child.says(results=[result])
    await settle()
    assert (run.rows, run.executions, run.execution_ends_ns) == ([5, 1, 6], [0, -1, 1], [2, 3])
    over = ([1], (1, 1, 1, 1))
    assert executions(run) == [over, ([0], (1, 2, 2, 2)), ([2], (2, 2, 3, 4))]


@played()
async def test_a_run_of_finished_samples_ends_without_a_worker(pool, child):
    run = run_of(1, 2)
    for sample in run.items:
        sample.is_over = True
    pool.workers.submit([run])
    assert pool.finished == [], "never from inside of submit"
    await settle()
    assert pool.finished == [run]
    assert run.outcomes == [None, None]
    assert 0 < run.start_ns <= run.end_ns
    assert child.take() == []
    assert list(pool.workers.busy()) == []


@played()
async def test_an_unpicklable_sample_fails_alone(pool, child):
    run = run_of(1, 2, x=BIG)
    run.items[0].inputs["read"]["odd"] = Unpicklable()
    pool.workers.submit([run])
    (job,) = child.take()
    child.answers(job)
    await settle()
    refused, answer = run.outcomes
    assert isinstance(refused, PayloadTypeError)
    assert str(refused).startswith("[read] payload['odd']"), "who made it, and what it is"
    assert isinstance(answer, SharedPayload)


@played()
async def test_a_run_without_sendable_samples_ends(pool, child):
    run = run_of(1, odd=Unpicklable())
    pool.workers.submit([run])
    await settle()
    assert pool.finished == [run]
    assert isinstance(run.outcomes[0], PayloadTypeError)
    assert child.take() == []
    assert pool.memory.used == 0


@pytest.mark.parametrize("log_id", [2**64, -(2**63) - 1, 2**128])
@played()
async def test_a_log_id_that_no_frame_holds_fails_its_sample_alone(pool, child, log_id):
    run = run_of(1, 2)
    run.items[0].log_id = log_id
    pool.workers.submit([run])
    assert child.taken_ids == [[2]]
    assert isinstance(run.outcomes[0], PayloadTypeError)
    assert "log_id" in str(run.outcomes[0])


@played()
async def test_jobs_that_are_submitted_while_no_worker_is_up_wait_for_one(pool, child):
    child.dies()
    pool.workers.submit([run_of(1), run_of(2)])
    await settle()
    child = pool.children[-1]
    child.is_ready()
    await settle()
    (job,) = child.take()
    assert job.items[0].data_id == 1, "one at a time, so that other workers also get some"
    child.answers(job)
    await settle()
    assert child.taken_ids == [[2]]


@played(2)
async def test_waiting_jobs_precede_new_ones(pool, first, second):
    pool.workers.submit([run_of(1), run_of(2), run_of(3), run_of(4)])
    first.dies()  # 1 and 3 wait, since the other worker is busy
    assert second.taken_ids == [[2], [4]]
    pool.workers.submit([run_of(5)])
    assert second.taken_ids == [[1], [3], [5]]


@played()
async def test_more_than_the_socket_takes_is_sent_as_the_worker_reads(pool, child):
    short = np.zeros(1900)  # does not go to shared memory
    runs = [run_of(number, x=short) for number in range(200)]
    for run in runs:
        pool.workers.submit([run])
    jobs = child.take()
    assert len(jobs) < 200
    for _ in range(1000):
        await settle(2)
        jobs += child.take()
    assert [job.items[0].data_id for job in jobs] == list(range(200))
    child.answers(*jobs, payload="ok")
    await settle()
    assert pool.finished == runs


@played()
async def test_a_worker_that_dies_with_unsent_frames_loses_no_job(pool, child):
    runs = [run_of(number, x=np.zeros(1900)) for number in range(200)]
    pool.workers.submit(runs)
    child.closes_its_socket()
    await settle()
    child.dies()
    await settle()
    assert pool.lost == []
    pool.children[-1].is_ready()
    await settle()
    assert pool.children[-1].taken_ids == [[0]]


# Jobs behind a slow one --------------------------------------------------------------------------


def begins(pool, child, job, ago_s=0.0):
    """In the time of the test's loop, which is not the system's."""
    child.begins(job)
    child.status._cells[1] = pool.loop.time() - ago_s


@played(2)
async def test_jobs_move_from_a_slow_worker_to_an_idle_one(pool, first, second):
    runs = [run_of(number) for number in range(6)]
    pool.workers.submit(runs)
    slow, *_ = first.take()
    begins(pool, first, slow)
    second.answers(*second.take())
    await asyncio.sleep(0.001)
    assert second.take() == [], "it may be about to get to them"
    for expected in ([[2]], [[4]]):
        await asyncio.sleep(0.01)
        jobs = second.take()
        assert [[sample.data_id for sample in job.items] for job in jobs] == expected
        second.answers(*jobs)
    first.answers(slow)
    await settle()
    assert {run.items[0].data_id for run in pool.finished} == set(range(6))
    assert len(pool.finished) == 6
    assert pool.owner.losses == []


@played(2)
async def test_jobs_of_a_worker_that_gets_on_are_left_to_it(pool, first, second):
    pool.workers.submit([run_of(number) for number in range(10)])
    second.answers(*second.take())
    for job in first.take():
        begins(pool, first, job)
        await asyncio.sleep(0.0015)
        first.answers(job)
        await settle()
    assert second.take() == []
    assert len(pool.finished) == 10


@played(2)
async def test_a_restarted_worker_gets_jobs_that_wait_behind_a_slow_one(pool, first, second):
    second.dies()
    await settle()
    pool.workers.submit([run_of(1), run_of(2)])
    begins(pool, first, first.take()[0], ago_s=1.0)
    following = pool.children[-1]
    following.is_ready()
    await asyncio.sleep(0.01)
    assert following.taken_ids == [[2]]


@played(2)
async def test_a_job_revoked_by_both_sides_is_reported_and_runs(pool, first, second):
    """The worker sees that the job was revoked; from here it looked begun just before that."""
    runs = [run_of(number) for number in range(4)]
    pool.workers.submit(runs)
    slow, raced = first.take()
    begins(pool, first, slow, ago_s=1.0)
    second.answers(*second.take())
    await settle()
    first.status._cells[3] = raced.number
    await asyncio.sleep(0.01)
    assert second.take() == []
    assert not first.status.begins(raced.number)
    first.answers(slow)
    first.says(skipped=[raced.number])
    await settle()
    (again,) = second.take() or first.take()
    assert again.items[0].data_id == 2


@played(2)
async def test_waiting_jobs_of_a_stopped_worker_run_elsewhere_at_once(pool, first, second):
    runs = [run_of(number) for number in range(4)]
    pool.workers.submit(runs)
    held, waiting = first.take()
    begins(pool, first, held)
    first.stops()
    second.answers(*second.take())
    await settle()
    assert second.taken_ids == [[2]]
    first.continues()
    assert not first.status.begins(waiting.number)
    first.says(skipped=[waiting.number])
    first.answers(held)
    await settle()
    assert runs[0] in pool.finished


# Log records ------------------------------------------------------------------------------------


@virtual
async def test_log_records_are_handed_on_even_of_a_worker_that_starts():
    async with FakePool() as pool:
        (child,) = await pool.begin()
        child.says(records=[b"one", b"two"])
        await settle()
        assert pool.records == [b"one", b"two"]


@virtual
async def test_a_log_handler_that_raises_costs_no_result():
    def refuse(record):
        raise ValueError("a filter of the user's")

    async with FakePool(on_record=refuse) as pool:
        reported = []
        pool.loop.set_exception_handler(lambda loop, context: reported.append(context["exception"]))
        (child,) = await pool.up()
        pool.workers.submit([run_of(1), run_of(2)])
        first, second = child.take()
        child.answers(first, payload="a")
        child.says(records=[b"boom"])
        child.answers(second, payload="b")
        await settle()
        assert len(pool.finished) == 2
        assert [type(error) for error in reported] == [ValueError]


# Hangs --------------------------------------------------------------------------------------------


@played(2)
async def test_a_hanging_worker_is_killed_and_its_other_jobs_run_in_order(pool, first, second):
    runs = [run_of(number) for number in range(6)]
    pool.workers.submit(runs)
    first.begins(first.take()[0])
    second.answers(*second.take())
    await settle()
    (hanging,) = pool.workers.busy()
    assert hanging.job is runs[0]
    runs[0].is_superseded = True
    resumed = run_of(100)
    assert pool.workers.replace(hanging, resumed)
    assert first.is_killed
    assert [worker.number for worker in pool.workers.busy()] == [1]
    for expected in ([[100]], [[2]], [[4]], []):
        jobs = second.take()
        assert [[sample.data_id for sample in job.items] for job in jobs] == expected
        if jobs:
            second.answers(*jobs)
        await settle()


@played()
async def test_a_job_of_a_killed_worker_is_lost_once(pool, child):
    run = run_of(1)
    pool.workers.submit([run])
    child.begins(child.take()[0])
    (hanging,) = pool.workers.busy()
    run.is_superseded = True
    pool.workers.replace(hanging, None)
    assert pool.workers.count == 0
    assert list(pool.workers.busy()) == []
    child.dies()
    await settle()
    assert pool.owner.losses == []
    assert len(pool.children) == 2


@played(2)
async def test_the_late_result_of_a_revoked_job_is_dropped_with_its_memory(pool, first, second):
    run = run_of(1, x=BIG)
    pool.workers.submit([run])
    (job,) = first.take()
    (hanging,) = pool.workers.busy()
    pool.workers.replace(hanging, None)  # not superseded: given to the other one
    first.answers(job)
    await settle()
    assert pool.finished == []
    second.answers(*second.take(), payload="right")
    await settle()
    assert [outcome.open() for outcome in run.outcomes] == ["right"]
    assert pool.memory.used == 0


@played()
async def test_a_job_sent_to_an_idle_worker_counts_as_called_after_a_moment(pool, child):
    given = pool.loop.time()
    pool.workers.submit([run_of(1), run_of(2)])
    first, _ = child.take()
    (worker,) = pool.workers.busy()
    assert worker.job_started is None
    assert worker.call_started == given + 1.0
    child.begins(first)
    assert worker.job_started == child.status.job_started
    assert worker.call_started is None, "it is in preprocess"
    child.status.call_begins()
    assert worker.call_started == child.status.call_started
    await asyncio.sleep(3)
    child.answers(first)
    await settle()
    assert worker.job.items[0].data_id == 2
    assert worker.call_started == given + 3.0 + 1.0


@played()
async def test_the_request_that_ran_when_the_worker_died_is_named(pool, child):
    run = run_of(1, 2, 3)
    pool.workers.submit([run])
    child.begins(child.take()[0])
    assert child.status.item == -1
    child.status.item_begins(2)
    child.dies()
    await settle()
    assert run.lost_at == 2


async def hang(pool, run):
    """The running `run` is over its timeout: its worker is killed, and ends."""
    child = pool.children[-1]
    child.begins(child.take()[0])
    (hanging,) = pool.workers.busy()
    run.is_superseded = True
    pool.workers.replace(hanging, None)
    return child


@played()
async def test_consecutive_hangs_are_not_an_outage_for_waiting_requests(pool):
    """One request after the other on a fresh process, and no pause between them."""
    hanging = [run_of(number) for number in range(5)]
    innocent = run_of(100)
    pool.workers.submit([*hanging, innocent])
    for run in hanging:
        (await hang(pool, run)).dies()
        assert pool.workers.outage is None
        assert pool.lost == []
        await settle()
        pool.children[-1].is_ready()
        await settle()
    assert len(set(pool.zygotes.started_at)) == 1, "nobody is kept waiting"
    assert not pool.workers.is_ready, "but five in a row are a sign"
    child = pool.children[-1]
    child.answers(*child.take(), payload="right")
    await settle()
    assert [outcome.open() for outcome in innocent.outcomes] == ["right"]
    assert pool.workers.is_ready


@played()
async def test_one_request_that_hangs_in_all_its_attempts_makes_no_crash_loop(pool):
    for attempt in range(5):
        run = run_of(1)
        run.attempts = attempt
        pool.workers.submit([run])
        (await hang(pool, run)).dies()
        await settle()
        pool.children[-1].is_ready()
        await settle()
        assert pool.workers.is_ready


@played()
async def test_workers_that_never_take_a_job_up_are_an_outage(pool):
    for _ in range(3):
        pool.workers.submit([run_of(1)])
        (idle,) = pool.workers.busy()
        idle.job.is_superseded = True
        pool.workers.replace(idle, None)
        pool.children[-1].dies()
        if pool.workers.outage is None:
            await asyncio.sleep(1)
            pool.children[-1].is_ready()
            await settle()
    assert isinstance(pool.workers.outage, InitError)


# Ends --------------------------------------------------------------------------------------------


@played(2)
async def test_only_the_running_batch_of_a_dead_worker_is_lost(pool, first, second):
    runs = [run_of(number, number + 50) for number in range(6)]
    pool.workers.submit(runs)
    jobs = first.take()
    first.answers(jobs[0])
    await settle()
    first.begins(jobs[1])
    first.dies("was killed by SIGSEGV (a native crash)")
    assert pool.lost == [runs[2]]
    error = pool.owner.losses[0][1]
    assert isinstance(error, WorkerDiedError)
    assert "[op|0]" in str(error)
    assert "(batch: [2, 52]): the worker process was killed by SIGSEGV" in str(error)
    second.answers(*second.take())
    await settle()
    assert second.taken_ids == [[4, 54]]


@played()
async def test_a_worker_that_dies_between_two_batches_loses_none(pool, child):
    pool.workers.submit([run_of(1), run_of(2)])
    child.dies()
    await settle()
    assert pool.owner.losses == []
    pool.children[-1].is_ready()
    await settle()
    assert pool.children[-1].taken_ids == [[1]]


@played()
async def test_each_result_sent_before_a_death_counts(pool, child):
    runs = [run_of(1), run_of(2)]
    pool.workers.submit(runs)
    first, second = child.take()
    child.answers(first)
    child.begins(second)
    child.dies()  # known before the answer was read
    assert pool.finished == runs[:1]
    assert pool.lost == runs[1:]
    await settle()
    assert pool.finished == runs[:1]


@played()
async def test_a_partial_report_is_ignored(pool, child):
    run = run_of(1)
    pool.workers.submit([run])
    (job,) = child.take()
    child.begins(job)
    child.end.send(b"\xff\x00\x00\x00half")
    child.dies()
    assert pool.lost == [run]


@played(2)
async def test_a_worker_with_a_closed_socket_keeps_its_jobs_until_its_end_is_reported(pool, first):
    run = run_of(1)
    pool.workers.submit([run])
    first.begins(first.take()[0])
    first.closes_its_socket()
    await settle()
    assert pool.workers.count == 1
    assert pool.lost == []
    first.dies()
    assert pool.lost == [run]


@played()
async def test_a_worker_that_closes_its_socket_but_lives_is_killed(pool, child):
    child.closes_its_socket()
    await settle()
    assert pool.workers.count == 0
    child.stops()
    child.continues()
    assert pool.workers.count == 0, "nobody can reach it"
    await asyncio.sleep(1.5)
    assert child.is_killed
    run = run_of(1)
    pool.workers.submit([run])
    child.dies()
    await settle()
    pool.children[-1].is_ready()
    await settle()
    assert pool.children[-1].taken_ids == [[1]]


@played(2)
async def test_a_dead_worker_is_replaced_at_once_and_the_owner_is_notified(pool, first):
    changes = pool.owner.changes
    first.dies()
    assert pool.owner.changes > changes
    assert (pool.workers.count, pool.workers.is_ready) == (1, True)
    await settle()
    following = pool.children[-1]
    assert following.number == 0
    following.is_ready()
    await settle()
    assert pool.workers.count == 2


@virtual
async def test_the_log_names_worker_cause_and_restart(caplog):
    with caplog.at_level(logging.WARNING, "pipeline"):
        async with FakePool() as pool:
            (child,) = await pool.up()
            child.dies("ended with exit code 3")
            assert "[op] worker 0 (pid 4711) ended with exit code 3: it is restarted" in (
                caplog.text
            )
            await settle()
            child = pool.children[-1]
            child.says(failure="no file\nthe traceback")
            await settle()
            child.dies("ended with exit code 0")
            assert "failed to start: it is restarted" in caplog.text
            assert "the traceback" in caplog.text


# Crash loops ------------------------------------------------------------------------------------


async def crash(pool, times):
    """The time from each end to the next start."""
    pauses = []
    for _ in range(times):
        pool.children[-1].dies("ended with exit code 3")
        died_at = pool.loop.time()
        await asyncio.sleep(11)
        pauses.append(pool.zygotes.started_at[-1] - died_at)
    return pauses


@played()
async def test_the_pause_before_a_restart_grows(pool):
    pauses = await crash(pool, 12)
    assert pauses[:5] == pytest.approx([0, 0.1, 0.2, 0.4, 0.8])
    assert pauses[-1] == pytest.approx(10.0)


@played()
async def test_a_crash_loop_is_an_outage_that_fails_waiting_runs(pool):
    await crash(pool, 2)
    run = run_of(1)
    pool.workers.submit([run])
    assert pool.workers.outage is None
    await crash(pool, 1)
    assert not pool.workers.is_ready
    assert pool.lost == [run]
    error = pool.owner.losses[0][1]
    assert isinstance(error, InitError)
    assert "[op] all worker processes end repeatedly" in str(error)
    assert "ended with exit code 3" in str(error)
    pool.children[-1].is_ready()
    await settle()
    assert pool.workers.outage is None
    assert not pool.workers.is_ready, "it has yet to get anywhere"


@played()
async def test_a_crash_loop_is_over_with_the_first_batch(pool):
    await crash(pool, 3)
    child = pool.children[-1]
    child.is_ready()
    await settle()
    pool.workers.submit([run_of(1)])
    child.answers(*child.take())
    await settle()
    assert pool.workers.is_ready


@played()
async def test_a_crash_loop_ends_when_the_worker_stays_up(pool):
    await crash(pool, 3)
    pool.children[-1].is_ready()
    await settle()
    changes = pool.owner.changes
    await asyncio.sleep(9.9)
    assert not pool.workers.is_ready
    await asyncio.sleep(0.2)
    assert pool.workers.is_ready
    assert pool.owner.changes == changes + 1


@played()
async def test_a_worker_that_dies_in_every_second_batch_is_not_a_crash_loop(pool):
    for number in range(6):
        child = pool.children[-1]
        if number:
            child.is_ready()
        await settle()
        pool.workers.submit([run_of(number)])
        child.answers(*child.take())
        await settle()
        child.dies()
        await settle()
        assert not pool.workers.is_ready, "nobody is there for the moment"
    pool.children[-1].is_ready()
    await settle()
    assert pool.workers.is_ready
    assert len(set(pool.zygotes.started_at)) == 1


@played(2)
async def test_a_replacement_does_not_affect_readiness_while_another_worker_is_up(pool, first):
    first.dies()
    await settle()
    assert pool.workers.is_ready


@played(2)
async def test_as_long_as_one_place_is_well_there_is_hope(pool, first):
    for _ in range(3):
        pool.children[-1].dies()
        await asyncio.sleep(1)
    assert not pool.workers.is_ready
    assert pool.workers.outage is None
    first.dies()
    assert pool.workers.outage is None


# Stopped processes ------------------------------------------------------------------------------


@played(2)
async def test_a_stopped_worker_gets_no_jobs_until_it_continues(pool, first):
    first.stops()
    assert pool.workers.count == 1
    pool.workers.submit([run_of(1), run_of(2)])
    assert first.take() == []
    first.continues()
    assert pool.workers.count == 2
    pool.workers.submit([run_of(3)])
    assert first.taken_ids == [[3]]
    await asyncio.sleep(5)
    assert not first.is_killed


@played(2)
async def test_a_worker_that_stays_stopped_is_killed_and_its_jobs_continue(pool, first, second):
    pool.workers.submit([run_of(1)])
    first.stops()
    assert second.taken_ids == [[1]]
    await asyncio.sleep(0.9)
    assert not first.is_killed
    await asyncio.sleep(0.2)
    assert first.is_killed
    first.dies()
    assert pool.owner.losses == []


@virtual
async def test_a_worker_that_is_stopped_and_continued_during_its_start_is_left_alone():
    async with FakePool() as pool:
        (child,) = await pool.begin()
        child.stops()
        child.continues()
        await asyncio.sleep(5)
        assert not child.is_killed
        child.is_ready()
        await pool.starting
        assert pool.workers.count == 1


@virtual
async def test_a_worker_stopped_right_after_ready_gets_no_jobs():
    async with FakePool(2) as pool:
        first, second = await pool.begin()
        first.is_ready()
        first.stops()  # known before the report was read
        second.is_ready()
        await settle()
        assert not pool.starting.done()
        assert pool.workers.count == 1
        first.continues()
        await pool.starting
        assert pool.workers.count == 2


@virtual
async def test_a_worker_stopped_right_after_ready_is_killed():
    async with FakePool() as pool:
        (child,) = await pool.begin()
        child.is_ready()
        child.stops()
        await asyncio.sleep(1.5)
        assert child.is_killed


# Shared memory ------------------------------------------------------------------------------------


@played()
async def test_the_memory_of_a_dead_worker_stays_while_payloads_refer_to_it(pool, child):
    region = child.region
    run = run_of(1, x=BIG + 7)
    pool.workers.submit([run])
    child.answers(*child.take())
    await settle()
    child.dies()
    await settle()
    following = pool.children[-1]
    assert following.region != region
    (payload,) = run.outcomes
    assert (payload.open()["x"] == 7).all()
    pool.owner.finished.clear()
    del run, payload
    assert pool.memory.used == 0
    following.dies()
    await settle()
    assert pool.children[-1].region in (region, following.region)


@played(2)
async def test_a_reused_region_is_not_freed_by_earlier_payloads(pool, first, second):
    kept = run_of(1, x=BIG)
    pool.workers.submit([kept])
    first.answers(*first.take())
    await settle()
    regions = {first.region, second.region}
    pool.owner.finished.clear()
    first.dies()
    await settle()
    third = pool.children[-1]
    assert third.region not in regions
    third.is_ready()
    await settle()
    del kept
    pool.memory.alloc(1)  # it is looked at here
    third.dies()
    await asyncio.sleep(1)
    following = pool.children[-1]
    following.is_ready()
    await settle()
    second.stops()
    pool.workers.submit([run_of(2)])
    following.take()
    assert [work.freed for work in following.works] == [[]]


@played()
async def test_a_worker_receives_freed_blocks_with_its_next_job(pool, child):
    for number in range(100):  # 6 MiB through a region of 1 MiB
        run = run_of(number, x=BIG)
        pool.workers.submit([run])
        (job,) = child.take()
        child.answers(job)
        await settle()
        (payload,) = run.outcomes
        assert payload.serialized.buffers != [], "there is room"
        pool.owner.finished.clear()
        del run, payload
    assert pool.memory.used == 0


@played()
async def test_inputs_stay_in_memory_until_their_worker_is_done_or_dead(pool, child):
    run = run_of(1, x=BIG)
    pool.workers.submit([run])
    run.items[0].inputs = {}
    run.items[0].is_over = True
    assert pool.memory.used == 1
    child.answers(*child.take(), payload="done")
    await settle()
    assert pool.memory.used == 0


# Stop ---------------------------------------------------------------------------------------------


@played(2)
async def test_stop_parts_from_the_workers_and_waits_for_them(pool, first, second):
    stopping = asyncio.ensure_future(pool.workers.stop(5.0))
    await settle()
    assert not first.is_killed
    for child in (first, second):
        assert child.take() == []
        child.dies("ended with exit code 0")
    assert await stopping == 0
    await asyncio.sleep(20)
    assert len(pool.children) == 2


@played(2)
async def test_stop_kills_workers_and_counts_the_remaining_ones(pool, first, second):
    stopping = asyncio.ensure_future(pool.workers.stop(5.0))
    await asyncio.sleep(4.9)
    assert not first.is_killed
    await asyncio.sleep(0.2)
    assert first.is_killed
    assert second.is_killed
    first.dies()
    assert await stopping == 1
    assert await pool.workers.stop(0.0) == 1, "asked again it says the same"


@played()
async def test_stop_calls_off_a_restart_that_is_due(pool):
    await crash(pool, 3)
    pool.children[-1].dies()
    assert await pool.workers.stop(1.0) == 0
    started = len(pool.children)
    await asyncio.sleep(30)
    assert len(pool.children) == started


@played()
async def test_a_worker_that_starts_while_the_pool_stops_gets_no_jobs(pool, child):
    child.dies()
    await settle()
    pool.workers.submit([run_of(1)])
    child = pool.children[-1]
    child.is_ready()
    stopping = asyncio.ensure_future(pool.workers.stop(1.0))
    await settle()
    assert pool.workers.count == 0
    child.dies()
    assert await stopping == 0
    assert pool.owner.losses == []


# More of them, and fewer --------------------------------------------------------------------------


@played(1)
async def test_new_workers_are_there_when_they_are_ready(pool):
    adding = asyncio.ensure_future(pool.workers.add([1, 2]))
    await settle()
    _, second, third = pool.children
    second.is_ready()
    await settle()
    assert not adding.done()
    third.is_ready()
    await adding
    assert (sorted(pool.workers.numbers), pool.workers.count) == ([0, 1, 2], 3)
    assert pool.workers.is_ready


@played(1)
async def test_a_failed_start_of_one_new_worker_dismisses_all_new_ones(pool, first):
    adding = asyncio.ensure_future(pool.workers.add([1, 2]))
    await settle()
    _, second, third = pool.children
    second.is_ready()
    third.says(failure="no file")
    await settle()
    third.dies("ended with exit code 0")
    with pytest.raises(InitError, match="no file"):
        await adding
    await settle()
    assert pool.workers.numbers == [0]
    assert second.end.recv(1 << 16) != b"", "its first frame"
    assert second.end.recv(1) == b"", "it is asked to end"
    pool.workers.submit([run_of(1)])
    assert first.taken_ids == [[1]]
    second.dies("ended with exit code 0")
    await asyncio.sleep(60)
    assert len(pool.children) == 3, "no worker is restarted"


@played(2)
async def test_a_dismissed_worker_finishes_its_job_and_the_rest_moves(pool, first, second):
    runs = [run_of(number) for number in range(1, 5)]
    pool.workers.submit(runs)
    begun, *_ = second.take()
    second.begins(begun)
    pool.workers.dismiss([1])
    leaving = asyncio.ensure_future(pool.workers.have_left(30))
    await settle()
    assert (pool.workers.count, pool.workers.numbers, leaving.done()) == (1, [0], False)
    second.answers(begun)
    await settle()
    assert runs[1] in pool.finished
    assert second.end.recv(1) == b"", "it is asked to end"
    second.dies("ended with exit code 0")
    assert await leaving
    first.answers(*first.take())
    await settle()
    first.answers(*first.take())
    await settle()
    assert set(pool.finished) == set(runs)
    assert pool.workers.state().restarts == 0


@played(2)
async def test_a_dismissed_worker_that_dies_is_not_replaced(pool, first, second):
    run = run_of(1)
    pool.workers.submit([run_of(0), run])
    (begun,) = second.take()
    second.begins(begun)
    pool.workers.dismiss([1])
    second.dies()
    await asyncio.sleep(60)
    assert len(pool.children) == 2
    assert pool.lost == [run]
    assert await pool.workers.have_left(1)


@played(2)
async def test_a_worker_that_leaves_too_slowly_is_not_waited_for(pool, first, second):
    pool.workers.submit([run_of(0), run_of(1)])
    second.begins(*second.take())
    pool.workers.dismiss([1])
    assert not await pool.workers.have_left(5)
    assert not second.is_killed


@played(1)
async def test_a_stop_ends_the_wait_for_new_workers(pool, first):
    adding = asyncio.ensure_future(pool.workers.add([1]))
    await settle()
    stopping = asyncio.ensure_future(pool.workers.stop(1.0))
    await settle()
    for child in pool.children:
        child.dies()
    await stopping
    with pytest.raises(InitError, match="was stopped"):
        await adding
