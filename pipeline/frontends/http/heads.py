"""HeadMemory: where the heads of plain requests lead to, remembered by their bytes.

A head is read by httptools, in whole, and only once while the same bytes come again. It leads
somewhere only if nothing about it is unusual: whatever might be understood in two ways, by us and
by a proxy before us, is left to HttpConnection, and so is what the lane cannot do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import httptools

from pipeline.frontends.http.routes import LaneEndpoint, LaneService
from pipeline.proto.slices import SHORT_BYTES

_MAX_KNOWN = 512  # heads
_MAX_KNOWN_BYTES = 2048  # of each
_MAX_BYTES = 8192  # of one that is read at all
_START = b"POST /"
_PATH = re.compile(rb"(?:/[A-Za-z0-9_.~-]+)+")
_LENGTH = re.compile(rb"[0-9]{1,9}")
# Headers that say how the connection goes on or what the body is, and those that browsers send.
_UNUSUAL = frozenset(
    (b"transfer-encoding", b"content-encoding", b"expect", b"upgrade", b"http2-settings", b"te",
     b"trailer", b"keep-alive", b"proxy-connection", b"origin")
)  # fmt: skip
# What one caller always says in the same words, and no secret. A head with any other is not kept.
_STEADY = frozenset(
    (b"host", b"user-agent", b"accept", b"accept-encoding", b"accept-language", b"cache-control",
     b"pragma", b"connection", b"content-type", b"content-length",
     b"inference-header-content-length")
)  # fmt: skip


class Head(NamedTuple):
    """The head of a plain request: what answers it, and the length of its body."""

    endpoint: LaneEndpoint
    length: int


class HeadMemory:
    """The heads that came last, and what finds out about others.

    Args:
        services: asked in turn for what answers a path.
    """

    def __init__(self, services: Sequence[LaneService]) -> None:
        self._services = services
        self._known: dict[bytes, Head] = {}

    def find(self, data: bytes) -> Head | None:
        """Return the head that `data` is, from its first byte to its empty line; None: unusual."""
        return self._known.get(data) or self._read(data)

    def _read(self, data: bytes) -> Head | None:
        request = _Request(data)
        if request.length is None:
            return None
        path, headers = request.path.decode("ascii"), dict(request.headers)
        for service in self._services:
            if (endpoint := service.endpoint(path, headers)) is not None:
                break
        else:
            return None
        head = Head(endpoint, request.length)
        if len(data) <= _MAX_KNOWN_BYTES and _STEADY.issuperset(headers):
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()  # who sends ever new ones may not make it grow
            self._known[data] = head
        return head


class _Request:
    """A head as httptools reads it; `length` is that of the body, None if it is no plain POST."""

    def __init__(self, data: bytes) -> None:
        self.path = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.length: int | None = None
        self._is_complete = False
        if _is_sound(data) and self._parse(data):
            said = dict(self.headers)
            length = said.get(b"content-length", b"")
            if (
                len(said) == len(self.headers)  # none is there twice
                and _UNUSUAL.isdisjoint(said)
                and said.get(b"connection", b"keep-alive").lower() == b"keep-alive"
                and _PATH.fullmatch(self.path)
                and _LENGTH.fullmatch(length)
                and int(length) <= SHORT_BYTES
            ):
                self.length = int(length)

    def _parse(self, data: bytes) -> bool:
        parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return False
        return bool(
            self._is_complete
            and parser.get_method() == b"POST"
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
            and not parser.should_upgrade()
        )

    # What httptools calls

    def on_url(self, url: bytes) -> None:
        self.path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._is_complete = True


def _is_sound(data: bytes) -> bool:
    """Return whether each line of a head ends in CRLF, and none goes on with the one before."""
    lines = data.count(b"\r\n")
    return (
        len(data) <= _MAX_BYTES
        and data.startswith(_START)
        and data.count(b"\r") == lines == data.count(b"\n")
        and b"\r\n " not in data
        and b"\r\n\t" not in data
    )
