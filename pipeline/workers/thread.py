"""Thread workers: each has its own copy of the Op."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from pipeline.engine.op.channel import Item
from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.run.init_op import end_op, run_init_op
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.state import WorkersState
from pipeline.engine.trips.trip import Trip
from pipeline.engine.worker_api import (
    Job,
    Lender,
    SetUp,
    Worker,
    WorkerContext,
    WorkersBase,
    WorkersOwner,
)
from pipeline.errors import DeadlineError, InitError, PipelineError, WorkerDiedError, described
from pipeline.op import Op, predictor_of
from pipeline.predictors.base import ModelMetadata, metadata_of
from pipeline.workers.inbox import LoopInbox
from pipeline.workers.peer_calls import LoopCaller
from pipeline.workers.thread_worker import ThreadPool, ThreadWorker
from pipeline.workers.warm_up import warm_up

_LOGGER = logging.getLogger(__name__)

_LOOK_S = 0.01  # between checks of threads that are about to end
_FOR_THE_ENDS = 0.2  # of the time to stop: for threads to end that have no job
_MAX_STUCK = 32  # threads that may hang at once before an Op gives up replacing them
_KEPT = "the worker hangs, and has the state of the sequence. Begin it again with START"


class ThreadKind:
    """Threads of the server's process, which share one inbox of its loop; see `WorkerKind`."""

    def __init__(self, ops: Sequence[Op], context: WorkerContext) -> None:
        self._set_up = context.set_up
        self._models = context.models

    def fork(self) -> None:
        """Do nothing: threads are not forked."""

    def attach(self, loop: asyncio.AbstractEventLoop, schedule: Callable[[], None]) -> None:
        self._loop = loop
        self._inbox = LoopInbox(loop, after=schedule)

    def workers(self, op: Op, count: int, owner: WorkersOwner) -> ThreadWorkers:
        if self._models is not None:
            op.pipeline_models = LoopCaller(self._loop, self._models)
        return ThreadWorkers(op, count, self._loop, self._inbox, self._set_up, owner)

    async def close(self) -> None:
        """Do nothing: threads share nothing that has to be closed."""


