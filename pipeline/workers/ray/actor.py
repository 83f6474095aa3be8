"""The actor: a worker of an Op in a process that Ray has started, on any node.

It runs the same code as a worker process; only the transport differs. Each batch is a call. Reports
while a batch runs, or between batches, are fetched by a call that waits.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from pipeline.engine.run.bound_op import BoundOp
from pipeline.errors import described, utf8_text
from pipeline.metrics import LEDGER, Ledger
from pipeline.op import predictor_of
from pipeline.predictors.base import metadata_of
from pipeline.workers.process.main import ServedWorker, WorkerPlace, initialised
from pipeline.workers.process.pages import AbandonedRequests, StatusPage
from pipeline.workers.process.wire import Jobs, WorkerReport
from pipeline.workers.ray.cargo import ActorSetup
from pipeline.workers.ray.clock import ServerClock, boot_id
from pipeline.workers.ray.cluster import in_parallel
from pipeline.workers.ray.models import unpack_model
from pipeline.workers.ray.objects import ActorCall, ActorMemory, ActorReply, Bytes, Running
from pipeline.workers.zygote.spawn import place_classes

_RECORDS_WAIT_S = 0.1  # for more records, or for a batch's reply to send them with
_LONGEST_POLL_S = 20.0
_PAGE_BYTES = 4096

_decode = msgspec.msgpack.Decoder(ActorCall).decode


class ReportBox:
    """Reports for the server: sent with the result of the running call, or fetched by `poll`."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._reports: list[tuple[int, WorkerReport]] = []
        self._records: list[bytes] = []
        self._last = 0
        self._due: float | None = None
        self.is_closed: bool = False

    def add(self, report: WorkerReport, is_urgent: bool) -> None:
        """Take a report; an urgent one is for `poll`, another goes with the call's result."""
        with self._condition:
            self._last += 1
            self._reports.append((self._last, report))
            if is_urgent:
                self._wake(0.0)

    def add_record(self, record: bytes) -> None:
        """Take a log record; in any thread."""
        with self._condition:
            self._records.append(record)
            self._wake(_RECORDS_WAIT_S)

    def _wake(self, wait_s: float) -> None:
        due = time.monotonic() + wait_s
        if self._due is None or due < self._due:
            self._due = due
            self._condition.notify_all()

    def take(self) -> list[tuple[int, WorkerReport]]:
        with self._condition:
            if self._records:
                self._last += 1
                report = WorkerReport(records=self._records)
                self._reports.append((self._last, report))
            taken = self._reports
            self._reports, self._records, self._due = [], [], None
            return taken

    def wait(self, timeout_s: float) -> bool:
        """Wait until a report is due; return whether one is."""
        until = time.monotonic() + timeout_s
        with self._condition:
            while not self.is_closed:
                now = time.monotonic()
                if self._due is not None and self._due <= now:
                    return True
                if now >= until:
                    return False
                self._condition.wait(min(until, self._due or until) - now)
        return False

    def close(self) -> None:
        """End all waits."""
        with self._condition:
            self.is_closed = True
            self._condition.notify_all()


class ActorEnd:
    """The worker's end: see `ReportLink`. Messages of `tell` are read between batches."""

    def __init__(self, box: ReportBox, memory: ActorMemory) -> None:
        self.told: deque[tuple[Jobs, dict[int, Sequence[Bytes]]]] = deque()
        self._box = box
        self._memory = memory

    def next(self) -> Jobs:
        """Raise EOFError: an actor gets its work with each call."""
        raise EOFError

    def next_if_there(self) -> Jobs | None:
        if not self.told:
            return None
        work, objects = self.told.popleft()
        self._memory.objects |= objects
        return work

    def send(self, report: WorkerReport) -> None:
        self._box.add(report, is_urgent=not report.results)


