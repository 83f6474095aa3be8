"""Process workers: supervised processes, each with its own copy of the Op.

A worker that hangs, crashes or is killed is replaced, with growing pauses if it never gets to
finish a batch. What it was sent and did not begin goes to others; for the batch that it worked on
the owner decides.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pipeline.engine.parcel import Parcel, Sealed, seal
from pipeline.engine.stages import BatchRun
from pipeline.engine.workers.base import Job, Owner, Worker
from pipeline.engine.workers.child import StatusPage
from pipeline.engine.workers.frames import (
    Hello,
    Link,
    Report,
    Result,
    Sample,
    WireJob,
    Work,
    framed,
)
from pipeline.engine.workers.memory import ServerMemory
from pipeline.engine.workers.supervision import Place
from pipeline.engine.workers.zygote import Child, Zygotes
from pipeline.errors import InitError, PayloadTypeError, PipelineError, error_from_fields
from pipeline.op import Op

_LOGGER = logging.getLogger(__name__)

_PICK_UP_S = 1.0  # an idle worker may take so long, beyond the Op's timeout, to take a job up
_STOPPED_S = 1.0  # a worker that was stopped (SIGSTOP) may take so long to be continued
_PARTED_S = 1.0  # a worker that closed its socket may take so long to end
_KILLED_S = 5.0  # the system may take so long to end a process that was killed
_STEADY_S = 10.0  # a worker that stays up so long is out of its crash loop


@dataclass(frozen=True, slots=True)
class Family:
    """What all process workers of a server have in common. `mains`: which one runs an Op."""

    zygotes: Zygotes
    memory: ServerMemory
    mains: dict[Op, int]
    on_record: Callable[[bytes], None]


@dataclass(slots=True)
class _Sent:
    """A run that a worker has; `parcels` keeps in memory what was sealed for it."""

    run: BatchRun
    indexes: list[int]
    parcels: list[Parcel]


class ProcessWorker:
    """One worker process as the server sees it."""

    def __init__(self, pool: ProcessWorkers, place: Place, family: Family, op: Op) -> None:
        self.number = place.number
        self.place = place
        self.sent: dict[int, _Sent] = {}
        self.is_up = False
        self.is_leaving = False
        self.failure = ""
        self.cause = ""
        self.finished = 0
        self._pool = pool
        self._memory = family.memory
        self._region = family.memory.open_region()
        self._status = StatusPage(family.memory.arena.view(self._region))
        self._unsent: list[WireJob] = []
        self._last_number = 0
        self._head_since = 0.0
        self.child = family.zygotes.start(family.mains[op], place.number, self._changed)
        self._link = Link(self.child.sock, pool.loop, Report, self._reported, self._parted)
        self._link.send(framed(Hello(self._region)))

    @property
    def job(self) -> Job | None:
        """What it works on; if nothing, what it should take up next."""
        sent = self.sent.get(self._status.job)
        if sent is None:
            sent = next(iter(self.sent.values()), None)
        return sent.run if sent is not None else None

    @property
    def culprit(self) -> BatchRun | None:
        """What it works on, or did when it ended."""
        sent = self.sent.get(self._status.job)
        return sent.run if sent is not None else None

    @property
    def job_started(self) -> float | None:
        return self._status.job_started if self._status.job in self.sent else None

    @property
    def call_started(self) -> float | None:
        if self._status.job in self.sent:
            return self._status.call_started
        return self._head_since + _PICK_UP_S if self.sent else None

    def give(self, run: BatchRun) -> bool:
        """Queue a run for the next `flush`; False if no sample of it can, or need, be sent."""
        run.outcomes = [None] * len(run.samples)
        parcels: list[Parcel] = []
        indexes: list[int] = []
        samples: list[Sample] = []
        for index, item in enumerate(run.samples):
            if item.is_over:
                continue
            try:
                inputs = {n: self._sealed(part, parcels) for n, part in item.inputs.items()}
            except PayloadTypeError as error:
                run.outcomes[index] = error
                continue
            indexes.append(index)
            samples.append(Sample(item.data_id, item.log_id, inputs))
        if not samples:
            return False
        if not self.sent:
            self._head_since = time.monotonic()
        self._last_number += 1
        self.sent[self._last_number] = _Sent(run, indexes, parcels)
        self._unsent.append(WireJob(self._last_number, samples))
        return True

    def _sealed(self, part: Any, parcels: list[Parcel]) -> Sealed:
        if isinstance(part, Parcel):
            return part.sealed
        parcel = self._memory.parcel(seal(part, self._memory, self._memory.arena))
        parcels.append(parcel)
        return parcel.sealed

    def flush(self) -> None:
        """Send what was given: one frame."""
        if self._unsent:
            work = Work(self._unsent, self._memory.take_freed(self._region))
            self._unsent = []
            self._link.send(framed(work))

    def part(self) -> None:
        """Let it end when it is done with what it has."""
        self._link.close()

    def kill(self, cause: str) -> None:
        self.is_leaving = True
        self.cause = self.cause or cause
        self.child.kill()

    def _reported(self, report: Report) -> None:
        for record in report.records:
            self._pool.family.on_record(record)
        if report.is_ready:
            self._pool.came_up(self)
        elif report.failure:
            self.failure = report.failure
        for result in report.results:
            self._take_result(result)
        if report.results:
            self._pool.feed()

    def _take_result(self, result: Result) -> None:
        parcel = self._memory.parcel
        outcomes: list[Any] = [
            parcel(outcome.payload)
            if outcome.payload is not None
            else error_from_fields(outcome.error.name, outcome.error.code, outcome.error.text)
            if outcome.error is not None
            else None
            for outcome in result.outcomes
        ]
        sent = self.sent.pop(result.number, None)
        if sent is None:
            return
        self.finished += 1
        self._head_since = time.monotonic()
        run = sent.run
        for index, outcome in zip(sent.indexes, outcomes, strict=True):
            run.outcomes[index] = outcome
        run.jumped = result.jumped
        run.start_ns, run.prepared_ns = result.start_ns, result.prepared_ns
        run.processed_ns, run.end_ns = result.processed_ns, result.end_ns
        self._pool.done(self, run)

    def _parted(self) -> None:
        """Its socket was closed, as a rule because it ended: that report comes separately."""
        self._pool.lost_contact(self)

    def _changed(self, child: Child) -> None:
        if child.state == "ended":
            self._link.drain()
            self._pool.ended(self)  # reads the status page: before the region is closed
            self._memory.close_region(self._region)
        else:
            self._pool.stopped_or_continued(self)


class ProcessWorkers:
    """The process workers of one Op; see `Workers`.

    Args:
        op: configured; `set_up` and `init_op` run in every one of its processes.
        count: number of workers, >= 1.
        owner: told on the loop what becomes of the jobs.
    """

    def __init__(
        self, op: Op, count: int, loop: asyncio.AbstractEventLoop, family: Family, owner: Owner
    ) -> None:
        self.name = op.name
        self.loop = loop
        self.family = family
        self._op = op
        self._owner = owner
        self._places = [Place(number) for number in range(count)]
        self._up: list[ProcessWorker] = []
        self._alive: set[ProcessWorker] = set()
        self._backlog: deque[BatchRun] = deque()
        self._started: asyncio.Future[None] = loop.create_future()
        self._is_started = False
        self._all_ended = asyncio.Event()
        self._is_stopped = False

    # What the dispatcher asks -------------------------------------------------------------

    @property
    def count(self) -> int:
        return len(self._up)

    @property
    def is_ready(self) -> bool:
        return self._is_started and not any(place.is_looping for place in self._places)

    @property
    def outage(self) -> PipelineError | None:
        if self._up or not all(place.is_looping for place in self._places):
            return None
        return InitError(
            f"[{self.name}] all its worker processes end again and again; the last one "
            f"{self._places[-1].last_cause}. See PipelineServingLogs/pipeline.log; another attempt "
            "follows before long."
        )

    def busy(self) -> Iterable[Worker]:
        return [worker for worker in self._alive if worker.sent and not worker.is_leaving]

    async def start(self) -> None:
        for place in self._places:
            self._launch(place)
        await self._started
        self._owner.workers_changed()

    def submit(self, jobs: Sequence[BatchRun]) -> None:
        for run in jobs:
            self._assign(run)
        for worker in self._up:
            worker.flush()

    def replace(self, worker: Worker, job: Any) -> bool:
        """Kill `worker`; what it has and is not superseded goes to others, and `job` before it."""
        hanging = cast(ProcessWorker, worker)
        _LOGGER.warning(
            "[%s] worker %d (pid %s) hangs: it is killed and replaced.",
            self.name,
            hanging.number,
            hanging.child.pid,
        )
        hanging.kill("hung and was killed")
        self._take_back(hanging)
        if job is not None:
            self._backlog.appendleft(job)
        self.feed()
        return True

    async def stop(self, timeout_s: float) -> int:
        self._is_stopped = True
        for place in self._places:
            place.set_timer(None)
        for worker in list(self._alive):
            worker.part() if worker.is_up else worker.kill("was stopped at its start")
        if not await self._have_ended(timeout_s):
            for worker in list(self._alive):
                worker.kill("did not stop in time")
            await self._have_ended(_KILLED_S)
        return len(self._alive)

    async def _have_ended(self, timeout_s: float) -> bool:
        try:
            if self._alive:
                await asyncio.wait_for(self._all_ended.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    # Jobs -----------------------------------------------------------------------------------

    def _assign(self, run: BatchRun) -> None:
        if not self._up:
            self._backlog.append(run)
            return
        worker = min(self._up, key=_load) if len(self._up) > 1 else self._up[0]
        if not worker.give(run):
            self.loop.call_soon(self._owner.done, worker, run)

    def feed(self) -> None:
        """Hand out what waits for a worker, one job at a time to each."""
        while self._backlog and self._up:
            worker = min(self._up, key=_load)
            if worker.sent:
                break
            self._assign(self._backlog.popleft())
            worker.flush()

    def done(self, worker: ProcessWorker, run: BatchRun) -> None:
        self._owner.done(worker, run)
        if worker.place.failures:
            self._is_steady(worker.place)

    def _take_back(self, worker: ProcessWorker, culprit: BatchRun | None = None) -> None:
        """`worker` gets no more jobs; those that it has and did not begin are for others."""
        self._rest(worker)
        given = [sent.run for sent in worker.sent.values()]
        runs = [run for run in given if run is not culprit and not run.is_superseded]
        worker.sent.clear()
        self._backlog.extendleft(reversed(runs))

    # Supervision ----------------------------------------------------------------------------

    def _launch(self, place: Place) -> None:
        place.set_timer(None)
        self._alive.add(ProcessWorker(self, place, self.family, self._op))
        self._all_ended.clear()

    def came_up(self, worker: ProcessWorker) -> None:
        worker.is_up = True
        self._watch_steadiness(worker.place)
        if not worker.is_leaving:
            self._up.append(worker)
        if not self._is_started:
            self._settle_start()
        self.feed()
        self._owner.workers_changed()

    def _settle_start(self) -> None:
        if len(self._up) == len(self._places) and not self._started.done():
            self._is_started = True
            self._started.set_result(None)

    def _watch_steadiness(self, place: Place) -> None:
        is_failing = place.failures > 0
        timer = self.loop.call_later(_STEADY_S, self._is_steady, place) if is_failing else None
        place.set_timer(timer)

    def _is_steady(self, place: Place) -> None:
        place.failures = 0
        self._owner.workers_changed()

    def _rest(self, worker: ProcessWorker) -> None:
        """Give `worker` no more jobs for now."""
        if worker in self._up:
            self._up.remove(worker)

    def lost_contact(self, worker: ProcessWorker) -> None:
        self._rest(worker)
        cause = "closed its connection to the server and was killed"
        self.loop.call_later(_PARTED_S, self._kill_if_alive, worker, cause)

    def stopped_or_continued(self, worker: ProcessWorker) -> None:
        if worker.child.state == "stopped":
            self._rest(worker)
            cause = "was stopped (SIGSTOP), did not go on, and was killed"
            timer = self.loop.call_later(_STOPPED_S, self._kill_if_alive, worker, cause)
            worker.place.set_timer(timer)
        elif worker.is_up and not worker.is_leaving and worker not in self._up:
            self._watch_steadiness(worker.place)
            self._up.append(worker)
            self.feed()
        self._owner.workers_changed()

    def _kill_if_alive(self, worker: ProcessWorker, cause: str) -> None:
        if worker in self._alive:
            worker.kill(cause)

    def ended(self, worker: ProcessWorker) -> None:
        """The process is gone: see to its jobs, then to its place."""
        self._alive.discard(worker)
        if not self._alive:
            self._all_ended.set()
        place = worker.place
        place.set_timer(None)
        place.ended(worker.cause or worker.child.ending, got_somewhere=worker.finished > 0)
        if self._is_stopped:
            return
        if not self._is_started:
            self._fail_start(worker)
            return
        self._log_end(worker)
        culprit = worker.culprit
        self._take_back(worker, culprit)
        if culprit is not None:
            error = culprit.died(self.name, worker.number, place.last_cause)
            self._owner.lost(culprit, error)
        place.set_timer(self.loop.call_later(place.pause_s, self._launch, place))
        self._fail_backlog()
        self.feed()
        self._owner.workers_changed()

    def _fail_start(self, worker: ProcessWorker) -> None:
        reason = worker.failure or f"its worker process {worker.place.last_cause}"
        if not self._started.done():
            self._started.set_exception(InitError(f"Op {self.name!r} failed to start: {reason}"))

    def _log_end(self, worker: ProcessWorker) -> None:
        place = worker.place
        _LOGGER.log(
            logging.ERROR if place.is_looping else logging.WARNING,
            "[%s] worker %d (pid %s) %s: %s%s",
            self.name,
            worker.number,
            worker.child.pid,
            place.last_cause,
            place.describe_restart(),
            f"\n{worker.failure}" if worker.failure else "",
        )

    def _fail_backlog(self) -> None:
        outage = self.outage
        while outage is not None and self._backlog:
            run = self._backlog.popleft()
            self._owner.lost(run, outage)


def _load(worker: ProcessWorker) -> int:
    return len(worker.sent)
