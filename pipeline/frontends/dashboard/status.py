"""The body of `GET /status.json`: the merged snapshots of all replicas, under readable names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from pipeline.engine.journal.journal import BY_CALLERS, Outcome
from pipeline.engine.state import OpState, SequencesState
from pipeline.frontends.dashboard.layout import Layout
from pipeline.frontends.dashboard.recent import MAX_FAILED, MAX_SLOW, merged
from pipeline.observe.snapshot import NO_REPLICA, ModelCounters, RecentRequest, Snapshot
from pipeline.observe.statistics import merge

_FAILURES = [outcome for outcome in Outcome if outcome is not Outcome.OK]
_JSON_NAMES = {
    "preprocess_end_ns": "prepared_ns",
    "process_end_ns": "processed_ns",
    "result_received_ns": "taken_ns",
}
"""Names in the page's JSON, which are older than ours."""


class Title(msgspec.Struct, frozen=True):
    """The constant fields of a status; `pipelines` if there are several."""

    name: str
    version: str
    can_record: bool
    graph: Layout
    pipelines: tuple[str, ...] = ()


def status_of(title: Title, snapshots: Sequence[Snapshot], time_ms: int) -> dict[str, Any]:
    """Return the dashboard's data, from a snapshot of each replica that answered.

    `time_ms` is since the epoch. `copies` is the number of replicas that answered, at least 1. The
    totals `accepted` and `rejected` are of these; `pipeline` and `ops` also count replicas that
    have been replaced.
    """
    names = [box.name for box in title.graph.boxes[1:-1]]
    living = [snapshot for snapshot in snapshots if snapshot.replica != NO_REPLICA]
    engines = [snapshot.engine for snapshot in living]
    states = list(zip(*(engine.ops for engine in engines), strict=True)) or [() for _ in names]
    uncounted = [ModelCounters("") for _ in range(1 + len(names))]  # with `statistics: False`
    counted = merge(snapshot.models for snapshot in snapshots) or uncounted
    pipeline, *models = [counters_of(model) for model in counted]
    minute = merged([snapshot.minute for snapshot in living])
    slowest = [(s.replica, request) for s in living for request in s.slowest]
    slowest.sort(key=lambda entry: -entry[1].took_ns)
    failed = [(s.replica, request) for s in living for request in s.failed]
    # Failures caused by callers are last, so that the server's own stay visible.
    failed.sort(key=lambda entry: (entry[1].outcome in BY_CALLERS, -entry[1].ended_ms))
    return {
        **msgspec.structs.asdict(title),
        "time_ms": time_ms,
        "copies": len(living),
        "is_ready": bool(engines) and all(engine.is_ready for engine in engines),
        **_sums(engines, "inside", "waiting", "accepted", "rejected"),
        "pipeline": pipeline,
        "ops": [_op(*entry) for entry in zip(names, states, models, strict=True)],
        "minute": {
            "succeeded": minute.succeeded,
            "p99_ns": minute.p99_ns,
            "inside": minute.inside,
        },
        "slowest": [_shown(*entry) for entry in slowest[:MAX_SLOW]],
        "failed": [_shown(*entry) for entry in failed[:MAX_FAILED]],
    }


def _op(name: str, states: Sequence[OpState], counters: dict[str, Any]) -> dict[str, Any]:
    workers = [state.workers for state in states]
    return {
        "name": name,
        **_sums(states, "joining", "queued", "running"),
        "workers": {
            "kind": workers[0].kind if workers else "",
            **_sums(workers, "wanted", "up", "busy", "stuck", "restarts"),
        },
        **_sums(states, "skipped"),
        "edges": _edges(states),
        "sequences": _sequences([state.sequences for state in states if state.sequences]),
        "group": next((list(state.group) for state in states if state.group), []),
        "counters": counters,
    }


def _sequences(states: Sequence[SequencesState]) -> dict[str, Any] | None:
    """Return the sequences of an Op, or None."""
    names = ("live", "backlog", "slots", "used", "begun", "ended", "cut", "reaped", "lost")
    return _sums(states, *names) if states else None


def _edges(states: Sequence[OpState]) -> list[dict[str, Any]]:
    """Return, for each reader of an Op, how many answers it got and how many it did not get."""
    several = zip(*(state.edges for state in states), strict=True)
    return [{"to": edges[0].to, **_sums(edges, "sent", "absent")} for edges in several]


def _sums(states: Sequence[Any], *names: str) -> dict[str, Any]:
    return {name: sum(getattr(state, name) for state in states) for name in names}


def counters_of(model: ModelCounters) -> dict[str, Any]:
    """Return the counts of an Op or the pipeline since the start, see ModelCounters.

    `failed` is by outcome, `batches` counts executions by batch size. The stages' times are summed
    over requests; `busy_ns` is summed over executions. `parts` are those of streams. The histograms
    omit empty buckets at their end.
    """
    return {
        "succeeded": model.success_count,
        "failed": {outcome.name.lower(): model.fail_counts[outcome] for outcome in _FAILURES},
        "requests": model.inference_count,
        "executions": model.execution_count,
        "queue_ns": model.queue_ns,
        "input_ns": model.input_ns,
        "infer_ns": model.infer_ns,
        "output_ns": model.output_ns,
        "busy_ns": sum(b.input_ns + b.infer_ns + b.output_ns for b in model.batches.values()),
        "batches": {size: batch.count for size, batch in sorted(model.batches.items())},
        "latency": _without_end(model.latency),
        "queue_latency": _without_end(model.queue_latency),
        "parts": sum(response.count for response in model.responses.values()),
        "first_part": _without_end(model.first_part),
        "part_gap": _without_end(model.part_gap),
    }


def _without_end(histogram: Iterable[int]) -> list[int]:
    counts = list(histogram)
    while counts and not counts[-1]:
        counts.pop()
    return counts


def _shown(replica: int, request: RecentRequest) -> dict[str, Any]:
    """Return a request; its ids are text, because JavaScript's numbers are too small."""
    fields = _as_object(request)
    spans = fields.pop("spans")
    return fields | {
        "copy": replica,
        "data_id": str(request.data_id),
        "log_id": str(request.log_id),
        "turns": [_as_object(span) for span in spans],
    }


def _as_object(state: msgspec.Struct) -> dict[str, Any]:
    """Return a record, which is sent as an array, under the names of its fields."""
    fields = msgspec.structs.asdict(state)
    if "outcome" in fields:
        fields["outcome"] = Outcome(fields["outcome"]).name.lower()
    return {_JSON_NAMES.get(name, name): value for name, value in fields.items()}
