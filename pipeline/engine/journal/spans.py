"""SpanRecorder and TripRows: they record, for the journal, the spans of requests at Ops.

A SpanRecorder writes a span as a row of SPAN. If one thread ran a request through its Ops in a row,
TripRows writes all its spans as one row, which is split when it is read.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from pipeline.engine.journal.journal import (
    FROM_OUTSIDE,
    NO_WORKER,
    PIPELINE,
    REQUEST,
    SPAN,
    EngineObservers,
    FillerSink,
    Journal,
    OpSpan,
    Outcome,
    RequestRecord,
    Rows,
    outcome_of,
    pack_span,
)
from pipeline.engine.op.channel import Item
from pipeline.engine.request import RequestState
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.worker_api import Worker
from pipeline.errors import PipelineError

_OK = int(Outcome.OK)
_pack_head = struct.Struct("3q").pack  # the first fields of SPAN: op, worker, batch
_pack_own = struct.Struct("4q").pack  # the next ones: data_id, rows, outcome, ready_ns
_pack_tail = struct.Struct("6q").pack  # the last ones: ready_ns, and other times
_pack_ready, _pack_times = struct.Struct("q").pack, struct.Struct("5q").pack
_ALL_WELL, _NO_ROWS = itertools.repeat(dict[str, Any]()), itertools.repeat(0)


class SpanRecorder:
    """Records the spans of one Op; see `journal.SPAN`.

    Attributes:
        index: the Op's place in the graph, its number in the journal.
        batches: number of batches so far.
        on_step: see EngineObservers.
        has_fillers: whether batches have a row for each slot up to the last one of a request.
        is_wanted: whether spans are read: by the journal, or for a client's profile."""

    def __init__(self, index: int, observers: EngineObservers) -> None:
        self.index: int = index
        self.journal: Journal | None = observers.journal
        self.is_wanted: bool = self.journal is not None
        self.clock_ns: Callable[[], int] = observers.clock_ns
        self.on_step: Callable[[int, int, int | str, int], None] | None = observers.on_step
        self.batches: int = 0
        self.has_fillers: bool = False

    def batch(self, worker: Worker, run: BatchRun, result_received_ns: int = 0) -> int:
        """Record the spans of a batch after a worker has finished it, alone or within a trip.

        Without outcomes all items succeeded. The transport of the result counts as time at this Op;
        except for a trip, and for a model of this server, whose times include it. Return when the
        loop had the result.
        """
        if len(run.executions) > len(run.items):
            received_ns = self.clock_ns()
            self._members(worker.number, run, received_ns)
            return received_ns
        is_within = bool(result_received_ns) or run.is_models
        passed_ns = run.items[0].request.passed_ns if run.is_models else 0
        received_ns = result_received_ns or passed_ns or self.clock_ns()
        members = list(
            zip(run.items, run.outcomes or _ALL_WELL, run.rows or _NO_ROWS, strict=False)
        )
        for indexes, times in executions(run):
            self.batches += 1
            if self.has_fillers:
                self._report_fillers(run, indexes)
            home_ns = times[3] if is_within else max(received_ns, times[3])
            batch_members = map(members.__getitem__, indexes)
            self._execution(batch_members, worker.number, times, received_ns, home_ns)
        if self.journal is not None:
            self.journal.flush_if_long()
        return received_ns

    def _members(self, worker: int, run: BatchRun, received_ns: int) -> None:
        """Record the spans of a convoy whose members did not all run in one execution."""
        (item,), (outcome,), processed_ns = run.items, run.outcomes, run.execution_ends_ns
        request, ready_ns, share = item.request, item.ready_ns, len(processed_ns)
        # Each member gets the mean of all executions.
        request.input_ns += (run.preprocess_end_ns - run.start_ns) // share
        request.infer_ns += (run.process_end_ns - run.preprocess_end_ns) // share
        request.output_ns += (run.end_ns - run.process_end_ns) // share
        if self.journal is None:
            return
        start_ns = min(run.handed_ns, run.start_ns) or run.start_ns
        starts_ns = [start_ns, *processed_ns[:-1]]
        begun_ns = [max(start_ns, run.preprocess_end_ns), *starts_ns[1:]]
        ends_ns = [*processed_ns[:-1], run.end_ns]
        times = list(zip(starts_ns, begun_ns, processed_ns, ends_ns, strict=True))
        times.append((start_ns,) * 4)  # of members that did not run, whose number is -1
        members = list(zip(run.executions, request.convoy.endings(outcome), strict=True))
        index, first = self.index, self.batches + 1
        self.journal.spans += [
            _pack_head(index, worker, first + at)
            + ending
            + _pack_tail(ready_ns, *times[at], received_ns)
            for at, ending in members
            if at >= 0
        ]
        self.batches += share
        for at, ending in members:
            if at < 0:
                self.batches += 1
                head, tail = (index, worker, self.batches), (ready_ns, *times[at], received_ns)
                self.journal.spans.append(_pack_head(*head) + ending + _pack_tail(*tail))

    def alone(
        self, item: Item, outcome: Any, worker: int, times: Sequence[int], received_ns: int
    ) -> None:
        """Record the span of a request that was an execution by itself."""
        self.batches += 1
        self._execution([(item, outcome, 0)], worker, times, received_ns, times[3])
        if self.journal is not None:
            self.journal.flush_if_long()

    def _execution(
        self,
        members: Iterable[tuple[Item, Any, int]],
        worker: int,
        times: Sequence[int],
        received_ns: int,
        home_ns: int,
    ) -> None:
        """Record the spans of an execution, and add to the times of its requests.

        Args:
            members: each item; its payload, a Goto or Answer with it, a PipelineError, or None if
                the item
                had ended; and the number of its samples, 0: the request's number.
            times: when the stages began, and when the last one ended.
            home_ns: when the result arrived on the loop.
        """
        missed: list[Item] = []
        journal, (start_ns, preprocess_end_ns, process_end_ns, _) = self.journal, times
        input_ns, infer_ns = preprocess_end_ns - start_ns, process_end_ns - preprocess_end_ns
        output_ns = home_ns - process_end_ns
        head = _pack_head(self.index, worker, self.batches)
        tail = _pack_times(*times, received_ns)
        for item, outcome, rows in members:
            request, code = item.request, _OK
            if outcome is None:
                missed.append(item)
                continue
            if type(outcome) is not dict and isinstance(outcome, PipelineError):
                code = outcome_of(outcome)
            elif item.generation == request.generation:
                request.input_ns += input_ns
                request.infer_ns += infer_ns
                request.output_ns += output_ns
            if request.convoy is not None:
                if journal is not None:
                    endings = request.convoy.endings(outcome)
                    last = _pack_ready(item.ready_ns) + tail
                    journal.spans.append(head + (last + head).join(endings) + last)
                    journal.extra_spans += len(endings) - 1
                continue
            own = _pack_own(request.data_id, rows or request.rows, code, item.ready_ns)
            span = head + own + tail
            if journal is not None:
                journal.spans.append(span)
            if request.spans is not None:
                request.spans.append(span)
        if missed:
            self.unfinished(missed, Outcome.OTHER)

    def row(self, request: RequestState, worker: int, batch: int, *times: int) -> None:
        """Record a row of SPAN of a request; `times` are the fields after `data_id`."""
        span = pack_span(self.index, worker, batch, request.data_id, *times)
        if self.journal is not None:
            self.journal.spans.append(span)
        if request.spans is not None:
            request.spans.append(span)

    def unfinished(
        self, items: Iterable[Item], outcome: Outcome, error: PipelineError | None = None
    ) -> None:
        """Record spans that failed: with the outcome of their request, otherwise with `outcome`.

        Args:
            error: the reason, if there is one.
        """
        if self.journal is None:
            return
        now_ns = self.clock_ns()
        for item in items:
            request, convoy = item.request, item.request.convoy
            code = request.outcome if request.outcome in FROM_OUTSIDE else outcome
            members = [(item.data_id, request.rows)]
            if convoy is not None:
                members = [(convoy.ids[at], convoy.rows[at]) for at in convoy.ending(error)]
            for data_id, rows in members:
                ends = data_id, rows, code, item.ready_ns, *[now_ns] * 5
                self.journal.spans.append(pack_span(self.index, NO_WORKER, -1, *ends))

    def _report_fillers(self, run: BatchRun, indexes: Iterable[int]) -> None:
        """Report the number of fillers in an execution to sinks that count them."""
        places = [run.places[index] for index in indexes] if run.places else []
        for sink in self.journal.sinks if self.journal is not None and places else ():
            if isinstance(sink, FillerSink):
                sink.notify_fillers(self.index, self.batches, max(places) + 1 - len(places))


