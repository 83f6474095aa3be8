"""HttpFrontend: `POST /<name>/<method>` in proto3 JSON, health, and routes of other frontends."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pipeline.engine.offload import Offload
from pipeline.engine.request import Begin
from pipeline.engine.run.payload import LOCAL, MemoryDomain
from pipeline.errors import (
    ClosedError,
    NoServiceError,
    PackageError,
)
from pipeline.frontends.access_log import AccessLog
from pipeline.frontends.base import HeaderForwarding
from pipeline.frontends.http.bodies import BodyReader, is_all_json
from pipeline.frontends.http.exchange import Exchange
from pipeline.frontends.http.heads import HeadMemory
from pipeline.frontends.http.hosts import Hosts
from pipeline.frontends.http.listener import HttpListener
from pipeline.frontends.http.pairs import Pairs
from pipeline.frontends.http.routes import (
    Body,
    ErrorForm,
    HttpError,
    LaneService,
    Routes,
    SizeLimit,
    WebReply,
    WebRequest,
    WebResponse,
    WebStream,
    WebUpgrade,
    failed_reply,
    not_allowed,
    shown,
    timeout_in,
)
from pipeline.frontends.listen import bind, port_of
from pipeline.frontends.wire import JsonWire
from pipeline.proto.slices import SHORT_BYTES, Limits

_LOGGER = logging.getLogger(__name__)

_READ_TIMEOUT_S = 60.0
HEALTH = ("/health", "/healthz")
"""Paths by which benchmarks and load balancers ask for `/health/ready`."""


class HttpFrontend:
    """An HTTP server for an engine at `host:port`, and for the routes of other frontends.

    Args:
        begin: has a Request answered with a Response; None: there are only routes.
        host, port, is_shared, key: see `listen.bind`; after `start`, `port` is the actual one.
        max_message_bytes: limit of a request's body, unpacked.
        read_timeout_s: for a request to arrive, from its first byte to its last.
        routes: asked in turn for every path but `/<name>/<method>`.
        takes_trace: `begin` receives the client's traceparent.
        forwarding: the headers for `begin`; None: no headers.
        offload: reads and writes large bodies; its owner stops it.
        limits: of JSON.
        hosts: the names of the server.
        is_plain: `begin` accepts a PlainRequest instead of a Request.
        lanes: lanes of other frontends' paths.
        access: the log of requests, or None.
        memory: receives large bodies.
        error_forms: the answers to failed requests, by path; "/api/" is for all paths below it.

    Attributes:
        heads: heads of requests that need no task.
    """

    pipeline_has_lane: ClassVar[bool] = True  # tests compare the answers with and without it

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
        access: AccessLog | None = None,
        memory: MemoryDomain = LOCAL,
        error_forms: Mapping[str, ErrorForm] | None = None,
    ) -> None:
        self.port: int = port
        self._hosts = hosts or Hosts()
        self._offload = offload or Offload(threads=0)
        self._bodies = BodyReader(self._offload, memory)
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
        self._error_forms = sorted((error_forms or {}).items(), reverse=True)  # the longest first
        self._has_health = bool(lanes)
        most = min(self._json_limit.size, SHORT_BYTES)
        known = lanes if self.pipeline_has_lane else ()
        self.heads: HeadMemory = HeadMemory(known, most, max_message_bytes)
        self._listener = HttpListener(
            self._answer, read_timeout_s, self.heads, access, memory, self._hosts.cors.always
        )

    # Life -------------------------------------------------------------------------------

    async def start(self, is_ready: bool = False) -> None:
        """Bind and listen. Raises InitError if the address is in use."""
        self._is_ready = is_ready
        self._loop = asyncio.get_running_loop()
        listener = self._bind()
        self.port = port_of(listener)
        await self._listener.start(listener)

    async def set_ready(self, ready: bool) -> None:
        """Set the answer to `GET /health/ready`."""
        self._is_ready = ready

    async def drain(self) -> None:
        """Report the server as not ready; each connection ends with its next answer."""
        self._is_ready = False
        self._listener.is_draining = True

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop accepting connections; open ones end as when draining, idle ones soon.

        Idle connections are not closed at once: a request may be on its way.
        """
        await self.drain()
        await self._listener.close()

    async def stop(self, grace_s: float = 1.0) -> None:
        """End all connections; call `close` first, so that requests are answered."""
        await self._listener.stop(grace_s)

    # Requests ---------------------------------------------------------------------------

    async def _answer(self, exchange: Exchange) -> None:
        """Answer a request."""
        exchange.task = asyncio.current_task(
            self._loop
        )  # without the argument it looks up the loop by a system call
        try:
            reply = await self._reply(exchange)
            if isinstance(reply, WebStream):
                await exchange.answer_in_pieces(reply)
                return
            if isinstance(reply, WebUpgrade):
                await exchange.upgrade(reply)
                return
        except asyncio.CancelledError:
            if exchange.connection.has_left:  # the client has disconnected
                return
            exchange.keeps_alive = False  # its time is over
            stopped = HttpError(503, ClosedError("the server has stopped"))
            reply = self._failed(exchange, stopped)
        # also a bug in this library or in a test double: the client gets an error
        except Exception as error:
            reply = self._failed(exchange, error)
        finally:
            exchange.task = None
        try:
            if not exchange.is_begun:
                await exchange.answer(reply)
                return
        except Exception as error:  # a bug in this library
            _LOGGER.exception("%s %s failed", exchange.method, exchange.path, exc_info=error)
        exchange.connection.hang_up()  # the client sees that the answer is incomplete

    def _failed(self, exchange: Exchange, error: Exception) -> WebResponse:
        """Return the answer to a request that ended in an error, in the form of its API."""
        path, what = exchange.path, f"{exchange.method} {exchange.path}"
        for above, form in self._error_forms:
            if path == above or (above.endswith("/") and f"{path}/".startswith(above)):
                try:
                    return form(shown(error, what))
                except Exception as failure:  # a bug in this library: the client gets an answer
                    error = failure
                    break
        return failed_reply(error, what)

    async def _reply(self, exchange: Exchange) -> WebReply:
        """Return the answer to a request."""
        headers, path = exchange.said, exchange.path
        exchange.more_headers = self._hosts.cors.headers_for(headers)
        if b"origin" in headers:  # programs send no Origin
            preflight = self._hosts.check_page(exchange.method, headers)
            if preflight is not None:
                exchange.more_headers = ()
                return preflight
        lane_answer, exchange.given = exchange.given, None
        if lane_answer is not None:
            return await lane_answer
        parts = path.split("/")
        if self._has_health and path in HEALTH:
            return self._health(exchange.method, "ready")
        if self._has_health and len(parts) == 3 and parts[1] == "health" and parts[2]:
            return self._health(exchange.method, parts[2])
        return await self._route(exchange)

    async def _route(self, exchange: Exchange) -> WebReply:
        """Return the answer of the routes with the path."""
        headers = exchange.said
        encoding = headers.get(b"content-encoding", b"").lower()
        encoding = b"" if encoding == b"identity" else encoding
        # A packed body is unpacked only up to the size that its reader accepts.
        usual = self._json_limit if encoding and is_all_json(headers) else self._limit

        async def read(limit: SizeLimit | None = None) -> bytes:
            return await self._bodies.read(exchange, encoding, limit or usual)

        async def receive() -> Body:
            return await self._bodies.receive(exchange, encoding, usual)

        timeout_s = wrong = None
        if b"grpc-timeout" in headers:
            try:
                timeout_s = timeout_in(exchange.fields)
            except PackageError as error:
                wrong = error
        request = WebRequest(
            method=exchange.method,
            path=exchange.path,
            raw_path=exchange.raw_path,
            query=exchange.query,
            headers=headers,
            read=read,
            timeout_s=timeout_s,
            accepts=tuple(value for name, value in exchange.fields if name == b"accept"),
            receive=receive,
        )
        endpoints = (routes.endpoint(request) for routes in self._routes)
        endpoint = next((candidate for candidate in endpoints if candidate is not None), None)
        if wrong is not None:
            raise HttpError(400, wrong) from wrong
        if endpoint is None:
            text = f"no such path: {exchange.path}; POST /<name>/<method>"
            raise HttpError(404, NoServiceError(text))
        return await endpoint(request)

    def _health(self, method: str, probe: str) -> WebResponse:
        if probe not in ("live", "ready"):
            raise HttpError(404, NoServiceError("no such path; GET /health/live or /health/ready"))
        if method not in ("GET", "HEAD"):
            raise not_allowed(method, b"GET, HEAD")
        if probe == "live" or self._is_ready:
            return WebResponse(200, b'{"status":"ok"}')
        return WebResponse(503, b'{"status":"not ready"}')
