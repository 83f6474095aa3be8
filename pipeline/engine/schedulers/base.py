"""The seam between an Op's dispatcher and what cuts its batches; and the queue of what is ready.

A scheduler is plain code of (state, now): it neither waits nor sets timers, and is called on the
event loop only. The registry finds it by the key `batching`, and makes one an Op. What the engine
has to know of it before says its attribute `traits`, a SchedulerTraits.
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
"""Environment variable that must be 1 for the others to be read."""

_QUEUED = "TRITONSERVER_DELAY_SCHEDULER"
_BACKLOG = "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"


class Batch(msgspec.Struct, eq=False):
    """Items that run together.

    `worker` is the number of the one that has to run it, where the workers are addressable; None:
    any. The times are those of the worker; `end_ns` is 0 for a batch that was not finished.
    `handed_ns` is when it was sent to a worker process that was idle; 0: to none such.
    `places` are the slots there of the sequences that the items belong to: no other worker will do.
    """

    items: Sequence[Any]
    worker: int | None = None
    start_ns: int = 0
    end_ns: int = 0
    handed_ns: int = 0
    places: Sequence[int] | None = None


class Refusal(msgspec.Struct, eq=False):
    """Items that a scheduler has given up: they are not in its queue any more.

    Attributes:
        error: what their requests are told.
        outcome: of their spans; None: statistics count none, as of who was never queued.
    """

    items: Sequence[Any]
    error: PipelineError
    outcome: Outcome | None = None


class Load(msgspec.Struct, eq=False):
    """View of the workers that a scheduler cuts batches for.

    Attributes:
        workers: those that take batches.
        most_workers: how many of them work at the same time.
        running: batches that they have, or that wait for one of them.
        items: requests in these batches.
        service_s: running mean of the time that a batch takes.
        max_rows: samples that one execution may get; 0: any number.
        rows_limits: what that is before the model is loaded, and after.
        max_items: requests that may begin now, for there is room behind for their answers.
        is_full: no more requests come until some have begun.
        ahead: whole batches that each busy worker is to have, as its next one is long on its way.
        has_ready: whether anything is ready, as far as is known since the scheduler was asked.
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
        """Take down how long a batch took."""
        mean = self.service_s
        self.service_s = mean + (seconds - mean) * _WEIGHT if mean else seconds


class Scheduler(Protocol):
    """Cuts one Op's batches out of what is ready for it."""

    def __len__(self) -> int:
        """Return how many items are ready."""

    def add(self, item: Item, now: float) -> PipelineError | None:
        """Take an item that is ready; or return why it is not taken."""

    def next(self, load: Load, now: float) -> Batch | Refusal | float | None:
        """Return the next batch to run; or who will never run; or when to ask again.

        None: when something changes. It is asked again at once after a batch and a Refusal; and
        after each `add`, `done` and change of the workers.
        """

    def done(self, batch: Batch, now: float) -> None:
        """Take note that a batch came to an end; of one that was started over, each part."""

    def level_of(self, request: RequestState) -> int:
        """Return the level of priority at which a request waits: the lowest goes first."""

    def levels(self) -> Mapping[int, int]:
        """Return how many items are ready at each level."""

    def drop(self, request: RequestState) -> list[Item]:
        """Forget a request that is over or starts anew; return what was ready of it."""

    def clear(self) -> list[Item]:
        """Forget and return all that is ready, as no worker will ever take it."""


class ReadyQueue:
    """The items that are ready, the oldest request first; a base for schedulers.

    Those that have waited too long are set aside, and go last, the newest of them first.
    """

    def __init__(self) -> None:
        self._ready: list[tuple[int, int, Item]] = []
        self._late: list[tuple[int, int, Item]] = []
        self._added = 0
        self._has_deadlines = False  # nobody's request so far

    def __len__(self) -> int:
        return len(self._ready) + len(self._late)

    def __iter__(self) -> Iterator[Item]:
        return (entry[2] for entry in (*self._ready, *self._late))

    @property
    def rows(self) -> int:
        """Samples of all that is ready."""
        return sum(item.request.rows for item in self)

    def add(self, item: Item, now: float) -> None:
        self._added += 1
        if item.request.deadline is not None:
            self._has_deadlines = True
        bisect.insort(self._ready, (item.data_id, self._added, item))

    def take(self, count: int, load: Load, now: float) -> list[Item]:
        """Take up to `count` items, of `load.max_rows` samples in all.

        A request that alone brings more samples goes alone: none is passed over, none is split.
        """
        ready, late, max_rows = self._ready, self._late, load.max_rows
        if self._has_deadlines and (max_rows or len(ready) + len(late) > count):
            self._set_aside(now, load.service_s)  # else all go at once
        if count == 1 and ready:  # as nearly always
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
        """Let those go last who have waited too long; see `request.is_late`."""
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
        """Return when the item that has been ready longest became so; there is one."""
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
    """Return how many items, in order, have no more rows in all; at least one."""
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
        backlog: requests of those that have none; `oldest` does not look at them, as in Triton.
    """

    queued: int
    backlog: int = 0


def held_start(environment: Mapping[str, str]) -> StartCondition | None:
    """Return what the hooks ask for; None: nothing, or they are not switched on."""
    if environment.get(SWITCH) != "1":
        return None
    texts = (environment.get(name, "") for name in (_QUEUED, _BACKLOG))
    queued, backlog = (int(text) if text.isdecimal() else 0 for text in texts)
    return StartCondition(queued, backlog) if queued else None
