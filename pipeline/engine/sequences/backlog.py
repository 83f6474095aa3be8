"""Backlog: the sequences that have no slot, in order, and when the time of each is over."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.engine.op.channel import Item
    from pipeline.engine.sequences.book import LiveSequence

_MICROS = 1e-6
_SPARE = 64  # entries that may be over


class Backlog:
    """Line of those that wait for a slot; the one that began first is the first to have one.

    A sequence is here in one of two ways: it may have the next slot, or it follows an older one
    of its id and may have none yet. Either way its time may be limited.

    Attributes:
        size: sequences that are here.
    """

    def __init__(self) -> None:
        self.size: int = 0
        # By order, and by when it came here: a request that runs anew begins another of its order.
        self._line: list[tuple[int, int, LiveSequence]] = []  # some may be over
        self._limits: list[tuple[float, int, LiveSequence]] = []  # some may not be here any more
        self._counted = 0

    def add(self) -> None:
        """Take note of one more, which may have no slot yet."""
        self.size += 1

    def may_have(self, sequence: LiveSequence) -> None:
        """Let one of those that are here have a slot."""
        self._counted += 1
        heapq.heappush(self._line, (sequence.order, self._counted, sequence))

    def first(self) -> LiveSequence | None:
        """Return the one that is to have the next slot."""
        line = self._line
        while line and line[0][2].is_over:
            heapq.heappop(line)
        return line[0][2] if line else None

    def take(self) -> LiveSequence:
        """Take the one that has got a slot: the first."""
        self.size -= 1
        return heapq.heappop(self._line)[2]

    def left(self) -> None:
        """Take note that one of them is over."""
        self.size -= 1
        if len(self._line) > 2 * self.size + _SPARE:
            self._line = [entry for entry in self._line if not entry[2].is_over]
            heapq.heapify(self._line)

    def limit(self, sequence: LiveSequence, until: float) -> None:
        """Limit the time of a sequence; of several limits the earliest counts."""
        limits = self._limits
        self._counted += 1
        heapq.heappush(limits, (until, self._counted, sequence))
        if len(limits) > 2 * self.size + _SPARE:
            earliest: dict[LiveSequence, tuple[float, int, LiveSequence]] = {}
            for entry in sorted(limits, key=lambda entry: entry[:2]):
                if _waits(entry[2]):
                    earliest.setdefault(entry[2], entry)
            self._limits = list(earliest.values())  # which is sorted, and so a heap

    @property
    def limited_until(self) -> float | None:
        """Return when the time of the first one is over."""
        limits = self._limits
        while limits and not _waits(limits[0][2]):
            heapq.heappop(limits)
        return limits[0][0] if limits else None

    def expired(self, now: float) -> LiveSequence | None:
        """Take out a limit that is over; return whose it was."""
        until = self.limited_until
        return None if until is None or now < until else heapq.heappop(self._limits)[2]

    def clear(self) -> None:
        self.size = 0
        self._line.clear()
        self._limits.clear()


def _waits(sequence: LiveSequence) -> bool:
    return sequence.slot is None and not (sequence.is_over or sequence.is_moved)


def timeout_of(item: Item) -> float:
    """Return how long a request lets its sequence wait for a slot, seconds; 0: any time."""
    timeout = item.info.parameters.get("timeout", 0)
    return timeout * _MICROS if isinstance(timeout, int) and timeout > 0 else 0.0
