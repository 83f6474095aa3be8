"""StepRun: one step of an Op with `batching: iterative`, for whatever requests are under way.

Plain code for any worker, as `engine.batch_run`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import field

from pipeline.data import RequestContext, context_of
from pipeline.engine.batch_run import BatchRun, CallWatch
from pipeline.engine.bound_op import BoundOp
from pipeline.engine.collate import Call, rows_brought
from pipeline.engine.op_state import keep_changes
from pipeline.engine.streams.flow import ENDED
from pipeline.engine.streams.pull import cut
from pipeline.errors import PayloadTypeError

_GROWING = (list, dict, set, bytearray, deque)

Kept = tuple[dict[str, Any], list[int]]
"""(a state, sizes of what in it may have others)"""


class Progress(msgspec.Struct, eq=False):
    """Record of a request from one step to the next, where the Op runs.

    Attributes:
        has_begun: whether `preprocess` has run.
        data: what it returned, which `process` is fed at each step.
        skips_process: whether that is the one part.
        context: for hooks that ask for it; its `state` is the Op's.
        stored: what `preprocess` stored on the Op.
    """

    has_begun: bool = False
    data: Any = None
    skips_process: bool = False
    context: RequestContext | None = None
    stored: dict[str, Any] | None = None


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
    before: list[Kept] = field(default_factory=list)
    changed: set[int] = field(default_factory=set)

    def prepare(self, op: BoundOp, clock_ns: Callable[[], int]) -> None:
        """Preprocess those that begin, and plan the calls of `process`."""
        self.start_ns: int = clock_ns()
        self.outcomes: list[Any] = [None] * len(self.items)
        self.ends: list[bool] = [False] * len(self.items)
        if op.asking:
            self.contexts: list[RequestContext] = [
                _context(item, each) for item, each in zip(self.items, self.progress, strict=True)
            ]
        self._begin(op)
        for place, (item, each) in enumerate(zip(self.items, self.progress, strict=True)):
            if self.outcomes[place] is not None or item.is_over:
                continue
            data = each.data
            self.prepared[place] = dict(data) if type(data) is dict else data
            if each.skips_process:
                self.skipping.add(place)
                self.ends[place] = True
            if each.stored:
                self.states[place] = each.stored
        self.preprocess_end_ns: int = clock_ns()
        self.calls: list[Call] | None = self._plan(op)
        if op.has_model or op.most_rows:
            self.rows: list[int] = rows_brought(self.calls, len(self.items))

    def _begin(self, op: BoundOp) -> None:
        """Preprocess those that have not begun, as a batch of their own."""
        new = [place for place, each in enumerate(self.progress) if not each.has_begun]
        if not new:
            return
        first = BatchRun([self.items[place] for place in new], outcomes=[None] * len(new))
        first.contexts = [self.contexts[place] for place in new] if self.contexts else []
        before = dict(op.state)
        first._preprocess(op)
        if op.keeps_state and len(new) == 1:  # it may be in a batch at its next step
            first.states[0] = dict(op.state)
            keep_changes(before, first.states, op.state)
        for index, place in enumerate(new):
            each, data = self.progress[place], first.prepared.get(index)
            each.has_begun, each.data = True, data
            each.skips_process = index in first.skipping
            each.stored = first.states.get(index)
            self.outcomes[place] = first.outcomes[index]
            if isinstance(data, list) and not each.skips_process:
                self.outcomes[place] = PayloadTypeError(
                    f"Op {op.name!r}: preprocess returned a list of dicts, and the Op has "
                    "batching: iterative: return one dict."
                )

    def _run_call(self, call: Call, op: BoundOp, watch: CallWatch) -> None:
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
        pieces = cut(call.result, call.items, call.spans)
        for piece in pieces:
            self.ends[piece.item] = piece.is_last
            if not piece.has_part:
                self.outcomes[piece.item] = ENDED
        return [piece.data for piece in pieces]

    def _kept(self, call: Call) -> list[Kept]:
        """Return what the Op keeps of a call's items, as far as a change of it is seen later."""
        states = [self.contexts[place].state for place in call.items] if self.contexts else []
        return [
            (state.copy(), [len(value) for value in state.values() if isinstance(value, _GROWING)])
            for state in states
        ]


def _context(item: Any, progress: Progress) -> RequestContext:
    if progress.context is None:
        progress.context = context_of(item, item.info, item.is_cancelled)
    return progress.context


def _are_same(before: list[Kept], after: list[Kept]) -> bool:
    """Return whether all states have the same values, of the same sizes, as before."""
    return all(
        was.keys() == now.keys()
        and sizes == sizes_now
        and all(value is now[name] for name, value in was.items())
        for (was, sizes), (now, sizes_now) in zip(before, after, strict=True)
    )
