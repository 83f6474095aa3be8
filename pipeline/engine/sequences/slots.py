"""Slots: the places that the workers of one Op have for sequences."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Mapping

import msgspec


class SequenceSlot(msgspec.Struct, frozen=True, order=True, gc=False):
    """A place at a worker; the lowest number is given first, of several the lowest worker's.

    `life` is the worker's: a slot of one that was lost is nobody's.
    """

    number: int
    worker: int
    life: int


class Slots:
    """Slots of workers that come and go; pure.

    A worker that leaves gives none any more, and goes when its last sequence has ended.

    Args:
        count: at each worker.

    Attributes:
        lives: of the workers, by their numbers; a worker that was replaced has another life.
        free: how many nobody has, and somebody may have.
    """

    def __init__(self, count: int) -> None:
        self.lives: dict[int, int] = {}
        self._count = count
        self._free: list[SequenceSlot] = []
        self._taken: Counter[int] = Counter()  # by worker
        self._leaving: set[int] = set()

    @property
    def free(self) -> int:
        return len(self._free)

    def workers_are(self, lives: Mapping[int, int]) -> set[int]:
        """Take note of the workers; return the numbers of those that are not there any more."""
        gone = {number for number, life in self.lives.items() if lives.get(number) != life}
        new = {number: life for number, life in lives.items() if self.lives.get(number) != life}
        self.lives = dict(lives)
        for number in gone:
            self._taken.pop(number, None)
        self._free = [slot for slot in self._free if slot.worker not in gone]
        for number in new.keys() - self._leaving:
            self._add(number, set())
        return gone

    def take(self) -> SequenceSlot:
        """Return the first free slot, which is one's own from now on."""
        slot = heapq.heappop(self._free)
        self._taken[slot.worker] += 1
        return slot

    def give_back(self, slot: SequenceSlot) -> None:
        """Let others have a slot, if its worker is still there and stays."""
        if self.lives.get(slot.worker) != slot.life:
            return
        self._taken[slot.worker] -= 1
        if slot.worker not in self._leaving:
            heapq.heappush(self._free, slot)

    def leave(self, numbers: Collection[int], held: Collection[SequenceSlot]) -> None:
        """Have these workers leave, and no others: who was leaving and is not among them stays.

        `held`: the slots that sequences have.
        """
        stays = self._leaving - set(numbers)
        self._leaving = set(numbers)
        self._free = [slot for slot in self._free if slot.worker not in self._leaving]
        for number in stays & self.lives.keys():
            self._add(number, {slot.number for slot in held if slot.worker == number})
        heapq.heapify(self._free)

    def take_vacant(self) -> list[int]:
        """Return the workers that leave and have no sequence: they are about to be gone."""
        if not self._leaving:  # as nearly always
            return []
        vacant = [number for number in self._leaving if not self._taken[number]]
        self._leaving.difference_update(vacant)
        return vacant

    def clear(self) -> None:
        """Forget all workers, and who has what."""
        self.lives, self._free = {}, []
        self._taken.clear()

    def _add(self, number: int, held: Collection[int]) -> None:
        places = (place for place in range(self._count) if place not in held)
        self._free += [SequenceSlot(place, number, self.lives[number]) for place in places]
        heapq.heapify(self._free)
