"""Keys of Ops whose number of workers follows their load, see `engine.elastic`."""

from __future__ import annotations

from typing import Annotated, Protocol

from msgspec import Meta, Struct


class ElasticConfig(Struct, frozen=True, kw_only=True):
    """`op.<name>.elastic`: when workers are added and taken away."""

    utilization: Annotated[
        float, Meta(gt=0, le=1), "Share of the workers that is to be busy: more add workers."
    ] = 0.8
    max_wait_ms: Annotated[
        int, Meta(ge=1), "What waits is to be begun within that time, ms: longer adds workers."
    ] = 100
    idle_s: Annotated[
        float, Meta(gt=0), "Workers that were not needed for so long are taken away, s."
    ] = 60.0


class Bounded(Protocol):
    """An Op's settings, as far as they bound its workers."""

    @property
    def concurrency(self) -> int: ...
    @property
    def min_workers(self) -> int | None: ...
    @property
    def max_workers(self) -> int | None: ...


def bounds_of(op: Bounded) -> tuple[int, int] | None:
    """Return the fewest and the most workers of an Op; None: there are always `concurrency`."""
    if op.min_workers is None and op.max_workers is None:
        return None
    lowest = 1 if op.min_workers is None else op.min_workers
    return lowest, op.concurrency if op.max_workers is None else op.max_workers


def fault_of_bounds(op: Bounded) -> str:
    """Return what is wrong with an Op's bounds; "": nothing."""
    bounds = bounds_of(op)
    if bounds is None:
        return ""
    lowest, highest = bounds
    if lowest > highest:
        return f"min_workers: expected {highest} at most, as max_workers says, found {lowest}"
    if not lowest <= op.concurrency <= highest:
        return (
            f"concurrency: expected {max(1, lowest)} to {highest}, as min_workers and max_workers"
            f" say, found {op.concurrency}: so many there are at the start"
        )
    return ""
