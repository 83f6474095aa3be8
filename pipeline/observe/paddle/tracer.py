"""Tracer: every `dag.tracer.interval_s` a block about the interval goes to `pipeline.tracer`.

The file's layout is the predecessor's; an interval in which nothing ended writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pipeline.engine.journal.journal import Outcome, Rows
from pipeline.engine.state import EngineState
from pipeline.observe.background import Background
from pipeline.observe.paddle.tracer_block import (
    STAGES,
    Interval,
    OpInterval,
    TracedGraph,
    TracerBlock,
    TracerFiles,
    TracerOutput,
    tracer_files,
)
from pipeline.observe.sink import SinkContext
from pipeline.observe.tables import Integers, batches, columns, groups, kept

_INTERVAL_S = 10.0  # unless it is configured
_MAX_WORKERS = 4096  # of which the last batch is remembered
_MAX_ROWS = 8192  # that wait on the event loop: some 800 kB
_MAX_JOBS = 16  # that wait for the thread, each of so many rows: a disk may hang

_Pieces = list[tuple[Rows, Rows]]


class Tracer:
    """A Sink whose `tick` writes a block about what happened since the last one.

    On the event loop it only keeps the rows; a thread adds them up, and writes.

    In a block `in` is how long a worker waited for a batch after the one before, `out` from its end
    until the engine had taken it back. Latency is from admission to answer. `state` tells how many
    requests wait at each Op; `clock` is that of the rows, in seconds.
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
        self._background = Background("tracer", _MAX_JOBS)
        self._output = TracerOutput(files)
        self._started_s = clock()
        self._times = BatchTimes(int(self._started_s * 1e9))
        self._interval: Interval | None = None
        self._taken_in: _Pieces = []
        self._rows = 0  # in `_taken_in`
        self._is_idle = True

    def start(self) -> None:
        """Open the file; InitError if it cannot be written."""
        self._output.open()
        self._background.start()

    def close(self) -> None:
        """Write what was taken in since the last block. May be called again."""
        self.tick()
        self._background.close()
        self._output.close()

    def notify(self, spans: Rows, requests: Rows) -> None:
        self._is_idle = False
        self._taken_in.append((spans, requests))
        self._rows += len(spans) + len(requests)
        if self._rows >= _MAX_ROWS:
            pieces, started_s = self._taken(), self._started_s
            self._background.submit(lambda: self._add(pieces, started_s))

    def tick(self) -> None:
        """End the interval: write its block, unless nothing happened. Fold the journal before."""
        started_s, self._started_s = self._started_s, self._clock()
        if self._is_idle:
            return
        self._is_idle = True
        pieces, ended_s = self._taken(), self._started_s
        ops = self._state().ops
        sizes = {op.name: op.queued for op in ops}
        groups = list(dict.fromkeys(op.group for op in ops if op.group))
        self._background.submit(lambda: self._write(pieces, started_s, ended_s, sizes, groups))

    def _taken(self) -> _Pieces:
        pieces, self._taken_in, self._rows = self._taken_in, [], 0
        return pieces

    def _add(self, pieces: _Pieces, started_s: float) -> Interval:
        """Add up rows of the interval that began then; on the thread."""
        interval = self._interval = self._interval or Interval(len(self._graph.names), started_s)
        for spans, requests in pieces:
            if len(spans):
                self._times.add(spans, interval.ops)
            if len(requests):
                interval.add_requests(requests)
        return interval

    def _write(
        self,
        pieces: _Pieces,
        started_s: float,
        ended_s: float,
        sizes: Mapping[str, int],
        groups: Sequence[tuple[str, ...]],
    ) -> None:
        """Add the last rows of an interval, and write the block about it; on the thread."""
        interval = self._add(pieces, started_s)
        self._interval = None
        if not interval.is_idle:
            length_s = max(ended_s - interval.started_s, 1e-9)
            self._output.write(TracerBlock(interval, length_s, self._graph, sizes, groups))


def open_tracer(context: SinkContext, options: None) -> Tracer:
    """Open the sink `tracer`; InitError if its file cannot be written."""
    config = context.config
    tracer = Tracer(
        TracedGraph.of(context.graph, config),
        context.state,
        tracer_files(context.log_folder, config.log, context.replica),
    )
    tracer.start()
    context.on_close(tracer.close)
    context.every("tracer", config.dag.tracer.interval_s or _INTERVAL_S, tracer.tick)
    return tracer


class BatchTimes:
    """Adds up the times of batches, each of which follows one of the same worker.

    Workers began to wait for their first ones at `begun_ns`.
    """

    def __init__(self, begun_ns: int) -> None:
        self._begun_ns = begun_ns
        self._last_taken: dict[tuple[int, int], int] = {}  # by op and worker

    def add(self, spans: Rows, ops: Sequence[OpInterval]) -> None:
        """Add the spans of a flush, in which batches are whole, to those of `ops` by number."""
        spans = kept(spans, spans["batch"] >= 0)
        if not len(spans):
            return
        first = batches(spans).first
        is_good = np.minimum.reduceat(spans["outcome"], first) == Outcome.OK
        op, worker = columns(spans, "op", "worker").take(first, axis=1)
        order = np.lexsort((spans["start_ns"].take(first), worker, op))
        op, worker, first, is_good = (each.take(order) for each in (op, worker, first, is_good))
        spent = self._spent(op, worker, spans.take(first))
        op, spent = kept(op, is_good), kept(spent, is_good)
        if not len(op):
            return
        found = groups(op)
        numbers, sizes = found.keys.tolist(), found.sizes.tolist()
        for number, size, sums in zip(numbers, sizes, found.sums(spent).T.tolist(), strict=True):
            ops[number].count += size
            for stage, spent_ns in zip(STAGES, sums, strict=True):
                ops[number].sums[stage] += spent_ns

    def _spent(self, op: Integers, worker: Integers, spans: Rows) -> Integers:
        """Return (STAGES, spans) of times of a span a batch, sorted by op, worker and start."""
        stages = columns(spans, "start_ns", "preprocess_end_ns", "process_end_ns", "end_ns")
        # A stage that a failure has cut out lasts no time.
        np.maximum.accumulate(stages, axis=0, out=stages)
        start, end, taken = stages[0], stages[-1], spans["result_received_ns"]
        is_first = np.ones(len(op), np.bool_)
        is_first[1:] = (op[1:] != op[:-1]) | (worker[1:] != worker[:-1])
        is_last = np.append(is_first[1:], True)
        before = np.append(0, taken[:-1])
        workers = list(zip(op[is_first].tolist(), worker[is_first].tolist(), strict=True))
        starts = start[is_first].tolist()
        before[is_first] = [
            self._last_taken.get(who, min(self._begun_ns, start_ns))
            for who, start_ns in zip(workers, starts, strict=True)
        ]
        # A worker that has its next batch at hand does not wait until this one is taken back.
        following = np.append(start[1:], 0)
        left = np.where(is_last, taken, np.minimum(taken, following))
        for who, result_received_ns in zip(workers, taken[is_last].tolist(), strict=True):
            self._last_taken.pop(who, None)
            self._last_taken[who] = result_received_ns
        while len(self._last_taken) > _MAX_WORKERS:
            del self._last_taken[next(iter(self._last_taken))]
        spent = np.empty((len(STAGES), len(op)), np.int64)
        np.maximum(start - before, 0, out=spent[0])
        np.subtract(stages[1:], stages[:-1], out=spent[1:-1])
        np.maximum(left - end, 0, out=spent[-1])
        return spent
