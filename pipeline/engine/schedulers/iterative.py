"""The scheduler `iterative`: requests stay from step to step, others join in between.

Who has begun has a seat at a worker, `batch_size` of them at each, until it ends. A step of a
worker is a batch of all whose seats are there, and who have room for what it makes of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec

from pipeline.config.schema import OpConfig
from pipeline.engine.channel import Item
from pipeline.engine.request import RequestState
from pipeline.engine.schedulers.base import Batch, Load, ReadyQueue


class Seat(msgspec.Struct, eq=False):
    """Place of a request that has begun.

    Attributes:
        worker: number of the one that has what the Op keeps of it.
        is_out: whether it is in a step now.
    """

    item: Item
    worker: int
    is_out: bool = True


class IterativeScheduler(ReadyQueue):
    """Makes one step after the other at each worker.

    Nobody waits for company: a step begins as soon as its worker is free, `auto_batching_timeout`
    says nothing here. Who begins does so at the worker with the fewest seats taken.

    Attributes:
        room_of: how many more parts may be made of a request; who has no room sits out, and keeps
            its seat.
    """

    def __init__(self, config: OpConfig, options: None = None) -> None:
        super().__init__()
        self._seats: dict[Item, Seat] = {}
        self._most = config.batch_size
        self._concurrency = config.concurrency
        self._turn = 0  # of the worker that is asked first
        self.room_of: Callable[[Item], int] = lambda item: sys.maxsize

    def __len__(self) -> int:
        """Return how many could be in a step, and are not."""
        return super().__len__() + sum(map(self._can_step, self._seats.values()))

    @property
    def under_way(self) -> int:
        """Return how many have a seat."""
        return len(self._seats)

    def next(self, load: Load, now: float) -> Batch | float | None:
        if not load.workers:
            return None
        numbers = range(self._concurrency)
        at: list[list[Seat]] = [[] for _ in numbers]
        for seat in self._seats.values():
            at[seat.worker].append(seat)
        free = [number for number in numbers if not any(seat.is_out for seat in at[number])]
        free.sort(key=lambda number: (len(at[number]), (number - self._turn) % len(numbers)))
        for number in free:
            joining = self._joining(at[number], load, now)
            steps = [seat for seat in at[number] if self._can_step(seat)]
            if joining or steps:
                self._turn = number + 1
                return self._step(number, steps, joining)
        return None

    def done(self, batch: Batch, now: float) -> None:
        """Take note that a step is over: those in it may be in the next one."""
        for item in batch.items:
            seat = self._seats.get(item)
            if seat is not None:
                seat.is_out = False

    def leave(self, item: Item) -> None:
        """Give up the seat of a request that has ended, if it has one."""
        self._seats.pop(item, None)

    def drop(self, request: RequestState) -> list[Item]:
        dropped = super().drop(request)
        for item in [item for item in self._seats if item.request is request]:
            if not self._seats.pop(item).is_out:
                dropped.append(item)
        return dropped

    def clear(self) -> list[Item]:
        """Forget all that wait, and those that have begun and are in no step."""
        idle = [seat.item for seat in self._seats.values() if not seat.is_out]
        for item in idle:
            del self._seats[item]
        return [*idle, *super().clear()]

    def _joining(self, seats: list[Seat], load: Load, now: float) -> list[Item]:
        """Take who may begin at a worker, where others have these seats."""
        places = min(self._most - len(seats), load.max_items)
        if places <= 0 or not super().__len__():
            return []
        if load.max_rows:  # of all that are there: they may all be in one step
            taken = sum(seat.item.request.rows for seat in seats)
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

    def _step(self, worker: int, steps: list[Seat], joining: list[Item]) -> Batch:
        for seat in steps:
            seat.is_out = True
        for item in joining:
            self._seats[item] = Seat(item, worker)
        items = [*(seat.item for seat in steps), *joining]
        return Batch(items, worker if self._concurrency > 1 else None)

    def _can_step(self, seat: Seat) -> bool:
        return not seat.is_out and self.room_of(seat.item) > 0
