"""Process workers: supervised processes, each with its own copy of the Op.

A worker that hangs, crashes or is killed is replaced, with growing pauses if it never finishes a
batch. Jobs that it had not begun go to others; the owner decides about the batch that it was
running.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, cast

from pipeline.engine.run.payload import MemoryDomain
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.state import WorkersState
from pipeline.engine.streams.run import Entry, StreamRun
from pipeline.engine.worker_api import StreamOwner, Worker, WorkersBase, WorkersOwner
from pipeline.errors import InitError, PipelineError
from pipeline.op import Op
from pipeline.predictors.base import ModelMetadata
from pipeline.workers.process.handle import KindContext, ProcessContext, ProcessWorker
from pipeline.workers.process.pages import AbandonedRequests
from pipeline.workers.process.sending import SendingOp, SentStream
from pipeline.workers.process.sent import unsent_of
from pipeline.workers.restart_policy import KILLED_S, STOPPED_S, RestartSlot

_LOGGER = logging.getLogger(__name__)

_RESCUE_S = 0.002  # for jobs that were sent ahead to a worker which is slower than usual
_DISCONNECT_TIMEOUT_S = 1.0  # for a worker to end that closed its socket, or failed to start
_STEADY_S = 10.0  # a worker that runs this long has left its crash loop


class ProcessPool:
    """The running worker processes of one Op: which of them take jobs, and which jobs.

    Args:
        schedule: called after a worker's report was read: the Op may cut batches again.

    Attributes:
        up: the workers that take jobs.
        alive: all workers that have started and not ended.
        leaving: the workers that were dismissed and have not ended.
        backlog: runs that wait for a worker.
        has_sequences: whether there are sequences; each stays with its worker.
    """

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        owner: WorkersOwner,
        schedule: Callable[[], None],
    ) -> None:
        self.loop = loop
        self.up: list[ProcessWorker] = []
        self.alive: set[ProcessWorker] = set()
        self.leaving: set[ProcessWorker] = set()
        self.backlog: deque[BatchRun] = deque()
        self.has_sequences: bool = False
        self._name = name
        self._owner = owner
        self._schedule = schedule
        # a scheduler that chooses the workers balances their load itself
        self._is_addressed = False
        self._rescue_timer: asyncio.TimerHandle | None = None
        self._has_ended = asyncio.Event()

    # Jobs -----------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[BatchRun]) -> None:
        if self.backlog and self.up:  # it is older, and no worker may become idle
            jobs = [*self.backlog, *jobs]
            self.backlog.clear()
        for run in jobs:
            self._assign(run)
        for worker in self.up:
            worker.flush()

    def _assign(self, run: BatchRun) -> None:
        if isinstance(run, StreamRun) and run.groups is not None:
            self._go_on(run)
            return
        if run.places is not None:
            self._assign_to_own_worker(run)
            return
        if not self.up:
            self.backlog.append(run)
            return
        worker = min(self.up, key=_load) if len(self.up) > 1 else self.up[0]
        if run.worker is not None:
            self._is_addressed = True
            worker = next((other for other in self.up if other.number == run.worker), worker)
        if not worker.give(run):
            self.loop.call_soon(self._unsent, worker, run)

    def _assign_to_own_worker(self, run: BatchRun) -> None:
        """Give a run to the only worker that can run it, even if it is stopped now."""
        self._is_addressed = self.has_sequences = True
        candidates = self.alive - self.leaving
        worker = next(
            candidate
            for candidate in candidates
            if candidate.keeps and candidate.number == run.worker
        )
        if not worker.give(run):
            self.loop.call_soon(self._unsent, worker, run)
        worker.flush()

    def _go_on(self, run: StreamRun) -> None:
        """Let the worker that has a run's generators continue them."""
        for worker in self.alive:
            if run not in worker.streams:
                continue
            if isinstance(run, SentStream):
                worker.send_room(run)
                self.loop.call_soon(self._owner.done, worker, run)
                return
            worker.give(run)
            worker.flush()

    def joined(self, run: StreamRun) -> None:
        """Send the requests that have joined a run to its worker."""
        for worker in self.up:
            worker.join(run)
            worker.flush()

    def _unsent(self, worker: ProcessWorker, run: BatchRun) -> None:
        """Note that a run was over, or failed, before it was sent."""
        if isinstance(run, StreamRun):
            run.is_finished = True
            self.parts(run, unsent_of(run))
        self._owner.done(worker, run)

    def feed(self) -> None:
        """Send waiting runs to workers, one job at a time to each."""
        for worker in self.leaving:
            self._end_if_done(worker)
        while self.backlog and self.up:
            worker = min(self.up, key=_load)
            if worker.sent:
                break
            self._assign(self.backlog.popleft())
            worker.flush()
        if self._rescue_timer is None and len(self.up) > 1 and not self._is_addressed:
            loads = [len(worker.sent) for worker in self.up]
            if min(loads) == 0 and max(loads) > 1:  # no job should wait long while a worker is idle
                self._rescue_timer = self.loop.call_later(_RESCUE_S, self._rescue)

    def _rescue(self) -> None:
        self._rescue_timer = None
        now = self.loop.time()
        if not all(worker.sent for worker in self.up):
            for worker in self.up:
                began = worker.job_started if len(worker.sent) > 1 else None
                if began is not None and now - began > _RESCUE_S:  # and others wait behind it
                    self._give_back(worker.revoke())
        self.feed()

    def on_reported(self) -> None:
        """Continue after a worker's results were read."""
        self.feed()
        self._schedule()

    def on_returned(self, runs: list[BatchRun]) -> None:
        """Take back runs that a worker has not begun, and will not."""
        self._give_back(runs)
        self.feed()

    def _give_back(self, runs: Sequence[BatchRun]) -> None:
        self.backlog.extendleft(reversed(runs))

    def parts(self, run: StreamRun, entries: Sequence[Entry]) -> None:
        """Pass on the parts of a generator."""
        cast(StreamOwner, self._owner).parts(run, entries)

    def done(self, worker: ProcessWorker, run: BatchRun) -> None:
        """Take a run that a worker has finished."""
        self._owner.done(worker, run)
        if worker.slot.failures:
            self.is_steady(worker.slot)

    def take_back(self, worker: ProcessWorker, running: BatchRun | None = None) -> None:
        """Give `worker` no more jobs; other workers get the jobs that it has not begun."""
        self.rest(worker)
        given = [sent.run for sent in worker.sent.values()]
        others = [run for run in given if run is not running and run not in worker.streams]
        runs = [run for run in others if not run.is_superseded]
        worker.sent.clear()
        if not self.has_sequences:
            self._give_back(runs)
            return
        for run in runs:  # their states were only there
            self.died(worker, run)

    def died(self, worker: ProcessWorker, run: BatchRun) -> None:
        """Report a run that is lost with its worker to the owner."""
        cause = worker.cause or worker.child.ending
        self._owner.lost(run, run.died(self._name, worker.number, cause))

    def is_steady(self, slot: RestartSlot) -> None:
        """Note that a place has left its crash loop."""
        slot.is_steady()
        self._owner.workers_changed()

    # Starts and ends of workers ---------------------------------------------------------------

    def rest(self, worker: ProcessWorker) -> None:
        """Give `worker` no more jobs for now."""
        if worker in self.up:
            self.up.remove(worker)

    def dismiss(self, worker: ProcessWorker) -> None:
        """Let a worker end after the jobs that it has begun."""
        self.rest(worker)
        self.leaving.add(worker)
        if worker.is_up:
            self._give_back(worker.revoke())
            self._end_if_done(worker)
        else:
            worker.kill("is not needed any more")

    def _end_if_done(self, worker: ProcessWorker) -> None:
        """Let a dismissed worker end, if it has no job left."""
        if not (worker.sent or worker.streams or worker.is_leaving):
            worker.disconnect()

    def ended(self, worker: ProcessWorker) -> None:
        """Read the last messages of a worker whose process has ended."""
        self.rest(worker)
        worker.drain()
        self.alive.discard(worker)
        self.leaving.discard(worker)
        self._has_ended.set()

    async def have_ended(self, workers: Collection[ProcessWorker], timeout_s: float) -> bool:
        """Wait until `workers`, which is `alive` or `leaving`, is empty; return whether it is."""
        try:
            async with asyncio.timeout(timeout_s):
                while workers:
                    self._has_ended.clear()
                    await self._has_ended.wait()
        except TimeoutError:
            return False
        return True

    def lives(self) -> Mapping[int, int]:
        """Return the incarnations of the workers; see `StableWorkers`."""
        workers = self.alive - self.leaving
        return {worker.number: worker.life for worker in workers if worker.keeps}

    async def check_models(self) -> bool:
        """Return whether every worker's model says that it is ready; see `Workers`."""
        checks = [worker.calls.check for worker in self.up if worker.calls is not None]
        answers = (check.is_ready() for check in checks if check is not None)
        return all(await asyncio.gather(*answers))

    def close(self) -> None:
        """Give workers no more jobs."""
        self.up.clear()
        if self._rescue_timer is not None:
            self._rescue_timer.cancel()


