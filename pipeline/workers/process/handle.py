"""One worker process as the server sees it: its jobs, its reports, and its end."""

from __future__ import annotations

import functools
import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from pipeline.engine.model_calls import ModelHost
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.streams.flow import ENDED
from pipeline.engine.streams.run import Entry, StreamRun
from pipeline.engine.worker_api import Job
from pipeline.errors import PipelineError, with_text
from pipeline.metrics import LEDGER
from pipeline.op import Op
from pipeline.predictors.base import ModelMetadata
from pipeline.workers.process.call_host import CallHost
from pipeline.workers.process.calls import WirePartLimit
from pipeline.workers.process.outcomes import ItemCodec, PayloadStore
from pipeline.workers.process.pages import StatusPage
from pipeline.workers.process.sending import SentStream
from pipeline.workers.process.sent import (
    SentRun,
    begin,
    entries_of,
    slice_of,
    steps_of,
    take_slice,
    unsent_of,
)
from pipeline.workers.process.wire import (
    Init,
    Jobs,
    Link,
    Result,
    WireItem,
    WireJob,
    WireParts,
    WireSlice,
    WorkerReport,
    framed,
)
from pipeline.workers.restart_policy import RestartSlot
from pipeline.workers.shm.payload import SharedPayload
from pipeline.workers.shm.server_memory import ServerMemory
from pipeline.workers.zygote.controller import Child, Zygotes

if TYPE_CHECKING:
    from pipeline.workers.process.pool import ProcessPool, ProcessWorkers

_PICK_UP_TIMEOUT_S = 1.0  # for an idle worker to begin a job, in addition to the Op's timeout
_LIVES = itertools.count()


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """Services that all process workers of a server share.

    Attributes:
        entry_points: the number of the entry point of each Op; 0: one for Ops with a WorkerSpec.
        models: for Ops with a WorkerSpec.
        forgotten: the region with the AbandonedRequests; of one engine, because data ids are.
    """

    zygotes: Zygotes
    memory: ServerMemory
    entry_points: dict[Op, int]
    on_record: Callable[[bytes], None]
    models: ModelHost | None = None
    forgotten: int = 0


class JobLink(Protocol):
    """The server's end of the connection to one worker."""

    def finish(self) -> None: ...
    def drain(self) -> None: ...


class Life(Protocol):
    """A worker's process as seen from the server; see `zygote.link.Child`."""

    pid: int | None
    ending: str

    @property
    def state(self) -> str: ...
    def kill(self) -> None: ...


class KindContext(Protocol):
    """Services that all workers of a kind share, as far as a ProcessWorker needs them."""

    @property
    def memory(self) -> PayloadStore: ...
    @property
    def on_record(self) -> Callable[[bytes], None]: ...
    @property
    def models(self) -> ModelHost | None: ...


