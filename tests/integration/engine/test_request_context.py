"""What `context` says in each hook, in threads, processes and coroutines, and what it costs."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref

import numpy as np
import pytest
from doubles import server_for, wait_until, without_gc

from pipeline import Op, RequestOp, ResponseOp
from pipeline.data import RequestInfo
from pipeline.engine import pack_jobs
from pipeline.engine.request import RequestTarget
from pipeline.engine.run import stages as batch_run
from pipeline.proto.pipeline_service_pb2 import Request

INFO = RequestInfo(
    id="seven",
    parameters={"colour": "red", "sequence_id": 5},
    headers={"x-user": "anna"},
    sequence_id=5,
    sequence_start=True,
    sequence_end=False,
    priority=3,
)


# What it says --------------------------------------------------------------------------------


def fields_of(context):
    return {
        "data_id": context.data_id,
        "log_id": context.log_id,
        "id": context.id,
        "parameters": dict(context.parameters),
        "headers": dict(context.headers),
        "sequence": (context.sequence_id, context.sequence_start, context.sequence_end),
        "priority": context.priority,
        "has_time": 0 < (context.time_left() or 0) <= 60,
        "is_cancelled": context.is_cancelled(),
    }


SAID = {
    "data_id": 0,
    "log_id": 9,
    "id": "seven",
    "parameters": {"colour": "red", "sequence_id": 5},
    "headers": {"x-user": "anna"},
    "sequence": (5, True, False),
    "priority": 3,
    "has_time": True,
    "is_cancelled": False,
}


class AskingRequestOp(RequestOp):
    def unpack_request_package(self, request, context):
        return {"unpack": repr(fields_of(context))}, 9, None, ""


class AskingOp(Op):
    def preprocess(self, input_dicts, *, context):
        (inputs,) = input_dicts.values()
        return {**inputs, "preprocess": repr(fields_of(context))}

    def process(self, feed_batch, *, context):
        (feed,) = feed_batch
        (only,) = context
        return {**feed, "process": repr(fields_of(only))}

    def postprocess(self, input_dicts, fetch_data, *, context):
        return {**fetch_data, "postprocess": repr(fields_of(context))}


class AsyncAskingOp(AskingOp):
    async def preprocess(self, input_dicts, *, context):
        return super().preprocess(input_dicts, context=context)

    async def process(self, feed_batch, *, context):
        return super().process(feed_batch, context=context)


class AskingResponseOp(ResponseOp):
    def pack_response_package(self, channeldata, context):
        response = super().pack_response_package(channeldata)
        response.key.append("pack")
        response.value.append(repr(fields_of(context)))
        return response


def answer_of(server, target=None, timeout_s=30.0):
    """The answer of a running server's engine, by name."""
    request = Request(key=["x"], value=["1"])
    coroutine = server.executor.handle(request, timeout_s, target)
    response = server._thread.run(coroutine)
    assert (response.err_no, response.err_msg) == (0, "")
    return dict(zip(response.key, response.value, strict=True))


def served(last, response_op=None, **keys):
    return server_for(last, response_op=response_op or ResponseOp(last), **keys)


@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.parametrize("kind", [AskingOp, AsyncAskingOp])
def test_each_hook_receives_the_same_context(kind, workers):
    last = kind("a", AskingRequestOp())
    with served(last, AskingResponseOp(last), op={"a": {"workers": workers}}) as server:
        answer = answer_of(server, RequestTarget(info=INFO))
    said = {name: eval(answer[name]) for name in ("preprocess", "process", "postprocess", "pack")}
    assert said == dict.fromkeys(said, SAID)
    assert eval(answer["unpack"]) == {**SAID, "log_id": 0}


def test_a_request_without_info_has_an_empty_context():
    last = AskingOp("a", RequestOp())
    with served(last) as server:
        said = eval(answer_of(server)["process"])
    assert (said["id"], said["parameters"], said["headers"]) == ("", {}, {})
    assert (said["sequence"], said["priority"]) == ((0, False, False), 0)


