"""Main function of a worker process: one Op, one batch after the other."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec

from pipeline.data import NO_INFO, RequestInfo
from pipeline.engine.convoy import BatchMembers, Convoy, MemberOutcomes
from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.run.init_op import end_op, run_init_op
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.streams.plan import is_iterative
from pipeline.engine.worker_api import SetUp
from pipeline.errors import (
    PayloadTypeError,
    described,
    utf8_text,
)
from pipeline.metrics import LEDGER
from pipeline.op import Op, configure_op, predictor_of
from pipeline.predictors.base import metadata_of
from pipeline.system.event_loop import LoopThread
from pipeline.workers.process.calls import CallLink
from pipeline.workers.process.outcomes import outcome_of
from pipeline.workers.process.pages import AbandonedRequests, StatusPage
from pipeline.workers.process.sending import SendingOp, SentStreams
from pipeline.workers.process.slices import Slices, StreamedItem
from pipeline.workers.process.wire import (
    Init,
    ItemOutcome,
    Jobs,
    Result,
    WireItem,
    WireJob,
    WireSlice,
    WorkerLink,
    WorkerReport,
)
from pipeline.workers.shm.arena import Arena, RegionAllocator
from pipeline.workers.shm.payload import BlockReader, PayloadMemory, deserialize
from pipeline.workers.warm_up import warm_up

SendRecord = Callable[[bytes], None]

_QUICK_NS = 100_000  # results of shorter jobs may wait for the next one's,
_MAX_HOLD_NS = 200_000  # ... but no longer than this,
_MIN_QUICK_JOBS = 100  # ... and only after so many quick jobs: otherwise the next job may be slow
_STAGES = ("init_op", "preprocess", "process", "postprocess")


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
    forgotten: AbandonedRequests | None = None
    sequence: int = 0

    def is_cancelled(self) -> bool:
        return self.forgotten is not None and self.forgotten.has(self.data_id)


@dataclass(frozen=True)
class WorkerMain:
    """The main function of an Op's worker processes; picklable if its parts are.

    `begin` gets a function that sends log records to the server, `set_up` gives the Op its
    predictor. Without an `op` it makes the one in its first message.
    """

    op: Op | None
    arena: Arena
    begin: Callable[[SendRecord], None]
    set_up: SetUp

    def __call__(self, sock: socket.socket, number: int) -> None:
        sock.setblocking(True)
        LEDGER.begin()
        link = WorkerLink(sock)
        # the server disconnected, or has ended
        with contextlib.suppress(EOFError, ConnectionError):
            init = link.init()
            self.begin(link.send_record)
            with contextlib.ExitStack() as stack:
                try:
                    op = self.op or _made(init)
                    if link.calls is not None:
                        op.pipeline_models = CallLink(link.calls, self.arena, init.calls_region)
                    bound = initialised(op, number, self.set_up, stack)
                except BaseException as error:  # user code: the server's start fails with it
                    where = "".join(traceback.format_exception(error))
                    link.send(WorkerReport(failure=utf8_text(f"{described(error)}\n{where}")))
                    return
                note = metadata_of(predictor_of(bound.op))
                link.send(WorkerReport(is_ready=True, note=note, counted=LEDGER.take()))
                ServedWorker(link, bound, _place_of(init, self.arena)).run()


def initialised(op: Op, number: int, set_up: SetUp, stack: contextlib.ExitStack) -> BoundOp:
    """Return a worker's Op, ready to work; `stack` ends it."""
    op.concurrency_idx = number
    loop = None
    if any(_is_async(getattr(op, name)) for name in _STAGES):
        thread = LoopThread()  # for these methods
        stack.callback(thread.close)
        loop = thread.loop
    set_up(op, number)
    run_init_op(op, loop)
    stack.callback(end_op, op)
    bound = BoundOp(op, number, loop)
    warm_up(bound, number)
    return bound


