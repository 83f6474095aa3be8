"""BatchJob: a batch at the workers, and what becomes of it when one is lost or a call fails.

What is tried again, gone on with by another worker or given up is decided here, as values.
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

    `items` are `Item`s, or whatever else has inputs, data_id, log_id, deadline, info, trace,
    is_feed, is_over and is_cancelled(); `contexts` are theirs, where a hook asks for them, and
    `sequence_steps` where the Op's `sequence` has states or controls. By item, `given` has states
    that the worker lacks, `kept` those behind the steps; `unsent` items did not get to the worker.
    `rows` has how many rows each of them fed to `process`, where the Op has a model or says how
    many it takes; empty: it did not get that far.
    `states` has what `preprocess` of an item stored on the Op, for its own `postprocess` to read:
    in a batch the others' `preprocess` runs in between. `outcomes` has, for each item, its
    payload, a Goto or Answer with it, or a PipelineError; None for an item that was over before it
    began. A run that got stuck in a call can be taken up by another worker, see `resumed`: the
    dispatcher then sets `is_superseded`. `calls` is None until they are planned, which is not seen
    where the workers keep no progress; `attempts` then counts the workers that it was lost with.
    With `item_begins` each of them has a call of its own, for they only came together; it is told
    the index of each. `lost_at` is the last one before the worker was lost; -1: it is not known.
    With `is_models` a model of the server did the work, and the times are its own.
    Where its items did not all go through one call of `process`, `executions` has the number of
    each one's first call, -1 for none, and `execution_ends_ns` when these calls ended. Where its
    only item is a convoy whose members ran one after the other, `executions` has theirs.
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
        """Have the outcome and the times of its only item, which ran by itself."""
        self.outcomes = [visit.outcome]
        self.start_ns: int = visit.start_ns
        self.preprocess_end_ns, self.process_end_ns = visit.preprocess_end_ns, visit.process_end_ns
        self.end_ns: int = visit.end_ns

    @property
    def at_work(self) -> Sequence[int]:
        """Return the indexes of those that its worker is at, as far as that is seen."""
        return range(len(self.items))

    @property
    def is_prepared(self) -> bool:
        """Return whether its calls of `process` are planned, as far as this process knows."""
        return self.calls is not None

    # After a call that failed --------------------------------------------------------------------

    def _may_try_again(self, call: Call, error: BaseException, attempts: int) -> bool:
        """Return whether a call that failed is made again."""
        return isinstance(error, PredictorError) and error.retryable and call.attempts < attempts

    def _is_worth_isolating(self, call: Call) -> bool:
        """Return whether each item of a call that failed is to be run for itself."""
        if len(call.items) == 1 or call.error is None or self.places is not None:
            return False
        return not isinstance(call.error, DeadlineError | PredictorUnavailableError)

    # After a worker that hangs or is lost ---------------------------------------------------------

    def resumed(self, op_name: str, worker: int, attempts: int) -> Self:
        """Return the same run for another worker, after the running call exceeded its timeout.

        The call is tried again if it has attempts left, each of its items alone, so that only
        the one that is to blame hangs again; else its items fail and the rest of the batch goes
        on. The stuck worker keeps this object and cannot disturb the new one.
        """
        run = copy(self)
        run.is_superseded = False
        run.outcomes = list(self.outcomes)
        run.calls = calls = [copy(call) for call in self.calls or []]
        place = next((place for place, call in enumerate(calls) if not call.done), None)
        if place is None:
            return run
        stuck = calls[place]  # who began it has counted the attempt
        if stuck.attempts >= attempts:
            stuck.done = True
            stuck.error = DeadlineError(self._failed(op_name, worker, stuck.items, _EXCEEDED))
        elif len(stuck.items) > 1:
            calls[place : place + 1] = stuck.alone(self.prepared, stuck.attempts)
        return run

    def take_along(self, state: dict[str, Any]) -> None:
        """Keep what a lone item's preprocess stored on the Op, for a worker with another copy."""
        if len(self.items) == 1:
            self.states = {0: dict(state)}

    def again(self, error: PipelineError, attempts: int) -> list[Self]:
        """Return the runs to start over with, after the worker was lost for the reason `error`.

        A batch is taken apart, so that only the request that is to blame fails: at once if the
        worker died of it, and if it took too long for as long as there are attempts left.
        Empty: the items fail.
        """
        live = [item for item in self.items if not item.is_over]
        tried = self.attempts + 1
        if isinstance(error, WorkerDiedError) and len(self.items) > 1:
            # It counts as no request's attempt: the one to blame may be over by now.
            tried = self.attempts
        elif tried >= attempts or not isinstance(error, WorkerDiedError | DeadlineError):
            return []
        return [type(self)([item], self.worker, attempts=tried) for item in live]

    def timed_out(self, op_name: str, worker: int) -> DeadlineError:
        """Return what the items are told when the run took too long."""
        return DeadlineError(self._failed(op_name, worker, self.at_work, _EXCEEDED))

    def died(self, op_name: str, worker: int, cause: str) -> WorkerDiedError:
        """Return what the items are told when the process of worker number `worker` ended."""
        what = f"the worker process {cause}"
        return WorkerDiedError(self._failed(op_name, worker, self.at_work, what))

    def _failed(self, op_name: str, worker: int, indexes: Sequence[int], what: str) -> str:
        """Return the predecessor's words for a batch that `process` gave no result for."""
        ids = [self.items[index].data_id for index in indexes]
        log_id = self.items[indexes[0]].log_id
        return (
            f"[{op_name}] failed to predict. (data_id={ids[0]} log_id={log_id}) "
            f"[{op_name}|{worker}] Failed to process(batch: {ids}): {what}. {_ADVICE}"
        )