class ThreadWorkers(WorkersBase):
    """The thread workers of one Op; see `Workers`. `pool` has the workers that take jobs.

    `set_up` and `init_op` of the Op run in its first worker's thread.
    """

    keeps_progress: bool = True
    addressable: bool = True
    runs_slices: bool = True
    takes_convoys: bool = True
    visit_type: type[Item] | None = Item
    may_be_none: bool = False  # the model stays loaded

    def __init__(
        self,
        op: Op,
        count: int,
        loop: asyncio.AbstractEventLoop,
        inbox: LoopInbox,
        set_up: SetUp,
        owner: WorkersOwner,
    ) -> None:
        self.name: str = op.name
        self.pool: ThreadPool = ThreadPool(op.name, loop, inbox, owner, self)
        self.lender: Lender = self.pool
        self.submit: Callable[[Sequence[Any]], None] = self.pool.submit
        self._op = op
        self._wanted = count
        self._loop = loop
        self._inbox = inbox
        self._set_up = set_up
        self._owner = owner
        self._workers = self.pool.workers
        self._replaced = 0
        self._stuck: list[ThreadWorker] = []
        self._leaving: list[ThreadWorker] = []  # their threads have not ended
        self._lives: dict[int, int] = {}
        self._initialised: asyncio.Future[BoundOp] | None = None
        self._is_stopped = False
        self._model: Any = None  # loaded by this class

    @property
    def count(self) -> int:
        return len(self._workers)

    @property
    def is_ready(self) -> bool:
        return len(self._workers) >= self._wanted

    async def check_models(self) -> bool:
        models: LoopCaller | None = self._op.pipeline_models
        return models is None or models.check is None or await models.check.is_ready()

    def state(self) -> WorkersState:
        return WorkersState(
            kind="thread",
            wanted=self._wanted,
            up=len(self._workers),
            busy=max(0, len(self._workers) - len(self.pool.idle)),
            stuck=len(self._stuck),
            restarts=self._replaced,
        )

    @property
    def outage(self) -> PipelineError | None:
        if self._workers:
            return None
        return DeadlineError(
            f"[{self.name}] all workers hang in user code that cannot be interrupted. "
            "Restart the server, or run the Op in processes."
        )

    @property
    def numbers(self) -> Collection[int]:
        return [worker.number for worker in self._workers]

    async def add(self, numbers: Sequence[int]) -> None:
        assert self._initialised is not None, "they were started"
        bound = await self._initialised
        self._wanted += len(numbers)
        for number in numbers:
            self._add(BoundOp(bound.op, number, self._loop), number)

    def dismiss(self, numbers: Collection[int]) -> None:
        for worker in [candidate for candidate in self._workers if candidate.number in numbers]:
            self._workers.remove(worker)
            self._wanted -= 1
            self._leaving.append(worker)
            worker.is_leaving = True
            if self.pool.take_idle(worker):
                self._end_thread(worker)

    def _end_thread(self, worker: ThreadWorker) -> None:
        """Let the thread of a leaving worker end; other workers get its remaining jobs."""
        worker.thread.inbox.put(None)
        jobs, worker.addressed = worker.addressed, deque()
        self._pass_on(jobs)

    async def have_left(self, timeout_s: float) -> bool:
        ends = self._loop.time() + timeout_s
        while self._leaving:
            self._leaving = [worker for worker in self._leaving if worker.thread.is_alive()]
            if self._loop.time() >= ends:
                break
            await asyncio.sleep(_LOOK_S if self._leaving else 0)
        return not self._leaving

    async def start(self) -> None:
        self._initialised = self._loop.create_future()
        first = ThreadWorker(self.pool, None, 0)
        self._workers.append(first)
        # returns when the thread runs, so that the loop is not blocked
        await asyncio.to_thread(first.start)
        bound = await self._initialised
        for number in range(1, self._wanted):
            self._add(BoundOp(bound.op, number, self._loop), number)

    def initialise(self, worker: ThreadWorker) -> bool:
        """Set up the Op in the first worker's own thread; return whether that succeeded."""
        op = self._op
        try:
            client = op.client
            self._set_up(op, 0)
            if op.client is not client:
                self._model = predictor_of(op)
            if getattr(predictor_of(op), "holds_gil", False):  # a plug-in's predictor may lack it
                _LOGGER.warning(
                    "op.%s: its model blocks all other Python code of this process while it runs: "
                    "set op.%s.workers: process",
                    op.name,
                    op.name,
                )
            run_init_op(op, self._loop)
            self.pool.context = contextvars.copy_context()  # including what `init_op` set
            bound = BoundOp(op, 0, self._loop)
            worker.bind(bound)
            warm_up(bound, 0)
        except BaseException as error:  # user code; the start of the server fails with it
            detail = "".join(traceback.format_exception(error))
            failure = InitError(f"Op {op.name!r} failed to start: {described(error)}\n{detail}")
            self.pool.post(self._settle, None, failure)
            return False
        # Others are copied from an unused copy, because the first worker may be working already.
        self.pool.post(self._settle, BoundOp(op, 0, self._loop), None)
        return True

    def _settle(self, bound: BoundOp | None, failure: InitError | None) -> None:
        assert self._initialised is not None
        if self._initialised.done():
            return
        self.note: ModelMetadata | None = metadata_of(predictor_of(self._op))
        if bound is None:
            self._workers.clear()
            self._initialised.set_exception(failure or InitError(self.name))
        else:
            self.pool.idle.append(self._workers[0])
            self._initialised.set_result(bound)

    def lives(self) -> Mapping[int, int]:
        return {worker.number: self._lives.get(worker.number, 0) for worker in self._workers}

    def busy(self) -> Iterable[Worker]:
        candidates = (*self._workers, *self._leaving)
        return [worker for worker in candidates if worker.job is not None]

    def replace(self, worker: Worker, job: Job | None) -> bool:
        stuck = cast(ThreadWorker, worker)
        assert stuck.op is not None, "a worker that has a job has an Op"
        stuck.is_stuck = True
        (self._leaving if stuck.is_leaving else self._workers).remove(stuck)
        self._stuck.append(stuck)
        self._replaced += 1
        stuck.op.cancel()
        _LOGGER.warning(
            "[%s] worker %d is stuck: it was replaced (%d stuck now). A thread cannot be "
            "interrupted; run the Op in processes if this happens again.",
            self.name,
            stuck.op.worker,
            len(self._stuck),
        )
        is_replaced = len(self._stuck) <= _MAX_STUCK
        if not is_replaced:
            if isinstance(job, BatchRun):  # another worker may continue it
                job.take_along(stuck.op.state)
        elif not stuck.is_leaving:
            self._add(stuck.op.replacement(), stuck.op.worker, job)
        elif job is not None:
            self.submit([job])
        self._pass_on(stuck.addressed)
        if not is_replaced:
            self.fail_backlog()
            self._owner.workers_changed()
        self._inbox.drain()  # what the worker had sent comes before the error of what it had not
        return is_replaced

    def _pass_on(self, jobs: Iterable[Job | Trip]) -> None:
        """Pass a hanging worker's remaining jobs to others; fail jobs that only it could run."""
        for job in jobs:
            if isinstance(job, BatchRun) and job.places is not None:
                self._owner.lost(job, WorkerDiedError(f"[{self.name}] {_KEPT}"))
            else:
                self.submit([job])

    def fail_backlog(self) -> None:
        """Return the waiting jobs to their owner, if there is no worker left."""
        outage = self.outage
        while outage is not None and self.pool.backlog:
            self._owner.lost(self.pool.backlog.popleft(), outage)

    def on_worker_returned(self, worker: ThreadWorker, job: object) -> None:
        """End the thread of a worker that was given up, or leaves; fill its place if it is free."""
        if not worker.is_stuck:
            self._end_thread(worker)
            return
        worker.thread.inbox.put(None)
        self._stuck.remove(worker)
        if not self._is_stopped and len(self._workers) < self._wanted and worker.op is not None:
            self._add(worker.op.replacement(), worker.op.worker)
            self._owner.workers_changed()

    def _add(self, op: BoundOp, number: int, job: Job | None = None) -> None:
        worker = ThreadWorker(self.pool, op, number)
        self._workers.append(worker)
        self._lives[number] = self._lives.get(number, 0) + 1
        worker.start(job)
        if job is None:
            self.pool.make_idle(worker)

    async def _wait_for_jobs(self, ends: float) -> None:
        """Wait until no worker has a job: after its slice a generator may have to be closed."""
        started = self._initialised
        if started is None or not started.done() or started.cancelled():
            return
        while len(self.pool.idle) < len(self._workers):
            if time.monotonic() >= ends:
                return
            await asyncio.sleep(_LOOK_S)

    async def stop(self, timeout_s: float) -> int:
        self._is_stopped = True
        deadline = time.monotonic() + timeout_s
        await self._wait_for_jobs(deadline - timeout_s * _FOR_THE_ENDS)
        self.pool.close()
        candidates = [*self._workers, *self._stuck, *self._leaving]
        for worker in candidates:
            worker.thread.inbox.put(None)
        threads = [worker.thread for worker in candidates]

        def join_all() -> None:
            for thread in threads:
                if thread.ident is not None:
                    thread.join(max(0.0, deadline - time.monotonic()))
            if threads and not any(thread.is_alive() for thread in threads):
                end_op(self._op)
                close = getattr(self._model, "close", None)  # a script's own model may have none
                # otherwise the garbage collector frees it, and blocks all threads
                if close is not None:
                    close()

        await asyncio.to_thread(join_all)
        self._workers.clear()
        return sum(thread.is_alive() for thread in threads)
