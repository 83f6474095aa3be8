"""ThreadPool: threads and the jobs that wait for them; ThreadWorker: one copy of an Op.

The loop hands a job to the worker that became idle last, because its thread is most likely still
awake. Jobs without an idle worker wait in a backlog, which workers empty by themselves, without the
loop; so do quick jobs while any worker runs, because to wake another thread takes longer than the
job. (If all threads waited on one `SimpleQueue`, each taken job would wake another worker.)
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

_QUICK_NS = 100_000  # to wake another thread costs more than such a job
_RESCUE_S = 0.002  # for jobs that were left to a busy worker which is slower than usual

EXCHANGE = threading.Lock()
"""Held while two workers exchange their threads."""


class Supervisor(Protocol):
    """Starts, replaces and dismisses the workers of a pool."""

    def initialise(self, worker: ThreadWorker) -> bool:
        """Set up the Op in the first worker's own thread; return whether that succeeded."""

    def on_worker_returned(self, worker: ThreadWorker, job: Job | Trip | None) -> None:
        """Handle the last job of a worker that was abandoned or leaves: it has returned."""

    def fail_backlog(self) -> None:
        """Fail the waiting jobs if no worker is left."""


class ThreadPool:
    """The threads of one Op that take jobs: which are idle, and which jobs wait; see `Lender`.

    Any thread may take an idle worker, and then has exclusive use of it. After adding a job, a
    thread looks for an idle worker; after adding an idle worker, it looks for a job. So a job and a
    worker never both wait.

    Attributes:
        workers: all workers that take jobs.
        idle: the idle workers. The list is never replaced, because trips refer to it.
        backlog: jobs that wait for any worker.
        owner: owner of the jobs.
        context: initial context of a new worker. Settings of the script that starts the server,
            such as numpy's print options, also apply in its workers: to the user both are one
            program.
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
        """Cancel the timer."""
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
                self._employ_idle()  # a worker may have become idle in between
                if not self.workers:
                    self.supervisor.fail_backlog()

    def _address(self, job: Job | Trip, number: int) -> bool:
        """Give a job to the worker with this number; False: it does not exist now."""
        worker = next((worker for worker in self.workers if worker.number == number), None)
        if worker is None:
            return False
        worker.addressed.append(job)
        if self.take_idle(worker):
            self.make_idle(worker)
        return True

    def _wake_for_backlog(self) -> None:
        """Wake other workers, because the one that should take the backlog is slower than usual."""
        self._rescue = None
        self._employ_idle()

    def next_job(self, worker: ThreadWorker) -> Job | Trip | None:
        """Return a job for `worker`, if there is one. Also called by the workers.

        Jobs for this worker alone and jobs for any worker take turns.
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
        """Pass on the parts of a run; later parts are reported again."""
        run.is_notified = False
        cast(StreamOwner, self.owner).parts(run, together(run.outbox))

    def on_done_busy(self, worker: ThreadWorker, job: Job | Trip) -> None:
        """Take a finished `job`; `worker` has taken another, or is handled already."""
        self._usual_ns += (worker.took_ns - self._usual_ns) / 16
        self.owner.done(worker, job)

    def on_done_idle(self, worker: ThreadWorker, job: Job | Trip) -> None:
        """Take a finished `job`; `worker` found no other."""
        if worker.is_stuck or worker.is_leaving:
            self.supervisor.on_worker_returned(worker, job)
        elif worker.addressed or self.backlog:
            self.make_idle(worker)
        else:  # jobs are added on the loop only, where this runs
            self.idle.append(worker)
        self._usual_ns += (worker.took_ns - self._usual_ns) / 16  # repeated here to save a call
        self.owner.done(worker, job)

    def make_idle(self, worker: ThreadWorker) -> None:
        """Let a worker take a waiting job, or become idle. In any thread, as the next ones."""
        while True:
            if worker.addressed or self.backlog:
                job = self.next_job(worker)
                if job is not None:
                    worker.thread.inbox.put(job)
                    return
            self.idle.append(worker)
            if worker.is_leaving and self.take_idle(worker):
                self.post(self.supervisor.on_worker_returned, worker, None)
                return
            if not (worker.addressed or self.backlog) or not self.take_idle(worker):
                return

    def _employ_idle(self) -> None:
        """Wake as many idle workers as there are jobs."""
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
    """One copy of the Op, and the thread that runs it; another thread may borrow it.

    The loop reads `job` and `call_started`; only the thread that runs the copy writes them.
    """

    def __init__(self, pool: ThreadPool, op: BoundOp | None, number: int) -> None:
        self.pool: ThreadPool = pool
        self.number: int = number
        self.addressed: deque[Job | Trip] = deque()  # for this worker alone, while it is busy
        self.ran_addressed: bool = False
        self.job: Any = None
        self.call_started: float | None = None
        self.is_stuck: bool = False
        self.is_leaving: bool = False
        self.began_ns: int = 0
        self.took_ns: int = 0
        # Each worker has its own context: settings that an Op makes, such as numpy's print options,
        # are not visible to other Ops.
        self.context: contextvars.Context = pool.context.copy()
        self.op: BoundOp | None = None
        self.visit: Callable[..., Any]
        if op is not None:
            self.bind(op)
        self.thread: WorkerThread = WorkerThread(self)

    def bind(self, op: BoundOp) -> None:
        """Use this copy from now on; `visit` is `op.plain` in the worker's context."""
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
        if run.reports_steps:  # they are grouped already
            post = pool.post_soon if run.may_wait else pool.post
            post(cast(StreamOwner, pool.owner).parts, run, entries)
            return
        run.outbox += entries
        if not run.is_notified:
            run.is_notified = True
            pool.post(pool.on_outbox, run, None)

    def perform(self, run: Any, clock_ns: Callable[[], int]) -> None:
        """Run a step, in any thread; `job` is set, and may have been replaced."""
        assert self.op is not None, "only workers that have one are idle"
        self.context.run(run.run, self.op, self, clock_ns)


class WorkerThread(threading.Thread):
    """One thread, which waits at its inbox for the jobs of its worker.

    On a trip it also runs the copies of other workers. If it takes too long there, it becomes the
    thread of the worker that it is running, and that worker's thread takes its place; see `part`.
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
        worker = self.worker  # a trip may have changed it
        while job is not None:
            if isinstance(job, Trip):
                worker.job = job
                worker.began_ns = clock_ns()
                if not job.go(worker, clock_ns):
                    with EXCHANGE:  # the thread that took the trip may still be changing it
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
                job = None  # free large data while the thread waits
                job = self.inbox.get()
                worker = self.worker
