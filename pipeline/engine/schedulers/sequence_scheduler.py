"""SequenceScheduler: what the two strategies for sequences have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.config.schema import OpConfig
from pipeline.engine.channel import Item
from pipeline.engine.request import RequestState
from pipeline.engine.schedulers.base import Batch, Load
from pipeline.engine.schedulers.sequences import LiveSequence, SequenceBook
from pipeline.errors import PipelineError


class SequenceScheduler:
    """Cuts batches for one worker each, of the next requests of sequences that have a slot there.

    A worker gets its next batch when it is done with the last one.

    Args:
        op_name: for what callers are told.
        slots: at each worker.

    Attributes:
        book: of the Op's sequences.
    """

    def __init__(self, config: OpConfig, op_name: str, slots: int) -> None:
        sequence = config.sequence
        self.book: SequenceBook = SequenceBook(op_name, slots, sequence.max_idle_ms / 1000)
        self._delay_s = sequence.max_queue_delay_ms / 1000
        self._batch_size = config.batch_size
        self._slots = slots
        self._at: dict[int, Item] = {}  # the first of what each worker has

    def __len__(self) -> int:
        return self.book.queued

    def add(self, item: Item, now: float) -> PipelineError | None:
        return self.book.add(item, now)

    def workers_are(self, lives: Mapping[int, int]) -> None:
        """Take note of the workers; see `SequenceBook.workers_are`."""
        for number, life in self.book.lives.items():
            if lives.get(number) != life:
                self._at.pop(number, None)
        self.book.workers_are(lives)

    def next(self, load: Load, now: float) -> Batch | float | None:
        """Return the next batch, which names its worker; or when the next delay is over."""
        self.book.reap(now)
        wake: float | None = None
        if load.max_items <= 0:
            return None
        most = min(load.max_items, load.max_rows or load.max_items)
        for worker, ready in self.book.ready.items():
            if not ready or worker in self._at:
                continue
            waiting = sorted(ready, key=_oldest)
            taken = self._cut(waiting, load, now)
            if isinstance(taken, float):
                wake = taken if wake is None else min(wake, taken)
                continue
            return self._batch(worker, taken[:most])
        return wake

    def _cut(
        self, waiting: list[LiveSequence], load: Load, now: float
    ) -> list[LiveSequence] | float:
        """Return who of those that are ready at a worker goes now, the oldest first; or when."""
        raise NotImplementedError

    def _order(self, taken: list[LiveSequence]) -> list[LiveSequence]:
        """Return those that go in the order that they have in the batch."""
        return taken

    def _batch(self, worker: int, taken: list[LiveSequence]) -> Batch:
        taken = self._order(taken)
        places = [sequence.slot.number for sequence in taken if sequence.slot is not None]
        items = [self.book.take(sequence) for sequence in taken]
        self._at[worker] = items[0]
        return Batch(items, worker, places=places)

    def done(self, batch: Batch, now: float) -> None:
        items: Sequence[Item] = batch.items
        if batch.worker is not None and self._at.get(batch.worker) is items[0]:
            del self._at[batch.worker]
        self.book.done(items, now)

    def drop(self, request: RequestState) -> list[Item]:
        """Forget a request, which ends its sequence; see `SequenceBook.refused` for the others."""
        return self.book.drop(request)

    def clear(self) -> list[Item]:
        self._at.clear()
        return self.book.clear()


def _oldest(sequence: LiveSequence) -> tuple[float, int]:
    first = sequence.queue[0]
    return first.ready_at, first.data_id
