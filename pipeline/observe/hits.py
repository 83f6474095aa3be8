"""Hits: what caches of answers do for the models of a server, counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.observe.tables import Counters, Integers

_HITS, _HIT_NS, _MISSES, _MISS_NS = range(4)


class Hits:
    """Counters of requests that were found in a cache, and of those that were not.

    Args:
        models: how many there are.
    """

    def __init__(self, models: int) -> None:
        self._counters: Counters = np.zeros((models, 4), np.uint64)
        self._caches: set[int] = set()
        self._next: set[tuple[int, int]] = set()  # whose rows are still to come

    def opened(self, model: int) -> None:
        """Take note of a model whose answers are kept."""
        self._caches.add(model)

    def hit(self, model: int, data_id: int, took_ns: int) -> None:
        """Count a request that was found."""
        self._next.add((model, data_id))
        self._add(model, _HITS, took_ns)

    def missed(self, model: int, took_ns: int) -> None:
        """Count one that was not."""
        self._add(model, _MISSES, took_ns)

    def _add(self, model: int, column: int, took_ns: int) -> None:
        self._counters[model, column] += np.uint64(1)
        self._counters[model, column + 1] += np.uint64(max(0, took_ns))

    def among(self, models: Integers, data_ids: Integers) -> npt.NDArray[np.bool_] | None:
        """Return which of these rows are of requests that were found; None: none is."""
        if not self._next:
            return None
        rows = zip(models.tolist(), data_ids.tolist(), strict=True)
        found = np.array([row in self._next for row in rows], bool)
        if not found.any():
            return None
        gone = zip(models[found].tolist(), data_ids[found].tolist(), strict=True)
        self._next.difference_update(gone)
        return found

    def fields(self, model: int) -> dict[str, Any]:
        """Return what a ModelCounters has of them."""
        hits, hit_ns, misses, miss_ns = self._counters[model].tolist()
        return {
            "caches": model in self._caches,
            "cache_hit_count": hits,
            "cache_hit_ns": hit_ns,
            "cache_miss_count": misses,
            "cache_miss_ns": miss_ns,
        }
