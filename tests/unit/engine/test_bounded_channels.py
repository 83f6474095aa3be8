"""Bounded channels: a request that waits continues as soon as a place is free."""

from __future__ import annotations

import asyncio

import pytest
from doubles import Engine, Tag, answers, chain, settle, virtual

from pipeline import ProductError, RequestOp
from pipeline.errors import DeadlineError, WorkerDiedError

SIZES = pytest.mark.parametrize("size", [1, 2])


class Picky(Tag):
    """Refuses a request that is called "bad"."""

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, answer),) = input_dicts.items()
        if answer["path"].startswith("bad"):
            raise ProductError(51, "refused")
        return super().preprocess(input_dicts, data_id, log_id)

    def process(self, feed_batch, typical_logid):
        return feed_batch[0]


class Full(Engine):
    """Two Ops in a row: the second holds on to what it gets, so all is full, up to the door."""

    def __init__(self, size, **b):
        config = {"dag": {"channel_size": size}, "op": {"b": b}}
        last = Picky("b", [Tag("a", [RequestOp()])])
        super().__init__(last, config, {"a": 0.001, "b": None})
        self.size = size
        self.a, self.b = self.nodes.values()

    async def fill(self, **timeouts):
        """Requests "0", "1", ...: one at b, the next in b's channel, then in a's, then outside.

        The request "k" has its deadline after `timeouts["k"]` seconds.
        """
        paths = [str(i) for i in range(3 + 2 * self.size)]
        tasks = [self.ask(timeouts.get(f"_{path}"), path=path) for path in paths]
        await asyncio.sleep(0.1)
        self.check_is_full()
        return tasks

    def check_is_full(self):
        assert (len(self.b.scheduler), len(self.a.scheduler)) == (self.size, self.size)
        assert self.executor.waiting > 0

    async def check_all_moved_up(self, waiting):
        """Somebody took the free place in each channel, and a request came in by the door."""
        await asyncio.sleep(0.01)
        assert (len(self.b.scheduler), len(self.a.scheduler)) == (self.size, self.size)
        assert self.executor.waiting == waiting - 1

    async def finish(self, asked):
        """All others are answered; b is the only one that they wait for."""
        while not all(one.done() for one in asked):
            self.pools["b"].release()
            await asyncio.sleep(0.01)
        responses = await asyncio.gather(*asked, return_exceptions=True)
        assert (len(self.a.scheduler), len(self.b.scheduler), self.executor.inside) == (0, 0, 0)
        return responses


def paths_of(found):
    return [answers(response)["path"] for response in found]


@SIZES
@virtual
async def test_a_place_becomes_free_when_an_item_is_done(size):
    async with Full(size) as engine:
        tasks = await engine.fill()
        waiting = engine.executor.waiting
        engine.pools["b"].release()
        await engine.check_all_moved_up(waiting)
        assert paths_of(await engine.finish(tasks)) == [f"{i}>a>b" for i in range(3 + 2 * size)]


@SIZES
@virtual
async def test_a_place_becomes_free_when_an_item_fails(size):
    async with Full(size) as engine:
        bad = engine.ask(path="bad")
        tasks = await engine.fill()
        waiting = engine.executor.waiting
        engine.pools["b"].release()
        await engine.check_all_moved_up(waiting)
        assert (await bad).err_no == 51
        assert len(paths_of(await engine.finish(tasks))) == len(tasks)


@SIZES
@pytest.mark.parametrize("place", ["in b's channel", "in a's channel"])
@pytest.mark.parametrize("how", ["cancel", "deadline"])
@virtual
async def test_a_place_becomes_free_when_its_caller_leaves(size, place, how):
    async with Full(size) as engine:
        index = size if place == "in b's channel" else 2 * size
        timeouts = {f"_{index}": 1.0} if how == "deadline" else {}
        tasks = await engine.fill(**timeouts)
        waiting = engine.executor.waiting
        if how == "cancel":
            tasks[index].cancel()
        else:
            await asyncio.sleep(1.0)
        await engine.check_all_moved_up(waiting)
        gone = tasks.pop(index)
        assert len(paths_of(await engine.finish(tasks))) == len(tasks)
        assert gone.cancelled() == (how == "cancel")


@SIZES
@virtual
async def test_a_place_becomes_free_when_the_worker_is_lost_with_its_request(size):
    async with Full(size) as engine:
        tasks = await engine.fill()
        waiting, pool = engine.executor.waiting, engine.pools["b"]
        (worker,) = pool.busy()
        job = worker.job
        pool.replace(worker, None)
        pool.owner.lost(job, WorkerDiedError("killed"))
        await engine.check_all_moved_up(waiting)
        assert (await tasks.pop(0)).err_no == WorkerDiedError.code
        assert len(paths_of(await engine.finish(tasks))) == len(tasks)


