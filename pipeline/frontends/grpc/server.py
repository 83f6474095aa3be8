"""GrpcFrontend: a service on `grpc.aio`, with the standard health service and reflection."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol
from urllib.parse import unquote

import grpc
from grpc_health.v1 import health, health_pb2_grpc

from pipeline.answer_head import AnswerHead
from pipeline.engine.request import RequestHandle, ResponseSink
from pipeline.errors import (
    ClosedError,
    InitError,
    OverloadedError,
    PipelineError,
    UserCodeError,
    grpc_status_of,
)
from pipeline.frontends.grpc.calls import GrpcHealth, RunningCalls
from pipeline.frontends.grpc.guarded import FIRST_UNKNOWN, add_methods, new_server, version_of
from pipeline.frontends.grpc.reflection import add_reflection
from pipeline.frontends.grpc.sockets import GrpcSockets, end
from pipeline.frontends.listen import address_of, check_free
from pipeline.proto.slices import Piece

_LOGGER = logging.getLogger(__name__)
_GRPC_LOGGER = logging.getLogger("grpc._cython.cygrpc")

ERR_NO = "pipeline-err-no"
"""Trailing metadata of a status that stands for a PipelineError: its code, as `Response.err_no`."""

STATUS = "pipeline-status"
"""Trailing metadata of an answer whose head user code has set: its HTTP status."""

# gRPC's thread wakes the loop with one byte an event, and the loop reads one byte a round. If
# the loop closed before it has read them, the thread could block in its next write, and the code
# that drops gRPC's last object would wait for it forever: usually the process, at its end.
_WAKE_UPS = 1000  # more than the socket between them can hold
_DRAIN_TIMEOUT_S = 0.2  # for clients that were sent away to close their connections
RETRY_AFTER = "grpc-retry-pushback-ms"
"""Trailing metadata of a status that may be another one later: when, as gRPC's retries read it."""

_GRPCS_ERROR = "ExecuteBatchError"  # in a private module of gRPC
_DEPARTED = (
    "Failed sending error status from server",
    f"{_GRPCS_ERROR} raised in core by servicer method []",  # guarded.py: a path without a method
)
_MAX_METADATA = 65536  # bytes, the same as in the HTTP frontend: tokens are long
_MAX_DETAILS = 2000  # bytes of a status text: clients accept 8 KiB of headers in total
_Context = grpc.aio.ServicerContext[Any, Any]
_Failure = tuple[grpc.StatusCode, str, tuple[Any, ...]]


