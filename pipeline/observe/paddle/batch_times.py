"""BatchTimes: the time of batches by stage, summed up by Op, for a tracer's block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.engine.journal import Outcome, Rows
from pipeline.observe.paddle.tracer_block import STAGES, OpInterval
from pipeline.observe.tables import Integers, batches, columns, groups

_MAX_WORKERS = 4096  # of which the last batch is remembered


class BatchTimes:
    """Adds up the times of batches, each of which follows one of the same worker.

    Args:
        begun_ns: when workers began to wait for their first batches.
    """

    def __init__(self, begun_ns: int) -> None:
        self._begun_ns = begun_ns
        self._last_taken: dict[tuple[int, int], int] = {}  # by op and worker

    def add(self, spans: Rows, ops: Sequence[OpInterval]) -> None:
        """Add the spans of a flush, in which batches are whole, to those of `ops` by number."""
        ran = spans["batch"] >= 0
        if not ran.all():
            spans = spans.compress(ran)
        if not len(spans):
            return
        first = batches(spans).first
        is_good = np.minimum.reduceat(spans["outcome"], first) == Outcome.OK
        op, worker = columns(spans, "op", "worker").take(first, axis=1)
        order = np.lexsort((spans["start_ns"].take(first), worker, op))
        op, worker, first, is_good = (each.take(order) for each in (op, worker, first, is_good))
        spent = self._spent(op, worker, spans.take(first))
        if not is_good.all():
            op, spent = op.compress(is_good), spent.compress(is_good, axis=1)
        if len(op):
            _add(op, spent, ops)

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
            self._remember(who, result_received_ns)
        spent = np.empty((len(STAGES), len(op)), np.int64)
        np.maximum(start - before, 0, out=spent[0])
        np.subtract(stages[1:], stages[:-1], out=spent[1:-1])
        np.maximum(left - end, 0, out=spent[-1])
        return spent

    def _remember(self, who: tuple[int, int], result_received_ns: int) -> None:
        self._last_taken.pop(who, None)
        self._last_taken[who] = result_received_ns
        if len(self._last_taken) > _MAX_WORKERS:
            del self._last_taken[next(iter(self._last_taken))]


def _add(op: Integers, spent: Integers, ops: Sequence[OpInterval]) -> None:
    found = groups(op)
    sums = found.sums(spent).T.tolist()
    for number, size, of_stages in zip(
        found.keys.tolist(), found.sizes.tolist(), sums, strict=True
    ):
        ops[number].count += size
        for stage, spent_ns in zip(STAGES, of_stages, strict=True):
            ops[number].sums[stage] += spent_ns
