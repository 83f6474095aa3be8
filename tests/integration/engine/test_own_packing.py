"""A user's unpack and pack, at the ends of trips; every interleaving is forced."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading

import pytest
from doubles import on_loop, until
from trip_servers import (
    TIMED_OUT,
    Hangs,
    a_trip_may_last,
    ask,
    counted,
    quick_server,
    steps_may_last,
    value_of,
)

from pipeline import Op, RequestOp, ResponseOp
from pipeline.engine.request import RequestTarget
from pipeline.proto.pipeline_service_pb2 import Request

__all__ = ["a_trip_may_last", "steps_may_last"]

PACKAGE = 8000
OWN = "pipeline-@DAGExecutor"


def here():
    return threading.current_thread().name


class Reads(RequestOp):
    """Unpacks `x`; what happens on the way is up to `act`."""

    act = staticmethod(lambda x: None)

    def unpack_request_package(self, request):
        data, log_id, _, _ = super().unpack_request_package(request)
        self.act(data["x"])
        if data["x"] == "product":
            return {}, log_id, 51, "no good"
        return data, log_id, None, ""


class Writes(ResponseOp):
    act = staticmethod(lambda x: None)

    def pack_response_package(self, channeldata):
        if channeldata.error is None:
            self.act(channeldata.payload["x"])
        return super().pack_response_package(channeldata)


class Passes(Op):
    act = staticmethod(lambda x: None)

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        x = next(iter(input_dicts.values()))["x"]
        self.act(x)
        return {"x": x}


def do_nothing(x):
    """Do nothing."""


@contextlib.asynccontextmanager
async def serving(
    reads=do_nothing, passes=do_nothing, writes=do_nothing, names="ab", quick=True, **config
):
    """A server whose unpack, Ops and pack count as quick."""
    read = last = Reads()
    read.act = reads
    for name in names:
        last = Passes(name=name, input_ops=[last])
        last.act = passes
    response = Writes(input_ops=[last])
    response.act = writes
    async with quick_server(response, quick, **config) as server:
        yield server


@pytest.mark.usefixtures("a_trip_may_last", "steps_may_last")
@pytest.mark.parametrize(
    ("config", "is_alone"),
    [({}, False), ({"dag": {"fuse": "off"}}, True), ({"dag": {"retry": 2}}, True)],
)
@on_loop
async def test_unpack_and_pack_run_in_the_trip_of_the_ops(config, is_alone):
    seen = []

    def act(x):
        seen.append(here())

    async with serving(act, act, do_nothing, **config) as server:
        assert value_of(await ask(server)) == "1"
    assert [name.startswith(OWN) for name in seen] == [True, not is_alone, not is_alone]


@on_loop
async def test_an_unpack_with_a_thread_bound_connection_works():
    class ReadsFromDatabase(Reads):
        def init_op(self):
            self.db = sqlite3.connect(":memory:", check_same_thread=False)
            self.seen = seen

        def unpack_request_package(self, request):
            self.seen.append(here())
            return super().unpack_request_package(request)

    seen = []
    async with quick_server(
        Writes(input_ops=[Passes(name="a", input_ops=[ReadsFromDatabase()])])
    ) as server:
        assert value_of(await ask(server)) == "1"
    assert seen[0].startswith(OWN)


def fails(x):
    if x == "bad":
        raise ValueError(x)
    if x == "exit":
        raise SystemExit(3)


async def answers_of(is_fused, reads=do_nothing, writes=do_nothing):
    """Return the answers and counts where the user's code fails, in one trip or not."""
    config = {"op": {name: {"batch_size": 4} for name in "ab"}}
    async with serving(reads, do_nothing, writes, quick=is_fused, **config) as server:
        texts = ["bad", *"123", "exit", "product", *"456"]
        tasks = (ask(server, text, log_id=number) for number, text in enumerate(texts))
        answers = await asyncio.gather(*tasks)
        assert value_of(await ask(server)) == "1"
        counts = {name: result[:3] for name, result in counted(server).items()}
        assert [op.running for op in server.executor.state().ops] == [0, 0]
        return answers, counts


