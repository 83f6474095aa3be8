"""The scheduler `dynamic`: Triton's dynamic batcher, by `op.<name>.dynamic_batching`."""

from __future__ import annotations

import bisect
import heapq
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from pipeline.config.batching import QueuePolicyConfig, SchedulerTraits
from pipeline.config.schema import OpConfig
from pipeline.engine.journal.journal import Outcome
from pipeline.engine.op.channel import Item
from pipeline.engine.request import RequestState
from pipeline.engine.run.collate import form_of
from pipeline.engine.schedulers.base import Batch, Load, Refusal, StartCondition, held_start
from pipeline.engine.schedulers.dynamic import batches_ahead
from pipeline.errors import QueueLimitError
from pipeline.op import Op, overrides
from pipeline.proto.v2.raw import about_request

_PER_S = 1e6  # microseconds
# entries of items that have left, and empty queues, that may stay: clients choose levels
_SPARE = 64


class PolicyQueue:
    """A queue in order of arrival; with `delay`, late items go after all others.

    Args:
        policy: its limits.
    """

    def __init__(self, policy: QueuePolicyConfig) -> None:
        self._policy = policy
        self._fresh: dict[Item, None] = {}
        self._late: dict[Item, None] = {}
        # entries of items that have left may remain
        self._limits: list[tuple[float, int, Item]] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._fresh) + len(self._late)

    def __iter__(self) -> Iterator[Item]:
        yield from self._fresh
        yield from self._late

    def overflow(self) -> Item | None:
        """Remove and return the newest item if there are too many."""
        if 0 < self._policy.max_queue_size < len(self) and self._fresh:
            item = next(reversed(self._fresh))
            self.remove(item)
            return item
        return None

    @property
    def has_late(self) -> bool:
        """Return whether there are late items, before which a new item goes."""
        return bool(self._late)

    def add(self, item: Item, now: float) -> None:
        """Add an item, and note how long it may wait."""
        self._fresh[item] = None
        timeout_us = self._policy.default_timeout_microseconds
        if not timeout_us:  # Triton's rule: then a request's own timeout is ignored
            return
        if self._policy.allow_timeout_override:
            timeout_us = _shorter(item.info.parameters.get("timeout", 0), timeout_us)
        self._added += 1
        heapq.heappush(self._limits, (now + timeout_us / _PER_S, self._added, item))
        if len(self._limits) > 2 * len(self._fresh) + _SPARE:
            self._limits = [entry for entry in self._limits if entry[2] in self._fresh]
            heapq.heapify(self._limits)

    def remove(self, item: Item) -> None:
        """Remove an item that is here."""
        if item in self._fresh:
            del self._fresh[item]
            if not self._fresh:
                self._limits.clear()
        else:
            del self._late[item]

    @property
    def limited_until(self) -> float | None:
        """Return when the first item is late; None: none will be."""
        limits = self._limits
        while limits and limits[0][2] not in self._fresh:
            heapq.heappop(limits)
        return limits[0][0] if limits else None

    def expire(self, now: float) -> tuple[list[Item], bool]:
        """Apply the policy; return the refused items, and whether anything has changed."""
        refused: list[Item] = []
        has_changed = False
        while (until := self.limited_until) is not None and until <= now:
            item = heapq.heappop(self._limits)[2]
            del self._fresh[item]
            has_changed = True
            if self._policy.timeout_action == "delay":
                self._late[item] = None
            else:
                refused.append(item)
        return refused, has_changed


def _shorter(own: object, default: int) -> int:
    """Return the timeout of a request, if it has one that is below the default."""
    return own if isinstance(own, int) and 0 < own < default else default


Form = Callable[[Item], object]
"""A key of an item: items of equal keys may share an execution."""


