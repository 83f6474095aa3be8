"""Metrics: snapshots of a server in Prometheus' text format, and the figures of its process."""

from __future__ import annotations

import asyncio
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import (
    GCCollector,
    Metric,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Exemplar as SampleExemplar

from pipeline.config.schema import MetricsConfig
from pipeline.engine.journal.journal import Outcome
from pipeline.engine.state import OpState
from pipeline.metrics import LEDGER, FamilyHead, Ledger, MetricSamples
from pipeline.observe.snapshot import NO_REPLICA, Exemplar, ModelCounters, Snapshot

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
OPEN_CONTENT_TYPE = b"application/openmetrics-text; version=1.0.0; charset=utf-8"

_VERSION = "1"  # Triton's label; a Snapshot has the version where models have several
_STEPS_PER_BUCKET = 4  # of a latency histogram, between two powers of two
_BUCKETS = range(6, 26)  # powers of two of 1 us: 64 us to 33.6 s
_BATCH_SIZES = tuple(2**power for power in range(11))

_WANTED = MetricsConfig()
Labels = dict[str, str]
Metrics = Iterable[Metric]
_Samples = Iterable[tuple[Labels, float]]


def metrics_of(
    snapshots: Sequence[Snapshot], by_replica: bool = False, wanted: MetricsConfig = _WANTED
) -> Metrics:
    """Yield all metrics of a server; each of its processes has a Snapshot.

    `wanted` selects the families. `by_replica` gives each process its own series, with the label
    `copy`: a sum would fall when a process is replaced, and Prometheus would take that for a
    restart of the server.
    """
    yield from _all(_Replicas(snapshots, by_replica), wanted)
    yield from _told(snapshots, by_replica)


def render(
    snapshots: Sequence[Snapshot], by_replica: bool = False, wanted: MetricsConfig = _WANTED
) -> bytes:
    """Return `metrics_of` in Prometheus' text format."""
    return as_text(metrics_of(snapshots, by_replica, wanted))


def as_text(metrics: Metrics) -> bytes:
    """Return the metrics in Prometheus' text format."""
    return _SUFFIXED.sub(
        rb"# \1 \2 ", generate_latest(Given(metric for metric in metrics if metric.samples))
    )


def as_openmetrics(metrics: Metrics, text: bytes = b"") -> bytes:
    """Return the metrics, and those of a text, in the OpenMetrics format, with exemplars.

    The names of the series stay. OpenMetrics requires that a counter ends in _total. Triton's do
    not, so their type becomes unknown.
    """
    families = [metric for metric in metrics if metric.samples]
    for metric in families:
        if metric.type == "counter" and metric.samples[0].name == metric.name:
            metric.type = "unknown"
    families += families_of(_UNSUFFIXED.sub(rb"\1untyped", text))
    made: bytes = openmetrics.generate_latest(Given(families))  # type: ignore[no-untyped-call]
    return made


def families_of(text: bytes) -> Iterator[Metric]:
    """Yield the families in Prometheus' text format."""
    yield from text_string_to_metric_families(text.decode())


def samples_of_process() -> list[MetricSamples]:
    """Return the Prometheus library's metrics of a Python process: CPU, memory, collector."""
    return [
        MetricSamples(
            metric.name,
            metric.type,
            metric.documentation,
            [(sample.name, dict(sample.labels), sample.value) for sample in metric.samples],
        )
        for metric in _PROCESS.collect()
    ]


_PROCESS = CollectorRegistry()
for _collector in (ProcessCollector, PlatformCollector, GCCollector):
    _collector(registry=_PROCESS)


def _told(snapshots: Sequence[Snapshot], by_replica: bool) -> Iterator[Metric]:
    """Yield the families that processes report, each name once."""
    metrics: dict[str, Metric] = {}
    for snapshot in snapshots:
        own = {"copy": str(snapshot.replica)} if by_replica else {}
        for family in snapshot.families:
            name = family.name.removesuffix("_total")
            metric = metrics.setdefault(name, Metric(name, family.text, family.kind))
            for sample, labels, value in family.samples:
                metric.add_sample(sample, {**labels, **own}, value)
    yield from metrics.values()


def predecessor_metrics(snapshots: Sequence[Snapshot], by_replica: bool = False) -> Metrics:
    """Yield the five counters that Paddle Serving's dashboards read; see `metrics_of`.

    Durations are those of successful requests, in microseconds.
    """
    replicas = _Replicas(snapshots, by_replica)
    served = [
        (replicas.labels(snapshot), snapshot.models)
        for snapshot in replicas.snapshots
        if snapshot.models
    ]
    for name, (text, value) in _PREDECESSORS.items():
        yield _metric("counter", name, text, ((labels, value(of)) for labels, of in served))


class _Replicas:
    """The snapshots, and the labels that distinguish their series."""

    def __init__(self, snapshots: Sequence[Snapshot], by_replica: bool) -> None:
        self._by_replica = by_replica
        # Ended pipelines had their own series.
        self.snapshots = [snapshot for snapshot in snapshots if snapshot.replica != NO_REPLICA]

    def labels(self, snapshot: Snapshot, more: Labels | None = None) -> Labels:
        own = {"copy": str(snapshot.replica)} if self._by_replica else {}
        if snapshot.pipeline:
            own["pipeline"] = snapshot.pipeline
        if snapshot.model:
            own |= {"model": snapshot.model, "version": snapshot.version}
        return {**(more or {}), **own}

    def models(self) -> Iterator[tuple[Labels, ModelCounters]]:
        """Yield the pipeline and those Ops that are models, of each replica."""
        for snapshot in self.snapshots:
            for model in snapshot.models:
                if model.version:
                    yield self.labels(snapshot, {"model": model.name}), model

    def ops(self) -> Iterator[tuple[Labels, OpState]]:
        """Yield the engine's state of each Op, with the Op's name as a model."""
        for snapshot in self.snapshots:
            models = snapshot.models[1:]
            models = models or [ModelCounters(op.name) for op in snapshot.engine.ops]
            for model, op in zip(models, snapshot.engine.ops, strict=True):
                if model.version:
                    yield self.labels(snapshot, {"model": model.name}), op


def _all(replicas: _Replicas, wanted: MetricsConfig) -> Iterator[Metric]:
    for name, (text, field, unit_ns) in _OF_A_MODEL.items():
        if name.endswith("_us") and not wanted.counter_latencies:
            continue
        samples = [(_versioned(at), getattr(m, field) // unit_ns) for at, m in replicas.models()]
        yield _metric("counter", name, text, samples)
    keeping = [(_versioned(at), m) for at, m in replicas.models() if m.caches]
    keeping = keeping if wanted.counter_latencies else []
    for name, (text, field, unit_ns) in _OF_A_CACHE.items() if keeping else ():
        samples = [(at, getattr(model, field) // unit_ns) for at, model in keeping]
        yield _metric("counter", name, text, samples)
    for kind, name, text, find in _OTHERS:
        yield _metric(kind, name, text, find(replicas))
    for name, text, histogram in _HISTOGRAMS:
        pairs = ((labels, histogram(model)) for labels, model in replicas.models())
        yield _histogram(name, text, pairs)
    streamed = [(labels, model) for labels, model in replicas.models() if model.first_part]
    if wanted.histogram_latencies:
        yield _first_responses(streamed)
    if wanted.summary_latencies:
        yield from _summaries(replicas, wanted.summary_quantiles)
    for name, text, histogram in _OF_STREAMS:
        yield _histogram(name, text, ((labels, histogram(model)) for labels, model in streamed))


# Triton's ---------------------------------------------------------------------------------

_OF_A_MODEL: Mapping[str, tuple[str, str, int]] = {
    "nv_inference_request_success": ("Requests that were answered well.", "success_count", 1),
    "nv_inference_count": ("Samples of these requests.", "inference_count", 1),
    "nv_inference_exec_count": ("Batches that ran.", "execution_count", 1),
    "nv_inference_request_duration_us": (
        "Time from end to end of requests that were answered well.",
        "success_ns",
        1000,
    ),
    "nv_inference_queue_duration_us": ("Time that they waited.", "queue_ns", 1000),
    "nv_inference_compute_input_duration_us": ("Time of preprocess.", "input_ns", 1000),
    "nv_inference_compute_infer_duration_us": ("Time of process.", "infer_ns", 1000),
    "nv_inference_compute_output_duration_us": ("Time of postprocess.", "output_ns", 1000),
}
"""By name: text, field of ModelCounters, units of the field in one of the metric."""

_OF_A_CACHE: Mapping[str, tuple[str, str, int]] = {
    "nv_cache_num_hits_per_model": ("Requests found in the cache.", "cache_hit_count", 1),
    "nv_cache_num_misses_per_model": ("Requests not found there.", "cache_miss_count", 1),
    "nv_cache_hit_duration_per_model": ("Time of finding them, us.", "cache_hit_ns", 1000),
    "nv_cache_miss_duration_per_model": (
        "Time of looking for the others, and of keeping their answers, us.",
        "cache_miss_ns",
        1000,
    ),
}
"""The same for models with a cache."""


def _failures(replicas: _Replicas) -> _Samples:
    for labels, model in replicas.models():
        for outcome in Outcome:
            if outcome is not Outcome.OK:
                reason = {**_versioned(labels), "reason": outcome.name}
                yield reason, model.fail_counts[outcome]


def _pending(replicas: _Replicas) -> _Samples:
    for snapshot in replicas.snapshots:
        for model in snapshot.models[:1]:
            if model.version:
                labels = replicas.labels(snapshot, {"model": model.name})
                yield _versioned(labels), snapshot.engine.waiting
    for labels, op in replicas.ops():
        yield _versioned(labels), op.queued


def _first_responses(streamed: Sequence[tuple[Labels, ModelCounters]]) -> Metric:
    """Return Triton's histogram of models that stream, in whole ms."""
    name = "nv_inference_first_response_histogram_ms"
    metric = Metric(name, "Time until the first response of a stream, ms.", "histogram")
    for labels, model in streamed:
        own = _versioned(labels)
        bounds = [*(f"{bound:g}" for bound in model.first_part_bounds_ms), "+Inf"]
        for bound, up_to in zip(bounds, accumulate(model.first_part_ms), strict=True):
            metric.add_sample(f"{name}_bucket", {**own, "le": bound}, up_to)
        metric.add_sample(f"{name}_count", own, sum(model.first_part_ms))
        metric.add_sample(f"{name}_sum", own, model.first_part_ns // 1_000_000)
    return metric


def _summaries(replicas: _Replicas, quantiles: Sequence[float]) -> Iterator[Metric]:
    """Yield Triton's summaries of the last minute; `_count` and `_sum` cover all requests."""
    for place, (name, text, field) in enumerate(_SUMMARIES):
        metric = Metric(name, text, "summary")
        for labels, model in replicas.models():
            if place == 0 and model.caches:  # as in Triton
                continue
            own = _versioned(labels)
            metric.add_sample(f"{name}_count", own, model.success_count)
            metric.add_sample(f"{name}_sum", own, getattr(model, field) // 1000)
            of_each = model.recent_us[place] if model.recent_us else [math.nan] * len(quantiles)
            for quantile, value in zip(quantiles, of_each, strict=True):
                metric.add_sample(name, {**own, "quantile": f"{quantile:g}"}, value)
        yield metric


_SUMMARIES = (
    (
        "nv_inference_request_summary_us",
        "Time from end to end of requests that were answered well.",
        "success_ns",
    ),
    ("nv_inference_queue_summary_us", "Time that they waited.", "queue_ns"),
    ("nv_inference_compute_input_summary_us", "Time of preprocess.", "input_ns"),
    ("nv_inference_compute_infer_summary_us", "Time of process.", "infer_ns"),
    ("nv_inference_compute_output_summary_us", "Time of postprocess.", "output_ns"),
)


def _versioned(labels: Labels) -> Labels:
    return {"version": _VERSION, **labels}


# Ours -------------------------------------------------------------------------------------


def _of_engines(*fields: str, label: str = "") -> Callable[[_Replicas], _Samples]:
    """Return a finder of fields of the engines' states; `label` distinguishes several fields."""

    def find(replicas: _Replicas) -> _Samples:
        for snapshot in replicas.snapshots:
            for field in fields:
                more = {label: field} if label else None
                yield replicas.labels(snapshot, more), getattr(snapshot.engine, field)

    return find


def _op_requests(replicas: _Replicas) -> _Samples:
    for labels, op in replicas.ops():
        for state in ("joining", "queued", "running"):
            yield {**labels, "state": state}, getattr(op, state)


def _op_workers(replicas: _Replicas) -> _Samples:
    for labels, op in replicas.ops():
        workers = op.workers
        # Each counts once: without the stuck ones, the sum is at least the configured number.
        for state, count in (
            ("idle", max(0, workers.up - workers.busy)),
            ("busy", workers.busy),
            ("missing", max(0, workers.wanted - workers.up)),
            ("stuck", workers.stuck),
        ):
            yield {**labels, "kind": workers.kind, "state": state}, count


def _of_sequences(*fields: str, label: str = "") -> Callable[[_Replicas], _Samples]:
    """Return a finder of fields of the states of Ops' sequences."""

    def find(replicas: _Replicas) -> _Samples:
        for labels, op in replicas.ops():
            for field in fields if op.sequences is not None else ():
                more = {label: field} if label else {}
                yield {**labels, **more}, getattr(op.sequences, field)

    return find


def _edges(replicas: _Replicas) -> _Samples:
    for labels, op in replicas.ops():
        for edge in op.edges:
            yield {**labels, "to": edge.to, "state": "sent"}, edge.sent
            yield {**labels, "to": edge.to, "state": "absent"}, edge.absent


def _memory(replicas: _Replicas) -> _Samples:
    for labels, model in replicas.models():
        for use in model.memory:
            yield {**labels, "kind": use.kind, "device": str(use.id)}, use.byte_size


_OTHERS: Sequence[tuple[str, str, str, Callable[[_Replicas], _Samples]]] = (
    ("counter", "nv_inference_request_failure", "Requests that failed.", _failures),
    (
        "gauge",
        "nv_inference_pending_request_count",
        "Requests that wait: for the pipeline, or in the channel of the Op.",
        _pending,
    ),
    ("gauge", "pipeline_ready", "Whether every Op has its workers.", _of_engines("is_ready")),
    (
        "gauge",
        "pipeline_requests",
        "Requests inside the graph, and requests that wait for admission.",
        _of_engines("inside", "waiting", label="state"),
    ),
    (
        "counter",
        "pipeline_requests_accepted_total",
        "Requests that were taken in.",
        _of_engines("accepted"),
    ),
    (
        "counter",
        "pipeline_requests_rejected_total",
        "Requests that were refused, since too many waited.",
        _of_engines("rejected"),
    ),
    (
        "gauge",
        "pipeline_op_requests",
        "Requests at an Op: that wait for their other inputs, are ready, are worked on.",
        _op_requests,
    ),
    (
        "gauge",
        "pipeline_op_workers",
        "Workers of an Op by what they do; stuck ones were given up and have not come back.",
        _op_workers,
    ),
    (
        "counter",
        "pipeline_op_worker_restarts_total",
        "Workers that were replaced.",
        lambda replicas: ((labels, op.workers.restarts) for labels, op in replicas.ops()),
    ),
    (
        "counter",
        "pipeline_edge_answers_total",
        "Answers of an Op that another one got, or that went elsewhere.",
        _edges,
    ),
    (
        "gauge",
        "pipeline_op_sequences",
        "Sequences of an Op that are not over: which use a slot, and in the backlog.",
        _of_sequences("used", "backlog", label="state"),
    ),
    (
        "gauge",
        "pipeline_op_sequence_slots",
        "Slots at all workers of an Op.",
        _of_sequences("slots"),
    ),
    (
        "counter",
        "pipeline_op_sequences_begun_total",
        "Sequences that have begun.",
        _of_sequences("begun"),
    ),
    (
        "counter",
        "pipeline_op_sequences_over_total",
        "Those that are over: ended, cut short, reaped while they were idle, lost with a worker.",
        _of_sequences("ended", "cut", "reaped", "lost", label="reason"),
    ),
    (
        "gauge",
        "pipeline_model_memory_bytes",
        "Memory that loading the Op's model took, where that is known.",
        _memory,
    ),
)

_Histogram = tuple[Sequence[tuple[float, int]], int, float, Sequence[Exemplar]]
"""(upper bounds with cumulative counts, total count, sum, exemplars)"""


def _latency(counts: Sequence[int], sum_ns: int, exemplars: Sequence[Exemplar] = ()) -> _Histogram:
    up_to = list(accumulate(counts))
    bounds = [(2**power / 1e6, up_to[_STEPS_PER_BUCKET * power]) for power in _BUCKETS]
    return bounds, up_to[-1], sum_ns / 1e9, exemplars


def _batch_sizes(model: ModelCounters) -> _Histogram:
    counts = {size: batch.count for size, batch in model.batches.items()}
    bounds = [
        (bound, sum(count for size, count in counts.items() if size <= bound))
        for bound in _BATCH_SIZES
    ]
    total = sum(size * count for size, count in counts.items())
    return bounds, sum(counts.values()), total, ()


_HISTOGRAMS: Sequence[tuple[str, str, Callable[[ModelCounters], _Histogram]]] = (
    (
        "pipeline_request_duration_seconds",
        "Time of requests that were answered well, from end to end.",
        lambda model: _latency(model.latency, model.success_ns, model.exemplars),
    ),
    (
        "pipeline_queue_duration_seconds",
        "Time that they waited.",
        lambda model: _latency(model.queue_latency, model.queue_ns),
    ),
    ("pipeline_batch_size", "Samples of the batches that ran.", _batch_sizes),
)
_OF_STREAMS: Sequence[tuple[str, str, Callable[[ModelCounters], _Histogram]]] = (
    (
        "pipeline_first_part_seconds",
        "Time until the first part of a stream.",
        lambda model: _latency(model.first_part, model.first_part_ns),
    ),
    (
        "pipeline_part_gap_seconds",
        "Time from a part of a stream to the next.",
        lambda model: _latency(model.part_gap, model.part_gap_ns),
    ),
)

# Paddle Serving's -------------------------------------------------------------------------

_PREDECESSORS: Mapping[str, tuple[str, Callable[[Sequence[ModelCounters]], float]]] = {
    "pd_query_request_success_total": (
        "Requests that were answered well.",
        lambda models: models[0].success_count,
    ),
    "pd_query_request_failure_total": (
        "Requests that failed.",
        lambda models: sum(models[0].fail_counts),
    ),
    "pd_inference_count_total": (
        "Samples that the Ops worked on.",
        lambda models: sum(op.inference_count for op in models[1:]),
    ),
    "pd_query_request_duration_us_total": (
        "Time from end to end of requests that were answered well.",
        lambda models: models[0].success_ns // 1000,
    ),
    "pd_inference_duration_us_total": (
        "Time of process of all Ops.",
        lambda models: sum(op.infer_ns for op in models[1:]) // 1000,
    ),
}

# The format -------------------------------------------------------------------------------


def _metric(kind: str, name: str, text: str, samples: _Samples) -> Metric:
    metric = Metric(name.removesuffix("_total"), text, kind)
    for labels, value in samples:
        metric.add_sample(name, labels, value)
    return metric


def _histogram(name: str, text: str, histograms: Iterable[tuple[Labels, _Histogram]]) -> Metric:
    metric = Metric(name, text, "histogram")
    for labels, (bounds, count, total, exemplars) in histograms:
        below = 0.0
        for bound, up_to in (*bounds, (math.inf, count)):
            own = {**labels, "le": "+Inf" if math.isinf(bound) else repr(float(bound))}
            newest = _newest(exemplars, below, bound)
            metric.add_sample(f"{name}_bucket", own, up_to, exemplar=newest)
            below = bound
        metric.add_sample(f"{name}_count", labels, count)
        metric.add_sample(f"{name}_sum", labels, total)
    return metric


def _newest(exemplars: Sequence[Exemplar], below: float, bound: float) -> SampleExemplar | None:
    """Return the newest exemplar of a bucket, in seconds."""
    inside = [one for one in exemplars if below < one.took_ns / 1e9 <= bound]
    if not inside:
        return None
    one = max(inside, key=lambda one: one.ended_ms)
    return SampleExemplar({"trace_id": one.trace_id}, one.took_ns / 1e9, one.ended_ms / 1000)


class Given(Collector):
    """A collector of metrics that were made for one answer."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


_UNSUFFIXED = re.compile(rb"^(# TYPE \S+(?<!_total) )counter$", re.MULTILINE)
# The library appends _total to every counter's name in HELP and TYPE; Triton's counters lack it.
_SUFFIXED = re.compile(rb"^# (HELP|TYPE) (nv_\w+)_total ", re.MULTILINE)


_EVERY_S = 1.0
_BOUNDS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_LAG = FamilyHead(
    "pipeline_event_loop_lag_seconds",
    "histogram",
    "Time by which the event loop came too late, looked at once a second.",
    _BOUNDS_S,
)
_WAIT = FamilyHead(
    "pipeline_gil_wait_seconds",
    "histogram",
    "Time that a thread waited for the interpreter, looked at once a second.",
    _BOUNDS_S,
)


class ProcessMetrics:
    """Figures of one process of a server, and the metrics of user code in it.

    Once a second the event loop measures how late it is called, and a thread measures how long it
    waits for the GIL after it has released it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ledger = Ledger()
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = threading.Event()

    def start(self) -> None:
        """Begin to measure; on the event loop."""
        self._look_at(self._loop.time() + _EVERY_S)
        threading.Thread(target=self._watch, name="pipeline-gil", daemon=True).start()

    def close(self) -> None:
        """Stop the measurements."""
        self._is_over.set()
        if self._timer is not None:
            self._timer.cancel()

    def families(self) -> list[MetricSamples]:
        """Return the current families."""
        return [*samples_of_process(), *self._ledger.families(), *LEDGER.families()]

    def _look_at(self, due: float) -> None:
        self._timer = self._loop.call_at(due, self._look, due)

    def _look(self, due: float) -> None:
        now = self._loop.time()
        self._ledger.change(_LAG, (), max(0.0, now - due))
        self._look_at(now + _EVERY_S)

    def _watch(self) -> None:
        while not self._is_over.wait(_EVERY_S):
            start = time.perf_counter()
            time.sleep(0)  # releases the GIL
            self._ledger.change(_WAIT, (), time.perf_counter() - start)