class Batched(Op):
    def preprocess(self, input_dicts, data_id, log_id, context):
        assert context.data_id == data_id
        return {"x": [str(data_id)]}

    def process(self, feed_batch, *, context):
        assert feed_batch[0]["x"] == [str(item.data_id) for item in context]
        return {"y": [f"{len(context)}" for _ in context]}

    def postprocess(self, input_dicts, fetch_data, data_id, log_id, context):
        assert context.data_id == data_id
        return {"y": fetch_data["y"][0]}


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_process_gets_the_contexts_of_its_batch_in_order(workers):
    last = Batched("a", RequestOp())
    settings = {"workers": workers, "batch_size": 3, "auto_batching_timeout": 10_000}

    async def three(server):
        request = Request(key=["x"], value=["1"])
        return await asyncio.gather(*(server.executor.handle(request) for _ in range(3)))

    with served(last, op={"a": settings}) as server:
        answers = server._thread.run(three(server))
    assert [answer.value[0] for answer in answers] == ["3", "3", "3"], answers


# Cancellation --------------------------------------------------------------------------------


class Patient(Op):
    """Works until nobody waits for it."""

    def process(self, feed_batch, *, context):
        (request,) = context
        ends = time.monotonic() + 20
        while not request.is_cancelled():
            assert time.monotonic() < ends
            threading.Event().wait(0.001)
        open(feed_batch[0]["path"], "w").close()
        return {"y": "left"}


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_a_hook_can_see_that_its_request_is_cancelled(workers, tmp_path):
    last = Patient("a", RequestOp())
    path = tmp_path / "seen"
    with served(last, op={"a": {"workers": workers}}) as server:
        request = Request(key=["path"], value=[str(path)])
        answer = server._thread.run(server.executor.handle(request, 0.2))
        assert answer.err_no
        ends = time.monotonic() + 20
        while not path.exists():
            assert time.monotonic() < ends
            threading.Event().wait(0.005)


# Memory --------------------------------------------------------------------------------------

LARGE: list[weakref.ref] = []


class LargeRequestOp(RequestOp):
    def unpack_request_package(self, request):
        large = np.zeros(8)
        LARGE.append(weakref.ref(large))
        return {"large": large}, 0, None, ""


class Looking(Op):
    def preprocess(self, input_dicts, *, context):
        return {"y": "1"}

    def process(self, feed_batch, *, context):
        return {"y": "1"}

    def postprocess(self, input_dicts, fetch_data, *, context):
        return {"y": "1"}


class LookingOnce(Looking):
    process = Op.process


class LookingInParts(Looking):
    def process(self, feed_batch, *, context):
        yield {"y": "1"}


class LookingLast(Looking):
    def postprocess(self, input_dicts, fetch_data, *, context):
        yield {"y": "1"}


class Plain(Op):
    def process(self, feed_batch):
        return {"y": "1"}


class InParts(Op):
    def process(self, feed_batch):
        yield {"y": "1"}


class FailsFirst(Op):
    def preprocess(self, input_dicts):
        raise ValueError("wrong")


class Fails(Op):
    def process(self, feed_batch):
        raise ValueError("wrong")


class FailsInParts(Op):
    def process(self, feed_batch):
        yield {"y": "1"}
        raise ValueError("wrong")


class FailsLast(Op):
    def postprocess(self, input_dicts, fetch_data):
        raise ValueError("wrong")


class AsyncFails(Op):
    async def process(self, feed_batch):
        raise ValueError("wrong")


KINDS = (Looking, LookingOnce, LookingInParts, LookingLast, Plain, InParts)
FAILING = (FailsFirst, Fails, FailsInParts, FailsLast, AsyncFails)


@pytest.mark.parametrize("kind", [*KINDS, *FAILING])
def test_an_idle_server_has_nothing_of_the_request_before(kind):
    with served(kind("a", LargeRequestOp())) as server, without_gc():
        response = server._thread.run(server.executor.handle(Request(), 30.0))
        assert bool(response.err_no) == (kind in FAILING)
        wait_until(lambda: LARGE[-1]() is None)


# Cost ------------------------------------------------------------------------------------------


def test_without_a_parameter_no_context_is_made(monkeypatch):
    def refuse(*args):
        raise AssertionError("a context was made")

    monkeypatch.setattr(batch_run, "contexts_of", refuse)
    monkeypatch.setattr(pack_jobs, "context_of", refuse)
    last = Op("a", RequestOp())
    with served(last) as server:
        assert answer_of(server, RequestTarget(info=INFO)) == {"x": "1"}
