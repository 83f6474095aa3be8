"""ThreadPool: threads and the jobs that wait for them; ThreadWorker: one copy of an Op.

The loop hands a job to the worker that became idle last, which is the one most likely to be
awake still. Jobs for which no worker is idle wait in a backlog, from which workers help
themselves without a word to the loop; so do quick jobs while any worker is up, since waking
another thread takes longer than they do. (All waiting on one `SimpleQueue` would wake another
worker with every job that is taken.)
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, cast

from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.streams.flow import together
from pipeline.engine.streams.run import Entry, StreamRun
from pipeline.engine.trips.trip import Trip
from pipeline.engine.worker_api import Borrower, Job, StreamOwner, WorkersOwner
from pipeline.workers.inbox import LoopInbox

_QUICK_NS = 100_000  # a job that takes less costs less than waking another thread for it
_RESCUE_S = 0.002  # for jobs that were left to a busy worker which then takes its time

EXCHANGE = threading.Lock()
"""Held while two workers exchange their threads."""


class Supervisor(Protocol):
    """Looks after the workers of a pool: starts, replaces and dismisses them."""

    def initialise(self, worker: ThreadWorker) -> bool:
        """Set up the Op in the first worker's own thread; False if that failed."""

    def came_back(self, worker: ThreadWorker, job: Job | Trip | None) -> None:
        """Take note that a worker that was given up, or leaves, is done with its last job."""

    def fail_backlog(self) -> None:
        """Give back what no worker will take, if there is none left."""


class ThreadPool:
    """The threads of one Op that take jobs: which are idle, and which jobs wait; see `Lender`.

    Any thread takes idle workers and gives them back. Who takes one has it alone; who adds a job,
    or a worker, looks for the other afterwards, so that both never wait.

    Attributes:
        workers: those that take jobs.
        idle: of these; the same list for ever, as trips have it.
        backlog: jobs that wait for any of them.
        owner: of the jobs.
        context: what a new worker begins with. What the server's starter set for itself, such as
            numpy's print options, holds for its workers: to the user both are one program.
    """

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        inbox: LoopInbox,
        owner: WorkersOwner,
        supervisor: Supervisor,
    ) -> None:
        self.name: str = name
        self.post: Callable[..., None] = inbox.post
        self.post_soon: Callable[..., None] = inbox.post_soon
        self.supervisor: Supervisor = supervisor
        self.workers: list[ThreadWorker] = []
        self.idle: list[ThreadWorker] = []
        self.backlog: deque[Job | Trip] = deque()
        self.context: contextvars.Context = contextvars.copy_context()
        self._loop = loop
        self.owner: WorkersOwner = owner
        self._usual_ns = float(_QUICK_NS)
        self._rescue: asyncio.TimerHandle | None = None

    def states(self) -> Iterable[dict[str, Any]]:
        return [worker.op.state for worker in self.workers if worker.op is not None]

    def close(self) -> None:
        """Wake nobody any more."""
        if self._rescue is not None:
            self._rescue.cancel()

    def submit(self, jobs: Sequence[Job | Trip]) -> None:
        for job in jobs:
            if job.worker is not None and self._address(job, job.worker):
                continue
            if self._usual_ns < _QUICK_NS and len(self.idle) < len(self.workers):
                self.backlog.append(job)
                if self.idle and self._rescue is None:
                    self._rescue = self._loop.call_later(_RESCUE_S, self._wake_for_backlog)
                continue
            try:
                self.idle.pop().thread.inbox.put(job)
            except IndexError:
                self.backlog.append(job)
                self._employ_idle()  # somebody may have become idle in between
                if not self.workers:
                    self.supervisor.fail_backlog()

    def _address(self, job: Job | Trip, number: int) -> bool:
        """Give a job to the worker with this number; False: there is none now, any will do."""
        worker = next((worker for worker in self.workers if worker.number == number), None)
        if worker is None:
            return False
        worker.addressed.append(job)
        if self.take_idle(worker):
            self.make_idle(worker)
        return True

    def _wake_for_backlog(self) -> None:
        """Wake others, as the worker that was to take the backlog is slower than usual."""
        self._rescue = None
        self._employ_idle()

    def next_job(self, worker: ThreadWorker) -> Job | Trip | None:
        """Return a job for `worker`, if there is one. Called by the workers, too.

        What is for it alone and what is for any of them have turns.
        """
        if worker.addressed and not (worker.ran_addressed and self.backlog):
            worker.ran_addressed = True
            return worker.addressed.popleft()
        worker.ran_addressed = False
        try:
            return self.backlog.popleft()
        except IndexError:
            return worker.addressed.popleft() if worker.addressed else None

    def on_outbox(self, run: StreamRun, _: None) -> None:
        """Pass on what a run has made; what is added to it from now on is told anew."""
        run.is_notified = False
        cast(StreamOwner, self.owner).parts(run, together(run.outbox))

    def on_done_busy(self, worker: ThreadWorker, job: Job | Trip) -> None:
        """`worker` is done with `job`; it has taken another, or was looked after already."""
        self._usual_ns += (worker.took_ns - self._usual_ns) / 16
        self.owner.done(worker, job)

    def on_done_idle(self, worker: ThreadWorker, job: Job | Trip) -> None:
        """`worker` is done with `job` and found no other."""
        if worker.is_stuck or worker.is_leaving:
            self.supervisor.came_back(worker, job)
        elif worker.addressed or self.backlog:
            self.make_idle(worker)
        else:  # jobs are added on the loop only, as this is
            self.idle.append(worker)
        self._usual_ns += (worker.took_ns - self._usual_ns) / 16  # written again: a call less
        self.owner.done(worker, job)

    def make_idle(self, worker: ThreadWorker) -> None:
        """Have a worker take what waits for it, or be idle. In any thread, as the next ones."""
        while True:
            if worker.addressed or self.backlog:
                job = self.next_job(worker)
                if job is not None:
                    worker.thread.inbox.put(job)
                    return
            self.idle.append(worker)
            if worker.is_leaving and self.take_idle(worker):
                self.post(self.supervisor.came_back, worker, None)
                return
            if not (worker.addressed or self.backlog) or not self.take_idle(worker):
                return

    def _employ_idle(self) -> None:
        """Wake as many idle workers as there are jobs for."""
        while self.backlog:
            try:
                worker = self.idle.pop()
            except IndexError:
                return
            self.make_idle(worker)

    def take_idle(self, worker: ThreadWorker) -> bool:
        try:
            self.idle.remove(worker)
        except ValueError:
            return False
        return True

    def employ(self, worker: ThreadWorker) -> None:
        if self.take_idle(worker):
            self.make_idle(worker)

    def part(self, trip: Borrower) -> tuple[int, Any, Any] | None:
        with EXCHANGE:
            left = trip.take_out()
            if left is None:
                return None
            place, worker, run = left
            worker.job = run
            walker = trip.walker
            if place:
                worker.began_ns = trip.step_ns
                walker.thread, worker.thread = worker.thread, walker.thread
                walker.thread.worker, worker.thread.worker = walker, worker
                walker.job = None
        if place:
            self.make_idle(walker)
        return place, worker, run


