"""SpanRecorder: takes down, for the journal, what became of the requests at one Op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from pipeline.engine.journal.journal import (
    FROM_OUTSIDE,
    NO_WORKER,
    EngineObservers,
    Journal,
    Outcome,
    outcome_of,
    pack_span,
)
from pipeline.engine.op.channel import Item
from pipeline.engine.request import Members
from pipeline.engine.run.plain_step import PlainTimes
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.worker_api import Worker
from pipeline.errors import PipelineError

_OK = int(Outcome.OK)


class SpanRecorder:
    """Packs the spans of one Op; see `journal.SPAN`.

    Attributes:
        index: the Op's place in the graph, by which the journal knows it.
        batches: how many there were.
        on_step: see EngineObservers.
        has_fillers: whether batches have a row for each slot up to the last one of a request.
        is_wanted: whether anybody reads spans: the journal, or a caller who asked for a profile.
    """

    def __init__(self, index: int, observers: EngineObservers) -> None:
        self.index: int = index
        self.journal: Journal | None = observers.journal
        self.is_wanted: bool = self.journal is not None
        self.clock_ns: Callable[[], int] = observers.clock_ns
        self.on_step: Callable[[int, int, int | str, int], None] | None = observers.on_step
        self.batches: int = 0
        self.has_fillers: bool = False

    def next_batch(self) -> int:
        """Return the number of one more batch."""
        self.batches += 1
        return self.batches

    def batch(self, worker: Worker, run: BatchRun, result_received_ns: int = 0) -> None:
        """Take down the spans of a batch that a worker is done with, now or within a trip.

        Without outcomes all of it went well, in one call. The way home of the result is part of
        what the request took here; but of a trip, and of what a model did, in whose times it is.
        """
        is_within = bool(result_received_ns) or run.is_models
        result_received_ns = result_received_ns or self.clock_ns()
        home_ns = 0 if is_within else result_received_ns
        journal, rows, missed = self.journal, run.rows, []
        if not run.outcomes:
            self._all_well(worker, run, result_received_ns, home_ns)
            return
        for indexes, times in executions(run):
            self.batches += 1
            start_ns, preprocess_end_ns, process_end_ns, end_ns = times
            if self.has_fillers:
                self._tell_fillers(run, indexes)
            for index in indexes:
                item, outcome = run.items[index], run.outcomes[index]
                if outcome is None:
                    missed.append(item)
                    continue
                request, is_failed = item.request, isinstance(outcome, PipelineError)
                if request.convoy is not None:
                    who = self.index, worker.number, self.batches
                    self._of_convoy(item, outcome, who, (*times, result_received_ns))
                    continue
                span = pack_span(
                    self.index,
                    worker.number,
                    self.batches,
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
                    request.output_ns += max(home_ns, end_ns) - process_end_ns
        if missed:
            self.unfinished(missed, Outcome.OTHER)
        if journal is not None:
            journal.flush_if_long()

    def _of_convoy(
        self, item: Item, outcome: object, who: tuple[int, int, int], times: tuple[int, ...]
    ) -> None:
        """Take down the spans of requests that went together, and add to the times of these."""
        request = item.request
        convoy = request.convoy
        if convoy is None or (isinstance(outcome, PipelineError) and convoy.comes_again(outcome)):
            return
        if self.journal is not None:
            self.journal.spans += convoy.spans(outcome, who, (item.ready_ns, *times))
        if item.generation == request.generation:
            start_ns, preprocess_end_ns, process_end_ns, end_ns, home_ns = times
            request.input_ns += preprocess_end_ns - start_ns
            request.infer_ns += process_end_ns - preprocess_end_ns
            request.output_ns += max(home_ns, end_ns) - process_end_ns

    def _tell_fillers(self, run: BatchRun, indexes: Iterable[int]) -> None:
        """Tell sinks that want to know how many rows of an execution nobody has sent."""
        places = [run.places[index] for index in indexes] if run.places else []
        for sink in self.journal.sinks if self.journal is not None and places else ():
            notify = getattr(sink, "notify_fillers", None)
            if notify is not None:
                notify(self.index, self.batches, max(places) + 1 - len(places))

    def _all_well(self, worker: Worker, run: BatchRun, received_ns: int, home_ns: int) -> None:
        """Do the same for a batch of which nothing else is to be told: quicker."""
        times = (_began_ns(run), run.preprocess_end_ns, run.process_end_ns, run.end_ns)
        input_ns, infer_ns, output_ns = (
            end - start for start, end in pairwise((*times[:-1], max(home_ns, times[-1])))
        )
        self.batches += 1
        index, number, batch = self.index, worker.number, self.batches
        rows = run.rows or [item.request.rows for item in run.items]
        spans = [
            pack_span(
                index, number, batch, item.data_id, count, _OK, item.ready_ns, *times, received_ns
            )
            for item, count in zip(run.items, rows, strict=True)
        ]
        for item, span in zip(run.items, spans, strict=True):
            request = item.request
            if request.spans is not None:
                request.spans.append(span)
            if item.generation == request.generation:
                request.input_ns += input_ns
                request.infer_ns += infer_ns
                request.output_ns += output_ns
        if self.journal is not None:
            self.journal.spans += spans
            self.journal.flush_if_long()

    def unfinished(self, items: Iterable[Item], outcome: Outcome) -> None:
        """Take down spans that came to nothing: as their request ended, or else as `outcome`."""
        if self.journal is None:
            return
        now = self.clock_ns()
        for item in items:
            ended = item.request.outcome
            reason = ended if ended in FROM_OUTSIDE else outcome
            if item.convoy is not None:
                self._unfinished_convoy(item, item.convoy, reason, now)
                continue
            ends = (item.data_id, item.request.rows, reason, item.ready_ns, now, now, now, now, now)
            self.journal.spans.append(pack_span(self.index, NO_WORKER, -1, *ends))

    def _unfinished_convoy(self, item: Item, convoy: Members, reason: int, now_ns: int) -> None:
        assert self.journal is not None, "else nobody asks"
        for data_id, rows in zip(convoy.ids, convoy.rows, strict=True):
            ends = (data_id, rows, reason, item.ready_ns, *[now_ns] * 5)
            self.journal.spans.append(pack_span(self.index, NO_WORKER, -1, *ends))


def take_down_plain(
    recorders: Sequence[SpanRecorder], steps: Sequence[PlainTimes], item: Item, received_ns: int
) -> None:
    """Take down the spans of a request at Ops where each was a PlainStep, or alike.

    Args:
        recorders: those of the Ops; a step says by its place which is its own.
    """
    request, data_id, rows = item.request, item.data_id, item.request.rows
    input_ns = output_ns = 0
    spans = []
    for place, number, outcome, ready_ns, start_ns, middle_ns, end_ns in steps:
        recorder = recorders[place]
        recorder.batches = batch = recorder.batches + 1
        code = _OK
        if type(outcome) is not dict and isinstance(outcome, PipelineError):
            code = outcome_of(outcome)
        else:
            input_ns += middle_ns - start_ns
            output_ns += end_ns - middle_ns
        spans.append(
            pack_span(
                recorder.index,
                number,
                batch,
                data_id,
                rows,
                code,
                ready_ns,
                start_ns,
                middle_ns,
                middle_ns,
                end_ns,
                received_ns,
            )
        )
    if item.generation == request.generation:
        request.input_ns += input_ns
        request.output_ns += output_ns
    if request.spans is not None:
        request.spans += spans
    if (journal := recorders[0].journal) is not None:
        journal.spans += spans
        journal.flush_if_long()


def executions(run: BatchRun) -> list[tuple[Iterable[int], tuple[int, int, int, int]]]:
    """Return what ran together: the indexes of items, and when its stages began and it ended.

    A batch that took several calls of `process` counts as that many, one after the other: the
    first has `preprocess` of all items, the last their `postprocess`. What no call was made for
    is one by itself, which takes no time.
    """
    start_ns = _began_ns(run)
    whole = (start_ns, run.preprocess_end_ns, run.process_end_ns, run.end_ns)
    if not run.executions:
        return [(range(len(run.items)), whole)]
    found: list[tuple[Iterable[int], tuple[int, int, int, int]]] = []
    members: dict[int, list[int]] = {}
    for index, number in enumerate(run.executions):
        members.setdefault(number, []).append(index)
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


def _began_ns(run: BatchRun) -> int:
    """Return when a worker had a batch: its way to an idle process is not time in a queue."""
    return min(run.handed_ns, run.start_ns) or run.start_ns
