"""Thread workers: each works on its own copy of the Op.

The loop hands a job to the worker that became idle last, which is the one most likely to be
awake still. Jobs for which no worker is idle wait in a backlog, from which workers help
themselves without a word to the loop; so do quick jobs while any worker is up, since waking
another thread takes longer than they do. (All waiting on one `SimpleQueue` would wake another
worker with every job that is taken.)
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import Any, cast

from pipeline.engine.batch_run import BatchRun
from pipeline.engine.bound_op import BoundOp, run_init_op
from pipeline.engine.payload import LOCAL, MemoryDomain
from pipeline.engine.state import WorkersState
from pipeline.engine.walk import Walk
from pipeline.engine.worker_api import Job, Owner, SetUp, Worker, WorkerContext
from pipeline.errors import DeadlineError, InitError, PipelineError, described
from pipeline.op import Op, predictor_of
from pipeline.predictors.metadata import ModelMetadata, metadata_of

_LOGGER = logging.getLogger(__name__)

_QUICK_NS = 100_000  # a job that takes less costs less than waking another thread for it
_RESCUE_S = 0.002  # for jobs that were left to a busy worker which then takes its time
_MAX_STUCK = 32  # threads that may hang at once before an Op gives up replacing them
_EXCHANGE = threading.Lock()  # held while two workers exchange their threads


class ThreadWorker:
    """One copy of the Op, and the thread that works with it; another one may borrow it meanwhile.

    The loop reads `job` and `call_started`; only the thread that runs the copy writes them.
    """

    def __init__(self, pool: ThreadWorkers, op: BoundOp | None, number: int) -> None:
        self.pool: ThreadWorkers = pool
        self.op: BoundOp | None = op
        self.number: int = number
        self.addressed: deque[Job | Walk] = deque()  # for this worker alone, which is busy
        self.job: Any = None
        self.call_started: float | None = None
        self.is_stuck: bool = False
        self.began_ns: int = 0
        self.took_ns: int = 0
        # What its Op sets in it, such as numpy's print options, no other Op sees.
        self.context: contextvars.Context = pool.context.copy()
        self.thread: WorkerThread = WorkerThread(self)

    @property
    def job_started(self) -> float | None:
        return self.began_ns / 1e9 or None

    def start(self, job: Job | None = None) -> None:
        self.job = job
        self.thread.start()

    def call_begins(self) -> None:
        self.call_started = time.monotonic()

    def call_ends(self) -> None:
        self.call_started = None

    def perform(self, run: Any, now_ns: int, clock_ns: Callable[[], int]) -> None:
        """Run a job, in whatever thread."""
        assert self.op is not None, "only workers that have one are idle"
        self.began_ns = now_ns
        self.job = run
        self.context.run(run.run, self.op, self, clock_ns)


class WorkerThread(threading.Thread):
    """One thread: waits at its inbox for the jobs of its worker.

    On a walk it runs the copies of other workers, too. If it takes too long there, it becomes the
    thread of the worker that it is busy with, and that one's takes its place; see `part`.
    """

    def __init__(self, worker: ThreadWorker) -> None:
        name = f"pipeline-{worker.pool.name}-{worker.number}"
        super().__init__(name=name, daemon=True)
        self.worker: ThreadWorker = worker
        self.inbox: SimpleQueue[Job | Walk | None] = SimpleQueue()

    def run(self) -> None:
        worker = self.worker
        if worker.op is None and not worker.context.run(worker.pool.initialise, worker):
            return
        clock_ns = time.monotonic_ns
        job = worker.job or self.inbox.get()
        worker = self.worker  # it may be another one by now
        while job is not None:
            if isinstance(job, Walk):
                worker.job = job
                worker.began_ns = clock_ns()
                if not job.go(worker, clock_ns):
                    with _EXCHANGE:  # who took the walk may be at it still
                        worker = self.worker
                    job = worker.job
                    assert job is not None, "it is what has just run"
            else:
                worker.perform(job, clock_ns(), clock_ns)
            worker.took_ns = clock_ns() - worker.began_ns
            worker.job = None
            pool = worker.pool
            has_more = (worker.addressed or pool.backlog) and not worker.is_stuck
            following = pool.next_job(worker) if has_more else None
            if following is not None:
                pool.post(pool.on_done_busy, worker, job)
                job = following
            else:
                pool.post(pool.on_done_idle, worker, job)
                job = self.inbox.get()
                worker = self.worker


class LoopInbox:
    """Way of the workers to the event loop: runs callbacks there that any thread may post.

    While a wake-up is on its way further messages join it, so that a busy server pays for one
    wake-up per loop iteration, not per message.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, after: Callable[[], None]) -> None:
        self._loop = loop
        self._after = after
        self._messages: deque[tuple[Callable[..., None], object, object]] = deque()
        self._is_scheduled = False

    def post(self, callback: Callable[..., None], first: object, second: object) -> None:
        """Have `callback(first, second)` called on the loop.

        Thread-safe; dropped when the loop is closed.
        """
        self._messages.append((callback, first, second))
        if not self._is_scheduled:
            self._is_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop is closed: a thread that was stuck came back late
                self._messages.clear()

    def _drain(self) -> None:
        # First the flag, then the messages: one posted in between schedules another drain.
        self._is_scheduled = False
        messages = self._messages
        for _ in range(len(messages)):
            callback, first, second = messages.popleft()
            callback(first, second)
        if messages and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._drain)
        self._after()


