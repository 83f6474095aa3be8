"""SequenceFilter: the filter around the scheduler of an Op with `sequence`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from pipeline.config.batching import has_sequences
from pipeline.engine.admission import AdmissionController
from pipeline.engine.filters import Filter
from pipeline.engine.journal.journal import Outcome
from pipeline.engine.op.channel import Item
from pipeline.engine.op.dispatcher import OpDispatcher
from pipeline.engine.op.filter import Again, OpFilter
from pipeline.engine.request import RequestState
from pipeline.engine.run.payload import Absent
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.sequences.feeds import has_fillers
from pipeline.engine.sequences.order import ReorderBuffer, SequenceOrder
from pipeline.engine.sequences.pairs import SequencePairs
from pipeline.engine.sequences.scheduler import SequenceScheduler
from pipeline.engine.state import OpState
from pipeline.engine.worker_api import Loop, Resizable, StableWorkers
from pipeline.errors import GraphError, PipelineError, RequestCancelledError
from pipeline.op import Op

_LOGGER = logging.getLogger(__name__)

_WARNS_EVERY_S = 60.0  # the warning about sequences that wait for slots
_LOOKS_EVERY_S = 1.0  # the check for that warning, whose cost grows with the sequences
_MOST_TOLD = 256  # requests that are refused in one round of the event loop


class SequenceFilter(OpFilter):
    """Keeps each sequence at one worker, which has the state of the sequence.

    A batch never runs twice, because that would be a second step of its sequences. The state in a
    lost worker is lost, and so are the sequences there; unless the book has their states from
    before the batch: then they continue at another worker.

    Raises GraphError: the Op's workers cannot keep state.

    Args:
        wake: has the Op cut its batches soon.
    """

    group_obstacle: str = "its sequences stay with its workers"

    def __init__(
        self,
        node: OpDispatcher,
        scheduler: SequenceScheduler,
        loop: Loop,
        wake: Callable[[OpDispatcher], None],
    ) -> None:
        if not isinstance(node.workers, StableWorkers):
            kind = node.op.pipeline_config.workers
            raise GraphError(f"Op {node.name!r} has sequence, which workers: {kind} cannot keep.")
        self._node = node
        self._lasting: StableWorkers = node.workers
        self._scheduler = scheduler
        self._loop = loop
        self._wakes = wake
        self._idle_timer: asyncio.Handle | None = None
        self._idle_due = 0.0  # when it fires: in uvloop a timer that is due at once has no `when`
        self._warns_at = float("-inf")
        node.spans.has_fillers = has_fillers(node.op)
        scheduler.reorder_buffer.clock, scheduler.reorder_buffer.wake = loop.time, self._wake

    def _wake(self) -> None:
        self._wakes(self._node)

    @property
    def parked(self) -> int:  # type: ignore[override]  # it changes
        return self._scheduler.reorder_buffer.parked

    def passed_by(self, request: RequestState, error: PipelineError | Absent) -> None:
        self._scheduler.reorder_buffer.note_missing(request, error)

    def complete_state(self, state: OpState) -> OpState:
        book = self._scheduler.book
        if not book.slots.lives:  # no request has come yet
            self._scheduler.workers_are(self._lasting.lives())
        return msgspec.structs.replace(state, sequences=book.state())

    # Batches ----------------------------------------------------------------------------

    def schedule(self, call_next: Callable[[], None]) -> None:
        """Send batches, answer requests that will not run, set a timer for idle sequences."""
        node, book = self._node, self._scheduler.book
        self._scheduler.workers_are(self._lasting.lives())
        call_next()
        self._dismiss_vacant()
        if book.queued and (outage := node.workers.outage) is not None:
            node.fail(self._scheduler.clear(), outage, Outcome.OTHER)
        if book.refused:
            for _ in range(min(len(book.refused), _MOST_TOLD)):
                item, error = book.refused.popleft()
                is_cancelled = isinstance(error, RequestCancelledError)
                node.fail([item], error, Outcome.CANCELED if is_cancelled else Outcome.OTHER)
            if book.refused:  # others have their turn first
                self._loop.call_soon(self._wake)
            if node.room.size:
                node.places_freed()
        if not book.slots.free and book.parked and self._loop.time() >= self._warns_at:
            self._warn()
        self._watch_idle()

    def _warn(self) -> None:
        """Log, if sequences wait for slots, when slots become free and which keys give more."""
        self._warns_at = self._loop.time() + _LOOKS_EVERY_S
        state = self._scheduler.book.state()
        if not (state.backlog and state.used):
            return
        self._warns_at = self._loop.time() + _WARNS_EVERY_S
        name, config = self._node.name, self._node.op.pipeline_config
        key, of_triton = "batch_size", "max_batch_size"
        if config.sequence.strategy == "oldest":
            key, of_triton = "sequence.max_candidates", "max_candidate_sequences"
        _LOGGER.warning(
            f"Op {name!r}: sequences wait for a slot: {state.backlog}, while {state.used} have all "
            f"{state.slots} slots. op.{name}.{key} sets the slots of each worker, "
            f"op.{name}.concurrency ({config.concurrency}) the number of workers "
            f"(config.pbtxt: {of_triton}, instance_group). A slot is free when its sequence ends "
            f"(sequence_end), or was idle for max_idle_ms ({config.sequence.max_idle_ms:g})"
        )

    def leave(self, numbers: Collection[int]) -> bool:
        """Let these workers leave when their sequences have ended."""
        self._scheduler.workers_are(self._lasting.lives())
        self._scheduler.book.leave(numbers)
        self._dismiss_vacant()
        self._wake()
        return True

    def _dismiss_vacant(self) -> None:
        vacant = self._scheduler.book.slots.take_vacant()
        if vacant and isinstance(workers := self._node.workers, Resizable):
            workers.dismiss(vacant)
            self._scheduler.workers_are(self._lasting.lives())

    def submit(self, call_next: Callable[[Sequence[Any]], None], runs: Sequence[BatchRun]) -> None:
        given, spans = self._scheduler.given, self._node.spans
        tell = spans.on_step
        for run in runs if given or tell is not None else ():
            if given:
                run.given = given.pop(run.items[0], None)
            if tell is not None:
                for item, place in zip(run.items, run.places or (), strict=False):
                    if item.trace:
                        tell(item.data_id, spans.index, item.info.sequence_id, place)
        call_next(runs)

    def _watch_idle(self) -> None:
        due, timer = self._scheduler.book.reaps_at, self._idle_timer
        if due is None or (timer is not None and self._idle_due <= due):
            return
        if timer is not None:
            timer.cancel()
        self._idle_due = due
        self._idle_timer = self._loop.call_at(due, self._look_for_idle)

    def _look_for_idle(self) -> None:
        self._idle_timer = None
        self._wake()

    def close(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    # Out --------------------------------------------------------------------------------

    def release(self, call_next: Callable[[Any], None], run: BatchRun | Item) -> None:
        if isinstance(run, BatchRun) and not run.is_superseded:
            book = self._scheduler.book
            for place in run.unsent or ():
                book.unsent(run.items[place], (run.given or {}).get(place))
            if run.kept:
                book.keep(run.items, run.kept)
        call_next(run)
        self._watch_idle()

    def again(self, call_next: Callable[..., Again], job: BatchRun, error: PipelineError) -> Again:
        """Queue the steps again whose states the book has from before; the others fail."""
        attempts = self._node.op.pipeline_config.retry
        return [], self._scheduler.book.again(job.items, error, attempts), error


def orders_of(nodes: Mapping[Op, OpDispatcher], admission: AdmissionController) -> list[Filter]:
    """Return the filters that keep the requests of sequences in order; []: no sequences."""
    buffers = reorder_buffers_of(nodes)
    if not buffers:
        return []
    order = SequenceOrder(buffers)
    admission.parked = order.parked
    return [SequencePairs(order.end), order]


def reorder_buffers_of(nodes: Mapping[Op, OpDispatcher]) -> dict[Op, ReorderBuffer]:
    """Return the reorder buffers of the Ops that have sequences."""
    kept = ((op, node.scheduler) for op, node in nodes.items())
    return {
        op: scheduler.reorder_buffer
        for op, scheduler in kept
        if isinstance(scheduler, SequenceScheduler)
    }


def check_sequences(nodes: Iterable[OpDispatcher]) -> None:
    """Check that each Op with sequences runs a step once, and answers it once.

    Raises:
        GraphError: naming the Op.
    """
    nodes = list(nodes)
    for node in nodes:
        if not has_sequences(node.op.pipeline_config):
            continue
        links, wrong = node.links, ""
        if node.streams and not node.run_type.is_step:
            wrong = "makes or reads a stream"
        elif links.is_in_loop or any(node in other.links.runs_again for other in nodes):
            wrong = "runs again in a loop, or after a jump back"
        elif links.targets or links.is_target:
            wrong = "jumps, or is jumped to"
        if wrong:
            raise GraphError(f"Op {node.name!r} has sequence, and {wrong}.")
