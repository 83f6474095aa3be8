"""The interface of schedulers, which cut an Op's batches; and ReadyQueue, a base for them.

A scheduler is plain code of (state, now): it neither waits nor sets timers, and is called on the
event loop only. The registry finds its class by the key `batching`, and one is made for each Op.
Its attribute `traits`, a SchedulerTraits, describes it to the engine.
"""

from __future__ import annotations

import bisect
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from pipeline.engine.journal.journal import Outcome
from pipeline.engine.op.channel import Item
from pipeline.engine.request import RequestState
from pipeline.errors import PipelineError

_WEIGHT = 1 / 16  # of the newest batch in the running mean

SWITCH = "PIPELINE_TEST_HOOKS"
"""Environment variable that must be 1; otherwise the others are ignored."""

_QUEUED = "TRITONSERVER_DELAY_SCHEDULER"
_BACKLOG = "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"


class Batch(msgspec.Struct, eq=False):
    """Items that run together.

    Attributes:
        worker: the number of the worker that has to run it, if workers are addressable; None: any.
        start_ns: when the worker began it.
        end_ns: when the worker ended it; 0: it was not finished.
        handed_ns: when it was sent to a worker process that was idle; 0: the worker was not idle.
        places: the slots, at that worker, of the sequences of the items: no other worker can run
            it.
    """

    items: Sequence[Any]
    worker: int | None = None
    start_ns: int = 0
    end_ns: int = 0
    handed_ns: int = 0
    places: Sequence[int] | None = None


class Refusal(msgspec.Struct, eq=False):
    """Items that a scheduler has given up and removed from its queue.

    Attributes:
        error: the error of their requests.
        outcome: of their spans; None: there are none, because the items were never queued.
    """

    items: Sequence[Any]
    error: PipelineError
    outcome: Outcome | None = None


class Load(msgspec.Struct, eq=False):
    """The workers, as seen by a scheduler.

    Attributes:
        workers: how many take batches.
        most_workers: how many of them can work at the same time.
        running: batches that they have, or that wait for one of them.
        items: requests in these batches.
        service_s: running mean of the time that a batch takes.
        max_rows: samples that one execution may get; 0: any number.
        rows_limits: `max_rows` before the model is loaded, and after.
        max_items: requests that may begin now, because there is room for their answers.
        is_full: whether no more requests come until some have begun.
        ahead: how many whole batches each busy worker should have in advance.
        has_ready: whether anything is ready, as far as is known since the scheduler was called.
    """

    workers: int = 0
    most_workers: int = sys.maxsize
    running: int = 0
    items: int = 0
    service_s: float = 0.0
    max_rows: int = 0
    rows_limits: tuple[int, int] = (0, 0)
    max_items: int = sys.maxsize
    is_full: bool = False
    ahead: int = 0
    has_ready: bool = False

    def served(self, seconds: float) -> None:
        """Record how long a batch took."""
        mean = self.service_s
        self.service_s = mean + (seconds - mean) * _WEIGHT if mean else seconds


class Scheduler(Protocol):
    """Cuts one Op's batches from the ready items."""

    def __len__(self) -> int:
        """Return how many items are ready."""

    def add(self, item: Item, now: float) -> PipelineError | None:
        """Take an item that is ready; or return the error that refuses it."""

    def next(self, load: Load, now: float) -> Batch | Refusal | float | None:
        """Return the next batch; or items to refuse; or when to call again.

        None: when something changes. It is called again at once after a batch and a Refusal; and
        after each `add`, `done` and change of the workers.
        """

    def done(self, batch: Batch, now: float) -> None:
        """Note that a batch has ended; if it was started again in parts, called for each part."""

    def level_of(self, request: RequestState) -> int:
        """Return the level of priority at which a request waits: the lowest goes first."""

    def levels(self) -> Mapping[int, int]:
        """Return how many items are ready at each level."""

    def drop(self, request: RequestState) -> list[Item]:
        """Forget a request that has ended or starts again; return its ready items."""

    def clear(self) -> list[Item]:
        """Forget and return all ready items, because no worker will ever take them."""