class RayActor:
    """One worker. `begin`, `work` and `end` run one after the other, the others in parallel.

    Args:
        cargo: its description.
        ledger: of users' metrics; None: that of this process.
    """

    def __init__(self, cargo: ActorSetup, ledger: Ledger | None = None) -> None:
        self._cargo = cargo
        self._ledger = ledger or LEDGER  # not a default argument: Ray pickles those
        self._memory = ActorMemory()
        self._status = StatusPage(memoryview(bytearray(_PAGE_BYTES)))
        self._forgotten = AbandonedRequests(memoryview(bytearray(_PAGE_BYTES)))
        self._clock = ServerClock(bool(cargo.boot_id) and cargo.boot_id == boot_id())
        self._box = ReportBox()
        self._link = ActorEnd(self._box, self._memory)
        self._ends = contextlib.ExitStack()
        self._context = contextvars.copy_context()
        self._worker: ServedWorker | None = None

    # One after the other --------------------------------------------------------------------

    def begin(self, *model_files: Bytes) -> bytes:
        """Initialise the Op; return the reply that reports success or the failure."""
        self._ledger.begin()
        self._cargo.keep_logs(self._box.add_record)
        place_classes(self._cargo.classes)
        try:
            bound = self._context.run(self._initialise, model_files)
        except BaseException as error:  # user code: the server's start fails with it
            where = "".join(traceback.format_exception(error))
            report = WorkerReport(failure=utf8_text(f"{described(error)}\n{where}"))
        else:
            place = WorkerPlace(self._memory, self._memory, self._status, self._forgotten)
            self._worker = self._context.run(ServedWorker, self._link, bound, place)
            note = metadata_of(predictor_of(bound.op))
            report = WorkerReport(is_ready=True, note=note, counted=self._ledger.take())
        self._box.add(report, is_urgent=False)
        reports = self._box.take()
        reply = ActorReply(reports, node=self._cargo.where(), pid=os.getpid())
        return msgspec.msgpack.encode(reply)

    def _initialise(self, model_files: Sequence[Bytes]) -> BoundOp:
        cargo = self._cargo
        if cargo.model_files:
            unpack_model(cargo.op, cargo.model_files, model_files, self._ends)
        return initialised(cargo.op, cargo.number, cargo.set_up, self._ends)

    def work(self, message: bytes, *objects: Any) -> Any:
        """Run a batch or a slice; return the reply, and the allowed number of objects."""
        assert self._worker is not None, "the server waits for `begin`"
        call = self._opened(message)
        self._memory.objects = dict(zip(call.numbers, objects, strict=True))
        self._context.run(self._worker.work_on, call.work)
        self._memory.objects = {}
        return self._reply(call.count, None)

    def end(self) -> None:
        """Close generators, and let the Op end."""
        if self._worker is not None:
            self._context.run(self._worker.close)
        self._context.run(self._ends.close)
        self._box.close()

    def _opened(self, message: bytes) -> ActorCall:
        call = _decode(message)
        self._clock.heard(call.sent_ns)
        self._clock.to_here(call.work)
        return call

    def _reply(self, count: int, running: Running | None) -> Any:
        reports = self._box.take()
        for _, report in reports:
            self._clock.to_server(report)
        return self._memory.pack(ActorReply(reports, running), count)

    # In parallel ----------------------------------------------------------------------------

    @in_parallel
    def poll(self) -> Any:
        """Wait for reports and return them; or return the running job, if it takes long."""
        look_s = self._cargo.look_s or _LONGEST_POLL_S
        until = time.monotonic() + _LONGEST_POLL_S
        while not self._box.wait(min(look_s, max(0.0, until - time.monotonic()))):
            running = self._running()
            is_long = running is not None and running[1] >= look_s
            if is_long or self._box.is_closed or time.monotonic() >= until:
                break
        return self._reply(0, self._running())

    @in_parallel
    def tell(self, message: bytes, *objects: Any) -> None:
        """Take news for a running job."""
        call = self._opened(message)
        self._link.told.append((call.work, dict(zip(call.numbers, objects, strict=True))))

    @in_parallel
    def revoke(self, number: int) -> int:
        """Begin no job up to this one; return the last that has begun."""
        return self._status.revoke(number)

    @in_parallel
    def forget(self, data_ids: Sequence[int]) -> None:
        """Note that nobody waits for these requests any more."""
        for data_id in data_ids:
            self._forgotten.add(data_id)

    def _running(self) -> Running | None:
        """Return the running job, its age, and that of its call."""
        job, began, called = self._status.job, self._status.job_started, self._status.call_started
        if not job or began is None:
            return None
        now = time.monotonic()
        return job, now - began, -1.0 if called is None else now - called
