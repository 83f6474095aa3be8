"""One HTTP connection: uvicorn's parser, with bounds on what a caller may send and take."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pipeline.data import ChannelData
from pipeline.errors import DeadlineError, NotImplementedByOpError, PackageError, PipelineError
from pipeline.frontends.http.routes import JSON
from pipeline.op import pack_error
from pipeline.proto.pipeline import json as jsonpb
from pipeline.proto.slices import SHORT_BYTES, SLICE_BYTES

_LOGGER = logging.getLogger(__name__)

CONNECTION = "pipeline.connection"
"""The key of a request's ASGI scope under which its HttpConnection is found."""

Header = tuple[bytes, bytes]
CLOSE: Header = (b"connection", b"close")

_TYPE_AND_LENGTH = b"content-type: %b\r\ncontent-length: %d\r\n\r\n"
_MAX_HEAD_BYTES = 65536  # plus what comes in the same packet
_LINGER_S = 5.0  # for a caller that still sends to see the answer to what it began


class HttpError(Exception):
    """A request that is answered with an HTTP status of its own."""

    def __init__(self, status: int, error: PipelineError, *headers: Header) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error
        self.headers = headers


def not_allowed(method: str, allowed: bytes) -> HttpError:
    """What is told who uses a method that a path does not have; `allowed`: b"GET, HEAD"."""
    error = NotImplementedByOpError(f"method {method} is not allowed here: use {allowed.decode()}")
    return HttpError(405, error, (b"allow", allowed))


def _not_http(why: str) -> HttpError:
    return HttpError(400, PackageError(f"this is no valid HTTP/1.1 request: {why}"))


def _head_too_large() -> HttpError:
    text = f"the request's header fields are longer than {_MAX_HEAD_BYTES} bytes"
    return HttpError(431, PackageError(text))


def error_body(error: PipelineError) -> bytes:
    """The body of an answer that is an error: a Response, like any other."""
    return jsonpb.response_to_json(pack_error(ChannelData(-1, error=error)))


@functools.cache
def _status_line(status: int) -> bytes:
    return b"HTTP/1.1 %d %s\r\n" % (status, HTTPStatus(status).phrase.encode())


def _check_target(target: bytes) -> None:
    """Raise HttpError for a target that uvicorn cannot find a path in."""
    if len(target) >= _MAX_HEAD_BYTES:  # a long head can come in one packet
        raise _head_too_large()
    if target.startswith((b"/", b"*")):
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


@dataclass(slots=True)
class ConnectionLimits:
    """How a door treats its connections.

    `patience_s` is for a request to arrive, from its first byte to its last. When the door
    `is_leaving`, each is closed with the answer that it is given next. `lost` is set when one is.
    """

    patience_s: float
    is_leaving: bool = False
    lost: asyncio.Event = field(default_factory=asyncio.Event)


