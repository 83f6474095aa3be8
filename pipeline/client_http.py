"""Calls over HTTP for both clients, in the form of gRPC's channels: a connection for each call.

The answer in parts is read as server-sent events, whose last one says that all came.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import re
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Self

from pipeline.errors import (
    ClosedError,
    ConfigError,
    DeadlineError,
    NotImplementedByOpError,
    PackageError,
    PipelineError,
    TooLargeError,
    error_from_wire,
    one_line,
)
from pipeline.proto.http import EVENTS, HttpReader, header_line
from pipeline.proto.pipeline.json import request_to_json, response_from_json
from pipeline.proto.pipeline_service_pb2 import Request, Response
from pipeline.proto.targets import host_and_port

SCHEME = "http://"

_PATH = re.compile(r"[\w.~!$&'()*+,;=:@%/-]+", re.ASCII)


class HttpService(NamedTuple):
    """A service behind one endpoint."""

    host: str
    port: int
    path: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{SCHEME}{host}:{self.port}{self.path}"


def is_http(endpoints: str | Sequence[str]) -> bool:
    """Return whether any of the endpoints is for a call over HTTP."""
    names = [endpoints] if isinstance(endpoints, str) else endpoints
    return any(isinstance(name, str) and "://" in name for name in names)


def services_of(endpoints: str | Sequence[str]) -> list[HttpService]:
    """Return the endpoints' services. Raises ConfigError; TypeError: one is not a text."""
    names = [endpoints] if isinstance(endpoints, str) else endpoints
    return [_service(name) for name in names]


def _service(name: object) -> HttpService:
    if not isinstance(name, str):
        raise TypeError(f"an endpoint must be text, but get {name!r}")
    address, _, path = name.removeprefix(SCHEME).partition("/")
    service, _, method = path.partition("/")
    if not name.startswith(SCHEME) or not service or not _PATH.fullmatch(path):
        raise ConfigError(
            f"endpoint {name!r}: write http://host:port/<name of the service>, all of them so"
        )
    return HttpService(*host_and_port(address), f"/{service}/{method or 'prediction'}")


class HttpAnswer(HttpReader):
    """Reader of what a connection brings: bytes in, Responses out.

    Args:
        service: who answers.
        most_bytes: of one part.

    Attributes:
        parts: Responses that came and were not taken.
        is_over: nothing follows them.
    """

    def __init__(self, service: HttpService, most_bytes: int) -> None:
        super().__init__(service, most_bytes)
        self.parts: deque[Response] = deque()
        self.is_over: bool = False
        self._service = service

    def take(self, data: bytes) -> None:
        """Take what was received; b"": the peer has closed. Raises PipelineError."""
        super().take(data)
        if self.kind == EVENTS and self.status == 200:
            self._read_events()
        elif self.is_whole:
            self._read_one()
        self.check_size(self.body)
        if not self.is_over and (self.is_whole or not data):
            raise ClosedError(f"{self._service}: the answer was cut off")

    def _read_events(self) -> None:
        for name, data in self.events():
            if name == b"end":
                self.is_over = True
            elif data:
                self.parts.append(self._response(data))
                self.is_over = name == b"error"
            if self.is_over:
                return

    def _read_one(self) -> None:
        """Read an answer that does not come in parts: the only one, or a refusal."""
        status = self.status
        is_good = 200 <= status < 300
        text = one_line(self.body[:1000].decode("utf-8", "replace"))
        try:
            response = self._response(bytes(self.body))
        except PackageError:
            if is_good:
                raise
            raise ClosedError(f"{self._service} answered {status}: {text}") from None
        if not is_good:
            if response.err_no:
                raise error_from_wire(response.err_no, response.err_msg)
            raise ClosedError(f"{self._service} answered {status}: {text}")
        self.parts.append(response)
        self.is_over = True

    def _response(self, body: bytes) -> Response:
        self.check_size(body)
        try:
            return response_from_json(body)
        except PackageError as error:
            raise PackageError(f"{self._service} answered with no Response: {error}") from None


_JSON = "application/json"
_RECEIVED_BYTES = 65536
_CONNECT_TIMEOUT_S = 20.0  # gRPC's
_CLOCKS_DIFFER_S = 0.1
_MOST_MS = 10**8 - 1  # a Grpc-Timeout has 8 digits

Metadata = Iterable[tuple[str, str]] | None


class _Channel:
    """Base of both kinds of channel: services that are asked in turn, and their open calls."""

    def __init__(self, services: Sequence[HttpService], most_bytes: int) -> None:
        self._services = services
        self._most_bytes = most_bytes
        self._turn = itertools.count()
        self._calls: weakref.WeakSet[Any] = weakref.WeakSet()
        self._is_closed = False
        self._lock = threading.Lock()

    def _begun(self, call: Any, accept: str, request: Request, metadata: Metadata) -> Any:
        """Have `call` begin; returns it."""
        first = next(self._turn) % len(self._services)
        with self._lock:
            if self._is_closed:
                raise ClosedError("the client was closed")
            self._calls.add(call)
        body = request_to_json(request)
        if len(body) > self._most_bytes:
            raise TooLargeError(f"the request is larger than max_message_bytes, {self._most_bytes}")
        call.services = [*self._services[first:], *self._services[:first]]
        call.head = _head_of(accept, len(body), call.left_s(), metadata)
        call.body = body
        call.most_bytes = self._most_bytes
        return call

    def _end(self) -> None:
        with self._lock:
            self._is_closed = True
            calls = list(self._calls)
        for call in calls:
            call.cancel()


