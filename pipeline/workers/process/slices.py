"""Streams in a worker process: its generators, and the parts that they make."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from pipeline.data import RequestInfo
from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.streams.flow import ENDED, apart
from pipeline.engine.streams.plan import is_iterative
from pipeline.engine.streams.run import VACANT, Entry, StreamRun
from pipeline.engine.streams.steps import stepped_run
from pipeline.workers.process.pages import AbandonedRequests, StatusPage
from pipeline.workers.process.wire import (
    ItemOutcome,
    Result,
    SliceEnd,
    StepTimes,
    WireJob,
    WireParts,
    WireSlice,
)

if TYPE_CHECKING:
    from pipeline.workers.process.main import OpenedItem
    from pipeline.workers.process.sending import SentStreams

_HOLD_NS = 2_000_000  # for parts that may wait, see `StreamRun`


class StreamedItem:
    """Item of a StreamRun in a worker process; it checks each time whether the request is over.

    Attributes:
        is_left: whether a slice from the server has reported the end; the page forgets later.
    """

    def __init__(self, item: OpenedItem, forgotten: AbandonedRequests) -> None:
        self.data_id: int = item.data_id
        self.log_id: int = item.log_id
        self.inputs: dict[str, Any] = item.inputs
        self.deadline: float | None = item.deadline
        self.trace: str = item.trace
        self.is_feed: bool = item.is_feed
        self.info: RequestInfo = item.info
        self.is_left: bool = item.is_over
        self._forgotten = forgotten

    @property
    def is_over(self) -> bool:
        return self.is_left or self._forgotten.has(self.data_id)

    def is_cancelled(self) -> bool:
        return self.is_over


class Slices:
    """The StreamRuns of a worker process that have begun.

    Args:
        op: the worker's copy.
        outcome: returns the wire form of a part, or an error.
        report: sends a report.
        look: reads messages of the server.
        sending: for an Op that sends its parts by itself.

    Attributes:
        parts: parts that were not sent yet.
        runs: by the numbers of their first jobs.
    """

    def __init__(
        self,
        op: BoundOp,
        status: StatusPage,
        forgotten: AbandonedRequests,
        outcome: Callable[[Any], ItemOutcome],
        report: Callable[[], None],
        look: Callable[[], None],
        sending: SentStreams | None = None,
    ) -> None:
        self.parts: list[WireParts] = []
        self.runs: dict[int, StreamRun] = {}
        self.call_begins: Callable[[], None] = status.call_begins
        self.call_ends: Callable[[], None] = status.call_ends
        self._op = op
        self._forgotten = forgotten
        self._outcome = outcome
        self._report = report
        self._look = look
        self._sending = sending
        self._reported_ns = 0
        self._number = 0  # of the running job

    def begin(self, job: WireJob, items: Sequence[OpenedItem]) -> Result:
        """Run the first slice of a job."""
        if self._sending is not None:
            return self._sending.begin(job, items)
        if is_iterative(self._op.op):
            run = self.runs.setdefault(job.number, stepped_run(job.number))
            return self._run(run, job.number, job.number, run.allowed)
        run = self.runs[job.number] = StreamRun(
            [StreamedItem(item, self._forgotten) for item in items]
        )
        result = self._run(run, job.number, job.number, job.allowed or [])
        failures = [(place, item.failure) for place, item in enumerate(items) if item.failure]
        if failures:
            self._keep(run, failures)
        return result

    def go_on(self, piece: WireSlice) -> Result:
        """Run a further slice."""
        run = self.runs[piece.stream]
        if run.reports_steps:  # `join` has applied the slice when it came
            return self._run(run, piece.number, piece.stream, run.allowed)
        for place in piece.over:
            run.items[place].is_left = True
        return self._run(run, piece.number, piece.stream, piece.allowed)

    def join(self, piece: WireSlice, items: Sequence[tuple[int, OpenedItem]]) -> None:
        """Apply joining requests and other news to a run, between two steps."""
        run = self.runs.setdefault(piece.stream, stepped_run(piece.stream))
        for place, item in items:
            run.join_at(place, StreamedItem(item, self._forgotten), item.sequence)
            if item.failure:
                run.joining.pop()
                self._keep(run, [(place, item.failure)])
        run.allowed[: len(piece.allowed)] = piece.allowed
        for place in piece.over:
            if isinstance(run.items[place], StreamedItem):
                run.items[place].is_left = True

    def close(self) -> None:
        """End all generators: nobody waits any more."""
        for run in self.runs.values():
            if run.reports_steps:  # it has none
                continue
            for item in run.items:
                item.is_left = True
            run.run(self._op, self, time.monotonic_ns)

    def _run(self, run: StreamRun, number: int, stream: int, allowed: list[int]) -> Result:
        self._number, run.allowed = number, allowed
        run.run(self._op, self, time.monotonic_ns)
        if run.is_finished:
            del self.runs[stream]
        if run.reports_steps:
            end = SliceEnd([], [], [], False, run.busy_ns)
        else:
            end = SliceEnd(run.made, run.ended, run.groups or [], run.is_finished, run.busy_ns)
        began, prepared, ended = run.start_ns, run.preprocess_end_ns, run.end_ns
        return Result(number, [], False, began, prepared, ended, ended, slice_end=end)

    def yielded(self, run: StreamRun, entries: Sequence[Entry]) -> None:
        """Send parts, at once, unless the slice is over: then they go with its result."""
        self._keep(run, entries)
        now = time.monotonic_ns()
        if run.reports_steps:
            if not run.may_wait or now - self._reported_ns > _HOLD_NS:
                self._reported_ns = now
                self._report()
            self._look()
        elif run.continues:
            self._report()

    def _keep(self, run: StreamRun, entries: Sequence[Entry]) -> None:
        reported = []
        unsent = set()
        for place, outcome in apart(entries):
            if place in unsent:
                continue
            sent = ItemOutcome() if outcome is ENDED else self._outcome(outcome)
            if sent.error is not None:  # perhaps because it cannot be sent
                run.ended[place] = True
                unsent.add(place)
            reported.append((place, sent))
            if run.reports_steps and run.ended[place]:
                cast(list[Any], run.items)[place] = VACANT
        if not run.reports_steps:
            self.parts.append(
                WireParts(self._number, reported, run.start_ns, run.preprocess_end_ns)
            )
            return
        parts = WireParts(run.ran_at, reported)
        while run.steps:  # at most one
            step = run.steps.popleft()
            parts.start_ns, parts.preprocess_end_ns = step.start_ns, step.preprocess_end_ns
            parts.step = _times(step)
        self.parts.append(parts)


def _times(step: BatchRun) -> StepTimes:
    """Return the times of a step; its rows and calls are of the requests that stayed to its end."""
    there = [place for place, outcome in enumerate(step.outcomes) if outcome is not None]
    rows = [step.rows[place] for place in there] if step.rows else []
    calls = [step.executions[place] for place in there] if step.executions else []
    return StepTimes(step.process_end_ns, step.end_ns, rows, calls, step.execution_ends_ns)
