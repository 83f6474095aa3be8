"""SpanRecorder: takes down, for the journal, what became of the requests at one Op."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pipeline.engine.batch_run import BatchRun
from pipeline.engine.channel import Item
from pipeline.engine.journal import (
    FROM_OUTSIDE,
    NO_WORKER,
    EngineObservers,
    Journal,
    Outcome,
    outcome_of,
    pack_span,
)
from pipeline.engine.plain_step import PlainStep
from pipeline.engine.worker_api import Worker
from pipeline.errors import PipelineError

_OK = int(Outcome.OK)


class SpanRecorder:
    """Packs the spans of one Op; see `journal.SPAN`.

    Attributes:
        index: the Op's place in the graph, by which the journal knows it.
        is_wanted: whether anybody reads spans: the journal, or a caller who asked for a profile.
    """

    def __init__(self, index: int, observers: EngineObservers) -> None:
        self.index: int = index
        self.journal: Journal | None = observers.journal
        self.is_wanted: bool = self.journal is not None
        self.clock_ns: Callable[[], int] = observers.clock_ns
        self._batches = 0

    def next_batch(self) -> int:
        """Return the number of one more batch."""
        self._batches += 1
        return self._batches

    def batch(self, worker: Worker, run: BatchRun, result_received_ns: int = 0) -> None:
        """Take down the spans of a batch that a worker is done with, now or at that time."""
        result_received_ns = result_received_ns or self.clock_ns()
        journal, rows, missed = self.journal, run.rows, []
        for indexes, times in executions(run):
            self._batches += 1
            start_ns, preprocess_end_ns, process_end_ns, end_ns = times
            for index in indexes:
                item, outcome = run.items[index], run.outcomes[index]
                if outcome is None:
                    missed.append(item)
                    continue
                request, is_failed = item.request, isinstance(outcome, PipelineError)
                span = pack_span(
                    self.index,
                    worker.number,
                    self._batches,
                    item.data_id,
                    rows[index] if rows else request.rows,
                    outcome_of(outcome) if is_failed else _OK,
                    item.ready_ns,
                    *times,
                    result_received_ns,
                )
                if journal is not None:
                    journal.spans.append(span)
                if request.spans is not None:
                    request.spans.append(span)
                if not is_failed and item.generation == request.generation:
                    request.input_ns += preprocess_end_ns - start_ns
                    request.infer_ns += process_end_ns - preprocess_end_ns
                    request.output_ns += end_ns - process_end_ns
        if missed:
            self.unfinished(missed, Outcome.OTHER)
        if journal is not None:
            journal.flush_if_long()

    def one(self, worker: Worker, run: BatchRun, result_received_ns: int) -> None:
        """Take down the span of a batch of one that had one call of `process` or none."""
        item, outcome = run.items[0], run.outcomes[0]
        if outcome is None:
            self.unfinished(run.items, Outcome.OTHER)
            return
        self._batches += 1
        request, is_failed = item.request, isinstance(outcome, PipelineError)
        start_ns, preprocess_end_ns = run.start_ns, run.preprocess_end_ns
        process_end_ns, end_ns = run.process_end_ns, run.end_ns
        span = pack_span(
            self.index,
            worker.number,
            self._batches,
            item.data_id,
            request.rows,
            outcome_of(outcome) if is_failed else _OK,
            item.ready_ns,
            start_ns,
            preprocess_end_ns,
            process_end_ns,
            end_ns,
            result_received_ns,
        )
        if self.journal is not None:
            self.journal.spans.append(span)
        if request.spans is not None:
            request.spans.append(span)
        if not is_failed and item.generation == request.generation:
            request.input_ns += preprocess_end_ns - start_ns
            request.infer_ns += process_end_ns - preprocess_end_ns
            request.output_ns += end_ns - process_end_ns

    def step(self, worker: Worker, run: PlainStep, item: Item, result_received_ns: int) -> None:
        """Take down the span of a step of a walk."""
        self._batches = batches = self._batches + 1
        request, outcome, code = item.request, run.outcome, _OK
        start_ns, preprocess_end_ns, end_ns = run.start_ns, run.preprocess_end_ns, run.end_ns
        if type(outcome) is not dict and isinstance(outcome, PipelineError):
            code = outcome_of(outcome)
        elif item.generation == request.generation:
            request.input_ns += preprocess_end_ns - start_ns
            request.output_ns += end_ns - preprocess_end_ns
        span = pack_span(
            self.index,
            worker.number,
            batches,
            item.data_id,
            request.rows,
            code,
            run.ready_ns,
            start_ns,
            preprocess_end_ns,
            preprocess_end_ns,
            end_ns,
            result_received_ns,
        )
        if self.journal is not None:
            self.journal.spans.append(span)
        if request.spans is not None:
            request.spans.append(span)

    def unfinished(self, items: Iterable[Item], outcome: Outcome) -> None:
        """Take down spans that came to nothing: as their request ended, or else as `outcome`."""
        if self.journal is None:
            return
        now = self.clock_ns()
        for item in items:
            ended = item.request.outcome
            reason = ended if ended in FROM_OUTSIDE else outcome
            ends = (item.data_id, item.request.rows, reason, item.ready_ns, now, now, now, now, now)
            self.journal.spans.append(pack_span(self.index, NO_WORKER, -1, *ends))


def executions(run: BatchRun) -> list[tuple[Iterable[int], tuple[int, int, int, int]]]:
    """Return what ran together: the indexes of items, and when its stages began and it ended.

    A batch that took several calls of `process` counts as that many, one after the other: the
    first has `preprocess` of all items, the last their `postprocess`. What no call was made for
    is one by itself, which takes no time.
    """
    whole = (run.start_ns, run.preprocess_end_ns, run.process_end_ns, run.end_ns)
    if not run.executions:
        return [(range(len(run.items)), whole)]
    found: list[tuple[Iterable[int], tuple[int, int, int, int]]] = []
    members: dict[int, list[int]] = {}
    for index, number in enumerate(run.executions):
        members.setdefault(number, []).append(index)
    start_ns = run.start_ns
    if -1 in members:
        found.append((members.pop(-1), (start_ns, start_ns, start_ns, start_ns)))
    last = len(run.execution_ends_ns) - 1
    for number, indexes in sorted(members.items()):
        preprocess_end_ns = max(start_ns, run.preprocess_end_ns)
        ended_ns = max(preprocess_end_ns, run.execution_ends_ns[number])
        ends_ns = (run.process_end_ns, run.end_ns) if number == last else (ended_ns, ended_ns)
        found.append((indexes, (start_ns, preprocess_end_ns, *ends_ns)))
        start_ns = ended_ns
    return found
