"""gRPC's server for grpcio 1.84 and later, whose port a peer cannot close.

There, one loop takes all calls and decodes the path of a method that is not registered. A path
that is not UTF-8 ends this loop, and with it the server. Here each method has a loop of its own,
and paths without a method are answered without being read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import grpc
from grpc._cython import cygrpc
from grpc.aio import _server

FIRST_GUARDED = (1, 84)
"""The first grpcio whose server needs the guard."""

FIRST_UNKNOWN = (1, 86)
"""The first grpcio with which the guard was not tried: it replaces private methods."""

_NO_METHOD = ""


def new_server(options: Sequence[tuple[str, int]]) -> grpc.aio.Server:
    """Return a server with gRPC's `options`, whose methods are added as registered ones also."""
    if version_of(grpc.__version__) < FIRST_GUARDED:
        return grpc.aio.server(options=options)
    return cast(grpc.aio.Server, _GuardedServer(options))  # its class is private in gRPC


def add_methods(
    server: grpc.aio.Server, service: str, methods: dict[str, grpc.RpcMethodHandler[Any, Any]]
) -> None:
    """Add a service, by its full name, and its methods by name to such a server."""
    handler = grpc.method_handlers_generic_handler(service, methods)
    server.add_generic_rpc_handlers((handler,))
    server.add_registered_method_handlers(service, methods)


def version_of(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(map(int, version.split(".")[:2]))


class _GuardedServer(_server.Server):
    """A server of registered methods."""

    def __init__(self, options: Sequence[tuple[str, int]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = _Core(self._loop, tuple(options))


class _Core(cygrpc.AioServer):  # type: ignore[misc]
    def __init__(
        self, loop: asyncio.AbstractEventLoop, options: tuple[tuple[str, int], ...]
    ) -> None:
        super().__init__(loop, None, (), (), options, None)
        self._event_loop = loop  # the base class hides its own
        self._methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        self._calls: set[asyncio.Task[None]] = set()  # the event loop holds tasks weakly

    def add_registered_method_handlers(
        self, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        super().add_registered_method_handlers(handlers)
        self._methods.update(handlers)

    def resolve_handler(self, call: grpc.HandlerCallDetails) -> Any:
        """Return the method of a call; None: UNIMPLEMENTED."""
        return self._methods.get(call.method)

    def _make_request_call_future(self, path: bytes | None) -> asyncio.Task[None]:
        return self._event_loop.create_task(self._take_calls(path))

    async def _take_calls(self, path: bytes | None) -> None:
        """Begin each call of a path; None: those of paths without a method.

        gRPC ends it with an exception when the server stops.
        """
        name = _NO_METHOD if path is None else path.decode()
        loop = self._event_loop
        while True:
            call = await (
                self._request_call() if path is None else self._request_registered_call(path)
            )
            answering = cygrpc._handle_rpc(name, self, (), call, loop, False)
            task = loop.create_task(cygrpc._schedule_rpc_coro(answering, call, loop, name))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
            del call, answering, task  # free their data while this waits
