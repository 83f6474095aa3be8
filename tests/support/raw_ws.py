"""A WebSocket over a bare socket: what clients send, and what none would."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

PATIENCE_S = 30.0
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # of that key, as RFC 6455 has it


def masked(
    kind: int, data: bytes = b"", is_last: bool = True, mask: bytes = b"\x37\xfa\x21\x3d"
) -> bytes:
    """A frame of a client."""
    size, first = len(data), kind | (0x80 if is_last else 0)
    if size < 126:
        head = bytes((first, 0x80 | size))
    elif size < 65536:
        head = bytes((first, 0xFE)) + size.to_bytes(2)
    else:
        head = bytes((first, 0xFF)) + size.to_bytes(8)
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))


class RawWebSocket:
    """A connection that has been upgraded, if the server took it.

    Attributes:
        status: of the answer to the offer.
        headers: of it, by lower-case names.
        body: of an answer other than an upgrade.
    """

    def __init__(self, port: int, path: str, **headers: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._file = self._socket.makefile("rb")
        lines = {
            "Host": f"127.0.0.1:{port}",
            "Upgrade": "websocket", "Connection": "keep-alive, Upgrade",
            "Sec-WebSocket-Key": KEY, "Sec-WebSocket-Version": "13",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }  # fmt: skip
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
        self._socket.sendall(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
        self.status = int(self._file.readline().split()[1])
        self.headers: dict[str, str] = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode().partition(": ")
            self.headers[name.lower()] = value
        self.body = self._file.read(int(self.headers.get("content-length", 0)))

    def raw(self, data: bytes) -> None:
        """Send bytes; a connection that the server has closed is not an error here."""
        self.sends(data)

    def sends(self, data: bytes) -> bool:
        """Send bytes; whether the server has not hung up."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def say(self, **said: Any) -> None:
        """Send a JSON object as one text."""
        self.raw(masked(1, json.dumps(said).encode()))

    def frame(self) -> tuple[int, bytes] | None:
        """The next whole message or control frame; None: the server has hung up."""
        kind, data = 0, b""
        while True:
            head = self._file.read(2)
            if len(head) < 2:
                return None
            size = head[1]
            if size > 125:
                size = int.from_bytes(self._file.read(2 if size == 126 else 8))
            kind, data = head[0] & 15 or kind, data + self._file.read(size)
            if head[0] & 0x80:
                return kind, data

    def next(self) -> Any:
        """The next text, as JSON; of a close its code and reason."""
        found = self.frame()
        assert found is not None, "the server hung up without a close"
        kind, data = found
        return json.loads(data) if kind == 1 else (int.from_bytes(data[:2]), data[2:].decode())

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@contextlib.contextmanager
def web_socket(port: int, path: str, **headers: str) -> Iterator[RawWebSocket]:
    connection = RawWebSocket(port, path, **headers)
    try:
        yield connection
    finally:
        connection.close()
