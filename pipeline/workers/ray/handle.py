"""One actor as the server sees it: what it was sent, what it reports, how it ends."""

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

_PICK_UP_TIMEOUT_S = 1.0  # for an actor to begin what it was sent, beyond the Op's timeout
_SILENT_LOOKS = 4  # an actor that has told nothing for so many of its looks hangs in its call


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
    """State of an actor, as far as it can be told from here: it takes what it has in order."""

    def __init__(self) -> None:
        super().__init__(memoryview(bytearray(4096)))

    def takes_up(self, job: int, at: float) -> None:
        """Take note that a job, 0: none, is what it is at, since then."""
        self._cells[0], self._cells[1], self._cells[2] = job, at, 0.0


class RayWorker(ProcessWorker):
    """One actor. See `ProcessWorker`; what it is sent and what it tells is the same.

    Attributes:
        link: the way to it.
        node: the id of the one that it is on; "": it is on none yet.
    """

    link: ActorLink
    node: str = ""

    def __init__(
        self, workers: RayWorkers, slot: RestartSlot, commons: RayContext, op: Op, node: str | None
    ) -> None:
        self._actors = workers
        self._wanted_node = node
        self._told: tuple[int, float, float | None] | None = None  # job, when, its call's begin
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

    # How it stands ------------------------------------------------------------------------------

    @property
    def call_started(self) -> float | None:
        if not self.sent:
            return None
        if self._told is None or self._told[0] != self.status.job:
            return self._head_since + _PICK_UP_TIMEOUT_S
        _, told_at, called_at = self._told
        if self.is_silent:
            return called_at or told_at
        # What it told is as old as one of its looks: the call may have ended since.
        return called_at + self._actors.look_s if called_at is not None else None

    @property
    def is_silent(self) -> bool:
        """Return whether it has told nothing of what it is at: perhaps it cannot be reached."""
        if self._told is None or self._told[0] != self.status.job:
            return True
        look_s = self._actors.look_s
        return self._pool.loop.time() - self._told[1] > look_s * _SILENT_LOOKS

    def _look_at_head(self) -> None:
        """Take note of which job it is at now."""
        head = next(iter(self.sent), 0)
        if head != self._head.job:
            self._head.takes_up(head, self._pool.loop.time())
            self._told = None

    # What it is told ----------------------------------------------------------------------------

    def flush(self) -> None:
        """Send what was given: a batch or a slice a call, so that each comes back at once."""
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
        """Ask for what it has not begun; the pool is told when it has said so."""
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

    # What it tells ------------------------------------------------------------------------------

    def opens(self, report: WorkerReport) -> list[int]:
        """See `LinkOwner`: the answers that do not go to actors only."""
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
            self._told = job, now, None if call_age_s < 0 else now - call_age_s

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
