"""The critical path: what a request waited for, Op by Op."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.engine.journal.journal import NO_WORKER, Rows
from pipeline.observe.analysis.weighted import Durations, Numbers

_MAX_WALKED = 20_000  # requests whose way through the graph is looked at


def service_avg_cost(costs: Sequence[float]) -> float:
    """Return what a request takes without waiting: the sum over the Ops of its critical path."""
    return sum(costs)


@dataclass(frozen=True, slots=True)
class Path:
    """The way on which most requests were slowest: Ops by name, their cost, the waiting in between.

    `share` of all requests took it.
    """

    ops: tuple[str, ...]
    cost_ms: float
    queue_ms: float
    share: float


def critical_path(spans: Rows, names: Sequence[str]) -> Path | None:
    """Return what most requests waited for, from their last span back to the first.

    The span before another one on that way is the one that ended last before that was ready.
    """
    is_known = (spans["data_id"] >= 0) & (spans["worker"] != NO_WORKER) & (spans["ready_ns"] > 0)
    known = spans[is_known]
    ordered = known[np.lexsort((known["end_ns"], known["data_id"]))]
    ways: dict[tuple[int, ...], list[_Way]] = {}
    for way in itertools.islice(_ways(ordered), _MAX_WALKED):
        ways.setdefault(tuple(step[0] for step in way), []).append(way)
    if not ways:
        return None
    took = {ops: _weights(found).sum() for ops, found in ways.items()}
    ops = max(took, key=lambda ops: float(took[ops]))
    weights = _weights(ways[ops])
    costs_ns = [service_avg_cost([end - start for _, _, start, end, _ in way]) for way in ways[ops]]
    queues_ns = [sum(start - ready for _, ready, start, _, _ in way) for way in ways[ops]]
    return Path(
        tuple(names[op] for op in ops),
        cost_ms=Durations(np.array(costs_ns), weights).mean_ms,
        queue_ms=Durations(np.array(queues_ns), weights).mean_ms,
        share=float(took[ops] / sum(took.values())),
    )


_Step = tuple[int, int, int, int, float]  # op, ready, start, end, weight
_Way = list[_Step]


def _weights(ways: Sequence[_Way]) -> Numbers:
    return np.array([way[0][4] for way in ways])


def _ways(ordered: Rows) -> Iterator[_Way]:
    """Yield the way of each request; `ordered` is by data id, then by end."""
    ids = ordered["data_id"]
    bounds = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), ids.size]
    columns = [ordered[name] for name in ("op", "ready_ns", "start_ns", "end_ns", "weight")]
    for first, stop in itertools.pairwise(bounds):
        steps = list(zip(*(column[first:stop].tolist() for column in columns), strict=True))
        way: _Way = []
        for step in reversed(steps):
            if not way or step[3] <= way[-1][1]:  # ended before the next one was ready
                way.append(step)
        if way:
            yield way[::-1]
