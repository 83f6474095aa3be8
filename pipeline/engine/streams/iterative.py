"""IterativeDispatcher: the dispatcher of an Op with `batching: iterative`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pipeline.config.schema import SequenceConfig
from pipeline.engine.journal.journal import (
    Outcome,
)
from pipeline.engine.op.channel import Item
from pipeline.engine.request import RequestState
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.schedulers.iterative import IterativeScheduler
from pipeline.engine.streams.dispatcher import StreamDispatcher, flow_of
from pipeline.engine.streams.flow import ALL, ENDED, UNWANTED, Bundle
from pipeline.engine.streams.run import Entry, StreamRun
from pipeline.engine.streams.steps import ENDS, stepped_run
from pipeline.engine.trips.trip import Trip
from pipeline.engine.worker_api import Worker
from pipeline.errors import PipelineError

_OK = int(Outcome.OK)


class IterativeDispatcher(StreamDispatcher):
    """Lets requests join the run of a worker, which steps as long as it has any.

    The run is the worker's only job: it comes back after each slice, as a generator's does.

    Attributes:
        may_hold: whether a worker may hold parts for some time: there is no limit between parts.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.run_type: type[BatchRun] = BatchRun  # the scheduler's batches: the requests that join
        self._seated: IterativeScheduler = cast(IterativeScheduler, self.scheduler)
        self.may_hold: bool = False
        self._at: dict[int, StreamRun] = {}
        self._numbers_sequences = self.op.pipeline_config.sequence != SequenceConfig()
        self._last_number = 0  # of a sequence; each request is one

    def count(self, run: BatchRun) -> BatchRun:
        self.load.items += len(run.items)
        if self.room.size:
            self.room.promise(run.items)
        return run

    def submit(self, runs: Sequence[BatchRun | Item | Trip]) -> None:
        for run in runs:
            if isinstance(run, StreamRun):
                super().submit([run])
            else:
                assert isinstance(run, BatchRun), "nothing else is submitted"
                self._join(run.worker or 0, run.items)

    def _join(self, number: int, items: Sequence[Item]) -> None:
        """Add requests to the next step of a worker."""
        run = self._at.get(number)
        if run is None:
            run = stepped_run(number)
            run.least = max(1, self._window // 2)
            run.holds = self.may_hold and self.workers.keeps_progress
            self._at[number] = run
        for item in items:
            self._last_number += self._numbers_sequences
            flow = flow_of(self, item.request)
            allowed = flow.first_room(self._window)
            if run.holds and allowed != UNWANTED and self._makes_one_answer(item.request):
                allowed = ALL
            place = run.join(item, allowed, self._last_number)
            if not item.is_over:
                self._runs[item.request] = flow.begin(run, place)
        if run.is_out:
            self.workers.joined(run)
        else:
            self._resume(run)

    def _makes_one_answer(self, request: RequestState) -> bool:
        """Return whether all parts of a request become its one answer."""
        return flow_of(self, request).is_answer and not request.sink.takes_parts

    def parts(self, run: StreamRun, entries: Sequence[Entry]) -> None:
        self._note_steps(run)
        self._send_all(run, entries)

    def _send_all(self, run: StreamRun, entries: Sequence[Entry]) -> None:
        """Send the parts, and free the places of requests that have ended."""
        items, runs = run.items, self._runs
        for place, outcome in entries:
            item = items[place]
            flow = runs.get(item.request)
            if flow is not None and flow.run is run and flow.place == place:
                self._tell(flow, item, outcome)
            if type(outcome) is not Bundle and (outcome is ENDED or isinstance(outcome, ENDS)):
                self._leave(run, place)

    def _note_steps(self, run: StreamRun) -> None:
        while run.steps:
            step = run.steps.popleft()
            self.load.served((step.end_ns - step.start_ns) / 1e9)
            if self.spans.is_wanted:
                self.spans.batch(cast(Worker, run), step)

    def _leave(self, run: StreamRun, place: int) -> None:
        """Free a place."""
        item = run.items[place]
        run.leave(place)
        self._seated.leave(item)
        self.load.items -= 1
        if self.room.size:
            self.room.release([item])
            self.places_freed()
        elif len(self.scheduler):
            self._router.cycle.mark_dirty(self)

    def _give_up(self, worker: Worker, run: BatchRun | Item) -> None:
        """Replace a worker that hangs in a step: its requests end, the others continue."""
        assert isinstance(run, StreamRun), "nothing else is submitted"
        run.is_superseded = True
        error = run.timed_out(self.name, worker.number)
        stuck = run.stepping if self.workers.keeps_progress else begun(run)
        self.workers.replace(worker, None)
        self._end(run, stuck, error)

    def start_over(self, job: BatchRun, error: PipelineError) -> None:
        """End the requests that a lost worker had begun; the others begin at the next worker."""
        assert isinstance(job, StreamRun), "nothing else is submitted"
        is_last = self.workers.outage is not None
        self._end(job, job.taken if is_last else begun(job), error)

    def _end(self, run: StreamRun, places: Sequence[int], error: PipelineError) -> None:
        """End the requests in some places of a given-up run; the others continue in a new one."""
        self._is_back(run)
        left = run.take_unsent()
        following = run.without(places)
        self._at[run.ran_at] = following
        for flow in self._runs.values():
            if flow.run is run:
                flow.run = following
        self._note_steps(run)
        self._send_all(following, left)
        self._send_all(following, [(place, error) for place in places if place in following.taken])
        if following.taken:
            self._resume(following)
        elif self._at.get(run.ran_at) is following:
            del self._at[run.ran_at]
        self._router.cycle.mark_dirty(self)


def begun(run: StreamRun) -> list[int]:
    """Return the places of the requests that the worker may have begun."""
    return [place for place in run.taken if place not in run.joining]
