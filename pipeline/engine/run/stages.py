"""BatchRun: the stages of a batch: preprocess each, merge, process, split, postprocess each.

Plain code for any worker: it knows neither threads nor the event loop.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import attrgetter, is_, itemgetter
from typing import Any, ClassVar, Protocol

from pipeline.data import ChannelData, RequestContext, SequenceStep, contexts_of, steps_of
from pipeline.deadline import set_call_deadline
from pipeline.engine.product_errors import product_error
from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.run.call import Call
from pipeline.engine.run.collate import (
    distribute,
    executions_of,
    has_more_rows,
    plan_alone,
    rows_brought,
)
from pipeline.engine.run.job import BatchJob
from pipeline.engine.run.stage_errors import (
    ids_of,
    log_raised,
    noted,
    process_failure,
    stage_error,
    too_large,
)
from pipeline.errors import (
    PipelineError,
    ProductError,
    described,
)
from pipeline.routes import Routed
from pipeline.tracing.context import call_trace, child, first_of, set_call_trace

_WHOLE = (PipelineError, Routed)  # results of one part of a mini-batch that decide for all parts
_UNSET = object()
_TRACE = attrgetter("trace")


class CallWatch(Protocol):
    """Notified when a call of `process` begins and ends, to enforce its timeout."""

    def call_begins(self) -> None: ...
    def call_ends(self) -> None: ...


class BatchRun(BatchJob, eq=False):
    """One batch on its way through an Op's stages.

    Attributes:
        is_step: whether its requests have taken their step when it comes back for the first time,
            though parts may follow.
    """

    is_step: ClassVar[bool] = False

    def run(self, op: BoundOp, watch: CallWatch, clock_ns: Callable[[], int]) -> None:
        """Run all remaining stages. Raises nothing."""
        try:
            if self.calls is None:
                self.prepare(op, clock_ns)
            if self.calls:
                self._process(op, watch, self.calls, clock_ns)
                if len(self.calls) > 1 or len(self.calls[0].items) < len(self.items):
                    executions, ends_ns = executions_of(self.calls, len(self.items))
                    self.executions: list[int] = executions
                    self.execution_ends_ns: list[int] = ends_ns
            if self.is_superseded:  # another worker has taken the batch over
                return
            self.kept: dict[int, Any] | None = (
                op.feeds.kept(self.sequence_steps) if op.feeds else None
            )
            self.process_end_ns: int = clock_ns()
            self._postprocess(op)
            if op.jumps:
                self.jumped: bool = _check_jumping(op, self.items, self.outcomes)
        # our own code failed on some data: the worker must survive it
        except BaseException as error:
            failed = stage_error(error, op, "process", 0, *ids_of(self.items))
            self.outcomes = [failed if outcome is None else outcome for outcome in self.outcomes]
        op.context = None  # it refers to the requests and their inputs
        self.end_ns: int = clock_ns()

    def prepare(self, op: BoundOp, clock_ns: Callable[[], int]) -> None:
        """Preprocess each item, which is the first stage, and plan the calls of `process`."""
        self.start_ns: int = clock_ns()
        self.outcomes: list[Any] = [None] * len(self.items)
        if op.asking:
            self.contexts: list[RequestContext] = contexts_of(self.items, self.places)
        if op.feeds is not None and self.places is not None:
            self.sequence_steps: Sequence[SequenceStep] = steps_of(self.items, self.places)
            op.feeds.begin(self.sequence_steps, self.given)
        self._preprocess(op)
        self.preprocess_end_ns: int = clock_ns()
        self.calls: list[Call] | None = self._plan(op)
        if op.has_model or op.most_rows:
            self.rows: list[int] = rows_brought(self.calls, len(self.items))

    # Preprocess -------------------------------------------------------------------------

    def _preprocess(self, op: BoundOp) -> None:
        keeps_state = op.keeps_state and len(self.items) > 1
        latest = before = dict(op.state) if keeps_state else {}
        for index, item in enumerate(self.items):
            if item.is_over:
                continue
            if item.is_feed:
                self.prepared[index] = item.inputs
                continue
            if self.contexts:
                op.context = self.contexts[index]
            data, skip = op.began(item)
            if skip and isinstance(data, PipelineError):
                self.outcomes[index] = data
                continue
            if keeps_state:
                if not is_as_before(op.state, latest):
                    latest = dict(op.state)
                self.states[index] = latest
            self.prepared[index] = data
            if skip:
                self.skipping.add(index)
        if not keeps_state:
            return
        if latest is before and is_as_before(op.state, before):  # the common case
            self.states.clear()
        else:
            keep_changes(before, self.states, op.state)

    # Process ----------------------------------------------------------------------------

    def _plan(self, op: BoundOp) -> list[Call]:
        if not op.runs_process:
            return []
        feeds = self.prepared
        if self.skipping:
            feeds = {i: data for i, data in feeds.items() if i not in self.skipping}
        most_rows = op.most_rows
        if most_rows:
            feeds = dict(feeds)
            for index in [i for i, feed in feeds.items() if has_more_rows(feed, op.most_rows)]:
                del feeds[index]
                self.outcomes[index] = too_large(op, self.items[index])
        if most_rows != op.most_fed_rows and any(self.items[index].is_feed for index in feeds):
            most_rows = op.most_fed_rows
        if self.sequence_steps and op.feeds is not None:
            calls = op.feeds.plan(feeds, self.sequence_steps, most_rows)
        else:
            plan = op.plan if self.item_begins is None else plan_alone
            calls = plan(feeds, most_rows) if feeds else []
        for call in calls:
            if (error := call.error) is not None:
                items = [self.items[index] for index in call.items]
                call.error = process_failure(error, str(error), op, items, False)
        return calls

    def _process(
        self, op: BoundOp, watch: CallWatch, calls: list[Call], clock_ns: Callable[[], int]
    ) -> None:
        position = 0
        while position < len(calls) and not self.is_superseded:
            call = calls[position]
            if not call.done:
                self._run_call(call, op, watch)
                if len(calls) > 1:
                    call.end_ns = clock_ns()
            if call.error is not None and self._is_worth_isolating(call):
                calls[position : position + 1] = call.alone(self.prepared)
                continue
            position += 1

    def _run_call(self, call: Call, op: BoundOp, watch: CallWatch) -> None:
        while not call.done:
            call.attempts += 1
            deadline = self._deadline(op, call)
            if deadline is not None:
                set_call_deadline(deadline)
            # The requests that the call sends belong to the trace of its first traced item.
            items = itemgetter(*call.items)
            is_one = len(call.items) == 1
            trace = items(self.items).trace if is_one else first_of(map(_TRACE, items(self.items)))
            if trace or call_trace():
                set_call_trace(child(trace, op.name, "process") if trace else "")
            if self.contexts:
                op.context = (items(self.contexts),) if is_one else items(self.contexts)
            if op.notes is not None:
                op.notes.begin_call(op.name, "process", (self.items[i] for i in call.items))
            if self.item_begins is not None:
                self.item_begins(call.items[0])
            watch.call_begins()
            try:
                self._call_process(call, op)
                call.error = None
                call.done = True
            except BaseException as error:  # user code; a worker survives even SystemExit
                call.error = self._process_error(error, op, call)
                call.done = not self._may_try_again(call, error, op.attempts)
            finally:
                watch.call_ends()
                if deadline is not None:
                    set_call_deadline(None)

    def _call_process(self, call: Call, op: BoundOp) -> None:
        """Call `process`; for an Op with sequences with their states and controls."""
        log_id = self.items[call.items[0]].log_id
        if not self.sequence_steps or op.feeds is None:
            call.result = op.process(call.feed, log_id)
            call.result = self._distributed(call)
            return
        fed = op.feeds.fed(call, self.sequence_steps)
        call.result = fed.without_states(op.process(fed.feed, log_id))
        call.result = self._distributed(call)
        fed.keep()

    def _distributed(self, call: Call) -> list[Any]:
        """Return the part of a call's result for each of its items."""
        return distribute(call)

    def _deadline(self, op: BoundOp, call: Call) -> float | None:
        """Return when nobody waits for the call any more, in `time.monotonic`; None: never."""
        attempt_ends = None if op.timeout_s is None else time.monotonic() + op.timeout_s
        last = 0.0
        for index in call.items:
            deadline: float | None = self.items[index].deadline
            if deadline is None:  # the common case
                return attempt_ends
            last = max(last, deadline)
        return last if attempt_ends is None else min(attempt_ends, last)

    def _process_error(self, error: BaseException, op: BoundOp, call: Call) -> PipelineError:
        if isinstance(error, ProductError):
            return product_error(error)
        items = [self.items[index] for index in call.items]
        if not isinstance(error, PipelineError):
            log_raised(noted(ids_of(items)), op.name, "process", error)
        text = self._failed(op.name, op.worker, call.items, described(error))
        return process_failure(error, text, op, items, call.result is None)

    # Postprocess ------------------------------------------------------------------------

    def _postprocess(self, op: BoundOp) -> None:
        fetched = self._gather(op) if self.calls else self.prepared
        for index, prepared in self.prepared.items():
            if self.outcomes[index] is not None:
                continue
            item, data = self.items[index], fetched.get(index, prepared)
            if item.is_feed and type(data) is dict:  # no postprocess runs
                self.outcomes[index] = data
                continue
            if index in self.states and not isinstance(data, PipelineError):
                restore(op.state, self.states[index])
            if self.contexts:
                op.context = self.contexts[index]
            self.outcomes[index] = op.ended(item, data)

    def _gather(self, op: BoundOp) -> dict[int, Any]:
        """Return the results by item: a dict, a list of dicts for a mini-batch, or the error."""
        calls = self.calls or ()
        if len(calls) == 1 and calls[0].part is None and calls[0].error is None:
            call = calls[0]
            if len(call.items) == len(self.prepared):  # the common case
                return dict(zip(call.items, call.result, strict=True))
        fetched: dict[int, Any] = {
            index: []
            for index, data in self.prepared.items()
            if isinstance(data, list) and index not in self.skipping
        }
        for call in calls:
            if call.part is None and call.error is None:
                fetched.update(zip(call.items, call.result, strict=True))
                continue
            for place, index in enumerate(call.items):
                piece = call.error if call.error is not None else call.result[place]
                if call.part is None or isinstance(piece, _WHOLE):
                    fetched[index] = piece
                elif not isinstance(fetched[index], _WHOLE):
                    fetched[index].append(piece)
        return fetched


