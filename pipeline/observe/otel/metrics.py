"""OtelMetrics: sends all of /metrics to OpenTelemetry's collectors at an interval."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

from opentelemetry.sdk.environment_variables import OTEL_METRIC_EXPORT_INTERVAL
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from pipeline.errors import InitError
from pipeline.observe.metrics import families_of
from pipeline.observe.otel.environment import (
    CLOSE_S,
    exporters_of,
    impatience,
    resource_of,
    setting,
)

_LOGGER = logging.getLogger(__name__)
_SCOPE = InstrumentationScope("pipeline")
_INTERVAL_MS = "60000"
_CUMULATIVE = AggregationTemporality.CUMULATIVE

Labels = tuple[tuple[str, str], ...]
Collect = Callable[[], Awaitable[bytes]]
"""Returns /metrics in Prometheus' text format."""


class OtelMetrics:
    """Sends the result of `collect` each `interval_s`, and once more at the end.

    A slow collector delays nothing else: the next export begins after the last one has ended.
    """

    def __init__(
        self,
        exporters: Sequence[MetricExporter],
        resource: Resource,
        collect: Collect,
        interval_s: float,
        close_s: float = CLOSE_S,
    ) -> None:
        self._exporters = exporters
        self._resource = resource
        self._collect = collect
        self._interval_s = interval_s
        self._close_s = close_s
        self._start_ns = time.time_ns()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to send; on the event loop."""
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Send the last figures and close the exporters."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        text = await self._collect()
        await asyncio.to_thread(self._end, text)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                text = await self._collect()
            except Exception:  # plug-ins' sinks may also have metrics
                _LOGGER.exception("metrics could not be collected")
            else:
                await asyncio.to_thread(self._send, text)

    def _send(self, text: bytes) -> None:
        """Send the figures; on a thread."""
        try:
            now_ns = time.time_ns()
            data = metrics_data(families_of(text), self._resource, self._start_ns, now_ns)
            for exporter in self._exporters:
                exporter.export(data)
        except Exception:  # raised by the SDK; it must not end the server
            _LOGGER.exception("metrics could not be exported")

    def _end(self, text: bytes) -> None:
        with impatience(self._exporters, self._close_s):
            self._send(text)
            for exporter in self._exporters:
                exporter.shutdown()


def metrics_data(
    families: Iterable[Any], resource: Resource, start_ns: int, now_ns: int
) -> MetricsData:
    """Return the Prometheus library's families in OpenTelemetry's form, with the same names.

    Counters are cumulative sums since `start_ns`, without `_total`, as usual in OpenTelemetry. A
    summary becomes three metrics: `_count`, `_sum`, and a gauge with the label `quantile`.
    """
    metrics = [metric for family in families for metric in _metrics_of(family, start_ns, now_ns)]
    scope = ScopeMetrics(_SCOPE, metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metrics_of(family: Any, start_ns: int, now_ns: int) -> Iterator[Metric]:
    if family.type == "histogram":
        yield Metric(family.name, family.documentation, "", _histogram(family, start_ns, now_ns))
        return
    by_name: dict[str, list[NumberDataPoint]] = {}
    is_counter = family.type == "counter"
    for sample in family.samples:
        name = family.name if is_counter else sample.name
        point = NumberDataPoint(dict(sample.labels), start_ns, now_ns, sample.value)
        by_name.setdefault(name, []).append(point)
    for name, points in by_name.items():
        is_sum = is_counter or (family.type == "summary" and name != family.name)
        data = Sum(points, _CUMULATIVE, is_monotonic=True) if is_sum else Gauge(points)
        yield Metric(name, family.documentation, "", data)


def _histogram(family: Any, start_ns: int, now_ns: int) -> Histogram:
    """Return a histogram with a count per bucket; Prometheus' counts are cumulative."""
    up_to: dict[Labels, dict[float, float]] = {}
    sums: dict[Labels, float] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        key = tuple(sorted(labels.items()))
        if sample.name.endswith("_bucket"):
            up_to.setdefault(key, {})[float(sample.labels["le"])] = sample.value
        elif sample.name.endswith("_sum"):
            sums[key] = sample.value
    points = []
    for key, buckets in up_to.items():
        bounds = sorted(buckets)
        totals = [int(buckets[bound]) for bound in bounds]
        counts = [total - below for total, below in zip(totals, (0, *totals), strict=False)]
        finite = [bound for bound in bounds if math.isfinite(bound)]
        known: Any = (
            totals[-1],
            sums.get(key, 0.0),
            counts,
            finite,
            None,
            None,
        )  # without min and max
        points.append(HistogramDataPoint(dict(key), start_ns, now_ns, *known))
    return Histogram(points, _CUMULATIVE)


def connect_metrics(pipeline_name: str, collect: Collect) -> OtelMetrics | None:
    """Return the environment's exporter of metrics; None if it disables the export.

    Raises InitError: an exporter is not installed, or the interval is not a number.
    """
    exporters = exporters_of("metrics")
    if not exporters:
        return None
    text = setting(OTEL_METRIC_EXPORT_INTERVAL) or _INTERVAL_MS
    if not text.isdecimal() or not int(text):
        raise InitError(
            f"opentelemetry: {OTEL_METRIC_EXPORT_INTERVAL}: expected milliseconds, found {text!r}"
        )
    return OtelMetrics(exporters, resource_of(pipeline_name), collect, int(text) / 1000)
