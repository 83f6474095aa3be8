"""SequenceDispatcher: the dispatcher of an Op with `sequence`: its requests stay at one worker."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from pipeline.data import max_batch_size_of
from pipeline.engine.admission import AdmissionController
from pipeline.engine.filters import Filter
from pipeline.engine.journal.journal import Outcome
from pipeline.engine.op.dispatcher import OpDispatcher
from pipeline.engine.op.lone_run import LoneRun
from pipeline.engine.request import RequestState
from pipeline.engine.run.payload import Absent
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.schedulers.base import Scheduler
from pipeline.engine.schedulers.held_start import held_start
from pipeline.engine.sequences.controls import Controls
from pipeline.engine.sequences.direct import DirectScheduler
from pipeline.engine.sequences.feeds import controls_at, has_fillers
from pipeline.engine.sequences.kept_sequences import KeptSequenceBook
from pipeline.engine.sequences.oldest import OldestScheduler
from pipeline.engine.sequences.order import SequenceOrder, Turnstile
from pipeline.engine.sequences.pairs import SequencePairs
from pipeline.engine.sequences.scheduler import SequenceScheduler
from pipeline.engine.state import OpState
from pipeline.engine.streams.plan import ITERATIVE
from pipeline.engine.trips.trip import Trip
from pipeline.engine.worker_api import Lasting, Resizable, Worker
from pipeline.errors import DeadlineError, GraphError, PipelineError, RequestCancelledError
from pipeline.op import Op

_LOGGER = logging.getLogger(__name__)

_WARNS_EVERY_S = 60.0  # that sequences wait for slots
_LOOKS_EVERY_S = 1.0  # whether they do: to tell takes as long as there are sequences
_MOST_TOLD = 256  # in one turn of the event loop, of those who are refused behind others
_STRATEGIES: dict[str | None, type[SequenceScheduler]] = {
    "direct": DirectScheduler,
    "oldest": OldestScheduler,
}


class SequenceDispatcher(OpDispatcher):
    """Has each sequence run at one worker, which keeps what its Op does.

    A batch is never run twice: that would be a second step of its sequences. What a lost worker
    had is lost, and so are the sequences there; unless the book has their states, of before the
    batch: then they go on elsewhere.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        if not isinstance(self.workers, Lasting):
            kind = self.op.pipeline_config.workers
            raise GraphError(f"Op {self.name!r} has sequence, which workers: {kind} cannot keep.")
        self._lasting: Lasting = self.workers
        self._idle_timer: asyncio.Handle | None = None
        self._idle_due = 0.0  # when that goes off: uvloop has no `when` of what is due at once
        self.spans.has_fillers = has_fillers(self.op)
        self._warns_at = float("-inf")

    def _make_scheduler(self) -> Scheduler:
        config = self.op.pipeline_config
        most = max_batch_size_of(self.op) or config.batch_size
        config = msgspec.structs.replace(config, batch_size=min(most, config.batch_size))
        slots = config.sequence.max_candidates or config.batch_size
        make = _STRATEGIES[config.sequence.strategy]
        self.sequences: SequenceScheduler = make(config, self.name, slots)
        self.sequences.controls = Controls(self.name, controls_at(self.op))
        self.sequences.start = held_start(os.environ)
        self.turnstile: Turnstile = Turnstile(self.sequences, self._now, self._wake)
        return self.turnstile

    def _now(self) -> float:
        return self._router.loop.time()

    def _wake(self) -> None:
        self._router.cycle.mark_dirty(self)

    # In ---------------------------------------------------------------------------------

    def drop(self, request: RequestState) -> None:
        """Drop what is queued here for a request that is over, and end its sequence."""
        super().drop(request)
        if self.sequences.book.refused:
            self._wake()

    @property
    def waiting(self) -> int:
        return len(self.scheduler) + self.turnstile.parked

    def state(self, group: tuple[str, ...] = ()) -> OpState:
        state = super().state(group)
        if not self.sequences.book.slots.lives:  # nothing has come yet
            self.sequences.workers_are(self._lasting.lives())
        return msgspec.structs.replace(state, sequences=self.sequences.book.state())

    def _pass_by(self, request: RequestState, error: PipelineError | Absent) -> None:
        self.turnstile.comes_not(request, error)
        super()._pass_by(request, error)

    # Batches ----------------------------------------------------------------------------

    def schedule(self) -> None:
        """Hand out batches; tell those who will not run; set a timer for who is idle."""
        self.sequences.workers_are(self._lasting.lives())
        super().schedule()
        self._dismiss_vacant()
        book = self.sequences.book
        if book.queued and (outage := self.workers.outage) is not None:
            self.fail(self.turnstile.clear(), outage, Outcome.OTHER)
        if book.refused:
            for _ in range(min(len(book.refused), _MOST_TOLD)):
                item, error = book.refused.popleft()
                is_cancelled = isinstance(error, RequestCancelledError)
                self.fail([item], error, Outcome.CANCELED if is_cancelled else Outcome.OTHER)
            if book.refused:  # others have their turn before them
                self._router.loop.call_soon(self._wake)
            if self.room.size:
                self.places_freed()
        if book.parked and not book.slots.free and self._now() >= self._warns_at:
            self._warn()
        self._watch_idle()

    def _warn(self) -> None:
        """Say, if sequences wait for slots, when these are free, and which keys give more."""
        self._warns_at = self._now() + _LOOKS_EVERY_S
        state = self.sequences.book.state()
        if not (state.backlog and state.used):
            return
        self._warns_at = self._now() + _WARNS_EVERY_S
        name, config = self.name, self.op.pipeline_config
        key, of_triton = "batch_size", "max_batch_size"
        if config.sequence.strategy == "oldest":
            key, of_triton = "sequence.max_candidates", "max_candidate_sequences"
        _LOGGER.warning(
            f"Op {name!r}: sequences wait for a slot: {state.backlog}, while {state.used} have all "
            f"{state.slots} that there are. op.{name}.{key} says how many each of its workers has, "
            f"op.{name}.concurrency ({config.concurrency}) how many workers there are "
            f"(config.pbtxt: {of_triton}, instance_group). A slot is free when its sequence ends "
            f"(sequence_end), or was idle for max_idle_ms ({config.sequence.max_idle_ms:g})"
        )

    def leave(self, numbers: Collection[int]) -> None:
        """Have these workers go when their sequences have ended; see `resizing`."""
        self.sequences.workers_are(self._lasting.lives())
        self.sequences.book.leave(numbers)
        self._dismiss_vacant()
        self._wake()

    def _dismiss_vacant(self) -> None:
        vacant = self.sequences.book.slots.take_vacant()
        if vacant and isinstance(self.workers, Resizable):
            self.workers.dismiss(vacant)
            self.sequences.workers_are(self._lasting.lives())

    def count(self, run: BatchRun) -> BatchRun:
        given = self.sequences.given
        if given:
            run.given = given.pop(run.items[0], None)
        if (tell := self.spans.on_step) is not None:
            for item, place in zip(run.items, run.places or (), strict=False):
                if item.trace:
                    tell(item.data_id, self.spans.index, item.info.sequence_id, place)
        return super().count(run)

    def _watch_idle(self) -> None:
        due, timer = self.sequences.book.reaps_at, self._idle_timer
        if due is None or (timer is not None and self._idle_due <= due):
            return
        if timer is not None:
            timer.cancel()
        self._idle_due = due
        self._idle_timer = self._router.loop.call_at(due, self._look_for_idle)

    def _look_for_idle(self) -> None:
        self._idle_timer = None
        self._wake()

    def close(self) -> None:
        super().close()
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    # Out --------------------------------------------------------------------------------

    def done(self, worker: Worker, job: BatchRun | LoneRun | Trip) -> None:
        if isinstance(job, BatchRun) and not job.is_superseded:
            self._take_states(job)
        super().done(worker, job)
        self._watch_idle()

    def _take_states(self, run: BatchRun) -> None:
        book = self.sequences.book
        for place in run.unsent or ():
            book.unsent(run.items[place], (run.given or {}).get(place))
        if run.kept and isinstance(book, KeptSequenceBook):
            book.keep(run.items, run.kept)

    def _give_up(self, worker: Worker, run: BatchRun | LoneRun) -> None:
        """Replace a worker that hangs; its sequences end, or go on elsewhere."""
        assert isinstance(run, BatchRun), "nothing else is submitted"
        run.is_superseded = True
        self.workers.replace(worker, None)
        self.start_over(run, run.timed_out(self.name, worker.number))

    def start_over(self, job: BatchRun, error: PipelineError) -> None:
        """End the requests of a lost batch: nobody else has what it needs, if the book has not."""
        book, failed = self.sequences.book, job.items
        if isinstance(book, KeptSequenceBook):
            failed = book.again(job.items, error, self.op.pipeline_config.retry)
        self.release(job)
        is_timeout = isinstance(error, DeadlineError)
        self.fail(failed, error, Outcome.BACKEND if is_timeout else Outcome.OTHER)
        self._wake()