class ReportLink(Protocol):
    """The worker's end of the connection to the server."""

    def next(self) -> Jobs: ...
    def next_if_there(self) -> Jobs | None: ...
    def send(self, report: WorkerReport) -> None: ...


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """The memory of a worker: blocks to read, a region to write, and the shared pages."""

    blocks: BlockReader
    memory: PayloadMemory
    status: StatusPage
    forgotten: AbandonedRequests


def _place_of(init: Init, arena: Arena) -> WorkerPlace:
    """Return the place of a process that shares memory with its server."""
    view = arena.view(init.region)
    forgotten = AbandonedRequests(arena.view(init.server_region))
    return WorkerPlace(arena, RegionAllocator(view, init.region), StatusPage(view), forgotten)


class ServedWorker:
    """Takes jobs from the link, runs them, and sends their results."""

    def __init__(self, link: ReportLink, op: BoundOp, place: WorkerPlace) -> None:
        self._link = link
        self._op = op
        self._arena = place.blocks
        self._memory = place.memory
        self._status = place.status
        self._forgotten = place.forgotten
        self._jobs: deque[WireJob] = deque()
        self._pieces: deque[WireSlice] = deque()  # take turns with the jobs
        self._ran_piece = False
        seen = self._status, self._forgotten
        sending = None
        if isinstance(op.op, SendingOp) and isinstance(op.op.pipeline_models, CallLink):
            sending = SentStreams(op.op.pipeline_models, op, *seen, StreamedItem)
        self._slices = Slices(op, *seen, self._stream_outcome, self._report, self._look, sending)
        self._results: list[Result] = []
        self._skipped: list[int] = []
        self._held_since = 0
        self._quick_in_a_row = 0

    def run(self) -> None:
        """Run jobs until the server disconnects; then close the remaining generators."""
        try:
            while True:
                self._take()
                self._run_next()
        finally:
            self.close()

    def work_on(self, work: Jobs) -> None:
        """Run the jobs of a message, and report all of them."""
        self._queue(work)
        if self._slices.runs:
            self._look()
        while self._jobs or self._pieces:
            self._run_next()
        self._report()
        self._status.ends()

    def close(self) -> None:
        """Close the remaining generators."""
        self._slices.close()

    def _run_next(self) -> None:
        self._ran_piece = bool(self._pieces) and not (self._ran_piece and self._jobs)
        if self._ran_piece:
            piece = self._pieces.popleft()
            self._status.begins_slice(piece.number)
            result = self._slices.go_on(piece)  # this also reports
            self._results.append(result)
            self._report()
            return
        job = self._jobs.popleft()
        if not self._status.begins(job.number):
            self._skipped.append(job.number)
            self._slices.runs.pop(job.number, None)
            return
        result = self._work_on(job)
        if not self._results:
            self._held_since = result.start_ns
        self._results.append(result)
        is_quick = result.end_ns - result.start_ns < _QUICK_NS and job.allowed is None
        self._quick_in_a_row = self._quick_in_a_row + 1 if is_quick else 0
        is_late = result.end_ns - self._held_since > _MAX_HOLD_NS
        if self._quick_in_a_row < _MIN_QUICK_JOBS or is_late:
            self._report()

    def _take(self) -> None:
        """Wait for a job; report results before waiting."""
        while not (self._jobs or self._pieces):
            work = self._link.next_if_there() if self._results else None
            if work is None:
                self._report()
                self._status.ends()
                work = self._link.next()
            self._queue(work)
        if self._slices.runs:
            self._look()  # it may have its turn before the jobs that are here

    def _look(self) -> None:
        """Read the messages that have arrived."""
        while (work := self._link.next_if_there()) is not None:
            self._queue(work)

    def _queue(self, work: Jobs) -> None:
        for block in work.freed:
            self._memory.free(block)
        self._jobs.extend(work.jobs)
        for piece in work.slices:
            if is_iterative(self._op.op):
                joining = [(place, self._open(item)) for place, item in piece.joining]
                self._slices.join(piece, joining)
            if piece.number:
                self._pieces.append(piece)

    def _report(self) -> None:
        parts = self._slices.parts
        if self._results or self._skipped or parts:
            report = WorkerReport(results=self._results, skipped=self._skipped, parts=parts)
            report.counted = LEDGER.take()
            self._link.send(report)
            self._results, self._skipped = [], []
            if parts:
                self._slices.parts = []

    def _work_on(self, job: WireJob) -> Result:
        """Run a job.

        It counts as the running job until its result is sent, or held for the next report: if the
        process ends because of it, this job is tried again.
        """
        opened = [self._open(item) for item in job.items]
        if job.allowed is not None:
            return self._slices.begin(job, opened)
        ranks = None
        if any(item.convoy is not None for item in job.items):
            ranks = BatchMembers()
            for wire, item in zip(job.items, opened, strict=True):
                convoy, members = None, wire.convoy
                if members is not None and item.failure is None:
                    convoy = Convoy(members.rows, members.infos, members.ids, set(members.over))
                ranks.add(item, convoy, partial(self._is_gone, wire.data_id))
        items: Sequence[Any] = opened if ranks is None else ranks.members
        run = BatchRun(items, places=job.places)
        if ranks is not None and self._op.op.pipeline_config.batch_size == 1:
            run.item_begins = self._status.item_begins
        if job.given:
            run.given = {at: deserialize(part, self._arena) for at, part in job.given.items()}
        run.run(self._op, self._status, time.monotonic_ns)
        if ranks is not None:
            ranks.close(run)
        outcomes = [
            self._outcome(item.failure or outcome, self._op.name)
            for item, outcome in zip(opened, run.outcomes, strict=True)
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
            kept=run.kept and {at: self._outcome(s, self._op.name) for at, s in run.kept.items()},
        )

    def _is_gone(self, convoy: int, member: int) -> bool:
        """Return whether nobody waits for a member of a convoy, or for the whole convoy."""
        return self._forgotten.has(member) or self._forgotten.has(convoy)

    def _open(self, item: WireItem) -> OpenedItem:
        data_id, log_id = item.data_id, item.log_id
        try:
            inputs = {name: deserialize(part, self._arena) for name, part in item.inputs.items()}
            if item.gathered:
                inputs = self._with_gathered(item, inputs)
        except PayloadTypeError as error:  # of a user's class: it fails only its own item
            failure = PayloadTypeError(f"[{self._op.name}] {error}")
            info = item.info or NO_INFO
            return OpenedItem(data_id, log_id, {}, is_over=True, failure=failure, info=info)
        opened = OpenedItem(data_id, log_id, inputs, item.deadline, item.trace, item.is_feed)
        opened.sequence = item.sequence
        if item.info is not None:
            opened.info = NO_INFO if item.info == NO_INFO else item.info
            opened.forgotten = self._forgotten
        return opened

    def _with_gathered(self, item: WireItem, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs in the Op's order."""
        for name, parts in item.gathered.items():
            inputs[name] = [deserialize(part, self._arena) for part in parts]
        producers = [producer.name for producer in self._op.op.get_input_ops()]
        return {name: inputs[name] for name in producers if name in inputs}

    def _stream_outcome(self, outcome: Any) -> ItemOutcome:
        return self._outcome(outcome, self._op.name)

    def _outcome(self, outcome: Any, maker: str) -> ItemOutcome:
        if type(outcome) is MemberOutcomes:
            return ItemOutcome(
                members=[
                    ItemOutcome() if outcome is None else self._outcome(outcome, maker)
                    for outcome in outcome.outcomes
                ]
            )
        return outcome_of(outcome, maker, self._memory, self._arena)


def _made(init: Init) -> Op:
    """Return the Op that the first message describes."""
    spec, config = init.spec, init.config
    assert spec is not None, "a worker without a spec was forked with its Op"
    assert config is not None, "a spec comes with a configuration"
    module, _, name = spec.make.partition(":")
    op: Op = getattr(importlib.import_module(module), name)(spec.argument)
    configure_op(op, config)
    op.pipeline_warm_up = init.warm_up
    return op


def _is_async(method: Any) -> bool:
    return inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
