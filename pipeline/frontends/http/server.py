"""HttpFrontend: `POST /<name>/<method>` in proto3 JSON, health, and the routes of others."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar

from pipeline.engine.offload import Offload
from pipeline.engine.request import Begin
from pipeline.errors import (
    ClosedError,
    NoServiceError,
    PackageError,
    UserCodeError,
)
from pipeline.frontends.base import HeaderForwarding
from pipeline.frontends.http.bodies import BodyReader, is_all_json
from pipeline.frontends.http.connection import CONNECTION, HEADERS, HttpConnection
from pipeline.frontends.http.heads import HeadMemory
from pipeline.frontends.http.hosts import Hosts
from pipeline.frontends.http.listener import HttpListener
from pipeline.frontends.http.pairs import Pairs
from pipeline.frontends.http.routes import (
    CLOSE,
    JSON,
    Header,
    Headers,
    HttpError,
    LaneService,
    Routes,
    SizeLimit,
    WebRequest,
    WebResponse,
    WebStream,
    error_body,
    not_allowed,
    timeout_in,
)
from pipeline.frontends.listen import bind, port_of
from pipeline.frontends.wire import JsonWire
from pipeline.proto.slices import SHORT_BYTES, Limits

_LOGGER = logging.getLogger(__name__)

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_READ_TIMEOUT_S = 60.0
HEALTH = ("/health", "/healthz")
"""Paths by which benchmarks and load balancers ask for `/health/ready`."""

_OF_ROUTES = ("", "v2", "api", "v1")  # first parts of paths that are no service's
_SPECIAL = frozenset((b"content-encoding", b"grpc-timeout", b"traceparent"))


class HttpFrontend:
    """An HTTP server for an engine at `host:port`, and for the routes of others.

    Args:
        begin: has a Request answered with a Response; None: there are only routes.
        host, port, is_shared, key: see `listen.bind`; after `start`, `port` is the real one.
        max_message_bytes: limit of a request's body, unpacked.
        read_timeout_s: for a request to arrive, from its first byte to its last.
        routes: asked in turn for every path but `/<name>/<method>`.
        takes_trace: `begin` is told the caller's traceparent.
        forwarding: the headers that it is told; None: none.
        offload: where large bodies are read and written; its owner stops it.
        limits: of JSON.
        hosts: the names that the server goes by.
        is_plain: `begin` takes a PlainRequest where a Request stands.
        lanes: of paths of others that have one.
    """

    pipeline_has_lane: ClassVar[bool] = True  # tests hold both ways to the same answers

    def __init__(
        self,
        begin: Begin | None,
        host: str,
        port: int,
        max_message_bytes: int,
        read_timeout_s: float = _READ_TIMEOUT_S,
        is_shared: bool = False,
        routes: Sequence[Routes] = (),
        takes_trace: bool = False,
        forwarding: HeaderForwarding | None = None,
        key: str = "http_port",
        offload: Offload | None = None,
        limits: Limits | None = None,
        hosts: Hosts | None = None,
        is_plain: bool = False,
        lanes: Sequence[LaneService] = (),
    ) -> None:
        self.port: int = port
        self._hosts = hosts or Hosts()
        self._offload = offload or Offload(threads=0)
        self._bodies = BodyReader(self._offload)
        limits = limits or Limits()
        self._is_ready = False
        self._bind = functools.partial(bind, host, port, key, is_shared)
        self._limit = self._json_limit = SizeLimit("max_message_bytes", max_message_bytes)
        if limits.json_bytes < max_message_bytes:
            self._json_limit = SizeLimit("max_json_bytes", limits.json_bytes)
        if begin is not None:
            wire = JsonWire(self._offload, limits, is_plain)
            pairs = Pairs(begin, wire, self._json_limit, takes_trace, forwarding)
            routes, lanes = [pairs, *routes], [pairs, *lanes]
        self._routes = routes
        self._has_health = bool(lanes)
        most = min(self._json_limit.size, SHORT_BYTES)
        heads = HeadMemory(lanes, most) if lanes and self.pipeline_has_lane else None
        self._listener = HttpListener(self, read_timeout_s, heads)

    # Life -------------------------------------------------------------------------------

    async def start(self, is_ready: bool = False) -> None:
        """Bind and listen. InitError names an address that is in use."""
        self._is_ready = is_ready
        self._loop = asyncio.get_running_loop()
        listener = self._bind()
        self.port = port_of(listener)
        await self._listener.start(listener)

    async def set_ready(self, ready: bool) -> None:
        """Answer `GET /health/ready` so from now on."""
        self._is_ready = ready

    async def drain(self) -> None:
        """Say not ready; each connection ends with the answer that it is given next."""
        self._is_ready = False
        self._listener.is_draining = True

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop accepting connections; those that there are end as when draining, idle ones soon.

        Not at once: what is asked on one may be on its way.
        """
        await self.drain()
        await self._listener.close()

    async def stop(self, grace_s: float = 1.0) -> None:
        """End all connections; call `close` first and let the requests be answered."""
        await self._listener.stop(grace_s)

    # Requests ---------------------------------------------------------------------------

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, as an ASGI app."""
        connection: HttpConnection = scope.pop(CONNECTION)  # left there it would be a cycle
        connection.cycle_served = receive.__self__  # type: ignore[attr-defined]  # of uvicorn's
        connection.task = asyncio.current_task(self._loop)  # without the loop it asks the kernel
        headers: tuple[Header, ...] = ()
        content_type = JSON
        try:
            said: Headers = scope[HEADERS]
            connection.more_headers = self._hosts.cors.headers_for(said)
            preflight = None
            if b"origin" in said:  # a program says none
                preflight = self._hosts.check_page(scope["method"], said)
            parts = scope["path"].split("/")
            given, connection.given = connection.given, None
            reply: WebResponse | WebStream
            if preflight is not None:
                reply, connection.more_headers = preflight, ()
            elif given is not None:
                reply = await given
            elif self._has_health and scope["path"] in HEALTH:
                reply = self._health(scope, "ready")
            elif self._has_health and len(parts) == 3 and parts[1] == "health" and parts[2]:
                reply = self._health(scope, parts[2])
            else:
                reply = await self._route(scope, connection, receive)
            if isinstance(reply, WebResponse):
                status, body, headers = reply.status, reply.body, reply.headers
                content_type = reply.content_type
            else:
                await connection.answer_in_pieces(reply)
                return
        except HttpError as error:
            status, body, headers = error.status, error_body(error.error), error.headers
        except asyncio.CancelledError:
            if connection.has_left:  # there is nobody to answer
                return
            closed = ClosedError("the server has stopped")  # there is no more time for it
            status, body, headers = 503, error_body(closed), (CLOSE,)
        except Exception as error:  # a bug of ours, or of a double's: that caller is told
            _LOGGER.exception("%s %s failed", scope["method"], scope["path"], exc_info=error)
            status, body = 500, error_body(UserCodeError("internal error of the server"))
        finally:
            connection.task = None
        if connection.cycle_served.response_started:  # in the middle of a stream
            connection.break_off()
            return
        if connection.cycle_served.more_body:  # nobody is going to read the rest
            headers = (*headers, CLOSE)
        await connection.answer(status, headers, body, content_type)

    async def _route(
        self, scope: Message, connection: HttpConnection, receive: Receive
    ) -> WebResponse | WebStream:
        """Return the answer of the routes that the path belongs to."""
        said: Headers = scope[HEADERS]
        encoding = said.get(b"content-encoding", b"").strip(b" \t").lower()  # the parser keeps them
        encoding = b"" if encoding == b"identity" else encoding
        # What is packed is not unpacked beyond what its reader would take.
        usual = self._json_limit if encoding and is_all_json(said) else self._limit

        async def read(limit: SizeLimit | None = None) -> bytes:
            return await self._bodies.read(connection, receive, said, encoding, limit or usual)

        timeout_s = wrong = None
        if b"grpc-timeout" in said:
            try:
                timeout_s = timeout_in(scope["headers"])
            except PackageError as error:
                wrong = error
        request = WebRequest(
            method=scope["method"],
            path=scope["path"],
            raw_path=scope["raw_path"].decode("latin-1"),
            query=scope["query_string"].decode("latin-1"),
            headers=said,
            read=read,
            timeout_s=timeout_s,
            accepts=tuple(value for name, value in scope["headers"] if name == b"accept"),
        )
        found = (routes.endpoint(request) for routes in self._routes)
        endpoint = next((each for each in found if each is not None), None)
        if wrong is not None:
            raise HttpError(400, wrong) from wrong
        if endpoint is None:
            text = f"no such path: {scope['path']}; POST /<name>/<method>"
            raise HttpError(404, NoServiceError(text))
        return await endpoint(request)

    def _health(self, scope: Message, probe: str) -> WebResponse:
        method = scope["method"]
        if probe not in ("live", "ready"):
            raise HttpError(404, NoServiceError("no such path; GET /health/live or /health/ready"))
        if method not in ("GET", "HEAD"):
            raise not_allowed(method, b"GET, HEAD")
        if probe == "live" or self._is_ready:
            return WebResponse(200, b'{"status":"ok"}')
        return WebResponse(503, b'{"status":"not ready"}')
