"""The engine as a whole, over scripted workers on a virtual clock."""

from __future__ import annotations

import asyncio

import pytest
from doubles import Engine, Tag, answers, chain, settle, virtual

from pipeline import Answer, Op, ProductError, RequestOp, ResponseOp
from pipeline.data import Tensor
from pipeline.engine.journal.journal import Outcome
from pipeline.engine.request import RequestTarget, ask
from pipeline.errors import ErrorCode, InitError, OverloadedError, PayloadTypeError
from pipeline.proto.pipeline_service_pb2 import Request


class Fails(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        raise ProductError(51, f"{self.name} refuses")


def path_of(response):
    return answers(response)["path"]


# Graphs -----------------------------------------------------------------------------------


@virtual
async def test_a_diamond_joins_both_branches_in_producer_order():
    read = RequestOp()
    a = Tag("a", [read])
    last = Tag("j", [Tag("c", [a]), Tag("b", [a])])
    async with Engine(last) as engine:
        assert path_of(await engine.ask()) == "(a>c|a>b)>j"


@virtual
async def test_edges_may_skip_levels_and_branches_may_differ_in_length():
    read = RequestOp()
    a = Tag("a", [read])
    b = Tag("b", [a])
    c = Tag("c", [b])
    short = Tag("short", [read])
    last = Tag("j", [c, short, a, read])
    async with Engine(last) as engine:
        assert path_of(await engine.ask(path="in")) == "(in>a>b>c|in>short|in>a|in)>j"


@virtual
async def test_requests_of_a_join_never_mix():
    read = RequestOp()
    slow, quick = Tag("slow", [read]), Tag("quick", [read])
    engine = Engine(Tag("j", [slow, quick]), service_s={"slow": 0.01})
    async with engine:
        tasks = [engine.ask(path=str(i)) for i in range(20)]
        results = [path_of(response) for response in await asyncio.gather(*tasks)]
    assert results == [f"({i}>slow|{i}>quick)>j" for i in range(20)]


@virtual
async def test_a_branch_that_changes_its_input_dict_does_not_change_the_others():
    class Pops(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            (answer,) = input_dicts.values()
            return {"path": answer.pop("path") + self.name}, False, None, ""

    read = RequestOp()
    last = Tag("j", [Pops("a", [read]), Pops("b", [read]), Pops("c", [read])])
    async with Engine(last) as engine:
        assert path_of(await engine.ask(path="x")) == "(xa|xb|xc)>j"


@virtual
async def test_the_oldest_request_is_served_first():
    read = RequestOp()
    slow, quick = Tag("slow", [read]), Tag("quick", [read])
    last = Tag("j", [slow, quick])
    engine = Engine(
        last, {"op": {"slow": {"concurrency": 3}}}, {"slow": None, "quick": 0.0, "j": None}
    )
    async with engine:
        tasks = [engine.ask() for _ in range(4)]
        await settle()
        slow_pool, join_pool = engine.pools["slow"], engine.pools["j"]
        workers = {w.job.items[0].data_id: w for w in slow_pool.busy()}
        for data_id in (2, 1, 0):
            slow_pool._finish(workers[data_id])
            await settle()
        slow_pool.release()
        for _ in tasks:
            await settle()
            join_pool.release()
        await asyncio.gather(*tasks)
    assert join_pool.batches == [[2], [0], [1], [3]], "2 was alone; then the oldest"


@virtual
async def test_first_arrival_answers_with_the_quick_branch_and_drops_no_request():
    read = RequestOp()
    slow, quick = Tag("slow", [read]), Tag("quick", [read])
    engine = Engine(
        Tag("j", [slow, quick]),
        {"dag": {"channel_recv_frist_arrive": True}},
        {"slow": 0.5, "quick": 0.001},
    )
    async with engine:
        tasks = [engine.ask(path=str(i)) for i in range(5)]
        results = [path_of(response) for response in await asyncio.gather(*tasks)]
        assert results == [f"{i}>quick>j" for i in range(5)]
        await asyncio.sleep(10)
        (join,) = [node for node in engine.nodes.values() if node.name == "j"]
        assert join.channel.waiting_for_parts == 0, "late parts are forgotten"


# Errors -----------------------------------------------------------------------------------


@virtual
async def test_the_error_of_a_branch_reaches_the_caller_through_the_join():
    read = RequestOp()
    last = Tag("after", [Tag("j", [Tag("a", [read]), Fails("b", [read]), Fails("c", [read])])])
    async with Engine(last) as engine:
        response = await engine.ask()
        assert (response.err_no, response.err_msg) == (51, "b refuses")
        assert engine.pools["j"].batches == engine.pools["after"].batches == []


@virtual
async def test_one_bad_request_of_a_batch_fails_alone():
    class Picky(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            if data_id == 1:
                raise ValueError("not this one")
            return {"path": str(data_id)}

    engine = Engine(Picky("p", [RequestOp()]), {"op": {"p": {"batch_size": 3}}})
    async with engine:
        responses = await asyncio.gather(*(engine.ask() for _ in range(3)))
    assert engine.pools["p"].batches == [[0, 1, 2]]
    assert [path_of(responses[0]), responses[1].err_no, path_of(responses[2])] == ["0", 10000, "2"]
    assert responses[1].err_msg.startswith(
        "Log_id: 0  Raise_msg: ValueError: not this one  ClassName: "
    )
    assert responses[1].err_msg.endswith("Picky.preprocess  FunctionName: preprocess")


@virtual
async def test_fewer_values_than_keys_is_a_package_error():
    from pipeline.proto import pipeline_service_pb2

    async with Engine(chain("a")) as engine:
        request = pipeline_service_pb2.Request(key=["x", "y"], value=["1"])
        response = await engine.executor.handle(request)
        assert response.err_no == ErrorCode.RPC_PACKAGE_ERROR
        assert response.err_msg.startswith("rpc package error: ")


@virtual
async def test_an_overridden_pack_that_fails_is_a_package_error():
    class Broken(ResponseOp):
        def pack_response_package(self, channeldata):
            raise KeyError("no such field")

    last = chain("a")
    async with Engine(last, response_op=Broken([last])) as engine:
        response = await engine.ask()
        assert response.err_no == ErrorCode.RPC_PACKAGE_ERROR
        assert response.err_msg == "rpc package error: KeyError: 'no such field'"
        engine.journal.flush()
    (ended,) = engine.requests
    assert ended["outcome"] == Outcome.BACKEND


class Nameless:
    """A key of an answer that has no text."""

    def __str__(self) -> str:
        raise ValueError("no name")


@pytest.mark.parametrize("size", [1, 1_000_000])
@virtual
async def test_an_answer_that_our_pack_cannot_write_is_an_error_without_its_head(size):
    class Odd(Op):
        def preprocess(self, input_dicts):
            return Answer({Nameless(): "x" * size}, status=201)

    async with Engine(Odd("odd", RequestOp())) as engine:
        answer = ask(engine.executor.begin, Request(key=["x"], value=["1"]))
        response = await answer
        assert response.err_msg == "rpc package error: ValueError: no name"
        assert answer.head is None
        engine.journal.flush()
    (ended,) = engine.requests
    assert ended["outcome"] == Outcome.BACKEND


@virtual
async def test_overridden_edges_run_on_workers_and_their_product_codes_count():
    class Read(RequestOp):
        def unpack_request_package(self, request):
            if not request.key:
                return {}, 0, 60, "nothing asked"
            return {"path": request.value[0].upper()}, 5, None, ""

    class Writes(ResponseOp):
        def pack_response_package(self, channeldata):
            response = super().pack_response_package(channeldata)
            response.key.append("log_id")
            response.value.append(str(channeldata.log_id))
            return response

    last = chain("a", read=Read())
    async with Engine(last, response_op=Writes([last])) as engine:
        assert answers(await engine.ask(x="hi")) == {"path": "HI>a", "log_id": "5"}
        refused = await engine.ask()
        assert (refused.err_no, refused.err_msg) == (60, "nothing asked")


# Admission --------------------------------------------------------------------------------


@pytest.mark.parametrize("returned", [({}, "no number", None, ""), ({}, 0, "no code", ""), [1]])
@virtual
async def test_a_request_with_an_invalid_unpack_result_ends_at_once(returned):
    class Odd(RequestOp):
        def unpack_request_package(self, request):
            return returned

    async with Engine(chain("a", read=Odd())) as engine:
        response = await engine.ask()
        assert response.err_no == 7000
        assert "unpack_request_package returned" in response.err_msg


@virtual
async def test_by_default_4096_waiting_callers_are_not_refused():
    engine = Engine(chain("a"), {}, {"a": None})
    async with engine:
        tasks = [engine.ask() for _ in range(4096)]
        await settle()
        assert engine.executor.inside + engine.executor.waiting == 4096
        while engine.executor.inside:
            engine.pools["a"].release(64)
            await settle()
        assert all(response.err_no == 0 for response in await asyncio.gather(*tasks))


@virtual
async def test_worker_num_bounds_admitted_and_queue_size_waiting_requests():
    engine = Engine(chain("a"), {"worker_num": 2, "queue_size": 3}, {"a": None})
    async with engine:
        tasks = [engine.ask() for _ in range(5)]
        await settle()
        assert (engine.executor.inside, engine.executor.waiting) == (2, 3)
        with pytest.raises(OverloadedError, match=r"2 requests inside .* 3 waiting"):
            await engine.ask()
        assert engine.executor.state().rejected == 1
        for _ in range(5):
            engine.pools["a"].release()
            await settle()
        assert all(response.err_no == 0 for response in await asyncio.gather(*tasks))
        assert (engine.executor.inside, engine.executor.waiting) == (0, 0)


@virtual
async def test_without_worker_num_every_batch_can_fill():
    config = {"op": {"a": {"batch_size": 400, "concurrency": 2, "auto_batching_timeout": 50}}}
    async with Engine(chain("a"), config) as engine:
        await asyncio.gather(*(engine.ask() for _ in range(800)))
        assert [len(batch) for batch in engine.pools["a"].batches] == [400, 400]


@virtual
async def test_a_full_channel_holds_its_producer_back_and_the_door_too():
    engine = Engine(chain("a", "b"), {"dag": {"channel_size": 2}}, {"a": 0.001, "b": None})
    async with engine:
        tasks = [engine.ask() for _ in range(10)]
        await asyncio.sleep(1)
        channels = {node.name: len(node.scheduler) for node in engine.nodes.values()}
        assert channels["b"] == 2
        assert channels["a"] <= 2
        assert engine.executor.waiting > 0
        for _ in range(10):
            engine.pools["b"].release()
            await asyncio.sleep(0.1)
        assert all(response.err_no == 0 for response in await asyncio.gather(*tasks))


# Batches ----------------------------------------------------------------------------------


def batch_engine(service_s=0.005, **settings):
    return Engine(chain("b"), {"op": {"b": settings}}, {"b": service_s})


@virtual
async def test_a_full_batch_leaves_at_once():
    engine = batch_engine(batch_size=4, auto_batching_timeout=60_000)
    async with engine:
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(engine.ask() for _ in range(4)))
        assert engine.pools["b"].begun_at == [began]


@virtual
async def test_a_partial_batch_leaves_when_its_first_request_waited_the_timeout():
    loop = asyncio.get_running_loop()
    engine = batch_engine(batch_size=4, auto_batching_timeout=100)
    async with engine:
        began = loop.time()
        first = engine.ask()
        await asyncio.sleep(0.06)
        second = engine.ask()
        await asyncio.gather(first, second)
        assert engine.pools["b"].batches == [[0, 1]]
        assert engine.pools["b"].begun_at == [pytest.approx(began + 0.1)]


class Bounded(Tag):
    input_tensors = (Tensor("path", "BYTES", (1,)),)
    max_batch_size = 8


def bounded_engine(**settings):
    return Engine(Bounded("b", [RequestOp()]), {"op": {"b": settings}}, {"b": 1.0})


def ask_rows(engine, *rows):
    """Requests of so many samples each, as a caller of the v2 protocol sends them."""
    return [
        asyncio.ensure_future(
            engine.executor.handle(None, None, RequestTarget(payload={"path": ""}, rows=count))
        )
        for count in rows
    ]


@virtual
async def test_a_batch_has_no_more_samples_than_the_op_takes():
    async with bounded_engine(batch_size=8) as engine:
        asked = ask_rows(engine, 1, 3, 3, 3, 8, 2)
        await asyncio.gather(*asked)
        assert engine.pools["b"].batches == [[0, 1, 2], [3], [4], [5]]


@virtual
async def test_a_batch_with_the_most_samples_is_cut_at_once():
    loop = asyncio.get_running_loop()
    async with bounded_engine(batch_size=8, auto_batching_timeout=60_000) as engine:
        began = loop.time()
        asked = ask_rows(engine, 3, 3)
        await settle()
        assert not engine.pools["b"].batches
        asked += ask_rows(engine, 3)
        await settle()
        assert engine.pools["b"].batches == [[0, 1]], "the third does not fit in"
        asked += ask_rows(engine, 5)
        await asyncio.gather(*asked)
        assert engine.pools["b"].batches == [[0, 1], [2, 3]]
        assert loop.time() == began + 2.0


@virtual
async def test_without_a_timeout_an_idle_worker_takes_all_waiting_requests():
    engine = batch_engine(service_s=1.0, batch_size=4)
    async with engine:
        first = engine.ask()
        await asyncio.sleep(0.5)
        rest = [engine.ask() for _ in range(3)]
        await asyncio.gather(first, *rest)
        assert engine.pools["b"].batches == [[0], [1, 2, 3]]


async def closed_loop(engine, clients, seconds):
    """`clients` ask again as soon as they are answered; (answers per s, latencies in s)."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    latencies = []

    async def client():
        while loop.time() < end:
            began = loop.time()
            await engine.ask()
            latencies.append(loop.time() - began)

    await asyncio.gather(*(client() for _ in range(clients)))
    return len(latencies) / seconds, latencies


@pytest.mark.parametrize("batching", ["full", "adaptive"])
@virtual
async def test_many_clients_get_full_batches(batching):
    engine = batch_engine(batch_size=8, auto_batching_timeout=5, concurrency=2, batching=batching)
    async with engine:
        rate, _ = await closed_loop(engine, 64, 5.0)
        assert rate >= 0.97 * 2 * 8 / 0.005


@virtual
async def test_adaptive_answers_a_lone_client_without_the_wait():
    engine = batch_engine(batch_size=8, auto_batching_timeout=5, concurrency=2, batching="adaptive")
    async with engine:
        _, latencies = await closed_loop(engine, 1, 5.0)
        latencies.sort()
        assert latencies[len(latencies) // 2] == pytest.approx(0.005)


@virtual
async def test_full_makes_a_lone_client_wait_as_configured():
    engine = batch_engine(batch_size=8, auto_batching_timeout=5, concurrency=2)
    async with engine:
        _, latencies = await closed_loop(engine, 1, 1.0)
        assert {round(latency, 4) for latency in latencies} == {0.01}


# Deadlines, retries, cancellation ---------------------------------------------------------


@virtual
async def test_a_caller_is_answered_at_its_deadline_while_the_worker_runs():
    loop = asyncio.get_running_loop()
    async with Engine(chain("a"), None, {"a": None}) as engine:
        began = loop.time()
        response = await engine.ask(timeout_s=0.25)
        assert loop.time() - began == pytest.approx(0.25)
        assert response.err_no == ErrorCode.TIMEOUT
        assert engine.executor.inside == 0


@virtual
async def test_the_service_timeout_applies_to_requests_without_a_deadline():
    loop = asyncio.get_running_loop()
    async with Engine(chain("a"), {"timeout": 300}, {"a": None}) as engine:
        began = loop.time()
        responses = await asyncio.gather(engine.ask(), engine.ask(timeout_s=9), engine.ask(0.1))
        assert [response.err_no for response in responses] == [6000] * 3
        assert loop.time() - began == pytest.approx(0.3)


@virtual
async def test_a_request_may_expire_while_it_waits_to_be_admitted():
    async with Engine(chain("a"), {"worker_num": 1}, {"a": None}) as engine:
        inside = engine.ask()
        await settle()
        assert (await engine.ask(timeout_s=0.1)).err_no == 6000
        assert engine.executor.waiting == 0
        engine.pools["a"].release()
        assert (await inside).err_no == 0


@virtual
async def test_expired_and_cancelled_requests_are_dropped_before_they_run():
    async with Engine(chain("a"), None, {"a": None}) as engine:
        running = engine.ask()
        await settle()
        expires, cancelled, stays = engine.ask(timeout_s=0.1), engine.ask(), engine.ask()
        await settle()
        cancelled.cancel()
        assert (await expires).err_no == 6000
        for _ in range(4):
            engine.pools["a"].release()
            await settle()
        await asyncio.gather(running, stays)
        assert engine.pools["a"].batches == [[0], [3]]
        assert engine.executor.inside == 0


class Counts(Op):
    """Counts its calls of process; on a scripted worker they hang as long as it says."""

    def init_op(self):
        self.prepared, self.processed = [], []

    def preprocess(self, input_dicts, data_id, log_id):
        self.prepared.append(data_id)
        return {"path": str(data_id)}

    def process(self, feed_batch, typical_logid):
        self.processed.append(feed_batch)
        return feed_batch[0]


@virtual
async def test_an_op_timeout_without_attempts_left_fails_the_request_and_frees_the_op():
    loop = asyncio.get_running_loop()
    engine = Engine(Counts("c", [RequestOp()]), {"op": {"c": {"timeout": 200}}}, {"c": None})
    async with engine:
        began = loop.time()
        response = await engine.ask()
        assert loop.time() - began == pytest.approx(0.2)
        assert response.err_no == 6000
        assert "exceeded retry count" in response.err_msg
        assert len(engine.pools["c"].given_up) == 1
        following = engine.ask()
        await settle()
        engine.pools["c"].release()
        assert answers(await following) == {"path": "1"}


@virtual
async def test_retry_in_yaml_gives_a_timed_out_call_more_attempts():
    loop = asyncio.get_running_loop()
    config = {"op": {"c": {"timeout": 200, "retry": 3}}}
    engine = Engine(Counts("c", [RequestOp()]), config, {"c": None})
    async with engine:
        began = loop.time()
        task = engine.ask()
        await asyncio.sleep(0.5)
        assert len(engine.pools["c"].given_up) == 2
        engine.pools["c"].release()
        assert answers(await task) == {"path": "0"}
        assert loop.time() - began == pytest.approx(0.5)


@virtual
async def test_dag_retry_runs_the_whole_request_again_after_a_timeout():
    config = {"dag": {"retry": 3}, "op": {"c": {"timeout": 200}}}
    read = RequestOp()
    engine = Engine(
        Tag("j", [Counts("c", [read]), Tag("side", [read])]), config, {"c": None, "side": 0.0}
    )
    async with engine:
        task = engine.ask()
        await asyncio.sleep(0.3)
        engine.pools["c"].release()
        assert path_of(await task) == "(0|side)>j"
        assert engine.pools["side"].batches == [[0], [0]]
        later = engine.ask()
        await settle()
        engine.pools["c"].release()
        assert path_of(await later) == "(1|side)>j", "the service lives on"


@virtual
async def test_dag_retry_starts_with_the_original_payload():
    class Pops(Counts):
        def preprocess(self, input_dicts, data_id, log_id):
            return {"path": input_dicts["@DAGExecutor"].pop("path")}

    config = {"dag": {"retry": 2}, "op": {"c": {"timeout": 200}}}
    async with Engine(Pops("c", [RequestOp()]), config, {"c": None}) as engine:
        task = engine.ask(path="in")
        await asyncio.sleep(0.3)
        engine.pools["c"].release()
        assert path_of(await task) == "in"


@virtual
async def test_dag_retry_ends_with_a_timeout_when_its_attempts_are_used_up():
    loop = asyncio.get_running_loop()
    config = {"dag": {"retry": 3}, "op": {"c": {"timeout": 200}}}
    async with Engine(Counts("c", [RequestOp()]), config, {"c": None}) as engine:
        began = loop.time()
        assert (await engine.ask()).err_no == 6000
        assert loop.time() - began == pytest.approx(0.6)


@virtual
async def test_a_worker_without_a_waiting_caller_is_replaced_when_it_hangs():
    async with Engine(chain("a"), None, {"a": None}) as engine:
        assert (await engine.ask(timeout_s=0.1)).err_no == 6000
        assert engine.pools["a"].given_up == [], "it may still come to an end"
        await asyncio.sleep(3)
        assert len(engine.pools["a"].given_up) == 1
        following = engine.ask()
        await settle()
        engine.pools["a"].release()
        assert path_of(await following) == "a"


@virtual
async def test_an_op_may_ask_for_more_patience_with_its_workers():
    op = chain("a")
    op.pipeline_patience_s = 60.0
    async with Engine(op, None, {"a": None}) as engine:
        assert (await engine.ask(timeout_s=0.1)).err_no == 6000
        await asyncio.sleep(59)
        assert engine.pools["a"].given_up == []
        await asyncio.sleep(2)
        assert len(engine.pools["a"].given_up) == 1


@virtual
async def test_branches_that_lost_the_race_leave_no_entries_at_an_op_that_hangs():
    """All gauges are 0: a pending entry would stay there forever."""
    read = RequestOp()
    slow, quick = Tag("slow", [read]), Tag("quick", [read])
    config = {"dag": {"channel_recv_first_arrive": True}}
    async with Engine(Tag("j", [slow, quick]), config, {"slow": None}) as engine:
        tasks = [engine.ask(path=str(i)) for i in range(5)]
        results = [path_of(response) for response in await asyncio.gather(*tasks)]
        assert results == [f"{i}>quick>j" for i in range(5)]
        assert [op.queued for op in engine.executor.state().ops] == [0, 0, 0]
        assert engine.pools["slow"].given_up == [], "it may still come to an end"
        await asyncio.sleep(3)
        assert len(engine.pools["slow"].given_up) == 1
        assert [op.running for op in engine.executor.state().ops] == [0, 0, 0]
        engine.journal.flush()
        assert len(engine.spans) == 15, "each turn is recorded"


@virtual
async def test_a_request_that_expires_does_not_put_off_the_timeout_of_another():
    loop = asyncio.get_running_loop()
    config = {"op": {"c": {"timeout": 200, "concurrency": 2}}}
    async with Engine(Counts("c", [RequestOp()]), config, {"c": None}) as engine:
        began = loop.time()
        hangs, expires = engine.ask(), engine.ask(timeout_s=0.05)
        await asyncio.gather(hangs, expires)
        assert loop.time() - began == pytest.approx(0.2)


@virtual
async def test_requests_end_even_when_no_stuck_worker_can_be_replaced():
    config = {"op": {"c": {"timeout": 100}}}
    async with Engine(Counts("c", [RequestOp()]), config, {"c": None}) as engine:
        engine.pools["c"].refuses_replacement = True
        responses = await asyncio.gather(engine.ask(), engine.ask())
        assert [response.err_no for response in responses] == [6000, 6000]
        assert not engine.executor.is_ready
        assert engine.readiness == [True, False], "the observer is notified"


@virtual
async def test_other_calls_of_a_stuck_worker_move_to_another_worker():
    class Names(Counts):
        def preprocess(self, input_dicts, data_id, log_id):
            (inputs,) = input_dicts.values()
            return {inputs["n"]: [1]}, False, None, ""

        def process(self, feed_batch, typical_logid):
            return {"path": "served"}

    settings = {"timeout": 100, "concurrency": 2, "batch_size": 2, "auto_batching_timeout": 10}
    async with Engine(Names("c", [RequestOp()]), {"op": {"c": settings}}, {"c": None}) as engine:
        pool = engine.pools["c"]
        pool.refuses_replacement = True
        asked = [engine.ask(n="1"), engine.ask(n="2")]  # of two names: two calls
        await asyncio.sleep(0.05)
        assert pool.batches == [[0, 1]]
        await asyncio.sleep(0.1)
        assert (pool.count, len(pool.batches)) == (1, 2)
        pool.release()
        responses = await asyncio.gather(*asked)
        assert sorted(response.err_no for response in responses) == [0, 6000]


# Stopping ---------------------------------------------------------------------------------


@virtual
async def test_stop_lets_requests_finish_and_refuses_new_ones():
    engine = Engine(chain("a"), None, {"a": 0.5})
    await engine.executor.start()
    task = engine.ask()
    await settle()
    stopping = asyncio.ensure_future(engine.executor.stop(10.0))
    await settle()
    refused = await engine.ask()
    assert (refused.err_no, refused.err_msg) == (3001, "dag closed.")
    assert path_of(await task) == "a"
    await stopping


@virtual
async def test_stop_answers_open_requests_after_the_grace_period():
    loop = asyncio.get_running_loop()
    engine = Engine(chain("a"), {"worker_num": 1}, {"a": None})
    await engine.executor.start()
    asked = [engine.ask(), engine.ask()]
    await settle()
    began = loop.time()
    await engine.executor.stop(2.0)
    assert loop.time() - began == pytest.approx(2.0)
    responses = await asyncio.gather(*asked)
    assert [response.err_no for response in responses] == [3001, 3001]


@virtual
async def test_requests_before_the_start_wait_for_it():
    engine = Engine(chain("a"))
    early = engine.ask()
    await settle()
    assert not engine.executor.is_ready
    async with engine:
        assert path_of(await early) == "a"


@virtual
async def test_requests_that_wait_for_a_failing_start_get_its_error():
    engine = Engine(chain("a"))
    early = engine.ask()
    await settle()
    (node,) = engine.nodes.values()

    async def fails():
        raise InitError("Op 'a' failed to start: no vocab\nTraceback of a page")

    node.workers.start = fails
    with pytest.raises(InitError):
        await engine.executor.start()
    for asked in (early, engine.ask()):
        refused = await asked
        assert refused.err_no == ErrorCode.INIT_ERROR
        assert refused.err_msg == "pipeline server init error: Op 'a' failed to start: no vocab"


# Jumps ------------------------------------------------------------------------------------


class Jumper(Tag):
    def check_jumping(self, input_data):
        (record,) = input_data.values()
        return "hop" in record.payload["path"]


@virtual
async def test_a_jump_takes_the_place_of_its_targets_answer():
    read = RequestOp()
    j = Jumper("jumper", [read])
    skipped = Tag("skipped", [j])
    last = Tag("last", [skipped])
    j.set_jump_to_ops([skipped])
    async with Engine(last) as engine:
        assert path_of(await engine.ask(path="walk")) == "walk>jumper>skipped>last"
        assert path_of(await engine.ask(path="hop")) == "hop>jumper>last"


@virtual
async def test_a_jump_to_the_last_op_answers_the_request():
    j = Jumper("jumper", [RequestOp()])
    last = Tag("last", [j])
    j.set_jump_to_ops([last])
    async with Engine(last) as engine:
        assert path_of(await engine.ask(path="hop")) == "hop>jumper"


@virtual
async def test_a_jump_back_runs_ops_again():
    class Again(Tag):
        def check_jumping(self, input_data):
            (record,) = input_data.values()
            return record.payload["path"].count(self.name) < 3

    first = Tag("first", [RequestOp()])
    again = Again("again", [first])
    again.set_jump_to_ops([first])
    async with Engine(Tag("last", [again])) as engine:
        assert path_of(await engine.ask()) == "first>again>again>again>last"


@pytest.mark.parametrize("quick", ["jumper", "side"])
@virtual
async def test_the_input_name_after_a_jump_does_not_depend_on_arrival_order(quick):
    class Names(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            return {"names": " ".join(input_dicts)}, False, None, ""

    read = RequestOp()
    j, side = Jumper("jumper", [read]), Tag("side", [read])
    skipped = Tag("skipped", [j])
    j.set_jump_to_ops([skipped])
    slow = {"jumper": 0.5, "side": 0.5, quick: 0.001}
    async with Engine(Names("last", [skipped, side]), service_s=slow) as engine:
        assert answers(await engine.ask(path="hop"))["names"] == "jumper side"
        assert answers(await engine.ask(path="walk"))["names"] == "skipped side"


def joined_behind_a_jumper(*names):
    """Ops that are joined, behind a jumper, which may pass over an Op in front of the join."""
    j = Jumper("jumper", [RequestOp()])
    over = Tag("over", [j])
    passed = Tag("passed", [over])
    j.set_jump_to_ops([passed])
    return Tag(
        "join", [(Fails if name.startswith("bad") else Tag)(name, [passed]) for name in names]
    )


@pytest.mark.parametrize("path", ["hop", "walk"])
@pytest.mark.parametrize("quick", ["bad1", "bad2"])
@virtual
async def test_errors_at_a_join_have_the_order_of_producers_with_jumps(path, quick):
    join = joined_behind_a_jumper("good", "bad1", "bad2")
    times = {"good": 0.1, "bad1": 0.5, "bad2": 0.5, quick: 0.001}
    async with Engine(Tag("last", [join]), service_s=times) as engine:
        response = await engine.ask(path=path)
        assert (response.err_no, response.err_msg) == (51, "bad1 refuses")


@pytest.mark.parametrize("path", ["hop", "walk"])
@virtual
async def test_an_error_does_not_win_a_first_arrival_where_there_are_jumps(path):
    config = {"op": {"join": {"channel_recv_first_arrive": True}}}
    join = joined_behind_a_jumper("bad", "good")
    async with Engine(Tag("last", [join]), config, {"good": 0.5}) as engine:
        assert path_of(await engine.ask(path=path)).endswith(">good>join>last")


@virtual
async def test_a_first_arrival_is_the_other_branch_when_a_jump_skipped_one():
    read = RequestOp()
    j = Jumper("jumper", [read])
    target, over = Tag("target", [j]), Tag("over", [j])
    j.set_jump_to_ops([target])
    first = Tag("first", [over, Tag("slow", [read])])
    config = {"op": {"first": {"channel_recv_first_arrive": True}}}
    engine = Engine(Tag("last", [target, first]), config, {"slow": 0.5})
    async with engine:
        assert path_of(await engine.ask(path="hop")) == "(hop>jumper|hop>slow>first)>last"


@pytest.mark.parametrize("is_slow", [True, False])
@virtual
async def test_an_error_at_a_join_after_a_skipped_op_is_the_answer(is_slow):
    """The join waits for an Op that was passed over and for one that fails."""
    read = RequestOp()
    j = Jumper("jumper", [read])
    target, over, bad = Tag("target", [j]), Tag("over", [j]), Fails("bad", [read])
    j.set_jump_to_ops([target])
    last = Tag("last", [target, Tag("join", [over, bad])])
    times = {"bad" if is_slow else "jumper": 0.5}
    async with Engine(last, service_s=times) as engine:
        response = await engine.ask(path="hop")
        assert (response.err_no, response.err_msg) == (51, "bad refuses")


@virtual
async def test_a_skipped_op_does_not_answer_later():
    """The target also reads another Op, whose answer or error is too late."""
    read = RequestOp()
    j, bad = Jumper("jumper", [read]), Fails("bad", [read])
    target, side = Tag("target", [j, bad]), Tag("side", [read])
    j.set_jump_to_ops([target])
    engine = Engine(Tag("last", [target, side]), service_s={"bad": 0.1, "side": 0.5})
    async with engine:
        assert path_of(await engine.ask(path="hop")) == "(hop>jumper|hop>side)>last"
        response = await engine.ask(path="walk")
        assert response.err_msg == "bad refuses"


@pytest.mark.parametrize("slow", ["jumper", "other"])
@virtual
async def test_an_op_answers_once_by_itself_or_by_a_jump(slow):
    """The target took the first arrival; the jump in its place may come before, or too late."""
    read = RequestOp()
    j, other = Jumper("jumper", [read]), Tag("other", [read])
    target = Tag("target", [j, other])
    j.set_jump_to_ops([target])
    config = {"op": {"target": {"channel_recv_first_arrive": True}}}
    engine = Engine(Tag("last", [Tag("behind", [target])]), config, {slow: 0.1, "last": 1.0})
    async with engine:
        path = path_of(await engine.ask(path="hop"))
        took = "hop>jumper" if slow == "other" else "hop>other>target"
        assert path == f"{took}>behind>last"
        assert len(engine.pools["behind"].batches) == 1


@virtual
async def test_an_error_after_a_jump_back_is_the_answer():
    """The join behind gets its parts once only: what waits there says why."""

    class OnceMore(Tag):
        def check_jumping(self, input_data):
            return True

    class FailsAgain(Tag):
        def preprocess(self, input_dicts, data_id, log_id):
            (answer,) = input_dicts.values()
            if "again" in answer["path"]:
                raise ProductError(52, "once is enough")
            return super().preprocess(input_dicts, data_id, log_id)

    read = RequestOp()
    first, side = Tag("first", [read]), Tag("side", [read])
    again = OnceMore("again", [Tag("join", [FailsAgain("fails", [first]), side])])
    again.set_jump_to_ops([first])
    async with Engine(Tag("last", [again])) as engine:
        response = await engine.ask()
        assert (response.err_no, response.err_msg) == (52, "once is enough")


class Back(Tag):
    """Jumps until it has run twice."""

    def check_jumping(self, input_data):
        return any(str(data.payload["path"]).count(">back") < 2 for data in input_data.values())


@virtual
async def test_a_jump_back_restarts_races_and_drops_the_old_parts():
    loop = asyncio.get_running_loop()
    start = Tag("start", [RequestOp()])
    race = Tag("race", [Tag("slow", [start]), Tag("quick", [start])])
    back = Back("back", [race])
    back.set_jump_to_ops(start)
    config = {"op": {"race": {"channel_recv_first_arrive": True}}}
    async with Engine(back, config, {"slow": 0.5, "quick": 0.01}) as engine:
        began = loop.time()
        assert path_of(await engine.ask()) == "start>quick>race>back>quick>race>back"
        assert loop.time() - began == pytest.approx(0.02), "nobody waited for the slow one"
        await asyncio.sleep(2.0)
        assert [op.queued + op.running for op in engine.executor.state().ops] == [0] * 5
        engine.journal.flush()
        assert sum(turn["op"] == 1 for turn in engine.spans) == 2, "each turn is recorded"


@virtual
async def test_a_join_does_not_wait_for_a_skipped_op():
    read = RequestOp()
    j = Jumper("jumper", [read])
    k, n = Tag("k", [j]), Tag("n", [j])
    last = Tag("m", [k, n])
    j.set_jump_to_ops([k])
    async with Engine(last) as engine:
        assert path_of(await engine.ask(path="hop")) == "hop>jumper>m"


# Processes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "times"),
    [(("process", "process"), 1), (("process", "thread"), 0), (("thread", "thread"), 0)],
)
@virtual
async def test_an_answer_for_several_processes_is_serialized_once(workers, times):
    serialized = []

    def serialize(payload):
        serialized.append(payload)
        return payload

    read = RequestOp()
    a, b = Tag("a", input_ops=[read]), Tag("b", input_ops=[read])
    ops = {name: {"workers": kind} for name, kind in zip("ab", workers, strict=True)}
    async with Engine(Tag("c", input_ops=[a, b]), {"op": ops}, serialize=serialize) as engine:
        assert answers(await engine.ask(path="x"))["path"] == "(x>a|x>b)>c"
    assert serialized == [{"path": "x"}] * times


@virtual
async def test_an_answer_that_cannot_be_serialized_is_an_error_with_the_reason():
    def serialize(payload):
        raise PayloadTypeError("not this one")

    read = RequestOp()
    a, b = Tag("a", input_ops=[read]), Tag("b", input_ops=[read])
    config = {"dag": {"is_thread_op": False}}
    async with Engine(Tag("c", input_ops=[a, b]), config, serialize=serialize) as engine:
        response = await engine.ask(path="x")
        assert (response.err_no, response.err_msg) == (7000, "the request's data: not this one")
        assert engine.executor.inside == 0


# Turns ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "j"])
@virtual
async def test_an_op_whose_scheduler_raises_does_not_block_others(name):
    read = RequestOp()
    engine = Engine(Tag("j", [Tag("a", [read]), Tag("b", [read])]))
    async with engine:
        nodes = engine.executor.executor.nodes.values()
        failing, failures = next(node for node in nodes if node.name == name), []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: failures.append(context["exception"]))

        def fails():
            del failing.schedule
            failing.is_dirty = False
            raise KeyError("no")

        failing.schedule = fails
        for node in nodes:
            engine.executor.executor.cycle.mark_dirty(node)
        assert path_of(await engine.ask(path="1")) == "(1>a|1>b)>j"
        assert path_of(await engine.ask(path="2")) == "(2>a|2>b)>j"
        assert [type(error) for error in failures] == [KeyError]
