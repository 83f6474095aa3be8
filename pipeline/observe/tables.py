"""Sums over the journal's rows, in numpy: by key, by batch, into counters."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.observe.span import Outcome, Rows

__all__ = ["Batches", "Counters", "Integers", "batches", "differences", "summed", "tally"]

Integers = npt.NDArray[np.int64]
Counters = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.intp]


class Batches(NamedTuple):
    """Executions that count: the position of each one's first turn, and its samples."""

    first: Positions
    width: Integers


def batches(turns: Rows, rows: Integers) -> Batches:
    """The batches in which a request succeeded, as wide as they ran; `rows` are the turns' own."""
    ran = np.flatnonzero(turns["batch"] >= 0)
    if not len(ran):
        return Batches(ran, np.zeros(0, np.int64))
    op, batch = turns["op"][ran], turns["batch"][ran]
    is_first = np.ones(len(ran), bool)
    is_first[1:] = (op[1:] != op[:-1]) | (batch[1:] != batch[:-1])
    starts = np.flatnonzero(is_first)
    counts = np.logical_or.reduceat(turns["outcome"][ran] == Outcome.OK, starts)
    width = np.add.reduceat(rows[ran], starts)
    return Batches(ran[starts[counts]], width[counts])


def differences(table: Rows, *names: str) -> Integers:
    """Columns of the times between each two fields; 0 where clocks of two machines disagree."""
    times = np.stack([table[name] for name in names], 1)
    return np.maximum(np.diff(times, axis=1), 0)


def summed(keys: Integers, values: Integers) -> tuple[Integers, Integers]:
    """The keys that there are, ascending, and for each the sums of its rows of `values`."""
    order = np.argsort(keys)
    keys = keys[order]
    starts = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1))
    return keys[starts], np.add.reduceat(values[order], starts, axis=0)


def tally(counters: Counters, model: Integers, column: npt.NDArray[Any]) -> None:
    """Add 1 at each (model, column)."""
    flat = np.bincount(model * counters.shape[1] + column, minlength=counters.size)
    counters += flat.reshape(counters.shape).astype(np.uint64)
