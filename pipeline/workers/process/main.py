"""Main function of a worker process: one Op, one batch after the other."""

from __future__ import annotations

import contextlib
import inspect
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from pipeline.data import NO_INFO, RequestInfo
from pipeline.engine.batch_run import BatchRun
from pipeline.engine.bound_op import BoundOp, run_init_op
from pipeline.errors import (
    OverloadedError,
    PayloadTypeError,
    PipelineError,
    described,
    error_to_fields,
    utf8_text,
)
from pipeline.op import Op, predictor_of
from pipeline.predictors.metadata import metadata_of
from pipeline.system.event_loop import LoopThread
from pipeline.workers.process.wire import (
    ErrorFields,
    Init,
    ItemOutcome,
    Result,
    WireItem,
    WireJob,
    WorkerLink,
    WorkerReport,
)
from pipeline.workers.shm.arena import Arena, RegionAllocator
from pipeline.workers.shm.payload import deserialize, serialize

SendRecord = Callable[[bytes], None]

_QUICK_NS = 100_000  # results of jobs that take less may wait for the next one's,
_MAX_HOLD_NS = 200_000  # ... but no longer than this,
_MIN_QUICK_JOBS = 100  # ... and only after so many: behind a slow one they would wait as long
_STAGES = ("init_op", "preprocess", "process", "postprocess")


class StatusPage:
    """State of a worker that the server can read at any time: a few numbers in shared memory.

    The worker writes, the server reads: also when the worker hangs, is stopped, or is dead. The
    other way round it is for `revoked`: the server wants back what the worker has not begun.
    """

    def __init__(self, region: memoryview) -> None:
        self._cells = region[:40].cast("d")

    @property
    def job(self) -> int:
        """Number of the job that it works on; 0 for none."""
        return int(self._cells[0])

    @property
    def job_started(self) -> float | None:
        """`time.monotonic` of when it took the job up."""
        return self._cells[1] or None

    @property
    def call_started(self) -> float | None:
        """`time.monotonic` of the running call of `process`."""
        return self._cells[2] or None

    def revoke(self, job: int) -> int:
        """Call back all jobs up to this one that were not begun.

        Returns the highest number of a job that the worker began, or saw to be revoked.

        Each side writes before it reads: a job that both take for the other's does not exist.
        One that the worker sees revoked and the server sees begun does; the worker reports it.
        """
        self._cells[4] = job
        return int(self._cells[3])

    def begins(self, job: int) -> bool:
        """Take note that a job begins; return False if it was revoked."""
        self._cells[1] = time.monotonic()
        self._cells[0] = self._cells[3] = job
        return job > self._cells[4]

    def ends(self) -> None:
        self._cells[0] = self._cells[1] = self._cells[2] = 0.0

    def call_begins(self) -> None:
        self._cells[2] = time.monotonic()

    def call_ends(self) -> None:
        self._cells[2] = 0.0


class ForgottenRequests:
    """The requests that nobody waits for any more, of late: a page of shared memory.

    The server writes, its workers read, where a hook asks. Each request has its own cell, which
    it shares with every 512th: in the time that one of them is worked on as few others begin.
    """

    def __init__(self, region: memoryview) -> None:
        self._cells = region[:4096].cast("q")

    def add(self, data_id: int) -> None:
        self._cells[data_id % len(self._cells)] = data_id + 1

    def has(self, data_id: int) -> bool:
        return self._cells[data_id % len(self._cells)] == data_id + 1


class OpenedItem(msgspec.Struct, eq=False):
    """Item of a BatchRun in a worker process; `failure` if its inputs could not be opened."""

    data_id: int
    log_id: int
    inputs: dict[str, Any]
    deadline: float | None = None
    trace: str = ""
    is_feed: bool = False
    is_over: bool = False
    failure: PayloadTypeError | None = None
    info: RequestInfo = NO_INFO
    forgotten: ForgottenRequests | None = None

    def is_cancelled(self) -> bool:
        return self.forgotten is not None and self.forgotten.has(self.data_id)