class ProcessWorkers(WorkersBase):
    """The process workers of one Op; see `Workers`. `pool` has the running ones.

    `set_up` and `init_op` of the Op run in every one of its processes.

    Attributes:
        kind: its name in states.
    """

    kind: str = "process"
    addressable: bool = True
    runs_slices: bool = True
    takes_convoys: bool = True
    may_be_none: bool = True

    def __init__(
        self,
        op: Op,
        count: int,
        loop: asyncio.AbstractEventLoop,
        processes: KindContext,
        owner: WorkersOwner,
        schedule: Callable[[], None] = lambda: None,
    ) -> None:
        self.name: str = op.name
        self.memory_domain: MemoryDomain = cast(MemoryDomain, processes.memory)
        sends = isinstance(op, SendingOp) and processes.models is not None
        if sends:
            self.stream_type: type[BatchRun] | None = SentStream
        self.loop = loop
        self.pool: ProcessPool = ProcessPool(op.name, loop, owner, schedule)
        self.submit: Callable[[Sequence[BatchRun]], None] = self.pool.submit
        self.lives: Callable[[], Mapping[int, int]] = self.pool.lives
        self.check_models: Callable[[], Coroutine[Any, Any, bool]] = self.pool.check_models
        self._processes = processes
        self._op = op
        self._owner = owner
        self._slots = [RestartSlot(number) for number in range(count)]
        self._started: asyncio.Future[None] = loop.create_future()
        self._is_started = False
        self._launched = 0
        self._joining: dict[RestartSlot, asyncio.Future[None]] = {}
        self._is_stopped = False

    # For the dispatcher -------------------------------------------------------------------

    @property
    def count(self) -> int:
        return len(self.pool.up)

    @property
    def is_ready(self) -> bool:
        is_looping = any(slot.is_looping for slot in self._slots)
        is_up = bool(self.pool.up) or not self._slots  # all may have left for now
        return self._is_started and is_up and not is_looping

    def state(self) -> WorkersState:
        return WorkersState(
            kind=self.kind,
            wanted=len(self._slots),
            up=len(self.pool.up),
            busy=sum(bool(worker.sent) for worker in self.pool.up),
            restarts=max(0, self._launched - len(self._slots)),
        )

    @property
    def outage(self) -> PipelineError | None:
        if self.pool.up or not self._slots or not all(slot.is_hopeless for slot in self._slots):
            return None
        return InitError(
            f"[{self.name}] all worker processes end repeatedly; the last one "
            f"{self._slots[-1].last_cause}. See PipelineServingLogs/pipeline.log; another attempt "
            "follows soon."
        )

    def busy(self) -> Iterable[Worker]:
        return [worker for worker in self.pool.alive if worker.sent and not worker.is_leaving]

    @property
    def numbers(self) -> Collection[int]:
        return [slot.number for slot in self._slots]

    async def add(self, numbers: Sequence[int]) -> None:
        joining = {RestartSlot(number): self.loop.create_future() for number in numbers}
        self._joining |= joining
        try:
            for slot in joining:
                self._launch(slot)
            await asyncio.gather(*joining.values())
        except BaseException:
            self._let_go(joining)
            raise
        finally:
            for slot in joining:
                del self._joining[slot]

    def dismiss(self, numbers: Collection[int]) -> None:
        self._let_go([slot for slot in self._slots if slot.number in numbers])

    def _let_go(self, slots: Collection[RestartSlot]) -> None:
        for slot in slots:
            slot.set_timer(None)
        self._slots = [slot for slot in self._slots if slot not in slots]
        for worker in [member for member in self.pool.alive if member.slot in slots]:
            self._launched -= 1
            self.pool.dismiss(worker)
        self.pool.feed()

    async def have_left(self, timeout_s: float) -> bool:
        return await self.pool.have_ended(self.pool.leaving, timeout_s)

    def joined(self, run: StreamRun) -> None:
        self.pool.joined(run)

    async def start(self) -> None:
        self._launch_all()
        await self._started
        self._owner.workers_changed()

    def replace(self, worker: Worker, job: Any) -> bool:
        """Kill `worker`; its jobs that are not superseded go to others, after `job`."""
        hanging = cast(ProcessWorker, worker)
        _LOGGER.warning(
            "[%s] worker %d (pid %s) hangs: it is killed and replaced.",
            self.name,
            hanging.number,
            hanging.child.pid,
        )
        hanging.hung_at = running = hanging.running
        if running is not None:
            running.lost_at = hanging.status.item
        hanging.kill("hung and was killed")
        self.pool.take_back(hanging)
        if job is not None:
            self.pool.backlog.appendleft(job)
        self.pool.feed()
        return True

    def forget(self, data_id: int) -> None:
        processes = cast(ProcessContext, self._processes)
        arena = processes.memory.arena
        AbandonedRequests(arena.view(processes.forgotten)).add(data_id)

    async def stop(self, timeout_s: float) -> int:
        self._is_stopped = True
        self._fail_start("the server was stopped")
        self.pool.close()
        for slot in self._slots:
            slot.set_timer(None)
        for worker in list(self.pool.alive):
            if worker.is_up and all(sent.run in worker.streams for sent in worker.sent.values()):
                worker.disconnect()  # generators are closed
            else:
                worker.kill("was stopped")  # nobody needs its result any more
        alive = self.pool.alive
        if not await self.pool.have_ended(alive, timeout_s):
            for worker in list(alive):
                worker.kill("did not stop in time")
            await self.pool.have_ended(alive, KILLED_S)
        return len(alive)

    # Supervision ----------------------------------------------------------------------------

    def _make(self, slot: RestartSlot) -> ProcessWorker:
        """Return a worker for a place, whose process is starting."""
        return ProcessWorker(self, slot, self._processes, self._op)

    def _launch_all(self) -> None:
        for slot in self._slots:
            self._launch(slot)

    def _launch(self, slot: RestartSlot) -> None:
        slot.set_timer(None)
        try:
            worker = self._make(slot)
        except (InitError, OSError) as error:
            if not self._is_started or slot in self._joining:
                raise
            slot.ended(f"could not be started: {error}", got_somewhere=False)
            self._restart(slot, None, "")
            return
        self._launched += 1
        self.pool.alive.add(worker)

    def on_ready(self, worker: ProcessWorker) -> None:
        """Give `worker` jobs from now on, if it can take any."""
        self.note: ModelMetadata | None = worker.note or self.note
        if worker in self.pool.leaving:
            return
        takes_jobs = worker.is_up and not worker.is_leaving and worker.child.state != "stopped"
        if takes_jobs and worker not in self.pool.up:
            slot = worker.slot
            steady = self.pool.is_steady if slot.failures else None
            slot.set_timer(steady and self.loop.call_later(_STEADY_S, steady, slot))
            self.pool.up.append(worker)
            joining = self._joining.get(slot)
            if joining is not None and not joining.done():
                self._slots.append(slot)
                joining.set_result(None)
            if len(self.pool.up) == len(self._slots) and not self._started.done():
                self._is_started = True
                self._started.set_result(None)
            self.pool.feed()
        self._owner.workers_changed()

    def _fail_start(self, reason: str) -> None:
        if not self._started.done():
            self._started.set_exception(InitError(f"Op {self.name!r} failed to start: {reason}"))
            self._started.exception()  # marked as retrieved, because nobody may wait for it
        for joining in self._joining.values():
            if not joining.done():
                joining.set_exception(InitError(f"Op {self.name!r}: {reason}"))

    def on_exiting(self, worker: ProcessWorker) -> None:
        """Stop `worker`, which is about to end by itself; kill it if it does not."""
        worker.is_leaving = True
        self.pool.rest(worker)
        cause = "closed its connection to the server and was killed"
        self.loop.call_later(_DISCONNECT_TIMEOUT_S, worker.kill, cause)

    def on_stopped_or_continued(self, worker: ProcessWorker) -> None:
        """Act on a change of `worker.child.state`."""
        if worker.child.state == "stopped":
            self.pool.rest(worker)
            cause = "was stopped (SIGSTOP), did not continue, and was killed"
            worker.slot.set_timer(self.loop.call_later(STOPPED_S, worker.kill, cause))
            if not self.pool.has_sequences:
                self.pool.on_returned(worker.revoke())
            self._owner.workers_changed()
        else:
            worker.slot.set_timer(None)
            self.on_ready(worker)

    def on_ended(self, worker: ProcessWorker) -> None:
        """Handle the jobs of a process that has ended, then its place."""
        self.pool.ended(worker)
        slot = worker.slot
        slot.set_timer(None)
        running = worker.running
        cause = worker.cause or worker.child.ending
        blamed = running or worker.hung_at
        is_again = blamed is not None and blamed.attempts > 0
        slot.ended(cause, worker.finished > 0, blamed is not None, is_again)
        self.pool.take_back(worker, running)
        if self._is_stopped:
            return
        if not self._is_started:
            self._fail_start(worker.failure or f"its worker process {slot.last_cause}")
            return
        if running is not None:
            running.lost_at = worker.status.item
            worker.streams.pop(running, None)
            self.pool.died(worker, running)
        for stream in worker.streams:
            self.pool.died(worker, stream)
        joining = self._joining.get(slot)
        if joining is not None and not joining.done():
            text = f"Op {self.name!r}: {worker.failure or f'its worker process {slot.last_cause}'}"
            joining.set_exception(InitError(text))
        if slot not in self._slots:  # it was dismissed, or has failed to start
            self.pool.feed()
            return
        self._restart(slot, worker.child.pid, worker.failure)

    def _restart(self, slot: RestartSlot, pid: int | None, failure: str) -> None:
        _LOGGER.log(
            logging.ERROR if slot.is_looping else logging.WARNING,
            "[%s] worker %d (pid %s) %s: %s%s",
            self.name,
            slot.number,
            pid,
            slot.last_cause,
            slot.describe_restart(),
            f"\n{failure}" if failure else "",
        )
        slot.set_timer(self.loop.call_later(slot.pause_s, self._launch, slot))
        outage = self.outage
        while outage is not None and self.pool.backlog:
            self._owner.lost(self.pool.backlog.popleft(), outage)
        self.pool.feed()
        self._owner.workers_changed()


def _load(worker: ProcessWorker) -> tuple[int, int]:
    return len(worker.sent), len(worker.streams)
