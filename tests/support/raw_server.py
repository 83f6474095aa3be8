"""A server on a plain socket that answers every request with the same bytes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Self

from raw_http import PATIENCE_S

Answers = Callable[[bytes], "Answering"]


class Answering:
    """Hears one request of each connection, writes its bytes, and closes.

    Attributes:
        heard: the requests.
        address: "host:port".
    """

    def __init__(self, answer: bytes) -> None:
        self.heard: list[bytes] = []
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address: str = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while (connection := self._socket.accept()[0]) is not None:
            with connection:
                connection.settimeout(PATIENCE_S)
                heard = _request_of(connection)
                if not heard:
                    return
                self.heard.append(heard)
                with contextlib.suppress(OSError):
                    connection.sendall(self._answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, by a connection without a request."""
        socket.create_connection(self._socket.getsockname()).close()
        self._thread.join()
        self._socket.close()


def _request_of(connection: socket.socket) -> bytes:
    """The request that comes, with as many bytes of a body as it says; b"": there is none."""
    heard = b""
    while not heard or (missing := _missing(heard)):
        data = connection.recv(65536 if not heard else missing)
        if not data:
            return b""
        heard += data
    return heard


def _missing(heard: bytes) -> int:
    head, end, body = heard.partition(b"\r\n\r\n")
    if not end:
        return 1
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2]) - len(body)
    return 0


@contextlib.contextmanager
def answering_all() -> Iterator[Answers]:
    """Yield a function that starts such servers; they end with this block."""
    with contextlib.ExitStack() as stack:
        yield lambda answer: stack.enter_context(Answering(answer))
