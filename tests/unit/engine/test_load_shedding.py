"""An engine that is asked for more than it can do, on a virtual clock."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from doubles import Engine, Tag, answers, chain, run_virtual, settle, virtual
from offered_load import ANSWERED, REFUSED, TOO_LATE, Load

from pipeline import RequestOp
from pipeline.engine.request import RequestTarget
from pipeline.errors import OverloadedError
from pipeline.proto import pipeline_service_pb2


def single():
    return Tag("a", [RequestOp()]), {"a": {"concurrency": 4}}, {"a": 0.04}


def batching():
    op = {"concurrency": 2, "batch_size": 8, "auto_batching_timeout": 20}
    return Tag("a", [RequestOp()]), {"a": op}, {"a": 0.16}


def diamond():
    a = Tag("a", [RequestOp()])
    last = Tag("last", [Tag("b", [a]), Tag("c", [a])])
    ops = {name: {"concurrency": 4} for name in ("a", "c", "last")} | {"b": {"concurrency": 2}}
    return last, ops, dict.fromkeys(("a", "b", "c", "last"), 0.02)


GRAPHS = pytest.mark.parametrize("graph", [single, batching, diamond])
CAPACITY = 100.0  # of each of them, a second


@GRAPHS
@pytest.mark.parametrize(("times", "deadline_s"), [(2, 2.0), (10, 2.0), (10, 0.5)])
@virtual
async def test_overload_does_not_reduce_throughput(graph, times, deadline_s):
    last, ops, service_s = graph()
    async with Engine(last, {"op": ops}, service_s) as engine:
        load = Load(engine)
        began = asyncio.get_running_loop().time()
        await load.offer(5.0, times * CAPACITY, deadline_s)
        outcomes = await load.ended()
        assert load.answered_between(began + 1, began + 5) >= 0.9 * 4 * CAPACITY
        refused = [took for _, how, took in load.endings if how == REFUSED]
        assert sum(refused) == 0.0 or graph is diamond, "at once, if the first Op has too many"
        assert max(refused) < 0.6 * deadline_s, "and before long, if it is another one"
        assert min(load.retry_after_s, default=1) == 1
        late = [came for came, how, _ in load.endings if how == TOO_LATE]
        assert outcomes[TOO_LATE] < 0.3 * outcomes[REFUSED]
        assert max(late, default=0.0) < began + 3 * deadline_s, "only until it is known"
        assert engine.executor.inside == engine.executor.waiting == 0


@GRAPHS
@virtual
async def test_a_server_below_its_capacity_refuses_no_request(graph):
    last, ops, service_s = graph()
    async with Engine(last, {"op": ops}, service_s) as engine:
        load = Load(engine)
        await load.offer(5.0, 0.9 * CAPACITY, 2.0)
        assert await load.ended() == {ANSWERED: 450}


@GRAPHS
@virtual
async def test_a_burst_that_can_be_answered_in_time_is(graph):
    """At first, after an overload, and after a calm."""
    last, ops, service_s = graph()
    async with Engine(last, {"op": ops}, service_s) as engine:
        load = Load(engine)
        await load.offer(0.01, 15_000, 2.0)
        assert await load.ended() == {ANSWERED: 150}
        await load.offer(5.0, 2 * CAPACITY, 2.0)
        await load.ended()
        for calm_s in (2.0, 60.0):
            load.endings.clear()
            await asyncio.sleep(calm_s)
            await load.offer(0.01, 15_000, 2.0)
            await load.ended()
            assert Counter(how for _, how, _ in load.endings) == {ANSWERED: 150}


@virtual
async def test_a_slow_first_request_causes_no_refusals():
    last, ops, _ = single()
    async with Engine(last, {"op": ops}, {"a": 5.0}) as engine:
        load = Load(engine)
        await load.offer(0.01, 400, 10.0)
        engine.pools["a"].service_s = 0.04
        await load.offer(15.0, 0.5 * CAPACITY, 10.0)
        assert await load.ended() == {ANSWERED: 754}


@virtual
async def test_a_faster_service_accepts_its_new_capacity():
    last, ops, service_s = single()
    async with Engine(last, {"op": ops}, service_s) as engine:
        load, loop = Load(engine), asyncio.get_running_loop()
        await load.offer(5.0, 3 * CAPACITY, 2.0)
        engine.pools["a"].service_s = 0.004
        became = loop.time() + 0.1
        await load.offer(5.0, 3 * CAPACITY, 2.0)
        await load.ended()
        assert {how for came, how, _ in load.endings if came > became} == {ANSWERED}


@virtual
async def test_a_slower_service_answers_its_new_capacity():
    last, ops, _ = single()
    async with Engine(last, {"op": ops}, {"a": 0.004}) as engine:
        load, loop = Load(engine), asyncio.get_running_loop()
        await load.offer(3.0, 9 * CAPACITY, 2.0)
        engine.pools["a"].service_s = 0.04
        began = loop.time()
        await load.offer(8.0, 9 * CAPACITY, 2.0)
        await load.ended()
        assert load.answered_between(began, began + 8) >= 0.9 * 8 * CAPACITY


@virtual
async def test_requests_without_a_deadline_are_not_judged_and_not_passed_over():
    last, ops, service_s = single()
    async with Engine(last, {"op": ops}, service_s) as engine:
        load, loop = Load(engine), asyncio.get_running_loop()
        offering = asyncio.ensure_future(load.offer(6.0, 10 * CAPACITY, 2.0))
        await asyncio.sleep(3.0)
        asked_at = loop.time()
        patient = [engine.ask(path="x") for _ in range(50)]
        responses = await asyncio.gather(*patient)
        assert all(answers(response) for response in responses)
        assert loop.time() - asked_at < 2.0, "they had their turn among the others"
        await offering
        await load.ended()


@virtual
async def test_a_server_without_deadlines_measures_no_throughput():
    async with Engine(chain("a"), None, {"a": 0.01}) as engine:
        await asyncio.gather(*(engine.ask(path="x") for _ in range(100)))
        assert engine.executor._admission.throughput is None


@virtual
async def test_a_request_of_an_idle_op_is_not_refused_for_the_queue_of_another():
    read = RequestOp()
    idle = Tag("idle", [read])
    last = Tag("last", [Tag("slow", [read]), idle])
    async with Engine(last, None, {"slow": 0.1}) as engine:
        load = Load(engine)
        await load.offer(5.0, 50, 1.0)
        assert engine.executor.inside > 1
        route = RequestTarget(
            op=idle, payload={"@DAGExecutor": {"path": "x"}}, wants_response=False
        )
        answer = await engine.executor.handle(None, 0.2, route)
        assert answer.payload == {"path": "x>idle"}
        answer = await engine.executor.handle(pipeline_service_pb2.Request(), 0.2)
        assert answer.err_no == OverloadedError.code
        assert "before this one at Op 'slow' " in answer.err_msg
        await load.ended()


@virtual
async def test_the_service_timeout_is_a_deadline_too():
    last, ops, service_s = single()
    async with Engine(last, {"op": ops, "timeout": 1000}, service_s) as engine:
        load = Load(engine)
        await load.offer(5.0, 3 * CAPACITY, None)
        outcomes = await load.ended()
        assert outcomes[REFUSED] > 0.8 * 5 * 2 * CAPACITY
        assert engine.executor.state().rejected == outcomes[REFUSED]


def order_of(config, deadlines, pauses):
    """In which order requests are begun of which all but the first wait, when one is done."""

    async def main():
        async with Engine(chain("a"), config, {"a": None}) as engine:
            requests = []
            for deadline_s, pause_s in zip(deadlines, pauses, strict=True):
                requests.append(engine.ask(deadline_s, path=str(len(requests))))
                await asyncio.sleep(pause_s)
            for _ in requests:
                engine.pools["a"].release()
                await settle()
            await asyncio.gather(*requests)
            return [data_id for (data_id,) in engine.pools["a"].batches]

    return run_virtual(main())


@pytest.mark.parametrize("config", [None, {"worker_num": 1}], ids=["at the Op", "at the door"])
def test_late_requests_are_last_and_the_newest_of_them_first(config):
    deadlines = [None, 10.0, 10.0, None, 10.0, 10.0]
    pauses = [0.0, 2.0, 2.0, 2.0, 1.0, 0.0]  # 1 has waited for 7 s, 2 for 5 s
    assert order_of(config, deadlines, pauses) == [0, 3, 4, 5, 2, 1]


@pytest.mark.parametrize("config", [None, {"worker_num": 1}], ids=["at the Op", "at the door"])
def test_without_late_requests_the_oldest_is_first(config):
    assert order_of(config, [None, 10.0, 2.0, None], [0.0, 0.5, 0.3, 0.1]) == [0, 1, 2, 3]
