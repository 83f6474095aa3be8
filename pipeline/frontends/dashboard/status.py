"""The body of `GET /status.json`: the snapshots of all replicas merged, under readable names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from pipeline.engine.journal import BY_CALLERS, Outcome
from pipeline.engine.state import EngineState, OpState, WorkersState
from pipeline.frontends.dashboard.layout import Layout
from pipeline.frontends.dashboard.minute import merged
from pipeline.frontends.dashboard.recent import MAX_FAILED, MAX_SLOW
from pipeline.observe.snapshot import NO_REPLICA, ModelCounters, RecentRequest, RecentSpan, Snapshot
from pipeline.observe.statistics import merge

_FAILURES = [outcome for outcome in Outcome if outcome is not Outcome.OK]
_BY_CALLERS = [outcome.name.lower() for outcome in BY_CALLERS]


class Counters(msgspec.Struct, frozen=True):
    """Counts of an Op or the pipeline since the start; see ModelCounters. Times in ns.

    `failed` is by outcome, `batches` the executions by batch size. The stages' times are of each
    request; `busy_ns` is the executions' own time, however many requests were in one. The
    histograms are without the empty buckets at their end.
    """

    succeeded: int
    failed: dict[str, int]
    requests: int
    executions: int
    queue_ns: int
    input_ns: int
    infer_ns: int
    output_ns: int
    busy_ns: int
    batches: dict[int, int]
    latency: list[int]
    queue_latency: list[int]


class WorkersView(WorkersState, frozen=True, array_like=False):
    """A WorkersState as a JSON object."""


class OpStatus(msgspec.Struct, frozen=True):
    """One Op: how it stands right now, and what it did."""

    name: str
    joining: int
    queued: int
    running: int
    workers: WorkersView
    counters: Counters


_JSON_NAMES = {
    "preprocess_end_ns": "prepared_ns",
    "process_end_ns": "processed_ns",
    "result_received_ns": "taken_ns",
    "spans": "turns",
}
"""Names in the page's JSON, which are older than ours."""


class SpanView(msgspec.Struct, frozen=True, rename=_JSON_NAMES):
    """See RecentSpan. Times in ns from the request's start."""

    op: str
    outcome: str
    rows: int
    batch_requests: int
    ready_ns: int
    start_ns: int
    preprocess_end_ns: int
    process_end_ns: int
    end_ns: int
    result_received_ns: int


class MinuteView(msgspec.Struct, frozen=True):
    """The last 60 seconds of the whole pipeline, oldest first; empty: nothing is known."""

    succeeded: list[int]
    p99_ns: list[int]
    inside: list[int]


class RequestView(msgspec.Struct, frozen=True, rename=_JSON_NAMES):
    """See RecentRequest. `data_id` and `log_id` are text: JavaScript's numbers are too small."""

    copy: int
    data_id: str
    log_id: str
    ended_ms: int
    took_ns: int
    outcome: str
    code: int
    error: str
    spans: list[SpanView]


class Status(msgspec.Struct, frozen=True):
    """All that the dashboard shows.

    `time_ms` is since the epoch. `copies` is the number of replicas that answered; 1 if there are
    none. The totals `accepted` and `rejected` are of these, `pipeline` and `ops` also have the
    counts of replicas that have been replaced.
    """

    name: str
    version: str
    time_ms: int
    copies: int
    is_ready: bool
    can_record: bool
    inside: int
    waiting: int
    accepted: int
    rejected: int
    graph: Layout
    pipeline: Counters
    ops: list[OpStatus]
    minute: MinuteView
    slowest: list[RequestView]
    failed: list[RequestView]


class Title(msgspec.Struct, frozen=True):
    """The fields that do not change from one status to the next."""

    name: str
    version: str
    can_record: bool
    graph: Layout


