"""A fair sample of a profile's requests and streams, and their weights.

The data id alone decides whether a request is in the sample. So the sample has all of its rows or
none, and a request in a sample of 1 in 8 is also in a sample of 1 in 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.engine.journal.journal import PartKind, Rows, part_records
from pipeline.observe.tables import Integers, batches, covered_ns, merged

_WINDOW_NS = 10**9
_MARGIN = 0.8  # a larger sample is taken if it stays below this share of the limit
_MAX_HALVINGS = 40
_MAX_CHANGES = 64  # that are remembered, for requests that began before them
# 2**64 / golden ratio: its multiples are spread evenly.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LAST = np.uint64(2**64 - 1)

LOAD = np.dtype([(name, np.int64) for name in ("begin_ns", "end_ns", "busy_ns")])
"""An interval whose record lacks some requests, and for how long a request was there."""

NO_LOADS: Rows = np.empty(0, LOAD)


class Strides(NamedTuple):
    """For each span and request, how many it stands for; 0: it only completes a batch."""

    spans: Integers
    requests: Integers


class SampledRows(NamedTuple):
    """Rows of SPAN, REQUEST and LOAD to be written."""

    spans: Rows
    requests: Rows
    strides: Strides | None  # None: not a sample
    loads: Rows


@dataclass(frozen=True, slots=True)
class Sample:
    """Weights of rows: how many each row stands for; rows of one batch have one weight.

    `loads` are LOAD rows; those of several replicas overlap.
    """

    spans: npt.NDArray[np.float64]
    requests: npt.NDArray[np.float64]
    loads: Rows

    @classmethod
    def whole(cls, spans: Rows, requests: Rows) -> Sample:
        """Return the sample that has all rows."""
        return cls(np.ones(spans.size), np.ones(requests.size), NO_LOADS)


class Sampler:
    """Chooses requests: all of them while there are few.

    It adapts to a higher rate at once, to a lower one each second. It chooses at most `per_s` a
    second, and at least two fifths of `per_s` if there are more. `id_step` is the distance of this
    process's data ids.
    """

    def __init__(self, per_s: int, id_step: int = 1) -> None:
        self._per_s = per_s
        self._id_step = id_step
        # (data id, how often the sample is halved from this id on)
        self._since = np.array([np.iinfo(np.int64).min])
        self._halvings = np.zeros(1, np.uint64)
        self._newest: int | None = None
        self._begun = 0  # requests of this window
        self._begin_ns = 0
        self._latest_ns = 0
        self._covered: list[Integers] = []  # starts and ends of merged intervals
        self._is_cut = False

    def choose(self, spans: Rows, requests: Rows) -> SampledRows:
        """Return the rows of a flush to write. It takes some 0.1 us a row."""
        self._adapt(self._count(spans, requests))
        starts, ends = requests["start_ns"], requests["end_ns"]
        known = (starts > 0) & (ends >= starts)
        self._covered.append(np.stack(merged(starts[known], ends[known])))
        span_strides = self._strides(spans["data_id"])
        request_strides = self._strides(requests["data_id"])
        told_spans = span_strides > 0
        if spans.size:  # and the rest of their batches
            first, sizes = batches(spans)
            told_spans = np.repeat(np.logical_or.reduceat(told_spans, first), sizes)
        told_requests = request_strides > 0
        self._is_cut |= not (told_spans.all() and told_requests.all())
        is_over = self._latest_ns - self._begin_ns >= _WINDOW_NS
        return SampledRows(
            spans.compress(told_spans),
            requests.compress(told_requests),
            Strides(span_strides[told_spans], request_strides[told_requests]),
            self.end() if is_over else NO_LOADS,
        )

    def end(self) -> Rows:
        """Close the window; return its LOAD row, empty if the record has all its requests."""
        begin_ns, end_ns = self._begin_ns, self._latest_ns
        pieces = self._covered or [np.empty((2, 0), np.int64)]
        starts, ends = merged(*np.concatenate(pieces, axis=1))
        busy_ns = covered_ns(starts, ends, (begin_ns, end_ns))
        is_cut = self._is_cut
        self._begin_ns, self._begun, self._is_cut = end_ns, 0, False
        self._covered.clear()
        return np.array([(begin_ns, end_ns, busy_ns)], LOAD) if is_cut else NO_LOADS

    def _count(self, spans: Rows, requests: Rows) -> int:
        """Advance time and data ids; return how many requests began since the last flush."""
        ids = [rows["data_id"] for rows in (spans, requests) if rows.size]
        ends = [rows["end_ns"] for rows in (spans, requests) if rows.size]
        if self._newest is None:
            self._newest = min(int(column.min()) for column in ids) - self._id_step
            self._begin_ns = min(
                int(rows[name].min())
                for rows, name in ((spans, "ready_ns"), (requests, "start_ns"))
                if rows.size
            )
        newest = max(self._newest, *(int(column.max()) for column in ids))
        count = (newest - self._newest) // self._id_step
        self._newest = newest
        self._begun += count
        self._latest_ns = max(self._latest_ns, *(int(column.max()) for column in ends))
        return count

    def _adapt(self, count: int) -> None:
        """Halve or double the sample for requests that begin from now on."""
        seconds = (self._latest_ns - self._begin_ns) / _WINDOW_NS
        # A flush covers at most a second, so `count` does not exceed the rate.
        rate = max(self._begun / max(1.0, seconds), count)
        now, needed = int(self._halvings[-1]), self._needed(rate)
        if needed < now:
            needed = min(now, self._needed(rate / _MARGIN)) if seconds >= 1.0 else now
        if needed != now:
            first = (self._newest or 0) - (count - 1) * self._id_step
            self._since = np.append(self._since, first)[-_MAX_CHANGES:]
            self._halvings = np.append(self._halvings, np.uint64(needed))[-_MAX_CHANGES:]

    def _needed(self, rate: float) -> int:
        halvings = math.ceil(math.log2(max(1.0, rate / self._per_s)))
        return min(halvings, _MAX_HALVINGS)

    def _strides(self, ids: Integers) -> Integers:
        """Return each request's stride in the sample of its time; 0: it is not in it."""
        place = np.maximum(np.searchsorted(self._since, ids, side="right") - 1, 0)
        halvings = self._halvings[place]
        is_in = ids.astype(np.uint64) * _GOLDEN <= _LAST >> halvings
        strides: Integers = np.where(is_in, np.int64(1) << halvings.astype(np.int64), 0)
        return strides


