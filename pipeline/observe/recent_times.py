"""RecentTimes: quantiles of what requests took in the last minute, for summaries in /metrics."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import numpy.ma  # else numpy does at its first call, when no file may be left

from pipeline.observe.tables import Integers

_WINDOW_S = 60.0
_MOST = 20_000  # requests that are remembered; of more the last ones
_NS_IN_US = 1000


class RecentTimes:
    """Times of the last requests that were answered well, of all models of a graph.

    Args:
        quantiles: that are asked for, from 0 to 1.
        clock: seconds.
    """

    def __init__(
        self, quantiles: Sequence[float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._quantiles = list(quantiles)
        self._clock = clock
        self._known: deque[tuple[float, Integers, Integers]] = deque()
        self._count = 0

    def add(self, model: Integers, times_ns: Integers) -> None:
        """Remember times, a column for each request, of the models with these indexes."""
        self._known.append((self._clock(), model, times_ns))
        self._count += len(model)
        while self._count > _MOST and len(self._known) > 1:
            self._forget()

    def quantiles_us(self, index: int) -> list[list[int]]:
        """Return the quantiles of each row of times of a model, us; none: it had no request."""
        while self._known and self._known[0][0] < self._clock() - _WINDOW_S:
            self._forget()
        found = [times[:, model == index] for _, model, times in self._known]
        times = np.concatenate(found, axis=1) if found else np.zeros((0, 0), np.int64)
        if not times.size:
            return []
        ranks = np.quantile(times, self._quantiles, axis=1, method="higher")
        of_each: list[list[int]] = (ranks.T // _NS_IN_US).astype(np.int64).tolist()
        return of_each

    def _forget(self) -> None:
        _, model, _ = self._known.popleft()
        self._count -= len(model)