class ThreadKind:
    """Threads of the server's process, which share one inbox of its loop; see `WorkerKind`."""

    def __init__(self, ops: Sequence[Op], context: WorkerContext) -> None:
        self._set_up = context.set_up

    def fork(self) -> None:
        """Threads are not forked."""

    def attach(self, loop: asyncio.AbstractEventLoop, schedule: Callable[[], None]) -> None:
        self._loop = loop
        self._inbox = LoopInbox(loop, after=schedule)

    def workers(self, op: Op, count: int, owner: Owner) -> ThreadWorkers:
        return ThreadWorkers(op, count, self._loop, self._inbox, self._set_up, owner)

    async def close(self) -> None:
        """Threads have nothing in common that ends."""


class ThreadWorkers:
    """The thread workers of one Op; see `Workers`.

    `set_up` and `init_op` of the Op run in its first worker's thread.
    """

    def __init__(
        self,
        op: Op,
        count: int,
        loop: asyncio.AbstractEventLoop,
        inbox: LoopInbox,
        set_up: SetUp,
        owner: Owner,
    ) -> None:
        self.name: str = op.name
        self.post: Callable[..., None] = inbox.post
        self.memory_domain: MemoryDomain = LOCAL
        self.keeps_progress: bool = True
        self.addressable: bool = True
        self.replaced: int = 0
        self.note: ModelMetadata | None = None
        self._op = op
        self._wanted = count
        self._loop = loop
        self._set_up = set_up
        self._owner = owner
        self._workers: list[ThreadWorker] = []
        self._idle: list[ThreadWorker] = []
        self.backlog: deque[Job | Walk] = deque()
        self._usual_ns = float(_QUICK_NS)
        self._rescue: asyncio.TimerHandle | None = None
        self._stuck: list[ThreadWorker] = []
        self._initialised: asyncio.Future[BoundOp] | None = None
        self._is_stopped = False
        # What the server's starter set for itself, such as numpy's print options, holds for its
        # workers: to the user both are one program.
        self.context: contextvars.Context = contextvars.copy_context()

    @property
    def count(self) -> int:
        return len(self._workers)

    @property
    def is_ready(self) -> bool:
        return len(self._workers) >= self._wanted

    def state(self) -> WorkersState:
        return WorkersState(
            kind="thread",
            wanted=self._wanted,
            up=len(self._workers),
            busy=sum(worker.job is not None for worker in self._workers),
            stuck=len(self._stuck),
            restarts=self.replaced,
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
    def stuck(self) -> int:
        """Workers that were given up and have not come back."""
        return len(self._stuck)

    async def start(self) -> None:
        self._initialised = self._loop.create_future()
        first = ThreadWorker(self, None, 0)
        self._workers.append(first)
        first.start()
        bound = await self._initialised
        for number in range(1, self._wanted):
            self._add(BoundOp(bound.op, number, self._loop), number)

    def initialise(self, worker: ThreadWorker) -> bool:
        """Set up the Op in the first worker's own thread; False if that failed."""
        op = self._op
        try:
            self._set_up(op, 0)
            if getattr(predictor_of(op), "holds_gil", False):
                _LOGGER.warning(
                    "op.%s: its model keeps all other Python code of this process waiting while "
                    "it runs: set op.%s.workers: process",
                    op.name,
                    op.name,
                )
            run_init_op(op, self._loop)
            self.context = contextvars.copy_context()  # with what `init_op` set
            worker.op = BoundOp(op, 0, self._loop)
        except BaseException as error:  # user code; the start of the server fails with it
            detail = "".join(traceback.format_exception(error))
            failure = InitError(f"Op {op.name!r} failed to start: {described(error)}\n{detail}")
            self.post(self._settle, None, failure)
            return False
        # Others copy from an untouched copy: the first worker may be at work by then.
        self.post(self._settle, BoundOp(op, 0, self._loop), None)
        return True

    def _settle(self, bound: BoundOp | None, failure: InitError | None) -> None:
        assert self._initialised is not None
        if self._initialised.done():
            return
        self.note = metadata_of(predictor_of(self._op))
        if bound is None:
            self._workers.clear()
            self._initialised.set_exception(failure or InitError(self.name))
        else:
            self._idle.append(self._workers[0])
            self._initialised.set_result(bound)

    def submit(self, jobs: Sequence[Job | Walk]) -> None:
        for job in jobs:
            self._submit(job)

    def _submit(self, job: Job | Walk) -> None:
        if job.worker is not None and self._address(job, job.worker):
            return
        is_somebody_up = len(self._idle) < len(self._workers)
        if is_somebody_up and self._usual_ns < _QUICK_NS:
            self.backlog.append(job)
            if self._idle and self._rescue is None:
                self._rescue = self._loop.call_later(_RESCUE_S, self._wake_for_backlog)
            return
        try:
            self._idle.pop().thread.inbox.put(job)
        except IndexError:
            self.backlog.append(job)
            self._employ_idle()  # somebody may have become idle in between

    def _address(self, job: Job | Walk, number: int) -> bool:
        """Give a job to the worker with this number; False: there is none now, any will do."""
        worker = next((worker for worker in self._workers if worker.number == number), None)
        if worker is None:
            return False
        worker.addressed.append(job)
        if self._take_idle(worker):
            self.make_idle(worker)
        return True

    def _wake_for_backlog(self) -> None:
        """Wake others, as the worker that was to take the backlog is slower than usual."""
        self._rescue = None
        self._employ_idle()

    def next_job(self, worker: ThreadWorker) -> Job | Walk | None:
        """Return a job for `worker`, if there is one. Called by the workers, too."""
        try:
            return worker.addressed.popleft() if worker.addressed else self.backlog.popleft()
        except IndexError:
            return None

    def on_done_busy(self, worker: ThreadWorker, job: Job | Walk) -> None:
        """`worker` is done with `job`; it has taken another, or was looked after already."""
        self._usual_ns += (worker.took_ns - self._usual_ns) / 16
        self._owner.done(worker, job)

    def on_done_idle(self, worker: ThreadWorker, job: Job | Walk) -> None:
        """`worker` is done with `job` and found no other."""
        if worker.is_stuck:
            self._on_recovered(worker)
        else:
            self.make_idle(worker)
        self.on_done_busy(worker, job)

    # Idle workers: any thread takes them and gives them back. Who takes one has it alone; who
    # adds a job, or a worker, looks for the other afterwards, so that both never wait.

    def make_idle(self, worker: ThreadWorker) -> None:
        """Have a worker take what waits for it, or be idle. In any thread, as the next ones."""
        while True:
            if worker.addressed or self.backlog:
                job = self.next_job(worker)
                if job is not None:
                    worker.thread.inbox.put(job)
                    return
            self._idle.append(worker)
            if not (worker.addressed or self.backlog) or not self._take_idle(worker):
                return

    def _employ_idle(self) -> None:
        """Wake as many idle workers as there are jobs for."""
        while self.backlog:
            try:
                worker = self._idle.pop()
            except IndexError:
                return
            self.make_idle(worker)

    def _take_idle(self, worker: ThreadWorker) -> bool:
        """Take this worker, if it is idle."""
        try:
            self._idle.remove(worker)
        except ValueError:
            return False
        return True

    def borrow(self) -> ThreadWorker | None:
        if self.backlog:  # it has waited longer
            return None
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def give_back(self, worker: ThreadWorker) -> None:
        worker.job = None
        self._idle.append(worker)
        if (worker.addressed or self.backlog) and self._take_idle(worker):
            self.make_idle(worker)

    def part(self, walk: Walk) -> tuple[int, Any, BatchRun] | None:
        with _EXCHANGE:
            found = walk.take_out()
            if found is None:
                return None
            place, worker, run = found
            worker.job = run
            walker = walk.walker
            if place:
                walker.thread, worker.thread = worker.thread, walker.thread
                walker.thread.worker, worker.thread.worker = walker, worker
                walker.job = None
        if place:
            self.make_idle(walker)
        return place, worker, run

    def states(self) -> Iterable[dict[str, Any]]:
        return [worker.op.state for worker in self._workers if worker.op is not None]

    def busy(self) -> Iterable[Worker]:
        return [worker for worker in self._workers if worker.job is not None]

    def replace(self, worker: Worker, job: Job | None) -> bool:
        stuck = cast(ThreadWorker, worker)
        assert stuck.op is not None, "a worker that has a job has an Op"
        stuck.is_stuck = True
        self._workers.remove(stuck)
        self._stuck.append(stuck)
        self.replaced += 1
        stuck.op.cancel()
        addressed = list(stuck.addressed)
        stuck.addressed.clear()
        _LOGGER.warning(
            "[%s] worker %d is stuck: it was replaced (%d stuck now). A thread cannot be "
            "interrupted; run the Op in processes if this goes on.",
            self.name,
            stuck.op.worker,
            len(self._stuck),
        )
        if len(self._stuck) > _MAX_STUCK:
            if isinstance(job, BatchRun):  # another worker may go on with it
                job.take_along(stuck.op.state)
            self.submit(addressed)
            self._fail_backlog()
            self._owner.workers_changed()
            return False
        self._add(stuck.op.replacement(), stuck.op.worker, job)
        self.submit(addressed)
        return True

    def forget(self, data_id: int) -> None:
        """Threads see their requests themselves."""

    def _fail_backlog(self) -> None:
        """Give back what no worker will take, if there is none left."""
        outage = self.outage
        while outage is not None and self.backlog:
            self._owner.lost(self.backlog.popleft(), outage)

    def _on_recovered(self, worker: ThreadWorker) -> None:
        """Fill the place of a worker that was given up and came back after all, if it is free."""
        worker.thread.inbox.put(None)
        self._stuck.remove(worker)
        if not self._is_stopped and len(self._workers) < self._wanted and worker.op is not None:
            self._add(worker.op.replacement(), worker.op.worker)
            self._owner.workers_changed()

    def _add(self, op: BoundOp, number: int, job: Job | None = None) -> None:
        worker = ThreadWorker(self, op, number)
        self._workers.append(worker)
        worker.start(job)
        if job is None:
            self.make_idle(worker)

    async def stop(self, timeout_s: float) -> int:
        self._is_stopped = True
        if self._rescue is not None:
            self._rescue.cancel()
        everybody = [*self._workers, *self._stuck]
        for worker in everybody:
            worker.thread.inbox.put(None)
        threads = [worker.thread for worker in everybody]
        deadline = time.monotonic() + timeout_s

        def join_all() -> None:
            for thread in threads:
                if thread.ident is not None:
                    thread.join(max(0.0, deadline - time.monotonic()))

        await asyncio.to_thread(join_all)
        self._workers.clear()
        return sum(thread.is_alive() for thread in threads)