class ReadyQueue:
    """The ready items, the oldest request first; a base for schedulers.

    Items that have waited too long go last, the newest of them first.
    """

    def __init__(self) -> None:
        self._ready: list[tuple[int, int, Item]] = []
        self._late: list[tuple[int, int, Item]] = []
        self._added = 0
        self._has_deadlines = False  # no request has had one so far

    def __len__(self) -> int:
        return len(self._ready) + len(self._late)

    def __iter__(self) -> Iterator[Item]:
        return (entry[2] for entry in (*self._ready, *self._late))

    @property
    def rows(self) -> int:
        """Return the number of samples of all ready items."""
        return sum(item.request.rows for item in self)

    def add(self, item: Item, now: float) -> None:
        self._added += 1
        if item.request.deadline is not None:
            self._has_deadlines = True
        bisect.insort(self._ready, (item.data_id, self._added, item))

    def take(self, count: int, load: Load, now: float) -> list[Item]:
        """Take up to `count` items, of `load.max_rows` samples in all.

        A request that has more samples by itself goes alone: no request is passed over or split.
        """
        ready, late, max_rows = self._ready, self._late, load.max_rows
        if self._has_deadlines and (max_rows or len(ready) + len(late) > count):
            self._set_aside(now, load.service_s)  # otherwise all go at once
        if count == 1 and ready:  # the common case
            return [ready.pop(0)[2]]
        first = ready[:count]
        after = late[: -1 - min(count - len(first), len(late)) : -1]
        taken = [entry[2] for entry in (*first, *after)]
        if max_rows and len(taken) > 1:
            del taken[_fitting(taken, max_rows) :]
        del ready[: len(taken)]
        if len(taken) > len(first):
            del late[len(first) - len(taken) :]
        return taken

    def _set_aside(self, now: float, service_s: float) -> None:
        """Move items that have waited too long to the end; see `request.is_late`."""
        ready, count = self._ready, 0
        while count < len(ready) and ready[count][2].request.is_late(now, service_s):
            count += 1
        if count:
            self._late += ready[:count]
            del ready[:count]

    def level_of(self, request: RequestState) -> int:
        return 0

    def levels(self) -> Mapping[int, int]:
        return {0: len(self)}

    def first_ready_at(self) -> float:
        """Return when the item became ready that has waited longest; there is at least one item."""
        return min(entry[2].ready_at for entry in (*self._ready, *self._late))

    def drop(self, request: RequestState) -> list[Item]:
        ready = self._ready
        begin = end = bisect.bisect_left(ready, (request.data_id,))
        while end < len(ready) and ready[end][2].request is request:
            end += 1
        dropped = [entry[2] for entry in self._late if entry[2].request is request]
        if dropped:
            self._late = [entry for entry in self._late if entry[2].request is not request]
        dropped += [entry[2] for entry in ready[begin:end]]
        del ready[begin:end]
        return dropped

    def clear(self) -> list[Item]:
        items = [entry[2] for entry in (*self._ready, *reversed(self._late))]
        self._ready, self._late = [], []
        return items


def _fitting(items: Sequence[Item], max_rows: int) -> int:
    """Return how many of the first items have at most `max_rows` rows together; at least one."""
    for count, item in enumerate(items):
        max_rows -= item.request.rows
        if max_rows < 0 and count:
            return count
    return len(items)


# Triton's hooks for tests --------------------------------------------------------------------


class StartCondition(msgspec.Struct, frozen=True):
    """Requests that have to be there before the first batch of an Op with sequences.

    Attributes:
        queued: requests of sequences that have slots; with `oldest` one of each, at one worker.
        backlog: requests of sequences without slots; `oldest` ignores it, as in Triton.
    """

    queued: int
    backlog: int = 0


def held_start(environment: Mapping[str, str]) -> StartCondition | None:
    """Return the condition in Triton's test variables; None: none, or they are not switched on."""
    if environment.get(SWITCH) != "1":
        return None
    texts = (environment.get(name, "") for name in (_QUEUED, _BACKLOG))
    queued, backlog = (int(text) if text.isdecimal() else 0 for text in texts)
    return StartCondition(queued, backlog) if queued else None