class _Call:
    """Base of both kinds of call: a request, who may be asked, and until when."""

    def __init__(self, timeout: float | None) -> None:
        self.services: list[HttpService] = []
        self.head = self.body = b""
        self.most_bytes = 0
        self._ends = math.inf if timeout is None else time.monotonic() + timeout
        self._is_cancelled = False
        self._answer: HttpAnswer | None = None

    def left_s(self) -> float | None:
        """Return the time left, in s; None: there is no deadline. Raises DeadlineError."""
        if self._ends == math.inf:
            return None
        left_s = self._ends - time.monotonic()
        if left_s <= 0:
            raise _too_late()
        return left_s

    def _asking(self, service: HttpService) -> bytes:
        """Return what is sent to `service`, which now is the one that answers."""
        self._answer = HttpAnswer(service, self.most_bytes)
        return b"POST %b HTTP/1.1\r\nhost: %b\r\n%b%b" % (
            service.path.encode(),
            str(service)[len(SCHEME) :].partition("/")[0].encode(),
            self.head,
            self.body,
        )

    def _failed(self, error: Exception) -> Exception:
        """Return the error that the caller receives."""
        if self._is_cancelled:
            return ClosedError("the call was cancelled")
        if isinstance(error, TimeoutError) and self._ends - time.monotonic() < _CLOCKS_DIFFER_S:
            return _too_late()
        if isinstance(error, OSError):
            return ClosedError(f"{self.services[0]} cannot be reached, or went away: {error}")
        return error


def _too_late() -> DeadlineError:
    return DeadlineError("Deadline Exceeded: the answer did not come in the time given")


def _no_answer(service: HttpService) -> ClosedError:
    return ClosedError(f"{service} answered with no part at all")


def _head_of(accept: str, length: int, left_s: float | None, metadata: Metadata) -> bytes:
    """Return the header fields of a request, and the line behind them.

    Raises TypeError: the metadata are not valid.
    """
    fields = [("accept", accept), ("content-type", _JSON), ("content-length", str(length))]
    fields += [("connection", "close"), *(metadata or ())]
    if left_s is not None:
        left_ms = math.ceil(left_s * 1000)
        text = f"{left_ms}m" if left_ms <= _MOST_MS else f"{min(left_ms // 1000, _MOST_MS)}S"
        fields.append(("grpc-timeout", text))
    try:
        return b"".join(header_line(name, value) for name, value in fields) + b"\r\n"
    except ValueError as error:
        raise TypeError(f"the metadata cannot be sent: {error}") from None


# With threads -------------------------------------------------------------------------------


class HttpChannel(_Channel):
    """A channel whose calls wait in their caller's thread."""

    def unary_unary(self, path: str, **forms: Any) -> HttpUnary:
        """Return what makes calls with one answer."""
        return HttpUnary(self._call)

    def unary_stream(self, path: str, **forms: Any) -> Callable[..., HttpCall]:
        """Return what makes calls whose answer comes in parts."""
        return self._stream

    def close(self) -> None:
        """End all calls under way."""
        self._end()

    def _stream(self, request: Request, timeout: float | None, metadata: Metadata) -> HttpCall:
        return self._call(EVENTS, request, timeout, metadata)

    def _call(
        self, accept: str, request: Request, timeout: float | None, metadata: Metadata
    ) -> HttpCall:
        call: HttpCall = self._begun(HttpCall(timeout), accept, request, metadata)
        call.begin()
        return call


class HttpUnary:
    """Makes calls with one answer."""

    def __init__(self, call: Callable[..., HttpCall]) -> None:
        self._call = call

    def __call__(self, request: Request, timeout: float | None, metadata: Metadata) -> Response:
        with contextlib.closing(self._call(_JSON, request, timeout, metadata)) as call:
            for part in call:
                return part
            raise _no_answer(call.services[0])

    def future(self, request: Request, timeout: float | None, metadata: Metadata) -> Any:
        """Refuse: nobody would wait for the answer."""
        raise NotImplementedByOpError(
            "asyn=True is for gRPC's endpoints: over HTTP there is AsyncPipelineClient, or a thread"
        )


