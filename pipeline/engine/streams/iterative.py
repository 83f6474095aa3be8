"""IterativeDispatcher: the dispatcher of an Op with `batching: iterative`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pipeline.engine.batch_run import BatchRun
from pipeline.engine.channel import Item
from pipeline.engine.dispatcher import OpDispatcher
from pipeline.engine.journal import Outcome, PartKind
from pipeline.engine.lone_run import LoneRun
from pipeline.engine.payload import LOCAL
from pipeline.engine.request import RequestState
from pipeline.engine.schedulers.base import Batch
from pipeline.engine.schedulers.iterative import IterativeScheduler
from pipeline.engine.streams.dispatcher import StreamDispatcher
from pipeline.engine.streams.flow import ENDED, OUT, End, Flow
from pipeline.engine.streams.spans import note_made
from pipeline.engine.streams.step import Progress, StepRun
from pipeline.engine.walk import Walk
from pipeline.engine.worker_api import Worker
from pipeline.errors import ConfigError, PipelineError
from pipeline.routes import Answer

_ENDS = (PipelineError, Answer)


class IterativeDispatcher(StreamDispatcher):
    """Has its workers make one step after the other, and sends on what each has made.

    The next step is on its way to the worker before the parts of the last one are sent.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.run_type: type[BatchRun] = StepRun
        self._seated: IterativeScheduler = cast(IterativeScheduler, self.scheduler)
        self._seated.room_of = self._room
        self._progress: dict[Item, Progress] = {}
        if self.workers.memory_domain is not LOCAL:
            kind = self.op.pipeline_config.workers
            raise ConfigError(
                f"op.{self.name}.workers: {kind}: batching: iterative keeps its requests' states "
                "in threads of the server; expected thread"
            )

    def count(self, run: BatchRun) -> BatchRun:
        super().count(run)
        progress = [self._progress.setdefault(item, Progress()) for item in run.items]
        cast(StepRun, run).progress = progress
        return run

    def schedule(self) -> bool:
        is_left = super().schedule()
        if self._progress and (outage := self.workers.outage) is not None:
            self._fail(self.scheduler.clear(), outage, Outcome.OTHER)
        return is_left

    def drop(self, request: RequestState) -> None:
        for item in self._items_of(request):
            if request.outcome == Outcome.CANCELED:
                flow = self._flow(request)
                note_made(self.spans, Batch([]), item, flow, PartKind.CANCELED)
            del self._progress[item]
        super().drop(request)

    def took(self, request: RequestState, end: End = OUT, count: int = 1) -> None:
        flow = self._flow(request)
        flow.taken[end] += count
        ahead = flow.sent - flow.slowest
        if ahead == self._window - 1:  # it may have sat out
            self._router.mark_dirty(self)
        elif ahead < 0:  # its readers have failed, and take ALL
            for item in self._items_of(request):
                self._leave(item)

    def done(self, worker: Worker, job: BatchRun | LoneRun | Walk) -> None:
        assert isinstance(job, StepRun), "nothing else is submitted"
        if job.is_superseded:
            return
        self.load.served((job.end_ns - job.start_ns) / 1e9)
        self.release(job)
        if self.spans.is_wanted:
            self.spans.batch(worker, job)
        made = self._made(job)
        self.schedule()
        for item, flow, number, outcome, is_end in made:
            if is_end or item in self._progress:
                self._tell(job, item, flow, number, outcome, is_end)

    def _made(self, run: StepRun) -> list[tuple[Item, Flow, int, Any, bool]]:
        """Return (item, its stream, number of its part, outcome, whether it ends) of who waits.

        Who ends gives up its seat.
        """
        made = []
        for item, outcome, is_last in zip(run.items, run.outcomes, run.ends, strict=False):
            if outcome is None or item not in self._progress:
                continue
            is_end = is_last or outcome is ENDED or isinstance(outcome, _ENDS)
            if is_end:
                self._leave(item)
            flow = self._flow(item.request)
            made.append((item, flow, flow.sent, outcome, is_end))
            if outcome is not ENDED and not isinstance(outcome, PipelineError):
                flow.sent += 1
        return made

    def _tell(
        self, run: StepRun, item: Item, flow: Flow, number: int, outcome: Any, is_end: bool
    ) -> None:
        request = item.request
        if item.is_over:
            return
        if isinstance(outcome, PipelineError):
            note_made(self.spans, run, item, flow, PartKind.FAILED)
            self._pass_on(item, outcome)
            return
        if outcome is not ENDED:
            note_made(self.spans, run, item, flow)
            self.links.answered += 1
            self._send_part(request, number, outcome)
        if is_end and not isinstance(outcome, Answer) and not item.is_over:
            note_made(self.spans, run, item, flow, PartKind.EMPTY)
            self._ended(item)

    def _give_up(self, worker: Worker, run: BatchRun | LoneRun) -> None:
        """Replace a worker that hangs in a step: those in it end, others go on."""
        assert isinstance(run, StepRun), "nothing else is submitted"
        run.is_superseded = True
        self.workers.replace(worker, None)
        self._start_over(run, run.timed_out(self.name, worker.number))

    def _fail(self, items: Sequence[Item], error: PipelineError, outcome: Outcome) -> None:
        waiting = [item for item in items if not item.is_over]
        for item in waiting:
            self._leave(item)
        OpDispatcher._fail(self, waiting, error, outcome)

    def _fail_stream(self, request: RequestState, error: PipelineError) -> None:
        for item in self._items_of(request):
            self._leave(item)
        super()._fail_stream(request, error)

    def _leave(self, item: Item) -> None:
        """Forget what is kept of a request, or of one part that it reads."""
        self._progress.pop(item, None)
        self._seated.leave(item)

    def _items_of(self, request: RequestState) -> list[Item]:
        return [item for item in self._progress if item.request is request]

    def _flow(self, request: RequestState) -> Flow:
        stream = request.stream
        found = stream.flows.get(self) if stream is not None else None
        return super()._flow(request) if found is None else found

    def _room(self, item: Item) -> int:
        flow = self._flow(item.request)
        return self._window - (flow.sent - flow.slowest)
