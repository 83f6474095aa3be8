"""HttpConnection: uvicorn's protocol, made fit for an open network; it rests on names of its own.

pyproject.toml has an upper bound of its version for this module, and tests/e2e/test_dependencies.py
tries both ends. uvicorn parses, and keeps the state of a request and the order of those that are
sent together; here are bounds on what a caller may send and take, and an answer in one packet.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httptools

from pipeline.errors import DeadlineError, PackageError
from pipeline.frontends.http.ahead import AheadProtocol
from pipeline.frontends.http.routes import (
    CLOSE,
    JSON,
    Header,
    HttpError,
    WebResponse,
    WebStream,
    error_body,
)
from pipeline.proto.slices import SHORT_BYTES, SLICE_BYTES

if TYPE_CHECKING:
    from pipeline.frontends.http.listener import HttpListener

_LOGGER = logging.getLogger(__name__)

CONNECTION = "pipeline.connection"
"""The key of a request's ASGI scope under which its HttpConnection is found."""

HEADERS = "pipeline.headers"
"""The key under which the last value of each header is found, by its lower-case name."""

_STOPS = (httptools.HttpParserUpgrade, httptools.HttpParserError)
_MAX_HEAD_BYTES = 65536  # plus what comes in the same packet
_LENGTH = b"content-length: "
_LINGER_TIMEOUT_S = 5.0  # for a caller that still sends to see the answer to what it began


def _not_http(why: str) -> HttpError:
    return HttpError(400, PackageError(f"this is no valid HTTP/1.1 request: {why}"))


def _head_too_large() -> HttpError:
    text = f"the request's header fields are longer than {_MAX_HEAD_BYTES} bytes"
    return HttpError(431, PackageError(text))


@functools.lru_cache(maxsize=64)  # of a second, most answers have the same
def head_of(status: int, content_type: bytes, headers: tuple[Header, ...]) -> bytes:
    """Return the head of an answer up to its length."""
    lines = [b"HTTP/1.1 %d %s\r\n" % (status, _phrase_of(status))]
    lines += [b"%b: %b\r\n" % header for header in headers]
    lines.append(b"content-type: %b\r\n%b" % (content_type, _LENGTH))
    return b"".join(lines)


def _phrase_of(status: int) -> bytes:
    """Return the words that go with a status; none for one without, as 499 of a cancelled call."""
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""


def stream_head_of(reply: WebStream, dated: Sequence[Header], is_chunked: bool) -> bytes:
    """Return the head of an answer that comes in pieces."""
    head = head_of(reply.status, reply.content_type, (*dated, *reply.headers))
    head = head.removesuffix(_LENGTH)
    return head + (b"transfer-encoding: chunked\r\n\r\n" if is_chunked else b"\r\n")


def _check_target(target: bytes) -> None:
    """Raise HttpError for a target that uvicorn cannot find a path in."""
    if len(target) >= _MAX_HEAD_BYTES:  # a long head can come in one packet
        raise _head_too_large()
    if target.startswith(b"*"):
        return
    with contextlib.suppress(httptools.HttpParserInvalidURLError):
        if httptools.parse_url(target).path:
            return
    raise _not_http("its target has no path: send POST /<name>/<method>")


def _check_codings(headers: list[Header]) -> None:
    """Raise HttpError for a body in a coding that the parser would hand on as it is."""
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if codings and (len(codings) > 1 or codings[0].lower() != b"chunked"):
        told = b", ".join(codings).decode("latin-1")
        raise _not_http(f'its Transfer-Encoding is "{told}": send chunked, or a Content-Length')


