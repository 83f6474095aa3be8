"""A caller's connection without a socket: bytes in as a test says, bytes out for it to look at."""

from __future__ import annotations

import asyncio
from typing import Any

from pipeline.frontends.http.server import HttpFrontend


class FakeTransport(asyncio.Transport):
    """The transport of one connection on the running loop.

    Attributes:
        written: what the server has sent.
        is_reading: False while it does not want to hear more.
        reads_again: set when it does, or has ended.
        is_over: one of the two sides has closed the connection.
        protocol: receives the bytes that come.
    """

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self.written = b""
        self.is_reading = True
        self.reads_again = asyncio.Event()
        self.is_over = self._is_closing = False
        self._was_ended = False
        self.protocol = protocol
        protocol.connection_made(self)

    def send(self, data: bytes) -> None:
        """Let a packet arrive; the server reads at the moment, as much as it has room for."""
        assert self.is_reading
        assert not self._is_closing
        while data:
            if not isinstance(self.protocol, asyncio.BufferedProtocol):
                self.protocol.data_received(data)
                break
            place = memoryview(self.protocol.get_buffer(-1))
            size = min(len(place), len(data))
            place[:size] = data[:size]
            data = data[size:]
            self.protocol.buffer_updated(size)

    def leave(self) -> None:
        """Hang up as the caller."""
        if not self._is_closing:
            self._is_closing = True
            self._end()

    # The calls of protocols

    def write(self, data: Any) -> None:
        if not self._is_closing and not self._was_ended:
            self.written += bytes(data)

    def write_eof(self) -> None:
        self._was_ended = True
        self.reads_again.set()

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._end)

    abort = close

    def _end(self) -> None:
        self.is_over = True
        self.reads_again.set()
        self.protocol.connection_lost(None)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self.is_reading = False
        self.reads_again.clear()

    def resume_reading(self) -> None:
        self.is_reading = True
        self.reads_again.set()

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    @property
    def has_ended(self) -> bool:
        """True if nothing will come any more."""
        return self._is_closing or self._was_ended


def connect(frontend: HttpFrontend) -> FakeTransport:
    """Return a new connection to a frontend that was started."""
    return FakeTransport(frontend._listener.meet())
