"""Routes: other paths that the HTTP frontend serves beside requests to the pipeline."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from pipeline.answer_head import AnswerHead
from pipeline.data import ChannelData
from pipeline.engine.request import RequestHandle, ResponseSink
from pipeline.errors import (
    ERROR_STATUSES,
    NotImplementedByOpError,
    PipelineError,
    TooLargeError,
    UserCodeError,
)
from pipeline.frontends.base import seconds_of
from pipeline.proto.pipeline import json as jsonpb
from pipeline.proto.pipeline.response import pack_error

if TYPE_CHECKING:
    from pipeline.frontends.http.websocket import WebSocket

_LOGGER = logging.getLogger(__name__)

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"

Header = tuple[bytes, bytes]
Headers = dict[bytes, bytes]
"""By lower-case names; of several with one name the last counts."""

CLOSE: Header = (b"connection", b"close")


class SizeLimit(NamedTuple):
    """A limit of a request's body, with its key in the configuration."""

    key: str
    size: int

    def passed(self, size: int | None = None) -> BodySizeError:
        """Return the error for a body of `size` bytes; None: unpacked, it has more."""
        return BodySizeError(self, size)


class ReadBody(Protocol):
    """Reader of a request's body."""

    def __call__(self, limit: SizeLimit | None = None) -> Awaitable[bytes]:
        """Return the body, inflated; `limit` replaces `max_message_bytes`.

        Raises HttpError: the body is too large, or damaged.
        """


Body = bytes | memoryview
"""A received body; a view keeps the memory that it shows."""


class WebRequest(msgspec.Struct, frozen=True):
    """One HTTP request.

    `read` returns the body as bytes, `received` without a copy. `path` is decoded, `raw_path` is
    not (a `%2F` there does not separate). `headers` has lower-case names; of several with one name
    the last counts, but `accepts` has all values of Accept. `timeout_s` is the client's
    `Grpc-Timeout`.
    """

    method: str
    path: str
    raw_path: str
    query: str
    headers: Mapping[bytes, bytes]
    read: ReadBody
    timeout_s: float | None = None
    accepts: Sequence[bytes] = ()
    receive: Callable[[], Awaitable[Body]] | None = None

    async def received(self) -> Body:
        """Return the body, inflated, without a copy. Raises HttpError, as `read` does."""
        return await (self.receive or self.read)()


def timeout_in(headers: Iterable[Header]) -> float | None:
    """Return the client's timeout in seconds. Raises PackageError: the header is invalid."""
    timeout_s = None
    for name, value in headers:
        if name == b"grpc-timeout":
            timeout_s = seconds_of(value.decode("latin-1"), "Grpc-Timeout")
    return timeout_s


class WebResponse(msgspec.Struct, frozen=True):
    """The answer to a WebRequest; `tail` is the large part of the body, after the rest."""

    status: int = 200
    body: bytes = b""
    content_type: bytes = JSON
    headers: tuple[Header, ...] = ()
    tail: tuple[memoryview, ...] = ()

    @property
    def size(self) -> int:
        """Return the size of its body in bytes."""
        return len(self.body) + sum(view.nbytes for view in self.tail)


def with_head(reply: bytes | WebResponse, head: AnswerHead | None) -> WebResponse:
    """Return an answer (`bytes` are JSON) with the status and headers that user code set.

    An answer that is already an error stays unchanged.
    """
    if isinstance(reply, bytes):
        reply = WebResponse(body=reply)
    if head is None or reply.status >= ERROR_STATUSES[0]:
        return reply
    names = {name for name, _ in head.fields}
    others = tuple(field for field in reply.headers if field[0] not in names)
    status = reply.status if head.status is None else head.status
    return msgspec.structs.replace(reply, status=status, headers=(*others, *head.fields))


class WebStream(msgspec.Struct, frozen=True):
    """The answer to a WebRequest with a body in pieces.

    The head is sent with the first piece: an error of `pieces` before it is answered as an error of
    an Endpoint. The next piece is asked for when the transport has accepted the previous one.
    `pieces` is always closed, also when the client disconnects.

    After the head, `begun` receives a function that sends a short piece at once while no other one
    is on its way; it returns whether there is room for more.
    """

    pieces: AsyncGenerator[bytes, None]
    content_type: bytes
    headers: tuple[Header, ...] = ()
    status: int = 200
    begun: Callable[[Callable[[bytes], bool]], None] | None = None