class HttpConnection(AheadProtocol):
    """uvicorn's protocol, with what a server on an open network needs.

    A caller that leaves is noticed while its request is active; one that takes more than
    `read_timeout_s` for a request, or sends a head without end, is refused; what is no HTTP is
    answered in our own form, after the requests before it.

    Attributes:
        cycle_served: uvicorn's state of the request that is being answered.
        task: to be cancelled when the caller leaves; None when it should not be.
        has_left: the connection is lost.
        body_error: says why the rest of a request's body is not going to come.
        given: the answer to the next request, which the lane has begun.
        more_headers: of the answer to the request that is served.
    """

    cycle_served: Any = None
    task: asyncio.Task[Any] | None = None
    has_left: bool = False
    body_error: HttpError | None = None
    given: Awaitable[WebResponse] | None = None
    more_headers: tuple[Header, ...] = ()
    _is_ignoring = False
    _is_lingering = False
    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def __init__(self, *args: Any, listener: HttpListener, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _LOGGER  # uvicorn's own goes to stderr
        self._listener = listener

    # What uvicorn and the event loop call -------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._raw: asyncio.Transport = transport
        proxy = _Transport(self, transport)
        super().connection_made(proxy)  # type: ignore[arg-type]  # it looks like one
        self._set_timer(self._listener.read_timeout_s, self.time_out)

    def on_headers_complete(self) -> None:
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]  # with additions of ours
        scope[CONNECTION] = self
        if self.parser.should_upgrade():  # `_parser_stopped` has the head read again
            super().on_headers_complete()
            return
        if len(self.url) >= _MAX_HEAD_BYTES or self.url[:1] != b"/":
            _check_target(self.url)
        said = scope[HEADERS] = dict(self.headers)
        if b"transfer-encoding" in said:
            _check_codings(self.headers)
        super().on_headers_complete()
        self.cycle.keep_alive &= self.parser.should_keep_alive()  # uvicorn: from 0.53 on

    def take(self, data: bytes) -> None:
        if self._is_ignoring:
            return
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        before = self.cycle
        stop: Exception | None = None
        try:
            self.parser.feed_data(data)
        except _STOPS as error:
            stop = error
        if stop is not None:  # not where it is caught: another error would have it for context
            self._parser_stopped(stop, data)
        cycle = self.cycle
        if cycle is None or cycle.scope is not self.scope:
            if cycle is before:
                self._counthead_of(len(data))
            else:  # it began behind a request in the same packet
                self._head_bytes = 0
        elif not cycle.more_body:  # a whole request: from here on it is we who take time
            self._head_bytes = 0
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif cycle.body:
            self._head_bytes = 0
        else:
            self._counthead_of(len(data))
        if self._timer is None and (cycle is None or cycle.more_body or cycle.response_complete):
            self._set_timer(self._listener.read_timeout_s, self.time_out)

    @property
    def is_idle(self) -> bool:
        """True if nothing is asked on it."""
        return not self._head_bytes and (self.cycle is None or self.cycle.response_complete)

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_left = True
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)
        self._listener.lost.set()
        self._unset_keepalive_if_required()  # uvicorn keeps a connection that was reset with it
        served = self.cycle_served
        if served is not None and not served.response_complete:
            served.disconnected = True  # with pipelined requests uvicorn knows the last one only
            served.message_event.set()
            if self.task is not None:
                self.task.cancel()

    def _should_upgrade(self) -> bool:
        return True  # so that uvicorn leaves it to us: see `_parser_stopped`

    # What a caller may do -----------------------------------------------------------------

    def _parser_stopped(self, stop: Exception | None, data: bytes) -> None:
        """Go on in HTTP/1.1 behind an offer of another protocol; refuse what is an error.

        The parser takes the body, and all that follows, for the other protocol's: it is told the
        head again without the offer, which Java's clients make.
        """
        while isinstance(stop, httptools.HttpParserUpgrade):
            method = self.scope["method"].encode()
            if method == b"CONNECT":
                self._refuse(HttpError(405, PackageError("method CONNECT: this is no proxy")))
                return
            lines = [b"%s %s HTTP/1.1" % (method, self.url)]
            lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
            data = b"\r\n".join([*lines, b"", data[stop.args[0] :]])
            self.parser: httptools.HttpRequestParser = httptools.HttpRequestParser(self)
            stop = None
            try:
                self.parser.feed_data(data)
            except _STOPS as error:
                stop = error
        if stop is not None:
            ours = stop.__context__  # raised by `on_headers_complete`
            self._refuse(ours if isinstance(ours, HttpError) else _not_http(str(stop)))

    def _counthead_of(self, size: int) -> None:
        """Count bytes of a head, or of trailers: nobody takes them until they are complete."""
        self._head_bytes += size
        if self._head_bytes > _MAX_HEAD_BYTES and not self._is_ignoring:
            self._refuse(_head_too_large())

    def time_out(self) -> None:
        """Refuse, or close, what has not arrived in its time."""
        self._timer = None
        cycle = self.cycle
        if self.pipeline:  # what was sent before takes us that long
            self._set_timer(self._listener.read_timeout_s, self.time_out)
        elif cycle is not None and cycle.more_body and not cycle.response_complete:
            text = f"the request's body did not arrive within {self._listener.read_timeout_s:g} s"
            self._refuse(HttpError(408, DeadlineError(text)))
        else:
            self._raw.close()

    def _refuse(self, error: HttpError) -> None:
        """Answer with `error`, behind the requests that are still to be answered, and hang up."""
        self._is_ignoring = True
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self._write_error(error)
        elif cycle.more_body:  # it is this request's own body
            self.body_error = error
            cycle.message_event.set()
        else:
            cycle.keep_alive = False

    def _write_error(self, error: HttpError) -> None:
        head = head_of(error.status, JSON, (*self.server_state.default_headers, CLOSE))
        body = error_body(error.error)
        self.transport.write(b"%b%d\r\n\r\n%b" % (head, len(body), body))
        self.transport.close()

    def take_body(self) -> bytes | None:
        """Return the body of the request that is served; None if it has to be received."""
        cycle = self.cycle_served
        if cycle.more_body or cycle.disconnected or cycle.waiting_for_100_continue:
            return None
        if not self.pipeline:  # it was paused for this body
            self.flow.resume_reading()
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    async def answer(
        self, status: int, headers: tuple[Header, ...], body: bytes, content_type: bytes = JSON
    ) -> None:
        """Answer the request that is served: what uvicorn's `send` does, in one packet.

        uvicorn writes head and body apart and looks at every header; on loopback a packet costs
        as much as all of our own work for a request.
        """
        cycle = self.cycle_served
        if self.flow.write_paused and not cycle.disconnected:
            await self.flow.drain()
        if cycle.disconnected:
            return
        if CLOSE in headers:
            cycle.keep_alive = False
        elif not cycle.keep_alive or (self._listener.is_draining and not self.pipeline):
            cycle.keep_alive = False
            headers = (*headers, CLOSE)
        cycle.response_started = True
        head = head_of(
            status, content_type, (*self.server_state.default_headers, *headers, *self.more_headers)
        )
        size = len(body)
        if cycle.scope["method"] == "HEAD":
            body = b""
        if len(body) <= SHORT_BYTES:
            self.transport.write(b"%b%d\r\n\r\n%b" % (head, size, body))
        else:
            self.transport.write(b"%b%d\r\n\r\n" % (head, size))
            if not await self._write_in_slices(body):
                return
        self._complete()

    async def answer_in_pieces(self, reply: WebStream) -> None:
        """Answer the request that is served with what comes, each piece as soon as it is there."""
        cycle = self.cycle_served
        is_chunked = cycle.scope["http_version"] != "1.0"
        async with contextlib.aclosing(reply.pieces) as pieces:
            async for piece in pieces:
                start = b"" if cycle.response_started else self._begin_pieces(reply, is_chunked)
                if piece and is_chunked:
                    start += b"%x\r\n" % len(piece)
                end = b"\r\n" if piece and is_chunked else b""
                if len(piece) <= SHORT_BYTES:
                    self.transport.write(b"".join((start, piece, end)))
                else:
                    self.transport.write(start)
                    await self._write_in_slices(piece)
                    self.transport.write(end)
                if self.flow.write_paused:
                    await self.flow.drain()
                if cycle.disconnected:
                    return
        head = b"" if cycle.response_started else self._begin_pieces(reply, is_chunked)
        self.transport.write(head + (b"0\r\n\r\n" if is_chunked else b""))
        if self._listener.is_draining and not self.pipeline:
            cycle.keep_alive = False
        self._complete()

    def _begin_pieces(self, reply: WebStream, is_chunked: bool) -> bytes:
        """Return the head; from here on there is no other answer."""
        cycle = self.cycle_served
        cycle.response_started = True
        cycle.keep_alive &= not cycle.more_body  # nobody is going to read the rest
        dated = self.server_state.default_headers
        dated = [*dated, *self.more_headers, *(() if cycle.keep_alive else (CLOSE,))]
        return stream_head_of(reply, dated, is_chunked)

    def break_off(self) -> None:
        """Hang up in the middle of an answer, so that its caller sees that it is not whole."""
        self.cycle_served.keep_alive = False
        self.cycle_served.disconnected = True  # else uvicorn complains that the answer is not whole
        self._raw.close()

    def _complete(self) -> None:
        """Go on to the next request, behind an answer."""
        cycle = self.cycle_served
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()

    async def _write_in_slices(self, data: bytes) -> bool:
        """Write as fast as the caller reads; False if it has left."""
        view = memoryview(data)
        for at in range(0, len(view), SLICE_BYTES):
            if self.flow.write_paused and not self.cycle_served.disconnected:
                await self.flow.drain()
            if self.cycle_served.disconnected:
                return False
            self.transport.write(view[at : at + SLICE_BYTES])
        return True

    def hang_up(self) -> None:
        """Close; a caller that still sends would be cut off before it sees its answer.

        Its system throws away what it has not read as soon as we refuse what it sends.
        """
        cycle = self.cycle
        still_sends = self._is_ignoring or (cycle is not None and cycle.more_body)
        if self._is_lingering or not still_sends or self._raw.is_closing():
            self._raw.close()
            return
        self._is_lingering = self._is_ignoring = True
        self.transport.is_closing = lambda: True  # type: ignore[method-assign]  # the proxy's
        self._raw.write_eof()
        self.flow.resume_reading()
        self._set_timer(_LINGER_TIMEOUT_S, self._raw.close)

    def _set_timer(self, seconds: float, then: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, then)


class _Transport:
    """The transport as uvicorn sees it: to close it is to hang up, see there."""

    __slots__ = ("_transport", "close", "is_closing", "write")

    def __init__(self, connection: HttpConnection, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.close = connection.hang_up
        self.is_closing = transport.is_closing
        self.write = transport.write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
