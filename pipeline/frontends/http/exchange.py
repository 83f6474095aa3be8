"""Exchange: one request for the routes, while it arrives and is answered."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pipeline.frontends.http.routes import (
    Body,
    Header,
    Headers,
    HttpError,
    WebResponse,
    WebStream,
    WebUpgrade,
)
from pipeline.frontends.http.websocket import WebSocket
from pipeline.proto.slices import SHORT_BYTES, SLICE_BYTES

if TYPE_CHECKING:
    from pipeline.frontends.http.connection import HttpConnection

_LENGTH = b"content-length: "


@functools.lru_cache(maxsize=64)  # most answers of one second have the same head
def head_of(status: int, content_type: bytes, headers: tuple[Header, ...]) -> bytes:
    """Return the head of an answer up to its length."""
    lines = [b"HTTP/1.1 %d %s\r\n" % (status, _phrase_of(status))]
    lines += [b"%b: %b\r\n" % header for header in headers]
    lines.append(b"content-type: %b\r\n%b" % (content_type, _LENGTH))
    return b"".join(lines)


def _phrase_of(status: int) -> bytes:
    """Return the reason phrase of a status; empty for unknown ones, for example 499."""
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""


class Exchange:
    """A request, which may still be arriving, and its answer.

    Attributes:
        connection: the connection that it arrived on.
        method, path, raw_path, query: of its first line; `path` is decoded.
        fields: its headers, by lower-case names.
        said: the last value of each header.
        body: the part that has arrived and was not taken.
        placed: the whole body, if it was received before the endpoint asked for it; otherwise None.
        has_more: more of the body will arrive.
        body_error: why the rest of the body will not arrive.
        keeps_alive: the connection continues after the answer.
        is_begun: the head of the answer is sent, so that no other answer is possible.
        given: the answer, if the lane has begun it.
        more_headers: of the answer.
        status: of the answer; 0: not set yet.
        sent_bytes: of the answer's body.
        task: answers the request; cancelled when the client disconnects.
        socket: the WebSocket that the connection has become; None: it uses HTTP.
    """

    connection: HttpConnection
    method: str = ""
    path: str = ""
    raw_path: str = ""
    query: str = ""
    said: Headers
    has_more: bool = True
    body_error: HttpError | None = None
    keeps_alive: bool = True
    is_old: bool = False  # HTTP/1.0, which has no chunks
    is_expected: bool = False  # the caller waits for "100 Continue"
    is_begun: bool = False
    placed: memoryview | None = None
    given: Awaitable[WebResponse] | None = None
    more_headers: tuple[Header, ...] = ()
    status: int = 0
    sent_bytes: int = 0
    task: asyncio.Task[Any] | None = None
    socket: WebSocket | None = None
    _awaited: asyncio.Future[None] | None = None

    def __init__(self) -> None:
        self.fields: list[Header] = []
        self.body: bytearray = bytearray()
        self.said = {}

    # The body -----------------------------------------------------------------------------

    def take_body(self) -> Body | None:
        """Return the body; None if it must be awaited."""
        return None if self.has_more or self.is_expected else self._taken()

    async def receive(self, place: memoryview) -> None:
        """Receive a body of a declared length in `place`, which has that size. Raises HttpError."""
        self._expect()
        self.connection.receive(self, place)
        await self._more_until(lambda: not self.has_more)

    async def next_piece(self) -> bytes:
        """Return the next piece of the body; b"": the end. Raises HttpError."""
        self._expect()
        await self._more_until(lambda: bool(self.body) or not self.has_more)
        return bytes(self._taken())

    def _expect(self) -> None:
        if self.is_expected:
            self.is_expected = False
            self.connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def _more_until(self, is_there: Callable[[], bool]) -> None:
        """Wait for more of the body. Raises HttpError: it will not arrive."""
        while not is_there():
            if self.body_error is not None:
                error, self.body_error = self.body_error, None
                try:
                    raise error
                finally:
                    del error  # its traceback refers to this frame: the cycle would keep the body
            if self.connection.has_left:
                raise asyncio.CancelledError
            await self._news()

    def _taken(self) -> Body:
        if self.placed is not None:
            placed, self.placed = self.placed, None
            return placed
        body = bytes(self.body)
        self.body.clear()
        self.connection.pace()
        return body

    async def _news(self) -> None:
        self._awaited = asyncio.get_running_loop().create_future()
        await self._awaited

    def has_come(self) -> None:
        """Note that the whole body has arrived."""
        self.has_more = False
        self.wake()

    def wake(self) -> None:
        """Wake the task, because more of the body arrived or the client reads again."""
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)

    # The answer ---------------------------------------------------------------------------

    async def answer(self, reply: WebResponse) -> None:
        """Answer, in one packet if the body is short.

        On loopback a packet costs as much as all of our own work for a request.
        """
        connection, body = self.connection, reply.body
        self.status, self.sent_bytes = reply.status, 0 if self.method == "HEAD" else reply.size
        await self._drained()
        if connection.has_left:
            return
        self.is_begun = True
        self.keeps_alive &= not (self.has_more or connection.is_last)
        head = connection.listener.head(reply, not self.keeps_alive, *self.more_headers)
        head = b"%b%d\r\n\r\n" % (head, reply.size)
        if self.method == "HEAD":
            connection.transport.write(head)
        elif reply.tail:
            connection.transport.writelines((head, body, *reply.tail))
        elif len(body) <= SHORT_BYTES:
            connection.transport.write(head + body)
        else:
            connection.transport.write(head)
            await self._write_in_slices(body)
        if not connection.has_left:
            connection.ended(self)

    async def answer_in_pieces(self, reply: WebStream) -> None:
        """Answer with a stream, each piece as soon as it is ready."""
        connection = self.connection
        async with contextlib.aclosing(reply.pieces) as pieces:
            async for piece in pieces:
                head = b"" if self.is_begun else self._begin_pieces(reply)
                if len(piece) <= SHORT_BYTES:
                    self.send(piece, head)
                else:
                    await self._send_large(piece, head)
                if connection.is_full:
                    await self._drained()
                if connection.has_left:
                    return
        head = b"" if self.is_begun else self._begin_pieces(reply)
        connection.transport.write(head + (b"" if self.is_old else b"0\r\n\r\n"))
        self.keeps_alive &= not connection.is_last
        connection.ended(self)

    def send(self, piece: bytes, head: bytes = b"") -> bool:
        """Send a short piece of the answer's body; return whether there is room for more."""
        connection = self.connection
        self.sent_bytes += len(piece)
        if piece:
            head += piece if self.is_old else b"%x\r\n%b\r\n" % (len(piece), piece)
        if head and not connection.transport.is_closing():
            connection.transport.write(head)
        return not (connection.is_full or connection.has_left)

    async def _send_large(self, piece: bytes, head: bytes) -> None:
        write, is_chunked = self.connection.transport.write, not self.is_old
        self.sent_bytes += len(piece)
        write(head + (b"%x\r\n" % len(piece) if is_chunked else b""))
        await self._write_in_slices(piece)
        write(b"\r\n" if is_chunked else b"")

    def _begin_pieces(self, reply: WebStream) -> bytes:
        """Return the head of the answer; from here on no other answer is possible."""
        self.is_begun, self.status = True, reply.status
        self.keeps_alive &= not self.has_more  # the rest of the body will not be read
        head = self.connection.listener.head(reply, not self.keeps_alive, *self.more_headers)
        if reply.begun is not None:
            reply.begun(self.send)
        end = b"\r\n" if self.is_old else b"transfer-encoding: chunked\r\n\r\n"
        return head.removesuffix(_LENGTH) + end

    async def upgrade(self, reply: WebUpgrade) -> None:
        """Leave HTTP: the connection is a WebSocket until it ends."""
        connection = self.connection
        self.is_begun, self.status, self.keeps_alive = True, HTTPStatus.SWITCHING_PROTOCOLS, False
        self.socket = WebSocket(self, reply.most_bytes)
        connection.transport.write(reply.head)
        connection.transport.set_protocol(
            self.socket
        )  # clients wait for the head: nothing has arrived
        await reply.run(self.socket)
        await self.socket.end()

    async def _drained(self) -> None:
        """Wait until the client has read most of the output, or has disconnected."""
        while self.connection.is_full and not self.connection.has_left:
            await self._news()

    async def _write_in_slices(self, data: bytes) -> None:
        """Write as fast as the client reads, until it disconnects."""
        connection, view = self.connection, memoryview(data)
        for at in range(0, len(view), SLICE_BYTES):
            await self._drained()
            if connection.has_left:
                return
            connection.transport.write(view[at : at + SLICE_BYTES])
