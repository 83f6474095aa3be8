"""KeptSequenceBook: sequences that go on at another worker when theirs is lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.engine.op.channel import Item
from pipeline.engine.sequences.book import LiveSequence, SequenceBook
from pipeline.errors import DeadlineError, PipelineError

_LEAST_TRIES = 3
"""A request that was lost alone with so many workers is not tried again."""


class KeptSequenceBook(SequenceBook):
    """Book of sequences whose states are kept here after each step (`checkpoint`).

    A sequence whose worker was lost waits for another slot, as the oldest of the backlog, and its
    first batch there brings the states. The request that was running runs again, and alone if it
    was not: which one of a batch is to blame is not known.
    """

    def done(self, items: Iterable[Item], now: float) -> None:
        items = list(items)
        for item in items:
            sequence = self._running.get(item)
            if sequence is not None:
                sequence.tries, sequence.is_suspect = 0, False
        super().done(items, now)

    def keep(self, items: Sequence[Item], kept: Mapping[int, Any]) -> None:
        for place, states in kept.items():
            sequence = self._running.get(items[place])
            if sequence is not None:
                sequence.kept = states

    def again(self, items: Sequence[Item], error: PipelineError, attempts: int) -> list[Item]:
        failed = []
        most = attempts if isinstance(error, DeadlineError) else max(attempts, _LEAST_TRIES)
        for item in items:
            sequence = self._running.get(item)
            if sequence is None:
                failed.append(item)
                continue
            sequence.tries += len(items) == 1
            if sequence.is_over or sequence.kept is None or sequence.tries >= most:
                if item.info.sequence_start and sequence.kept is not None:
                    sequence.kept = {}  # what was before must not go on behind it
                failed.append(item)
                continue
            del self._running[item]
            sequence.running = None
            sequence.is_suspect = len(items) > 1 or sequence.is_suspect
            sequence.queue.appendleft(item)
            self.queued: int = self.queued + 1
            self._settle(sequence, item.ready_at)
        return failed

    def _settle(self, sequence: LiveSequence, now: float) -> None:
        super()._settle(sequence, now)
        if sequence.slot is None and sequence.running is None and not sequence.queue:
            self._idle[sequence] = now

    def _worker_is_lost(self, sequence: LiveSequence) -> None:
        """Have a sequence wait for another slot; what becomes of one that runs is told later."""
        slot = sequence.slot
        if sequence.kept is None or slot is None:
            super()._worker_is_lost(sequence)
            return
        if sequence.running is None:
            self._is_not_ready(sequence)
        del self._held[slot]
        sequence.slot, sequence.is_moved = None, True
        self._backlog.add()
        self._backlog.may_have(sequence)
