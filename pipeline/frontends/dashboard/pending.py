"""PendingSpans: the spans of requests that have not ended yet, to be shown when they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.engine.journal.journal import SPAN, Rows
from pipeline.observe.tables import Integers, Positions, batches, joined

_MIN_KEPT = 8 * 1024  # spans, or ended requests, before the one is looked for in the other
_MAX_PIECES = 32  # of which each is looked through for a request
_MAX_KEPT = 64 * 1024  # spans of requests that have not ended
_MAX_AGE_NS = 600 * 10**9


class FoundSpans(NamedTuple):
    """Spans, and for each the number of requests in its batch: 0 if it never ran."""

    spans: Rows
    sizes: Integers


@dataclass(frozen=True, slots=True)
class _Piece:
    """Spans of one flush, whose batches are counted when somebody asks; or those left of many."""

    spans: Rows
    sizes: Integers | None = None

    def take(self, which: Positions) -> FoundSpans:
        spans = self.spans.take(which)
        if self.sizes is not None:
            return FoundSpans(spans, self.sizes.take(which))
        if not len(which):
            return FoundSpans(spans, np.zeros(0, np.int64))
        found = batches(self.spans)
        sizes = found.sizes.take(found.of(which))
        return FoundSpans(spans, np.where(spans["batch"] < 0, 0, sizes))


class PendingSpans:
    """Spans until their requests end.

    Those of ended requests are dropped many at a time: per row that costs nothing to speak of,
    however many requests are open.
    """

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []
        self._ended: list[Integers] = []
        self._count = self._ended_count = 0
        self._limit = _MIN_KEPT

    def __len__(self) -> int:
        return self._count

    def add(self, spans: Rows) -> None:
        """Take the spans of one flush, whose batches are whole."""
        if len(spans):
            self._pieces.append(_Piece(spans))
            self._count += len(spans)

    def find(self, data_ids: Sequence[int]) -> FoundSpans:
        """Return all spans of a few requests that have not been dropped."""
        wanted = np.array(data_ids, np.int64)
        return _joined(
            [
                piece.take(np.flatnonzero(np.isin(piece.spans["data_id"], wanted)))
                for piece in self._pieces
            ]
        )

    def end(self, data_ids: Integers) -> None:
        """Take down that these requests have ended. Their spans are there until `compact`."""
        if self._pieces:
            self._ended.append(data_ids.copy())
            self._ended_count += len(data_ids)

    @property
    def is_full(self) -> bool:
        """True when it is time for `compact`."""
        larger = max(self._count, self._ended_count)  # requests that are refused have no spans
        return larger > self._limit or len(self._pieces) > _MAX_PIECES

    def compact(self) -> None:
        """Drop the spans of requests that have ended, and those that are very old."""
        if self._pieces:
            self._drop_ended()
        self._ended, self._ended_count = [], 0

    def _drop_ended(self) -> None:
        since_ns = (
            max(int(piece.spans["result_received_ns"].max()) for piece in self._pieces)
            - _MAX_AGE_NS
        )
        data_ids = np.concatenate([piece.spans["data_id"] for piece in self._pieces])
        is_open = np.isin(data_ids, np.concatenate(self._ended), invert=True)
        kept, begin = [], 0
        for piece in self._pieces:
            end = begin + len(piece.spans)
            which = np.flatnonzero(is_open[begin:end])
            # Spans may outlive their request.
            kept.append(piece.take(which[piece.spans["result_received_ns"].take(which) > since_ns]))
            begin = end
        left = _joined(kept)
        piece = _Piece(left.spans[-_MAX_KEPT:], left.sizes[-_MAX_KEPT:])
        self._count = len(piece.spans)
        self._limit = max(_MIN_KEPT, 2 * self._count)
        self._pieces = [piece] if self._count else []


def _joined(found: Sequence[FoundSpans]) -> FoundSpans:
    found = [each for each in found if len(each.spans)]
    if not found:
        return FoundSpans(np.empty(0, SPAN), np.zeros(0, np.int64))
    return FoundSpans(
        joined([each.spans for each in found]), np.concatenate([each.sizes for each in found])
    )