class WebUpgrade(msgspec.Struct, frozen=True):
    """The answer to a WebRequest that becomes a WebSocket; `head` is the whole head.

    `run` uses the socket, in messages of `most_bytes`; it is cancelled if the client disconnects.
    """

    head: bytes
    run: Callable[[WebSocket], Awaitable[None]]
    most_bytes: int


WebReply = WebResponse | WebStream | WebUpgrade
"""Answer of an Endpoint."""

Endpoint = Callable[[WebRequest], Awaitable[WebReply]]
"""Answers a request; it is cancelled if the client disconnects."""


class Routes(Protocol):
    """Paths of the HTTP port; `POST /<name>/<method>` is never one of them."""

    def endpoint(self, request: WebRequest) -> Endpoint | None:
        """Return the endpoint of a path; None: a path of other routes."""


class HandOverError(Exception):
    """A request that the lane leaves to the routes, which handle it from the start."""


LaneReply = bytes | WebResponse | Awaitable[WebResponse]
"""The answer to a request in the lane: `bytes` are JSON with status 200.

An awaitable answer is too large for the event loop: the connection leaves the lane, and the answer
may raise what an Endpoint may.
"""


async def whole(reply: LaneReply, head: AnswerHead | None = None) -> WebResponse:
    """Return a reply of the lane as a WebResponse, with the head that user code set."""
    return with_head(reply if isinstance(reply, bytes | WebResponse) else await reply, head)


class LaneEndpoint(Protocol):
    """Answers requests of the lane: body to engine, and the engine's answer to bytes.

    One object answers all requests with the same head: it keeps nothing of a request, and looks up
    anything that may change, for example a model, for each request.

    Attributes:
        takes_large: bodies may be larger than SHORT_BYTES, and are then views.
    """

    @property
    def takes_large(self) -> bool: ...

    def begin(self, body: Any, sink: ResponseSink) -> RequestHandle:
        """Have the engine begin a request, whose answer goes to the sink.

        `body` is bytes, or a view of a large body: then the work here does not depend on its size.
        Raises HandOverError before anything has begun. `reply` answers any other error.
        """

    def reply(self, answer: Any, failure: PipelineError | None) -> LaneReply:
        """Return the reply for the answer that the sink got, or for an error of `begin`.

        `failure` is the error that the sink got before an answer that reports it.
        """


class LaneService(Protocol):
    """Paths whose plain POSTs need no task, see `frontends.http.connection`."""

    def in_line(self, request: WebRequest) -> LaneEndpoint | None:
        """Return the endpoint for a POST; None: another path, or a request for the routes.

        The path has no escapes and no query. The body cannot be read here.
        """


class HttpError(Exception):
    """A request that is answered with its own HTTP status."""

    def __init__(self, status: int, error: PipelineError, *headers: Header) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error
        self.headers = headers


class BodySizeError(HttpError):
    """A body that is larger than `limit`; `size` is None if only its unpacked form is."""

    def __init__(self, limit: SizeLimit, size: int | None) -> None:
        text = f"the request is larger than {limit.key} ({limit.size} bytes)"
        super().__init__(413, TooLargeError(text))
        self.limit = limit
        self.size = size


def not_allowed(method: str, allowed: bytes) -> HttpError:
    """Return the error for a method that a path does not allow; `allowed`: b"GET, HEAD"."""
    error = NotImplementedByOpError(f"method {method} is not allowed here: use {allowed.decode()}")
    return HttpError(405, error, (b"allow", allowed))


def error_body(error: PipelineError) -> bytes:
    """Return the body of an error: a Response in JSON."""
    return jsonpb.response_to_json(pack_error(ChannelData(-1, error=error)))


ErrorForm = Callable[[PipelineError | HttpError], WebResponse]
"""Makes the answer to a request that ended in an error, as an API has it."""


def shown(error: Exception, what: str = "a request") -> PipelineError | HttpError:
    """Return the error that a caller receives: the same, but one that is a bug is only logged."""
    return error if isinstance(error, PipelineError | HttpError) else _bug(error, what)


def _bug(error: Exception, what: str) -> HttpError:
    _LOGGER.exception("%s failed", what, exc_info=error)
    return HttpError(500, UserCodeError("internal error of the server"))


def failed_reply(error: Exception, what: str = "a request") -> WebResponse:
    """Return the answer to a request that ended in an error; an unexpected error is logged."""
    if not isinstance(error, HttpError):
        error = _bug(error, what)
    return WebResponse(error.status, error_body(error.error), headers=error.headers)