@pytest.mark.parametrize("where", ["reads", "writes"])
def test_errors_and_statistics_equal_those_of_separate_runs(where):
    fused, apart = (asyncio.run(answers_of(is_fused, **{where: fails})) for is_fused in (1, 0))
    assert fused == apart
    codes = [PACKAGE, 0, 0, 0, PACKAGE, 51]
    assert [answer.err_no for answer in fused[0][:6]] == codes
    assert fused[1]


@on_loop
async def test_others_continue_while_an_unpack_hangs():
    hangs = Hangs()
    async with serving(hangs) as server:
        lost = asyncio.create_task(ask(server, "hang"))
        await until(hangs.began.is_set)
        for number in range(20):
            assert value_of(await ask(server, str(number))) == str(number)
        assert not lost.done()
        assert server.executor.state().ops[0].running == 0
        hangs.release.set()
        assert value_of(await lost) == "hang"
        assert [op.running for op in server.executor.state().ops] == [0, 0]
    assert hangs.calls["hang"] == 1


@on_loop
async def test_others_continue_while_a_pack_hangs():
    hangs = Hangs()
    async with serving(writes=hangs) as server:
        lost = asyncio.create_task(ask(server, "hang"))
        await until(hangs.began.is_set)
        for number in range(20):
            assert value_of(await ask(server, str(number))) == str(number)
        assert not lost.done()
        hangs.release.set()
        assert value_of(await lost) == "hang"
    assert hangs.calls["hang"] == 1


@pytest.mark.parametrize("where", ["reads", "writes"])
@on_loop
async def test_a_deadline_during_unpack_or_pack_is_met(where):
    hangs = Hangs()
    async with serving(**{where: hangs}) as server:
        answer = await ask(server, "hang", 0.05, log_id=7)
        assert answer.err_no == TIMED_OUT
        assert value_of(await ask(server)) == "1"
        hangs.release.set()
        assert value_of(await ask(server)) == "1"
        assert [op.running for op in server.executor.state().ops] == [0, 0]


@pytest.mark.parametrize("where", ["reads", "writes"])
@on_loop
async def test_a_request_cancelled_during_unpack_or_pack_stops(where):
    hangs, later = Hangs(), []
    async with serving(**{where: hangs}, passes=later.append) as server:
        task = asyncio.create_task(ask(server, "hang"))
        await until(hangs.began.is_set)
        task.cancel()
        await asyncio.wait([task])
        hangs.release.set()
        assert value_of(await ask(server)) == "1"
        assert server.executor.inside == 0
    if where == "reads":
        assert "hang" not in later


@on_loop
async def test_requests_of_one_op_and_without_response_are_not_packed():
    packed = []
    async with serving(writes=packed.append) as server:
        op = next(op for op in server.executor.executor.nodes if op.name == "a")
        alone = RequestTarget(op=op, payload={"r": {"x": "2"}}, wants_response=False)
        assert (await ask(server, target=alone)).payload == {"x": "2"}
        through = RequestTarget(payload={"x": "3"}, wants_response=False)
        assert (await ask(server, target=through)).payload == {"x": "3"}
    assert packed == []


class Sink:
    def __init__(self):
        self.ended = asyncio.get_running_loop().create_future()

    def end(self, answer):
        self.ended.set_result(answer)


@on_loop
async def test_the_journal_has_the_times_of_unpack_and_pack():
    def slow(x):
        threading.Event().wait(0.002)

    async with serving(slow, do_nothing, slow) as server:
        raw = Request(key=["x"], value=["1"])
        request = server.executor.begin(raw, None, None, sink := Sink())
        await sink.ended
    assert request.dispatched_ns - request.admitted_ns >= 2_000_000
    assert request.end_ns - request.completed_ns >= 2_000_000
    assert request.dispatched_ns <= request.completed_ns
