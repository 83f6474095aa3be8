"""Calls of methods that begin without a coroutine, and end the sink that their call is."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from fake_begin import begin_of
from link_peer import (
    SUCCESS,
    LinkPeer,
    ask,
    code_of,
    link_of,
    linked,
    message,
    refusal_of,
    until,
)

from pipeline.engine.request import ResponseSink
from pipeline.errors import ErrorCode
from pipeline.frontends.grpc.server import GrpcCall, GrpcError, GrpcService
from pipeline.frontends.link import frames
from pipeline.frontends.link.frames import (
    CANCELED,
    END,
    FRAME_BYTES,
    MESSAGE,
    MORE,
    OPEN,
    OPENED,
    frame,
)
from pipeline.proto.pipeline_service_pb2 import Request, Response
from pipeline.system.event_loop import loop_factory

DIRECT = 4
"""The number of the method of `Service`."""


class Work:
    """The work that a call has begun."""

    def __init__(self) -> None:
        self.cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


class Service:
    """A direct method, which does what its message says; its coroutine says so."""

    def __init__(self) -> None:
        self.sinks: list[ResponseSink] = []
        self.work: list[Work] = []
        self.left: list[float | None] = []

    def begin(self, asked: bytes, call: GrpcCall, sink: ResponseSink) -> Work | None:
        self.left.append(call.time_left())
        if asked == b"coroutine":
            return None
        if asked == b"abort":
            raise GrpcError(grpc.StatusCode.ABORTED, "why", 51)
        self.work.append(Work())
        if asked == b"wait":
            self.sinks.append(sink)
        else:
            sink.end(asked)
        return self.work[-1]

    def reply(self, answer: bytes, call: GrpcCall) -> bytes | Awaitable[bytes]:
        if answer == b"bug":
            raise ZeroDivisionError
        return self._late(answer) if answer.startswith(b"late") else answer

    async def _late(self, answer: bytes) -> bytes:
        await asyncio.sleep(0)
        if answer == b"late abort":
            raise GrpcError(grpc.StatusCode.ABORTED, "late")
        return answer

    async def method(self, asked: bytes, call: GrpcCall) -> bytes:
        return b"by the coroutine: %d" % len(asked)


async def handle(request: Request, timeout_s: float | None = None, target: Any = None) -> Response:
    return Response()


def talk(test: Callable[[LinkPeer, Service], Awaitable[None]]) -> None:
    async def main() -> None:
        service = Service()
        services = [GrpcService("a.B", {"Direct": service.method}, direct={"Direct": service})]
        with tempfile.TemporaryDirectory(prefix="link-") as folder:
            path = Path(folder, "0.link")
            door = link_of(begin_of(handle), path, services=services)
            await door.start(True)
            try:
                async with linked(path) as gateway:
                    await test(gateway, service)
            finally:
                await door.stop(0.0)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main())


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (b"at once", b"at once"),
        (b"", b""),
        (b"late", b"late"),
        (b"coroutine", b"by the coroutine: 9"),
        (bytes(3 * FRAME_BYTES), b"by the coroutine: %d" % (3 * FRAME_BYTES)),
    ],
    ids=["at once", "empty", "late", "coroutine", "long"],
)
def test_a_direct_method_answers(asked, answer):
    async def test(gateway: LinkPeer, service: Service) -> None:
        gateway.say(message(1, asked, method=DIRECT))
        assert await gateway.hear() == (END, 1, SUCCESS + answer)

    talk(test)


def test_an_answer_may_be_sent_later():
    async def test(gateway: LinkPeer, service: Service) -> None:
        gateway.say(message(1, b"wait", method=DIRECT), ask(2))
        assert (await gateway.hear())[1] == 2
        service.sinks[0].end(b"now")
        assert await gateway.hear() == (END, 1, SUCCESS + b"now")

    talk(test)


@pytest.mark.parametrize(
    ("asked", "code", "refusal"),
    [
        (b"abort", 10, (409, 51, "why")),
        (b"late abort", 10, (409, 0, "late")),
        (b"bug", 13, (500, ErrorCode.UNKNOW, "internal error of the server")),
    ],
)
def test_a_direct_method_that_fails_ends_its_call_and_no_other(asked, code, refusal):
    async def test(gateway: LinkPeer, service: Service) -> None:
        gateway.say(message(1, asked, method=DIRECT), message(2, b"x", method=DIRECT))
        heard = sorted([await gateway.hear(), await gateway.hear()], key=lambda item: item[1])
        assert (code_of(heard[0]), refusal_of(heard[0])) == (code, refusal)
        assert heard[1] == (END, 2, SUCCESS + b"x")

    talk(test)


def test_a_call_started_for_a_cancelled_request_is_cancelled():
    async def test(gateway: LinkPeer, service: Service) -> None:
        gateway.say(message(1, b"wait", method=DIRECT))
        await until(lambda: bool(service.sinks))
        gateway.say(frames.reset(1, CANCELED))
        await until(lambda: service.work[0].cancelled == 1)
        service.sinks[0].end(b"too late")
        gateway.say(message(2, b"x", method=DIRECT))
        assert await gateway.hear() == (END, 2, SUCCESS + b"x")

    talk(test)


def test_a_client_that_leaves_within_a_long_message_does_not_affect_others():
    async def test(gateway: LinkPeer, service: Service) -> None:
        gateway.say(message(1, b"wait", method=DIRECT))
        begun = frame(OPEN, 2, OPENED.pack(-1, 0, 0) + b"be", MESSAGE | MORE, DIRECT)
        gateway.say(begun, frames.reset(2, CANCELED), message(3, b"x", method=DIRECT))
        assert await gateway.hear() == (END, 3, SUCCESS + b"x")
        service.sinks[0].end(b"now")
        assert await gateway.hear() == (END, 1, SUCCESS + b"now")

    talk(test)


def test_a_direct_method_receives_the_remaining_time():
    async def test(gateway: LinkPeer, service: Service) -> None:
        gateway.say(message(1, b"x", method=DIRECT))
        gateway.say(message(2, b"x", timeout_ns=10**12, method=DIRECT))
        for _ in range(2):
            await gateway.hear()
        assert service.left[0] is None
        assert service.left[1] is not None
        assert 0 < service.left[1] < 1000.001  # what is left of a sum of times is rounded

    talk(test)
