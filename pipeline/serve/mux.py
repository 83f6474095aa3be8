"""OnePortFrontend: baidu_std, gRPC and HTTP/1 on one port, distinguished by the first bytes."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import cast

from pipeline.engine.offload import Offload
from pipeline.errors import InitError
from pipeline.frontends.listen import BACKLOG
from pipeline.proto.brpc import frames as baidu_std
from pipeline.serve.connection import BaiduStdConnection
from pipeline.serve.ops import Answer

_LOGGER = logging.getLogger(__name__)

_HTTP_2 = b"PRI "
_HTTP_1 = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC")
_TELLING_BYTES = 4
_READ_TIMEOUT_S = 60.0


class OnePortFrontend:
    """The general model service in three protocols at `listener`.

    Args:
        answer: answers a call of any protocol.
        listener: a bound socket, which the frontend closes.
        max_bytes: limit of a message.
        grpc_path: path of the Unix socket for HTTP/2 connections.
        http_path: path of the Unix socket for HTTP/1 connections.
        read_timeout_s: limit for the first bytes of a peer, which show its protocol.
        offload: copies large messages on a thread; its owner stops it.
    """

    def __init__(
        self,
        answer: Answer,
        listener: socket.socket,
        max_bytes: int,
        grpc_path: str,
        http_path: str,
        read_timeout_s: float = _READ_TIMEOUT_S,
        offload: Offload | None = None,
    ) -> None:
        self._offload = offload
        self.port: int = listener.getsockname()[1]
        self._answer = answer
        self._listener = listener
        self._max_bytes = max_bytes
        self._read_timeout_s = read_timeout_s
        self._grpc_path = grpc_path
        self._http_path = http_path
        self._server: asyncio.Server | None = None
        self._new: set[_FirstBytes] = set()
        self._connections: set[BaiduStdConnection] = set()
        self._proxied: set[_ProxyEnd] = set()
        self._tying: set[asyncio.Task[None]] = set()

    async def start(self, is_ready: bool = False) -> None:
        """Listen. Raises InitError."""
        try:
            self._listener.listen(BACKLOG)  # uvloop would ignore a failure
        except OSError as error:
            raise InitError(f"cannot listen on port {self.port}: {error}") from error
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _FirstBytes(self, self._new, self._read_timeout_s),
            sock=self._listener,
            backlog=BACKLOG,
        )

    async def set_ready(self, ready: bool) -> None:
        """Do nothing: the frontends behind this one report readiness."""

    async def drain(self) -> None:
        """Do nothing: brpc has no message that sends callers away."""

    async def close(self, grace_s: float) -> None:
        """Stop accepting connections; calls on open connections continue."""
        if self._server is not None:
            self._server.close()
        self._listener.close()

    async def stop(self, grace_s: float) -> None:
        """Close all connections; peers have `grace_s` to read the remaining answers."""
        await self.close(grace_s)
        for new in list(self._new):
            new.transport.abort()
        leaving = list(self._connections)
        for connection in leaving:
            connection.transport.close()
        if leaving:
            await asyncio.wait([connection.lost for connection in leaving], timeout=grace_s)
        for connection in list(self._connections):
            connection.transport.abort()  # its peer does not read
        for caller in list(self._proxied):
            caller.transport.abort()

    def take(self, transport: asyncio.Transport, received: bytes) -> None:
        """Give a new connection to the protocol of its first bytes."""
        kind = received[:_TELLING_BYTES]
        if kind == baidu_std.MAGIC:
            connection = BaiduStdConnection(
                self._answer, self._max_bytes, self._connections, offload=self._offload
            )
            transport.set_protocol(connection)
            connection.connection_made(transport)
            connection.data_received(received)
        elif kind == _HTTP_2:
            self._relay(transport, received, self._grpc_path)
        elif kind in _HTTP_1:
            self._relay(transport, received, self._http_path)
        else:
            _LOGGER.info("a connection is closed: it began with %r", kind)
            transport.abort()

    def _relay(self, transport: asyncio.Transport, received: bytes, path: str) -> None:
        caller = _ProxyEnd(self._proxied)
        transport.pause_reading()
        transport.set_protocol(caller)
        caller.connection_made(transport)
        tying = asyncio.get_running_loop().create_task(self._tie(caller, received, path))
        self._tying.add(tying)
        tying.add_done_callback(self._tying.discard)

    async def _tie(self, caller: _ProxyEnd, received: bytes, path: str) -> None:
        loop = asyncio.get_running_loop()
        inner = _ProxyEnd(set(), caller)
        # Not by its path: uvloop requires that a path is a file.
        to_inner = socket.socket(socket.AF_UNIX)
        to_inner.setblocking(False)
        try:
            await loop.sock_connect(to_inner, path)
            await loop.create_unix_connection(lambda: inner, sock=to_inner)
        except OSError as error:
            to_inner.close()
            _LOGGER.warning("a connection cannot be relayed: %s", error)
            caller.transport.abort()
            return
        if caller not in self._proxied:  # it has left
            inner.transport.abort()
            return
        caller.other = inner
        inner.transport.write(received)
        caller.transport.resume_reading()


class _FirstBytes(asyncio.Protocol):
    """A connection whose protocol is still unknown."""

    transport: asyncio.Transport

    def __init__(
        self, frontend: OnePortFrontend, register: set[_FirstBytes], read_timeout_s: float
    ) -> None:
        self._frontend = frontend
        self._register = register
        self._read_timeout_s = read_timeout_s
        self._said = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses
        self.transport = cast(asyncio.Transport, transport)
        self._register.add(self)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._read_timeout_s, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        self._said += data
        if len(self._said) >= _TELLING_BYTES:
            self._part()
            self._frontend.take(self.transport, self._said)

    def connection_lost(self, exc: Exception | None) -> None:
        self._part()

    def _part(self) -> None:
        self._timer.cancel()
        self._register.discard(self)


class _ProxyEnd(asyncio.Protocol):
    """One of two connections that are tied together.

    Each is read only as fast as the other one is written. An end that stops sending, or is lost,
    closes the other: HTTP cannot use half a connection.
    """

    transport: asyncio.Transport

    def __init__(self, register: set[_ProxyEnd], other: _ProxyEnd | None = None) -> None:
        self._register = register
        self.other = other

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses
        self.transport = cast(asyncio.Transport, transport)
        self._register.add(self)

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
        self._register.discard(self)
        if self.other is not None:
            self.other.transport.close()