class GrpcError(Exception):
    """An error of a call with its own gRPC status.

    `err_no` if it is a PipelineError, `retry_after_s` if a later try may succeed, `head` if user
    code has set one.
    """

    def __init__(
        self,
        status: grpc.StatusCode,
        text: str,
        err_no: int | None = None,
        retry_after_s: int | None = None,
        head: AnswerHead | None = None,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.err_no = err_no
        self.retry_after_s = retry_after_s
        self.head = head

    @property
    def trailers(self) -> tuple[tuple[str, str], ...]:
        """Return its trailing metadata: names and values."""
        return trailing(self.err_no, self.retry_after_s, self.head)


class GrpcCall:
    """A call, for the method that answers it.

    `time_left` returns the seconds that the client still waits; None: without a limit.
    """

    __slots__ = ("_context", "time_left")

    takes_pieces: ClassVar[bool] = False
    """True if the answer may be a list: the pieces of a long message."""

    def __init__(self, context: _Context) -> None:
        self._context = context
        self.time_left: Callable[[], float | None] = context.time_remaining

    def header(self, name: str) -> str:
        """Return the client's metadata of this name, of several the last; "": missing."""
        value: str | bytes = ""
        for key, text in self.headers():
            value = text if key == name else value
        return value if isinstance(value, str) else value.decode("latin-1")

    def headers(self) -> Iterable[tuple[str, str | bytes]]:
        """Return the client's metadata."""
        return self._context.invocation_metadata() or ()

    def address(self) -> str:
        """Return the client's host and port; "" if it has none."""
        kind, _, address = self._context.peer().partition(":")
        return unquote(address) if kind.startswith("ip") else ""

    def take_head(self, head: AnswerHead) -> None:
        """Send the head that user code set, after the answer."""
        self._context.set_trailing_metadata(trailing(None, head=head))


Unary = Callable[[Any, GrpcCall], Awaitable[Any]]
"""From a message to the answer, in pieces only for a call that takes them. Raises GrpcError."""

Stream = Callable[[AsyncIterator[bytes], GrpcCall], AsyncGenerator[bytes, None]]
"""From an iterator of requests to one of answers, both as bytes. Raises GrpcError."""


Reply = bytes | list[Piece] | Awaitable[bytes | list[Piece]]
"""A message, in pieces only for a call that takes them."""


class DirectMethod(Protocol):
    """A unary method in two parts, which usually need no coroutine."""

    def begin(self, message: Any, call: GrpcCall, sink: ResponseSink) -> RequestHandle | None:
        """Begin a request that ends the sink; None: it needs the coroutine. Raises GrpcError.

        The message is bytes, or a view of memory that may be kept.
        """

    def reply(self, answer: Any, call: GrpcCall) -> Reply:
        """Return the reply for the answer that the sink got. Raises GrpcError."""


@dataclass(frozen=True, slots=True)
class GrpcService:
    """A service of a GrpcFrontend: its full name, with the package, and its methods by name.

    `direct`: some of the methods in the form for callers with a sink.
    """

    name: str
    methods: Mapping[str, Unary]
    streams: Mapping[str, Stream] = field(default_factory=dict)
    direct: Mapping[str, DirectMethod] = field(default_factory=dict)


def grpc_error(error: PipelineError) -> GrpcError:
    """Return `error` for a service whose answers have no field for a PipelineError."""
    status: grpc.StatusCode = grpc.StatusCode[grpc_status_of(error)]
    retry_after_s = error.retry_after_s if isinstance(error, OverloadedError) else None
    return GrpcError(status, str(error), error.code, retry_after_s, error.head)


class GrpcFrontend:
    """A gRPC server for `services` at `host:port`.

    Args:
        services: the services that it serves.
        host, port, is_shared, key: see `listen.bind`; after `start`, `port` is the real one.
        max_message_bytes: limit of a message, both ways.
    """

    def __init__(
        self,
        services: Sequence[GrpcService],
        host: str,
        port: int,
        max_message_bytes: int,
        is_shared: bool = False,
        key: str = "rpc_port",
    ) -> None:
        self.port: int = port
        self._is_shared = is_shared
        self._services = services
        self._host = host
        self._key = key
        self._max_message_bytes = max_message_bytes
        self._server: grpc.aio.Server | None = None
        self._running = RunningCalls()
        self._health = GrpcHealth([service.name for service in services], self._running.add)
        self._sockets = GrpcSockets()
        self._ending: asyncio.Future[None] | None = None
        self._log_filter = _DepartedPeers()

    async def start(self, is_ready: bool = False) -> None:
        """Bind and listen. Raises InitError if the address is in use."""
        _check_version(grpc.__version__)
        is_local = self._host.startswith("unix")
        if not is_local:
            # gRPC accepts either IPv6 or IPv4, and does not say why it got none.
            check_free(self._host, self.port, self._key, self._is_shared)
        _outlive_python()
        _GRPC_LOGGER.addFilter(self._log_filter)
        self._health.set_ready(is_ready)
        server = self._new_server()
        with self._sockets.opening():
            address = self._host if is_local else address_of(self._host, self.port)
            port = server.add_insecure_port(address)
        self.port = 0 if is_local else port
        self._server = server
        starting = asyncio.ensure_future(server.start())
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:  # a partly started server cannot be stopped
            await starting
            raise

    def _new_server(self) -> grpc.aio.Server:
        options = [
            ("grpc.max_receive_message_length", self._max_message_bytes),
            ("grpc.max_send_message_length", self._max_message_bytes),
            # By default it accepts at most 16 KiB, and above 8 KiB refuses some at random.
            ("grpc.max_metadata_size", _MAX_METADATA),
            ("grpc.absolute_max_metadata_size", _MAX_METADATA),
            # Otherwise a second server would silently share the port.
            ("grpc.so_reuseport", int(self._is_shared)),
        ]
        server = new_server(options)
        for service in self._services:
            add_methods(server, service.name, _handlers(service, self._running))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        ours = [service.name for service in self._services]
        add_reflection(server, (*ours, health.SERVICE_NAME))
        return server

    async def set_ready(self, ready: bool) -> None:
        """Update the health service, for the server as a whole and for our services."""
        self._health.set_ready(ready)

    async def drain(self) -> None:
        """Report NOT_SERVING, and send clients away when nothing runs on their connections."""
        self._health.set_ready(False)
        self._running.send_away(self._sockets)

    async def close(self, grace_s: float) -> None:
        """Stop accepting, send clients away as before, and end streams. Waits for no call."""
        self._health.close()
        await self._sockets.stop_listening()
        if not self._running.is_closing:
            self._running.end_streams()
            self._running.send_away(self._sockets)

    async def stop(self, grace_s: float) -> None:
        """End the calls that are active after `grace_s`, and those of reflection at once."""
        await self.close(grace_s)
        if self._server is not None:
            await self._running.wait(grace_s)
            await self._sockets.wait_closed(min(_DRAIN_TIMEOUT_S, grace_s))
            if self._ending is None:
                self._ending = asyncio.ensure_future(self._end(self._server))
            await asyncio.shield(self._ending)
        _GRPC_LOGGER.removeFilter(self._log_filter)

    async def _end(self, server: grpc.aio.Server) -> None:
        """Close all open parts, once: gRPC may free what two parallel ends use."""
        for _, connection in self._sockets.connections():
            end(connection)
        await server.stop(None)
        self._sockets.forget()
        for _ in range(_WAKE_UPS):
            await asyncio.sleep(0)
        self._server = None


def _check_version(version: str) -> None:
    """Raise InitError for a version of gRPC whose port a peer may be able to close."""
    if version_of(version) >= FIRST_UNKNOWN:
        limit = ".".join(map(str, FIRST_UNKNOWN))
        raise InitError(
            f"grpcio {version} was not tried: a peer may be able to close the port of its servers. "
            f"Install grpcio<{limit}, or set `edge: gateway`."
        )


def _outlive_python() -> None:
    """Keep gRPC's asyncio objects alive when the process ends.

    They are freed after Python has stopped all other threads. When the last one is freed, gRPC
    waits for one of its own threads, sometimes forever.
    """
    atexit.unregister(_use_grpc_for_ever)
    atexit.register(_use_grpc_for_ever)


def _use_grpc_for_ever() -> None:
    with contextlib.suppress(RuntimeError):  # there are no objects, or no thread can be started
        grpc.aio.init_grpc_aio()


def _handlers(
    service: GrpcService, running: RunningCalls
) -> dict[str, grpc.RpcMethodHandler[bytes, bytes]]:
    """Return handlers of bytes: gRPC logs each broken message with a traceback."""
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        name: grpc.unary_unary_rpc_method_handler(_answering(name, method, running), None, None)
        for name, method in service.methods.items()
    }
    for name, stream in service.streams.items():
        answering = _streaming(name, stream, running)
        handlers[name] = grpc.stream_stream_rpc_method_handler(answering, None, None)
    return handlers