class ProcessWorker:
    """One worker process.

    Attributes:
        life: its incarnation, which differs from those with the same number before it.
        sent: the runs that it has and has not reported on, by the numbers of their jobs.
        streams: the runs whose generators it has, from the end of their first slice on.
        is_up: whether it has reported that it is ready.
        is_leaving: whether it is about to end, for any reason: it gets no more jobs.
        note: metadata of the model that it has loaded.
        failure: the traceback if it could not start.
        cause: why it ended, if the system has no better reason.
        hung_at: the run that it was killed for; another worker may have it already.
        finished: number of jobs that it has reported on.
        status: its status page.
        calls: its calls to other models; None: it makes none.

    Raises:
        InitError: there is no file descriptor left for it.
        OSError: its memory cannot be mapped.
    """

    def __init__(
        self, workers: ProcessWorkers, slot: RestartSlot, commons: KindContext, op: Op
    ) -> None:
        self.number: int = slot.number
        self.life: int = next(_LIVES)  # its process may be ready before its pid is known
        self.slot = slot
        self.sent: dict[int, SentRun] = {}
        self.streams: dict[BatchRun, SentRun] = {}
        self.is_up: bool = False
        self.is_leaving: bool = False
        self.note: ModelMetadata | None = None
        self.failure: str = ""
        self.cause: str = ""
        self.hung_at: BatchRun | None = None
        self.finished: int = 0
        self._op_name = op.name
        self._workers = workers
        self._pool: ProcessPool = workers.pool
        self._codec = ItemCodec(op, commons.memory)
        self._on_record = commons.on_record
        self._unsent: list[WireJob] = []
        self._slices: list[WireSlice] = []
        self._last_number = 0
        self._head_since = 0.0
        self.calls: CallHost | None = None
        self._connect(commons, op)

    def _connect(self, commons: KindContext, op: Op) -> None:
        """Start its process, and send its first message."""
        processes = cast(ProcessContext, commons)
        loop, slot, self._shared = self._pool.loop, self.slot, processes.memory
        self._region = processes.memory.open_region()
        try:
            self.status: StatusPage = StatusPage(processes.memory.arena.view(self._region))
            child = processes.zygotes.start(
                processes.entry_points.get(op, 0), slot.number, self._changed
            )
            self.child: Life = child
        except BaseException:
            processes.memory.close_region(self._region)
            raise
        # A closed socket means that it is about to end; the end itself is reported separately.
        exiting = functools.partial(self._workers.on_exiting, self)
        link = Link(child.sock, loop, WorkerReport, self._reported, exiting)
        self._link: JobLink = link
        self._send = link.send
        init = Init(self._region, processes.forgotten)
        if op not in processes.entry_points:
            init.spec, init.config = op.pipeline_spec, op.pipeline_config
            init.warm_up = tuple(op.pipeline_warm_up)
        if init.spec is not None and processes.models is not None:
            self.calls = CallHost(
                processes.models, processes.memory, loop, op.name, self._take_sent
            )
            init.calls_region = self.calls.region
            self.calls.send_init(child.sock, framed(init))
        else:
            self._send(framed(init))

    # State --------------------------------------------------------------------------------

    @property
    def keeps(self) -> bool:
        """Return whether it has the state of its Op, and will continue."""
        return self.is_up and not self.is_leaving

    @property
    def job(self) -> Job | None:
        """Return the job that it runs, or will run next."""
        return self.running or next((sent.run for sent in self.sent.values()), None)

    @property
    def running(self) -> BatchRun | None:
        """Return the job that it runs, or ran when it ended."""
        sent = self.sent.get(self.status.job)
        return sent.run if sent is not None else None

    @property
    def job_started(self) -> float | None:
        return self.status.job_started if self.status.job in self.sent else None

    @property
    def call_started(self) -> float | None:
        if self.status.job in self.sent:
            return self.status.call_started
        return self._head_since + _PICK_UP_TIMEOUT_S if self.sent else None

    # Messages to the worker ---------------------------------------------------------------

    def give(self, run: BatchRun) -> bool:
        """Queue a run for the next `flush`; return False if no item can, or need, be sent."""
        if isinstance(run, StreamRun) and run.reports_steps:
            self._step(run)
            return True
        if run in self.streams:
            self._go_on(self.streams[run])
            return True
        run.outcomes = [None] * len(run.items)
        run.handed_ns = 0 if self.sent else time.monotonic_ns()
        payloads: list[SharedPayload] = []
        indexes: list[int] = []
        items: list[WireItem] = []
        for index, item in enumerate(run.items):
            if item.is_over:
                continue
            try:
                items.append(self._codec.item(item, payloads))
            except PipelineError as error:
                # The traceback refers to the run, and only the gc could free both.
                run.outcomes[index] = with_text(error, str(error))
                run.unsent = [*(run.unsent or ()), index]
                continue
            indexes.append(index)
        allowed = begin(run, indexes) if isinstance(run, StreamRun) else None
        if not items:
            now = time.monotonic_ns()
            run.start_ns = run.preprocess_end_ns = run.process_end_ns = run.end_ns = now
            return False
        number = self._next_number()
        sent = self.sent[number] = SentRun(run, indexes, payloads, number)
        sent.allowed = list(allowed or ())
        places = None if run.places is None else [run.places[index] for index in indexes]
        job = WireJob(number, items, allowed, places)
        if run.given:
            job.given = {
                indexes.index(index): self._codec.serialized(self._op_name, states, payloads)
                for index, states in run.given.items()
                if index in indexes
            }
        self._unsent.append(job)
        return True

    def _next_number(self) -> int:
        if not self.sent:
            self._head_since = self._pool.loop.time()
        self._last_number += 1
        return self._last_number

    def _go_on(self, sent: SentRun) -> None:
        """Queue the next slice of a run."""
        number = self._next_number()
        self.sent[number] = sent
        self._slices.append(slice_of(number, sent))

    def _step(self, run: StreamRun) -> None:
        """Queue a slice of a run, and the requests that have joined it."""
        number, sent = self._next_number(), self.streams.get(run)
        if sent is not None:
            self.sent[number] = sent
            self._slices.append(steps_of(number, sent, self._joining(sent, run)))
            return
        run.joining = deque(run.taken)  # a worker that had them has not begun
        sent = self.sent[number] = SentRun(run, [], [], number)
        self._unsent.append(WireJob(number, [], []))
        self._slices.append(steps_of(0, sent, self._joining(sent, run)))

    def join(self, run: StreamRun) -> None:
        """Queue the requests that have joined a run, if this worker has the run."""
        sent = next((sent for sent in self.sent.values() if sent.run is run), None)
        if sent is not None:
            self._slices.append(steps_of(0, sent, self._joining(sent, run)))

    def _joining(self, sent: SentRun, run: StreamRun) -> list[tuple[int, WireItem]]:
        """Take the joining requests; end requests that cannot be sent, or are over."""
        items: list[tuple[int, WireItem]] = []
        ends: list[Entry] = []
        for place in run.joined():
            item = run.items[place]
            if item.is_over:
                ends.append((place, ENDED))
                continue
            payloads: list[SharedPayload] = []
            try:
                wire = self._codec.item(item, payloads)
            except PipelineError as error:
                ends.append((place, with_text(error, str(error))))
                continue
            wire.sequence = run.numbers[place]
            items.append((place, wire))
            sent.joined[place] = payloads
        if ends:
            for place, _ in ends:
                run.ended[place] = True
            self._pool.loop.call_soon(self._pool.parts, run, ends)
        return items

    def flush(self) -> None:
        """Send the queued jobs in one frame."""
        if self._unsent or self._slices:
            work = Jobs(self._unsent, self._shared.take_freed(self._region), self._slices)
            self._unsent, self._slices = [], []
            self._send(framed(work))

    def revoke(self) -> list[BatchRun]:
        """Take back the jobs that it has not begun; it will skip them."""
        begun = self.status.revoke(self._last_number)
        waiting = [
            number
            for number, sent in self.sent.items()
            if number > begun and sent.run not in self.streams
        ]
        return [self.sent.pop(number).run for number in waiting]

    def disconnect(self) -> None:
        """Let it end after the jobs that it has."""
        self.is_leaving = True
        self._link.finish()

    def drain(self) -> None:
        """Read the messages that it sent before it ended."""
        self.is_leaving = True
        self._link.drain()

    def kill(self, cause: str) -> None:
        """Kill it. `cause` is the reason, unless there is one already."""
        self.is_leaving = True
        self.cause = self.cause or cause
        self.child.kill()

    # Messages from the worker -------------------------------------------------------------

    def _reported(self, report: WorkerReport) -> None:
        for record in report.records:
            self._on_record(record)
        if report.is_ready:
            self.is_up, self.note = True, report.note
            self._workers.on_ready(self)
        elif report.failure:
            self.failure, self.cause = report.failure, self.cause or "failed to start"
            self._workers.on_exiting(self)
        if report.counted:
            LEDGER.merge(report.counted)
        for parts in report.parts:
            self._take_parts(parts)
        for result in report.results:
            self._take_result(result)
        for number in report.skipped:
            if number in self.sent:  # it had looked begun from here
                self._pool.on_returned([self.sent.pop(number).run])
        if report.results or report.parts:
            self._pool.on_reported()

    def _take_parts(self, parts: WireParts) -> None:
        outcomes = [(place, self._codec.outcome(part)) for place, part in parts.entries]
        sent = self.sent.get(parts.number)
        if sent is None:  # perhaps of a run in steps
            streams = self.streams.values()
            sent = next((sent for sent in streams if sent.number == parts.number), None)
        if sent is not None:
            entries = entries_of(sent, parts, outcomes)
            self._pool.parts(cast(StreamRun, sent.run), entries)

    def _take_sent(self, parts: WireParts) -> None:
        """Take parts that a model has sent by itself."""
        self._take_parts(parts)
        for run, sent in self.streams.items():
            if sent.number == parts.number and all(cast(StreamRun, run).ended):
                self._end_sent(run)
                break
        self._pool.on_reported()

    def _end_sent(self, run: BatchRun) -> None:
        stream = cast(StreamRun, run)
        stream.is_finished, stream.groups = True, []
        self.streams.pop(run, None)

    def send_room(self, run: SentStream) -> None:
        """Tell a model that sends parts by itself how many parts of each item are wanted."""
        assert self.calls is not None, "it sends them that way"
        sent = self.streams[run]
        for index in filter(run.has_news, range(len(run.items))):
            is_over = run.is_unwanted(index)
            run.notified[index] = run.allowed[index]
            run.ended[index] = is_over
            if index in sent.indexes:
                place = sent.indexes.index(index)
                self.calls.send_room(
                    WirePartLimit(sent.number, run.notified[index], is_over, place)
                )
        if all(run.ended):
            self._end_sent(run)

    def _take_result(self, result: Result) -> None:
        outcomes = list(
            map(self._codec.outcome, result.outcomes)
        )  # also for an outdated one, whose blocks have to be freed
        kept = {at: self._codec.outcome(states) for at, states in (result.kept or {}).items()}
        sent = self.sent.pop(result.number, None)
        if sent is None:
            return
        self.finished += 1
        self._head_since = self._pool.loop.time()
        run = sent.run
        if result.slice_end is not None:
            assert isinstance(run, StreamRun), "no other has slices"
            if take_slice(sent, result, result.slice_end, self.number):
                self.streams[run] = sent
            else:
                self.streams.pop(run, None)
            self._pool.parts(run, unsent_of(run))
            self._pool.done(self, run)
            return
        for index, outcome in zip(sent.indexes, outcomes, strict=True):
            run.outcomes[index] = outcome
        run.jumped = result.jumped
        run.start_ns, run.preprocess_end_ns = result.start_ns, result.preprocess_end_ns
        run.process_end_ns, run.end_ns = result.process_end_ns, result.end_ns
        if result.rows:
            run.rows = _spread(result.rows, sent.indexes, [1] * len(run.items))
        if result.executions:
            run.executions = result.executions
            if len(run.items) > 1:
                run.executions = _spread(result.executions, sent.indexes, [-1] * len(run.items))
            run.execution_ends_ns = result.execution_ends_ns
        if kept:
            run.kept = {sent.indexes[at]: self._codec.states(taken) for at, taken in kept.items()}
        self._pool.done(self, run)

    def _changed(self, child: Child) -> None:
        if child.state != "ended":
            self._workers.on_stopped_or_continued(self)
            return
        self._workers.on_ended(self)  # reads the status page, so the region must still be open
        self._shared.close_region(self._region)
        if self.calls is not None:
            self.calls.close()


def _spread(spread: list[int], indexes: Sequence[int], values: list[int]) -> list[int]:
    """Return `values` with those of the sent items replaced."""
    for index, value in zip(indexes, spread, strict=True):
        values[index] = value
    return values
