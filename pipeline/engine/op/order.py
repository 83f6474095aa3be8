"""OrderFilter: answers leave an Op in the order in which its requests have come."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pipeline.engine.op.channel import Item
from pipeline.engine.op.filter import OpFilter
from pipeline.engine.run.stages import BatchRun


class OrderFilter(OpFilter):
    """Holds what came of a batch until nothing comes, or will come, of those before it.

    Errors of batches that were lost do not wait.
    """

    goes_alone: str = "its answers leave in order"

    def __init__(self) -> None:
        self._numbers: dict[Item, int] = {}  # of the batches of those that are not answered
        self._open: Counter[int] = Counter()  # so many of each
        self._lost: dict[Item, int] = {}  # of those that may start over
        self._taken = 0
        self._held: list[tuple[int, int, partial[None]]] = []

    def submit(self, go_on: Callable[[Sequence[Any]], None], runs: Sequence[BatchRun]) -> None:
        for run in runs:
            self._taken += 1
            for item in run.items:
                if item not in self._numbers:  # what is started over keeps its own
                    self._numbers[item] = number = self._lost.pop(item, self._taken)
                    self._open[number] += 1
        go_on(runs)

    def release(self, go_on: Callable[[Any], None], run: BatchRun | Item) -> None:
        is_lost = isinstance(run, BatchRun) and run.is_superseded
        for item in run.items:
            if (is_lost or item.is_over) and (number := self._left(item)) is not None:
                self._lost[item] = number
        go_on(run)
        if not is_lost:
            self._pass_on_held()

    def pass_on(
        self, go_on: Callable[..., None], item: Item, outcome: Any, jumped: bool = False
    ) -> None:
        number = self._left(item)
        if number is None:
            go_on(item, outcome, jumped)
            return
        self._taken += 1
        what = partial(go_on, item, outcome, jumped)
        heapq.heappush(self._held, (number, self._taken, what))
        self._pass_on_held()

    def schedule(self, go_on: Callable[[], None]) -> None:
        self._lost.clear()
        self._pass_on_held()  # a batch may have been lost
        go_on()

    def _left(self, item: Item) -> int | None:
        """Take an item out; return the number of its batch, if it was at the workers."""
        number = self._numbers.pop(item, None)
        if number is not None:
            self._open[number] -= 1
            if not self._open[number]:
                del self._open[number]
        return number

    def _pass_on_held(self) -> None:
        """Pass on what came of batches that have none before them any more."""
        while self._held and self._held[0][0] <= min(self._open, default=math.inf):
            heapq.heappop(self._held)[2]()
