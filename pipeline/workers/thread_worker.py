"""ThreadWorker: one copy of an Op; and WorkerThread, which works with it."""

from __future__ import annotations

import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.streams.run import Entry, StreamRun
from pipeline.engine.trips.trip import Trip
from pipeline.engine.worker_api import Job

if TYPE_CHECKING:
    from pipeline.workers.thread import ThreadWorkers

EXCHANGE = threading.Lock()
"""Held while two workers exchange their threads."""


class ThreadWorker:
    """One copy of the Op, and the thread that works with it; another one may borrow it meanwhile.

    The loop reads `job` and `call_started`; only the thread that runs the copy writes them.
    """

    def __init__(self, pool: ThreadWorkers, op: BoundOp | None, number: int) -> None:
        self.pool: ThreadWorkers = pool
        self.op: BoundOp | None = op
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
        self.enter: Callable[..., Any] = self.context.run
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

    def yielded(self, run: StreamRun, entries: Sequence[Entry]) -> None:
        post = self.pool.post_soon if getattr(entries, "may_wait", False) else self.pool.post
        post(self.pool.on_parts, run, entries)

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
        if worker.op is None and not worker.context.run(worker.pool.initialise, worker):
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
                job = self.inbox.get()
                worker = self.worker
