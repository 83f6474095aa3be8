"""Rows that stand for several each: their counts, sums, means and percentiles."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.engine.journal import Rows

Numbers = npt.NDArray[Any]


def weighed(rows: Rows, weights: npt.NDArray[np.float64]) -> Rows:
    """The rows with a field more, `weight`."""
    found = np.empty(rows.size, [*rows.dtype.descr, ("weight", np.float64)])
    for name in rows.dtype.names or ():
        found[name] = rows[name]
    found["weight"] = weights
    return found


def count(rows: Rows) -> int:
    """Of weighed rows: how many they stand for; at least one if there is any."""
    return max(min(1, rows.size), round(float(rows["weight"].sum())))


def over(number: float, by: float) -> float:
    """`number / by`; NaN if that is 0."""
    return float(number / by) if by else math.nan


class Spans(NamedTuple):
    """Times in ns, and how many each stands for."""

    ns: Numbers
    weights: Numbers

    @property
    def total_s(self) -> float:
        """Their sum."""
        return float((self.ns * self.weights).sum() / 1e9)

    @property
    def mean_ms(self) -> float:
        """NaN if there are none."""
        return over((self.ns * self.weights).sum(), self.weights.sum()) / 1e6

    def percentile_ms(self, percent: float) -> float:
        """NaN if there are none."""
        return percentile(self.ns, self.weights, percent) / 1e6 if self.ns.size else math.nan


def between(rows: Rows, first: str, last: str) -> Spans:
    """Of each weighed row of which both times are known."""
    known = (rows[first] > 0) & (rows[last] >= rows[first])
    return Spans(rows[last][known] - rows[first][known], rows["weight"][known])


def percentile(values: Numbers, weights: Numbers, percent: float) -> float:
    """As numpy's, between the values if it lies there; of at least one value."""
    if (weights == weights[0]).all():
        return float(np.percentile(values, percent))
    order = np.argsort(values, kind="stable")
    weights = weights[order]
    # A value's place is the middle of its weight; of equal weights that is what numpy does.
    places = np.cumsum(weights) - weights / 2
    wanted = places[0] + percent / 100 * (places[-1] - places[0])
    return float(np.interp(wanted, places, values[order]))