class Draft:
    """Items in the order of the queue, as many as one execution takes. Sizes are in samples.

    Args:
        preferred: at these sizes a batch does not wait to grow.
        max_rows: of one execution; a request that has more by itself goes alone.
        max_items: of one batch.
        form: decides which items may share an execution; None: all.

    Attributes:
        items: the items so far.
        rows: their samples.
        is_closed: whether the queue has an item that does not fit in.
    """

    def __init__(
        self,
        preferred: Collection[int],
        max_rows: int,
        max_items: int,
        form: Form | None = None,
    ) -> None:
        self.items: list[Item] = []
        self.rows: int = 0
        self.is_closed: bool = False
        self._preferred = preferred
        self._most_preferred = max(preferred)
        self._limits = max_rows, max_items
        self._form = form
        self._first_form: object = None
        self._best = 0  # number of items at the largest preferred size so far
        self._oldest = 0.0

    def has_limits(self, max_rows: int, max_items: int) -> bool:
        """Return whether it was begun with these limits."""
        return self._limits == (max_rows, max_items)

    def take(self, item: Item) -> bool:
        """Take the next item of the queue; if it does not fit in, close and return False."""
        if self.is_closed:
            return False
        rows = item.request.rows
        if self.items and not self._may_join(item, self.rows + rows):
            self.is_closed = True
            return False
        oldest = self._oldest if self.items else item.ready_at
        self._oldest = min(oldest, item.ready_at)
        self.items.append(item)
        self.rows += rows
        if self.rows in self._preferred:
            self._best = len(self.items)
        return True

    def due(self, delay_s: float) -> float:
        """Return when its oldest item has waited for the delay."""
        return self._oldest + delay_s

    def ripe(self, now: float, delay_s: float) -> int:
        """Return how many of its first items go now; 0: it may still grow.

        A preferred size goes at once; of several the largest. A draft without one waits for the
        delay of its oldest item. If it cannot grow to a preferred size, all items go, up to the
        limit of an execution.
        """
        is_due = delay_s > 0 and now >= self.due(delay_s)
        if self._best and not is_due:
            return self._best
        max_rows, max_items = self._limits
        is_full = self.rows >= min(max_rows, self._most_preferred) or len(self.items) >= max_items
        is_whole = is_full or self.is_closed
        return len(self.items) if is_due or is_whole or not delay_s else 0

    def _may_join(self, item: Item, rows: int) -> bool:
        if rows > self._most_preferred and not self._best:
            self._best = len(self.items)  # it exceeds all preferred sizes: the items before may go
        max_rows, max_items = self._limits
        if rows > max_rows or len(self.items) >= max_items:
            return False
        if self._form is None:
            return True
        if len(self.items) == 1:
            self._first_form = self._form(self.items[0])
        return self._form(item) == self._first_form


FULL = "Exceeds maximum queue size"
EXPIRED = "Request timeout expired"


