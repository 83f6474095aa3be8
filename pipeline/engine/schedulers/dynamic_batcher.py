"""The scheduler `dynamic`: Triton's dynamic batcher, by `op.<name>.dynamic_batching`."""

from __future__ import annotations

import bisect
import os
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from pipeline.config.batching import SchedulerTraits
from pipeline.config.schema import OpConfig
from pipeline.engine.journal.journal import Outcome
from pipeline.engine.op.channel import Item
from pipeline.engine.request import RequestState
from pipeline.engine.run.collate import form_of
from pipeline.engine.schedulers.base import Batch, HeldStart, Load, Refusal, held_start
from pipeline.engine.schedulers.draft import Draft, Form
from pipeline.engine.schedulers.dynamic import batches_ahead
from pipeline.engine.schedulers.policy_queue import PolicyQueue
from pipeline.errors import QueueLimitError
from pipeline.op import Op, overrides
from pipeline.proto.v2.raw import about_request

FULL = "Exceeds maximum queue size"
EXPIRED = "Request timeout expired"
_SPARE = 64  # queues without anybody: callers choose their levels
_PER_S = 1e6  # microseconds


class DynamicBatcher:
    """Cuts batches of preferred sizes, by priority and then first come, first served.

    Who waits too long is refused, or goes behind the others of its level.

    Attributes:
        form: what items have in common that may share an execution; None: any may.
        start: what it waits for before its first batch, for tests; None: nothing.
    """

    traits: ClassVar[SchedulerTraits] = SchedulerTraits(
        reads_section=True, sees_op=True, takes_convoys=True
    )

    @classmethod
    def for_op(cls, op: Op, options: None = None) -> DynamicBatcher:
        """Return one that tells by what an Op is fed which requests may share an execution."""
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
        self._at: dict[Item, int] = {}  # level of each
        self._rows = 0  # samples of all
        self._draft: Draft | None = None  # of all that are here; None: begin anew
        self._may_be_ahead = not batching.priority_levels and not any(
            each.default_timeout_microseconds or each.allow_timeout_override or each.max_queue_size
            for each in batching.policies
        )
        self.form: Form | None = None
        self.start: HeldStart | None = None

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
        """Return the next batch; or a refusal; or when to ask again.

        Who is one too many is found when no batch can be cut: of many that come at once those
        count that no worker takes.
        """
        if not self._at:
            return None
        refused = self._expire(now)
        if refused:
            return Refusal(refused, QueueLimitError(EXPIRED), Outcome.REJECTED)
        wake = None
        if self._may_begin(load):
            draft = self._drafted(load)
            count = len(draft.items) if load.is_full else draft.ripe(now, self._delay_s)
            if count:
                for item in draft.items[:count]:
                    self._remove(item)
                return Batch(draft.items[:count])
            wake = draft.due(self._delay_s)
        return self._overflow() or self._earliest(wake)

    def done(self, batch: Batch, now: float) -> None:
        """Do nothing: this scheduler keeps nothing of a batch."""

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
        """Return whether a request goes behind all that are here."""
        return level >= self._levels[-1] and not queue.has_late

    def _may_begin(self, load: Load) -> bool:
        """Return whether a worker may have a batch: of busy ones only a whole one, ahead."""
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
        """Return the batch that is there; the same as last time, if nobody has left since."""
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
        """Return the earliest of a time and the limits of all who are here."""
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
        """Count one no more; return its level."""
        self._rows -= item.request.rows
        return self._at.pop(item)


def _form_of_fed(item: Item, ragged: Collection[str]) -> object:
    """Return the form of what `process` is fed; None: not known before `preprocess`."""
    return _form_of_inputs(item, ragged) if item.is_feed else None


def _form_of_inputs(item: Item, ragged: Collection[str]) -> object:
    """Return what plain arrays have in common that can be merged, whatever their order.

    The shapes of `ragged` ones may differ.
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