@dataclass(frozen=True)
class WorkerMain:
    """The main function of an Op's worker processes; picklable if its parts are.

    `begin` is told how to send log records to the server, `set_up` gives the Op its predictor.
    """

    op: Op
    arena: Arena
    begin: Callable[[SendRecord], None]
    set_up: Callable[[Op, int], None]

    def __call__(self, sock: socket.socket, number: int) -> None:
        sock.setblocking(True)
        link = WorkerLink(sock)
        with contextlib.suppress(EOFError, ConnectionError):  # the server disconnected, or is gone
            init = link.init()
            self.begin(link.send_record)
            with contextlib.ExitStack() as stack:
                try:
                    bound = self._initialise(number, stack)
                except BaseException as error:  # user code: the server's start fails with it
                    where = "".join(traceback.format_exception(error))
                    link.send(WorkerReport(failure=utf8_text(f"{described(error)}\n{where}")))
                    return
                link.send(WorkerReport(is_ready=True, note=metadata_of(predictor_of(bound.op))))
                _Worker(link, bound, self.arena, init).run()

    def _initialise(self, number: int, stack: contextlib.ExitStack) -> BoundOp:
        op = self.op
        op.concurrency_idx = number
        loop = None
        if any(inspect.iscoroutinefunction(getattr(op, name)) for name in _STAGES):
            thread = LoopThread()  # for these methods
            stack.callback(thread.close)
            loop = thread.loop
        self.set_up(op, number)
        run_init_op(op, loop)
        return BoundOp(op, number, loop)


class _Worker:
    """Takes jobs from the link, runs them, sends back what became of them."""

    def __init__(self, link: WorkerLink, op: BoundOp, arena: Arena, init: Init) -> None:
        region = init.region
        self._link = link
        self._op = op
        self._arena = arena
        self._memory = RegionAllocator(arena.view(region), region)
        self._status = StatusPage(arena.view(region))
        self._forgotten = ForgottenRequests(arena.view(init.server_region))
        self._jobs: deque[WireJob] = deque()
        self._results: list[Result] = []
        self._skipped: list[int] = []
        self._held_since = 0
        self._quick_in_a_row = 0

    def run(self) -> None:
        """Run jobs until the server disconnects."""
        while True:
            self._take()
            job = self._jobs.popleft()
            if not self._status.begins(job.number):
                self._skipped.append(job.number)
                continue
            result = self._work_on(job)
            if not self._results:
                self._held_since = result.start_ns
            self._results.append(result)
            is_quick = result.end_ns - result.start_ns < _QUICK_NS
            self._quick_in_a_row = self._quick_in_a_row + 1 if is_quick else 0
            is_late = result.end_ns - self._held_since > _MAX_HOLD_NS
            if self._quick_in_a_row < _MIN_QUICK_JOBS or is_late:
                self._report()

    def _take(self) -> None:
        """Have a job: take what has arrived; report what is done before waiting for more."""
        while not self._jobs:
            work = self._link.next_if_there() if self._results else None
            if work is None:
                self._report()
                self._status.ends()
                work = self._link.next()
            for block in work.freed:
                self._memory.free(block)
            self._jobs.extend(work.jobs)

    def _report(self) -> None:
        if self._results or self._skipped:
            self._link.send(WorkerReport(results=self._results, skipped=self._skipped))
            self._results, self._skipped = [], []

    def _work_on(self, job: WireJob) -> Result:
        """Run it.

        It counts as what the worker is at until its result is sent, or held beside the next job:
        should the process end of that, it is this job that is tried again.
        """
        run = BatchRun([self._open(item) for item in job.items])
        run.run(self._op, self._status, time.monotonic_ns)
        outcomes = [
            self._outcome(item.failure or outcome)
            for item, outcome in zip(run.items, run.outcomes, strict=True)
        ]
        return Result(
            job.number,
            outcomes,
            run.jumped,
            run.start_ns,
            run.preprocess_end_ns,
            run.process_end_ns,
            run.end_ns,
            run.rows,
            run.executions,
            run.execution_ends_ns,
        )

    def _open(self, item: WireItem) -> OpenedItem:
        data_id, log_id = item.data_id, item.log_id
        try:
            inputs = {name: deserialize(part, self._arena) for name, part in item.inputs.items()}
        except PayloadTypeError as error:  # of users' classes: fails its own item only
            failure = PayloadTypeError(f"[{self._op.name}] {error}")
            return OpenedItem(data_id, log_id, {}, is_over=True, failure=failure)
        opened = OpenedItem(data_id, log_id, inputs, item.deadline, item.trace, item.is_feed)
        if item.info is not None:
            opened.info, opened.forgotten = item.info, self._forgotten
        return opened

    def _outcome(self, outcome: Any) -> ItemOutcome:
        if not isinstance(outcome, PipelineError):
            try:
                return ItemOutcome(serialize(outcome, self._memory, self._arena))
            except (PayloadTypeError, OverloadedError) as error:
                outcome = type(error)(f"[{self._op.name}] {error}")
        return ItemOutcome(error=ErrorFields(*error_to_fields(outcome)))
