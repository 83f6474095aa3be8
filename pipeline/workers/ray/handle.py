"""One actor as the server sees it: its jobs, its reports, and its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from pipeline.engine.run.stages import BatchRun
from pipeline.op import Op
from pipeline.workers.process.handle import KindContext, ProcessWorker
from pipeline.workers.process.pages import StatusPage
from pipeline.workers.process.wire import ItemOutcome, Jobs, WireSlice, WorkerReport
from pipeline.workers.ray.link import ActorLink, RayContext
from pipeline.workers.ray.objects import outcomes_of
from pipeline.workers.restart_policy import RestartSlot

if TYPE_CHECKING:
    from pipeline.workers.ray.pool import RayWorkers

_PICK_UP_TIMEOUT_S = 1.0  # for an actor to begin a job, in addition to the Op's timeout
_SILENT_LOOKS = 4  # an actor without a report for so many of its periods hangs in its call


class Actor:
    """An actor's process as a `Life`."""

    def __init__(self, worker: RayWorker) -> None:
        self.pid: int | None = None
        self.ending: str = ""
        self.state: str = "starting"
        self._worker = worker

    def kill(self) -> None:
        if self.state != "ended":
            self._worker.link.kill()


class HeadStatus(StatusPage):
    """State of an actor, as far as the server can know it: it runs its jobs in order."""

    def __init__(self) -> None:
        super().__init__(memoryview(bytearray(4096)))

    def set_running(self, job: int, at: float) -> None:
        """Set the running job (0: none), and since when it runs."""
        self._cells[0], self._cells[1], self._cells[2] = job, at, 0.0


class RayWorker(ProcessWorker):
    """One actor. See `ProcessWorker`; its messages are the same.

    Attributes:
        link: the connection to it.
        node: the id of its node; "": it has none yet.
    """

    link: ActorLink
    node: str = ""

    def __init__(
        self, workers: RayWorkers, slot: RestartSlot, commons: RayContext, op: Op, node: str | None
    ) -> None:
        self._actors = workers
        self._wanted_node = node
        self._progress: tuple[int, float, float | None] | None = (
            None  # job, time, begin of its call
        )
        super().__init__(workers, slot, commons, op)

    def _connect(self, commons: KindContext, op: Op) -> None:
        context, pool = cast(RayContext, commons), self._actors
        self._head = HeadStatus()
        self.status: HeadStatus = self._head
        self.child: Actor = Actor(self)
        self._actor = self.child
        cargo = pool.cargo(self.number)
        self._link = self.link = ActorLink(context, pool.sender, self, cargo, op.name)
        self.link.start(pool.demands(self._wanted_node), pool.model_refs)

    # State --------------------------------------------------------------------------------------

    @property
    def call_started(self) -> float | None:
        if not self.sent:
            return None
        if self._progress is None or self._progress[0] != self.status.job:
            return self._head_since + _PICK_UP_TIMEOUT_S
        _, told_at, called_at = self._progress
        if self.is_silent:
            return called_at or told_at
        # A report is up to one period old: the call may have ended since.
        return called_at + self._actors.look_s if called_at is not None else None

    @property
    def is_silent(self) -> bool:
        """Return whether it has not reported progress: perhaps it cannot be reached."""
        if self._progress is None or self._progress[0] != self.status.job:
            return True
        look_s = self._actors.look_s
        return self._pool.loop.time() - self._progress[1] > look_s * _SILENT_LOOKS

    def _look_at_head(self) -> None:
        """Update the running job."""
        head = next(iter(self.sent), 0)
        if head != self._head.job:
            self._head.set_running(head, self._pool.loop.time())
            self._progress = None

    # Messages to the actor ----------------------------------------------------------------------

    def flush(self) -> None:
        """Send the queued jobs: one call for each batch or slice, so that each returns at once."""
        if not (self._unsent or self._slices):
            return
        jobs, slices = self._unsent, self._slices
        self._unsent, self._slices = [], []
        for job in jobs:
            with_it = [piece for piece in slices if _is_told(piece, job.number)]
            self.link.work(Jobs([job], [], with_it), job.number)
            slices = [piece for piece in slices if piece not in with_it]
        for piece in slices:
            if piece.number:
                self.link.work(Jobs([], [], [piece]), piece.number)
            else:
                self.link.tell(Jobs([], [], [piece]))
        self._look_at_head()

    def revoke(self) -> list[BatchRun]:
        """Ask for the jobs that it has not begun; the pool gets them after its reply."""
        if len(self.sent) > 1:
            self.link.revoke(self._last_number, self._on_revoked)
        return []

    def _on_revoked(self, begun: int) -> None:
        waiting = [
            number
            for number, sent in self.sent.items()
            if number > begun and sent.run not in self.streams
        ]
        self._pool.on_returned([self.sent.pop(number).run for number in waiting])

    # Messages from the actor --------------------------------------------------------------------

    def opens(self, report: WorkerReport) -> list[int]:
        """Return the objects of answers that do not go to actors only; see `LinkOwner`."""
        numbers: list[int] = []
        for result in report.results:
            sent = self.sent.get(result.number)
            for place, outcome in enumerate(result.outcomes):
                item = sent.run.items[sent.indexes[place]] if sent is not None else None
                numbers += self._opened(outcome, item, result.jumped)
        for parts in report.parts:
            for _, outcome in parts.entries:
                numbers += self._opened(outcome, None)
        return numbers

    def _opened(self, outcome: ItemOutcome, item: Any, jumped: bool = False) -> Sequence[int]:
        payload = outcome.payload
        if payload is None or not payload.buffers:
            return ()
        target = item.request.target if item is not None else None
        is_routed = jumped or outcome.to is not None or outcome.is_final
        is_for_one = target is not None and target.op is not None
        if self._actors.passes_on and not is_routed and not is_for_one:
            return ()
        return [block.region for block in payload.buffers]

    def on_began(self, node: str, pid: int) -> None:
        self.node, self._actor.pid, self._actor.state = node, pid, "running"

    @property
    def objects(self) -> int:
        return self._actors.objects

    def on_report(self, report: WorkerReport) -> None:
        self._actors.has_large(sum(map(_is_large, outcomes_of(report))))
        self._reported(report)
        self._look_at_head()

    def on_running(self, job: int, age_s: float, call_age_s: float) -> None:
        now = self._pool.loop.time()
        if job == self._head.job:
            self._progress = job, now, None if call_age_s < 0 else now - call_age_s

    def on_job_lost(self, number: int, why: str) -> None:
        sent = self.sent.pop(number, None)
        if sent is not None:
            self._look_at_head()
            self._actors.on_job_lost(self, sent.run, why)

    def on_unreachable(self) -> None:
        self._actors.on_unreachable(self)

    def on_end(self, why: str) -> None:
        self._actor.state, self._actor.ending = "ended", why
        self._workers.on_ended(self)


def _is_large(outcome: ItemOutcome) -> bool:
    return outcome.payload is not None and bool(outcome.payload.buffers)


def _is_told(piece: WireSlice, number: int) -> bool:
    return not piece.number and piece.stream == number
