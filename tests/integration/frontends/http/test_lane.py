"""The lane on real sockets, with each event loop that a server may have."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from raw_http import chunked, request

from pipeline.frontends.http.server import HttpFrontend
from pipeline.proto.pipeline.response import LargeResponse
from pipeline.proto.pipeline_service_pb2 import Response
from pipeline.system.event_loop import loop_factory

LOOPS = [asyncio.SelectorEventLoop, loop_factory()]
ENOUGH_BYTES = 64 * 2**20
ROUNDS = 200


class Handle:
    def __init__(self) -> None:
        self.cancelled = asyncio.Event()

    def cancel(self) -> None:
        self.cancelled.set()


class Service:
    """A frontend whose engine answers with the pairs that it is sent, or not at all."""

    def __init__(self) -> None:
        self.begun = 0
        self.entered = asyncio.Event()
        self.holds = False
        self.handle = Handle()
        self.frontend = HttpFrontend(self._begin, "127.0.0.1", 0, 2**20)

    def _begin(self, raw: Any, timeout_s: Any, target: Any, sink: Any) -> Handle:
        self.begun += 1
        self.entered.set()
        answer: Any = Response(key=raw.key, value=raw.value)
        if raw.method == "large":
            answer = LargeResponse(Response(key=["a"], value=["x" * 3_000_000]))
        if not self.holds:
            sink.end(answer)
        return self.handle

    @property
    def connections(self) -> list[Any]:
        return list(self.frontend._listener.connections)


async def _answers(reader: asyncio.StreamReader, count: int) -> list[bytes]:
    collected = []
    for _ in range(count):
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].split()[0])
        collected.append(await reader.readexactly(size))
    return collected


def on_each_loop(test: Callable[[Service], Awaitable[None]]) -> Callable[..., None]:
    async def run() -> None:
        service = Service()
        await service.frontend.start(is_ready=True)
        try:
            async with asyncio.timeout(60):
                await test(service)
        finally:
            await service.frontend.stop(0.0)

    @pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "ours"])
    def tested(loop: Any) -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(run())

    return tested


def _body(text: str) -> bytes:
    return json.dumps({"key": ["a"], "value": [text]}).encode()


@on_each_loop
async def test_a_client_that_does_not_read_is_not_read_from_and_gets_all_answers_later(service):
    asked = request(_body("x" * 20_000))
    with socket.create_connection(("127.0.0.1", service.frontend.port)) as caller:
        caller.setblocking(False)
        sent = 0
        while not any(connection.is_full for connection in service.connections):
            assert sent < ENOUGH_BYTES, "it reads on and on"
            service.entered.clear()
            assert caller.send(asked) == len(asked), "all before was read"
            sent += len(asked)
            await service.entered.wait()  # half a head would leave the lane
        begun = service.begun
        for _ in range(ROUNDS):
            with contextlib.suppress(BlockingIOError):
                sent += caller.send(asked[sent % len(asked) :])
            await asyncio.sleep(0)
        assert service.begun == begun
        reader, writer = await asyncio.open_connection(sock=caller)
        if sent % len(asked):
            writer.write(asked[sent % len(asked) :])
            sent += len(asked) - sent % len(asked)
        answers = await _answers(reader, sent // len(asked))
        assert all(json.loads(body)["value"] == ["x" * 20_000] for body in answers)
        writer.close()


@on_each_loop
async def test_a_connection_continues_after_general_and_large_requests(service):
    reader, writer = await asyncio.open_connection("127.0.0.1", service.frontend.port)
    usual = request(_body("usual"))
    writer.write(usual * 2 + request(path="/svc/large") + usual)
    answers = await _answers(reader, 4)
    assert [len(body) > 3_000_000 for body in answers] == [False, False, True, False]
    writer.write(request(chunked(_body("chunks")), "Transfer-Encoding: chunked") + usual)
    answers = await _answers(reader, 2)
    assert [json.loads(body)["value"] for body in answers] == [["chunks"], ["usual"]]
    writer.close()


@on_each_loop
async def test_a_caller_that_leaves_is_noticed_at_once(service):
    service.holds = True
    _, writer = await asyncio.open_connection("127.0.0.1", service.frontend.port)
    writer.write(request(_body("x")))
    await service.entered.wait()
    writer.close()
    await service.handle.cancelled.wait()
    assert not service.connections


@on_each_loop
async def test_a_body_in_single_bytes_stays_in_the_lane(service):
    reader, writer = await asyncio.open_connection("127.0.0.1", service.frontend.port)
    head, body = request(_body("x")).split(b"\r\n\r\n")
    for piece in (head + b"\r\n\r\n", *(body[at : at + 1] for at in range(len(body)))):
        writer.write(piece)
        await asyncio.sleep(0)
    assert json.loads((await _answers(reader, 1))[0])["value"] == ["x"]
    assert service.connections[0]._reader is None
    writer.close()


@on_each_loop
async def test_a_wait_that_is_over_at_once_may_be_followed_by_another(service):
    reader, writer = await asyncio.open_connection("127.0.0.1", service.frontend.port)
    writer.write(request(_body("a")))
    await _answers(reader, 1)
    (lane,) = service.connections
    lane._wait(
        0.0
    )  # as the rest of a time that is nearly over: uvloop's timers know no `when` then
    lane._wait(60.0)
    writer.write(request(_body("b")))
    assert [json.loads(body)["value"] for body in await _answers(reader, 1)] == [["b"]]
    writer.close()
