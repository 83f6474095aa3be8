"""Metrics over HTTP: routes of the HTTP port, and the separate port `dag.prometheus_port`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import chain

from pipeline.config.schema import MetricsConfig
from pipeline.errors import NoServiceError
from pipeline.frontends.http.routes import Endpoint, HttpError, WebRequest, WebResponse, not_allowed
from pipeline.frontends.http.server import HttpFrontend
from pipeline.observe.custom_metrics import CustomMetrics
from pipeline.observe.metrics import (
    CONTENT_TYPE,
    OPEN_CONTENT_TYPE,
    Metrics,
    as_openmetrics,
    as_text,
    metrics_of,
    predecessor_metrics,
)
from pipeline.observe.snapshot import AskAll, Snapshot

_PATHS = ("/metrics", "/metrics/")
_OPEN = OPEN_CONTENT_TYPE.partition(b";")[0]
_MAX_BODY_BYTES = 65536  # clients have no reason to send a body


class MetricsRoutes:
    """`GET /metrics` in Prometheus' text format, or in OpenMetrics if the client accepts it.

    Args:
        whole: returns the snapshots.
        by_replica: several processes serve, and each has its own series.
        predecessors: add the `pd_*` counters of Paddle Serving.
        wanted: the families to show.
        custom: metrics from the code of models.
    """

    def __init__(
        self,
        whole: AskAll,
        by_replica: bool = False,
        predecessors: bool = False,
        wanted: MetricsConfig | None = None,
        custom: CustomMetrics | None = None,
    ) -> None:
        self._whole = whole
        self._custom = custom or CustomMetrics()
        self._by_replica = by_replica
        shown = partial(metrics_of, wanted=wanted or MetricsConfig())
        self._shown = (shown, predecessor_metrics) if predecessors else (shown,)

    def endpoint(self, request: WebRequest) -> Endpoint | None:
        return self._answer if request.path in _PATHS else None

    async def _answer(self, request: WebRequest) -> WebResponse:
        if request.method not in ("GET", "HEAD"):
            raise not_allowed(request.method, b"GET, HEAD")
        snapshots = await self._whole()
        custom = self._custom.text()  # where they are counted; at most a thousand lines
        is_open = _OPEN in request.headers.get(b"accept", b"").lower()
        page = self._openmetrics if is_open else self._text
        body = await asyncio.to_thread(page, snapshots, custom)  # 9 ms for 10 Ops, a copy
        kind = OPEN_CONTENT_TYPE if is_open else CONTENT_TYPE
        own = ((b"cache-control", b"no-store"), (b"vary", b"accept"))
        return WebResponse(200, body, kind, own)

    def _text(self, snapshots: Sequence[Snapshot], custom: bytes) -> bytes:
        return as_text(self._metrics(snapshots)) + custom

    def _openmetrics(self, snapshots: Sequence[Snapshot], custom: bytes) -> bytes:
        return as_openmetrics(self._metrics(snapshots), custom)

    def _metrics(self, snapshots: Sequence[Snapshot]) -> Metrics:
        return chain(*(shown(snapshots, self._by_replica) for shown in self._shown))


def metrics_server(
    routes: MetricsRoutes, host: str, port: int, is_shared: bool = False
) -> HttpFrontend:
    """Return the server of `dag.prometheus_port`, which has only `/metrics`."""
    only, key = (routes, _NoRoutes()), "dag.prometheus_port"
    return HttpFrontend(
        None, host, port, _MAX_BODY_BYTES, is_shared=is_shared, routes=only, key=key
    )


class _NoRoutes:
    """Refuses all other paths of a port that has only metrics."""

    def endpoint(self, request: WebRequest) -> Endpoint:
        text = f"no such path: {request.path}; this port has metrics only: GET /metrics"
        raise HttpError(404, NoServiceError(text))
