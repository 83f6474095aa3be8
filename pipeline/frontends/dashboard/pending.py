"""The turns of requests that have not ended yet, so that they can be told when they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.engine.journal import TURN, Rows
from pipeline.observe.tables import Integers, Positions, batches, joined

__all__ = ["FoundSpans", "PendingSpans"]

_LEAST_KEPT = 8 * 1024  # turns, or ended requests, before the one is looked for in the other
_MOST_PIECES = 32  # of which each is looked through for a request
_MOST_KEPT = 64 * 1024  # turns of requests that have not ended
_TOO_OLD_NS = 600 * 10**9


class FoundSpans(NamedTuple):
    """Turns, and for each the number of requests in its batch: 0 if it never ran."""

    turns: Rows
    sizes: Integers


@dataclass(frozen=True, slots=True)
class _Piece:
    """Turns of one fold, whose batches are counted when somebody asks; or those left of many."""

    turns: Rows
    sizes: Integers | None = None

    def only(self, which: Positions) -> FoundSpans:
        turns = self.turns.take(which)
        if self.sizes is not None:
            return FoundSpans(turns, self.sizes.take(which))
        if not len(which):
            return FoundSpans(turns, np.zeros(0, np.int64))
        found = batches(self.turns)
        sizes = found.sizes.take(found.of(which))
        return FoundSpans(turns, np.where(turns["batch"] < 0, 0, sizes))


class PendingSpans:
    """Turns until their requests end. Those of ended ones are thrown out many at a time: per row
    that costs nothing to speak of, however many requests are open."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []
        self._ended: list[Integers] = []
        self._count = self._ended_count = 0
        self._most = _LEAST_KEPT

    def __len__(self) -> int:
        return self._count

    def add(self, turns: Rows) -> None:
        """Take the turns of one fold, whose batches are whole."""
        if len(turns):
            self._pieces.append(_Piece(turns))
            self._count += len(turns)

    def of(self, data_ids: Sequence[int]) -> FoundSpans:
        """All turns of a few requests that have not been thrown out."""
        wanted = np.array(data_ids, np.int64)
        return _together(
            [
                piece.only(np.flatnonzero(np.isin(piece.turns["data_id"], wanted)))
                for piece in self._pieces
            ]
        )

    def end(self, data_ids: Integers) -> None:
        """These requests have ended. Their turns are there until `throw_out`."""
        if self._pieces:
            self._ended.append(data_ids.copy())
            self._ended_count += len(data_ids)

    @property
    def are_many(self) -> bool:
        """Whether it is time for `throw_out`."""
        most = max(self._count, self._ended_count)  # requests that are refused have no turns
        return most > self._most or len(self._pieces) > _MOST_PIECES

    def throw_out(self) -> None:
        """Forget the turns of requests that have ended, and those that are very old."""
        if self._pieces:
            self._throw_out()
        self._ended, self._ended_count = [], 0

    def _throw_out(self) -> None:
        since_ns = max(int(piece.turns["taken_ns"].max()) for piece in self._pieces) - _TOO_OLD_NS
        data_ids = np.concatenate([piece.turns["data_id"] for piece in self._pieces])
        is_open = np.isin(data_ids, np.concatenate(self._ended), invert=True)
        kept, begin = [], 0
        for piece in self._pieces:
            end = begin + len(piece.turns)
            which = np.flatnonzero(is_open[begin:end])
            # Turns may outlive their request.
            kept.append(piece.only(which[piece.turns["taken_ns"].take(which) > since_ns]))
            begin = end
        left = _together(kept)
        piece = _Piece(left.turns[-_MOST_KEPT:], left.sizes[-_MOST_KEPT:])
        self._count = len(piece.turns)
        self._most = max(_LEAST_KEPT, 2 * self._count)
        self._pieces = [piece] if self._count else []


def _together(found: Sequence[FoundSpans]) -> FoundSpans:
    found = [each for each in found if len(each.turns)]
    if not found:
        return FoundSpans(np.empty(0, TURN), np.zeros(0, np.int64))
    return FoundSpans(
        joined([each.turns for each in found]), np.concatenate([each.sizes for each in found])
    )
