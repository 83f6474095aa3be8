"""LinkFrontend: our own gateway's requests on a Unix socket, many in flight on one connection."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

from pipeline.data import RequestInfo
from pipeline.engine.request import Begin, RequestHandle, RequestTarget, UnarySink
from pipeline.errors import (
    ClosedError,
    DeadlineError,
    OverloadedError,
    PackageError,
    PipelineError,
    TooLargeError,
    UserCodeError,
    utf8_text,
)
from pipeline.frontends.base import HeaderForwarding, no_response
from pipeline.frontends.link import frames
from pipeline.frontends.link.frames import BrokenError, Inbox, LinkFrame, Outbox
from pipeline.frontends.listen import BACKLOG, UNIX, bind
from pipeline.frontends.wire import PipelineWire
from pipeline.proto.pipeline.large import LargeResponse
from pipeline.proto.pipeline_service_pb2 import Response
from pipeline.proto.slices import SHORT_BYTES

_LOGGER = logging.getLogger(__name__)

_MAX_SECONDS = 0xFFFF
_LARGEST = 2**31 - 1  # of protobuf's messages: the gateway has its own limit, for what it is sent
_OVERHEAD = frames.HEAD.size + frames.ASKED.size + 0xFFFF
_NS_PER_S = 1e9
_SIZE_BYTES = 2  # before the headers
_CHECK_INTERVAL_S = 5.0  # in which a gateway says something
_MAX_SILENT_CHECKS = 3  # in a row that find nothing: it is gone
_STATUSES: tuple[tuple[type[PipelineError], int], ...] = (
    (OverloadedError, 503),
    (TooLargeError, 413),
    (PackageError, 400),
)


class SocketPaths(NamedTuple):
    """The paths at which one process of a server listens for its ingress."""

    link: Path
    http: Path


def socket_paths(folder: Path, replica: int) -> SocketPaths:
    """Return those of the replica of this number, 0 for a server without replicas."""
    return SocketPaths(folder / f"{replica}.link", folder / f"{replica}.http")


class LinkFrontend:
    """A Unix socket at which gateways reach an engine.

    Args:
        begin: has a Request answered with a Response.
        path: of the socket, which takes the place of what is there.
        takes_trace: `begin` is told the caller's traceparent.
        max_message_bytes: limit of a Request; what is around it has its own.
        wire: reads and writes the messages.
        forwarding: the headers that `begin` is told; None: none, and gateways do not send them.
    """

    port = 0

    def __init__(
        self,
        begin: Begin,
        path: Path,
        takes_trace: bool = False,
        max_message_bytes: int = _LARGEST,
        wire: PipelineWire | None = None,
        forwarding: HeaderForwarding | None = None,
    ) -> None:
        self._service = _Service(begin, takes_trace, wire or PipelineWire(), forwarding)
        self._path = path
        self._max_bytes = max_message_bytes + _OVERHEAD
        self._is_ready = False
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    async def start(self, is_ready: bool = False) -> None:
        """Bind and listen. InitError: there cannot be a socket at the path."""
        self._is_ready = is_ready
        self._socket = bind(f"{UNIX}{self._path}", 0, "http_server")
        self._server = await asyncio.get_running_loop().create_unix_server(
            self.accept, sock=self._socket, backlog=BACKLOG
        )

    def accept(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        return _Connection(
            self._service, self._max_bytes, self._connections, lambda: self._is_ready
        )

    async def set_ready(self, ready: bool) -> None:
        """Tell every gateway."""
        self._is_ready = ready
        for connection in self._connections:
            connection.tell_ready(ready)

    async def drain(self) -> None:
        """Tell every gateway that the server is not ready."""
        await self.set_ready(False)

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop accepting connections; those that there are go on."""
        if self._server is not None:
            self._server.close()
        if self._socket is not None:
            self._socket.close()

    async def stop(self, grace_s: float = 1.0) -> None:
        """End all connections; what is not answered after `grace_s` is refused."""
        await self.close(grace_s)
        busy = [connection.when_idle() for connection in self._connections if connection.calls]
        if busy:
            await asyncio.wait(busy, timeout=grace_s)
        leaving = list(self._connections)
        for connection in leaving:
            connection.refuse_all(ClosedError("the server has stopped"))
        if leaving:
            await asyncio.wait([connection.lost for connection in leaving], timeout=grace_s)
        for connection in leaving:
            connection.transport.abort()  # its gateway does not read


def _failure(status: int, error: PipelineError) -> bytes:
    """Return the body of a FAILURE."""
    retry_after_s = error.retry_after_s if isinstance(error, OverloadedError) else 0
    head = frames.FAILED.pack(status, error.code, min(retry_after_s, _MAX_SECONDS))
    return head + utf8_text(str(error)).encode()


