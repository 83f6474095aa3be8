"""Model workers: an Op's requests are worked on by a model of the same server.

There is no thread: the loop hands each request to the engine of the model, and its answer to the
graph. The model has its own scheduler, workers and statistics.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pipeline.data import ChannelData
from pipeline.engine.convoy import Each
from pipeline.engine.model_answers import error_in
from pipeline.engine.op.channel import Item
from pipeline.engine.op.passage import PassingRun
from pipeline.engine.request import Members
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.state import WorkersState
from pipeline.engine.streams.flow import ENDED
from pipeline.engine.worker_api import Owner, Worker, WorkerContext, WorkersBase
from pipeline.errors import PipelineError, UserCodeError, described
from pipeline.op import Op
from pipeline.workers.model_convoys import AskedEach, goes_together, mapped
from pipeline.workers.model_runs import ModelRun, ModelStream
from pipeline.workers.model_step import ModelStep, step_of

_LOGGER = logging.getLogger(__name__)

_ANY = 1 << 30  # requests at once


class ModelKind:
    """Workers of Ops that ask models of the same server; see `WorkerKind`."""

    def __init__(self, ops: Sequence[Op], context: WorkerContext) -> None:
        for op in ops:
            step_of(op)

    def fork(self) -> None:
        """There is no process."""

    def attach(self, loop: asyncio.AbstractEventLoop, schedule: Callable[[], None]) -> None:
        self._loop = loop

    def workers(self, op: Op, count: int, owner: Owner) -> ModelWorkers:
        return ModelWorkers(op.name, step_of(op), self._loop, owner)

    async def close(self) -> None:
        """Nothing is left."""


class _Place:
    """Worker, as the dispatcher sees one: there are as many as requests."""

    number = 0
    job: object | None = None
    job_started: float | None = None
    call_started: float | None = None


class ModelWorkers(WorkersBase):
    """The requests of one Op that are at its model; see `Workers`."""

    runs_slices: bool = True
    outage: PipelineError | None = None
    is_ready: bool = True
    passing_type: type[PassingRun] = ModelRun
    stream_type: type[BatchRun] | None = ModelStream

    def __init__(
        self, name: str, step: ModelStep, loop: asyncio.AbstractEventLoop, owner: Owner
    ) -> None:
        self.count: int = 0
        self._name = name
        self._step = step
        self._most = step.most or _ANY
        self._loop = loop
        self._owner: Any = owner
        self._place: Worker = _Place()
        self._running = 0
        self._asked: dict[int, Any] = {}  # by data id
        self._beside: list[Any] = []  # of a data id that is there already
        self._waiting: deque[Any] = deque()
        self._is_feeding = False

    @property
    def convoy_rows(self) -> int:
        """Return how many samples a convoy may have; 0: none goes to the model."""
        rows: Callable[[], int] | None = getattr(self._step, "convoy_rows", None)
        return 0 if rows is None else rows()

    def state(self) -> WorkersState:
        wanted = self._step.most or 1
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
                self._run_stream(job)
            else:
                (item,) = job.items
                run = ModelRun(
                    *(item.request, item.generation, item.data_id, item.log_id, item.inputs),
                    item.ready_at,
                    item.ready_ns,
                )
                run.start_ns = time.monotonic_ns()
                run.apart = job
                self.pass_on(run)

    def pass_on(self, run: Any) -> None:
        """Take a request, whose turn it is if not too many are under way."""
        run.workers = self
        if self._running >= self._most:
            self._waiting.append(run)
        else:
            self._ask(run)

    def _ask(self, run: Any) -> None:
        """Ask the model, or answer in its place."""
        step, item = self._step, (run if type(run) is ModelRun else run.items[0])
        convoy = item.request.convoy
        self._running += 1
        if item.is_over:
            run.let_go()
            return
        if convoy is not None and not self._goes_together(item, convoy):
            self._ask_each(run, convoy)
            return
        try:
            feeds = step.feeds(item)
            if feeds is None:
                self._answer(run, item, {})
                return
            if self._asked.setdefault(run.data_id, run) is not run:
                self._beside.append(run)
            target, info = item.request.target, step.info(item)
            collector = None if target is None else target.collector
            if convoy is not None:
                convoy = convoy.following([step.told(each) for each in convoy.infos])
            told = step.name, step.version, feeds, info, item.trace, run
            run.handle = step.models.begin(*told, collector=collector, convoy=convoy)
        except PipelineError as error:
            self._fail(run, error)
            return
        except Exception as error:  # ours, on data of any type
            _LOGGER.exception("[%s] a model could not be asked", self._name)
            self._fail(run, UserCodeError(described(error)))
            return
        if run.early is not None:  # others may wait for what comes of it: not from within this
            early, run.early = run.early, None
            self._loop.call_soon(self._ended_early, run, early)

    def _goes_together(self, item: Item, convoy: Members) -> bool:
        """Return whether the model takes all members of a convoy at once, and may have them."""
        if not goes_together(list(item.inputs.values())):
            return False
        most, step = self.convoy_rows, self._step
        return sum(convoy.rows) <= most and step.has_room(len(convoy))

    def _ask_each(self, run: ModelRun, convoy: Members) -> None:
        """Ask for each member of a convoy by itself."""

        def tell(outcome: Any) -> None:
            if self._is_asked(run):
                self.tell(run, outcome)

        if self._asked.setdefault(run.data_id, run) is not run and run not in self._beside:
            self._beside.append(run)
        asked: Any = AskedEach(self._step, run, convoy, tell, self._loop.call_soon)
        run.handle = asked
        asked.ask()

    def _ended_early(self, run: Any, early: Any) -> None:
        if self._is_asked(run):  # it was not let go meanwhile
            run.end(*early) if type(early) is tuple else run.end(early)

    def _is_asked(self, run: Any) -> bool:
        return self._asked.get(run.data_id) is run or run in self._beside

    def _remove(self, run: Any) -> None:
        """Forget a request that is over."""
        data_id: int = run.data_id
        if self._asked.get(data_id) is run:
            del self._asked[data_id]
        elif self._beside and run in self._beside:
            self._beside.remove(run)

    def _next(self) -> None:
        """Take note that one request less is under way, and ask for those that wait."""
        self._running -= 1
        if self._is_feeding or not self._waiting:
            return
        self._is_feeding = True
        while self._waiting and self._running < self._most:
            self._ask(self._waiting.popleft())
        self._is_feeding = False

    # One answer ---------------------------------------------------------------------------------

    def ended(self, run: ModelRun, answer: ChannelData) -> None:
        """Take a model's answer."""
        error, convoy = answer.error, run.request.convoy
        if error is not None and convoy is not None and convoy.comes_again(error):
            self._ask_each(run, convoy)
        elif error is not None:
            self._fail(run, error)
        else:
            self._answer(run, run, answer.payload)

    def _answer(self, run: Any, item: Item, fetched: Any) -> None:
        try:
            if type(fetched) is Each:
                outcome: Any = mapped(self._step, item, fetched)
            else:
                outcome = self._step.answer(item, fetched)
        except Exception as error:  # ours, on data of any type
            _LOGGER.exception("[%s] a model's answer could not be passed on", self._name)
            outcome = self._step.failed(UserCodeError(described(error)))
        if type(run) is ModelRun:
            self.tell(run, outcome)
        else:  # a stream of which nobody wants anything
            self._end_stream(run, [(0, outcome), (0, ENDED)] if fetched else [(0, ENDED)])

    def _fail(self, run: Any, error: PipelineError) -> None:
        failed = self._step.failed(error)
        if type(run) is ModelRun:
            self.tell(run, failed)
        else:
            self._end_stream(run, [(0, failed)])

    def tell(self, run: ModelRun, outcome: Any) -> None:
        """Report what came of a request; None: nothing, for it is over."""
        self._remove(run)
        run.outcome = outcome
        run.take_times()
        batch = run.apart
        if batch is None:
            self._owner.done(self._place, run)
        else:
            run.copy_to(batch)
            self._owner.done(self._place, batch)
        self._next()

    def forget(self, data_id: int) -> None:
        found: Any = self._asked.get(data_id)
        if found is not None:
            found.let_go()
        for other in [each for each in self._beside if each.data_id == data_id]:
            other.let_go()

    # Parts --------------------------------------------------------------------------------------

    def _run_stream(self, run: ModelStream) -> None:
        """Begin with a stream, or go on: there is room for parts, or nobody takes any more."""
        if run.groups is None:
            run.groups, run.made, run.ended = [[0]], [0], [False]
            run.start_ns = run.preprocess_end_ns = run.end_ns = time.monotonic_ns()
            self.pass_on(run)
        elif run.items[0].is_over or not run.has_work:
            if not run.is_finished:
                run.let_go()
        else:
            self._let_more_come(run)
        self._loop.call_soon(self._slice_is_over, run)

    def _slice_is_over(self, run: ModelStream) -> None:
        if run.is_out:
            self._owner.done(self._place, run)

    def _let_more_come(self, run: ModelStream) -> None:
        """Tell the model that parts were taken for which there is room."""
        more = min(run.made[0], run.allowed[0]) - run.taken
        if more > 0 and run.handle is not None:
            run.taken += more
            run.handle.took_part(more)

    def took(self, run: ModelStream, answer: ChannelData) -> None:
        """Take a part of a model's answer."""
        if run.is_finished:
            return
        step, item = self._step, run.items[0]
        if (failure := error_in(answer.payload)) is not None and run.handle is not None:
            run.handle.cancel()
            self._fail(run, failure)
            return
        try:
            part = step.answer(item, answer.payload)
        except Exception as error:  # ours, on data of any type
            _LOGGER.exception("[%s] a model's answer could not be passed on", self._name)
            assert run.handle is not None, "it has answered"
            run.handle.cancel()
            self._fail(run, UserCodeError(described(error)))
            return
        run.made[0] += 1
        self._owner.parts(run, [(0, part)])
        if not run.is_finished:
            self._let_more_come(run)

    def stream_ended(self, run: ModelStream, answer: ChannelData | None) -> None:
        """Take the end of a model's answer."""
        if run.is_finished:
            return
        if answer is None:
            self._end_stream(run, [(0, ENDED)])
        elif answer.error is not None:
            self._fail(run, answer.error)
        else:  # it answered at once
            self._answer(run, run.items[0], answer.payload)

    def _end_stream(self, run: ModelStream, entries: Sequence[tuple[int, Any]]) -> None:
        run.ended[0] = True
        self.stream_over(run)
        self._owner.parts(run, entries)

    def stream_over(self, run: ModelStream) -> None:
        """Take note that no more parts of a stream will come."""
        if not run.is_finished:
            run.is_finished, run.groups = True, []
            self._remove(run)
            self._next()