def executions(run: BatchRun) -> list[tuple[Iterable[int], tuple[int, int, int, int]]]:
    """Return the executions of a batch: the indexes of their items, and the times of their stages.

    A batch with several calls of `process` counts as that many executions, one after the other: the
    first has `preprocess` of all items, the last their `postprocess`. Items without a call are one
    execution, which takes no time.
    """
    # The way to an idle process does not count as time in a queue.
    start_ns = min(run.handed_ns, run.start_ns) or run.start_ns
    if not run.executions:
        times = start_ns, run.preprocess_end_ns, run.process_end_ns, run.end_ns
        return [(range(len(run.items)), times)]
    executed: list[tuple[Iterable[int], tuple[int, int, int, int]]] = []
    members: dict[int, list[int]] = {}
    for index, number in enumerate(run.executions):
        members.setdefault(number, []).append(index)
    if -1 in members:
        executed.append((members.pop(-1), (start_ns, start_ns, start_ns, start_ns)))
    last = len(run.execution_ends_ns) - 1
    for number, indexes in sorted(members.items()):
        preprocess_end_ns = max(start_ns, run.preprocess_end_ns)
        ended_ns = max(preprocess_end_ns, run.execution_ends_ns[number])
        ends_ns = (run.process_end_ns, run.end_ns) if number == last else (ended_ns, ended_ns)
        executed.append((indexes, (start_ns, preprocess_end_ns, *ends_ns)))
        start_ns = ended_ns
    return executed