class HttpConnection(HttpToolsProtocol):
    """Adds to uvicorn's protocol what a server on an open network needs.

    A caller that leaves is noticed while it is worked for; one that takes more than `patience_s`
    for a request, or sends a head without end, is refused; what is no HTTP is answered in our
    own form, after the requests before it.

    Attributes:
        cycle_served: uvicorn's state of the request that is being answered.
        task: to be cancelled when the caller leaves; None when it should not be.
        has_left: the connection is lost.
        fault: why the rest of a request's body is not going to come.
    """

    cycle_served: Any = None
    task: asyncio.Task[Any] | None = None
    has_left: bool = False
    fault: HttpError | None = None
    _is_deaf = False
    _is_lingering = False
    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def __init__(self, *args: Any, manners: ConnectionLimits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _LOGGER  # uvicorn's own goes to stderr
        self._manners = manners
        self._patience_s = manners.patience_s

    @property
    def is_receiving(self) -> bool:
        """Whether the request that is being answered has not arrived in whole."""
        return bool(self.cycle_served.more_body)

    # What uvicorn and the event loop call -------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._raw: asyncio.Transport = transport
        super().connection_made(_Transport(self, transport))  # type: ignore[arg-type]  # a proxy
        self._set_timer(self._patience_s, self._lose_patience)

    def on_headers_complete(self) -> None:
        self.scope[CONNECTION] = self  # type: ignore[literal-required]  # an addition of ours
        if self.parser.should_upgrade():  # `_decline` has the head read again
            super().on_headers_complete()
            return
        _check_target(self.url)
        _check_codings(self.headers)
        super().on_headers_complete()
        self.cycle.keep_alive &= self.parser.should_keep_alive()  # uvicorn: from 0.53 on

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        self._unset_keepalive_if_required()
        self._feed(data)
        cycle = self.cycle
        if cycle is None or cycle.scope is not self.scope:
            self._account(len(data))
        elif not cycle.more_body:  # a whole request: from here on it is we who take time
            self._head_bytes = 0
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif cycle.body:
            self._head_bytes = 0
        else:
            self._account(len(data))
        if self._timer is None and (cycle is None or cycle.more_body or cycle.response_complete):
            self._set_timer(self._patience_s, self._lose_patience)

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_left = True
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)
        self._manners.lost.set()
        self._unset_keepalive_if_required()  # uvicorn keeps a connection that was reset with it
        served = self.cycle_served
        if served is not None and not served.response_complete:
            served.disconnected = True  # with pipelined requests uvicorn knows the last one only
            served.message_event.set()
            if self.task is not None:
                self.task.cancel()

    def _should_upgrade(self) -> bool:
        return True  # so that uvicorn leaves it to us: see `_decline`

    # What a caller may do -----------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            rest = data[offer.args[0] :]
        except httptools.HttpParserError as error:
            ours = error.__context__  # what `on_headers_complete` raised
            self._refuse(ours if isinstance(ours, HttpError) else _not_http(str(error)))
            return
        else:
            return
        self._decline(rest)  # not where the offer is handled: errors would have it for context

    def _decline(self, rest: bytes) -> None:
        """Go on in HTTP/1.1 with a request that offers another protocol, as Java's clients do.

        The parser takes the body, and all that follows, for the other protocol's: it is told
        the head again without the offer.
        """
        method = self.scope["method"].encode()
        if method == b"CONNECT":
            self._refuse(HttpError(405, PackageError("method CONNECT: this is no proxy")))
            return
        lines = [b"%s %s HTTP/1.1" % (method, self.url)]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser: httptools.HttpRequestParser = httptools.HttpRequestParser(self)
        self._feed(b"\r\n".join([*lines, b"", rest]))

    def _account(self, size: int) -> None:
        """Count bytes of a head, or of trailers: nobody takes them until they are complete."""
        self._head_bytes += size
        if self._head_bytes > _MAX_HEAD_BYTES and not self._is_deaf:
            self._refuse(_head_too_large())

    def _lose_patience(self) -> None:
        self._timer = None
        cycle = self.cycle
        if self.pipeline:  # what was sent before takes us that long
            self._set_timer(self._patience_s, self._lose_patience)
        elif cycle is not None and cycle.more_body and not cycle.response_complete:
            text = f"the request's body did not arrive within {self._patience_s:g} s"
            self._refuse(HttpError(408, DeadlineError(text)))
        else:
            self._raw.close()

    def _refuse(self, error: HttpError) -> None:
        """Answer with `error`, behind the requests that are still to be answered, and hang up."""
        self._is_deaf = True
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self._say(error)
        elif cycle.more_body:  # it is this request's own body
            self.fault = error
            cycle.message_event.set()
        else:
            cycle.keep_alive = False

    def _say(self, error: HttpError) -> None:
        self.transport.write(self._packet(error.status, (CLOSE,), error_body(error.error)))
        self.transport.close()

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
        elif not cycle.keep_alive or (self._manners.is_leaving and not self.pipeline):
            cycle.keep_alive = False
            headers = (*headers, CLOSE)
        cycle.response_started = True
        is_head = cycle.scope["method"] == "HEAD"
        if len(body) > SHORT_BYTES and not is_head:
            self.transport.write(self._packet(status, headers, body, content_type, is_head=True))
            if not await self._write_in_slices(body):
                return
        else:
            self.transport.write(self._packet(status, headers, body, content_type, is_head))
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

    def _packet(
        self,
        status: int,
        headers: tuple[Header, ...],
        body: bytes,
        content_type: bytes = JSON,
        is_head: bool = False,
    ) -> bytes:
        head = [_status_line(status)]
        for name, value in (*self.server_state.default_headers, *headers):
            head += (name, b": ", value, b"\r\n")
        head.append(_TYPE_AND_LENGTH % (content_type, len(body)))
        if not is_head:
            head.append(body)
        return b"".join(head)

    def hang_up(self) -> None:
        """Close; a caller that still sends would be cut off before it sees its answer.

        Its system throws away what it has not read as soon as we refuse what it sends.
        """
        cycle = self.cycle
        still_sends = self._is_deaf or (cycle is not None and cycle.more_body)
        if self._is_lingering or not still_sends or self._raw.is_closing():
            self._raw.close()
            return
        self._is_lingering = self._is_deaf = True
        self._raw.write_eof()
        self.flow.resume_reading()
        self._set_timer(_LINGER_S, self._raw.close)

    @property
    def is_closing(self) -> bool:
        return self._is_lingering or self._raw.is_closing()

    def _set_timer(self, seconds: float, then: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, then)


class _Transport:
    """The transport as uvicorn sees it: to close it is to hang up, see there."""

    __slots__ = ("_connection", "_transport", "write")

    def __init__(self, connection: HttpConnection, transport: asyncio.Transport) -> None:
        self._connection = connection
        self._transport = transport
        self.write = transport.write

    def close(self) -> None:
        self._connection.hang_up()

    def is_closing(self) -> bool:
        return self._connection.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
