"""HttpListener: the listening socket, and the state that all its connections share."""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from typing import Any

from pipeline.engine.run.payload import LOCAL, MemoryDomain
from pipeline.errors import OverloadedError, http_status_of
from pipeline.frontends.access_log import AccessLog
from pipeline.frontends.http.connection import HttpConnection
from pipeline.frontends.http.exchange import Exchange, head_of
from pipeline.frontends.http.heads import HeadMemory
from pipeline.frontends.http.logged import LoggedConnection
from pipeline.frontends.http.receiver import PieceTurns
from pipeline.frontends.http.routes import CLOSE, JSON, Header, WebResponse, WebStream, error_body
from pipeline.frontends.listen import BACKLOG, take_last
from pipeline.system.event_loop import waited
from pipeline.system.resources import most_open_files

_KEEP_ALIVE_S = 75  # between two requests
_DRAIN_TIMEOUT_S = 0.2  # for the last requests on idle connections
_DRAIN_ROUNDS = 4  # of the event loop, to read what has arrived


class HttpListener:
    """A listening socket and its connections.

    Args:
        app: answers requests.
        read_timeout_s: for a request to arrive, from its first byte to its last.
        heads: the heads of requests in the lane.
        access: the log of requests, or None.
        memory: receives large bodies.
        more_headers: headers of each answer that `answer` and `ok_head` begin.

    Attributes:
        is_draining: each connection is closed with its next answer.
        lost: set when a connection is closed.
        connections: the open ones, the oldest first.
        tasks: the tasks that answer requests.
        keep_alive_s: time between two requests of a client.
        ok_head: the head of an answer in JSON up to its length.
        piece_turns: where connections wait to read more of a large body.
    """

    keep_alive_s: float = _KEEP_ALIVE_S

    def __init__(
        self,
        app: Callable[[Exchange], Coroutine[Any, Any, None]],
        read_timeout_s: float,
        heads: HeadMemory,
        access: AccessLog | None = None,
        memory: MemoryDomain = LOCAL,
        more_headers: tuple[Header, ...] = (),
    ) -> None:
        self._more_headers = more_headers
        self.app = app
        self.memory = memory
        self.heads = heads
        self._new_connection: Callable[[HttpListener], HttpConnection] = HttpConnection
        if access is not None:
            self._new_connection = functools.partial(LoggedConnection, access)
        self.read_timeout_s = read_timeout_s
        self.is_draining: bool = False
        self.lost: asyncio.Event = asyncio.Event()
        self.connections: dict[HttpConnection, None] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.ok_head: bytes = b""
        self.piece_turns: PieceTurns = PieceTurns()
        self._date: Header = (b"date", b"")
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._closed_at: float | None = None
        self._closing_idle: asyncio.TimerHandle | None = None

    async def start(self, listener: socket.socket) -> None:
        """Accept connections on a listening socket."""
        self._loop = asyncio.get_running_loop()
        self._socket = listener
        self._most = max(1, most_open_files() // 2)
        self._server = await self._loop.create_server(
            self.meet, sock=listener, backlog=BACKLOG, start_serving=False
        )
        self._tell_time()
        await self._server.start_serving()  # if this is cancelled, `stop` still closes the server

    def meet(self) -> asyncio.Protocol:
        """Return the protocol of a new connection.

        Half of the file descriptors are for connections. An additional connection replaces the
        oldest idle one, and is refused if none is idle: without a free descriptor it would be cut
        off.
        """
        if len(self.connections) >= self._most:
            idle = next((connection for connection in self.connections if connection.is_idle), None)
            if idle is None:
                return _Refusal(self)
            idle.shutdown()
        return self._new_connection(self)

    def _tell_time(self) -> None:
        """Update the `date` header, once a second."""
        now = time.time()
        self._date = (b"date", formatdate(now, usegmt=True).encode())
        self.ok_head = head_of(200, JSON, (self._date, *self._more_headers))
        self._clock = self._loop.call_later(1.0 - now % 1.0, self._tell_time)

    def head(self, reply: WebResponse | WebStream, is_last: bool, *more: Header) -> bytes:
        """Return the head of an answer up to its length; `is_last`: of its connection."""
        last = (CLOSE,) if is_last else ()
        return head_of(reply.status, reply.content_type, (self._date, *reply.headers, *last, *more))

    def answer(self, reply: WebResponse, is_last: bool) -> bytes:
        """Return the bytes of an answer up to its tail; `is_last`: of its connection."""
        head = self.head(reply, is_last, *self._more_headers)
        return b"%b%d\r\n\r\n%b" % (head, reply.size, reply.body)

    async def close(self) -> None:
        """Stop accepting; open connections end as when draining, idle ones soon.

        Idle connections are not closed at once: a request may be on its way.
        """
        self.is_draining = True
        if self._closed_at is not None or self._server is None or self._socket is None:
            return
        self._closed_at = self._loop.time()
        await take_last(self._socket)
        self._server.close()
        self._socket.close()
        self._closing_idle = self._loop.call_later(_DRAIN_TIMEOUT_S, self._close_idle)

    def _close_idle(self, rounds: int = _DRAIN_ROUNDS) -> None:
        """Close idle connections; the others end with their answers.

        First the event loop reads what has arrived: it may have been busy until now.
        """
        if rounds:
            self._loop.call_soon(self._close_idle, rounds - 1)
        else:
            for connection in list(self.connections):
                connection.shutdown()

    async def stop(self, grace_s: float) -> None:
        """End all connections."""
        if self._server is None:
            return
        await self.close()
        await self._wait_for_callers((self._closed_at or 0.0) + min(_DRAIN_TIMEOUT_S, grace_s))
        if self._closing_idle is not None:
            self._closing_idle.cancel()
        ends = self._loop.time() + max(1.0, grace_s)
        for connection in list(self.connections):
            connection.shutdown()
        await self._wait_for_callers(ends)
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=max(0.0, ends - self._loop.time()))
        for task in self.tasks:
            task.cancel()
        for connection in list(self.connections):
            connection.transport.abort()  # the client does not read its answer
        self._clock.cancel()
        self._server = None

    async def _wait_for_callers(self, ends: float) -> None:
        """Wait, at most until `ends`, for requests that clients sent before they saw the close."""
        while self.connections:
            self.lost.clear()
            if not await waited(self.lost, ends - self._loop.time()):
                break


class _Refusal(asyncio.Protocol):
    """A connection that is refused because there are too many."""

    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses
        ours: asyncio.Transport = transport  # type: ignore[assignment]
        ours.write(self._listener.answer(_too_many(), is_last=True))
        ours.close()


def _too_many() -> WebResponse:
    text = "too many connections are open for the files that the server may open (ulimit -n)"
    error = OverloadedError(text)
    later = (b"retry-after", b"%d" % error.retry_after_s)
    return WebResponse(http_status_of(error), error_body(error), headers=(later,))
