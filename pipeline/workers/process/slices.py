"""Streams in a worker process: the generators that it has, and the parts that they make."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.data import RequestInfo
from pipeline.engine.bound_op import BoundOp
from pipeline.engine.streams.flow import ENDED
from pipeline.engine.streams.run import Entry, StreamRun
from pipeline.workers.process.pages import ForgottenRequests, StatusPage
from pipeline.workers.process.wire import (
    ItemOutcome,
    Result,
    SliceEnd,
    WireJob,
    WireParts,
    WireSlice,
)

if TYPE_CHECKING:
    from pipeline.workers.process.main import OpenedItem


class StreamedItem:
    """Item of a StreamRun in a worker process: whether it is over is looked up each time.

    Attributes:
        is_left: whether the server has said so with a slice; its page forgets after a while.
    """

    def __init__(self, item: OpenedItem, forgotten: ForgottenRequests) -> None:
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
    """The StreamRuns of a worker process that have begun; it is told what they make.

    Args:
        op: the worker's copy.
        outcome: returns a part, or an error, as it goes over the wire.
        report: sends what there is to report.

    Attributes:
        parts: that were not sent yet.
        runs: by the numbers of their first jobs.
    """

    def __init__(
        self,
        op: BoundOp,
        status: StatusPage,
        forgotten: ForgottenRequests,
        outcome: Callable[[Any], ItemOutcome],
        report: Callable[[], None],
    ) -> None:
        self.parts: list[WireParts] = []
        self.runs: dict[int, StreamRun] = {}
        self.call_begins: Callable[[], None] = status.call_begins
        self.call_ends: Callable[[], None] = status.call_ends
        self._op = op
        self._forgotten = forgotten
        self._outcome = outcome
        self._report = report
        self._number = 0  # of the job that runs

    def begin(self, job: WireJob, items: Sequence[OpenedItem]) -> Result:
        """Run the first slice of a job."""
        run = self.runs[job.number] = StreamRun(
            [StreamedItem(item, self._forgotten) for item in items]
        )
        result = self._run(run, job.number, job.number, job.allowed or [])
        failures = [(place, item.failure) for place, item in enumerate(items) if item.failure]
        if failures:
            self._keep(run, failures)
        return result

    def go_on(self, piece: WireSlice) -> Result:
        """Run a further one."""
        run = self.runs[piece.stream]
        for place in piece.over:
            run.items[place].is_left = True
        return self._run(run, piece.number, piece.stream, piece.allowed)

    def close(self) -> None:
        """End all generators: nobody waits any more."""
        for run in self.runs.values():
            for item in run.items:
                item.is_left = True
            run.run(self._op, self, time.monotonic_ns)

    def _run(self, run: StreamRun, number: int, stream: int, allowed: list[int]) -> Result:
        self._number, run.allowed = number, allowed
        run.run(self._op, self, time.monotonic_ns)
        if run.is_finished:
            del self.runs[stream]
        end = SliceEnd(run.made, run.ended, run.groups or [], run.is_finished, run.busy_ns)
        began, prepared, ended = run.start_ns, run.preprocess_end_ns, run.end_ns
        return Result(number, [], False, began, prepared, ended, ended, slice_end=end)

    def yielded(self, run: StreamRun, entries: Sequence[Entry]) -> None:
        """Send parts, at once unless the slice is over with them: then with its result."""
        self._keep(run, entries)
        if run.goes_on:
            self._report()

    def _keep(self, run: StreamRun, entries: Sequence[Entry]) -> None:
        told = []
        unsent = set()
        for place, outcome in entries:
            if place in unsent:
                continue
            sent = ItemOutcome() if outcome is ENDED else self._outcome(outcome)
            if sent.error is not None:  # perhaps only now, since it cannot be sent
                run.ended[place] = True
                unsent.add(place)
            told.append((place, sent))
        self.parts.append(WireParts(self._number, told, run.start_ns, run.preprocess_end_ns))
