"""HTTP over a bare socket: what no client library would send, and all answers that come back."""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import dataclass
from http.client import HTTPResponse
from types import TracebackType
from typing import Any, Self

PATIENCE_S = 30.0


@dataclass(frozen=True)
class Answer:
    """One answer of the server; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class _Unclosable:
    """HTTPResponse closes the file that it reads from; the next answer comes from it as well."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def makefile(self, mode: str) -> Any:
        return self

    def close(self) -> None:
        """Left to the connection."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class Connection:
    """A connection to a port of this machine, as a context manager."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._file = self._socket.makefile("rb")

    def send(self, data: bytes) -> None:
        """Send everything; a connection that the server has closed is not an error here."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def answer(self, method: str = "POST") -> Answer:
        """The next answer; to `method`, since one to HEAD has no body."""
        response = HTTPResponse(_Unclosable(self._file), method=method)
        response.begin()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, response.read())

    def line(self) -> bytes:
        """The next line, or what is left before the end."""
        return self._file.readline()

    def is_at_end(self) -> bool:
        """Wait until the server hangs up; False if it sends something instead."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True

    def end_sending(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def request(
    body: bytes = b"",
    *headers: str,
    method: str = "POST",
    path: str = "/svc/prediction",
    length: int | str | None = None,
) -> bytes:
    """The bytes of one request; `length` is the Content-Length if it is not the body's."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    if not any(header.lower().startswith("transfer-encoding") for header in headers):
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def chunked(*pieces: bytes) -> bytes:
    """A body in chunks."""
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))
