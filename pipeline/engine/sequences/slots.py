"""Slots: the places that the workers of one Op have for sequences; Backlog: the queue for them."""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from pipeline.engine.request import RequestState

if TYPE_CHECKING:
    from pipeline.engine.op.channel import Item
    from pipeline.engine.sequences.book import LiveSequence


class SequenceSlot(msgspec.Struct, frozen=True, order=True, gc=False):
    """A place at a worker; the lowest number is given first, of equal ones the lowest worker's.

    `life` is the worker's incarnation: a slot of a lost worker is invalid.
    """

    number: int
    worker: int
    life: int


class Slots:
    """The slots of all workers, which start and leave; pure.

    A worker that leaves gives no more slots, and is dismissed when its last sequence has ended.

    Args:
        count: at each worker.

    Attributes:
        lives: the incarnation of each worker, by its number; a replacement has another one.
        free: number of slots that can be given.
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
        """Note the current workers; return the numbers of workers that are gone."""
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
        """Take and return the first free slot."""
        slot = heapq.heappop(self._free)
        self._taken[slot.worker] += 1
        return slot

    def give_back(self, slot: SequenceSlot) -> None:
        """Free a slot, if its worker is still there and stays."""
        if self.lives.get(slot.worker) != slot.life:
            return
        self._taken[slot.worker] -= 1
        if slot.worker not in self._leaving:
            heapq.heappush(self._free, slot)

    def leave(self, numbers: Collection[int], held: Collection[SequenceSlot]) -> None:
        """Let these workers leave, and no others: a worker that was leaving and is not named stays.

        `held`: the slots that sequences have.
        """
        stays = self._leaving - set(numbers)
        self._leaving = set(numbers)
        self._free = [slot for slot in self._free if slot.worker not in self._leaving]
        for number in stays & self.lives.keys():
            self._add(number, {slot.number for slot in held if slot.worker == number})
        heapq.heapify(self._free)

    def take_vacant(self) -> list[int]:
        """Return the leaving workers that have no sequence: they can be dismissed."""
        if not self._leaving:  # the common case
            return []
        vacant = [number for number in self._leaving if not self._taken[number]]
        self._leaving.difference_update(vacant)
        return vacant

    def clear(self) -> None:
        """Forget all workers and slots."""
        self.lives, self._free = {}, []
        self._taken.clear()

    def _add(self, number: int, held: Collection[int]) -> None:
        places = (place for place in range(self._count) if place not in held)
        self._free += [SequenceSlot(place, number, self.lives[number]) for place in places]
        heapq.heapify(self._free)


_MICROS = 1e-6
_SPARE = 64  # entries that may be outdated


class Backlog:
    """Queue of the sequences that wait for a slot; the one that began first gets the next slot.

    A sequence in it may either have the next slot, or it follows an older one of its id and may not
    have one yet. In both cases its time may be limited.

    Attributes:
        size: number of sequences.
    """

    def __init__(self) -> None:
        self.size: int = 0
        # Sorted by order, then by entry: a request that runs again may begin another sequence of
        # its order.
        self._line: list[tuple[int, int, LiveSequence]] = []  # some may have ended
        self._limits: list[tuple[float, int, LiveSequence]] = []  # some may have left
        self._counted = 0

    def add(self) -> None:
        """Count one more sequence, which may not have a slot yet."""
        self.size += 1

    def queue(self, sequence: LiveSequence) -> None:
        """Let a counted sequence have a slot."""
        self._counted += 1
        heapq.heappush(self._line, (sequence.order, self._counted, sequence))

    def first(self) -> LiveSequence | None:
        """Return the sequence that gets the next slot."""
        line = self._line
        while line and line[0][2].is_over:
            heapq.heappop(line)
        return line[0][2] if line else None

    def take(self) -> LiveSequence:
        """Remove and return the first sequence, which gets a slot."""
        self.size -= 1
        return heapq.heappop(self._line)[2]

    def count_ended(self) -> None:
        """Note that one of the sequences has ended."""
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
            self._limits = list(earliest.values())  # a sorted list is a heap

    @property
    def limited_until(self) -> float | None:
        """Return when the first limit is reached."""
        limits = self._limits
        while limits and not _waits(limits[0][2]):
            heapq.heappop(limits)
        return limits[0][0] if limits else None

    def expired(self, now: float) -> LiveSequence | None:
        """Remove a limit that was reached; return its sequence."""
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


class Chains:
    """Live sequences by their ids: of several with one id the first runs, the last gets new
    requests.

    Nothing here takes longer if many have one id, whichever of them ends first.
    """

    def __init__(self) -> None:
        self._chains: dict[int | str, OrderedDict[LiveSequence, None]] = {}
        self._at: dict[RequestState, LiveSequence] = {}

    def last(self, id: int | str) -> LiveSequence | None:
        """Return the newest sequence of an id, if there is one."""
        chain = self._chains.get(id)
        return None if chain is None else next(reversed(chain))

    def append(self, sequence: LiveSequence) -> bool:
        """Add a sequence after those of its id; return whether it is the first."""
        chain = self._chains.get(sequence.id)
        if chain is None:
            self._chains[sequence.id] = OrderedDict.fromkeys((sequence,))
            return True
        chain[sequence] = None
        return False

    def remove(self, sequence: LiveSequence) -> LiveSequence | None:
        """Remove a sequence; return the next of its id, if this one was the first."""
        chain = self._chains[sequence.id]
        was_first = next(iter(chain)) is sequence
        del chain[sequence]
        if not chain:
            del self._chains[sequence.id]
            return None
        return next(iter(chain)) if was_first else None

    def all(self) -> list[LiveSequence]:
        """Return all sequences of all ids."""
        return [sequence for chain in self._chains.values() for sequence in chain]

    def clear(self) -> None:
        """Forget all sequences and requests."""
        self._chains.clear()
        self._at.clear()

    # Their requests ---------------------------------------------------------------------------

    def add_request(self, request: RequestState, sequence: LiveSequence) -> None:
        """Note the sequence of a request; one that runs again belongs to its latest."""
        self._at[request] = sequence

    def of(self, request: RequestState) -> LiveSequence | None:
        """Return the sequence of a request, until the request has left."""
        return self._at.get(request)

    def remove_requests(self, requests: Iterable[RequestState], sequence: LiveSequence) -> None:
        """Note that requests of a sequence have run, or never will."""
        for request in requests:
            if self._at.get(request) is sequence:
                del self._at[request]
