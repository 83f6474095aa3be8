"""GrpcHealth: the standard health service, whose watchers are told when the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_Response = health_pb2.HealthCheckResponse
_Context = grpc.aio.ServicerContext[Any, Any]


class GrpcHealth(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # it has no types
    """The health of `names`, and of "" which is all of them: all serve, or none does.

    `on_watch` is given every watcher's call.
    """

    def __init__(self, names: Sequence[str], on_watch: Callable[[_Context], None]) -> None:
        self._names = ("", *names)
        self._on_watch = on_watch
        self._is_ready = self._is_closed = False
        self._changed = asyncio.Event()

    def set_ready(self, ready: bool) -> None:
        """Answer so from now on, and tell all watchers."""
        self._is_ready = ready and not self._is_closed
        self._tell()

    def close(self) -> None:
        """Answer NOT_SERVING for good; watchers are told, and sent away with UNAVAILABLE."""
        self._is_ready, self._is_closed = False, True
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(self, request: Any, context: _Context) -> Any:
        """Answer a caller that asks once."""
        if request.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return _Response(status=self._status(request.service))

    async def Watch(self, request: Any, context: _Context) -> None:
        """Tell a watcher the status, and each change."""
        self._on_watch(context)
        told = None
        while True:
            changed, status = self._changed, self._status(request.service)
            if status != told:
                await context.write(_Response(status=status))
                told = status
            if self._is_closed and changed is self._changed:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the server has stopped")
            await changed.wait()

    def _status(self, service: str) -> Any:
        if service not in self._names:
            return _Response.SERVICE_UNKNOWN
        return _Response.SERVING if self._is_ready else _Response.NOT_SERVING
