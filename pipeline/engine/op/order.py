"""OrderFilter: answers leave an Op in the order in which its requests came."""

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
    """Holds the answers of a batch until all batches before it are answered.

    Errors of lost batches do not wait.
    """

    group_obstacle: str = "its answers leave in order"

    def __init__(self) -> None:
        self._numbers: dict[Item, int] = {}  # the batch of each unanswered item
        self._open: Counter[int] = Counter()  # how many items of each batch are unanswered
        self._lost: dict[Item, int] = {}  # the batch of each item that may start again
        self._taken = 0
        self._held: list[tuple[int, int, partial[None]]] = []

    def submit(self, call_next: Callable[[Sequence[Any]], None], runs: Sequence[BatchRun]) -> None:
        for run in runs:
            self._taken += 1
            for item in run.items:
                if item not in self._numbers:  # an item that starts again keeps its number
                    self._numbers[item] = number = self._lost.pop(item, self._taken)
                    self._open[number] += 1
        call_next(runs)

    def release(self, call_next: Callable[[Any], None], run: BatchRun | Item) -> None:
        is_lost = isinstance(run, BatchRun) and run.is_superseded
        for item in run.items:
            if is_lost or item.is_over:
                number = self._left(item)
                if is_lost and number is not None:
                    self._lost[item] = number
        call_next(run)
        if not is_lost:
            self._pass_on_held()

    def pass_on(
        self, call_next: Callable[..., None], item: Item, outcome: Any, jumped: bool = False
    ) -> None:
        number = self._left(item)
        if number is None:
            call_next(item, outcome, jumped)
            return
        self._taken += 1
        what = partial(call_next, item, outcome, jumped)
        heapq.heappush(self._held, (number, self._taken, what))
        self._pass_on_held()

    def schedule(self, call_next: Callable[[], None]) -> None:
        self._lost.clear()
        self._pass_on_held()  # a batch may have been lost
        call_next()

    def _left(self, item: Item) -> int | None:
        """Take an item out; return the number of its batch, if it was at the workers."""
        number = self._numbers.pop(item, None)
        if number is not None:
            self._open[number] -= 1
            if not self._open[number]:
                del self._open[number]
        return number

    def _pass_on_held(self) -> None:
        """Pass on the answers of batches that have no unanswered batch before them."""
        while self._held and self._held[0][0] <= min(self._open, default=math.inf):
            heapq.heappop(self._held)[2]()
