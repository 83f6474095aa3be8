"""StepRun: one step of an Op with `batching: iterative`, for whatever requests are under way.

Plain code for any worker, as `engine.batch_run`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from msgspec import field

from pipeline.data import RequestContext, SequenceStep, context_of
from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.run.call import Call
from pipeline.engine.run.collate import Form, form_of, rows_brought
from pipeline.engine.run.stage_errors import stage_error
from pipeline.engine.run.stages import BatchRun, CallWatch, keep_changes
from pipeline.engine.streams.flow import ENDED
from pipeline.engine.streams.pull import NO_PART, cut
from pipeline.errors import PayloadTypeError

Kept = tuple[list[dict[str, Any]], list[int]]
"""(copies of states, sizes of what in them may have others)"""


_DICTS = {dict}


class _Growing(dict[type, bool]):
    """By type: whether a value may have another size at another time."""

    def __missing__(self, kind: type) -> bool:
        grows = self[kind] = issubclass(kind, list | dict | set | bytearray | deque)
        return grows


_GROWING = _Growing()


class Progress(msgspec.Struct, eq=False):
    """Record of a request from one step to the next, where the Op runs.

    Attributes:
        has_begun: whether `preprocess` has run.
        data: what it returned, which `process` is fed at each step.
        skips_process: whether that is the one part.
        context: for hooks that ask for it; its `state` is the Op's.
        stored: what `preprocess` stored on the Op.
        form: of `data`, where all of one form can be merged as they are; None: each is looked at.
        rows: of `data`, where it has a form.
        sequence: what it is in the next step, where the Op has `sequence`; None: it has none.
    """

    has_begun: bool = False
    data: Any = None
    skips_process: bool = False
    context: RequestContext | None = None
    stored: dict[str, Any] | None = None
    form: Form | None = None
    rows: int = 0
    sequence: SequenceStep | None = None

    def next_step(self) -> SequenceStep | None:
        """Return what it is in the step that begins; in the next one it is no START."""
        step = self.sequence
        if step is not None and step.start:
            self.sequence = msgspec.structs.replace(step, start=False)
        return step


class StepRun(BatchRun, eq=False):
    """A batch of requests that go on, or begin; `preprocess` runs of those that begin only.

    A call of `process` that failed is made again, for each of its requests alone, unless it has
    changed what the Op keeps of one of them: then all of them end with its error.

    Attributes:
        progress: of each item.
        ends: of each item, whether its part is its last; ENDED in `outcomes`: it has none.
        before: what the Op kept of the items of a call when that began.
        changed: first items of calls that failed, and have changed a state.
    """

    progress: list[Progress] = field(default_factory=list)
    ends: list[bool] = field(default_factory=list)
    before: Kept = ([], [])
    changed: set[int] = field(default_factory=set)

    def prepare(self, op: BoundOp, clock_ns: Callable[[], int]) -> None:
        """Preprocess those that begin, and plan the calls of `process`."""
        self.start_ns: int = clock_ns()
        self.outcomes: list[Any] = [None] * len(self.items)
        self.ends: list[bool] = [False] * len(self.items)
        if op.asking:
            self.contexts: list[RequestContext] = [
                each.context or _context(item, each)
                for item, each in zip(self.items, self.progress, strict=True)
            ]
        if self.progress[0].sequence is not None:  # then each is one
            steps = [each.next_step() for each in self.progress]
            self._take_steps(op, [step for step in steps if step is not None])
        self.prepared: dict[int, Any] = dict(enumerate([each.data for each in self.progress]))
        new = [place for place, each in enumerate(self.progress) if not each.has_begun]
        if new:
            self._begin(op, new)
        if op.keeps_state:
            self.states: dict[int, dict[str, Any]] = {
                place: each.stored for place, each in enumerate(self.progress) if each.stored
            }
        self.preprocess_end_ns: int = clock_ns()
        self.calls: list[Call] | None = self._plan(op)
        if op.has_model or op.most_rows:
            self.rows: list[int] = rows_brought(self.calls, len(self.items))

    def _take_steps(self, op: BoundOp, steps: list[SequenceStep]) -> None:
        """Let hooks see the steps of the sequences, and `process` what is fed for them."""
        if self.contexts:
            self.contexts = [
                msgspec.structs.replace(context, sequence=step)
                for context, step in zip(self.contexts, steps, strict=True)
            ]
        if op.feeds is not None:
            self.sequence_steps: list[SequenceStep] = steps
            op.feeds.begin(steps)

    def _begin(self, op: BoundOp, new: list[int]) -> None:
        """Preprocess those in these places, as a batch of their own."""
        began = BatchRun([self.items[place] for place in new], outcomes=[None] * len(new))
        began.contexts = [self.contexts[place] for place in new] if self.contexts else []
        before = dict(op.state)
        began._preprocess(op)
        if op.keeps_state and len(new) == 1:  # it may be in a batch at its next step
            began.states[0] = dict(op.state)
            keep_changes(before, began.states, op.state)
        for index, place in enumerate(new):
            each, data = self.progress[place], began.prepared.get(index)
            each.has_begun, each.data = True, data
            each.skips_process = index in began.skipping
            each.stored = began.states.get(index)
            if type(data) is dict and op.runs_process and not op.most_rows:
                form, each.rows = form_of(data)
                first = self.progress[0].form
                each.form = first if form == first else form  # the same one is soon compared
            self.outcomes[place] = outcome = began.outcomes[index]
            if outcome is not None or self.items[place].is_over:
                del self.prepared[place]
                continue
            self.prepared[place] = data
            if each.skips_process:
                self.skipping.add(place)
                self.ends[place] = True
            elif isinstance(data, list):
                del self.prepared[place]
                self.outcomes[place] = PayloadTypeError(
                    f"Op {op.name!r}: preprocess returned a list of dicts, and the Op has "
                    "batching: iterative: return one dict."
                )

    def _plan(self, op: BoundOp) -> list[Call]:
        """Return the calls: one, without a look at what is fed, where all of that has one form."""
        progress = self.progress
        forms = [each.form for each in progress]
        form = forms[0]
        is_whole = len(self.prepared) == len(progress) > 1 and not self.skipping
        if form is None or not is_whole or op.feeds or forms.count(form) < len(forms):
            return super()._plan(op)
        feed = {name: np.concatenate([each.data[name] for each in progress]) for name, *_ in form}
        return [Call(feed, list(range(len(progress))), [[each.rows for each in progress]])]

    def _run_call(self, call: Call, op: BoundOp, watch: CallWatch) -> None:
        if len(call.items) == 1 and type(call.feed) is dict:  # it is fed again at the next step
            call.feed = dict(call.feed)
        self.before = self._kept(call)
        super()._run_call(call, op, watch)

    def _may_try_again(self, call: Call, error: BaseException, op: BoundOp) -> bool:
        if not _are_same(self.before, self._kept(call)):
            self.changed.add(call.items[0])
            return False
        return super()._may_try_again(call, error, op)

    def _is_worth_isolating(self, call: Call) -> bool:
        return call.items[0] not in self.changed and super()._is_worth_isolating(call)

    def _distributed(self, call: Call) -> list[Any]:
        """Return the rows of each item, and take down who ends."""
        parts, ends = cut(call.result, len(call.items), call.spans)
        for place, part, is_last in zip(call.items, parts, ends, strict=True):
            self.ends[place] = is_last
            if part is NO_PART:
                self.outcomes[place] = ENDED
        return parts

    def _postprocess(self, op: BoundOp) -> None:
        calls = self.calls or []
        is_whole = len(calls) == 1 and len(calls[0].items) == len(self.items)
        if not is_whole or self.states or calls[0].error or any(i.is_feed for i in self.items):
            super()._postprocess(op)
            return
        outcomes, contexts = self.outcomes, self.contexts  # as nearly always
        postprocess = op.users_postprocess
        for place, (item, part) in enumerate(zip(self.items, calls[0].result, strict=True)):
            if outcomes[place] is not None:
                continue
            if contexts:
                op.context = contexts[place]
            try:
                if type(part) is dict:
                    answer = postprocess(item.inputs, part, item.data_id, item.log_id)
                    outcomes[place] = answer if type(answer) is dict else op.answered(answer)
                else:
                    outcomes[place] = op.postprocess(item.inputs, part, item.data_id, item.log_id)
            except BaseException as error:  # user code; a worker survives even SystemExit
                outcomes[place] = stage_error(error, op, "postprocess", item.log_id, item.data_id)

    def forget(self) -> None:
        """Forget all but what its spans need; large arrays may hang on the rest."""
        self.prepared, self.contexts, self.calls, self.before = {}, [], [], ([], [])
        self.progress, self.states = [], {}
        if not self.executions and set(map(type, self.outcomes)) == _DICTS:
            self.outcomes = []

    def _kept(self, call: Call) -> Kept:
        """Return what the Op keeps of a call's items, as far as a change of it is seen later."""
        if not self.contexts:
            return [], []
        states = [self.contexts[place].state for place in call.items]
        growing = _GROWING
        sizes = [len(value) for state in states for value in state.values() if growing[type(value)]]
        return [state.copy() for state in states], sizes


def _context(item: Any, progress: Progress) -> RequestContext:
    if progress.context is None:
        progress.context = context_of(item, item.info, item.is_cancelled)
    return progress.context


def _are_same(before: Kept, after: Kept) -> bool:
    """Return whether all states have the same values, of the same sizes, as before."""
    return before[1] == after[1] and all(
        was.keys() == now.keys() and all(value is now[name] for name, value in was.items())
        for was, now in zip(before[0], after[0], strict=True)
    )