@SIZES
@virtual
async def test_a_place_becomes_free_when_a_lost_request_is_repeated(size):
    async with Full(size, retry=2) as engine:
        tasks = await engine.fill()
        pool = engine.pools["b"]
        (worker,) = pool.busy()
        job = worker.job
        pool.replace(worker, None)
        pool.owner.lost(job, WorkerDiedError("killed"))
        await settle()
        assert pool.batches == [[0], [0]]
        engine.check_is_full()
        assert len(paths_of(await engine.finish(tasks))) == len(tasks)


@SIZES
@virtual
async def test_places_become_free_when_an_op_takes_too_long(size):
    async with Full(size, timeout=200, retry=1) as engine:
        tasks = await engine.fill()
        responses = await asyncio.gather(*tasks)
        assert {response.err_no for response in responses} == {DeadlineError.code}
        assert engine.executor.inside == 0


@SIZES
@virtual
async def test_places_become_free_in_an_outage(size):
    async with Full(size) as engine:
        tasks = await engine.fill()
        pool = engine.pools["b"]
        (worker,) = pool.busy()
        pool.refuses_replacement = True
        job = worker.job
        pool.replace(worker, None)
        pool.owner.lost(job, WorkerDiedError("killed"))
        responses = await asyncio.gather(*tasks)
        codes = {response.err_no for response in responses}
        assert codes == {WorkerDiedError.code, DeadlineError.code}, "of the last: the outage"
        assert engine.executor.inside == 0


@SIZES
@virtual
async def test_a_place_becomes_free_when_the_request_is_answered_by_another_branch(size):
    """A first-arrival join takes the quick branch; what the slow one has of it is dropped."""
    read = RequestOp()
    slow = Tag("slow", [Tag("before", [read])])
    last = Tag("last", [slow, Tag("quick", [read])])
    config = {
        "dag": {"channel_size": size},
        "op": {"last": {"channel_recv_first_arrive": True}},
    }
    times = {"slow": None, "quick": 1.0}
    async with Engine(last, config, times) as engine:
        nodes = {node.name: node for node in engine.nodes.values()}
        tasks = [engine.ask(path=str(i)) for i in range(3 + 2 * size)]
        await asyncio.sleep(0.9)
        assert len(nodes["slow"].scheduler) == size
        assert engine.executor.waiting > 0
        responses = await asyncio.gather(*tasks)
        assert paths_of(responses) == [f"{i}>quick>last" for i in range(len(tasks))]
        assert not any(len(node.scheduler) for node in nodes.values())


@SIZES
@virtual
async def test_a_place_becomes_free_when_a_request_starts_again(size):
    """The slow branch is full of a request whose other branch makes it start again."""
    read = RequestOp()
    slow = Tag("slow", [Tag("before", [read])])
    first = Tag("first", [slow, Tag("quick", [read])])
    config = {
        "dag": {"channel_size": size, "retry": 2},
        "op": {
            "first": {"channel_recv_first_arrive": True},
            "last": {"timeout": 500, "retry": 1, "concurrency": 9},
        },
    }
    times = {"slow": None, "last": None}
    async with Engine(Picky("last", [first]), config, times) as engine:
        nodes = {node.name: node for node in engine.nodes.values()}
        tasks = [engine.ask(path=str(i)) for i in range(3 + 2 * size)]
        await asyncio.sleep(0.4)
        assert len(nodes["slow"].scheduler) == size
        responses = await asyncio.gather(*tasks)
        assert {response.err_no for response in responses} == {DeadlineError.code}
        assert not any(len(node.scheduler) for node in nodes.values())
        assert engine.executor.inside == 0


class Hops(Tag):
    def check_jumping(self, input_data):
        return any("hop" in record.payload["path"] for record in input_data.values())


def jumping(size):
    """jumper, over, target, last; a request that is called "hop" jumps to the target."""
    j = Hops("jumper", [RequestOp()])
    target = Tag("target", [Tag("over", [j])])
    j.set_jump_to_ops([target])
    config = {"dag": {"channel_size": size}}
    return Engine(Tag("last", [target]), config, {"over": None, "last": None})