class DynamicBatcher:
    """Cuts batches of preferred sizes, by priority and then in order of arrival.

    An item that waits too long is refused, or goes after the others of its level.

    Attributes:
        form: decides which items may share an execution; None: all.
        start: the condition for its first batch, for tests; None: none.
    """

    traits: ClassVar[SchedulerTraits] = SchedulerTraits(
        reads_section=True, sees_op=True, takes_convoys=True
    )

    @classmethod
    def for_op(cls, op: Op, options: None = None) -> DynamicBatcher:
        """Return a batcher that compares the Op's feeds to see which may share an execution."""
        batcher = cls(op.pipeline_config)
        batcher.start = held_start(os.environ)
        form = _form_of_fed if overrides(op, "preprocess") else _form_of_inputs
        batcher.form = partial(form, ragged=op.pipeline_ragged)
        return batcher

    def __init__(self, config: OpConfig, options: None = None) -> None:
        self._batching = batching = config.dynamic_batching
        self._batch_size = config.batch_size
        self._preferred = frozenset(batching.preferred_batch_size) or {config.batch_size}
        self._delay_s = batching.max_queue_delay_microseconds / _PER_S
        self._queues: dict[int, PolicyQueue] = {}
        self._levels: list[int] = []  # of the queues, sorted
        self._at: dict[Item, int] = {}  # the level of each item
        self._rows = 0  # the samples of all items
        self._draft: Draft | None = None  # of all items; None: to be made again
        self._may_be_ahead = not batching.priority_levels and not any(
            policy.default_timeout_microseconds
            or policy.allow_timeout_override
            or policy.max_queue_size
            for policy in batching.policies
        )
        self.form: Form | None = None
        self.start: StartCondition | None = None

    def __len__(self) -> int:
        return len(self._at)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._at)

    def add(self, item: Item, now: float) -> None:
        level = self.level_of(item.request)
        queue = self._queues.get(level)
        if queue is None:
            queue = self._queues[level] = PolicyQueue(self._batching.policy_of(level))
            bisect.insort(self._levels, level)
        if self._draft is not None and self._goes_last(level, queue):
            self._draft.take(item)
        else:
            self._draft = None
        queue.add(item, now)
        self._at[item] = level
        self._rows += item.request.rows

    def next(self, load: Load, now: float) -> Batch | Refusal | float | None:
        """Return the next batch; or a refusal; or when to call again.

        The queue's limit is checked after no batch could be cut: of many items that come at once
        only those count that no worker takes.
        """
        if not self._at:
            return None
        refused = self._expire(now)
        if refused:
            return Refusal(refused, QueueLimitError(EXPIRED), Outcome.REJECTED)
        wake = None
        if self._may_begin(load):
            if len(self._at) == 1 and not self._delay_s:  # as with nearly every convoy
                (item,) = self._at
                self._remove(item)
                return Batch([item])
            draft = self._drafted(load)
            count = len(draft.items) if load.is_full else draft.ripe(now, self._delay_s)
            if count:
                for item in draft.items[:count]:
                    self._remove(item)
                return Batch(draft.items[:count])
            wake = draft.due(self._delay_s)
        return self._overflow() or self._earliest(wake)

    def done(self, batch: Batch, now: float) -> None:
        """Do nothing: this scheduler keeps no state of a batch."""

    def drop(self, request: RequestState) -> list[Item]:
        dropped = [item for item in self._at if item.request is request]
        for item in dropped:
            self._remove(item)
        return dropped

    def clear(self) -> list[Item]:
        items = list(self._in_order())
        for item in items:
            self._remove(item)
        return items

    def level_of(self, request: RequestState) -> int:
        levels = self._batching.priority_levels
        if levels <= 1:
            return levels
        own = request.info.priority
        return own if 1 <= own <= levels else self._batching.default_priority_level

    def levels(self) -> Mapping[int, int]:
        return {level: len(queue) for level, queue in self._queues.items()}

    def _goes_last(self, level: int, queue: PolicyQueue) -> bool:
        """Return whether a new item goes after all others."""
        return level >= self._levels[-1] and not queue.has_late

    def _may_begin(self, load: Load) -> bool:
        """Return whether a worker may have a batch; a busy one gets only a whole one, ahead."""
        if self.start is not None:
            if len(self._at) < self.start.queued:
                return False
            self.start = None
        if load.max_items <= 0 or load.running < load.workers:
            return load.max_items > 0
        if not (self._may_be_ahead and load.workers and self._rows >= self._batch_size):
            return False
        ahead = batches_ahead(load, self._batch_size)
        return load.running < load.workers + ahead

    def _drafted(self, load: Load) -> Draft:
        """Return the next batch so far; it is kept until an item leaves."""
        limits = load.max_rows or self._batch_size, min(self._batch_size, load.max_items)
        draft = self._draft
        if draft is None or not draft.has_limits(*limits):
            self._draft = draft = Draft(self._preferred, *limits, self.form)
            for item in self._in_order():
                if not draft.take(item):
                    break
        return draft

    def _in_order(self) -> Iterator[Item]:
        for level in self._levels:
            yield from self._queues[level]

    def _expire(self, now: float) -> list[Item]:
        refused: list[Item] = []
        for queue in list(self._queues.values()):
            late, has_changed = queue.expire(now)
            refused += late
            if has_changed:
                self._draft = None
        for item in refused:
            self._forget(item)
        return refused

    def _overflow(self) -> Refusal | None:
        for queue in self._queues.values():
            item = queue.overflow()
            if item is not None:
                self._draft = None
                self._forget(item)
                return Refusal([item], QueueLimitError(f"{about_request(item.info.id)}{FULL}"))
        return None

    def _earliest(self, wake: float | None) -> float | None:
        """Return the earliest of `wake` and the limits of all items."""
        for queue in self._queues.values():
            until = queue.limited_until
            if until is not None:
                wake = until if wake is None else min(wake, until)
        return wake

    def _remove(self, item: Item) -> None:
        self._draft = None
        level = self._forget(item)
        queue = self._queues[level]
        queue.remove(item)
        if not queue and len(self._levels) > _SPARE:
            del self._queues[level]
            self._levels.remove(level)

    def _forget(self, item: Item) -> int:
        """Remove an item from the counts; return its level."""
        self._rows -= item.request.rows
        return self._at.pop(item)


def _form_of_fed(item: Item, ragged: Collection[str]) -> object:
    """Return the form of the feed of `process`; None: unknown before `preprocess`."""
    return _form_of_inputs(item, ragged) if item.is_feed else None


def _form_of_inputs(item: Item, ragged: Collection[str]) -> object:
    """Return a key of plain arrays that is equal if they can be merged, in any order.

    The shapes of `ragged` arrays may differ.
    """
    if item.is_feed:
        return frozenset(_form_of_feed(*pair, ragged) for pair in item.inputs.items())
    if ragged:
        parts = [part for part in item.inputs.values() if isinstance(part, dict)]
        return [frozenset(_form_of_feed(*pair, ragged) for pair in part.items()) for part in parts]
    forms = [form_of(part)[0] if isinstance(part, dict) else None for part in item.inputs.values()]
    return [form and frozenset(form) for form in forms]


def _form_of_feed(name: str, value: Any, ragged: Collection[str]) -> tuple[Any, ...]:
    if name in ragged or not isinstance(value, np.ndarray):
        return (name,)
    return name, value.dtype.str, value.shape[1:]