class _Service(NamedTuple):
    """The engine, and how its messages are read and written."""

    begin: Begin
    takes_trace: bool
    wire: PipelineWire
    forwarding: HeaderForwarding | None


class _Call(UnarySink):
    """One request of a gateway, and the sink of its answer; `number` is its id."""

    __slots__ = ("_connection", "_loop", "_number", "_service", "_work")

    def __init__(self, connection: _Connection, number: int) -> None:
        self._connection = connection
        self._number = number
        self._service = connection.service
        self._loop = connection.loop
        self._work: RequestHandle | None = None  # what goes on for it now

    def ask(
        self, pieces: list[bytes], timeout_s: float | None, trace: str, info: RequestInfo | None
    ) -> None:
        """Begin a request of any size."""
        is_large = len(pieces) > 1 or len(pieces[0]) > SHORT_BYTES
        target = None
        if is_large or trace or info is not None:
            target = RequestTarget(traceparent=trace, is_large=is_large, info=info)
        if is_large:
            self._work = self._loop.create_task(self._read_large(pieces, timeout_s, target))
            return
        try:
            self._begin(self._service.wire.read(pieces.pop()), timeout_s, target)
        except Exception as error:
            self._fail(error)

    async def _read_large(
        self, pieces: list[bytes], timeout_s: float | None, target: RequestTarget | None
    ) -> None:
        try:
            request, left_s = await self._service.wire.read_large(pieces, timeout_s)
            pieces.clear()
            self._begin(request, left_s, target)
        except Exception as error:
            self._fail(error)

    def _begin(self, request: Any, timeout_s: float | None, target: RequestTarget | None) -> None:
        self._work = None
        begun = self._service.begin(request, timeout_s, target, self)
        self._work = self._work or begun  # it may have ended by now, and be written

    def end(self, answer: Any) -> None:
        """Send the answer, as bytes of a Response."""
        try:
            if isinstance(answer, Response):
                self._send(frames.ANSWER, answer.SerializeToString())
            elif isinstance(answer, LargeResponse):
                self._work = self._loop.create_task(self._write_large(answer))
            else:
                self._send(frames.FAILURE, _failure(500, no_response(answer)))
        except Exception as error:
            self._fail(error)

    def _send(self, kind: int, body: bytes) -> None:
        self._connection.answer(self._number, kind, body)

    async def _write_large(self, answer: LargeResponse) -> None:
        try:
            self._send(frames.ANSWER, await self._service.wire.write_large(answer))
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, DeadlineError):
            self._send(frames.ANSWER, self._service.wire.write_error(error))
            return
        for kind, status in _STATUSES:
            if isinstance(error, kind):
                self._send(frames.FAILURE, _failure(status, error))
                return
        _LOGGER.exception("inference failed", exc_info=error)  # a bug of ours: that caller is told
        failure = _failure(500, UserCodeError("internal error of the server"))
        self._send(frames.FAILURE, failure)

    def cancel(self) -> None:
        """Stop what goes on for it: there is nobody to answer."""
        if self._work is not None:
            self._work.cancel()


