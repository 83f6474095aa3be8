"""GuardedScheduler: a user's scheduler, whose exceptions end only its requests."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.config import registry
from pipeline.config.batching import has_sequences, traits_of
from pipeline.engine.op.channel import Item
from pipeline.engine.request import RequestState
from pipeline.engine.schedulers.base import Batch, Load, Refusal, Scheduler
from pipeline.errors import PipelineError, UserCodeError, described, printable
from pipeline.op import Op

_LOGGER = logging.getLogger(__name__)


class SchedulerError(Exception):
    """A scheduler has raised.

    Args:
        items: all ready items, which it will not batch any more.
        error: the error of their requests.
    """

    def __init__(self, items: list[Item], error: UserCodeError) -> None:
        super().__init__(str(error))
        self.items: list[Item] = items
        self.error: UserCodeError = error


class GuardedScheduler:
    """Passes all calls on to a scheduler, and keeps its ready items.

    An exception in any of its methods is logged; if items are ready, the next call of `next` raises
    it once.

    Args:
        scheduler: the user's.
        op_name: of its Op.
    """

    def __init__(self, scheduler: Scheduler, op_name: str) -> None:
        self._scheduler = scheduler
        self._op_name = op_name
        self._ready: dict[Item, None] = {}
        self._error: UserCodeError | None = None

    def __len__(self) -> int:
        return len(self._ready)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._ready)

    def add(self, item: Item, now: float) -> PipelineError | None:
        self._ready[item] = None
        refusal = self._call("add", item, now)
        if not isinstance(refusal, PipelineError):
            return None
        self._ready.pop(item, None)
        return refusal

    def next(self, load: Load, now: float) -> Batch | Refusal | float | None:
        """Return the scheduler's decision.

        Raises:
            SchedulerError: it has raised since the last call, or does now.
        """
        batch = None if self._error else self._call("next", load, now)
        if self._error is not None:
            error, self._error = self._error, None
            items = list(self._ready)
            self._ready.clear()
            self._call("clear")
            self._error = None  # it is logged, and there is no request left to fail
            raise SchedulerError(items, error)
        if isinstance(batch, Batch | Refusal):
            for item in batch.items:
                self._ready.pop(item, None)
        decision: Batch | Refusal | float | None = batch
        return decision

    def done(self, batch: Batch, now: float) -> None:
        self._call("done", batch, now)

    def leave(self, item: Item) -> None:
        """Free the seat of a request; for schedulers that step."""
        self._call("leave", item)

    def level_of(self, request: RequestState) -> int:
        """Return the only level, as if requests went in order of arrival."""
        return 0

    def levels(self) -> Mapping[int, int]:
        return {0: len(self._ready)}

    def drop(self, request: RequestState) -> list[Item]:
        self._call("drop", request)
        dropped = [item for item in self._ready if item.request is request]
        for item in dropped:
            del self._ready[item]
        return dropped

    def clear(self) -> list[Item]:
        cleared = self._call("clear")
        items = list(self._ready)
        if isinstance(cleared, list) and set(cleared) == self._ready.keys():
            items = cleared  # in its order
        self._ready.clear()
        return items

    def _call(self, method: str, *args: Any) -> Any:
        try:
            return getattr(self._scheduler, method)(*args)
        except Exception as error:  # user code: other Ops must get their turn
            what = f"{type(self._scheduler).__name__}.{method} raised {described(error)}"
            _LOGGER.exception("[%s] the scheduler failed: %s", self._op_name, printable(what))
            if self._ready:
                self._error = UserCodeError(f"[{self._op_name}] the scheduler failed: {what}")
            return None


def scheduler_for(op: Op) -> Scheduler:
    """Return the scheduler that an Op's configuration names.

    A user's scheduler gets a guard, except for a strategy, which has methods that the guard lacks.
    """
    config = op.pipeline_config
    kind: registry.Kind = "schedulers"
    name = config.batching
    if is_strategy := has_sequences(config):
        kind, name = "strategies", config.sequence.strategy or ""
    make, options = registry.find(kind, name), registry.options_of(kind, name)
    sees_op = traits_of(name, kind).sees_op
    given = options and options(**config.scheduler_options)
    scheduler: Scheduler = make.for_op(op, given) if sees_op else make(config, given)
    is_ours = type(scheduler).__module__.startswith("pipeline.engine.")
    return scheduler if is_ours or is_strategy else GuardedScheduler(scheduler, op.name)
