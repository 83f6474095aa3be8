"""Restrictions: parts of the v2 protocol that need a secret header value.

They wrap the routes, the lane and the service, which do not know about them.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import grpc
import orjson

from pipeline.config.sections import RestrictionConfig
from pipeline.engine.request import RequestHandle, ResponseSink
from pipeline.errors import ConfigError
from pipeline.frontends.grpc.server import (
    DirectMethod,
    GrpcCall,
    GrpcError,
    GrpcService,
    Reply,
    Stream,
    Unary,
)
from pipeline.frontends.http.routes import (
    Endpoint,
    LaneEndpoint,
    LaneService,
    Routes,
    WebRequest,
    WebResponse,
)
from pipeline.proto.http import SPACES

_MODEL = r"/v2/models/[^/]+(?:/versions/[^/]+)?"
_PATHS: tuple[tuple[str, str], ...] = (  # the first match counts
    ("health", rf"/v2/health/.*|{_MODEL}/ready"),
    ("statistics", rf"/v2/models/stats|{_MODEL}/stats"),
    ("model-config", rf"{_MODEL}/config"),
    ("inference", rf"{_MODEL}/(?:infer|generate|generate_stream)"),
    ("trace", rf"/v2/trace/setting|{_MODEL}/trace/setting"),
    ("logging", "/v2/logging"),
    ("shared-memory", "/v2/(?:system|cuda)sharedmemory.*"),
    ("model-repository", "/v2/repository.*"),
    ("metadata", rf"/v2|{_MODEL}"),
)
# Other pages of the HTTP port with the same data: a caller needs the secrets of all these parts.
_ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "/models.json": ("model-repository", "statistics"),
    "/status.json": ("statistics",),
    "/trace.json": ("statistics", "trace"),
    "/metrics": ("statistics",),
    "/metrics/": ("statistics",),
}
_PATTERNS = [(api, re.compile(pattern)) for api, pattern in _PATHS]
_METHODS: Mapping[str, tuple[str, ...]] = {
    "health": ("ServerLive", "ServerReady", "ModelReady"),
    "metadata": ("ServerMetadata", "ModelMetadata"),
    "inference": ("ModelInfer", "ModelStreamInfer"),
    "shared-memory": tuple(
        f"{kind}SharedMemory{what}"
        for kind in ("System", "Cuda")
        for what in ("Status", "Register", "Unregister")
    ),
    "model-config": ("ModelConfig",),
    "model-repository": ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
    "statistics": ("ModelStatistics",),
    "trace": ("TraceSetting",),
    "logging": ("LogSettings",),
}
_Method = TypeVar("_Method")
_API_OF = {method: api for api, methods in _METHODS.items() for method in methods}


class Secret(NamedTuple):
    """A header, and its secret value."""

    header: str
    value: bytes

    def is_in(self, headers: Iterable[tuple[str | bytes, str | bytes]]) -> bool:
        """Return whether a request has the secret; the time of the check does not reveal it."""
        return any(
            hmac.compare_digest(_bytes(value), self.value)
            for name, value in headers
            if _bytes(name).lower() == self.header.encode()
        )


Secrets = Mapping[str, Secret]
"""The secret of each restricted part."""


def secrets_of(restrictions: Iterable[RestrictionConfig]) -> Secrets:
    """Return the secret of each restricted part.

    Raises ConfigError: a part is listed twice, or a secret has spaces around it.
    """
    secrets: dict[str, Secret] = {}
    for restriction in restrictions:
        header, value = restriction.header.lower(), restriction.value.encode()
        if value.strip(SPACES) != value:
            raise ConfigError(
                f"restricted_apis: remove the spaces around the value of header '{header}'; "
                "requests lose them on their way"
            )
        for api in restriction.apis:
            if api in secrets:
                raise ConfigError(
                    f"restricted_apis: '{api}' can not be specified in multiple config groups"
                )
            secrets[api] = Secret(header, value)
    return secrets


class RestrictedRoutes:
    """Routes of which some need a secret."""

    def __init__(self, routes: Routes, secrets: Secrets) -> None:
        self._routes = routes
        self._secrets = secrets

    def endpoint(self, request: WebRequest) -> Endpoint | None:
        """Return the endpoint of a path, or one that refuses the request."""
        apis = _ELSEWHERE.get(request.path) or (api_of(request.raw_path),)
        needed = (self._secrets[api] for api in apis if api in self._secrets)
        headers = request.headers.items()
        secret = next((candidate for candidate in needed if not candidate.is_in(headers)), None)
        if secret is None:
            return self._routes.endpoint(request)
        text = f"This API is restricted, expecting header '{secret.header}'"
        body = orjson.dumps({"error": text})

        async def refuse(request: WebRequest) -> WebResponse:
            return WebResponse(403, body)

        return refuse


class RestrictedLane:
    """A lane for callers with the secret; the routes answer the others."""

    def __init__(self, lane: LaneService, secrets: Secrets) -> None:
        self._lane = lane
        self._secrets = secrets

    def in_line(self, request: WebRequest) -> LaneEndpoint | None:
        """Return the endpoint for a POST; None: the routes have it."""
        secret = self._secrets.get(api_of(request.path))
        is_open = secret is None or secret.is_in(request.headers.items())
        return self._lane.in_line(request) if is_open else None


def restricted_service(service: GrpcService, secrets: Secrets) -> GrpcService:
    """Return a service with some methods that need a secret."""
    closed = {method: secrets[api] for method, api in _API_OF.items() if api in secrets}

    def guarded(methods: Mapping[str, _Method], guard: Callable[[_Method, Secret], Any]) -> Any:
        return {
            n: guard(method, closed[n]) if n in closed else method for n, method in methods.items()
        }

    return replace(
        service,
        methods=guarded(service.methods, _unary),
        streams=guarded(service.streams, _stream),
        direct=guarded(service.direct, _CheckedDirect),
    )


def api_of(path: str) -> str:
    """Return the part of the protocol with a path; "": of no part."""
    return next((api for api, pattern in _PATTERNS if pattern.fullmatch(path)), "")


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1", "replace")


def _check(secret: Secret, call: GrpcCall) -> None:
    if not secret.is_in(call.headers()):
        text = f"This protocol is restricted, expecting header '{secret.header}'"
        raise GrpcError(grpc.StatusCode.UNAVAILABLE, text)


def _unary(method: Unary, secret: Secret) -> Unary:
    async def checked(message: Any, call: GrpcCall) -> Any:
        _check(secret, call)
        return await method(message, call)

    return checked


def _stream(method: Stream, secret: Secret) -> Stream:
    def checked(messages: AsyncIterator[bytes], call: GrpcCall) -> AsyncGenerator[bytes, None]:
        _check(secret, call)
        return method(messages, call)

    return checked


class _CheckedDirect:
    def __init__(self, method: DirectMethod, secret: Secret) -> None:
        self._method = method
        self._secret = secret

    def begin(self, message: Any, call: GrpcCall, sink: ResponseSink) -> RequestHandle | None:
        _check(self._secret, call)
        return self._method.begin(message, call, sink)

    def reply(self, answer: Any, call: GrpcCall) -> Reply:
        return self._method.reply(answer, call)