def _answering(name: str, method: Unary, running: RunningCalls) -> Any:
    async def reply(message: bytes, context: _Context) -> bytes:
        running.add(context)
        try:
            answer: bytes = await method(message, GrpcCall(context))  # a call without pieces
            return answer
        except Exception as error:
            failure = _failure(name, error)
        del message  # gRPC keeps the exception, and so this frame
        await _abort(context, failure)
        return b""

    return reply


def _streaming(name: str, stream: Stream, running: RunningCalls) -> Any:
    async def answer(messages: AsyncIterator[bytes], context: _Context) -> None:
        running.add(context)
        requests = running.read(messages)
        try:
            async with contextlib.aclosing(stream(requests, GrpcCall(context))) as answers:
                async for message in answers:
                    await context.write(message)  # with `yield`, gRPC logs a peer that has left
            if not requests.is_cut:
                return
            failure = _failure(name, grpc_error(ClosedError("the server has stopped")))
        except Exception as error:
            if context.cancelled() or _is_of_grpc(error):  # the client has left
                return
            failure = _failure(name, error)
        await _abort(context, failure)

    return answer


async def _abort(context: _Context, failure: _Failure) -> None:
    """Answer with a failure; do not log a peer that has left."""
    try:
        await context.abort(*failure)
    except Exception as error:
        if not _is_of_grpc(error):  # gRPC's own exception ends the method
            raise


def _failure(name: str, error: Exception) -> _Failure:
    """Return the status, text and trailing metadata for an error of a method."""
    if isinstance(error, GrpcError):
        return error.status, _short(str(error)), error.trailers
    _LOGGER.exception("%s failed", name, exc_info=error)  # a bug in this library
    text = "internal error of the server"
    return grpc.StatusCode.INTERNAL, text, trailing(UserCodeError.code)


def trailing(
    err_no: int | None, retry_after_s: int | None = None, head: AnswerHead | None = None
) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata of an answer: names and values."""
    metadata: list[tuple[str, str]] = []
    if err_no is not None:
        metadata.append((ERR_NO, str(int(err_no))))
    if retry_after_s is not None:
        metadata.append((RETRY_AFTER, str(retry_after_s * 1000)))
    if head is not None:
        metadata += [(STATUS, str(head.status or 200)), *head.headers]
    return tuple(metadata)


def _is_of_grpc(error: Exception) -> bool:
    """Return whether gRPC could not send an answer: its peer has left, or it was too large."""
    return type(error).__name__ == _GRPCS_ERROR


def _short(text: str) -> str:
    """Return `text` short enough for a header, where most non-ASCII characters need three bytes."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= _MAX_DETAILS:
        return data.decode()
    return data[:_MAX_DETAILS].decode("utf-8", "ignore") + "..."


class _DepartedPeers(logging.Filter):
    """A filter that drops gRPC's report that a peer left before it received an error.

    Nothing is to be done about it. A line before it has reported an error of this server.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.exc_info[0] if record.exc_info else None
        return not (
            kind is not None and kind.__name__ == _GRPCS_ERROR and record.getMessage() in _DEPARTED
        )