class _Connection(asyncio.Protocol):
    """One gateway.

    It is not read from as long as it does not take its answers, and given up when it says nothing.

    Args:
        service: answers.
        max_bytes: of a message.
        register: where it is while it is open.
        is_ready: returns what it is told first; that may change before the connection is made.

    Attributes:
        calls: the requests that are in flight, by their ids.
        lost: done when the connection is closed.
    """

    transport: asyncio.Transport
    lost: asyncio.Future[None]
    _outbox: Outbox
    _timer: asyncio.TimerHandle

    def __init__(
        self,
        service: _Service,
        max_bytes: int,
        register: set[_Connection],
        is_ready: Callable[[], bool],
    ) -> None:
        self.service = service
        self._max_bytes = max_bytes
        self._register = register
        self._is_ready = is_ready
        self.calls: dict[int, _Call] = {}
        self._idle: asyncio.Future[None] | None = None
        self._inbox = Inbox()
        self._pieces: dict[int, list[bytes]] = {}  # of requests that have not arrived in whole
        self._was_heard = False  # since the last check_alive
        self._silent_checks = 0

    # What the event loop calls --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        self.loop = asyncio.get_running_loop()
        self._outbox = Outbox(self.loop, self.transport.write)
        self.lost = self.loop.create_future()
        self._register.add(self)
        self._timer = self.loop.call_later(_CHECK_INTERVAL_S, self.check_alive)
        self.tell_ready(self._is_ready())

    def data_received(self, data: bytes) -> None:
        self._was_heard = True
        try:
            self._inbox.take(data, self._take)
        except BrokenError as error:
            self._give_up(str(error))

    def pause_writing(self) -> None:
        if not self._outbox.has_large:  # which fill the connection as long as there are some
            self.transport.pause_reading()
        self._outbox.pause()

    def resume_writing(self) -> None:
        self.transport.resume_reading()
        self._outbox.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._register.discard(self)
        self.lost.set_result(None)
        self._outbox.clear()
        self._pieces.clear()
        for call in self.calls.values():
            call.cancel()
        self.calls.clear()
        self._check_idle()

    def check_alive(self) -> None:
        """Give the gateway up if it has said nothing at several checks: one may be late itself."""
        self._silent_checks = 0 if self._was_heard else self._silent_checks + 1
        self._was_heard = False
        if self._silent_checks >= _MAX_SILENT_CHECKS:
            self._give_up(f"it has said nothing for {_CHECK_INTERVAL_S * _MAX_SILENT_CHECKS:g} s")
        else:
            self._timer = self.loop.call_later(_CHECK_INTERVAL_S, self.check_alive)

    def _give_up(self, why: str) -> None:
        _LOGGER.warning("a gateway's connection is closed: %s", why)
        self.transport.abort()

    # Frames -----------------------------------------------------------------------------------

    def _take(self, frame: LinkFrame) -> None:
        kind, number, body = frame
        if kind == frames.ASK:
            pieces = self._pieces.pop(number, [])
            pieces.append(body)
            self._ask(number, pieces)
        elif kind == frames.MORE:
            pieces = self._pieces.setdefault(number, [])
            pieces.append(body)
            if (size := len(pieces) * frames.PIECE_BYTES) > self._max_bytes:
                raise BrokenError(f"a message of {size} bytes")
        elif kind == frames.PING:
            self._outbox.send(frames.PONG, number, b"")
        else:
            self._pieces.pop(number, None)
            self._outbox.drop(number)
            if (call := self.calls.pop(number, None)) is not None:
                call.cancel()
                self._check_idle()

    def _ask(self, number: int, pieces: list[bytes]) -> None:
        first = pieces[0]
        message = frames.ASKED.size
        if message > len(first):
            raise BrokenError(f"a request of {len(first)} bytes")
        timeout_ns, trace_size = frames.ASKED.unpack_from(first)
        traceparent = ""
        if trace_size:
            message += trace_size
            if message > len(first):
                raise BrokenError(
                    f"a traceparent of {trace_size} bytes in {len(first) - frames.ASKED.size}"
                )
            if self.service.takes_trace:
                traceparent = first[frames.ASKED.size : message].decode("latin-1")
        info = None
        if (forwarding := self.service.forwarding) is not None:
            start = message + _SIZE_BYTES
            message = start + int.from_bytes(first[message:start])
            if message > len(first):
                raise BrokenError(f"headers up to byte {message} of {len(first)}")
            texts = first[start:message].decode("latin-1").split("\n")
            info = forwarding.info(zip(texts[::2], texts[1::2], strict=False))
        if number in self.calls:
            raise BrokenError(f"the id {number} is in flight")
        timeout_s = None if timeout_ns < 0 else timeout_ns / _NS_PER_S
        pieces[0] = first[message:]
        call = self.calls[number] = _Call(self, number)
        call.ask(pieces, timeout_s, traceparent, info)

    def answer(self, number: int, kind: int, body: bytes) -> None:
        """Send the frame that ends a call."""
        if self.calls.pop(number, None) is not None:
            self._outbox.send(kind, number, body)
            self._check_idle()

    def _check_idle(self) -> None:
        if self._idle is not None and not self.calls and not self._idle.done():
            self._idle.set_result(None)

    def when_idle(self) -> asyncio.Future[None]:
        """Return what is done as soon as no request is in flight."""
        self._idle = self.loop.create_future()
        self._check_idle()
        return self._idle

    # What the gateway is told -----------------------------------------------------------------

    def tell_ready(self, ready: bool) -> None:
        """Send a READY."""
        version = frames.VERSION if self.service.forwarding is None else frames.HEADED_VERSION
        self._outbox.send(frames.READY, 0, frames.STATE.pack(version, ready))

    def refuse_all(self, error: PipelineError) -> None:
        """Refuse what is not answered yet, and close when that is sent."""
        refusal = _failure(503, error)
        for number, call in self.calls.items():
            call.cancel()
            self._outbox.send(frames.FAILURE, number, refusal)
        self.calls.clear()
        self._outbox.empty()
        self.transport.close()
