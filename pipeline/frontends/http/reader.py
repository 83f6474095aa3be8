"""RequestReader: reads requests by httptools, one at a time, and refuses anything else."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote

import httptools

from pipeline.errors import PackageError
from pipeline.frontends.http.exchange import Exchange
from pipeline.frontends.http.routes import Header, HttpError
from pipeline.proto.http import SPACES

END = b"\r\n\r\n"
"""The end of a head, and of a body in chunks."""

_HALVES = (b"\r\n\r", b"\r\n", b"\r")  # beginnings of an END, the longest first
_MAX_HEAD_BYTES = 65536
_TLS = b"\x16\x03"  # the first bytes of a TLS hello
_PIECES_AT_ONCE = 1000  # of a body in chunks; reading them takes 3 ms


def _not_http(why: str) -> HttpError:
    return HttpError(400, PackageError(f"this is not a valid HTTP/1.1 request: {why}"))


def _check_codings(fields: list[Header]) -> None:
    """Raise HttpError for a transfer coding that the parser would pass on unchanged."""
    codings = [value for name, value in fields if name == b"transfer-encoding"]
    if [coding.lower() for coding in codings] not in ([], [b"chunked"]):
        declared = b", ".join(codings).decode("latin-1")
        raise _not_http(f'its Transfer-Encoding is "{declared}": send chunked, or a Content-Length')


class RequestReader:
    """A reader of the requests on one connection.

    The parser gets no byte after the end of a request. So each request is parsed when it is its
    turn, and a second request that the parser sees inside the bytes of the first is refused.

    Args:
        begin: receives a request when its head is read; the body follows.

    Attributes:
        pending_bytes: of a head, trailers or blank lines that are not consumed.
        due: time limit of the client, at the last call of `read`.
    """

    def __init__(self, begin: Callable[[Exchange], None]) -> None:
        self._begin = begin
        self._parser = httptools.HttpRequestParser(self)
        self._exchange: Exchange | None = None  # that is still arriving
        self._target = b""
        self._left = 0  # bytes left of a body with a declared length
        self.pending_bytes: int = 0
        self.due: float = 0.0
        self._is_headed = False
        self._is_begun = False

    @property
    def is_inside(self) -> bool:
        """Return whether a request has begun and is not complete."""
        return self._exchange is not None

    def close(self) -> None:
        """Release the parser, which refers to the reader."""
        del self._parser

    def read(self, data: bytes, at: int) -> int:
        """Read from `at`, at most to the end of a request; return where it stopped.

        A partial END stays unread, and so do pieces that would take too long. Raises HttpError: the
        request cannot be answered.
        """
        if self._exchange is None and data.startswith((b"\r", b"\n"), at):  # blank lines
            start = len(data) - len(data[at:].lstrip(b"\r\n"))
            self.pending_bytes += start - at
            at = start
        for _ in range(_PIECES_AT_ONCE):
            end = self._end_of_piece(data, at)
            if end == at:
                break
            self.pending_bytes += end - at
            if self._left:
                self._left -= end - at
            self._feed(data[at:end])
            at = end
            if self.pending_bytes > _MAX_HEAD_BYTES:
                break
            exchange = self._exchange
            if exchange is None:
                continue
            if self._is_headed and not self._is_begun:
                self._start(exchange)
            if not exchange.has_more:
                self._exchange, self.pending_bytes = None, 0
                break
        if self.pending_bytes > _MAX_HEAD_BYTES:
            text = f"the request's header fields are longer than {_MAX_HEAD_BYTES} bytes"
            raise HttpError(431, PackageError(text))
        return at

    def _end_of_piece(self, data: bytes, at: int) -> int:
        """Return the place up to which the parser may read, because no request ends before it."""
        if self._left:
            return min(at + self._left, len(data))
        end = data.find(END, at)
        if end >= 0:
            return end + len(END)
        half = next((half for half in _HALVES if data.endswith(half, at)), b"")
        return len(data) - len(half)

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            rest = data[offer.args[0] :]
        except httptools.HttpParserError as error:
            if self._is_headed and not self._is_begun and self._exchange is not None:
                _check_codings(self._exchange.fields)
            raise _not_http(self._plainly(error, data)) from None
        else:
            return
        self._decline_upgrade(rest)

    def _plainly(self, error: httptools.HttpParserError, data: bytes) -> str:
        """Return what is wrong, in other words than the parser's where it is another protocol."""
        if data.startswith(_TLS):
            return "it is TLS, and this port takes plain HTTP"
        if self._parser.get_method() == b"PRI":
            return "it is HTTP/2, which the gateway speaks"
        return str(error)

    def _decline_upgrade(self, rest: bytes) -> None:
        """Continue in HTTP/1.1 after an offer of another protocol, which Java's clients make.

        The parser takes the next bytes for the other protocol, so a second parser gets the head
        without the offer.
        """
        exchange, method = self._exchange, self._parser.get_method()
        if method == b"CONNECT" or exchange is None:
            raise HttpError(405, PackageError("method CONNECT: this is not a proxy"))
        lines = [b"%b %b HTTP/1.1" % (method, self._target)]
        lines += [b"%b: %b" % field for field in exchange.fields if field[0] != b"upgrade"]
        self._parser, self._exchange = httptools.HttpRequestParser(self), None
        self._feed(b"\r\n".join([*lines, b"", rest]))

    def _start(self, exchange: Exchange) -> None:
        """Hand over a request after its head."""
        self._is_begun = True
        exchange.said = headers = dict(exchange.fields)
        if b"transfer-encoding" in headers:
            _check_codings(exchange.fields)
        elif exchange.has_more:
            self._left = int(headers[b"content-length"])
        exchange.method = self._parser.get_method().decode("ascii")
        exchange.is_old = self._parser.get_http_version() == "1.0"
        exchange.keeps_alive = self._keeps_alive and not exchange.is_old
        if b"expect" in headers:
            exchange.is_expected = headers[b"expect"].lower() == b"100-continue"
        try:
            url = httptools.parse_url(self._target)
        except httptools.HttpParserInvalidURLError:
            url = None
        if url is None or not url.path:
            raise _not_http("its target has no path: send POST /<name>/<method>")
        path = exchange.path = exchange.raw_path = url.path.decode("latin-1")
        if "%" in path:
            exchange.path = unquote(path)
        if url.query:
            exchange.query = url.query.decode("latin-1")
        self._begin(exchange)

    # What the parser calls ----------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request."""
        assert self._exchange is None, "it is cut in another way than here"
        self._exchange, self._target = Exchange(), b""
        self._is_headed = self._is_begun = False

    def on_url(self, url: bytes) -> None:
        """Add a piece of the target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; trailers are ignored."""
        if self._exchange is not None and not self._is_headed:
            self._exchange.fields.append((name.lower(), value.rstrip(SPACES)))

    def on_headers_complete(self) -> None:
        """End the head; after the request the parser no longer knows it."""
        self._is_headed, self._keeps_alive = True, self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        """Add a piece of the body."""
        if self._exchange is not None:
            self._exchange.body += data
            self.pending_bytes = 0

    def on_message_complete(self) -> None:
        """End the request."""
        if self._exchange is not None:
            self._exchange.has_more = False
