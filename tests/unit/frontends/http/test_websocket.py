"""WebSockets on a connection that is played: who is read from, and what is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

from doubles import run_virtual
from fake_transport import FakeTransport
from raw_ws import masked

from pipeline.frontends.api.sockets import SocketRequests
from pipeline.frontends.http.websocket import MORE, PONG, TEXT, WebSocket, frame
from pipeline.proto.slices import SLICE_BYTES, Limits


class Transport(FakeTransport):
    """A transport whose caller reads nothing; `is_full`: it says so at once.

    `lingers`: it was not closed at once.
    """

    is_full = False
    lingers = True

    def write(self, data: Any) -> None:
        super().write(data)
        if self.is_full:
            self.protocol.pause_writing()


class Connection(asyncio.Protocol):
    """The HTTP connection that became a WebSocket."""

    transport: Transport

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def ended(self, exchange: Any) -> None:
        """Hang up, as for a caller that sends nothing more unless the exchange has more."""
        self.transport.lingers = exchange.has_more
        self.transport.close()

    def pause_writing(self) -> None:
        """Nothing else is written there."""

    resume_writing = pause_writing


def opened() -> tuple[WebSocket, Transport]:
    connection = Connection()
    transport = Transport(connection)
    exchange: Any = SimpleNamespace(connection=connection, sent_bytes=0, has_more=False)
    socket = WebSocket(exchange, 1_000_000)
    transport.set_protocol(socket)
    return socket, transport


def on_a_virtual_clock(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    return lambda: run_virtual(test())


@on_a_virtual_clock
async def test_no_bytes_are_read_while_frames_wait():
    socket, transport = opened()
    transport.send(masked(PONG) * 1000 + masked(TEXT, b"a"))
    assert not transport.is_reading
    message = await socket.receive()
    assert message is not None
    assert message.data == b"a"
    assert transport.is_reading
    transport.leave()


@on_a_virtual_clock
async def test_a_message_of_a_cancelled_sender_is_completed():
    socket, transport = opened()
    text = b"x" * (2 * SLICE_BYTES + 1)
    transport.is_full = True
    sending = asyncio.create_task(socket.send(text))
    await asyncio.sleep(0)
    assert transport.written == frame(TEXT, text[:SLICE_BYTES], False)
    sending.cancel()
    await asyncio.wait([sending])
    transport.is_full = False
    socket.resume_writing()
    await socket.send(b"next")
    rest = text[SLICE_BYTES:]
    whole = frame(TEXT, text[:SLICE_BYTES], False) + frame(MORE, rest) + frame(TEXT, b"next")
    assert transport.written == whole
    transport.leave()


@on_a_virtual_clock
async def test_a_flood_of_messages_does_not_block_the_loop():
    socket, transport = opened()
    took = []

    async def talk() -> None:
        while (message := await socket.receive()) is not None:
            took.append(message)

    talking = asyncio.create_task(talk())
    transport.send(masked(TEXT, b"a") * 1000)
    in_a_turn = []
    while len(took) < 1000:
        before = len(took)
        await asyncio.sleep(0)
        in_a_turn.append(len(took) - before)
    assert max(in_a_turn) <= 16
    assert transport.is_reading
    socket.shutdown()
    await talking
    transport.leave()


class OnePart(SocketRequests):
    """Answers each request with one part."""

    async def _answer(self, socket: WebSocket, number: int, fields: Any, is_text: bool) -> None:
        await self._spend()
        await socket.send(b"part of %d" % number)


@on_a_virtual_clock
async def test_a_server_that_stops_reads_credit_and_no_further_request():
    socket, transport = opened()
    endpoint: Any = SimpleNamespace(limits=Limits())
    talking = asyncio.create_task(OnePart(endpoint, "credit=0").run(socket))
    transport.send(masked(TEXT, b'{"data":{}}'))
    await asyncio.sleep(0.1)
    socket.shutdown()
    await asyncio.sleep(0.1)
    transport.send(masked(TEXT, b'{"data":{}}') + masked(TEXT, b'{"credit":2}'))
    await asyncio.wait_for(talking, 10)
    assert transport.written == frame(TEXT, b"part of 0")
    transport.leave()


@on_a_virtual_clock
async def test_a_caller_that_does_not_answer_a_close_is_waited_for_once():
    socket, transport = opened()
    loop = asyncio.get_running_loop()
    began = loop.time()
    await socket.end()
    assert loop.time() - began == 5
    assert not transport.lingers
