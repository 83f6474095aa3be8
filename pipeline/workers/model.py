"""Model workers: a model of the same server processes an Op's requests.

No thread is needed: the event loop passes each request to the model's engine, and the answer to
the graph. The model has its own scheduler, workers and statistics.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pipeline.engine.convoy import MemberOutcomes
from pipeline.engine.op.channel import Item
from pipeline.engine.request import Members
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.state import WorkersState
from pipeline.engine.worker_api import Worker, WorkerContext, WorkersBase, WorkersOwner
from pipeline.errors import PipelineError
from pipeline.op import Op
from pipeline.workers.model_convoys import ConvoyCalls
from pipeline.workers.model_runs import ModelRun, ModelStream
from pipeline.workers.model_step import ModelStep, answer_of, ask, failure_of, step_of

_ANY = 1 << 30  # requests at once


class ModelKind:
    """Workers of Ops that call models of the same server; see `WorkerKind`."""

    def __init__(self, ops: Sequence[Op], context: WorkerContext) -> None:
        for op in ops:
            step_of(op)

    def fork(self) -> None:
        """Do nothing: there is no process."""

    def attach(self, loop: asyncio.AbstractEventLoop, schedule: Callable[[], None]) -> None:
        self._loop = loop

    def workers(self, op: Op, count: int, owner: WorkersOwner) -> ModelWorkers:
        return ModelWorkers(step_of(op), self._loop, owner)

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


class _Place:
    """A worker for the dispatcher: there are as many as requests."""

    number = 0
    job: object | None = None
    job_started: float | None = None
    call_started: float | None = None


class ModelWorkers(WorkersBase):
    """The requests of one Op that are at its model; see `Workers`."""

    runs_slices: bool = True
    outage: PipelineError | None = None
    is_ready: bool = True
    visit_type: type[Item] | None = ModelRun
    stream_type: type[BatchRun] | None = ModelStream

    def __init__(
        self, step: ModelStep, loop: asyncio.AbstractEventLoop, owner: WorkersOwner
    ) -> None:
        self.count: int = 0
        self.step: ModelStep = step
        self.loop: asyncio.AbstractEventLoop = loop
        self.owner: Any = owner
        self.place: Worker = _Place()
        self._most = step.most or _ANY
        self._running = 0
        self._asked: dict[int, Any] = {}  # by data id
        self._duplicates: list[Any] = []  # with a data id that is in `_asked` already
        self._waiting: deque[Any] = deque()
        self._is_feeding = False

    def convoy_size(self, rows: int) -> int:
        return self.step.convoy_size(rows)

    def state(self) -> WorkersState:
        wanted = self.step.most or 1
        return WorkersState("model", wanted, wanted if self.count else 0, self._running)

    async def start(self) -> None:
        self.count = self._most

    async def stop(self, timeout_s: float) -> int:
        self.count = 0
        return 0

    def busy(self) -> Iterable[Worker]:
        return ()

    def replace(self, worker: Worker, job: object | None) -> bool:
        return False

    def lives(self) -> Mapping[int, int]:
        return {0: 0}

    # In -----------------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[Any]) -> None:
        for job in jobs:
            if isinstance(job, ModelStream):
                job.go_on(self)
            elif isinstance(job, ModelRun):
                job.start_ns = job.ready_ns = job.request.passed_ns or job.ready_ns
                self.pass_on(job)
            else:
                (item,) = job.items
                run = ModelRun(
                    *(item.request, item.generation, item.data_id, item.log_id, item.inputs),
                    item.ready_at,
                )
                run.start_ns = time.monotonic_ns()
                run.ready_ns = item.request.passed_ns
                run.apart = job
                self.pass_on(run)

    def pass_on(self, run: Any) -> None:
        """Take a request; call the model now, unless too many requests are running."""
        run.workers = self
        if self._running >= self._most:
            self._waiting.append(run)
        else:
            self._ask(run)

    def _ask(self, run: Any) -> None:
        """Call the model, or answer in its place."""
        step, (item,) = self.step, run.items
        request, convoy = item.request, item.request.convoy
        self._running += 1
        if item.is_over:
            run.abandon()
            return
        if convoy is not None and not self._can_go_together(item, convoy):
            self.send_each(run, convoy)
            return
        self._note(run)
        collector = None if request.target is None else request.target.collector
        together = None
        if convoy is not None:
            together = convoy.following([step.model_info(info) for info in convoy.infos])
        try:
            run.handle = ask(step, item, item.trace, run, collector, together)
        except Exception as error:  # of the model, or our own on some data
            if convoy is None:
                run.over(failure_of(step, error))
            else:  # an error names its request
                self.send_each(run, convoy)
            return
        if run.handle is None:
            run.over(answer_of(step, item, {}))
        # other requests may wait for this outcome: not from within this call
        elif run.early is not None:
            early, run.early = run.early, None
            self.loop.call_soon(self._end_early, run, early)

    def _can_go_together(self, item: Item, convoy: Members) -> bool:
        """Return whether the model takes all members of a convoy together."""
        if any(type(part) is MemberOutcomes for part in item.inputs.values()):
            return False
        return len(convoy) <= self.convoy_size(max(convoy.rows))

    def send_each(self, run: ModelRun, convoy: Members, lost: PipelineError | None = None) -> None:
        """Send each member of a convoy by itself; after an error without the member at fault."""

        def tell(outcome: Any) -> None:
            if self._is_pending(run):
                run.over(outcome)

        self._note(run)
        asked: Any = ConvoyCalls(self.step, run, convoy, tell, self.loop.call_soon)
        run.handle = asked
        asked.ask(lost)

    def _end_early(self, run: Any, early: tuple[Any]) -> None:
        if self._is_pending(run):  # it was not dropped meanwhile
            run.end(*early)

    # Running requests ---------------------------------------------------------------------------

    def _note(self, run: Any) -> None:
        """Register a request."""
        if self._asked.setdefault(run.data_id, run) is not run and run not in self._duplicates:
            self._duplicates.append(run)

    def _is_pending(self, run: Any) -> bool:
        return self._asked.get(run.data_id) is run or run in self._duplicates

    def remove(self, run: Any) -> None:
        """Forget a request that is over."""
        data_id: int = run.data_id
        if self._asked.get(data_id) is run:
            del self._asked[data_id]
        elif self._duplicates and run in self._duplicates:
            self._duplicates.remove(run)

    def next(self) -> None:
        """Note that a running request has ended, and start waiting ones."""
        self._running -= 1
        if self._is_feeding or not self._waiting:
            return
        self._is_feeding = True
        while self._waiting and self._running < self._most:
            self._ask(self._waiting.popleft())
        self._is_feeding = False

    def forget(self, data_id: int) -> None:
        asked: Any = self._asked.get(data_id)
        if asked is not None:
            asked.abandon()
        for other in [job for job in self._duplicates if job.data_id == data_id]:
            other.abandon()
