"""Chains: the sequences of each id, one behind the other, and which one a request is of."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pipeline.engine.request import RequestState

if TYPE_CHECKING:
    from pipeline.engine.sequences.book import LiveSequence


class Chains:
    """Live sequences by their ids: of several of one id the first has its turn, the last grows.

    Nothing here takes longer where many are of one id, whichever of them ends first.
    """

    def __init__(self) -> None:
        self._chains: dict[int | str, OrderedDict[LiveSequence, None]] = {}
        self._at: dict[RequestState, LiveSequence] = {}

    def last(self, id: int | str) -> LiveSequence | None:
        """Return the newest sequence of an id, if there is one."""
        chain = self._chains.get(id)
        return None if chain is None else next(reversed(chain))

    def append(self, sequence: LiveSequence) -> bool:
        """Take one more, behind those of its id; return whether it is the first."""
        chain = self._chains.get(sequence.id)
        if chain is None:
            self._chains[sequence.id] = OrderedDict.fromkeys((sequence,))
            return True
        chain[sequence] = None
        return False

    def remove(self, sequence: LiveSequence) -> LiveSequence | None:
        """Take one out; return whose turn it is now, if it was this one's."""
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
        """Forget them, and all requests."""
        self._chains.clear()
        self._at.clear()

    # Their requests ---------------------------------------------------------------------------

    def came(self, request: RequestState, sequence: LiveSequence) -> None:
        """Take note that a request is of a sequence; one that runs anew is of its latest."""
        self._at[request] = sequence

    def of(self, request: RequestState) -> LiveSequence | None:
        """Return the sequence that a request is of, until it has left."""
        return self._at.get(request)

    def left(self, requests: Iterable[RequestState], sequence: LiveSequence) -> None:
        """Take note that requests of a sequence have run, or never will."""
        for request in requests:
            if self._at.get(request) is sequence:
                del self._at[request]
