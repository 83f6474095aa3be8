"""Loads of several kinds of requests at once, on a virtual clock: each has its share."""

from __future__ import annotations

import asyncio

import pytest
from doubles import Engine, Tag, answers, settle, virtual
from offered_load import ANSWERED, REFUSED, TOO_LATE, Load

from pipeline import Answer, Op, RequestOp
from pipeline.caches.local import LocalCache, LocalOptions
from pipeline.engine.op.answer_cache import ServerCache
from pipeline.engine.op.cache import ModelCache
from pipeline.errors import OverloadedError

CAPACITY = 100.0  # of the slow Op, a second
SLOW = {"concurrency": 4}
SECONDS, DEADLINE_S = 5.0, 2.0


class Gate(Op):
    """Answers the quick requests, and passes the others on."""

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        (fed,) = input_dicts.values()
        return Answer(fed) if fed["path"] == "quick" else fed


async def offer(loads):
    """Offer (load, requests a second) side by side; return how many of each ended how."""
    await asyncio.gather(*(load.offer(SECONDS, per_s, DEADLINE_S) for load, per_s in loads))
    return [await load.ended() for load, _ in loads]


def check_share(load, began, per_s):
    """Check that so many a second are answered, and that who is not is refused early."""
    answered = load.answered_between(began + 1, began + SECONDS)
    assert answered >= 0.9 * (SECONDS - 1) * per_s
    late = [came for came, how, _ in load.endings if how == TOO_LATE]
    assert max(late, default=0.0) < began + 2 * DEADLINE_S, "only until it is known"
    refused = [took for _, how, took in load.endings if how == REFUSED]
    assert max(refused, default=0.0) < 0.5 * DEADLINE_S


@pytest.mark.parametrize("times", [2, 10])
@pytest.mark.parametrize("quick_per_s", [50, 500], ids=["few quick", "many quick"])
@virtual
async def test_a_request_that_bypasses_a_slow_op_is_not_refused_for_it(times, quick_per_s):
    last = Tag("slow", [Gate("gate", RequestOp())])
    service_s = {"gate": 0.001, "slow": 0.04}
    config = {"op": {"gate": {"concurrency": 2}, "slow": SLOW}}
    async with Engine(last, config, service_s) as engine:
        quick, slow = Load(engine, path="quick"), Load(engine)
        began = asyncio.get_running_loop().time()
        result, _ = await offer([(quick, quick_per_s), (slow, times * CAPACITY)])
        assert result == {ANSWERED: SECONDS * quick_per_s}
        assert max(took for _, _, took in quick.endings) < 0.1
        check_share(slow, began, CAPACITY)


@virtual
async def test_the_first_quick_request_after_many_slow_ones_is_not_refused():
    last = Tag("slow", [Gate("gate", RequestOp())])
    async with Engine(last, {"op": {"slow": SLOW}}, {"slow": 0.04}) as engine:
        slow, quick = Load(engine), Load(engine, path="quick")
        await slow.offer(10.0, 3 * CAPACITY, DEADLINE_S)
        await quick.offer(0.1, 10.0, 0.1)
        assert await quick.ended() == {ANSWERED: 1}
        assert (await slow.ended())[REFUSED] > 0


@pytest.mark.parametrize("times", [2, 10])
@pytest.mark.parametrize("of_graph", [True, False], ids=["of the graph", "of the Op"])
@virtual
async def test_cache_hits_are_not_refused_for_misses(times, of_graph):
    kept = {"response_cache": True}
    config = {"op": {"slow": SLOW | ({} if of_graph else kept)}, **(kept if of_graph else {})}
    cache = ModelCache(ServerCache("local", LocalCache(LocalOptions(size=1 << 24))), "svc", "1")
    async with Engine(Tag("slow", [RequestOp()]), config, {"slow": 0.04}, cache=cache) as engine:
        first, hits, misses = Load(engine), Load(engine), Load(engine, path="missed %")
        await first.offer(0.1, 10.0, None)
        began = asyncio.get_running_loop().time()
        result, _ = await offer([(hits, 300), (misses, times * CAPACITY)])
        assert result == {ANSWERED: SECONDS * 300}
        check_share(misses, began, CAPACITY)


LEVELS = {
    "batching": "dynamic",
    "dynamic_batching": {"priority_levels": 2, "default_priority_level": 2},
}


@pytest.mark.parametrize("times", [2, 10])
@virtual
async def test_the_first_level_is_not_refused_for_lower_levels(times):
    config = {"op": {"slow": SLOW | LEVELS}}
    async with Engine(Tag("slow", [RequestOp()]), config, {"slow": 0.04}) as engine:
        first, last = Load(engine, priority=1), Load(engine, priority=2)
        began = asyncio.get_running_loop().time()
        result, _ = await offer([(first, 0.5 * CAPACITY), (last, times * CAPACITY)])
        assert result == {ANSWERED: SECONDS * 0.5 * CAPACITY}
        check_share(last, began, 0.5 * CAPACITY)


@pytest.mark.parametrize("times", [2, 10])
@virtual
async def test_a_level_that_asks_for_too_much_has_all_that_there_is(times):
    config = {"op": {"slow": SLOW | LEVELS}}
    async with Engine(Tag("slow", [RequestOp()]), config, {"slow": 0.04}) as engine:
        first, last = Load(engine, priority=1), Load(engine, priority=2)
        began = asyncio.get_running_loop().time()
        _, result = await offer([(first, times * CAPACITY), (last, times * CAPACITY)])
        check_share(first, began, CAPACITY)
        assert result[REFUSED] > 0.5 * result.total(), "requests that cannot be served are refused"


@pytest.mark.parametrize(("worker_num", "waits"), [(None, False), (256, True)])
@virtual
async def test_a_request_that_waits_at_an_op_occupies_a_place_only_with_worker_num(
    worker_num, waits
):
    last = Tag("slow", [Gate("gate", RequestOp())])
    config = {"op": {"slow": {"concurrency": 1}}}
    if worker_num is not None:
        config["worker_num"] = worker_num
    async with Engine(last, config, {"slow": None}) as engine:
        slow = [engine.ask(path="x") for _ in range(400)]
        await asyncio.sleep(1.0)
        quick = engine.ask(path="quick")
        await asyncio.sleep(1.0)
        assert quick.done() is not waits
        assert engine.executor.waiting == (145 if waits else 0)
        engine.pools["slow"].service_s = 0.0
        engine.pools["slow"].release()
        assert all(answers(response) for response in await asyncio.gather(quick, *slow))


@virtual
async def test_requests_that_wait_at_ops_are_bounded_by_the_queue_size():
    config = {"queue_size": 10, "op": {"slow": {"concurrency": 1}}}
    async with Engine(Tag("slow", [RequestOp()]), config, {"slow": None}) as engine:
        tasks = [engine.ask(path="x") for _ in range(300)]
        await settle()
        refused = [task for task in tasks if task.done()]
        assert len(refused) == 300 - 256 - 2 * 10
        assert all(isinstance(task.exception(), OverloadedError) for task in refused)
        engine.pools["slow"].service_s = 0.0
        engine.pools["slow"].release()
        await asyncio.gather(*tasks, return_exceptions=True)
