"""A user's unpack and pack in one go with quick Ops; every interleaving is forced."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading

import numpy as np
import pytest
from doubles import on_loop, until
from fused import (
    PATIENCE_S,
    TIMED_OUT,
    Hangs,
    a_walk_may_last,
    ask,
    counted,
    quick_server,
    set_pace,
    steps_may_last,
    value_of,
)

from pipeline import Op, RequestOp, ResponseOp
from pipeline.engine.request import RequestTarget
from pipeline.proto.pipeline.plain import PlainRequest, PlainResponse
from pipeline.proto.pipeline_service_pb2 import Request

__all__ = ["a_walk_may_last", "steps_may_last"]
pytestmark = pytest.mark.usefixtures("a_walk_may_last")

PACKAGE = 8000
FIRST, OWN = "pipeline-a-0", "pipeline-@DAGExecutor"


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


def nothing(x):
    """Do nothing."""


@contextlib.asynccontextmanager
async def serving(reads=nothing, passes=nothing, writes=nothing, names="ab", quick=True, **config):
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


@pytest.mark.parametrize("names", ["a", "ab", "abc"])
@pytest.mark.usefixtures("steps_may_last")
@on_loop
async def test_unpack_ops_and_pack_run_on_one_thread(names):
    seen = []

    def act(x):
        seen.append(here())

    async with serving(act, act, act, names) as server:
        assert value_of(await ask(server)) == "1"
    assert seen == [FIRST] * (2 + len(names))


@on_loop
async def test_a_single_op_is_no_group():
    async with serving(names="a") as server:
        assert [op.group for op in server.executor.state().ops] == [()]


@pytest.mark.parametrize(
    ("config", "quick"),
    [
        ({"dag": {"fuse": "off"}}, True),
        ({}, False),
        ({"dag": {"channel_size": 4}}, True),
        ({"op": {"@DAGExecutor": {"fuse": False}}}, True),
    ],
)
@on_loop
async def test_apart_they_run_on_their_own(config, quick):
    seen = []

    def act(x):
        seen.append(here())

    async with serving(act, nothing, act, quick=quick, **config) as server:
        assert value_of(await ask(server)) == "1"
    assert all(name.startswith(OWN) for name in seen)
    assert len(seen) == 2


@on_loop
async def test_who_wants_to_see_the_payload_on_the_loop_does():
    seen = []
    config = {"dag": {"retry": 2}}
    async with serving(lambda x: seen.append(here()), **config) as server:
        assert value_of(await ask(server)) == "1"
    assert seen[0].startswith(OWN)


@on_loop
async def test_an_unpack_with_a_connection_of_its_thread_goes_on_working():
    class Asks(Reads):
        def init_op(self):
            self.db = sqlite3.connect(":memory:", check_same_thread=False)
            self.seen = seen

        def unpack_request_package(self, request):
            self.seen.append(here())
            return super().unpack_request_package(request)

    seen = []
    async with quick_server(Writes(input_ops=[Passes(name="a", input_ops=[Asks()])])) as server:
        assert value_of(await ask(server)) == "1"
    assert seen[0].startswith(OWN)


def fails(x):
    if x == "bad":
        raise ValueError(x)
    if x == "exit":
        raise SystemExit(3)


async def answers_of(is_fused, reads=nothing, writes=nothing):
    """What is answered, and counted, where the user's code fails; whether fused or not."""
    config = {"op": {name: {"batch_size": 4} for name in "ab"}}
    async with serving(reads, nothing, writes, quick=is_fused, **config) as server:
        texts = ["bad", *"123", "exit", "product", *"456"]
        asked = (ask(server, text, log_id=number) for number, text in enumerate(texts))
        answers = await asyncio.gather(*asked)
        assert value_of(await ask(server)) == "1"
        counts = {name: found[:3] for name, found in counted(server).items()}
        assert [op.running for op in server.executor.state().ops] == [0, 0]
        return answers, counts


@pytest.mark.parametrize("where", ["reads", "writes"])
def test_errors_and_statistics_are_those_of_what_runs_apart(where):
    fused, apart = (asyncio.run(answers_of(is_fused, **{where: fails})) for is_fused in (1, 0))
    assert fused == apart
    codes = [PACKAGE, 0, 0, 0, PACKAGE, 51]
    assert [answer.err_no for answer in fused[0][:6]] == codes
    assert fused[1]


