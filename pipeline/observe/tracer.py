"""Tracer: every `dag.tracer.interval_s` a block about the interval goes to `pipeline.tracer`.

The file's layout is the predecessor's; an interval in which nothing ended writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pipeline.engine.state import EngineState
from pipeline.observe.background import Background
from pipeline.observe.span import Outcome, Rows
from pipeline.observe.tracer_block import (
    Block,
    Interval,
    Ints,
    TracedGraph,
    TracerFiles,
    TracerOutput,
)

_MOST_WORKERS = 4096  # of which the last batch is remembered


class Tracer:
    """A Sink whose `tick` writes a block about what was folded since the last one.

    In a block `in` is how long a worker waited for a batch after the one before, `out` from its end
    until the engine had taken it back. Latency is from admission to answer.

    Args:
        graph: what does not change.
        state: tells how many requests wait at each Op; called by `tick`.
        files: opened by `start`, and written by a thread.
        clock: seconds, monotonic, of the clock that the rows are from.
    """

    def __init__(
        self,
        graph: TracedGraph,
        state: Callable[[], EngineState],
        files: TracerFiles,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._graph = graph
        self._state = state
        self._clock = clock
        self._background = Background("tracer")
        self._output = TracerOutput(files)
        self._interval = Interval(len(graph.names), clock())
        self._begun_ns = int(clock() * 1e9)
        self._last_taken: dict[tuple[int, int], int] = {}  # by op and worker

    def start(self) -> None:
        """Open the file; InitError if it cannot be written."""
        self._output.open()
        self._background.start()

    def close(self) -> None:
        """Write what was taken in since the last block. May be called again."""
        self.tick()
        self._background.close()
        self._output.close()

    def fold(self, turns: Rows, requests: Rows) -> None:
        if len(turns):
            self._add_batches(_batches(turns))
        if len(requests):
            self._interval.add_requests(requests)

    def tick(self) -> None:
        """End the interval: write its block, unless nothing happened. Fold the journal before."""
        interval, now = self._interval, self._clock()
        self._interval = Interval(len(self._graph.names), now)
        if interval.is_idle:
            return
        sizes = {op.name: op.queued for op in self._state().ops}
        length_s = max(now - interval.started_s, 1e-9)
        graph, output = self._graph, self._output
        self._background.submit(lambda: output.write(Block(interval, length_s, graph, sizes)))

    def _add_batches(self, batches: Rows) -> None:
        """Add the times of batches, which are sorted by op, worker and start."""
        if not len(batches):
            return
        op, taken = batches["op"], batches["taken_ns"]
        start, prepared, processed, end = _in_order(batches)
        is_first = np.ones(len(batches), bool)
        is_first[1:] = (np.diff(op) != 0) | (np.diff(batches["worker"]) != 0)
        before = np.concatenate(([0], taken[:-1]))
        before[is_first] = [self._taken_before(row) for row in batches[is_first]]
        # A worker that has its next batch at hand does not wait until this one is taken back.
        following = np.concatenate((start[1:], [0]))
        is_last = np.concatenate((is_first[1:], [True]))
        left = np.where(is_last, taken, np.minimum(taken, following))
        times = {
            "in": np.maximum(start - before, 0),
            "prep": prepared - start,
            "midp": processed - prepared,
            "postp": end - processed,
            "out": np.maximum(left - end, 0),
        }
        for row in batches[is_last]:
            self._remember(row)
        succeeded = batches["outcome"] == Outcome.OK
        self._add_times(op[succeeded], {name: ns[succeeded] for name, ns in times.items()})

    def _add_times(self, op: Ints, times: Mapping[str, Ints]) -> None:
        for number in np.unique(op).tolist():
            here = op == number
            total = self._interval.ops[number]
            total.count += int(here.sum())
            for stage, spent in times.items():
                total.sums[stage] += int(spent[here].sum())

    def _taken_before(self, row: Any) -> int:
        key = int(row["op"]), int(row["worker"])
        return self._last_taken.get(key, min(self._begun_ns, int(row["start_ns"])))

    def _remember(self, row: Any) -> None:
        key = int(row["op"]), int(row["worker"])
        self._last_taken.pop(key, None)
        self._last_taken[key] = int(row["taken_ns"])
        if len(self._last_taken) > _MOST_WORKERS:
            del self._last_taken[next(iter(self._last_taken))]


def _batches(turns: Rows) -> Rows:
    """One row a batch, sorted by op, worker and start; a success of it where there is one."""
    turns = turns[turns["batch"] >= 0]
    turns = turns[np.lexsort((turns["outcome"], turns["batch"], turns["op"]))]
    is_first = np.ones(len(turns), bool)
    is_first[1:] = (np.diff(turns["op"]) != 0) | (np.diff(turns["batch"]) != 0)
    batches = turns[is_first]
    return batches[np.lexsort((batches["start_ns"], batches["worker"], batches["op"]))]


def _in_order(batches: Rows) -> tuple[Ints, Ints, Ints, Ints]:
    """Begin and end of the stages; a stage that a failure has cut out lasts no time."""
    start = batches["start_ns"]
    prepared = np.maximum(batches["prepared_ns"], start)
    processed = np.maximum(batches["processed_ns"], prepared)
    return start, prepared, processed, np.maximum(batches["end_ns"], processed)