@SIZES
@virtual
async def test_a_place_becomes_free_when_a_jump_passes_over_it(size):
    """While one jumps nobody else gets the place that was kept for it; then somebody does."""
    async with jumping(size) as engine:
        nodes = {node.name: node for node in engine.nodes.values()}
        engine.pools["jumper"].service_s = 1.0
        hop = [engine.ask(path="hop") for _ in range(size)]
        walk = [engine.ask(path=str(i)) for i in range(size + 1)]
        for _ in range(size):
            await asyncio.sleep(1.0)
            assert not engine.pools["over"].batches
        await asyncio.sleep(size + 2.0)
        assert len(nodes["over"].scheduler) == size
        while not all(one.done() for one in (*hop, *walk)):
            engine.pools["over"].release()
            engine.pools["last"].release()
            await asyncio.sleep(0.01)
        assert paths_of(await asyncio.gather(*hop)) == ["hop>jumper>last"] * size
        assert len(paths_of(await asyncio.gather(*walk))) == size + 1


@SIZES
@virtual
async def test_an_answer_that_jumps_waits_for_a_place_at_its_target(size):
    async with jumping(size) as engine:
        nodes = {node.name: node for node in engine.nodes.values()}
        tasks = [engine.ask(path=f"hop{i}") for i in range(3 + 2 * size)]
        await asyncio.sleep(1.0)
        assert len(nodes["last"].scheduler) == len(nodes["jumper"].scheduler) == size
        assert engine.executor.waiting > 0
        while not all(one.done() for one in tasks):
            engine.pools["last"].release()
            await asyncio.sleep(0.01)
        assert len(paths_of(await asyncio.gather(*tasks))) == len(tasks)


@SIZES
@virtual
async def test_a_jump_back_does_not_wait(size):
    """Two Ops that fill each other's channels would wait for each other forever."""

    class Again(Tag):
        def check_jumping(self, input_data):
            return any(r.payload["path"].count(self.name) < 3 for r in input_data.values())

    first = Tag("first", [RequestOp()])
    middle = Tag("middle", [first])
    again = Again("again", [middle])
    again.set_jump_to_ops([first])
    config = {"dag": {"channel_size": size}}
    async with Engine(Tag("last", [again]), config, {"again": 0.01}) as engine:
        responses = await asyncio.gather(*(engine.ask() for _ in range(10)))
        assert set(paths_of(responses)) == {"first>middle>again>middle>again>middle>again>last"}


# What a bound must not cost -----------------------------------------------------------------------


@SIZES
@virtual
async def test_the_last_op_has_no_channel_to_wait_for(size):
    config = {"dag": {"channel_size": size}, "op": {"last": {"concurrency": 4}}}
    async with Engine(chain("first", "last"), config, {"last": None}) as engine:
        tasks = [engine.ask() for _ in range(4)]
        await asyncio.sleep(1.0)
        assert len(engine.pools["last"].batches) == 4
        engine.pools["last"].release(4)
        await asyncio.gather(*tasks)


@virtual
async def test_a_place_that_becomes_free_in_a_channel_that_was_not_full_is_used():
    """Of two places one is promised to a hanging call and one was taken, until just now."""
    config = {"dag": {"channel_size": 2}, "op": {"a": {"concurrency": 2}}}
    async with Engine(chain("a", "b"), config, {"a": None, "b": None}) as engine:
        tasks = [engine.ask() for _ in range(5)]
        for _ in range(2):  # one runs at b, one is in its channel
            await settle()
            engine.pools["a"].release()
        await settle()
        assert len(engine.pools["a"].batches) == 3
        engine.pools["b"].release()
        await settle()
        assert len(engine.pools["a"].batches) == 4
        for one in tasks[:0:-1]:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@virtual
async def test_the_place_reserved_for_a_cancelled_request_is_free_at_once():
    """Its call continues for an unknown time."""
    config = {"dag": {"channel_size": 1}, "op": {"a": {"concurrency": 2}}}
    async with Engine(chain("a", "b"), config, {"a": None}) as engine:
        hangs, other = engine.ask(), engine.ask()
        await settle()
        assert len(engine.pools["a"].batches) == 1
        hangs.cancel()
        await settle()
        assert len(engine.pools["a"].batches) == 2
        engine.pools["a"].release(2)
        assert answers(await other)["path"] == "a>b"


@virtual
async def test_a_batch_larger_than_the_channel_does_not_wait_for_more():
    """Nobody else can come while the channel is full."""
    op = {"batch_size": 8, "auto_batching_timeout": 10_000}
    config = {"dag": {"channel_size": 2}, "op": {"b": op}}
    async with Engine(chain("a", "b"), config) as engine:
        await asyncio.gather(*(engine.ask(1.0) for _ in range(4)))
        assert engine.pools["b"].batches == [[0, 1], [2, 3]]
