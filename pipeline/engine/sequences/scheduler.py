"""Schedulers of sequences: the strategies `direct` and `oldest`, and their base."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from msgspec.structs import replace

from pipeline.config.batching import SchedulerTraits
from pipeline.config.schema import OpConfig
from pipeline.data import max_batch_size_of
from pipeline.engine.op.channel import Item
from pipeline.engine.request import RequestState
from pipeline.engine.schedulers.base import Batch, Load, StartCondition, held_start
from pipeline.engine.schedulers.dynamic import batches_ahead
from pipeline.engine.sequences.book import LiveSequence, Ready, SequenceBook
from pipeline.engine.sequences.controls import Controls
from pipeline.engine.sequences.feeds import controls_at
from pipeline.engine.sequences.order import ReorderBuffer
from pipeline.errors import PipelineError
from pipeline.op import Op


class SequenceScheduler:
    """Cuts batches, each for one worker, of the next requests of sequences that have a slot there.

    A worker gets its next batch when it is done with the last one; or earlier, if the sequences
    that are not in the last one fill a batch.

    Args:
        op_name: for error texts.
        slots: at each worker.

    Attributes:
        book: the Op's sequences.
        reorder_buffer: keeps the requests of each sequence in order.
        controls: additional inputs of `process`; an id that they cannot hold is refused.
        start: the condition for its first batch, for tests; None: none.
        given: for batches, by their first items, the states of sequences that their workers do not
            have, by the places of the items. The reader of one removes it.
    """

    @classmethod
    def for_op(cls, op: Op, options: None = None) -> Self:
        """Return the scheduler of an Op; its batches fit the limits of model and configuration."""
        config = op.pipeline_config
        most = max_batch_size_of(op) or config.batch_size
        config = replace(config, batch_size=min(most, config.batch_size))
        scheduler = cls(config, op.name, config.sequence.max_candidates or config.batch_size)
        scheduler.controls = Controls(op.name, controls_at(op))
        scheduler.start = held_start(os.environ)
        return scheduler

    def __init__(self, config: OpConfig, op_name: str, slots: int) -> None:
        sequence = config.sequence
        max_idle_s = sequence.max_idle_ms / 1000
        self.book: SequenceBook = SequenceBook(op_name, slots, max_idle_s, sequence.checkpoint)
        self.reorder_buffer: ReorderBuffer = ReorderBuffer(self.book, self._enter)
        self.controls: Controls = Controls(op_name, ())
        self._delay_s = sequence.max_queue_delay_ms / 1000
        self._batch_size = config.batch_size
        self._whole = min(config.batch_size, slots)
        self._at: dict[int, list[Item]] = {}  # the first item of each batch that a worker has
        self.start: StartCondition | None = None
        self.given: dict[Item, dict[int, Any]] = {}

    def __len__(self) -> int:
        """Return how many may run; sequences without a slot do not fill the queue."""
        return sum(map(len, self.book.ready.values()))

    def add(self, item: Item, now: float) -> PipelineError | None:
        return self.reorder_buffer.add(item, now)

    def _enter(self, item: Item, now: float) -> PipelineError | None:
        refusal = self.controls.refusal(item.info.sequence_id) or self.book.add(item, now)
        if refusal is not None:
            refusal.is_callers = True
        return refusal

    def workers_are(self, lives: Mapping[int, int]) -> None:
        """Note the current workers; see `SequenceBook.workers_are`."""
        for number, life in self.book.slots.lives.items():
            if lives.get(number) != life:
                self._at.pop(number, None)
        self.book.workers_are(lives)

    def next(self, load: Load, now: float) -> Batch | float | None:
        """Return the next batch, which names its worker; or when the next delay is over."""
        self.book.reap(now)
        wake: float | None = None
        if load.max_items <= 0:
            return None
        if self.start is not None:
            if self._is_held(self.start):
                return None
            self.start = None
        most = min(load.max_items, load.max_rows or load.max_items)
        for worker, ready in self.book.ready.items():
            if not ready or not self._may_begin(worker, len(ready), load):
                continue
            count = self._count(ready, load, now)
            if count:
                return self._batch(worker, min(count, most))
            due = ready[0][0] + self._delay_s
            wake = due if wake is None else min(wake, due)
        return wake

    def _may_begin(self, worker: int, ready: int, load: Load) -> bool:
        """Return whether a worker may have another batch; a busy worker gets only a whole one."""
        batches = len(self._at.get(worker, ()))
        if not batches or ready < self._whole:
            return not batches
        ahead = batches_ahead(load, self._batch_size)
        return batches * max(1, load.workers) <= ahead

    def _count(self, ready: Sequence[Ready], load: Load, now: float) -> int:
        """Return how many of the ready sequences of a worker go now, the oldest first.

        0: others may come before the delay of the oldest is over.
        """
        raise NotImplementedError

    def _is_held(self, start: StartCondition) -> bool:
        """Return whether the condition for the first batch is not met."""
        raise NotImplementedError

    def _order(self, taken: list[LiveSequence]) -> list[LiveSequence]:
        """Return the sequences in the order that they have in the batch."""
        return taken

    def _batch(self, worker: int, count: int) -> Batch:
        taken = self._order(self.book.take(worker, self._together(worker, count)))
        places = [sequence.slot.number for sequence in taken if sequence.slot is not None]
        items = [sequence.running for sequence in taken if sequence.running is not None]
        self._at.setdefault(worker, []).append(items[0])
        moved = {place: sequence for place, sequence in enumerate(taken) if sequence.is_moved}
        if moved:
            self.given[items[0]] = {place: sequence.kept for place, sequence in moved.items()}
            for sequence in moved.values():
                sequence.is_moved = False
        return Batch(items, worker, places=places)

    def _together(self, worker: int, count: int) -> int:
        """Return how many of the first so many may run together: a suspect runs alone."""
        first = [entry[2].is_suspect for entry in self.book.ready[worker][:count]]
        if True not in first:
            return count
        return first.index(True) or 1

    def done(self, batch: Batch, now: float) -> None:
        items: Sequence[Item] = batch.items
        at = self._at.get(-1 if batch.worker is None else batch.worker, [])
        if items[0] in at:
            at.remove(items[0])
        self.book.done(items, now)

    def drop(self, request: RequestState) -> list[Item]:
        """Forget a request, which ends its sequence; for the others see `SequenceBook.refused`."""
        held = self.reorder_buffer.drop(request)
        dropped = self.book.drop(request) if held is None else [held]
        if self.book.refused:
            self.reorder_buffer.wake()
        return dropped

    def level_of(self, request: RequestState) -> int:
        return 0

    def levels(self) -> Mapping[int, int]:
        return {0: len(self)}

    def clear(self) -> list[Item]:
        self._at.clear()
        return self.book.clear()


class DirectScheduler(SequenceScheduler):
    """Takes the next request of each slot of a worker, in the order of the slots.

    With `min_slot_utilization` and a delay, a batch waits for that share of the slots, or that
    long.
    """

    traits: ClassVar[SchedulerTraits] = SchedulerTraits(sees_op=True, keeps_places=True)

    def __init__(self, config: OpConfig, op_name: str, slots: int) -> None:
        super().__init__(config, op_name, slots)
        self._least = config.sequence.min_slot_utilization * slots

    def _count(self, ready: Sequence[Ready], load: Load, now: float) -> int:
        is_due = load.is_full or now >= ready[0][0] + self._delay_s
        if len(ready) < self._least and not is_due:
            return 0
        return len(ready)

    def _order(self, taken: list[LiveSequence]) -> list[LiveSequence]:
        return sorted(taken, key=lambda sequence: sequence.slot.number if sequence.slot else 0)

    def _is_held(self, start: StartCondition) -> bool:
        backlog = self.book.in_backlog
        return self.book.queued - backlog < start.queued or backlog < start.backlog


class OldestScheduler(SequenceScheduler):
    """Fills batches up to `batch_size` from the candidates of a worker.

    A preferred size goes at once. Otherwise the batch waits at most for the delay, and then all go.
    """

    traits: ClassVar[SchedulerTraits] = SchedulerTraits(sees_op=True)

    def __init__(self, config: OpConfig, op_name: str, slots: int) -> None:
        super().__init__(config, op_name, slots)
        self._preferred = sorted(config.sequence.preferred_batch_sizes)

    def _count(self, ready: Sequence[Ready], load: Load, now: float) -> int:
        count = min(len(ready), self._batch_size)
        is_due = now >= ready[0][0] + self._delay_s
        fitting = [size for size in self._preferred if size <= count]
        if fitting and not (is_due and self._delay_s):
            return fitting[-1]
        return count if is_due or load.is_full or count >= self._whole else 0

    def _is_held(self, start: StartCondition) -> bool:
        return all(len(ready) < start.queued for ready in self.book.ready.values())
