"""Metrics: snapshots of a server in Prometheus' text format, Triton's names and ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from pipeline.engine.journal import Outcome
from pipeline.engine.state import OpState, WorkersState
from pipeline.observe.snapshot import NO_COPY, ModelCounters, Snapshot

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_VERSION = "1"  # Triton's label; a model has one here
_STEPS_PER_BUCKET = 4  # of a latency histogram: from one power of two to the next
_BUCKETS = range(6, 26)  # powers of two of 1 us: 64 us to 33.6 s
_BATCH_SIZES = tuple(2**power for power in range(11))

Labels = dict[str, str]
_Samples = Iterable[tuple[Labels, float]]
_Per = Callable[[ModelCounters], float]


def render(snapshots: Sequence[Snapshot], by_copy: bool = False) -> bytes:
    """Return all metrics of a server.

    Args:
        snapshots: one of each process that serves.
        by_copy: give each process series of its own, told apart by the label `copy`. A sum of
            them would fall when one is replaced, and Prometheus takes that for a restart of all.
    """
    return _text(_all(_Replicas(snapshots, by_copy)))


def render_predecessor(snapshots: Sequence[Snapshot], by_copy: bool = False) -> bytes:
    """Return the five counters that Paddle Serving's dashboards read; arguments as for `render`.

    Durations are microseconds of requests that succeeded.
    """
    return _text(_predecessors(_Replicas(snapshots, by_copy)))


class _Replicas:
    """The snapshots, and the labels that tell their series apart."""

    def __init__(self, snapshots: Sequence[Snapshot], by_copy: bool) -> None:
        self._by_copy = by_copy
        # Those that are no more have had series of their own.
        self.snapshots = [each for each in snapshots if each.copy != NO_COPY]

    def labels(self, snapshot: Snapshot, more: Labels | None = None) -> Labels:
        own = {"copy": str(snapshot.copy)} if self._by_copy else {}
        return {**(more or {}), **own}

    def models(self) -> Iterator[tuple[Labels, ModelCounters]]:
        """Yield the pipeline and its Ops, of each copy."""
        for snapshot in self.snapshots:
            for model in snapshot.models:
                yield self.labels(snapshot, {"model": model.name}), model

    def ops(self) -> Iterator[tuple[Labels, OpState]]:
        """Yield the Ops as the engine sees them, under the names that they have as models."""
        for snapshot in self.snapshots:
            names = [model.name for model in snapshot.models[1:]]
            names = names or [op.name for op in snapshot.engine.ops]  # without statistics
            for name, op in zip(names, snapshot.engine.ops, strict=True):
                yield self.labels(snapshot, {"model": name}), op


def _all(copies: _Replicas) -> Iterator[Metric]:
    yield from _tritons(copies)
    yield from _totals(copies)
    yield from _of_ops(copies)
    yield from _histograms(copies)


# Triton's ---------------------------------------------------------------------------------

_OF_A_MODEL: Mapping[str, tuple[str, _Per]] = {
    "nv_inference_request_success": (
        "Requests that were answered well.",
        lambda model: model.success_count,
    ),
    "nv_inference_count": ("Samples of these requests.", lambda model: model.inference_count),
    "nv_inference_exec_count": ("Batches that ran.", lambda model: model.execution_count),
    "nv_inference_request_duration_us": (
        "Time from end to end of requests that were answered well.",
        lambda model: model.success_ns // 1000,
    ),
    "nv_inference_queue_duration_us": (
        "Time that they waited.",
        lambda model: model.queue_ns // 1000,
    ),
    "nv_inference_compute_input_duration_us": (
        "Time of preprocess.",
        lambda model: model.input_ns // 1000,
    ),
    "nv_inference_compute_infer_duration_us": (
        "Time of process.",
        lambda model: model.infer_ns // 1000,
    ),
    "nv_inference_compute_output_duration_us": (
        "Time of postprocess.",
        lambda model: model.output_ns // 1000,
    ),
}


def _tritons(copies: _Replicas) -> Iterator[Metric]:
    for name, (text, value) in _OF_A_MODEL.items():
        samples = [(_versioned(labels), value(model)) for labels, model in copies.models()]
        yield _metric("counter", name, text, samples)
    failures = (
        ({**_versioned(labels), "reason": outcome.name}, model.fail_counts[outcome])
        for labels, model in copies.models()
        for outcome in Outcome
        if outcome is not Outcome.OK
    )
    yield _metric("counter", "nv_inference_request_failure", "Requests that failed.", failures)
    text = "Requests that wait: for the pipeline, or in the channel of the Op."
    yield _metric("gauge", "nv_inference_pending_request_count", text, _pending(copies))


def _pending(copies: _Replicas) -> _Samples:
    for snapshot in copies.snapshots:
        for model in snapshot.models[:1]:
            labels = copies.labels(snapshot, {"model": model.name})
            yield _versioned(labels), snapshot.engine.waiting
    for labels, op in copies.ops():
        yield _versioned(labels), op.queued


def _versioned(labels: Labels) -> Labels:
    return {**labels, "version": _VERSION}


# Ours -------------------------------------------------------------------------------------


def _totals(copies: _Replicas) -> Iterator[Metric]:
    engines = [(copies.labels(each), each.engine) for each in copies.snapshots]
    yield _metric(
        "gauge",
        "pipeline_ready",
        "Whether every Op has its workers.",
        ((labels, engine.is_ready) for labels, engine in engines),
    )
    yield _metric(
        "gauge",
        "pipeline_requests",
        "Requests inside the graph, and those that wait to be let in.",
        (
            ({**labels, "state": state}, count)
            for labels, engine in engines
            for state, count in (("inside", engine.inside), ("waiting", engine.waiting))
        ),
    )
    yield _metric(
        "counter",
        "pipeline_requests_accepted_total",
        "Requests that were taken in.",
        ((labels, engine.accepted) for labels, engine in engines),
    )
    yield _metric(
        "counter",
        "pipeline_requests_rejected_total",
        "Requests that were refused, since too many waited.",
        ((labels, engine.rejected) for labels, engine in engines),
    )


def _of_ops(copies: _Replicas) -> Iterator[Metric]:
    yield _metric(
        "gauge",
        "pipeline_op_requests",
        "Requests at an Op: that wait for their other inputs, are ready, are worked on.",
        (
            ({**labels, "state": state}, count)
            for labels, op in copies.ops()
            for state, count in (
                ("joining", op.joining),
                ("queued", op.queued),
                ("running", op.running),
            )
        ),
    )
    yield _metric(
        "gauge",
        "pipeline_op_workers",
        "Workers of an Op by what they do; stuck ones were given up and have not come back.",
        (
            ({**labels, "kind": op.workers.kind, "state": state}, count)
            for labels, op in copies.ops()
            for state, count in _worker_states(op.workers).items()
        ),
    )
    yield _metric(
        "counter",
        "pipeline_op_worker_restarts_total",
        "Workers that were replaced.",
        ((labels, op.workers.restarts) for labels, op in copies.ops()),
    )
    yield _metric(
        "gauge",
        "pipeline_model_memory_bytes",
        "Memory that loading the Op's model took, where that is known.",
        (
            ({**labels, "kind": use.kind, "device": str(use.id)}, use.byte_size)
            for labels, model in copies.models()
            for use in model.memory
        ),
    )


def _worker_states(workers: WorkersState) -> Mapping[str, int]:
    """Count each worker once: the sum of all but the stuck ones is what is configured, or more."""
    return {
        "idle": max(0, workers.up - workers.busy),
        "busy": workers.busy,
        "missing": max(0, workers.wanted - workers.up),
        "stuck": workers.stuck,
    }


def _histograms(copies: _Replicas) -> Iterator[Metric]:
    yield _histogram(
        "pipeline_request_duration_seconds",
        "Time of requests that were answered well, from end to end.",
        ((labels, _latency(m.latency, m.success_ns)) for labels, m in copies.models()),
    )
    yield _histogram(
        "pipeline_queue_duration_seconds",
        "Time that they waited.",
        ((labels, _latency(m.queue_latency, m.queue_ns)) for labels, m in copies.models()),
    )
    yield _histogram(
        "pipeline_batch_size",
        "Samples of the batches that ran.",
        ((labels, _batch_sizes(model)) for labels, model in copies.models()),
    )


_Histogram = tuple[Sequence[tuple[float, int]], int, float]
"""(upper bounds with the counts up to there, count of all, their sum)"""


def _latency(counts: Sequence[int], sum_ns: int) -> _Histogram:
    up_to = list(accumulate(counts))
    bounds = [(2**power / 1e6, up_to[_STEPS_PER_BUCKET * power]) for power in _BUCKETS]
    return bounds, up_to[-1], sum_ns / 1e9


def _batch_sizes(model: ModelCounters) -> _Histogram:
    counts = {size: batch.count for size, batch in model.batches.items()}
    bounds = [
        (bound, sum(count for size, count in counts.items() if size <= bound))
        for bound in _BATCH_SIZES
    ]
    return bounds, sum(counts.values()), sum(size * count for size, count in counts.items())


# Paddle Serving's -------------------------------------------------------------------------


def _predecessors(copies: _Replicas) -> Iterator[Metric]:
    served = [each for each in copies.snapshots if each.models]

    def metric(name: str, text: str, value: Callable[[Snapshot], float]) -> Metric:
        return _metric("counter", name, text, ((copies.labels(s), value(s)) for s in served))

    yield metric(
        "pd_query_request_success_total",
        "Requests that were answered well.",
        lambda each: each.models[0].success_count,
    )
    yield metric(
        "pd_query_request_failure_total",
        "Requests that failed.",
        lambda each: sum(each.models[0].fail_counts),
    )
    yield metric(
        "pd_inference_count_total",
        "Samples that the Ops worked on.",
        lambda each: sum(op.inference_count for op in each.models[1:]),
    )
    yield metric(
        "pd_query_request_duration_us_total",
        "Time from end to end of requests that were answered well.",
        lambda each: each.models[0].success_ns // 1000,
    )
    yield metric(
        "pd_inference_duration_us_total",
        "Time of process of all Ops.",
        lambda each: sum(op.infer_ns for op in each.models[1:]) // 1000,
    )


# The format -------------------------------------------------------------------------------


def _metric(kind: str, name: str, text: str, samples: _Samples) -> Metric:
    metric = Metric(name.removesuffix("_total"), text, kind)
    for labels, value in samples:
        metric.add_sample(name, labels, value)
    return metric


def _histogram(name: str, text: str, histograms: Iterable[tuple[Labels, _Histogram]]) -> Metric:
    metric = Metric(name, text, "histogram")
    for labels, (bounds, count, total) in histograms:
        for bound, up_to in bounds:
            metric.add_sample(f"{name}_bucket", {**labels, "le": repr(float(bound))}, up_to)
        metric.add_sample(f"{name}_bucket", {**labels, "le": "+Inf"}, count)
        metric.add_sample(f"{name}_count", labels, count)
        metric.add_sample(f"{name}_sum", labels, total)
    return metric


class _Given(Collector):
    """Metrics that were made for one answer."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return (metric for metric in self._metrics if metric.samples)


# The library ends the name of every counter in _total where it says what it is; Triton's do not.
_SUFFIXED = re.compile(rb"^# (HELP|TYPE) (nv_\w+)_total ", re.MULTILINE)


def _text(metrics: Iterable[Metric]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Given(metrics))
    return _SUFFIXED.sub(rb"# \1 \2 ", generate_latest(registry))
