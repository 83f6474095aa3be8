"""The scheduler `iterative`: requests join a worker's steps, and stay until they end.

A request that has begun has a seat at a worker; each worker has `batch_size` seats. A batch holds
the requests that join; the worker makes its steps itself, see `engine.streams.steps`.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from pipeline.config.batching import SchedulerTraits
from pipeline.config.schema import OpConfig
from pipeline.engine.op.channel import Item
from pipeline.engine.schedulers.base import Batch, Load, ReadyQueue


class IterativeScheduler(ReadyQueue):
    """Gives each request a seat as soon as one is free.

    No request waits for others: a step takes all requests that are there, and
    `auto_batching_timeout` has no effect. A request begins at the worker with the fewest taken
    seats.
    """

    traits: ClassVar[SchedulerTraits] = SchedulerTraits(steps=True)

    def __init__(self, config: OpConfig, options: None = None) -> None:
        super().__init__()
        self._seats: dict[Item, int] = {}
        self._most = config.batch_size
        self._concurrency = config.concurrency
        self._turn = 0  # the worker that is tried first

    @property
    def under_way(self) -> int:
        """Return how many requests have a seat."""
        return len(self._seats)

    def next(self, load: Load, now: float) -> Batch | float | None:
        if not load.workers or not len(self):
            return None
        numbers = range(self._concurrency)
        at: list[list[Item]] = [[] for _ in numbers]
        for item, number in self._seats.items():
            at[number].append(item)
        for number in sorted(
            numbers, key=lambda number: (len(at[number]), (number - self._turn) % len(numbers))
        ):
            joining = self._joining(at[number], load, now)
            if joining:
                self._turn = number + 1
                for item in joining:
                    self._seats[item] = number
                return Batch(joining, number)
        return None

    def done(self, batch: Batch, now: float) -> None:
        """Do nothing: a request that has joined stays until it leaves."""

    def leave(self, item: Item) -> None:
        """Free the seat of a request that has ended."""
        self._seats.pop(item, None)

    def _joining(self, seated: list[Item], load: Load, now: float) -> list[Item]:
        """Take the items that may begin at a worker with these seated items."""
        places = min(self._most - len(seated), load.max_items)
        if places <= 0:
            return []
        if load.max_rows:  # in all seated items: they may all be in one step
            taken = sum(item.request.rows for item in seated)
            bounded = msgspec.structs.replace(load, max_rows=max(1, load.max_rows - taken))
            first = self._first_rows(now, bounded)
            if taken and taken + first > load.max_rows:
                return []
            load = bounded
        return self.take(places, load, now)

    def _first_rows(self, now: float, load: Load) -> int:
        """Return the rows of the request that would be taken first."""
        if self._has_deadlines:
            self._set_aside(now, load.service_s)
        entry = self._ready[0] if self._ready else self._late[-1]
        rows: int = entry[2].request.rows
        return rows
