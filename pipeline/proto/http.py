"""HTTP/1.1: header lines, and a client's reader of answers."""

from __future__ import annotations

import email.utils
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httptools

from pipeline.errors import ClosedError, TooLargeError

EVENTS = "text/event-stream"

SPACES = b" \t"
"""Spaces that httptools leaves behind a header's value (RFC 9110, 5.5, excludes them)."""

_MOST_HEAD_BYTES = 65536  # of a head
_FIELD_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_FIELD_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


def header_line(name: str, value: str) -> bytes:
    """Return a header line. Raises ValueError: the name or the value is not valid."""
    if not _FIELD_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a header field")
    if not _FIELD_VALUE.fullmatch(value):
        raise ValueError(
            f"{name!r} is {value!r}: no header field holds control characters, nor others "
            "than Latin-1's"
        )
    return f"{name}: {value}\r\n".encode("latin-1")


def retry_after_s(text: str) -> float | None:
    """Return the seconds of a Retry-After, a number or a date; None if it is not valid."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            at = email.utils.parsedate_to_datetime(text).astimezone(UTC)
        except (ValueError, TypeError, OverflowError):
            return None
        seconds = (at - datetime.now(UTC)).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None


class HttpReader:
    """Reader of one answer: bytes in, a head and a body out.

    Args:
        peer: the server, for error texts.
        most_bytes: limit of a body that is read whole, and of one event.
        limit: name of this limit, for error texts.

    Attributes:
        body: its received bytes that were not taken yet.
        headers: values by names in lower case.
        is_behind_head: whether the head is complete.
        is_whole: whether the body is complete.
    """

    def __init__(self, peer: object, most_bytes: int, limit: str = "max_message_bytes") -> None:
        self.body: bytearray = bytearray()
        self.headers: dict[str, str] = {}
        self.is_behind_head: bool = False
        self.is_whole: bool = False
        self._peer = peer
        self._most_bytes = most_bytes
        self._limit = limit
        self._parser: Any = httptools.HttpResponseParser(self)
        self._stays: bool = False
        self._head_bytes = 0
        self._searched = 0  # bytes of the body without a line break
        self._name = b""
        self._data = bytearray()

    def take(self, data: bytes) -> None:
        """Read received bytes; b"" if the peer has closed. Raises PipelineError."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise ClosedError(f"{self._peer}: the answer is no HTTP: {error}") from None
        except httptools.HttpParserUpgrade:
            raise ClosedError(f"{self._peer} changed to another protocol") from None
        if not self.is_behind_head:
            self._head_bytes += len(data)
            if self._head_bytes > _MOST_HEAD_BYTES:
                raise ClosedError(f"{self._peer}: the head of the answer does not end")
        if not data and self.is_behind_head and not self._says_length():
            self.is_whole = True

    @property
    def status(self) -> int:
        """Return the status of the answer."""
        return int(self._parser.get_status_code())

    @property
    def kind(self) -> str:
        """Return the media type of the body."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def keeps_open(self) -> bool:
        """Return whether another request may follow on the connection."""
        return self.is_whole and self._says_length() and self._stays

    def events(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield name and data of each complete server-sent event, and remove it from the body.

        Comments have neither. Raises TooLargeError: an event is too large.
        """
        while (end := self.body.find(b"\n", self._searched)) >= 0:
            line = bytes(self.body[:end]).removesuffix(b"\r")
            del self.body[: end + 1]
            self._searched = 0
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                self._data += b"\n" + value if self._data else value
                self.check_size(self._data)
            elif field == b"event":
                self._name = value
            elif not line and (self._name or self._data):
                event = self._name, bytes(self._data)
                self._name, self._data = b"", bytearray()
                yield event
        self._searched = len(self.body)
        self.check_size(self.body)

    def check_size(self, part: bytes | bytearray) -> None:
        """Raise TooLargeError for a part above the limit."""
        if len(part) > self._most_bytes:
            raise TooLargeError(
                f"{self._peer}: an answer is larger than {self._limit} ({self._most_bytes})"
            )

    def _says_length(self) -> bool:
        return "content-length" in self.headers or "transfer-encoding" in self.headers

    # What the parser calls ----------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header field."""
        self.headers[name.decode("latin-1").lower()] = value.rstrip(SPACES).decode("latin-1")

    def on_headers_complete(self) -> None:
        """Take the end of the head."""
        self.is_behind_head = True
        self._stays = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        """Take a piece of the body."""
        self.body += data

    def on_message_complete(self) -> None:
        """Take the end of the body. After 100 and similar answers the final answer follows."""
        if self.status < 200:
            self.headers, self.is_behind_head = {}, False
        else:
            self.is_whole = True
