"""`Engine.begin`: a request's answer goes to its sink, once, or nowhere if its caller left."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from doubles import Engine, answers, chain, run_virtual, settle, virtual

from pipeline.engine.request import RequestTarget, UnarySink, ask
from pipeline.errors import ClosedError, OverloadedError
from pipeline.proto.pipeline_service_pb2 import Request


class RecordingSink(UnarySink):
    """Keeps what it is ended with."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def end(self, answer: Any) -> None:
        self.answers.append(answer)


class Broken(RecordingSink):
    def end(self, answer: Any) -> None:
        super().end(answer)
        raise RuntimeError("the socket is gone")


def request(**pairs: str) -> Request:
    return Request(key=list(pairs), value=list(pairs.values()))


@virtual
async def test_a_sink_gets_the_answer_once():
    async with Engine(chain("a", "b")) as engine:
        sink = RecordingSink()
        begun = engine.executor.begin(request(path="x"), None, None, sink)
        assert sink.answers == []
        await settle()
        begun.cancel()  # too late
        await settle()
        assert [answers(answer) for answer in sink.answers] == [{"path": "x>a>b"}]
        assert engine.executor.inside == 0


@virtual
async def test_a_sink_gets_the_payload_of_the_last_op_if_the_target_wants_no_response():
    async with Engine(chain("a")) as engine:
        sink = RecordingSink()
        target = RequestTarget(payload={"path": "x"}, wants_response=False)
        engine.executor.begin(None, None, target, sink)
        await settle()
        (data,) = sink.answers
        assert data.payload == {"path": "x>a"}


@virtual
async def test_a_sink_may_be_ended_before_begin_returns():
    engine = Engine(chain("a"))
    async with engine:
        pass
    sink = RecordingSink()
    engine.executor.begin(request(path="x"), None, None, sink)
    (answer,) = sink.answers
    assert (answer.err_no, answer.err_msg) == (ClosedError.code, "dag closed.")


@virtual
async def test_the_sink_of_an_overloaded_request_gets_nothing():
    config = {"worker_num": 1, "queue_size": 0}
    async with Engine(chain("a"), config, {"a": None}) as engine:
        first, second = RecordingSink(), RecordingSink()
        engine.executor.begin(request(path="x"), None, None, first)
        with pytest.raises(OverloadedError):
            engine.executor.begin(request(path="y"), 1.0, None, second)
        engine.executor.answer_all_closed()
        assert (len(first.answers), second.answers) == (1, [])


@virtual
async def test_the_sink_of_a_cancelled_request_gets_nothing():
    async with Engine(chain("a"), service_s={"a": None}) as engine:
        sink = RecordingSink()
        begun = engine.executor.begin(request(path="x"), 1.0, None, sink)
        begun.cancel()
        begun.cancel()
        assert engine.executor.inside == 0
        await asyncio.sleep(2.0)
        assert sink.answers == []
        engine.journal.flush()
        assert len(engine.requests) == 1


@virtual
async def test_a_request_is_cancelled_with_the_future_of_its_answer():
    async with Engine(chain("a"), service_s={"a": None}) as engine:
        answer = ask(engine.executor.begin, request(path="x"))
        assert engine.executor.inside == 1
        answer.cancel()
        assert engine.executor.inside == 0


def test_a_sink_that_raises_does_not_affect_other_requests(caplog):
    async def main():
        async with Engine(chain("a")) as engine:
            broken, well = Broken(), RecordingSink()
            engine.executor.begin(request(path="x"), None, None, broken)
            engine.executor.begin(request(path="y"), None, None, well)
            await settle()
            assert [len(broken.answers), len(well.answers)] == [1, 1]
            assert engine.executor.inside == 0

    with caplog.at_level(logging.ERROR):
        run_virtual(main())
    assert "an answer could not be handed over" in caplog.text
