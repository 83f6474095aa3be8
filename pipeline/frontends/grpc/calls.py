"""RunningCalls and GrpcHealth: the active calls of a GrpcFrontend, and its health service."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from weakref import WeakSet

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pipeline.frontends.grpc.sockets import GrpcSockets, Peer, ProcessSocket, peer_named, send_away
from pipeline.system.event_loop import waited

_Context = grpc.aio.ServicerContext[Any, Any]
_Health = health_pb2.HealthCheckResponse


class RunningCalls:
    """The active calls of a frontend; when it closes, their connections end with them.

    `is_closing`: their streams have ended.
    """

    def __init__(self) -> None:
        self.is_closing: bool = False
        # Callers by call, noted at the start: after the end of a call grpcio may crash when asked.
        self._calls: dict[_Context, str] = {}
        self._streams = WeakSet[Messages]()
        self._idle: asyncio.Event | None = None  # set while `wait` runs
        self._open: dict[Peer, list[ProcessSocket]] = {}
        self._per_peer: Counter[Peer] = (
            Counter()
        )  # number of calls, by peer with an open connection

    def add(self, context: _Context) -> None:
        """Count a call as active until its answer is sent."""
        self._calls[context] = caller = context.peer()
        if self._open:
            self._per_peer[peer_named(caller)] += 1
        context.add_done_callback(self._ended)  # type: ignore[arg-type]  # it is given the context

    def read(self, messages: AsyncIterator[bytes]) -> Messages:
        """Return the messages of a client's stream, until it or the server ends it."""
        reading = Messages(messages)
        self._streams.add(reading)
        if self.is_closing:
            reading.close()
        return reading

    def end_streams(self) -> None:
        """Read no more from streams: they end after their answers."""
        self.is_closing = True
        for messages in list(self._streams):
            messages.close()

    def send_away(self, sockets: GrpcSockets) -> None:
        """Send each client away when nothing runs on its connection."""
        self._open.clear()
        for peer, connection in sockets.connections():
            self._open.setdefault(peer, []).append(connection)
        self._per_peer = Counter(map(peer_named, self._calls.values()))
        for peer in self._open.keys() - self._per_peer.keys():
            self._send_peer_away(peer)

    async def wait(self, timeout_s: float) -> None:
        """Wait for the calls to end, at most until `ends`."""
        if self._calls:
            self._idle = self._idle or asyncio.Event()
            self._idle.clear()
            await waited(self._idle, timeout_s)

    def _ended(self, context: _Context) -> None:
        caller = self._calls.pop(context)
        if self._idle is not None and not self._calls:
            self._idle.set()
        if self._open:
            peer = peer_named(caller)
            self._per_peer[peer] -= 1
            if self._per_peer[peer] <= 0:
                self._send_peer_away(peer)

    def _send_peer_away(self, peer: Peer) -> None:
        for connection in self._open.pop(peer, ()):
            send_away(connection)


class Messages:
    """An iterator over a client's messages, which ends early when it is closed.

    `is_cut`: it has ended early.
    """

    def __init__(self, messages: AsyncIterator[bytes]) -> None:
        self._messages = messages
        self._reading: asyncio.Future[bytes] | None = None
        self._is_closed = False
        self.is_cut: bool = False

    def __aiter__(self) -> Messages:
        return self

    async def __anext__(self) -> bytes:
        if self._is_closed:
            raise self._cut()
        self._reading = asyncio.ensure_future(anext(self._messages))
        try:
            return await self._reading
        except asyncio.CancelledError:
            if self._is_closed and self._reading.cancelled():
                raise self._cut() from None
            self._reading.cancel()
            raise

    def _cut(self) -> StopAsyncIteration:
        self.is_cut = True
        return StopAsyncIteration()

    def close(self) -> None:
        """End the iteration now."""
        self._is_closed = True
        if self._reading is not None:
            self._reading.cancel()


class GrpcHealth(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # it has no types
    """The health of `names`, and of "" for all of them: all serve, or none does.

    `on_watch` receives the call of every watcher.
    """

    def __init__(self, names: Sequence[str], on_watch: Callable[[_Context], None]) -> None:
        self._names = ("", *names)
        self._on_watch = on_watch
        self._is_ready = self._is_closed = False
        self._changed = asyncio.Event()

    def set_ready(self, ready: bool) -> None:
        """Set the answer, and notify all watchers."""
        self._is_ready = ready and not self._is_closed
        self._notify()

    def close(self) -> None:
        """Answer NOT_SERVING permanently; watchers receive it, then their calls end with
        UNAVAILABLE.
        """
        self._is_ready, self._is_closed = False, True
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(self, request: Any, context: _Context) -> Any:
        """Answer one health check."""
        if request.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return _Health(status=self._status(request.service))

    async def Watch(self, request: Any, context: _Context) -> None:
        """Send a watcher the status, and each change."""
        self._on_watch(context)
        reported = None
        while True:
            changed, status = self._changed, self._status(request.service)
            if status != reported:
                await context.write(_Health(status=status))
                reported = status
            if self._is_closed and changed is self._changed:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the server has stopped")
            await changed.wait()

    def _status(self, service: str) -> Any:
        if service not in self._names:
            return _Health.SERVICE_UNKNOWN
        return _Health.SERVING if self._is_ready else _Health.NOT_SERVING
