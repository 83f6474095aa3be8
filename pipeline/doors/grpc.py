"""GrpcDoor: `PipelineService` on `grpc.aio`, with the standard health service and reflection."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from pipeline.doors.listen import bind
from pipeline.errors import InitError, OverloadedError
from pipeline.proto import pipeline_service_pb2

_LOGGER = logging.getLogger(__name__)

SERVICE = "baidu.paddle_serving.pipeline_serving.PipelineService"

_LOOK_S = 0.1  # how often we look whether gRPC has crashed
_FAREWELL_S = 30.0  # for the calls of a server that has crashed
_THREADS = {"event_engine", "lifeguard"}  # gRPC's own, as long as it is in use
_REST_S = 1.0  # for them to end when the last channel was closed
_Context = grpc.aio.ServicerContext[Any, Any]
Handle = Callable[[Any, float | None], Awaitable[Any]]
"""`DAGExecutor.handle`: (request, seconds that the caller gives) -> response."""


class GrpcDoor:
    """Serves `handle` at `host:port`.

    Args:
        handle: answers a Request with a Response.
        host: address to bind; "::" for IPv6 and IPv4.
        port: 0 for any free one, see `port` after `start`.
        max_message_bytes: limit of a message, both ways.
        is_shared: whether other processes of this server listen on the port too.
    """

    def __init__(
        self,
        handle: Handle,
        host: str,
        port: int,
        max_message_bytes: int,
        is_shared: bool = False,
    ) -> None:
        self.port = port
        self._is_shared = is_shared
        self._handle = handle
        self._host = host
        self._max_message_bytes = max_message_bytes
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()
        self._guard: asyncio.Task[None] | None = None
        self._crashed: dict[asyncio.Future[None], grpc.aio.Server] = {}

    async def start(self, is_ready: bool = False) -> None:
        """Bind and listen. InitError names an address that is in use."""
        if not self._is_shared:  # else it is reserved, and a trial would be given connections
            # gRPC is content with either of IPv6 and IPv4 and does not say why it got none.
            bind(self._host, self.port, "rpc_port").close()
        await self.set_ready(is_ready)
        await self._open()
        self._guard = asyncio.create_task(self._keep_open())

    async def _open(self) -> None:
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", self._max_message_bytes),
                ("grpc.max_send_message_length", self._max_message_bytes),
                # Unless it is meant to: else a second server would silently share the port.
                ("grpc.so_reuseport", int(self._is_shared)),
            ]
        )
        method: grpc.RpcMethodHandler[bytes, pipeline_service_pb2.Response]
        method = grpc.unary_unary_rpc_method_handler(
            self._inference,
            request_deserializer=None,  # gRPC would log each broken message with a traceback
            response_serializer=pipeline_service_pb2.Response.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {"inference": method}),)
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.port = server.add_insecure_port(f"{host}:{self.port}")
        self._server = server
        await server.start()

    async def _keep_open(self) -> None:
        """Open again if gRPC has crashed.

        From grpcio 1.84 on any peer can end the loop that accepts calls, with a request for a
        path that is not UTF-8: an exception there closes the port for good.
        """
        while (server := self._server) is not None:
            try:
                if not await server.wait_for_termination(_LOOK_S):
                    return
            except Exception as error:  # whatever it is that went wrong in there
                _LOGGER.warning("gRPC crashed and is started again: %s", error)
                leaving = asyncio.ensure_future(server.stop(_FAREWELL_S))
                self._crashed[leaving] = server
                leaving.add_done_callback(self._crashed.pop)
                await self._open()

    async def set_ready(self, ready: bool) -> None:
        """Tell the health service, for the server as a whole and for our service."""
        status = (
            health_pb2.HealthCheckResponse.SERVING
            if ready
            else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        await self._health.set("", status)
        await self._health.set(SERVICE, status)

    async def stop(self, grace_s: float) -> None:
        """Stop accepting; end what still runs after `grace_s`.

        Health watchers and reflection clients stay until they are ended: call it again with a
        shorter time when the requests are answered.
        """
        if self._guard is not None:
            self._guard.cancel()
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            servers = (self._server, *self._crashed.values())
            await asyncio.gather(*(server.stop(grace_s) for server in servers))

    async def _inference(self, message: bytes, context: _Context) -> pipeline_service_pb2.Response:
        try:
            request = pipeline_service_pb2.Request.FromString(message)
        except DecodeError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a Request: {error}")
        try:
            response = await self._handle(request, context.time_remaining())
        except OverloadedError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except Exception as error:  # a bug of ours: that caller is told
            _LOGGER.exception("inference failed", exc_info=error)
            await context.abort(grpc.StatusCode.INTERNAL, "internal error of the server")
        if not isinstance(response, pipeline_service_pb2.Response):
            await context.abort(
                grpc.StatusCode.INTERNAL,
                f"pack_response_package returned {type(response).__name__}, not a Response",
            )
        return response


def check_that_grpc_rests() -> None:
    """For who is about to fork a process that uses gRPC: in use here, it is useless there.

    Raises:
        InitError: it is in use.
    """
    deadline = time.monotonic() + _REST_S
    while _THREADS & _thread_names():
        if time.monotonic() > deadline:
            raise InitError(
                "build_dag_each_worker: gRPC is in use in this process, so that copies of the "
                "server that are forked from it could not use it. Close the channels, "
                "PipelineClients and servers of this process first, or start this server before "
                "them, or set dag.start_method: spawn."
            )
        time.sleep(0.002)


def _thread_names() -> set[str]:
    """What the system calls the threads of this process."""
    names = set()
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has just ended
            names.add(path.read_text().strip())
    return names
