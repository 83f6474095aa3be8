"""HeadMemory: where the heads of plain requests lead to, remembered by their bytes.

A head is read by httptools, in whole, and only once while the same bytes come again. It leads
somewhere only if nothing about it is unusual: whatever might be understood in two ways, by us and
by a proxy before us, is left to the RequestReader, and so is what the lane cannot do.
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
from pipeline.proto.slices import SHORT_BYTES

_MAX_KNOWN = 512  # heads
_MAX_KNOWN_BYTES = 2048  # of each
_MAX_BYTES = 8192  # of one that is read at all
# Each line ends in CRLF, and no line continues the one before; nothing in the path is encoded.
_SOUND = re.compile(
    rb"POST ((?:/[A-Za-z0-9_.~-]++)++) HTTP/1\.1\r\n(?:[!-9;-~]++:[^\r\n]*+\r\n)*+\r\n"
)
_MAX_DIGITS = 9
_JSON_LENGTH = b"inference-header-content-length"  # in v2, binary data follow the JSON
# Headers about the connection or the body, and the headers that browsers send.
_UNUSUAL = frozenset(
    (b"transfer-encoding", b"content-encoding", b"expect", b"upgrade", b"http2-settings", b"te",
     b"trailer", b"keep-alive", b"proxy-connection", b"origin")
)  # fmt: skip
# What one caller always says in the same words, and no secret. A head with any other is not kept.
_STEADY = frozenset(
    (b"host", b"user-agent", b"accept", b"accept-encoding", b"accept-language", b"cache-control",
     b"pragma", b"connection", b"content-type", b"content-length",
     _JSON_LENGTH)
)  # fmt: skip


class Head(NamedTuple):
    """The head of a plain request: what answers it, and the length of its body.

    Byte `aligned_at` of the body is one that an array begins with, if it has one.
    """

    endpoint: LaneEndpoint
    length: int
    aligned_at: int = 0


class HeadMemory:
    """The heads that came last, and what finds out about others.

    Args:
        services: asked in turn for what answers a path.
        most_bytes: of a body that is short.
        most_large_bytes: of one that is not.
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
        """Return the head that `data` is, from its first byte to its empty line; None: unusual."""
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
                self._known.clear()  # who sends ever new ones may not make it grow
            self._known[data] = head
        return head


def _headers_of(data: bytes) -> Headers | None:
    """Return the headers of a plain request, as httptools reads them; None: one is unusual."""
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
        and len(headers) == request.count  # none is there twice
        and _UNUSUAL.isdisjoint(headers)
        and headers.get(b"connection", b"keep-alive").lower() == b"keep-alive"
        and parser.should_keep_alive()
        and not parser.should_upgrade()
        and length.isdigit()
        and len(length) <= _MAX_DIGITS
    )
    return headers if is_plain else None


def aligned_at(headers: Headers) -> int:
    """Return where in a body the first of its arrays begins, as far as the headers say it."""
    length = headers.get(_JSON_LENGTH, b"0")
    return int(length) if length.isdigit() and len(length) <= _MAX_DIGITS else 0


def _request_of(path: str, headers: Headers) -> WebRequest | None:
    """Return the request that has a head; None: what it says of its time is wrong."""
    accepts = (headers[b"accept"],) if b"accept" in headers else ()
    try:
        timeout_s = timeout_in(headers.items())
    except PackageError:
        return None
    return WebRequest("POST", path, path, "", headers, _read_in_line, timeout_s, accepts)


async def _read_in_line(limit: SizeLimit | None = None) -> bytes:
    raise NotImplementedError("the lane gives the body to `begin`")


class _Request:
    """Headers of a request, as httptools tells them."""

    __slots__ = ("count", "headers", "is_complete")

    def __init__(self) -> None:
        self.headers: Headers = {}
        self.count = 0
        self.is_complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value
        self.count += 1

    def on_headers_complete(self) -> None:
        self.is_complete = True
