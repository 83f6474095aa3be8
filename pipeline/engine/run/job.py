"""BatchJob: a batch at the workers; what happens when a worker is lost or a call fails.

This file decides what is tried again, continued by another worker or given up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Self

from msgspec import field

from pipeline.data import RequestContext, SequenceStep
from pipeline.engine.run.call import Call
from pipeline.engine.schedulers.base import Batch
from pipeline.errors import (
    DeadlineError,
    PipelineError,
    PredictorError,
    PredictorUnavailableError,
    WorkerDiedError,
)

_EXCEEDED = "exceeded retry count"
_ADVICE = (
    "Please check the input dict and checkout PipelineServingLogs/pipeline.log for more details."
)


class BatchJob(Batch, eq=False):
    """One batch at the workers.

    If a call hangs, another worker may continue the run, see `resumed`; the dispatcher then sets
    `is_superseded`.

    Attributes:
        items: the Items, or other objects with inputs, data_id, log_id, deadline, info, trace,
            is_feed, is_over and is_cancelled().
        outcomes: for each item its payload, a Goto or Answer with it, or a PipelineError; None for
            an
            item that had ended before it began.
        prepared: what `preprocess` returned, by item.
        skipping: the items that skip `process`.
        states: what `preprocess` of an item stored on the Op, for its own `postprocess`: in a batch
            the `preprocess` of the others runs in between.
        contexts: of the items, if a hook asks for them.
        sequence_steps: of the items, if the Op's `sequence` has states or controls.
        given: by item, states that the worker lacks.
        kept: by item, the states after the steps.
        unsent: items that did not get to the worker.
        calls: None before they are planned; stays None if the workers keep no progress.
        rows: how many rows each item fed to `process`, if the Op has a model or a limit of rows;
            empty: it did not get that far.
        executions: the number of each item's first call, -1 for none, if the items did not all go
            through one call. For a single convoy whose members ran one after the other: theirs.
        execution_ends_ns: when these calls ended.
        attempts: the number of workers that it was lost with, if the workers keep no progress.
        lost_at: the last item before the worker was lost; -1: unknown.
        is_models: a model of this server did the work, and the times are the model's.
        item_begins: called with the index of each item; then each item has a call of its own,
            because
            the items came together only for the transport.
    """

    outcomes: list[Any] = field(default_factory=list)
    prepared: dict[int, Any] = field(default_factory=dict)
    skipping: set[int] = field(default_factory=set)
    states: dict[int, dict[str, Any]] = field(default_factory=dict)
    contexts: list[RequestContext] = field(default_factory=list)
    sequence_steps: Sequence[SequenceStep] = ()
    given: dict[int, Any] | None = None
    kept: dict[int, Any] | None = None
    unsent: list[int] | None = None
    calls: list[Call] | None = None
    rows: list[int] = field(default_factory=list)
    executions: list[int] = field(default_factory=list)
    execution_ends_ns: list[int] = field(default_factory=list)
    jumped: bool = False
    is_superseded: bool = False
    attempts: int = 0
    lost_at: int = -1
    is_models: bool = False
    item_begins: Callable[[int], None] | None = None
    preprocess_end_ns: int = 0
    process_end_ns: int = 0

    def take(self, visit: Any) -> None:
        """Take the outcome and the times of its only item, which ran by itself."""
        self.outcomes = [visit.outcome]
        self.start_ns: int = visit.start_ns
        self.preprocess_end_ns, self.process_end_ns = visit.preprocess_end_ns, visit.process_end_ns
        self.end_ns: int = visit.end_ns

    @property
    def at_work(self) -> Sequence[int]:
        """Return the indexes of the items that its worker may be running."""
        return range(len(self.items))

    @property
    def is_prepared(self) -> bool:
        """Return whether its calls of `process` are planned, as far as this process knows."""
        return self.calls is not None

    # After a call that failed --------------------------------------------------------------------

    def _may_try_again(self, call: Call, error: BaseException, attempts: int) -> bool:
        """Return whether a failed call is made again."""
        return isinstance(error, PredictorError) and error.retryable and call.attempts < attempts

    def _is_worth_isolating(self, call: Call) -> bool:
        """Return whether to run each item of a failed call alone."""
        if len(call.items) == 1 or call.error is None or self.places is not None:
            return False
        return not isinstance(call.error, DeadlineError | PredictorUnavailableError)

    # After a worker that hangs or is lost ---------------------------------------------------------

    def resumed(self, op_name: str, worker: int, attempts: int) -> Self:
        """Return the same run for another worker, after the running call exceeded its timeout.

        If the call has attempts left, each of its items is tried again alone, so that only the item
        that hangs fails. Otherwise its items fail and the rest of the batch continues. The stuck
        worker keeps this object and cannot disturb the new one.
        """
        run = copy(self)
        run.is_superseded = False
        run.outcomes = list(self.outcomes)
        run.calls = calls = [copy(call) for call in self.calls or []]
        place = next((place for place, call in enumerate(calls) if not call.done), None)
        if place is None:
            return run
        stuck = calls[place]  # the stuck worker has counted the attempt
        if stuck.attempts >= attempts:
            stuck.done = True
            stuck.error = DeadlineError(self._failed(op_name, worker, stuck.items, _EXCEEDED))
        elif len(stuck.items) > 1:
            calls[place : place + 1] = stuck.alone(self.prepared, stuck.attempts)
        return run

    def take_along(self, state: dict[str, Any]) -> None:
        """Keep what a single item's preprocess stored on the Op, for a worker with another copy."""
        if len(self.items) == 1:
            self.states = {0: dict(state)}

    def again(self, error: PipelineError, attempts: int) -> list[Self]:
        """Return the runs to start again with, after the worker was lost for the reason `error`.

        A batch is taken apart, so that only the request that causes the loss fails: at once if the
        worker died, and after the last attempt if it took too long. Empty: the items fail.
        """
        live = [item for item in self.items if not item.is_over]
        tried = self.attempts + 1
        if isinstance(error, WorkerDiedError) and len(self.items) > 1:
            # It does not count as an attempt of any request: the cause may have ended before.
            tried = self.attempts
        elif tried >= attempts or not isinstance(error, WorkerDiedError | DeadlineError):
            return []
        return [type(self)([item], self.worker, attempts=tried) for item in live]

    def timed_out(self, op_name: str, worker: int) -> DeadlineError:
        """Return the error of the items after the run took too long."""
        return DeadlineError(self._failed(op_name, worker, self.at_work, _EXCEEDED))

    def died(self, op_name: str, worker: int, cause: str) -> WorkerDiedError:
        """Return the error of the items after the process of worker number `worker` ended."""
        what = f"the worker process {cause}"
        return WorkerDiedError(self._failed(op_name, worker, self.at_work, what))

    def _failed(self, op_name: str, worker: int, indexes: Sequence[int], what: str) -> str:
        """Return the predecessor's text for a batch without a result of `process`."""
        ids = [self.items[index].data_id for index in indexes]
        log_id = self.items[indexes[0]].log_id
        return (
            f"[{op_name}] failed to predict. (data_id={ids[0]} log_id={log_id}) "
            f"[{op_name}|{worker}] Failed to process(batch: {ids}): {what}. {_ADVICE}"
        )
