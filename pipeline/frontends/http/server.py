"""HttpFrontend: `POST /<name>/<method>` in proto3 JSON, health, and the routes of others."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar

from pipeline.engine.offload import Offload
from pipeline.engine.request import Begin, RequestTarget, ask
from pipeline.errors import (
    ClosedError,
    DeadlineError,
    NoServiceError,
    OverloadedError,
    PackageError,
    PipelineError,
    TooLargeError,
    UserCodeError,
    http_status_of,
)
from pipeline.frontends.base import HeaderForwarding, no_response, seconds_of
from pipeline.frontends.http.bodies import BodyReader, SizeLimit, is_all_json
from pipeline.frontends.http.connection import CONNECTION, HEADERS, HttpConnection
from pipeline.frontends.http.heads import HeadMemory
from pipeline.frontends.http.hosts import Hosts
from pipeline.frontends.http.listener import HttpListener
from pipeline.frontends.http.plain_posts import PlainPosts
from pipeline.frontends.http.routes import (
    CLOSE,
    JSON,
    Header,
    Headers,
    HttpError,
    LaneService,
    Routes,
    WebRequest,
    WebResponse,
    WebStream,
    error_body,
    not_allowed,
    with_head,
)
from pipeline.frontends.http.streams import StreamForm, stream_form, stream_of, stream_of_error
from pipeline.frontends.listen import bind, port_of
from pipeline.frontends.parts import PartsReader
from pipeline.proto.pipeline import json as jsonpb
from pipeline.proto.pipeline.large import LargeResponse
from pipeline.proto.pipeline.plain import PlainResponse, plain_request_from_json
from pipeline.proto.pipeline_service_pb2 import Response
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
    heartbeat_s: ClassVar[float] = 15.0
    """Seconds that a stream of events may be silent."""

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
        self._limits = limits or Limits()
        self._routes = routes
        self._takes_trace = takes_trace
        self._forwarding = forwarding
        self._begin = begin
        self._read_for_stream = plain_request_from_json if is_plain else jsonpb.request_from_json
        self._is_ready = False
        self._bind = functools.partial(bind, host, port, key, is_shared)
        self._limit = self._json_limit = SizeLimit("max_message_bytes", max_message_bytes)
        if self._limits.json_bytes < max_message_bytes:
            self._json_limit = SizeLimit("max_json_bytes", self._limits.json_bytes)
        self._has_health = begin is not None or bool(lanes)
        quick = list(lanes)
        if begin is not None:
            most = min(self._json_limit.size, max_message_bytes)
            posts = PlainPosts(begin, most, is_plain, takes_trace, forwarding, self._json_of)
            quick = [posts, *lanes]
        heads = HeadMemory(quick) if quick and self.pipeline_has_lane else None
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
            reply: WebResponse | WebStream | bytes
            if preflight is not None:
                reply, connection.more_headers = preflight, ()
            elif given is not None:
                reply = await given
            elif self._has_health and scope["path"] in HEALTH:
                reply = self._health(scope, "ready")
            elif len(parts) != 3 or parts[1] in _OF_ROUTES or not parts[2]:
                reply = await self._route(scope, connection, receive)
            elif parts[1] == "health" and self._has_health:
                reply = self._health(scope, parts[2])
            elif self._begin is None:
                reply = await self._route(scope, connection, receive)
            elif scope["method"] != "POST":
                raise not_allowed(scope["method"], b"POST")
            else:
                reply = await self._infer(scope, connection, receive, *parts[1:])
            if isinstance(reply, bytes):
                status, body = 200, reply
            elif isinstance(reply, WebResponse):
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
        encoding, timeout_s, _ = _special(scope)

        # What is packed is not unpacked beyond what its reader would take.
        limit = self._json_limit if encoding and is_all_json(said) else self._limit

        async def read() -> bytes:
            return await self._bodies.read(connection, receive, said, encoding, limit)

        request = WebRequest(
            method=scope["method"],
            path=scope["path"],
            raw_path=scope["raw_path"].decode("latin-1"),
            query=scope["query_string"].decode("latin-1"),
            headers=said,
            read=read,
            timeout_s=timeout_s,
        )
        for routes in self._routes:
            if (endpoint := routes.endpoint(request)) is not None:
                return await endpoint(request)
        raise HttpError(
            404, NoServiceError(f"no such path: {scope['path']}; POST /<name>/<method>")
        )

    def _health(self, scope: Message, probe: str) -> WebResponse:
        method = scope["method"]
        if probe not in ("live", "ready"):
            raise HttpError(404, NoServiceError("no such path; GET /health/live or /health/ready"))
        if method not in ("GET", "HEAD"):
            raise not_allowed(method, b"GET, HEAD")
        if probe == "live" or self._is_ready:
            return WebResponse(200, b'{"status":"ok"}')
        return WebResponse(503, b'{"status":"not ready"}')

    async def _infer(
        self,
        scope: Message,
        connection: HttpConnection,
        receive: Receive,
        name: str,
        method: str,
    ) -> bytes | WebResponse | WebStream:
        """Return the JSON of the engine's answer, or a stream of it for who asks for one."""
        said: Headers = scope[HEADERS]
        form = None
        if b"accept" in said:
            form = stream_form(value for key, value in scope["headers"] if key == b"accept")
        encoding, timeout_s, told = b"", None, ""
        if not _SPECIAL.isdisjoint(said):
            encoding, timeout_s, told = _special(scope)
        body = None if encoding else connection.take_body()
        if body is None:
            try:
                body = await self._bodies.read(
                    connection, receive, said, encoding, self._json_limit
                )
            except DeadlineError as error:
                return _late(error, form)
        elif len(body) > self._json_limit.size:
            raise self._json_limit.passed()
        told = told if self._takes_trace else ""
        info = None if self._forwarding is None else self._forwarding.info(said.items())
        is_large = len(body) > SHORT_BYTES
        target = None
        if is_large or told or info is not None:
            target = RequestTarget(traceparent=told, is_large=is_large, info=info)
        try:
            if not is_large:
                read_short = jsonpb.request_from_json if form is None else self._read_for_stream
                request: Any = read_short(body, name, method)
                del body
            else:
                read = functools.partial(
                    jsonpb.large_request_from_json, [body], name, method, self._limits
                )
                del body
                request, timeout_s = await self._offload.run(read, timeout_s)
        except DeadlineError as error:
            return _late(error, form)
        except PipelineError as error:
            raise HttpError(http_status_of(error), error) from error
        assert self._begin is not None
        try:
            if form is not None:
                reader = PartsReader()
                reader.begin(self._begin, request, timeout_s, target)
                return stream_of(reader, form, self._written, self.heartbeat_s)
            answer = ask(self._begin, request, timeout_s, target, self._loop)
            response = await answer
        except OverloadedError as error:
            raise HttpError(
                http_status_of(error), error, (b"retry-after", b"%d" % error.retry_after_s)
            ) from error
        body = await self._json_of(response)
        return body if answer.head is None else with_head(body, answer.head)

    async def _json_of(self, response: Any) -> bytes:
        """Return the JSON of an answer, or of the error that it is too large."""
        try:
            return await self._written(response)
        except (DeadlineError, TooLargeError) as error:
            return error_body(error)

    async def _written(self, response: Any) -> bytes:
        """Return the JSON of an answer; raises PipelineError where that is too large."""
        if isinstance(response, PlainResponse):
            return response.to_json()
        if isinstance(response, Response):
            return jsonpb.response_to_json(response)
        if not isinstance(response, LargeResponse):
            raise HttpError(500, no_response(response))
        write = functools.partial(jsonpb.large_response_to_json, response, self._limits)
        body, _ = await self._offload.run(write)
        return body


def _late(error: DeadlineError, form: StreamForm | None) -> bytes | WebStream:
    """Return the answer that a deadline has passed."""
    return error_body(error) if form is None else stream_of_error(error, form)


def _special(scope: Message) -> tuple[bytes, float | None, str]:
    """Return (content-encoding, timeout in s, traceparent) of a request, if said."""
    said: Headers = scope[HEADERS]
    encoding = said.get(b"content-encoding", b"").strip(b" \t").lower()  # as the parser keeps them
    timeout_s = None
    try:
        for name, value in scope["headers"]:
            if name == b"grpc-timeout":  # of several each has to be right
                timeout_s = seconds_of(value.decode("latin-1"), "Grpc-Timeout")
    except PackageError as error:
        raise HttpError(400, error) from error
    traceparent = said.get(b"traceparent", b"").decode("latin-1")
    return b"" if encoding == b"identity" else encoding, timeout_s, traceparent