# Whole ways -----------------------------------------------------------------------------------

OF_STEP = 4
"""Fields of a step: its worker's number, and when preprocess, process and postprocess ended."""

_HEAD = (
    *("data_id", "rows", "arrived_ns", "admitted_ns", "dispatched_ns", "completed_ns"),
    *("answered_ns", "ready_ns", "began_ns", "result_received_ns"),
)
_NOT_TOLD = (0,) * 5  # the fields of the request


class TripRows:
    """Rows of requests that ran through the same Ops in one trip.

    If a request has no other spans, is for the whole graph and succeeded, its row also contains the
    fields of REQUEST.

    Args:
        recorders: of the Ops, in the order of the steps.
        last_read: for each step the index of the last step that it reads; -1: it reads none.
    """

    def __init__(
        self, journal: Journal, recorders: Sequence[SpanRecorder], last_read: Sequence[int]
    ) -> None:
        self._journal = journal
        self._recorders = recorders
        self._steps = len(recorders)
        self._fields = len(_HEAD) + OF_STEP * self._steps
        self._pack = struct.Struct(f"{self._fields}q").pack
        self._ready_after = np.array(last_read) + 1
        self._rows: list[bytes] = []

    def add(self, *fields: int) -> None:
        """Record a request: the fields of _HEAD, and those of its steps."""
        rows, journal = self._rows, self._journal
        if not rows:
            journal.trip_rows.append(self)
        rows.append(self._pack(*fields))
        journal.extra_spans += self._steps
        journal.flush_if_long()

    def add_spans(self, request: RequestState, spans: Sequence[int], is_over: bool = False) -> None:
        """Record only the spans; unless this start of the request is over, add to its times.

        Args:
            spans: the fields from `ready_ns` on.
        """
        self.add(request.data_id, request.rows, *_NOT_TOLD, *spans)
        if not is_over:
            self.add_times(request, spans)

    def add_times(self, request: RequestState, times: Sequence[int]) -> None:
        """Add the times of the stages to a request's sums; see `add_spans`."""
        _, began_ns, _, *marks = times
        ends = marks[OF_STEP - 1 :: OF_STEP]
        starts_ns, ends_ns = began_ns + sum(ends[:-1]), sum(ends)
        preprocess_ends_ns, process_ends_ns = sum(marks[1::OF_STEP]), sum(marks[2::OF_STEP])
        request.input_ns += preprocess_ends_ns - starts_ns
        request.infer_ns += process_ends_ns - preprocess_ends_ns
        request.output_ns += ends_ns - process_ends_ns

    def take_rows(self) -> tuple[Rows, Rows]:
        """Return and remove the rows: of SPAN, sorted by Op, and of REQUEST."""
        columns = np.frombuffer(b"".join(self._rows), np.int64).reshape(-1, self._fields).T
        self._rows.clear()
        heads = dict(zip(_HEAD, columns, strict=False))
        marks = columns[len(_HEAD) :].reshape(self._steps, OF_STEP, -1).swapaxes(0, 1)
        workers, preprocess_ends, process_ends, ends = marks
        starts = np.vstack([heads["began_ns"], ends[:-1]])
        count = columns.shape[1]
        spans = _rows_of(
            (self._steps, count),
            OpSpan._fields,
            op=np.array([[recorder.index] for recorder in self._recorders]),
            worker=workers,
            batch=np.arange(1, count + 1) + self._next_batches(count),
            data_id=heads["data_id"],
            rows=heads["rows"],
            ready_ns=np.vstack([heads["ready_ns"], ends])[self._ready_after],
            start_ns=starts,
            preprocess_end_ns=preprocess_ends,
            process_end_ns=process_ends,
            end_ns=ends,
            result_received_ns=heads["result_received_ns"],
        )
        requests = _rows_of(
            (count,),
            RequestRecord._fields,
            data_id=heads["data_id"],
            target=PIPELINE,
            rows=heads["rows"],
            start_ns=heads["arrived_ns"],
            admitted_ns=heads["admitted_ns"],
            dispatched_ns=heads["dispatched_ns"],
            completed_ns=heads["completed_ns"],
            end_ns=heads["answered_ns"],
            input_ns=(preprocess_ends - starts).sum(0),
            infer_ns=(process_ends - preprocess_ends).sum(0),
            output_ns=(ends - process_ends).sum(0),
        )
        has_request = heads["answered_ns"] > 0
        return spans.view(SPAN)[:, 0], requests[has_request].view(REQUEST)[:, 0]

    def _next_batches(self, count: int) -> Rows:
        """Return the number of batches of each step so far, and count `count` more."""
        numbers = np.array([[recorder.batches] for recorder in self._recorders])
        for recorder in self._recorders:
            recorder.batches += count
        return numbers


def _rows_of(shape: tuple[int, ...], fields: Sequence[str], **values: Any) -> Rows:
    """Return rows of integers with these values; all other fields are 0."""
    rows = np.zeros((*shape, len(fields)), np.int64)
    for name, value in values.items():
        rows[..., fields.index(name)] = value
    return rows.reshape(-1, len(fields))
