"""Caches in front of Ops and of whole graphs: what is found, what is kept, and what fails."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from doubles import Engine, Tag, answers, on_loop, settle, virtual

from pipeline import Op, RequestOp
from pipeline.caches.local import LocalCache, LocalOptions
from pipeline.engine.op.answer_cache import ServerCache
from pipeline.engine.op.cache import ModelCache
from pipeline.errors import GraphError
from pipeline.observe.statistics import Statistics


class SlowCache:
    """A shared cache whose answers come when the test lets them; it may be `broken`."""

    is_shared = True

    def __init__(self):
        self.values: dict[bytes, bytes] = {}
        self.may_answer = asyncio.Event()
        self.broken = False

    async def open(self):
        pass

    async def close(self):
        pass

    async def lookup(self, key):
        await self.may_answer.wait()
        if self.broken:
            raise ConnectionError("it is away")
        return self.values.get(key)

    async def insert(self, key, value):
        if self.broken:
            raise ConnectionError("it is away")
        self.values[key] = value


def local():
    return ServerCache("local", LocalCache(LocalOptions(size=2**20)))


def engine(last, server, **config):
    return Engine(last, config, cache=ModelCache(server, "svc", "1"))


def with_cache(*names):
    return {"op": {name: {"response_cache": True} for name in names}}


async def answer_of(there, **pairs):
    return answers(await there.ask(**pairs))


class Counts(Op):
    """How many requests it has seen."""

    seen = 0

    def preprocess(self, input_dicts, data_id, log_id):
        type(self).seen += 1
        return {"seen": str(self.seen), **input_dicts[next(iter(input_dicts))]}, False, None, ""


@pytest.fixture(autouse=True)
def reset_count():
    Counts.seen = 0


@virtual
async def test_an_op_runs_once_for_equal_requests():
    first = Counts("first", [RequestOp()])
    async with engine(Tag("last", [first]), local(), **with_cache("first")) as there:
        said = [await answer_of(there, path="a"), await answer_of(there, path="a")]
        assert said[0] == said[1]
        await answer_of(there, path="b")
        assert Counts.seen == 2


@virtual
async def test_a_whole_graph_runs_once_for_equal_requests():
    async with engine(Counts("only", [RequestOp()]), local(), response_cache=True) as there:
        assert await answer_of(there, path="a") == await answer_of(there, path="a")
        assert Counts.seen == 1
        there.journal.flush()
        assert [request["outcome"] for request in there.requests] == [0, 0]


@virtual
async def test_statistics_separate_hits_from_executions():
    counted = Statistics("svc", ["first"])
    there = engine(Counts("first", [RequestOp()]), local(), **with_cache("first"))
    there.journal.sinks.append(counted)
    counted.notify_caches(0)  # as the engine tells the sinks that there are when it is made
    async with there:
        for path in ("a", "a", "b", "a"):
            await answer_of(there, path=path)
        there.journal.flush()
    whole, op = counted.models
    assert (whole.caches, whole.success_count, whole.cache_hit_count) == (False, 4, 0)
    assert (op.caches, op.success_count, op.cache_hit_count, op.cache_miss_count) == (True, 4, 2, 2)
    assert (op.inference_count, op.execution_count) == (2, 2)


@virtual
async def test_a_slow_cache_does_not_delay_other_requests():
    cache = SlowCache()
    first = Counts("first", [RequestOp()])
    async with engine(first, ServerCache("slow", cache), **with_cache("first")) as there:
        waiting = there.ask(path="a")
        await settle()
        assert not waiting.done()
        cache.may_answer.set()
        before = answers(await waiting)
        await settle()
        assert await answer_of(there, path="a") == before
        assert Counts.seen == 1


@virtual
async def test_a_request_that_ends_before_its_lookup_reaches_no_worker():
    cache = SlowCache()
    first = Counts("first", [RequestOp()])
    for whole in (False, True):
        config = {"response_cache": True} if whole else with_cache("first")
        async with engine(first, ServerCache("slow", cache), **config) as there:
            response = await there.ask(timeout_s=0.5, path="a")
            assert response.err_no != 0
            cache.may_answer.set()
            await settle()
            assert Counts.seen == 0
            assert there.executor.inside == 0
        cache.may_answer.clear()
        first = Counts("first", [RequestOp()])


@virtual
async def test_a_cache_that_fails_is_a_miss_and_is_logged_once(caplog):
    cache = SlowCache()
    cache.broken = True
    cache.may_answer.set()
    server = ServerCache("slow", cache)
    async with engine(Counts("first", [RequestOp()]), server, **with_cache("first")) as there:
        for _ in range(3):
            await answer_of(there, path="a")
            await settle()
        assert Counts.seen == 3
        assert server.failures == 6
        assert [record.message.split(" key")[0] for record in caplog.records] == [
            "Failed to look up",
            "Failed to insert",
        ]
        cache.broken = False
        await answer_of(there, path="a")
        cache.values = dict.fromkeys(cache.values, b"\x00\x00\x00\x01junk")
        assert (await answer_of(there, path="a"))["seen"] == "5"


class Large(Op):
    """An array that is too much for the event loop; the next Op changes it in place."""

    def preprocess(self, input_dicts, data_id, log_id):
        Counts.seen += 1
        return {"y": np.zeros(100_000)}, False, None, ""


class Adds(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        array = input_dicts["large"]["y"]
        array += 1
        return {"sum": str(array.sum())}, False, None, ""


@pytest.mark.parametrize("config", [with_cache("large"), {"response_cache": True}])
@on_loop
async def test_a_large_answer_is_cached_as_its_op_returned_it(config):
    large = Large("large", [RequestOp()])
    last = Adds("adds", [large]) if "op" in config else large
    server = local()
    async with engine(last, server, **config) as there:
        for _ in range(3):
            response = await there.ask(path="a")
            head = getattr(response, "head", response)
            assert head.err_no == 0, head.err_msg
            if "op" in config:
                assert answers(response) == {"sum": "100000.0"}
        assert Counts.seen == 1
    await server.close()


class Parts(Op):
    def process(self, feed_batch, typical_logid=0):
        yield [{"n": 1}]


@virtual
async def test_answers_in_parts_are_not_cached():
    with pytest.raises(GraphError, match="response_cache keeps no parts"):
        engine(Parts("parts", [RequestOp()]), local(), **with_cache("parts"))


@virtual
async def test_an_error_is_not_cached():
    class Fails(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            Counts.seen += 1
            raise ValueError("no")

    async with engine(Fails("fails", [RequestOp()]), local(), **with_cache("fails")) as there:
        for _ in range(2):
            assert (await there.ask(path="a")).err_no != 0
        assert Counts.seen == 2