@on_loop
async def test_others_go_on_while_an_unpack_hangs():
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
async def test_those_in_the_batch_of_an_unpack_that_hangs_go_on():
    hangs, holds, began = Hangs(), threading.Event(), threading.Event()

    def passes(x):
        if x == "first":
            began.set()
            assert holds.wait(PATIENCE_S)

    config = {"op": {"a": {"batch_size": 8, "auto_batching_timeout": 20}}}
    async with serving(hangs, passes, **config) as server:
        asked = {x: asyncio.create_task(ask(server, x)) for x in ("1", "hang", "2", "3")}
        for x in "123":
            assert value_of(await asked[x]) == x
        hangs.release.set()
        assert value_of(await asked["hang"]) == "hang"
    assert hangs.calls == {"1": 1, "hang": 1, "2": 1, "3": 1}


@on_loop
async def test_others_go_on_while_a_pack_hangs():
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
async def test_a_deadline_that_passes_in_it_is_kept(where):
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
async def test_a_request_that_is_cancelled_in_it_goes_no_further(where):
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
async def test_what_waits_when_the_group_comes_apart_is_unpacked_as_ever():
    holds, began = threading.Event(), threading.Event()

    def passes(x):
        if x == "first" and not began.is_set():
            began.set()
            assert holds.wait(PATIENCE_S)

    async with serving(passes=passes, names="a") as server:
        first = asyncio.create_task(ask(server, "first"))
        await until(began.is_set)
        others = [asyncio.create_task(ask(server, x)) for x in "123"]
        await asyncio.sleep(0)
        set_pace(server, is_quick=False)
        holds.set()
        assert value_of(await first) == "first"
        assert [value_of(await other) for other in others] == list("123")
        assert [op.running for op in server.executor.state().ops] == [0]


@on_loop
async def test_requests_for_one_op_and_those_that_want_no_response():
    packed = []
    async with serving(writes=packed.append) as server:
        op = next(op for op in server.executor.executor.nodes if op.name == "a")
        alone = RequestTarget(op=op, payload={"r": {"x": "2"}}, wants_response=False)
        assert (await ask(server, target=alone)).payload == {"x": "2"}
        through = RequestTarget(payload={"x": "3"}, wants_response=False)
        assert (await ask(server, target=through)).payload == {"x": "3"}
    assert packed == []


class Arrays(Op):
    def preprocess(self, input_dicts, data_id=0, log_id=0):
        return {"x": np.array([1 / 3]), "y": np.arange(3)}


@pytest.mark.usefixtures("steps_may_last")
@pytest.mark.parametrize("raw", [Request, PlainRequest])
def test_arrays_are_packed_on_the_thread_that_made_them_as_on_the_loop(raw, monkeypatch):
    seen = []

    async def main(**config):
        np.set_printoptions(precision=3)
        read = RequestOp()
        response = ResponseOp(input_ops=[Arrays(name="a", input_ops=[read])])
        async with quick_server(response, **config) as server:
            packer, answers = server.executor._packer, []
            now = packer._pack_now
            monkeypatch.setattr(
                packer, "_pack_now", lambda *args: (seen.append(here()), now(*args))[1]
            )
            for _ in range(3):
                request = raw(key=["x"], value=["1"])
                answers.append(await server.executor.handle(request, None, None))
            return answers

    with np.printoptions():
        fused, apart = asyncio.run(main()), asyncio.run(main(dag={"fuse": "off"}))
    assert fused == apart
    assert seen[:3] == ["MainThread", FIRST, FIRST]
    assert set(seen[3:]) == {"MainThread"}
    assert isinstance(fused[2], PlainResponse) == (raw is PlainRequest)
    assert "0.333" in fused[2].value[0]


class Sink:
    def __init__(self):
        self.ended = asyncio.get_running_loop().create_future()

    def end(self, answer):
        self.ended.set_result(answer)


@on_loop
async def test_the_journal_knows_when_it_was_unpacked_and_when_packing_began():
    def slow(x):
        threading.Event().wait(0.002)

    async with serving(slow, nothing, slow) as server:
        raw = Request(key=["x"], value=["1"])
        request = server.executor.begin(raw, None, None, sink := Sink())
        await sink.ended
    assert request.dispatched_ns - request.admitted_ns >= 2_000_000
    assert request.end_ns - request.completed_ns >= 2_000_000
    assert request.dispatched_ns <= request.completed_ns


@on_loop
async def test_an_error_of_ours_in_the_middle_loses_no_request(monkeypatch):
    config = {"op": {"a": {"batch_size": 8, "auto_batching_timeout": 20}}}
    async with serving(**config) as server:
        unpacker, tried = server.executor._unpacker, []
        read = unpacker.read

        def fails_once(request, unpacked):
            tried.append(here())
            if tried.count(FIRST) == 2 and tried[-1] == FIRST:
                raise RuntimeError("ours")
            return read(request, unpacked)

        monkeypatch.setattr(unpacker, "read", fails_once)
        answers = await asyncio.gather(*(ask(server, x) for x in "1234"))
        assert [value_of(answer) for answer in answers] == list("1234")
        assert [op.running for op in server.executor.state().ops] == [0, 0]
