"""Streams and sequences at actors that the test plays; workers that come and go."""

from __future__ import annotations

import asyncio

from doubles import settle, virtual
from fake_children import Sample, run_of
from fake_ray import RayPool

from pipeline import Op
from pipeline.data import RequestInfo
from pipeline.engine.streams.flow import ENDED, UNWANTED, apart
from pipeline.engine.streams.run import StreamRun
from pipeline.errors import WorkerDiedError


class Counts(Op):
    def process(self, feed_batch, typical_logid):
        try:
            for part in range(5):
                yield {"part": part}
        finally:
            closed.append(feed_batch[0]["x"])


class Doubling(Op):
    def preprocess(self, input_dicts):
        return {"x": input_dicts["read"]["x"] * 2}


closed: list[int] = []


def stream_of(*data_ids, room=2):
    items = [Sample(data_id, {"read": {"x": data_id}}) for data_id in data_ids]
    for item in items:
        item.info = RequestInfo()
        item.is_cancelled = lambda: False
    run = StreamRun(items)
    run.allowed = [room] * len(data_ids)
    return run


def made(pool):
    return [
        (place, part if part is ENDED else part.open()["part"])
        for _, entries in pool.owner.made
        for place, part in apart(entries)
    ]


@virtual
async def test_a_generator_makes_as_many_parts_as_there_is_room_and_continues():
    async with RayPool(Counts("op"), count=2) as pool:
        first, second = await pool.up()
        run = stream_of(1)
        pool.workers.submit([run])
        first.runs()
        await settle()
        assert made(pool) == [(0, 0), (0, 1)]
        assert (run.made, run.is_finished, run.has_work) == ([2], False, False)
        run.allowed = [9]
        pool.workers.submit([run])
        assert not second.calls
        first.runs()
        await settle()
        assert made(pool) == [*((0, part) for part in range(5)), (0, ENDED)]
        assert run.is_finished


@virtual
async def test_an_unwanted_generator_is_closed_in_its_actor():
    async with RayPool(Counts("op")) as pool:
        (actor,) = await pool.up()
        run = stream_of(7)
        pool.workers.submit([run])
        actor.runs()
        await settle()
        closed.clear()
        run.allowed = [UNWANTED]
        pool.workers.submit([run])
        actor.runs()
        await settle()
        assert closed == [7]


@virtual
async def test_a_stream_ends_with_its_actor():
    async with RayPool(Counts("op")) as pool:
        (actor,) = await pool.up()
        run = stream_of(1)
        pool.workers.submit([run])
        actor.runs()
        await settle()
        actor.dies()
        await settle()
        ((lost, error),) = pool.owner.losses
        assert lost is run
        assert isinstance(error, WorkerDiedError)


@virtual
async def test_a_batch_of_sequences_is_sent_to_its_own_actor_only():
    async with RayPool(Doubling("op"), count=2) as pool:
        first, second = await pool.up()
        lives = pool.workers.lives()
        assert sorted(lives) == [0, 1]
        run = run_of(1, x=4)
        run.worker, run.places = 1, [0]
        pool.workers.submit([run])
        assert (len(first.calls), len(second.calls)) == (0, 1)
        second.dies()
        await settle()
        assert [lost for lost, _ in pool.owner.losses] == [run], "what it needs was there alone"
        assert 1 not in pool.workers.lives()


@virtual
async def test_actors_start_and_stop_while_others_work():
    async with RayPool(Doubling("op")) as pool:
        (first,) = await pool.up()
        adding = asyncio.ensure_future(pool.workers.add([1]))
        await settle()
        second = pool.actors[1]
        second.runs()
        await adding
        assert pool.workers.count == 2
        runs = [run_of(number, x=number) for number in range(4)]
        pool.workers.submit(runs)
        second.begins(1)
        pool.workers.dismiss([1])
        await settle()
        assert pool.workers.count == 1
        second.runs(2)
        await settle()
        assert second.calls[0][0] == "end", "it is done with what it had begun"
        second.runs()
        assert await pool.workers.have_left(1.0)
        for _ in range(3):
            first.runs()
            await settle()
        assert {run.items[0].data_id for run in pool.finished} == {0, 1, 2, 3}
