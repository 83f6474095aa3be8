"""TcpProxy: what one connection says goes out at another, and the other way round."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any, cast

_LOGGER = logging.getLogger(__name__)


class ProxyEnd(asyncio.Protocol):
    """One of two connections that are tied together.

    Neither is read faster than the other one takes it. An end that says no more, or is lost,
    closes the other: HTTP has no use for half a connection.
    """

    transport: asyncio.Transport
    other: ProxyEnd | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses

    def data_received(self, data: bytes) -> None:
        assert self.other is not None, "it is not read from before it is tied"
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close()


class TcpProxy:
    """A proxy of TCP connections to the Unix socket `path`, as long as it is not closed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._tying: set[asyncio.Task[None]] = set()
        self._ends: set[_Caller] = set()

    def take(self, transport: asyncio.Transport, said: bytes) -> None:
        """Take over a connection whose peer has said `said` so far."""
        caller = _Caller(self._ends)
        transport.pause_reading()
        transport.set_protocol(caller)
        caller.connection_made(transport)
        tying = asyncio.get_running_loop().create_task(self._tie(caller, said))
        self._tying.add(tying)
        tying.add_done_callback(self._tying.discard)

    async def _tie(self, caller: _Caller, said: bytes) -> None:
        loop = asyncio.get_running_loop()
        inner = ProxyEnd()
        inner.other = caller
        # Not by its path: uvloop cannot take one without a file.
        to_inner = socket.socket(socket.AF_UNIX)
        to_inner.setblocking(False)
        try:
            await loop.sock_connect(to_inner, self._path)
            await loop.create_unix_connection(lambda: inner, sock=to_inner)
        except OSError as error:
            to_inner.close()
            _LOGGER.warning("a connection cannot be relayed: %s", error)
            caller.transport.abort()
            return
        if caller.is_lost:
            inner.transport.abort()
            return
        caller.other = inner
        inner.transport.write(said)
        caller.transport.resume_reading()

    def abort(self) -> None:
        """End all connections."""
        for caller in list(self._ends):
            caller.transport.abort()


class _Caller(ProxyEnd):
    """The end that somebody called at."""

    def __init__(self, register: set[Any]) -> None:
        self.is_lost = False
        self._register = register

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._register.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._register.discard(self)
        super().connection_lost(exc)