def status_of(title: Title, snapshots: Sequence[Snapshot], time_ms: int) -> Status:
    """Return the status of the whole server, from a snapshot of each replica that answered."""
    names = [box.name for box in title.graph.boxes[1:-1]]
    living = [snapshot for snapshot in snapshots if snapshot.replica != NO_REPLICA]
    engine = _merged([snapshot.engine for snapshot in living], names)
    uncounted = [ModelCounters("") for _ in range(1 + len(names))]  # with `statistics: False`
    merged = merge(snapshot.models for snapshot in snapshots) or uncounted
    pipeline, *models = [_counters(model) for model in merged]
    slowest = [_request_view(s.replica, request) for s in living for request in s.slowest]
    failed = [_request_view(s.replica, request) for s in living for request in s.failed]
    return Status(
        name=title.name,
        version=title.version,
        time_ms=time_ms,
        copies=len(living),
        is_ready=engine.is_ready,
        can_record=title.can_record,
        inside=engine.inside,
        waiting=engine.waiting,
        accepted=engine.accepted,
        rejected=engine.rejected,
        graph=title.graph,
        pipeline=pipeline,
        ops=[_op_status(state, counted) for state, counted in zip(engine.ops, models, strict=True)],
        minute=_minute(living),
        slowest=sorted(slowest, key=lambda request: -request.took_ns)[:MAX_SLOW],
        failed=sorted(failed, key=_by_gravity)[:MAX_FAILED],
    )


def _minute(living: Sequence[Snapshot]) -> MinuteView:
    series = merged([snapshot.minute for snapshot in living])
    return MinuteView(series.succeeded, series.p99_ns, series.inside)


def _by_gravity(request: RequestView) -> tuple[bool, int]:
    """Sort failures by callers last: they must not push the server's own out of sight."""
    return request.outcome in _BY_CALLERS, -request.ended_ms


def _merged(engines: Sequence[EngineState], names: Sequence[str]) -> EngineState:
    unknown = [OpState(name, 0, 0, 0, WorkersState("", 0, 0, 0)) for name in names]
    return EngineState(
        is_ready=bool(engines) and all(engine.is_ready for engine in engines),
        **_sums(engines, "inside", "waiting", "accepted", "rejected"),
        ops=[_merged_op(ops) for ops in zip(*(engine.ops for engine in engines), strict=True)]
        or unknown,
    )


def _merged_op(ops: Sequence[OpState]) -> OpState:
    workers = [op.workers for op in ops]
    return OpState(
        name=ops[0].name,
        **_sums(ops, "joining", "queued", "running"),
        workers=WorkersState(
            kind=workers[0].kind, **_sums(workers, "wanted", "up", "busy", "stuck", "restarts")
        ),
    )


def _sums(states: Sequence[Any], *names: str) -> dict[str, Any]:
    return {name: sum(getattr(state, name) for state in states) for name in names}


def _op_status(state: OpState, counters: Counters) -> OpStatus:
    workers = WorkersView(**msgspec.structs.asdict(state.workers))
    return OpStatus(state.name, state.joining, state.queued, state.running, workers, counters)


def _counters(model: ModelCounters) -> Counters:
    return Counters(
        succeeded=model.success_count,
        failed={outcome.name.lower(): model.fail_counts[outcome] for outcome in _FAILURES},
        requests=model.inference_count,
        executions=model.execution_count,
        queue_ns=model.queue_ns,
        input_ns=model.input_ns,
        infer_ns=model.infer_ns,
        output_ns=model.output_ns,
        busy_ns=sum(b.input_ns + b.infer_ns + b.output_ns for b in model.batches.values()),
        batches={size: batch.count for size, batch in sorted(model.batches.items())},
        latency=_without_end(model.latency),
        queue_latency=_without_end(model.queue_latency),
    )


def _without_end(histogram: Iterable[int]) -> list[int]:
    counts = list(histogram)
    while counts and not counts[-1]:
        counts.pop()
    return counts


def _request_view(copy: int, request: RecentRequest) -> RequestView:
    return RequestView(
        copy=copy,
        data_id=str(request.data_id),
        log_id=str(request.log_id),
        ended_ms=request.ended_ms,
        took_ns=request.took_ns,
        outcome=Outcome(request.outcome).name.lower(),
        code=request.code,
        error=request.error,
        spans=[_span_view(span) for span in request.spans],
    )


def _span_view(span: RecentSpan) -> SpanView:
    fields = msgspec.structs.asdict(span)
    return SpanView(**fields | {"outcome": Outcome(span.outcome).name.lower()})