STREAM = np.dtype(
    [
        (name, np.int64)
        for name in ("data_id", "target", "parts", "begin_ns", "first_ns", "last_ns", "weight")
    ]
)
"""A stream: its request, its source (an Op, or PIPELINE for the answer), its number of parts, when
the first part was begun and sent, when the last one was sent, and its weight."""

NO_STREAMS: Rows = np.empty(0, STREAM)


class OpenStreams:
    """Adds up the parts of each stream until its request has ended."""

    def __init__(self) -> None:
        self._of: dict[int, dict[int, list[int]]] = {}  # by data id and target: a row's numbers

    def note(self, parts: Rows) -> None:
        for row in part_records(parts):
            if row.kind != PartKind.GIVEN:
                continue
            streams = self._of.setdefault(row.data_id, {})
            times = streams.setdefault(row.target, [0, row.start_ns, row.end_ns, 0])
            times[0] += 1
            times[3] = row.end_ns

    def take(self, ended: Rows, reported: Rows, strides: Sequence[int] | None = None) -> Rows:
        """Forget the streams of ended requests; return those of the `reported` requests.

        `strides` are how many each of these requests stands for; None means one.
        """
        if not self._of:
            return NO_STREAMS
        ids = reported["data_id"].tolist()
        rows = [
            (data_id, target, *times, weight)
            for data_id, weight in zip(ids, strides or [1] * len(ids), strict=True)
            for target, times in self._of.get(data_id, {}).items()
        ]
        for data_id in ended["data_id"].tolist():
            self._of.pop(data_id, None)
        return np.array(rows, STREAM)
