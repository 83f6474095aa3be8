"""Sets which Ops count as quick: no Op of a case runs often enough for the engine to measure it."""

from __future__ import annotations

import random
from typing import Any

from fuzz.case import Case
from pipeline.engine.trips.pace import Pace

_CHANGES = 0.15  # of the runs


class Always(Pace, eq=False):
    """The pace of an Op that is always quick."""

    def took(self, ns: int, requests: int = 1) -> bool:
        return False

    def hung(self) -> bool:
        return False


class Switching(Pace, eq=False):
    """The pace of an Op that is quick or slow at random."""

    rng: Any = None

    def took(self, ns: int, requests: int = 1) -> bool:
        is_other: bool = self.rng.random() < _CHANGES
        self.is_quick ^= is_other
        return is_other


def pace(engine: Any, case: Case) -> None:
    """Set the pace of all Ops of an engine that has just started."""
    if case.fuse == "off":
        return
    rng = random.Random(case.origin)
    for node in engine.executor.nodes.values():
        was = {"is_fusable": node.pace.is_fusable, "was_fusable": node.pace.was_fusable}
        if case.fuse == "on":
            node.pace = Always(**was, is_quick=True)
        else:
            node.pace = Switching(**was, is_quick=rng.random() < 0.7, rng=rng)
    engine.executor.trips.groups.form()
