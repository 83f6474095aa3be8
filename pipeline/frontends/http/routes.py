"""Routes: what the HTTP frontend serves besides requests to the pipeline, found by path."""

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

    def passed(self) -> HttpError:
        text = f"the request is larger than {self.key} ({self.size} bytes)"
        return HttpError(413, TooLargeError(text))


class ReadBody(Protocol):
    """Reader of a request's body."""

    def __call__(self, limit: SizeLimit | None = None) -> Awaitable[bytes]:
        """Return the body, inflated; `limit`: another one than `max_message_bytes`.

        Raises HttpError: the body is too large, or damaged.
        """


Body = bytes | memoryview
"""A body as it was received; what is on the memory of a view keeps it."""


class WebRequest(msgspec.Struct, frozen=True):
    """One HTTP request.

    `read` gives the body as bytes, `received` also where it lies.

    `path` is decoded, `raw_path` as it came (a `%2F` is no `/` there), `headers` has lower-case
    names; of several with one name the last counts, but `accepts` has all values of Accept.
    `timeout_s` is the caller's `Grpc-Timeout`.
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
        """Return the body, inflated, where it lies. Raises HttpError, as `read` does."""
        return await (self.receive or self.read)()


def timeout_in(headers: Iterable[Header]) -> float | None:
    """Return the seconds that a caller gives. Raises PackageError: one of its headers is wrong."""
    timeout_s = None
    for name, value in headers:
        if name == b"grpc-timeout":
            timeout_s = seconds_of(value.decode("latin-1"), "Grpc-Timeout")
    return timeout_s


class WebResponse(msgspec.Struct, frozen=True):
    """The answer to a WebRequest; what is large of its body, behind the rest, is its `tail`."""

    status: int = 200
    body: bytes = b""
    content_type: bytes = JSON
    headers: tuple[Header, ...] = ()
    tail: tuple[memoryview, ...] = ()

    @property
    def size(self) -> int:
        """Return how many bytes its body has."""
        return len(self.body) + sum(view.nbytes for view in self.tail)


def with_head(reply: bytes | WebResponse, head: AnswerHead | None) -> WebResponse:
    """Return an answer, `bytes` are JSON, with the status and the headers that user code says.

    An answer with the status of an error gets an error's body.
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
    """The answer to a WebRequest whose body comes in pieces.

    The head goes out with the first of them: what `pieces` raises before that is answered as if an
    Endpoint had raised it. The next piece is asked for when the transport has let the one before
    it through. `pieces` is closed in any case, when the caller leaves too.

    After the head, `begun` receives a function that sends a short piece at once while no other one
    is on its way; it returns whether there is room for more.
    """

    pieces: AsyncGenerator[bytes, None]
    content_type: bytes
    headers: tuple[Header, ...] = ()
    status: int = 200
    begun: Callable[[Callable[[bytes], bool]], None] | None = None


class WebUpgrade(msgspec.Struct, frozen=True):
    """The answer to a WebRequest that becomes a WebSocket; `head` is all of its head.

    `talk` talks on it, in messages of `most_bytes`; it is cancelled if the caller goes away.
    """

    head: bytes
    talk: Callable[[WebSocket], Awaitable[None]]
    most_bytes: int


WebReply = WebResponse | WebStream | WebUpgrade
"""Answer of an Endpoint."""

Endpoint = Callable[[WebRequest], Awaitable[WebReply]]
"""Answers a request; it is cancelled if the caller goes away."""


class Routes(Protocol):
    """Some paths of the HTTP port; `POST /<name>/<method>` is never one of them."""

    def endpoint(self, request: WebRequest) -> Endpoint | None:
        """Return the endpoint that answers it; None for paths of others."""


class HandOverError(Exception):
    """A request that the lane leaves to the routes, as if nobody had looked at it."""


LaneReply = bytes | WebResponse | Awaitable[WebResponse]
"""The answer to a request in the lane: `bytes` are JSON with status 200.

The awaited answer is too large to be made on the event loop: the connection leaves the lane, and
the answer may raise what an Endpoint may.
"""


async def whole(reply: LaneReply, head: AnswerHead | None = None) -> WebResponse:
    """Return a reply of the lane outside of it, with what user code says of its head."""
    return with_head(reply if isinstance(reply, bytes | WebResponse) else await reply, head)


class LaneEndpoint(Protocol):
    """Answers a request of the lane: bytes of its body, what the engine makes of it, bytes.

    One object answers all requests whose heads are the same bytes: it keeps nothing of a request,
    and looks up what may change, such as a model, when it is asked.

    Attributes:
        takes_large: whether there may be bodies of more than SHORT_BYTES, which are a view then.
    """

    @property
    def takes_large(self) -> bool: ...

    def begin(self, body: Any, sink: ResponseSink) -> RequestHandle:
        """Have the engine begin a request, whose answer goes to the sink.

        `body` is bytes, or a view of where a large one lies: then nothing here depends on its
        size. Raises HandOverError before anything is begun. What else it raises is the answer:
        `reply` is asked what to say.
        """

    def reply(self, answer: Any, failure: PipelineError | None) -> LaneReply:
        """Return what is written for what the sink was given, or for what `begin` raised.

        `failure` is the error that the sink was given before an answer that tells it.
        """


class LaneService(Protocol):
    """Some paths whose plain POSTs need no task, see `frontends.http.connection`."""

    def in_line(self, request: WebRequest) -> LaneEndpoint | None:
        """Return what answers a POST; None: not its path, or it is for the routes.

        The path has nothing in it that would have to be decoded, and no query. The body cannot be
        read here.
        """


class HttpError(Exception):
    """A request that is answered with an HTTP status of its own."""

    def __init__(self, status: int, error: PipelineError, *headers: Header) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error
        self.headers = headers


def not_allowed(method: str, allowed: bytes) -> HttpError:
    """Return the error for a method that a path does not have; `allowed`: b"GET, HEAD"."""
    error = NotImplementedByOpError(f"method {method} is not allowed here: use {allowed.decode()}")
    return HttpError(405, error, (b"allow", allowed))


def error_body(error: PipelineError) -> bytes:
    """Return the body of an answer that is an error: a Response, like any other."""
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
