"""Pace: the time that an Op takes, from which follows whether it runs in one go with others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pipeline.engine.dispatcher import OpDispatcher
    from pipeline.engine.walk import WalkPlan

# Below the one mean of a request an Op is quick, above the other one it is not any more.
_QUICK_NS, _SLOW_NS = 100_000, 1_000_000
_MOST_NS = 10_000_000  # as which a request counts at most: a single hiccup parts no group
_SEEN = 16  # runs in the running mean, and before anything follows from it


class Pace(msgspec.Struct, eq=False):
    """The time that a request takes at one Op, and what follows from it.

    Attributes:
        is_fusable: whether the Op may be in a group at all.
        is_quick: whether it is quick enough.
        mean_ns: running mean of what a request takes, of `runs` runs.
        plan: of the walks that begin at the Op, if `is_planned`; None: none do.
        entered: the Ops that are entered with it.
    """

    is_fusable: bool = False
    is_quick: bool = False
    is_planned: bool = False
    runs: int = 0
    mean_ns: float = 0.0
    plan: WalkPlan | None = None
    entered: tuple[OpDispatcher, ...] = ()

    def took(self, ns: float) -> bool:
        """Take down what a request took in a run; return whether `is_quick` has changed."""
        runs = self.runs = self.runs + 1
        self.mean_ns = mean = self.mean_ns + (min(ns, _MOST_NS) - self.mean_ns) / min(runs, _SEEN)
        if self.is_quick:
            self.is_quick = mean <= _SLOW_NS
            return not self.is_quick
        self.is_quick = runs >= _SEEN and mean < _QUICK_NS
        return self.is_quick

    def hung(self) -> bool:
        """Take down that it took far too long; return whether `is_quick` has changed."""
        was_quick, self.is_quick = self.is_quick, False
        self.mean_ns = _MOST_NS
        return was_quick
