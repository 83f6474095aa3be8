"""HttpFrontend: `POST /<name>/<method>` in proto3 JSON, health, and the routes of others."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, NamedTuple

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
)
from pipeline.frontends.base import HeaderForwarding, no_response, seconds_of
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
    error_body,
    not_allowed,
)
from pipeline.frontends.listen import bind, port_of
from pipeline.proto.inflate import emptied, inflated
from pipeline.proto.pipeline import json as jsonpb
from pipeline.proto.pipeline.large import LargeResponse
from pipeline.proto.pipeline_service_pb2 import Response
from pipeline.proto.slices import SHORT_BYTES, Limits

_LOGGER = logging.getLogger(__name__)

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_READ_TIMEOUT_S = 60.0
_OF_ROUTES = ("", "v2")  # first parts of paths that are no service's
_SPECIAL = frozenset((b"content-encoding", b"grpc-timeout", b"traceparent"))
_WINDOW_BITS = {
    b"gzip": zlib.MAX_WBITS | 16,
    b"x-gzip": zlib.MAX_WBITS | 16,
    b"deflate": zlib.MAX_WBITS,
}


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
        self._limits = limits or Limits()
        self._routes = routes
        self._takes_trace = takes_trace
        self._forwarding = forwarding
        self._begin = begin
        self._is_ready = False
        self._bind = functools.partial(bind, host, port, key, is_shared)
        self._limit = self._json_limit = _Limit("max_message_bytes", max_message_bytes)
        if self._limits.json_bytes < max_message_bytes:
            self._json_limit = _Limit("max_json_bytes", self._limits.json_bytes)
        heads = None
        if begin is not None and self.pipeline_has_lane:
            most = min(self._json_limit.size, max_message_bytes)
            posts = PlainPosts(begin, most, is_plain, takes_trace, forwarding, self._json_of)
            heads = HeadMemory([posts, *lanes])
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
            if b"origin" in said and scope["method"] == "POST":  # a program says none
                host, kind = said.get(b"host", b""), said.get(b"content-type", b"")
                self._hosts.check_post(said[b"origin"], host, kind)
            parts = scope["path"].split("/")
            given, connection.given = connection.given, None
            if given is not None:
                reply = await given
                status, body, headers = reply.status, reply.body, reply.headers
                content_type = reply.content_type
            elif len(parts) != 3 or parts[1] in _OF_ROUTES or not parts[2] or self._begin is None:
                reply = await self._route(scope, connection, receive)
                status, body, headers = reply.status, reply.body, reply.headers
                content_type = reply.content_type
            elif parts[1] == "health":
                status, body = self._health(scope)
            elif scope["method"] != "POST":
                raise not_allowed(scope["method"], b"POST")
            else:
                status, body = 200, await self._infer(scope, connection, receive, *parts[1:])
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
        if connection.cycle_served.more_body:  # nobody is going to read the rest
            headers = (*headers, CLOSE)
        await connection.answer(status, headers, body, content_type)

    async def _route(
        self, scope: Message, connection: HttpConnection, receive: Receive
    ) -> WebResponse:
        """Return the answer of the routes that the path belongs to."""
        said: Headers = scope[HEADERS]
        encoding, timeout_s, _ = _special(scope)

        async def read() -> bytes:
            return await self._body(connection, receive, said, encoding, self._limit)

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

    def _health(self, scope: Message) -> tuple[int, bytes]:
        method, probe = scope["method"], scope["path"].rpartition("/")[2]
        if probe not in ("live", "ready"):
            raise HttpError(404, NoServiceError("no such path; GET /health/live or /health/ready"))
        if method not in ("GET", "HEAD"):
            raise not_allowed(method, b"GET, HEAD")
        if probe == "live" or self._is_ready:
            return 200, b'{"status":"ok"}'
        return 503, b'{"status":"not ready"}'

    async def _infer(
        self,
        scope: Message,
        connection: HttpConnection,
        receive: Receive,
        name: str,
        method: str,
    ) -> bytes:
        """Return the JSON of the engine's answer."""
        said: Headers = scope[HEADERS]
        encoding, timeout_s, told = b"", None, ""
        if not _SPECIAL.isdisjoint(said):
            encoding, timeout_s, told = _special(scope)
        body = None if encoding else connection.take_body()
        if body is None:
            try:
                body = await self._body(connection, receive, said, encoding, self._json_limit)
            except DeadlineError as error:
                return error_body(error)
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
                request: Any = jsonpb.request_from_json(body, name, method)
                del body
            else:
                read = functools.partial(
                    jsonpb.large_request_from_json, [body], name, method, self._limits
                )
                del body
                request, timeout_s = await self._offload.run(read, timeout_s)
        except DeadlineError as error:
            return error_body(error)
        except TooLargeError as error:
            raise HttpError(413, error) from error
        except PipelineError as error:
            raise HttpError(400, error) from error
        assert self._begin is not None
        try:
            response = await ask(self._begin, request, timeout_s, target, self._loop)
        except OverloadedError as error:
            raise HttpError(503, error, (b"retry-after", b"%d" % error.retry_after_s)) from error
        if isinstance(response, Response):
            return jsonpb.response_to_json(response)
        return await self._json_of(response)

    async def _json_of(self, response: Any) -> bytes:
        """Return the JSON of a large answer, or of the error that it is too large."""
        if not isinstance(response, LargeResponse):
            raise HttpError(500, no_response(response))
        write = functools.partial(jsonpb.large_response_to_json, response, self._limits)
        try:
            body, _ = await self._offload.run(write)
        except (DeadlineError, TooLargeError) as error:
            return error_body(error)
        return body

    async def _body(
        self,
        connection: HttpConnection,
        receive: Receive,
        said: Headers,
        encoding: bytes,
        limit: _Limit,
    ) -> bytes:
        """Return the body of a request, unpacked."""
        if int(said.get(b"content-length", 0)) > limit.size:
            raise limit.passed()
        body = connection.take_body()
        if body is None:
            body = await self._rest(receive, connection, limit)
        if len(body) > limit.size:
            raise limit.passed()
        return await self._decompressed(body, encoding, limit) if encoding else body

    async def _rest(self, receive: Receive, connection: HttpConnection, limit: _Limit) -> bytes:
        """Return the body of a request that has not arrived in whole."""
        pieces: list[bytes] = []
        size, has_more = 0, True
        while has_more:
            if pieces and connection.body_error is not None:
                raise connection.body_error
            message = await receive()
            if message["type"] != "http.request":
                raise asyncio.CancelledError  # the caller has left
            pieces.append(message.get("body", b""))
            has_more = message.get("more_body", False)
            size += len(pieces[-1])
            if size > limit.size:
                raise limit.passed()
        if size <= SHORT_BYTES:
            return b"".join(pieces)
        body, _ = await self._offload.run(functools.partial(emptied, pieces))
        return body

    async def _decompressed(self, body: bytes, encoding: bytes, limit: _Limit) -> bytes:
        if encoding not in _WINDOW_BITS:
            name = encoding.decode("latin-1")
            text = f'unsupported content-encoding "{name}": send gzip, deflate or none'
            raise HttpError(415, PackageError(text))
        name = encoding.removeprefix(b"x-").decode()
        bits = _WINDOW_BITS[encoding]
        try:
            if len(body) <= SHORT_BYTES:
                with contextlib.suppress(OverflowError):
                    return inflated(body, bits, min(SHORT_BYTES, limit.size))
            inflate = functools.partial(inflated, body, bits, limit.size)
            unpacked, _ = await self._offload.run(inflate)
            return unpacked
        except OverflowError as error:
            raise limit.passed() from error
        except zlib.error as error:
            raise HttpError(400, PackageError(f"the body is not valid {name}: {error}")) from error
        except EOFError as error:
            text = f"the body is cut short: incomplete {name} data"
            raise HttpError(400, PackageError(text)) from error
        except ValueError as error:
            text = f"there is data behind the end of the {name} data: send one member"
            raise HttpError(400, PackageError(text)) from error


class _Limit(NamedTuple):
    """A limit of a request's body, with its key in the configuration."""

    key: str
    size: int

    def passed(self) -> HttpError:
        text = f"the request is larger than {self.key} ({self.size} bytes)"
        return HttpError(413, TooLargeError(text))


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
