"""Cors: the headers for pages of other origins, the same as in the gateway's edge/cors.go."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.config.sections import ANY_ORIGIN, CorsConfig
from pipeline.frontends.http.routes import Header, WebResponse

_METHODS = b"GET, HEAD, POST"  # pages may not change models
_SHOWN = b"Inference-Header-Content-Length, Retry-After"
_USUAL = frozenset(
    (
        *("accept", "authorization", "content-type", "grpc-timeout", "traceparent", "tracestate"),
        *("inference-header-content-length", "x-api-key", "x-request-id"),
    )
)
_ASKED_METHOD = b"access-control-request-method"
_ASKED_HEADERS = b"access-control-request-headers"


class Cors:
    """The pages that may send requests and read answers.

    Args:
        config: without origins there are no headers.

    Attributes:
        always: headers of every answer.
    """

    def __init__(self, config: CorsConfig | None = None) -> None:
        self._config = config or CorsConfig()
        self._origins = frozenset(origin.lower() for origin in self._config.origins)
        self._is_for_any = ANY_ORIGIN in self._origins
        self._headers = _USUAL | {name.lower() for name in self._config.headers}
        self.always: tuple[Header, ...] = ()
        if self._origins and not self._is_for_any:
            self.always = ((b"vary", b"Origin"),)

    def allows(self, origin: str) -> bool:
        """Return whether a page may send requests."""
        return bool(origin) and (self._is_for_any or origin.lower() in self._origins)

    def headers_for(self, headers: Mapping[bytes, bytes]) -> tuple[Header, ...]:
        """Return the headers of an answer to a request with these."""
        origin = headers.get(b"origin", b"")
        if not self._origins or not self.allows(origin.decode("latin-1")):
            return self.always
        return (*self._permission(origin), (b"access-control-expose-headers", _SHOWN))

    def preflight(self, method: str, fields: Mapping[bytes, bytes]) -> WebResponse | None:
        """Return the answer to a browser's preflight request; None: another request."""
        origin = fields.get(b"origin", b"")
        if method != "OPTIONS" or _ASKED_METHOD not in fields:
            return None
        if not self.allows(origin.decode("latin-1")):
            return None
        names = fields.get(_ASKED_HEADERS, b"").decode("latin-1").lower().split(",")
        allowed = [name for word in names if (name := word.strip()) in self._headers]
        headers = [
            *self._permission(origin),
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-max-age", b"%d" % self._config.max_age_s),
            (b"vary", b"Access-Control-Request-Method, Access-Control-Request-Headers"),
        ]
        if allowed:
            headers.append((b"access-control-allow-headers", ", ".join(allowed).encode()))
        return WebResponse(200, headers=tuple(headers))

    def _permission(self, origin: bytes) -> tuple[Header, ...]:
        shown = b"*" if self._is_for_any else origin
        permission = (*self.always, (b"access-control-allow-origin", shown))
        if self._config.credentials:
            permission = (*permission, (b"access-control-allow-credentials", b"true"))
        return permission
