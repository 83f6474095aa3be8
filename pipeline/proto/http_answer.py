"""A caller's half of HTTP: services by their endpoints, and answers, in parts or not."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import httptools

from pipeline.errors import (
    ClosedError,
    ConfigError,
    PackageError,
    TooLargeError,
    error_from_wire,
    one_line,
)
from pipeline.proto.pipeline.json import response_from_json
from pipeline.proto.pipeline_service_pb2 import Response
from pipeline.proto.targets import host_and_port

_MOST_HEAD_BYTES = 65536  # in which a head has to be at its end

SCHEME = "http://"
EVENTS = "text/event-stream"

_PATH = re.compile(r"[\w.~!$&'()*+,;=:@%/-]+", re.ASCII)
_FIELD_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_FIELD_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class HttpService(NamedTuple):
    """A service behind one endpoint."""

    host: str
    port: int
    path: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{SCHEME}{host}:{self.port}{self.path}"


def is_http(endpoints: str | Sequence[str]) -> bool:
    """Return whether any of the endpoints is for a call over HTTP."""
    names = [endpoints] if isinstance(endpoints, str) else endpoints
    return any(isinstance(name, str) and "://" in name for name in names)


def services_of(endpoints: str | Sequence[str]) -> list[HttpService]:
    """Return the endpoints' services. Raises ConfigError; TypeError: one is no text."""
    names = [endpoints] if isinstance(endpoints, str) else endpoints
    return [_service(name) for name in names]


def header_line(name: str, value: str) -> bytes:
    """Return a line of a head. Raises ValueError: a field cannot be called, or hold, that."""
    if not _FIELD_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a header field")
    if not _FIELD_VALUE.fullmatch(value):
        raise ValueError(
            f"{name!r} is {value!r}: no header field holds control characters, nor others "
            "than Latin-1's"
        )
    return f"{name}: {value}\r\n".encode("latin-1")


def _service(name: object) -> HttpService:
    if not isinstance(name, str):
        raise TypeError(f"an endpoint must be text, but get {name!r}")
    address, _, path = name.removeprefix(SCHEME).partition("/")
    service, _, method = path.partition("/")
    if not name.startswith(SCHEME) or not service or not _PATH.fullmatch(path):
        raise ConfigError(
            f"endpoint {name!r}: write http://host:port/<name of the service>, all of them so"
        )
    return HttpService(*host_and_port(address), f"/{service}/{method or 'prediction'}")


class HttpAnswer:
    """Reader of what a connection brings: bytes in, Responses out.

    Args:
        service: who answers.
        most_bytes: of one part.

    Attributes:
        parts: Responses that came and were not taken.
        is_over: nothing follows them.
    """

    def __init__(self, service: HttpService, most_bytes: int) -> None:
        self.parts: deque[Response] = deque()
        self.is_over: bool = False
        self._service = service
        self._most_bytes = most_bytes
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._searched = 0
        self._kind = ""
        self._is_whole = False
        self._head_bytes = 0
        self._is_behind_head = False
        self._says_length = False

    def take(self, data: bytes) -> None:
        """Take what was received; b"": the peer has closed. Raises PipelineError."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise ClosedError(f"{self._service}: the answer is no HTTP: {error}") from None
        except httptools.HttpParserUpgrade:
            raise ClosedError(f"{self._service} changed to another protocol") from None
        self._check_head(data)
        if not data and self._is_behind_head and not self._says_length:
            self._is_whole = True
        if self._is_events():
            self._read_events()
        elif self._is_whole:
            self._read_one()
        self._check_size(self._body)
        if not self.is_over and (self._is_whole or not data):
            raise ClosedError(f"{self._service}: the answer was cut off")

    # What the parser calls ----------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header field."""
        name = name.lower()
        if name == b"content-type":
            self._kind = value.decode("latin-1").partition(";")[0].strip().lower()
        elif name in (b"content-length", b"transfer-encoding"):
            self._says_length = True

    def on_headers_complete(self) -> None:
        """Take the end of the head."""
        self._is_behind_head = True

    def on_body(self, data: bytes) -> None:
        """Take a piece of the body."""
        self._body += data

    def on_message_complete(self) -> None:
        """Take the end of the body; of 100 and the like, behind which the answer comes."""
        if self._parser.get_status_code() < 200:
            self._kind, self._says_length, self._is_behind_head = "", False, False
        else:
            self._is_whole = True

    def _is_events(self) -> bool:
        return self._kind == EVENTS and bool(self._parser.get_status_code() == 200)

    def _read_events(self) -> None:
        body = self._body
        while not self.is_over and (end := body.find(b"\n\n", self._searched)) >= 0:
            event = bytes(body[:end])
            del body[: end + 2]
            self._searched = 0
            self._read_event(event)
        self._searched = max(0, len(body) - 1)

    def _read_event(self, event: bytes) -> None:
        name, data = b"", b""
        for line in event.split(b"\n"):
            if line.startswith(b"data:"):
                data = line.removeprefix(b"data:")
            elif line.startswith(b"event:"):
                name = line.removeprefix(b"event:").strip()
        if name == b"end":
            self.is_over = True
        elif data:  # else it is a comment
            self.parts.append(self._response(data))
            self.is_over = name == b"error"

    def _read_one(self) -> None:
        """Read an answer that does not come in parts: the only one, or a refusal."""
        status = self._parser.get_status_code()
        is_good = 200 <= status < 300
        text = one_line(self._body[:1000].decode("utf-8", "replace"))
        try:
            response = self._response(bytes(self._body))
        except PackageError:
            if is_good:
                raise
            raise ClosedError(f"{self._service} answered {status}: {text}") from None
        if not is_good:
            if response.err_no:
                raise error_from_wire(response.err_no, response.err_msg)
            raise ClosedError(f"{self._service} answered {status}: {text}")
        self.parts.append(response)
        self.is_over = True

    def _check_head(self, data: bytes) -> None:
        if not self._is_behind_head:
            self._head_bytes += len(data)
            if self._head_bytes > _MOST_HEAD_BYTES:
                raise ClosedError(f"{self._service}: the head of the answer does not end")

    def _check_size(self, part: bytes | bytearray) -> None:
        if len(part) > self._most_bytes:
            raise TooLargeError(
                f"{self._service}: an answer is larger than max_message_bytes ({self._most_bytes})"
            )

    def _response(self, body: bytes) -> Response:
        self._check_size(body)
        try:
            return response_from_json(body)
        except PackageError as error:
            raise PackageError(f"{self._service} answered with no Response: {error}") from None
