"""Rows that stand for several each: their counts, sums, means and percentiles."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.engine.journal.journal import Rows

Numbers = npt.NDArray[Any]


def weighted(rows: Rows, weights: npt.NDArray[np.float64]) -> Rows:
    """Return the rows with a field more, `weight`."""
    found = np.empty(rows.size, [*rows.dtype.descr, ("weight", np.float64)])
    for name in rows.dtype.names or ():
        found[name] = rows[name]
    found["weight"] = weights
    return found


def count(rows: Rows) -> int:
    """Return how many weighted rows stand for; at least one if there is any."""
    return max(min(1, rows.size), round(float(rows["weight"].sum())))


def ratio(number: float, by: float) -> float:
    """Return `number / by`; NaN if that is 0."""
    return float(number / by) if by else math.nan


class Durations(NamedTuple):
    """Times in ns, and how many each stands for."""

    ns: Numbers
    weights: Numbers

    @property
    def total_s(self) -> float:
        """Their sum."""
        return float((self.ns * self.weights).sum() / 1e9)

    @property
    def mean_ms(self) -> float:
        """Their mean; NaN if there are none."""
        return ratio((self.ns * self.weights).sum(), self.weights.sum()) / 1e6

    def percentile_ms(self, percent: float) -> float:
        """Return the percentile; NaN if there are none."""
        return percentile(self.ns, self.weights, percent) / 1e6 if self.ns.size else math.nan


def durations(rows: Rows, first: str, last: str) -> Durations:
    """Return the time from one to the other, of each weighted row of which both are known."""
    known = (rows[first] > 0) & (rows[last] >= rows[first])
    return Durations(rows[last][known] - rows[first][known], rows["weight"][known])


def percentile(values: Numbers, weights: Numbers, percent: float) -> float:
    """Return the percentile of at least one value, between values if it lies there, as numpy's."""
    if (weights == weights[0]).all():
        return float(np.percentile(values, percent))
    order = np.argsort(values, kind="stable")
    weights = weights[order]
    # A value's place is the middle of its weight; of equal weights that is what numpy does.
    places = np.cumsum(weights) - weights / 2
    wanted = places[0] + percent / 100 * (places[-1] - places[0])
    return float(np.interp(wanted, places, values[order]))
