"""A service on paper: Ops in a row, callers that ask again at once; its turns and requests."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.engine.journal.journal import NO_WORKER, PIPELINE, REQUEST, SPAN, Outcome, Rows

MS = 1_000_000
START_NS = 1_000 * MS


def turn(op: int = 0, data_id: int = 7, **other: int) -> tuple[int, ...]:
    """A SPAN row: ready at 1 ms, a ms in each stage from 2 ms on."""
    fields = {
        "op": op, "worker": 0, "batch": 1, "data_id": data_id, "rows": 1, "outcome": 0,
        "ready_ns": 1 * MS, "start_ns": 2 * MS, "preprocess_end_ns": 3 * MS,
        "process_end_ns": 4 * MS, "end_ns": 5 * MS, "result_received_ns": 6 * MS,
    }  # fmt: skip
    return tuple((fields | other).values())


def never_ran(op: int = 0, data_id: int = 7, at_ns: int = 3 * MS) -> tuple[int, ...]:
    times = dict.fromkeys(
        ("start_ns", "preprocess_end_ns", "process_end_ns", "end_ns", "result_received_ns"), at_ns
    )
    return turn(op, data_id, worker=NO_WORKER, batch=-1, outcome=int(Outcome.REJECTED), **times)


def request(data_id: int = 7, **other: int) -> tuple[int, ...]:
    """A REQUEST row: from 0.5 ms on, through the graph from 1 to 6 ms, answered at 7 ms."""
    fields = {
        "data_id": data_id, "target": PIPELINE, "rows": 1, "outcome": 0, "code": 0,
        "start_ns": MS // 2, "admitted_ns": MS * 3 // 4, "dispatched_ns": 1 * MS,
        "completed_ns": 6 * MS, "end_ns": 7 * MS, "input_ns": 0, "infer_ns": 0, "output_ns": 0,
    }  # fmt: skip
    return tuple((fields | other).values())


def turns_of(*rows: Any) -> Rows:
    return np.array(list(rows), SPAN)


def requests_of(*rows: Any) -> Rows:
    return np.array(list(rows), REQUEST)


@dataclass(frozen=True)
class FakeOp:
    """Takes `prep_ms` for each request, then `fixed_ms` for a batch and `each_ms` for each."""

    prep_ms: float
    fixed_ms: float
    each_ms: float = 0.0
    concurrency: int = 1
    batch_size: int = 1


def with_settings(
    ops: Mapping[str, FakeOp], settings: Mapping[str, Mapping[str, int]]
) -> dict[str, FakeOp]:
    """The Ops after `op:` of a configuration was changed."""
    return {name: FakeOp(**(vars(op) | settings.get(name, {}))) for name, op in ops.items()}


def play(ops: Sequence[FakeOp], clients: int, count: int) -> tuple[Rows, Rows]:
    """Turns and requests of the first `count` requests, one Op after the other."""
    return _Play(ops, count).run(clients)


class _Play:
    """Events in the order of their time: an op's worker that is free takes what is ready."""

    def __init__(self, ops: Sequence[FakeOp], count: int) -> None:
        self._ops = ops
        self._count = count
        self._ids = itertools.count()
        self._order = itertools.count()
        self._events: list[tuple[int, int, Any]] = []
        self._ready: list[list[tuple[int, int]]] = [[] for _ in ops]
        self._free = [list(range(op.concurrency)) for op in ops]
        self._batches = [itertools.count() for _ in ops]
        self._turns: list[tuple[int, ...]] = []
        self._requests: list[tuple[int, ...]] = []
        self._begun: dict[int, int] = {}

    def run(self, clients: int) -> tuple[Rows, Rows]:
        for _ in range(clients):
            self._ask(START_NS)
        while self._events and len(self._requests) < self._count:
            now, _, happens = heapq.heappop(self._events)
            happens(now)
        return turns_of(*self._turns), requests_of(*self._requests)

    def _at(self, time_ns: int, happens: Any) -> None:
        heapq.heappush(self._events, (time_ns, next(self._order), happens))

    def _ask(self, now: int) -> None:
        data_id = next(self._ids)
        self._begun[data_id] = now
        self._at(now, lambda time_ns: self._arrive(0, data_id, time_ns))

    def _arrive(self, op: int, data_id: int, now: int) -> None:
        self._ready[op].append((data_id, now))
        # At the end of this instant, so that a batch takes every request that is ready.
        self._at(now, lambda time_ns: self._cut(op, time_ns))

    def _cut(self, op: int, now: int) -> None:
        played = self._ops[op]
        while self._ready[op] and self._free[op]:
            worker = self._free[op].pop(0)
            batch = self._ready[op][: played.batch_size]
            del self._ready[op][: played.batch_size]
            prepared = now + round(played.prep_ms * len(batch) * MS)
            end = prepared + round((played.fixed_ms + played.each_ms * len(batch)) * MS)
            number = next(self._batches[op])
            self._turns += [
                (op, worker, number, data_id, 1, 0, ready, now, prepared, end, end, end)
                for data_id, ready in batch
            ]
            ids = [data_id for data_id, _ in batch]
            self._at(end, lambda time_ns, w=worker, i=ids: self._done(op, w, i, time_ns))

    def _done(self, op: int, worker: int, ids: Sequence[int], now: int) -> None:
        self._free[op].append(worker)
        for data_id in ids:
            if op + 1 < len(self._ops):
                self._arrive(op + 1, data_id, now)
                continue
            begun = self._begun.pop(data_id)
            self._requests.append(
                (data_id, PIPELINE, 1, 0, 0, begun, begun, begun, now, now, 0, 0, 0)
            )
            self._ask(now)
        self._cut(op, now)
