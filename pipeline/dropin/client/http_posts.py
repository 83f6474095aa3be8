"""HTTP for `HttpClient`: connections of threads to a server, and whole answers of bounded size."""

from __future__ import annotations

import http.client
import itertools
import re
import ssl
import threading
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from pipeline.errors import (
    ConfigError,
    DeadlineError,
    InitError,
    InputError,
    PredictorError,
    PredictorUnavailableError,
)
from pipeline.proto.http_answer import header_line
from pipeline.proto.targets import host_and_port

_PATH = re.compile(r"/[!$-~]*")  # printable ASCII, without blanks, quotes, and fragments
_HUNG_UP = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)


class PostTo(NamedTuple):
    """A service, and the limits of a call. `retries`: of a connection that cannot be made."""

    scheme: str
    ip: str
    port: str
    path: str
    timeout_ms: int
    most_bytes: int
    retries: int
    ssl_context: ssl.SSLContext | None

    def url(self) -> str:
        return f"{self.scheme}{self.ip}:{self.port}{self.path}"


class HttpPosts:
    """POSTs to one server; each thread that asks has a connection of its own."""

    def __init__(self) -> None:
        self._local = threading.local()

    def forget(self) -> None:
        """Have all threads connect anew."""
        self._local = threading.local()

    def close(self) -> None:
        """End this thread's connection."""
        kept: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if kept is not None:
            kept.close()

    def post(self, to: PostTo, body: bytes, headers: Mapping[str, Any]) -> tuple[int, str, bytes]:
        """Return (status, content type, unpacked body).

        Raises:
            InputError: the path or a header is none; nothing was sent.
            InitError: the address is none.
            PredictorError: there is no answer, or none that can be read.
            DeadlineError: the time was over.
        """
        _check(to.path, headers)
        for attempt in itertools.count():
            connection, is_used = self._connection(to)
            try:
                connection.request("POST", to.path, body, dict(headers))
                answer = connection.getresponse()
                content = answer.read(to.most_bytes + 1)
                break
            except TimeoutError as error:
                connection.close()
                text = f"{to.url()}: no answer within {to.timeout_ms} ms"
                raise DeadlineError(text) from error
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                # The server may have closed a connection while nobody used it.
                was_closed = is_used and isinstance(error, _HUNG_UP)
                if not was_closed and attempt >= to.retries:
                    raise PredictorUnavailableError(f"{to.url()}: {error!r}") from error
        try:
            return answer.status, answer.getheader("Content-Type", ""), _whole(to, answer, content)
        except PredictorError:
            connection.close()
            raise

    def _connection(self, to: PostTo) -> tuple[http.client.HTTPConnection, bool]:
        """Return this thread's connection, and whether it was used before."""
        kept: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        timeout_s = to.timeout_ms / 1000
        if kept is not None and kept.sock is not None:
            kept.sock.settimeout(timeout_s)
            return kept, True
        host, port = checked_address(f"{to.ip}:{to.port}")
        made: http.client.HTTPConnection
        if to.scheme == "https://":
            context = to.ssl_context or ssl.create_default_context()
            made = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
        else:
            made = http.client.HTTPConnection(host, port, timeout=timeout_s)
        self._local.connection = made
        return made, False


def checked_address(address: str) -> tuple[str, int]:
    """Return host and port. Raises InitError."""
    try:
        return host_and_port(address)
    except ConfigError as error:
        raise InitError(
            f"HttpClient.connect: {address!r} is no address: it should be like 127.0.0.1:9393 "
            "or http://127.0.0.1:9393"
        ) from error


def _check(path: str, headers: Mapping[str, Any]) -> None:
    """Refuse what would not be one head. Raises InputError."""
    if not _PATH.fullmatch(path):
        raise InputError(
            f"the service name {path!r} is no path: it should be like /Model/inference"
        )
    for name, value in headers.items():
        text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
        try:
            header_line(name, text)
        except ValueError as error:
            raise InputError(f"headers of HttpClient: {error}") from None


def _whole(to: PostTo, answer: http.client.HTTPResponse, content: bytes) -> bytes:
    """Return the unpacked body. Raises PredictorError: it is too large, broken or cut off."""
    is_over = len(content) > to.most_bytes or not answer.length
    if answer.getheader("Content-Encoding", "") == "gzip":
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
        try:
            content = unpacker.decompress(content, to.most_bytes + 1)
        except zlib.error as error:
            raise PredictorError(f"{to.url()}: the answer is no gzip: {error}") from error
        is_over = is_over and (unpacker.eof or len(content) > to.most_bytes)
    if not is_over:
        raise PredictorError(f"{to.url()}: the answer was cut off")
    if len(content) > to.most_bytes:
        raise PredictorError(f"{to.url()}: the answer is above {to.most_bytes} bytes")
    return content