def has_sequences(op: Op) -> bool:
    """Return whether requests for an Op belong to sequences of their callers."""
    config = op.pipeline_config
    return config.sequence.strategy is not None and config.batching != ITERATIVE


def orders_of(nodes: Mapping[Op, OpDispatcher], admission: AdmissionController) -> list[Filter]:
    """Return what knows the requests of sequences, and keeps them in order; no Op has any: []."""
    turnstiles = turnstiles_of(nodes)
    if not turnstiles:
        return []
    order = SequenceOrder(turnstiles)
    admission.parked = order.parked
    return [SequencePairs(order.end), order]


def turnstiles_of(nodes: Mapping[Op, OpDispatcher]) -> dict[Op, Turnstile]:
    """Return the turnstiles of the Ops that have sequences."""
    kept = ((op, node) for op, node in nodes.items() if isinstance(node, SequenceDispatcher))
    return {op: node.turnstile for op, node in kept}


def check_sequences(nodes: Iterable[OpDispatcher]) -> None:
    """Refuse what a sequence cannot go together with: a step of it runs once, and answers once.

    Raises:
        GraphError: naming the Op.
    """
    nodes = list(nodes)
    for node in nodes:
        if not has_sequences(node.op):
            continue
        links, wrong = node.links, ""
        if node.streams:
            wrong = "makes or reads a stream"
        elif links.is_in_loop or any(node in other.links.runs_again for other in nodes):
            wrong = "runs again in a loop, or after a jump back"
        elif links.targets or links.is_target:
            wrong = "jumps, or is jumped to"
        if wrong:
            raise GraphError(f"Op {node.name!r} has sequence, and {wrong}.")