class HttpCall(_Call):
    """An iterator of the parts of an answer."""

    def __init__(self, timeout: float | None) -> None:
        super().__init__(timeout)
        self._socket: socket.socket | None = None
        self._failure: Exception | None = None
        self._reading = threading.Lock()

    def begin(self) -> None:
        """Send the request to the first service that answers. `next` raises the errors."""
        try:
            service, self._socket = self._connected()
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            asking = self._asking(service)
            self._socket.settimeout(self.left_s())
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._socket.sendall(asking)  # it may be refused before all of it was read
        except (OSError, PipelineError) as error:
            self._failure = error

    def _connected(self) -> tuple[HttpService, socket.socket]:
        failure: OSError | None = None
        for service in self.services:
            most_s = min(self.left_s() or _CONNECT_TIMEOUT_S, _CONNECT_TIMEOUT_S)
            try:
                return service, socket.create_connection((service.host, service.port), most_s)
            except OSError as error:
                failure = failure or error
        assert failure is not None
        raise failure

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Response:
        with self._reading:
            try:
                return self._next()
            except (OSError, PipelineError) as error:
                self._close()
                raise self._failed(error) from None
            except StopIteration:
                self._close()
                raise

    def _next(self) -> Response:
        if self._failure is not None:
            raise self._failure
        answer = self._answer
        assert answer is not None
        while not answer.parts:
            if answer.is_over:
                raise StopIteration
            if self._socket is None or self._is_cancelled:
                raise ClosedError("the call has ended")
            self._socket.settimeout(self.left_s())
            answer.take(self._socket.recv(_RECEIVED_BYTES))
            if answer.is_over:
                self._close()
        return answer.parts.popleft()

    def cancel(self) -> None:
        """Hang up; who reads meanwhile gets an error."""
        self._is_cancelled = True
        connected = self._socket
        if connected is not None:
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
        if self._reading.acquire(blocking=False):  # else the one who reads closes it
            self._close()
            self._reading.release()

    close = cancel

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


# With asyncio -------------------------------------------------------------------------------


class AsyncHttpChannel(_Channel):
    """A channel whose calls are awaited."""

    def unary_unary(self, path: str, **forms: Any) -> Callable[..., Any]:
        """Return what makes calls with one answer."""
        return self._unary

    def unary_stream(self, path: str, **forms: Any) -> Callable[..., AsyncHttpCall]:
        """Return what makes calls whose answer comes in parts."""
        return self._stream

    async def close(self) -> None:
        """End all calls under way."""
        self._end()

    async def _unary(
        self,
        request: Request,
        timeout: float | None,  # noqa: ASYNC109 - the call's deadline
        metadata: Metadata,
    ) -> Response:
        call = self._call(_JSON, request, timeout, metadata)
        try:
            part = await call.read()
            if part is None:
                raise _no_answer(call.services[0])
            return part
        finally:
            call.cancel()

    def _stream(self, request: Request, timeout: float | None, metadata: Metadata) -> AsyncHttpCall:
        return self._call(EVENTS, request, timeout, metadata)

    def _call(
        self, accept: str, request: Request, timeout: float | None, metadata: Metadata
    ) -> AsyncHttpCall:
        call: AsyncHttpCall = self._begun(AsyncHttpCall(timeout), accept, request, metadata)
        call.begin()
        return call


class AsyncHttpCall(_Call):
    """The parts of an answer, each by `read`."""

    def __init__(self, timeout: float | None) -> None:
        super().__init__(timeout)
        self._opened: asyncio.Task[asyncio.StreamReader] | None = None
        self._writer: asyncio.StreamWriter | None = None

    def begin(self) -> None:
        """Begin to send the request. `read` raises the errors."""
        self._opened = asyncio.ensure_future(self._open())
        self._opened.add_done_callback(_note)

    async def _open(self) -> asyncio.StreamReader:
        failure: Exception | None = None
        for service in self.services:
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                    reader, writer = await asyncio.open_connection(service.host, service.port)
            except OSError as error:
                failure = failure or error
                continue
            self._writer = writer
            writer.write(self._asking(service))
            return reader
        assert failure is not None
        raise failure

    async def read(self) -> Response | None:
        """Return the next part; None: there is none."""
        try:
            async with asyncio.timeout(self.left_s()):
                return await self._next()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            is_ours = self._is_cancelled and not (task and task.cancelling())
            self.cancel()
            if is_ours:  # another task has cancelled the call meanwhile
                raise ClosedError("the call was cancelled") from None
            raise
        except (OSError, PipelineError) as error:
            failure = self._failed(error)
            self.cancel()
            raise failure from None

    async def _next(self) -> Response | None:
        assert self._opened is not None
        reader = await self._opened
        answer = self._answer
        assert answer is not None
        while not answer.parts:
            if answer.is_over:
                return None
            if self._is_cancelled:
                raise ClosedError("the call has ended")
            answer.take(await reader.read(_RECEIVED_BYTES))
            if answer.is_over and self._writer is not None:
                self._writer.transport.abort()
        return answer.parts.popleft()

    def cancel(self) -> None:
        """Hang up; who reads meanwhile gets an error."""
        self._is_cancelled = True
        if self._writer is not None:
            self._writer.transport.abort()
        elif self._opened is not None:
            self._opened.cancel()


def _note(opened: asyncio.Task[Any]) -> None:
    """Retrieve a task's exception, so that asyncio does not log it."""
    if not opened.cancelled():
        opened.exception()