# Between the stages of several requests -----------------------------------------------------------


def is_as_before(state: dict[str, Any], before: dict[str, Any]) -> bool:
    """Return whether an Op has the same attributes with the same values, none set again."""
    return (
        len(state) == len(before)
        and all(map(is_, state.values(), before.values()))
        and all(map(is_, state, before))
    )


def keep_changes(
    before: dict[str, Any], states: dict[int, dict[str, Any]], after: dict[str, Any]
) -> None:
    """Reduce each state, in place, to the attributes that any item has changed.

    This includes attributes that an item set to the value that was there: another item, perhaps a
    failed one, may have changed them since.
    """
    changed = set()
    for state in (*states.values(), after):
        changed |= {name for name, value in state.items() if before.get(name, _UNSET) is not value}
        before = state
    for index, state in states.items():
        states[index] = {name: state.get(name, _UNSET) for name in changed}


def restore(state: dict[str, Any], kept: dict[str, Any]) -> None:
    """Set the attributes to their old values, and remove new ones."""
    for name, value in kept.items():
        if value is _UNSET:
            state.pop(name, None)
        else:
            state[name] = value


def _check_jumping(op: BoundOp, items: Sequence[Any], outcomes: list[Any]) -> bool:
    """Return whether the answers of a batch jump; if the check fails, its error replaces them."""
    answers = OrderedDict(
        (item.data_id, ChannelData(item.data_id, item.log_id, outcome))
        for item, outcome in zip(items, outcomes, strict=True)
        if isinstance(outcome, dict)
    )
    if not answers:
        return False
    try:
        return bool(op.op.check_jumping(answers))
    except BaseException as error:  # user code; a worker survives even SystemExit
        failed = stage_error(error, op, "check_jumping", 0, *answers)
        outcomes[:] = [failed if isinstance(answer, dict) else answer for answer in outcomes]
        return False
