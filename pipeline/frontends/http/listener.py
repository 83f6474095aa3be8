"""HttpListener: the listening socket, and what all its connections have in common.

With `connection` it is all that rests on uvicorn: here on its Server, which accepts and shuts down.
"""

from __future__ import annotations

import asyncio
import functools
import socket
from typing import Any

import uvicorn

from pipeline.errors import OverloadedError, http_status_of
from pipeline.frontends.http.connection import HttpConnection, head_of
from pipeline.frontends.http.heads import HeadMemory
from pipeline.frontends.http.lane import LaneConnection
from pipeline.frontends.http.routes import CLOSE, JSON, Header, WebResponse, error_body
from pipeline.frontends.listen import BACKLOG, take_last
from pipeline.system.event_loop import waited
from pipeline.system.file_limit import most_open_files

_KEEP_ALIVE_S = 75  # between two requests
_DRAIN_TIMEOUT_S = 0.2  # for the last requests on connections that were kept
_DRAIN_ROUNDS = 4  # of the loop, in which it reads what has come


class HttpListener:
    """A listening socket and its connections.

    Args:
        app: answers requests, as ASGI has it; the scope has CONNECTION and HEADERS.
        read_timeout_s: for a request to arrive, from its first byte to its last.
        heads: those with which connections may begin in the lane; None: there is none.

    Attributes:
        is_draining: each connection is closed with the answer that it is given next.
        lost: set when a connection is closed.
        connections: those that there are.
        keep_alive_s: for a caller between two requests.
    """

    keep_alive_s: float = _KEEP_ALIVE_S

    def __init__(self, app: Any, read_timeout_s: float, heads: HeadMemory | None = None) -> None:
        self._app = app
        self._heads = heads
        self.read_timeout_s = read_timeout_s
        self.is_draining: bool = False
        self.lost: asyncio.Event = asyncio.Event()
        self._socket: socket.socket | None = None
        self._server: uvicorn.Server | None = None
        self._closed_at: float | None = None
        self._closing_idle: asyncio.TimerHandle | None = None
        self._dated: list[Header] | None = None
        self._ok_head = b""

    async def start(self, listener: socket.socket) -> None:
        """Accept connections on a socket that listens."""
        self._loop = asyncio.get_running_loop()
        self._socket = listener
        config = uvicorn.Config(
            self._app,
            http=self._connection,  # type: ignore[arg-type]  # uvicorn calls it like the class
            ws="none",
            lifespan="off",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            log_config=None,
            timeout_keep_alive=_KEEP_ALIVE_S,
            backlog=BACKLOG,
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._state = self._server.server_state
        self.connections: _InOrder = _InOrder()
        self._state.connections = self.connections  # type: ignore[assignment]  # what it uses of a set
        self._most = max(1, most_open_files() // 2)
        self._server.lifespan = config.lifespan_class(config)
        self._ticker = asyncio.create_task(self._server.main_loop())
        await self._server.startup(sockets=[listener])

    def _connection(self, **arguments: Any) -> asyncio.Protocol:
        """Return the protocol of a new connection, as uvicorn asks for it.

        Half of the open files are for connections. Who is one too many takes the place of the
        first on which nothing is asked, and is refused if there is none: without a file left it
        would be cut off.
        """
        if len(self.connections) >= self._most:
            idle = next((each for each in self.connections if each.is_idle), None)
            if idle is None:
                return _Refusal(self)
            idle.shutdown()
        make = functools.partial(HttpConnection, listener=self, **arguments)
        return make() if self._heads is None else LaneConnection(self, self._heads, make)

    def ok_head(self) -> bytes:
        """Return the head of an answer in JSON up to its length."""
        if self._state.default_headers is not self._dated:  # there is a new list each second
            self._dated = self._state.default_headers
            self._ok_head = head_of(200, JSON, tuple(self._dated))
        return self._ok_head

    def answer(self, reply: WebResponse, is_last: bool) -> bytes:
        """Return the bytes of an answer; `is_last`: of its connection."""
        headers = (*self._state.default_headers, *reply.headers, *((CLOSE,) if is_last else ()))
        head = head_of(reply.status, reply.content_type, headers)
        return b"%b%d\r\n\r\n%b" % (head, len(reply.body), reply.body)

    async def close(self) -> None:
        """Accept no more; those that there are end as when draining, idle ones soon.

        Not at once: what is asked on one may be on its way.
        """
        self.is_draining = True
        if self._closed_at is not None or self._server is None or self._socket is None:
            return
        self._closed_at = self._loop.time()
        await take_last(self._socket)
        for listener in self._server.servers:
            listener.close()
        self._socket.close()
        self._closing_idle = self._loop.call_later(_DRAIN_TIMEOUT_S, self._close_idle)

    def _close_idle(self, rounds: int = _DRAIN_ROUNDS) -> None:
        """Close the connections on which nothing is asked; the others end with their answers.

        First the loop reads what has come: it may have been busy until now.
        """
        if rounds:
            self._loop.call_soon(self._close_idle, rounds - 1)
        elif self._server is not None:
            for connection in list(self._server.server_state.connections):
                connection.shutdown()

    async def stop(self, grace_s: float) -> None:
        """End all connections."""
        if self._server is None:
            return
        await self.close()
        await self._wait_for_callers((self._closed_at or 0.0) + min(_DRAIN_TIMEOUT_S, grace_s))
        if self._closing_idle is not None:
            self._closing_idle.cancel()
        self._ticker.cancel()
        # Not by the server's own `shutdown`, which sleeps 0.1 s at a time.
        ends = self._loop.time() + max(1.0, grace_s)
        for connection in list(self.connections):
            connection.shutdown()
        await self._wait_for_callers(ends)
        left_s = max(0.0, ends - self._loop.time())
        await asyncio.wait({self._ticker, *self._state.tasks}, timeout=left_s)
        for task in self._state.tasks:
            task.cancel()
        for connection in list(self.connections):
            connection.transport.abort()  # its caller does not read its answer
        self._server = None

    async def _wait_for_callers(self, ends: float) -> None:
        """Wait, until then, for what callers sent before they could know that we close."""
        while self.connections:
            self.lost.clear()
            if not await waited(self.lost, ends - self._loop.time()):
                break


class _InOrder(dict[Any, None]):
    """A set of connections in the order in which they came."""

    def add(self, connection: Any) -> None:
        """Add one; it is the last."""
        self[connection] = None

    def discard(self, connection: Any) -> None:
        """Take one out, if it is there."""
        self.pop(connection, None)


class _Refusal(asyncio.Protocol):
    """A connection that is told that there are too many, and closed."""

    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        ours: asyncio.Transport = transport  # type: ignore[assignment]  # uvloop's are no subclasses
        ours.write(self._listener.answer(_too_many(), is_last=True))
        ours.close()


def _too_many() -> WebResponse:
    text = "too many connections are open for the files that the server may open (ulimit -n)"
    error = OverloadedError(text)
    later = (b"retry-after", b"%d" % error.retry_after_s)
    return WebResponse(http_status_of(error), error_body(error), headers=(later,))
