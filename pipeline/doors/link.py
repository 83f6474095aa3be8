"""LinkDoor: our own gateway's requests on a Unix socket, many in flight on one connection.

All numbers are big-endian. A frame is

    u32 size of what follows, u8 kind, u64 id, body

and the bodies, first those from the gateway, then those to it, are

    1  ASK      i64 nanoseconds that the caller gives (negative: it did not say), u16 size of its
                traceparent, the traceparent, and a Request in protobuf
    2  CANCEL   empty; the caller of this id has left: there is no answer any more
    16 READY    u8 version of this format, u8 1 if the server is ready, else 0; the id is 0. The
                first frame of a connection, and one at every change
    17 ANSWER   a Response in protobuf
    18 FAILURE  u16 HTTP status, i32 err_no, and the text in UTF-8: what the HTTP door would say

Ids are the gateway's: any that is not in flight. Each is answered once, in any order.
pipeline/gateway/link.go has the other side.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from pathlib import Path
from typing import Any, cast

from pipeline.doors.door import Handle, no_response
from pipeline.doors.listen import BACKLOG, UNIX, bind
from pipeline.doors.wire import Wire
from pipeline.engine.request import Route
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
from pipeline.proto.large import LargeResponse
from pipeline.proto.pipeline_service_pb2 import Response
from pipeline.proto.slices import SHORT_BYTES

_LOGGER = logging.getLogger(__name__)

VERSION = 1

ASK, CANCEL = 1, 2
READY, ANSWER, FAILURE = 16, 17, 18

HEAD = struct.Struct(">IBQ")
ASKED = struct.Struct(">qH")  # what is before the traceparent
STATE = struct.Struct(">BB")
FAILED = struct.Struct(">Hi")

_COUNTED = HEAD.size - 4  # of the head; the size itself is not
_LARGEST = 2**31 - 1  # of protobuf's messages: the gateway has its own limit, for what it is sent
_OVERHEAD = HEAD.size + ASKED.size + 0xFFFF
_NS_PER_S = 1e9


class LinkDoor:
    """Serves `handle` to gateways on a Unix socket.

    Args:
        handle: answers a Request with a Response.
        path: of the socket, which takes the place of what is there.
        takes_trace: whether `handle` is told the caller's traceparent.
        max_message_bytes: limit of a Request; what is around it has its own.
        key: the configuration key to name in an error.
        wire: reads and writes the messages.
    """

    port = 0

    def __init__(
        self,
        handle: Handle,
        path: Path,
        takes_trace: bool = False,
        max_message_bytes: int = _LARGEST,
        key: str = "http_server",
        wire: Wire | None = None,
    ) -> None:
        self._service = _Service(handle, takes_trace, wire or Wire())
        self._path = path
        self._key = key
        self._max_bytes = max_message_bytes + _OVERHEAD
        self._is_ready = False
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    async def start(self, is_ready: bool = False) -> None:
        """Bind and listen. InitError: there cannot be a socket at the path."""
        self._is_ready = is_ready
        self._socket = bind(f"{UNIX}{self._path}", 0, self._key)
        self._server = await asyncio.get_running_loop().create_unix_server(
            self.accept, sock=self._socket, backlog=BACKLOG
        )

    def accept(self) -> asyncio.Protocol:
        """What serves a new connection."""
        return _Connection(self._service, self._max_bytes, self._connections, self._is_ready)

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
        calls = [call for connection in self._connections for call in connection.calls.values()]
        if calls:
            await asyncio.wait(calls, timeout=grace_s)
        leaving = list(self._connections)
        for connection in leaving:
            connection.part(ClosedError("the server has stopped"))
        if leaving:
            await asyncio.wait([connection.lost for connection in leaving], timeout=grace_s)
        for connection in leaving:
            connection.transport.abort()  # its gateway does not read


class _BrokenError(Exception):
    """What a peer sent is no frame."""


class _Failure(Exception):
    """A request that is answered with a FAILURE."""

    def __init__(self, status: int, error: PipelineError) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error

    def body(self) -> bytes:
        return FAILED.pack(self.status, self.error.code) + utf8_text(str(self.error)).encode()


class _Service:
    """What is behind the door: bytes of a Request -> bytes of a Response."""

    __slots__ = ("_handle", "_wire", "takes_trace")

    def __init__(self, handle: Handle, takes_trace: bool, wire: Wire) -> None:
        self._handle = handle
        self._wire = wire
        self.takes_trace = takes_trace

    async def answer(self, message: bytes, timeout_s: float | None, traceparent: str) -> bytes:
        """The Response. Raises _Failure, and whatever a bug raises."""
        try:
            if len(message) <= SHORT_BYTES:
                request: Any = self._wire.read(message)
                route = Route(traceparent=traceparent) if traceparent else None
            else:
                request, timeout_s = await self._wire.read_large(message, timeout_s)
                route = Route(traceparent=traceparent, is_large=True)
            del message
            if route is None:
                response = await self._handle(request, timeout_s)
            else:
                response = await self._handle(request, timeout_s, route)
        except OverloadedError as error:
            raise _Failure(503, error) from error
        except TooLargeError as error:
            raise _Failure(413, error) from error
        except DeadlineError as error:
            return self._wire.write_error(error)
        except PackageError as error:
            raise _Failure(400, error) from error
        if isinstance(response, Response):
            return response.SerializeToString()
        if not isinstance(response, LargeResponse):
            raise _Failure(500, no_response(response))
        return await self._wire.write_large(response)


class _Connection(asyncio.Protocol):
    """One gateway.

    It is not read from as long as it does not take its answers.

    Args:
        service: answers.
        max_bytes: of a frame.
        register: where it is while it is open.
        is_ready: what it is told first.

    Attributes:
        calls: the requests that are in flight, by their ids.
        lost: done when the connection is closed.
    """

    transport: asyncio.Transport
    lost: asyncio.Future[None]

    def __init__(
        self, service: _Service, max_bytes: int, register: set[_Connection], is_ready: bool
    ) -> None:
        self._service = service
        self._max_bytes = max_bytes
        self._register = register
        self._was_ready = is_ready
        self.calls: dict[int, asyncio.Task[None]] = {}
        self._rest = bytearray()  # of a frame that has not arrived in whole
        self._needed = 0  # bytes that it has to have
        self._unsent: list[bytes] = []

    # What the event loop calls --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        self._loop = asyncio.get_running_loop()
        self.lost = self._loop.create_future()
        self._register.add(self)
        self.tell_ready(self._was_ready)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data = bytes(self._rest)
        try:
            taken = self._take_frames(data)
        except _BrokenError as error:
            _LOGGER.warning("a gateway's connection is closed: %s", error)
            self.transport.abort()
            return
        if taken < len(data) or self._rest:
            self._rest = bytearray(data[taken:])

    def pause_writing(self) -> None:
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._register.discard(self)
        self.lost.set_result(None)
        self._unsent.clear()
        for call in self.calls.values():
            call.cancel()
        self.calls.clear()

    # Frames -----------------------------------------------------------------------------------

    def _take_frames(self, data: bytes) -> int:
        """Take the frames that are there in whole; how many bytes they have."""
        start, there = 0, len(data)
        while there - start >= HEAD.size:
            size, kind, number = HEAD.unpack_from(data, start)
            if kind not in (ASK, CANCEL) or not _COUNTED <= size <= self._max_bytes:
                raise _BrokenError(f"a frame of kind {kind} with {size} bytes")
            end = start + HEAD.size - _COUNTED + size
            if end > there:
                self._needed = end - start
                return start
            if kind == ASK:
                self._ask(number, data, start + HEAD.size, end)
            elif (call := self.calls.pop(number, None)) is not None:
                call.cancel()
            start = end
        self._needed = HEAD.size
        return start

    def _ask(self, number: int, data: bytes, start: int, end: int) -> None:
        message = start + ASKED.size
        if message > end:
            raise _BrokenError(f"a request of {end - start} bytes")
        timeout_ns, trace_size = ASKED.unpack_from(data, start)
        traceparent = ""
        if trace_size:
            trace, message = message, message + trace_size
            if message > end:
                raise _BrokenError(f"a traceparent of {trace_size} bytes in {end - trace}")
            if self._service.takes_trace:
                traceparent = data[trace:message].decode("latin-1")
        if number in self.calls:
            raise _BrokenError(f"the id {number} is in flight")
        timeout_s = None if timeout_ns < 0 else timeout_ns / _NS_PER_S
        call = self._serve(number, data[message:end], timeout_s, traceparent)
        self.calls[number] = self._loop.create_task(call)

    async def _serve(
        self, number: int, message: bytes, timeout_s: float | None, traceparent: str
    ) -> None:
        kind = FAILURE
        try:
            body = await self._service.answer(message, timeout_s, traceparent)
            kind = ANSWER
        except _Failure as failure:
            body = failure.body()
        except Exception as error:  # a bug of ours: that caller is told
            _LOGGER.exception("inference failed", exc_info=error)
            body = _Failure(500, UserCodeError("internal error of the server")).body()
        if self.calls.pop(number, None) is not None:
            self._send(kind, number, body)

    # What the gateway is told -----------------------------------------------------------------

    def tell_ready(self, ready: bool) -> None:
        """Send a READY."""
        self._send(READY, 0, STATE.pack(VERSION, ready))

    def part(self, error: PipelineError) -> None:
        """Refuse what is not answered yet, and close when that is sent."""
        refusal = _Failure(503, error).body()
        for number, call in self.calls.items():
            call.cancel()
            self._send(FAILURE, number, refusal)
        self.calls.clear()
        self._flush()
        self.transport.close()

    def _send(self, kind: int, number: int, body: bytes) -> None:
        """Send a frame, together with the others that get ready in this round of the loop."""
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(HEAD.pack(_COUNTED + len(body), kind, number) + body)

    def _flush(self) -> None:
        if self._unsent:
            self.transport.write(b"".join(self._unsent))
            self._unsent.clear()
