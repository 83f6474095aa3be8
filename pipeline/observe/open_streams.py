"""OpenStreams: when the parts of streams went out, of requests that are under way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.engine.journal.journal import PartKind, Rows, part_records

STREAM = np.dtype(
    [
        (name, np.int64)
        for name in ("data_id", "target", "parts", "begin_ns", "first_ns", "last_ns", "weight")
    ]
)
"""A stream: its request, whose it is (an Op, PIPELINE: the answer), how many parts it had, when the
first one began to be made, went out, and the last one did; how many streams it stands for."""

NO_STREAMS: Rows = np.empty(0, STREAM)


class OpenStreams:
    """Sums up the parts of each stream until its request has ended."""

    def __init__(self) -> None:
        self._of: dict[int, dict[int, list[int]]] = {}  # by data id and target: a row's numbers

    def note(self, parts: Rows) -> None:
        for row in part_records(parts):
            if row.kind != PartKind.GIVEN:
                continue
            found = self._of.setdefault(row.data_id, {})
            times = found.setdefault(row.target, [0, row.start_ns, row.end_ns, 0])
            times[0] += 1
            times[3] = row.end_ns

    def take(self, ended: Rows, told: Rows, strides: Sequence[int] | None = None) -> Rows:
        """Forget the streams of requests that have ended; return those of them that are `told`.

        `strides`: how many each of these stands for; None: for itself.
        """
        if not self._of:
            return NO_STREAMS
        ids = told["data_id"].tolist()
        rows = [
            (data_id, target, *times, weight)
            for data_id, weight in zip(ids, strides or [1] * len(ids), strict=True)
            for target, times in self._of.get(data_id, {}).items()
        ]
        for data_id in ended["data_id"].tolist():
            self._of.pop(data_id, None)
        return np.array(rows, STREAM)