class ThreadWorker:
    """One copy of the Op, and the thread that works with it; another one may borrow it meanwhile.

    The loop reads `job` and `call_started`; only the thread that runs the copy writes them.
    """

    def __init__(self, pool: ThreadPool, op: BoundOp | None, number: int) -> None:
        self.pool: ThreadPool = pool
        self.number: int = number
        self.addressed: deque[Job | Trip] = deque()  # for this worker alone, which is busy
        self.ran_addressed: bool = False
        self.job: Any = None
        self.call_started: float | None = None
        self.is_stuck: bool = False
        self.is_leaving: bool = False
        self.began_ns: int = 0
        self.took_ns: int = 0
        # What its Op sets in it, such as numpy's print options, no other Op sees.
        self.context: contextvars.Context = pool.context.copy()
        self.op: BoundOp | None = None
        self.visit: Callable[..., Any]
        if op is not None:
            self.bind(op)
        self.thread: WorkerThread = WorkerThread(self)

    def bind(self, op: BoundOp) -> None:
        """Work with this copy from now on; `visit` is `op.plain` as all its code is to run."""
        run: Callable[..., Any] = self.context.run
        self.op, self.visit = op, partial(run, op.plain)

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

    def yielded(self, run: StreamRun, entries: Sequence[Entry]) -> None:
        pool = self.pool
        if run.reports_steps:  # they are together
            post = pool.post_soon if run.may_wait else pool.post
            post(cast(StreamOwner, pool.owner).parts, run, entries)
            return
        run.outbox += entries
        if not run.is_notified:
            run.is_notified = True
            pool.post(pool.on_outbox, run, None)

    def perform(self, run: Any, clock_ns: Callable[[], int]) -> None:
        """Run a step, in whatever thread; `job` is set, and may have become another one."""
        assert self.op is not None, "only workers that have one are idle"
        self.context.run(run.run, self.op, self, clock_ns)


class WorkerThread(threading.Thread):
    """One thread: waits at its inbox for the jobs of its worker.

    On a trip it runs the copies of other workers, too. If it takes too long there, it becomes the
    thread of the worker that it is busy with, and that one's takes its place; see `part`.
    """

    def __init__(self, worker: ThreadWorker) -> None:
        name = f"pipeline-{worker.pool.name}-{worker.number}"
        super().__init__(name=name, daemon=True)
        self.worker: ThreadWorker = worker
        self.inbox: SimpleQueue[Job | Trip | None] = SimpleQueue()

    def run(self) -> None:
        worker = self.worker
        if worker.op is None and not worker.context.run(worker.pool.supervisor.initialise, worker):
            return
        clock_ns = time.monotonic_ns
        job: Any = worker.job or self.inbox.get()
        worker = self.worker  # it may be another one by now
        while job is not None:
            if isinstance(job, Trip):
                worker.job = job
                worker.began_ns = clock_ns()
                if not job.go(worker, clock_ns):
                    with EXCHANGE:  # who took the trip may be at it still
                        worker = self.worker
                    job = worker.job
                    assert job is not None, "it is what has just run"
            else:
                worker.job = job
                worker.began_ns = clock_ns()
                worker.context.run(job.run, worker.op, worker, clock_ns)
            worker.took_ns = clock_ns() - worker.began_ns
            worker.job = None
            pool = worker.pool
            has_more = (worker.addressed or pool.backlog) and not (
                worker.is_stuck or worker.is_leaving
            )
            following = pool.next_job(worker) if has_more else None
            if following is not None:
                pool.post(pool.on_done_busy, worker, job)
                job = following
            else:
                pool.post(pool.on_done_idle, worker, job)
                job = None  # what was large in it is not kept until there is another one
                job = self.inbox.get()
                worker = self.worker
