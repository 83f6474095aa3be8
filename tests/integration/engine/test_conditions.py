"""Goto, Answer and loops on real workers: threads and processes, Op by Op and as trips."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import doubles
import numpy as np
import pytest
from doubles import until
from trip_servers import Hangs, ask, groups, quick_server, value_of

from pipeline import Answer, AsyncPipelineClient, Goto, Op, RequestOp, ResponseOp, Tensor
from pipeline.engine.trips import pace, trip

CONF_ERROR = 4000


@pytest.fixture(autouse=True)
def no_op_is_slow(monkeypatch):
    """However busy the machine is: groups form at once, and stay."""
    monkeypatch.setattr(pace, "SLOW_NS", 10**12)
    monkeypatch.setattr(trip, "_LONGEST_NS", 10**12)


def path_of(input_dicts):
    return "+".join(part["x"] for part in input_dicts.values())


def sent(path):
    """What an Op returns for a path: its first word says where it goes."""
    answer, word = {"x": path}, path.split(">")[0]
    paths = {"sure": "out", "unsure": ["big"], "nowhere": "nowhere", "nobody": []}
    if word in paths and path.count(">") == 1:
        return Goto(answer, paths[word])
    if word == "done":
        return Answer(answer)
    if word == "thrice" and path.count("cheap") < 3:
        return Goto(answer, "cheap")
    return answer


class Steps(Op):
    def preprocess(self, input_dicts):
        return {"x": f"{path_of(input_dicts)}>{self.name}"}


class Cheap(Steps):
    def postprocess(self, input_dicts, fetched):
        return sent(fetched["x"])


class AsyncCheap(Steps):
    async def postprocess(self, input_dicts, fetched):
        return sent(fetched["x"])


class EarlyCheap(Steps):
    def preprocess(self, input_dicts):
        returned = sent(super().preprocess(input_dicts)["x"])
        return returned if isinstance(returned, Goto | Answer) else (returned, True, None, "")

    def process(self, feed_batch):
        raise AssertionError("nothing was left to do")


class BatchedCheap(Cheap):
    def preprocess(self, input_dicts):
        return {"path": np.array([super(Cheap, self).preprocess(input_dicts)["x"]])}

    def process(self, feed_batch):
        return feed_batch[0]

    def postprocess(self, input_dicts, fetched):
        return sent(str(fetched["path"][0]))


def cascade(kind, **given):
    cheap = kind("cheap", RequestOp(), loop_to=["cheap"], **given)
    return Steps("last", [Steps("out", [cheap, Steps("big", [cheap])])])


GROUP = [("cheap", "big", "out", "last")]
CASES = {
    "sure": "sure>cheap>out>last",
    "unsure": "unsure>cheap>big>out>last",
    "both": "both>cheap+both>cheap>big>out>last",
    "done": "done>cheap",
}
MODES = {
    "threads": (Cheap, {"dag": {"fuse": "off"}}, []),
    "fused": (Cheap, {}, GROUP),
    "async": (AsyncCheap, {"dag": {"fuse": "off"}}, []),
    "early": (EarlyCheap, {"dag": {"fuse": "off"}}, []),
    "early, fused": (EarlyCheap, {}, GROUP),
    "batched": (BatchedCheap, {"op": {"cheap": {"batch_size": 8}}}, None),
    "processes": (Cheap, {"dag": {"is_thread_op": False}}, []),
    "batches in processes": (
        BatchedCheap,
        {"dag": {"is_thread_op": False}, "op": {"cheap": {"batch_size": 8}}},
        [],
    ),
    "mixed": (Cheap, {"op": {"cheap": {"workers": "process"}}}, None),
}


@contextlib.asynccontextmanager
async def serving(mode):
    kind, config, expected = MODES[mode]
    cheap = kind("cheap", RequestOp())
    last = Steps("last", [Steps("out", [cheap, Steps("big", [cheap])])])
    async with quick_server(ResponseOp([last]), **config) as server:
        if expected is not None:
            await until(lambda: groups(server) == expected)
        yield server


@pytest.mark.parametrize("mode", MODES)
def test_each_request_has_its_own_targets(mode):
    async def main():
        async with serving(mode) as server:
            words = [*CASES, "nowhere", "nobody"] * 5
            responses = await asyncio.gather(*(ask(server, word) for word in words))
            for word, answer in zip(words, responses, strict=True):
                if word in CASES:
                    assert value_of(answer) == CASES[word]
                    continue
                assert answer.err_no == CONF_ERROR
                says = {
                    "nowhere": "Goto to 'nowhere': 'nowhere' does not read it. Its readers"
                    ": 'big', 'out'; loop_to: none.",
                    "nobody": "lost in the graph: what 'cheap' answered went to no Op",
                }
                assert says[word] in answer.err_msg
            engine = server.executor
            await until(lambda: not any(op.queued + op.running for op in engine.state().ops))
            assert not engine.inside

    asyncio.run(main())


@pytest.mark.parametrize("kind", [Cheap, EarlyCheap, BatchedCheap])
@pytest.mark.parametrize("is_thread_op", [True, False])
def test_a_loop_on_real_workers(kind, is_thread_op):
    async def main():
        last = cascade(kind, batch_size=4)
        dag = {"is_thread_op": is_thread_op}
        async with quick_server(ResponseOp([last]), dag=dag) as server:
            responses = await asyncio.gather(*(ask(server, "thrice") for _ in range(8)))
            path = "thrice>cheap>cheap>cheap"
            assert [value_of(answer) for answer in responses] == [f"{path}+{path}>big>out>last"] * 8

    asyncio.run(main())


def test_an_op_parallel_to_a_loop_answers_for_its_last_lap():
    """The first turn of `side` ends when the second one is at work."""
    turns = [Hangs(), Hangs()]

    class Side(Steps):
        def preprocess(self, input_dicts):
            path = path_of(input_dicts)
            turns[path.count("check")](path.partition(">")[0])
            return super().preprocess(input_dicts)

    class Check(Steps):
        def postprocess(self, input_dicts, fetched):
            if fetched["x"].count("check") == 2:
                return fetched
            assert not fetched["x"].startswith("hang") or turns[0].began.wait(20)
            return Goto(fetched, "first")

    async def main():
        first = Steps("first", RequestOp())
        check = Check("check", first, loop_to=[first])
        last = Steps("last", [check, Side("side", first, concurrency=2)])
        async with quick_server(ResponseOp([last]), is_quick=False) as server:
            await ask(server, "1")
            answer = asyncio.ensure_future(ask(server, "hang"))
            engine = server.executor
            await until(turns[1].began.is_set)
            turns[0].release.set()
            await until(lambda: {op.name: op for op in engine.state().ops}["side"].running == 1)
            turns[1].release.set()
            lap = "hang>first>check>first"
            assert value_of(await answer) == f"{lap}>check+{lap}>side>last"

    try:
        asyncio.run(main())
    finally:
        for turn in turns:
            turn.release.set()


def test_sure_requests_do_not_wait_for_the_large_model():
    """All in one batch of the small one: the large one begins only after the sure answers."""
    are_answered = threading.Event()

    class Big(Steps):
        def preprocess(self, input_dicts):
            assert are_answered.wait(20)
            return super().preprocess(input_dicts)

    async def main():
        cheap = BatchedCheap("cheap", RequestOp(), batch_size=16, auto_batching_timeout=20_000)
        last = Steps("out", [cheap, Big("big", cheap, batch_size=16)])
        async with quick_server(ResponseOp([last]), is_quick=False) as server:
            words = ["sure"] * 14 + ["unsure"] * 2
            tasks = [asyncio.ensure_future(ask(server, word)) for word in words]
            await asyncio.wait_for(asyncio.gather(*tasks[:14]), 20)
            assert not any(task.done() for task in tasks[14:])
            are_answered.set()
            results = [value_of(item) for item in await asyncio.gather(*tasks)]
            assert results == ["sure>cheap>out"] * 14 + ["unsure>cheap>big>out"] * 2

    try:
        asyncio.run(main())
    finally:
        are_answered.set()


def test_over_grpc_http_and_v2():
    class Reads(RequestOp):
        input_tensors = (Tensor("x", "BYTES", (1,)),)

    class First(Cheap):
        def preprocess(self, input_dicts):
            given = input_dicts["@DAGExecutor"]["x"]
            is_text = isinstance(given, str)
            return super().preprocess({"": {"x": given if is_text else given[0].decode()}})

    class Last(Steps):
        output_tensors = (Tensor("x", "BYTES", (1,)),)

        def postprocess(self, input_dicts, fetched):
            return {"x": np.array([fetched["x"]])}

    async def main():
        cheap = First("cheap", Reads())
        last = Last("last", [Steps("out", [cheap, Steps("big", [cheap])])])
        response_op = ResponseOp([last])
        async with quick_server(response_op, http_port=0) as server:
            async with AsyncPipelineClient() as client:
                client.connect(f"127.0.0.1:{server.rpc_port}")
                for word, path in CASES.items():
                    assert path in str((await client.predict({"x": word}))["x"])
                wrong = await client.predict({"x": "nowhere"})
                assert wrong.err_no == CONF_ERROR
            for word, path in CASES.items():
                request = {"key": ["x"], "value": [word]}
                assert path in (await post(server, "/quick/infer", request))["value"][0]
                tensor = {"name": "x", "datatype": "BYTES", "shape": [1], "data": [word]}
                answer = await post(server, "/v2/models/quick/infer", {"inputs": [tensor]})
                assert answer["outputs"][0]["data"] == [path]
            status = (await asyncio.to_thread(doubles.http, server, "GET", "/status.json"))[2]
            # Each of the four words three times; an error, of the one that is wrong, goes to all.
            assert status["ops"][0]["edges"] == [
                {"to": "big", "sent": 3 + 3 + 1, "absent": 3 + 3},
                {"to": "out", "sent": 3 + 3 + 1, "absent": 3 + 3},
            ]
            assert status["ops"][1]["skipped"] == 3

    asyncio.run(main())


async def post(server, path, body):
    """The answer to a POST of JSON."""
    status, answer = await asyncio.to_thread(doubles.post, server, body, path)
    assert status == 200, answer
    return answer


@pytest.mark.parametrize("is_quick", [True, False])
def test_an_unpack_method_may_have_the_answer(is_quick):
    class AnswersInUnpack(RequestOp):
        def unpack_request_package(self, request):
            data, log_id, *_ = super().unpack_request_package(request)
            known = data["x"] == "known"
            return (Answer({"x": "at once"}) if known else data), log_id, None, ""

    async def main():
        last = Steps("last", Steps("first", AnswersInUnpack()))
        async with quick_server(ResponseOp([last]), is_quick) as server:
            words = ["known", "other", "known"] * 3
            responses = await asyncio.gather(*(ask(server, word) for word in words))
            assert [value_of(response) for response in responses] == [
                "at once",
                "other>first>last",
                "at once",
            ] * 3
            assert not server.executor.inside

    asyncio.run(main())
