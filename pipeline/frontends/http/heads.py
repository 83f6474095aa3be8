"""HeadMemory: the endpoints of plain requests, remembered by the bytes of their heads.

httptools reads a head once; later requests with the same bytes reuse the result. Only ordinary
heads are remembered: any head that this server and a proxy before it could understand differently
is left to the RequestReader, and so are requests that the lane cannot answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import httptools

from pipeline.errors import PackageError
from pipeline.frontends.http.routes import (
    Headers,
    LaneEndpoint,
    LaneService,
    SizeLimit,
    WebRequest,
    timeout_in,
)
from pipeline.proto.http import SPACES
from pipeline.proto.slices import SHORT_BYTES

_MAX_KNOWN = 512  # heads
_MAX_KNOWN_BYTES = 2048  # of each
_MAX_BYTES = 8192  # of a head that is read at all
# Each line ends in CRLF and is not folded; the path has no escapes.
_SOUND = re.compile(
    rb"POST ((?:/[A-Za-z0-9_.~-]++)++) HTTP/1\.1\r\n(?:[!-9;-~]++:[^\r\n]*+\r\n)*+\r\n"
)
_MAX_DIGITS = 9
_JSON_LENGTH = b"inference-header-content-length"  # in v2, binary data follows the JSON
# Headers about the connection or the body, and the headers that browsers send.
_UNUSUAL = frozenset(
    (b"transfer-encoding", b"content-encoding", b"expect", b"upgrade", b"http2-settings", b"te",
     b"trailer", b"keep-alive", b"proxy-connection", b"origin")
)  # fmt: skip
# Headers that a client repeats unchanged, without secrets. A head with others is not remembered.
_STEADY = frozenset(
    (b"host", b"user-agent", b"accept", b"accept-encoding", b"accept-language", b"cache-control",
     b"pragma", b"connection", b"content-type", b"content-length",
     _JSON_LENGTH)
)  # fmt: skip


class Head(NamedTuple):
    """The head of a plain request: its endpoint, and the length of its body.

    An array of the body begins at byte `aligned_at`, if it has one.
    """

    endpoint: LaneEndpoint
    length: int
    aligned_at: int = 0


class HeadMemory:
    """The most recent heads, and the services that read new ones.

    Args:
        services: asked in turn for the endpoint of a path.
        most_bytes: limit of a short body.
        most_large_bytes: limit of a large body.
    """

    def __init__(
        self,
        services: Sequence[LaneService],
        most_bytes: int = SHORT_BYTES,
        most_large_bytes: int = SHORT_BYTES,
    ) -> None:
        self._services = services
        self._most_bytes = most_bytes
        self._most_large_bytes = most_large_bytes
        self._known: dict[bytes, Head] = {}

    def find(self, data: bytes) -> Head | None:
        """Return the head that `data` begins with, up to its empty line; None: not an ordinary
        head.
        """
        return self._known.get(data) or self._read(data)

    def _read(self, data: bytes) -> Head | None:
        match = _SOUND.fullmatch(data) if self._services and len(data) <= _MAX_BYTES else None
        if match is None or (headers := _headers_of(data)) is None:
            return None
        length = int(headers[b"content-length"])
        request = _request_of(match[1].decode("ascii"), headers)
        is_large = length > SHORT_BYTES
        if request is None or length > (self._most_large_bytes if is_large else self._most_bytes):
            return None
        for service in self._services:
            if (endpoint := service.in_line(request)) is not None:
                break
        else:
            return None
        if is_large and not endpoint.takes_large:
            return None
        head = Head(endpoint, length, aligned_at(headers))
        if len(data) <= _MAX_KNOWN_BYTES and _STEADY.issuperset(headers):
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()  # a client that always sends new heads must not make it grow
            self._known[data] = head
        return head


def _headers_of(data: bytes) -> Headers | None:
    """Return the headers of a plain request, as httptools reads them; None: not ordinary."""
    request = _Request()
    parser = httptools.HttpRequestParser(request)
    try:
        parser.feed_data(data)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    headers = request.headers
    length = headers.get(b"content-length", b"")
    is_plain = (
        request.is_complete
        and len(headers) == request.count  # no header appears twice
        and _UNUSUAL.isdisjoint(headers)
        and headers.get(b"connection", b"keep-alive").lower() == b"keep-alive"
        and parser.should_keep_alive()
        and not parser.should_upgrade()
        and length.isdigit()
        and len(length) <= _MAX_DIGITS
    )
    return headers if is_plain else None


def aligned_at(headers: Headers) -> int:
    """Return where the first array of a body begins, as far as the headers say so."""
    length = headers.get(_JSON_LENGTH, b"0")
    return int(length) if length.isdigit() and len(length) <= _MAX_DIGITS else 0


def _request_of(path: str, headers: Headers) -> WebRequest | None:
    """Return the request of a head; None: its timeout is invalid."""
    accepts = (headers[b"accept"],) if b"accept" in headers else ()
    try:
        timeout_s = timeout_in(headers.items())
    except PackageError:
        return None
    return WebRequest("POST", path, path, "", headers, _read_in_line, timeout_s, accepts)


async def _read_in_line(limit: SizeLimit | None = None) -> bytes:
    raise NotImplementedError("the lane gives the body to `begin`")


class _Request:
    """Headers of a request, collected from httptools."""

    __slots__ = ("count", "headers", "is_complete")

    def __init__(self) -> None:
        self.headers: Headers = {}
        self.count = 0
        self.is_complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value.rstrip(SPACES)
        self.count += 1

    def on_headers_complete(self) -> None:
        self.is_complete = True
