"""Snapshot: the state of one process of a server, as it sends it to the other processes.

Counters only grow, so the snapshots of several processes can be added.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from pipeline.engine.journal.journal import Outcome
from pipeline.engine.state import EngineState
from pipeline.metrics import MetricSamples
from pipeline.predictors.base import MemoryUse

LATENCY_STEPS = 121
"""Buckets of a latency histogram: bucket i counts times above the previous bound, up to
1 us * 2**(i / 4); the last one also counts all times above its bound, 18 minutes."""

NO_REPLICA = -1
"""`Snapshot.replica` of the counters of ended replicas; it has no engine's state."""


class BatchCounters(msgspec.Struct, array_like=True):
    """Counters of executions with one batch size. Times in ns."""

    count: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0


class ResponseCounters(msgspec.Struct, array_like=True):
    """Counters of the parts of streams with one index. Times in ns."""

    count: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    fail_count: int = 0
    fail_ns: int = 0
    empty_count: int = 0
    empty_ns: int = 0
    cancel_count: int = 0
    cancel_ns: int = 0


class Exemplar(msgspec.Struct, frozen=True, array_like=True):
    """A request of a latency histogram whose trace is recorded. `ended_ms` is since the epoch."""

    trace_id: str
    took_ns: int
    ended_ms: int


class ModelCounters(msgspec.Struct, array_like=True):
    """One model, an Op or the whole pipeline: Triton's counters. Times in ns.

    Clients cannot ask for a model without a `version`.

    `fail_counts` has a number for each `Outcome` (that of OK stays 0). `batches` is by batch size.
    `latency` and `queue_latency` are histograms of successes, see LATENCY_STEPS. `responses` is by
    the index of a part. `first_part` and `part_gap` are histograms of the time until the first part
    of a stream and between parts; they are empty without streams. `first_part_ms` has the same
    times as `first_part`, with the bounds `first_part_bounds_ms` and one bucket above them.
    `caches` says that the model has a cache; its hits are successes, but not executions.
    `recent_us` are quantiles of the last minute's times: in total, in the queue and of the three
    stages; they cannot be added. `exemplars` are requests of `latency`.
    """

    name: str
    last_inference_ms: int = 0
    inference_count: int = 0
    execution_count: int = 0
    success_count: int = 0
    success_ns: int = 0
    fail_counts: list[int] = msgspec.field(default_factory=lambda: [0] * len(Outcome))
    fail_ns: int = 0
    queue_ns: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    batches: dict[int, BatchCounters] = {}
    latency: list[int] = msgspec.field(default_factory=lambda: [0] * LATENCY_STEPS)
    queue_latency: list[int] = msgspec.field(default_factory=lambda: [0] * LATENCY_STEPS)
    memory: list[MemoryUse] = []
    responses: dict[int, ResponseCounters] = {}
    first_part: list[int] = []
    first_part_ns: int = 0
    part_gap: list[int] = []
    part_gap_ns: int = 0
    first_part_ms: list[int] = []
    first_part_bounds_ms: list[float] = []
    version: str = "1"
    caches: bool = False
    cache_hit_count: int = 0
    cache_hit_ns: int = 0
    cache_miss_count: int = 0
    cache_miss_ns: int = 0
    recent_us: list[list[int]] = []
    exemplars: list[Exemplar] = []


class MinuteSeries(msgspec.Struct, frozen=True, array_like=True):
    """60 seconds of the whole pipeline, oldest first; the last one ended at the second `end_s`.

    `end_s` is a monotonic time, 0 without data. `inside` also counts requests that wait for
    admission.
    """

    end_s: int = 0
    succeeded: list[int] = []
    p99_ns: list[int] = []
    inside: list[int] = []


class RecentSpan(msgspec.Struct, frozen=True, array_like=True):
    """One span of a recent request. Times in ns from the request's start."""

    op: str
    outcome: int
    rows: int
    batch_requests: int
    ready_ns: int
    start_ns: int
    preprocess_end_ns: int
    process_end_ns: int
    end_ns: int
    result_received_ns: int


class RecentRequest(msgspec.Struct, frozen=True, array_like=True):
    """A recent request that was slow or failed. `ended_ms` is since the epoch."""

    data_id: int
    log_id: int
    ended_ms: int
    took_ns: int
    outcome: int
    code: int
    error: str
    spans: list[RecentSpan]


class Snapshot(msgspec.Struct, array_like=True):
    """The numbers of one process. The first of `models` is the pipeline, then its Ops in order.

    With `model` and `version` it is the Snapshot of one model of a repository. `pipeline` is the
    name of one of several pipelines. `families` are the metrics of the process and of user code.
    """

    replica: int
    engine: EngineState
    models: list[ModelCounters]
    slowest: list[RecentRequest] = []
    failed: list[RecentRequest] = []
    minute: MinuteSeries = MinuteSeries()
    model: str = ""
    version: str = ""
    families: list[MetricSamples] = []
    pipeline: str = ""


def of_no_replica(models: list[ModelCounters], families: Sequence[MetricSamples] = ()) -> Snapshot:
    """Return the Snapshot `NO_REPLICA`, of counters that belong to no running engine."""
    nothing = EngineState(is_ready=True, inside=0, waiting=0, accepted=0, rejected=0)
    return Snapshot(NO_REPLICA, nothing, models, families=list(families))


AskAll = Callable[[], Awaitable[Sequence[Snapshot]]]
"""Returns the Snapshots of all processes that serve."""
