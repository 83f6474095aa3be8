"""Responses: counts the parts of streams by Triton's schema, and how long they were awaited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.engine.journal.journal import PartKind, Rows
from pipeline.observe.snapshot import LATENCY_STEPS, ResponseCounters
from pipeline.observe.tables import Counters, buckets, groups, kept, tally

BOUNDS_MS = (100.0, 500.0, 2000.0, 5000.0)
"""Bounds of Triton's histogram of first responses; what took longer has a bucket, too."""

_MOST_NUMBERS = 1000  # of parts that are counted apart: the last one counts all that come later


class Responses:
    """Counters of the parts of all models; the first is the pipeline, then its Ops.

    Args:
        models: how many there are.
        bounds_ms: of the histogram of first parts.
    """

    def __init__(self, models: int, bounds_ms: Sequence[float] = BOUNDS_MS) -> None:
        self._bounds_ms = list(bounds_ms)
        self._bounds_ns = np.array(bounds_ms, np.float64) * 1_000_000
        self._counters: list[dict[int, ResponseCounters]] = [{} for _ in range(models)]
        self._waits: Counters = np.zeros((models, 2, LATENCY_STEPS), np.uint64)  # first, between
        self._first_ms: Counters = np.zeros((models, len(self._bounds_ms) + 1), np.uint64)
        self._waits_ns: list[list[int]] = [[0, 0] for _ in range(models)]

    def count(self, parts: Rows) -> None:
        model, kind = parts["target"] + 1, parts["kind"]
        number = np.minimum(parts["number"], _MOST_NUMBERS - 1)
        infer_ns = np.maximum(parts["made_ns"] - parts["start_ns"], 0)
        output_ns = np.maximum(parts["end_ns"] - parts["made_ns"], 0)
        found = groups((model * _MOST_NUMBERS + number) * len(PartKind) + kind)
        sums = found.sums(np.stack([infer_ns, output_ns]))
        rows = zip(found.keys.tolist(), found.sizes.tolist(), sums.T.tolist(), strict=True)
        for key, size, (infer, output) in rows:
            place, its_kind = divmod(key, len(PartKind))
            index, its_number = divmod(place, _MOST_NUMBERS)
            counters = self._counters[index].setdefault(its_number, ResponseCounters())
            _add(counters, its_kind, size, infer, output)
        given = kind == PartKind.GIVEN
        is_later = kept(parts["number"] > 0, given).astype(np.int64)
        self._await(kept(model, given), is_later, kept(infer_ns + output_ns, given))

    def _await(self, model: Any, is_later: Any, took_ns: Any) -> None:
        if not len(model):
            return
        tally(self._waits, buckets(took_ns) + (model * 2 + is_later) * LATENCY_STEPS)
        first, first_of = kept(took_ns, is_later == 0), kept(model, is_later == 0)
        bound = np.searchsorted(self._bounds_ns, first)
        tally(self._first_ms, bound + first_of * self._first_ms.shape[1])
        found = groups(model * 2 + is_later)
        sums = found.sums(took_ns[np.newaxis])[0].tolist()
        for key, total in zip(found.keys.tolist(), sums, strict=True):
            self._waits_ns[key // 2][key % 2] += total

    def fields(self, index: int) -> dict[str, Any]:
        """Return the fields of a model's ModelCounters."""
        if not self._counters[index]:
            return {}
        first_ns, gap_ns = self._waits_ns[index]
        return {
            "responses": dict(sorted(self._counters[index].items())),
            "first_part": self._waits[index, 0].tolist(),
            "first_part_ns": first_ns,
            "first_part_ms": self._first_ms[index].tolist(),
            "first_part_bounds_ms": self._bounds_ms,
            "part_gap": self._waits[index, 1].tolist(),
            "part_gap_ns": gap_ns,
        }


def _add(counters: ResponseCounters, kind: int, count: int, infer_ns: int, output_ns: int) -> None:
    if kind == PartKind.GIVEN:
        counters.count += count
        counters.infer_ns += infer_ns
        counters.output_ns += output_ns
    elif kind == PartKind.EMPTY:
        counters.empty_count += count
        counters.empty_ns += infer_ns
    elif kind == PartKind.FAILED:
        counters.fail_count += count
        counters.fail_ns += infer_ns
    else:
        counters.cancel_count += count


def response_form(counters: ResponseCounters) -> dict[str, Any]:
    """Return the counters of one number in Triton's words."""
    made_ns = counters.infer_ns + counters.empty_ns + counters.fail_ns
    made = counters.count + counters.empty_count + counters.fail_count
    return {
        "compute_infer": {"count": made, "ns": made_ns},
        "compute_output": {"count": counters.count, "ns": counters.output_ns},
        "success": {"count": counters.count, "ns": counters.infer_ns + counters.output_ns},
        "fail": {"count": counters.fail_count, "ns": counters.fail_ns},
        "empty_response": {"count": counters.empty_count, "ns": counters.empty_ns},
        "cancel": {"count": counters.cancel_count, "ns": counters.cancel_ns},
    }
