"""Histograms of latencies: which bucket a time belongs to, and percentiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.observe.snapshot import LATENCY_STEPS
from pipeline.observe.tables import Integers, Positions

__all__ = ["LATENCY_BOUNDS_NS", "buckets", "percentile"]

LATENCY_BOUNDS_NS = np.floor(1000 * 2 ** (np.arange(LATENCY_STEPS) / 4)).astype(np.int64)
"""Upper bounds of the buckets of a latency histogram, those of LATENCY_STEPS."""

# A time's cell is the exponent and three more bits of it as a double: eighths of an octave, of
# which none has two bounds in it. So a look at the one bound tells which of two buckets it is.
_CELL_BITS = 49
_FIRST_CELL = int(np.float64(1).view(np.int64)) >> _CELL_BITS
_CELL_BOUNDS = np.ldexp(1 + np.arange(8) / 8, np.arange(64)[:, np.newaxis]).ravel()
_BUCKET_OF_CELL = np.searchsorted(LATENCY_BOUNDS_NS[:-1], _CELL_BOUNDS)
_LAST_NS = np.append(LATENCY_BOUNDS_NS[:-1], np.iinfo(np.int64).max)


def buckets(ns: Integers) -> Positions:
    """Return the bucket of each time, which is 0 or more; in a third of the time of a search."""
    cells = ns.astype(np.float64).view(np.int64)
    cells >>= _CELL_BITS
    cells -= _FIRST_CELL
    found: Positions = _BUCKET_OF_CELL.take(cells, mode="clip")  # below 1 ns is in the first, too
    found += ns > _LAST_NS.take(found)
    return found


def percentile(histogram: Sequence[int], q: float) -> float:
    """Return the time in ns that the share `q` (0 to 1) took at most; 0.0 of an empty histogram.

    Linear within a bucket, which is 19 % wide. `histogram` may be the difference of two.
    """
    if not 0 <= q <= 1:
        raise ValueError(f"percentile: q is {q}, it must be from 0 to 1")
    counts = np.maximum(np.asarray(histogram, np.int64), 0)
    upto = np.cumsum(counts)
    rank = q * int(upto[-1])
    if not upto[-1]:
        return 0.0
    bucket = int(np.argmax((upto >= rank) & (counts > 0)))
    lower = float(LATENCY_BOUNDS_NS[bucket - 1]) if bucket else 0.0
    share = (rank - float(upto[bucket] - counts[bucket])) / float(counts[bucket])
    return lower + (float(LATENCY_BOUNDS_NS[bucket]) - lower) * share
