"""TripRows: one row for all that a request did on its way through several Ops."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipeline.engine.journal.journal import SPAN, Journal, OpSpan, Rows

if TYPE_CHECKING:
    from pipeline.engine.journal.spans import SpanRecorder

_HEAD = ("data_id", "rows", "ready_ns", "began_ns", "result_received_ns")
OF_STEP = 3
"""Marks of a step: the number of its worker, and when its preprocess and it ended."""

_FIELD = {name: place for place, name in enumerate(OpSpan._fields)}


class TripRows:
    """The rows of one plan, and the spans that they stand for: a fifth of the integers.

    Args:
        recorders: of the steps.
        last_read: of each step; see Step.

    Attributes:
        journal: where the rows wait.
        steps: how many spans one stands for.
        pack: makes one, of _HEAD and the `marks` of a Trip.
    """

    def __init__(
        self, journal: Journal, recorders: Sequence[SpanRecorder], last_read: Sequence[int]
    ) -> None:
        self.journal: Journal = journal
        self.steps: int = len(recorders)
        self.pack: Callable[..., bytes] = struct.Struct(
            f"{len(_HEAD) + OF_STEP * self.steps}q"
        ).pack
        self._recorders = recorders
        self._ready_after = np.array(last_read) + 1

    def spans(self, packed: bytes) -> Rows:
        """Return the rows of SPAN that some rows stand for, those of an Op together."""
        told = np.frombuffer(packed, np.int64).reshape(-1, len(_HEAD) + OF_STEP * self.steps).T
        data_ids, rows, ready_ns, began_ns, received_ns = told[: len(_HEAD)]
        numbers, middles, ends = told[len(_HEAD) :].reshape(self.steps, OF_STEP, -1).swapaxes(0, 1)
        count = len(data_ids)
        found = np.zeros((self.steps, count, len(_FIELD)), np.int64)
        for each, recorder in zip(found, self._recorders, strict=True):
            each[:, _FIELD["op"]] = recorder.index
            each[:, _FIELD["batch"]] = np.arange(recorder.batches + 1, recorder.batches + count + 1)
            recorder.batches += count
        for name, values in (
            ("worker", numbers),
            ("data_id", data_ids),
            ("rows", rows),
            ("ready_ns", np.vstack([ready_ns, ends])[self._ready_after]),
            ("start_ns", np.vstack([began_ns, ends[:-1]])),
            ("preprocess_end_ns", middles),
            ("process_end_ns", middles),
            ("end_ns", ends),
            ("result_received_ns", received_ns),
        ):
            found[..., _FIELD[name]] = values
        return found.reshape(-1, len(_FIELD)).view(SPAN)[:, 0]
