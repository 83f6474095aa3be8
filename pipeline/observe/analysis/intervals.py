"""Intervals of time, in numpy: how long at least one of many lasted."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]


def merged(starts: Times, ends: Times) -> tuple[Times, Times]:
    """Merge intervals into those that neither overlap nor touch, in order; each has an end."""
    if not starts.size:
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    first = np.flatnonzero(np.append(True, starts[1:] > ends[:-1]))
    return starts[first], ends[np.append(first[1:] - 1, starts.size - 1)]


def covered_ns(starts: Times, ends: Times, within: tuple[int, int] | None = None) -> int:
    """Return how long merged intervals last; `within`: as far as they lie between these times."""
    if within is not None:
        starts, ends = np.maximum(starts, within[0]), np.minimum(ends, within[1])
    return int(np.maximum(ends - starts, 0).sum())


def covered_until(times: Times, starts: Times, ends: Times) -> npt.NDArray[np.float64]:
    """Return how long, in ns, merged intervals had lasted at each of the times."""
    if not starts.size:
        return np.zeros(times.shape)
    lasted = np.cumsum(ends - starts)
    edges = np.stack([starts, ends], 1).ravel() - starts[0]  # small: a double holds them exactly
    reached = np.stack([lasted - (ends - starts), lasted], 1).ravel()
    found: npt.NDArray[np.float64] = np.interp(times - starts[0], edges, reached)
    return found
