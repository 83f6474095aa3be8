"""DynamicDispatcher: the dispatcher of an Op with `batching: dynamic`."""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from pipeline.engine.convoy import ConvoyRun, beside
from pipeline.engine.journal.journal import Outcome
from pipeline.engine.op.channel import Item
from pipeline.engine.op.dispatcher import OpDispatcher
from pipeline.engine.op.lone_run import LoneRun
from pipeline.engine.run.collate import form_of
from pipeline.engine.run.payload import LOCAL
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.schedulers.base import Scheduler
from pipeline.engine.schedulers.dynamic_batcher import DynamicBatcher
from pipeline.engine.schedulers.held_start import held_start
from pipeline.engine.state import OpState
from pipeline.engine.trips.trip import Trip
from pipeline.engine.worker_api import Worker
from pipeline.errors import PipelineError
from pipeline.op import Op, overrides


class DynamicDispatcher(OpDispatcher):
    """Tells its scheduler what may share an execution, and keeps the order of answers.

    With `preserve_ordering` what came of a batch waits until nothing came, or will come, before
    it. Errors of batches that were lost do not wait.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        config = self.op.pipeline_config
        self._keeps_order = config.dynamic_batching.preserve_ordering and config.concurrency > 1
        self._order: dict[Item, int] = {}  # of the items that are at the workers
        self._left: dict[Item, int] = {}  # of those that just were
        self._taken = 0
        self._answers: list[tuple[Item, Any, bool]] | None = None  # of the batch that is done
        self._held: list[tuple[int, list[tuple[Item, Any, bool]]]] = []
        self._is_local = self.workers.memory_domain is LOCAL
        if self._takes_convoys():
            self.convoy_rows = self.op.pipeline_config.batch_size

    def _make_scheduler(self) -> Scheduler:
        batcher = DynamicBatcher(self.op.pipeline_config)
        batcher.start = held_start(os.environ)
        ragged = self.op.pipeline_ragged
        of_inputs = partial(_form_of_inputs, ragged=ragged)
        of_fed = partial(_form_of_fed, ragged=ragged)
        batcher.form = of_fed if overrides(self.op, "preprocess") else of_inputs
        return batcher

    def _takes_convoys(self) -> bool:
        """Return whether requests may come together, to be cut into batches as one of many samples.

        Not where how many they are, or which of them is first, says when and where they run.
        """
        config = self.op.pipeline_config
        batching = config.dynamic_batching
        is_plain = not (
            {*batching.preferred_batch_size} - {config.batch_size}
            or batching.priority_levels
            or batching.preserve_ordering
            or any(
                each.default_timeout_microseconds
                or each.allow_timeout_override
                or each.max_queue_size
                for each in batching.policies
            )
        )
        is_alone = type(self) is DynamicDispatcher and not self.op.pipeline_ragged
        is_alone = is_alone and self.workers.takes_convoys
        return is_plain and is_alone and config.retry == 1 and held_start(os.environ) is None

    def state(self, group: tuple[str, ...] = ()) -> OpState:
        state = super().state(group)
        scheduler: Any = self.scheduler
        return replace(state, queued=state.queued + beside(scheduler))

    def schedule(self) -> None:
        self._pass_on_held()  # a batch may have been lost
        super().schedule()

    def count(self, run: BatchRun) -> BatchRun:
        for item in run.items if self._keeps_order else ():
            number = self._left.pop(item, None)  # what is started over keeps its own
            if number is None:
                self._taken = number = self._taken + 1
            self._order[item] = number
        if self.convoy_rows and (more := beside(run.items)):
            self.load.items += more
            if self._is_local and type(run) is BatchRun:
                run = ConvoyRun(run.items, run.worker, attempts=run.attempts)
        return super().count(run)

    def release(self, run: BatchRun | LoneRun) -> None:
        for item in run.items if self._keeps_order else ():
            self._left[item] = self._order.pop(item)
        if self.convoy_rows:
            self.load.items -= beside(run.items)
        super().release(run)

    def done(self, worker: Worker, job: BatchRun | LoneRun | Trip) -> None:
        if not self._keeps_order or not isinstance(job, BatchRun) or job.is_superseded:
            super().done(worker, job)
            return
        number, self._answers = self._order[job.items[0]], []
        super().done(worker, job)
        heapq.heappush(self._held, (number, self._answers))
        self._answers = None
        self._pass_on_held()

    def fail(self, items: Sequence[Item], error: PipelineError, outcome: Outcome) -> None:
        again = [item for item in items if _comes_again(item, error)]
        super().fail([item for item in items if item not in again], error, outcome)
        for item in again:
            self.pass_on(item, error)

    def pass_on(self, item: Item, outcome: Any, jumped: bool = False) -> None:
        if self._answers is None:
            super().pass_on(item, outcome, jumped)
        else:
            self._answers.append((item, outcome, jumped))

    def _pass_on_held(self) -> None:
        """Pass on what came of batches that have none before them any more."""
        self._left.clear()
        while self._held and self._held[0][0] < min(self._order.values(), default=math.inf):
            for item, outcome, jumped in heapq.heappop(self._held)[1]:
                self.pass_on(item, outcome, jumped)


def _comes_again(item: Item, error: PipelineError) -> bool:
    convoy = item.convoy
    return convoy is not None and convoy.comes_again(error)


def is_dynamic(op: Op) -> bool:
    """Return whether an Op has Triton's dynamic batcher."""
    return op.pipeline_config.batching == "dynamic"


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
