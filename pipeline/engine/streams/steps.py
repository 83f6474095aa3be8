"""Steps: the requests at one worker of an Op with `batching: iterative`, advanced step by step.

Plain code for any worker, as `engine.run.stages`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, cast

import msgspec
import numpy as np
from msgspec import field

from pipeline.data import RequestContext, SequenceStep, context_of
from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.run.call import Call
from pipeline.engine.run.collate import Form, form_of, rows_brought
from pipeline.engine.run.stages import BatchRun, CallWatch, keep_changes
from pipeline.engine.streams.combine import size_of
from pipeline.engine.streams.flow import ALL, ENDED, UNWANTED, Bundle
from pipeline.engine.streams.run import NO_PART, Entry, StreamRun, StreamWatch, cut
from pipeline.errors import PayloadTypeError, PipelineError
from pipeline.routes import Answer

Kept = tuple[list[dict[str, Any]], list[int]]
"""(copies of states, sizes of the values in them that can grow)"""


_DICTS = {dict}


class _Growing(dict[type, bool]):
    """By type: whether a value may change its size."""

    def __missing__(self, kind: type) -> bool:
        grows = self[kind] = issubclass(kind, list | dict | set | bytearray | deque)
        return grows


_GROWING = _Growing()


class Progress(msgspec.Struct, eq=False):
    """Record of a request from one step to the next, at the worker.

    Attributes:
        has_begun: whether `preprocess` has run.
        data: the result of `preprocess`, the feed of `process` at each step.
        skips_process: whether `data` is the only part.
        context: for hooks that ask for it; its `state` is the Op's.
        stored: attributes that `preprocess` stored on the Op.
        form: of `data`, if all data of one form can be merged; None: each has to be checked.
        rows: of `data`, if it has a form.
        sequence: its next step, if the Op has `sequence`; None: it has none.
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
        """Return its step that begins now; the next one is not a START."""
        step = self.sequence
        if step is not None and step.start:
            self.sequence = msgspec.structs.replace(step, start=False)
        return step


class StepRun(BatchRun, eq=False):
    """A batch of requests that continue or begin; `preprocess` runs only for new ones.

    A failed call of `process` is made again, for each request alone, unless it has changed a state
    of the Op: then all of its requests end with its error.

    Attributes:
        progress: of each item.
        ends: for each item whether its part is the last; ENDED in `outcomes`: it has no part.
        before: the states of the items of a call when that began.
        changed: first items of calls that failed and have changed a state.
    """

    progress: list[Progress] = field(default_factory=list)
    ends: list[bool] = field(default_factory=list)
    before: Kept = ([], [])
    changed: set[int] = field(default_factory=set)

    def prepare(self, op: BoundOp, clock_ns: Callable[[], int]) -> None:
        """Preprocess the items that begin, and plan the calls of `process`."""
        self.start_ns: int = clock_ns()
        self.outcomes: list[Any] = [None] * len(self.items)
        self.ends: list[bool] = [False] * len(self.items)
        if op.asking:
            kept = [progress.context for progress in self.progress]
            if None in kept:
                kept = list(map(_context, self.items, self.progress))
            self.contexts: list[RequestContext] = cast("list[RequestContext]", kept)
        if self.progress[0].sequence is not None:  # then each has one
            steps = [progress.next_step() for progress in self.progress]
            self._take_steps(op, [step for step in steps if step is not None])
        self.prepared: dict[int, Any] = dict(
            enumerate([progress.data for progress in self.progress])
        )
        new = [place for place, progress in enumerate(self.progress) if not progress.has_begun]
        if new:
            self._begin(op, new)
        if op.keeps_state:
            self.states: dict[int, dict[str, Any]] = {
                place: progress.stored
                for place, progress in enumerate(self.progress)
                if progress.stored
            }
        self.preprocess_end_ns: int = clock_ns()
        self.calls: list[Call] | None = self._plan(op)
        if op.has_model or op.most_rows:
            self.rows: list[int] = rows_brought(self.calls, len(self.items))

    def _take_steps(self, op: BoundOp, steps: list[SequenceStep]) -> None:
        """Give hooks the steps of the sequences, and `process` the additional feeds for them."""
        if self.contexts:
            self.contexts = [
                msgspec.structs.replace(context, sequence=step)
                for context, step in zip(self.contexts, steps, strict=True)
            ]
        if op.feeds is not None:
            self.sequence_steps: list[SequenceStep] = steps
            op.feeds.begin(steps)

    def _begin(self, op: BoundOp, new: list[int]) -> None:
        """Preprocess the items in these places, as a batch of their own."""
        began = BatchRun([self.items[place] for place in new], outcomes=[None] * len(new))
        began.contexts = [self.contexts[place] for place in new] if self.contexts else []
        before = dict(op.state)
        began._preprocess(op)
        if op.keeps_state and len(new) == 1:  # it may be in a batch at its next step
            began.states[0] = dict(op.state)
            keep_changes(before, began.states, op.state)
        for index, place in enumerate(new):
            progress, data = self.progress[place], began.prepared.get(index)
            progress.has_begun, progress.data = True, data
            progress.skips_process = index in began.skipping
            progress.stored = began.states.get(index)
            if type(data) is dict and op.runs_process and not op.most_rows:
                form, progress.rows = form_of(data)
                first = self.progress[0].form
                # the same object is faster to compare
                progress.form = first if form == first else form
            self.outcomes[place] = outcome = began.outcomes[index]
            if outcome is not None or self.items[place].is_over:
                del self.prepared[place]
                continue
            self.prepared[place] = data
            if progress.skips_process:
                self.skipping.add(place)
                self.ends[place] = True
            elif isinstance(data, list):
                del self.prepared[place]
                self.outcomes[place] = PayloadTypeError(
                    f"Op {op.name!r}: preprocess returned a list of dicts, and the Op has "
                    "batching: iterative: return one dict."
                )

    def _plan(self, op: BoundOp) -> list[Call]:
        """Return the calls: one, without checks of the feeds, if all have one form."""
        progress = self.progress
        forms = [request.form for request in progress]
        form = forms[0]
        is_whole = len(self.prepared) == len(progress) > 1 and not self.skipping
        if form is None or not is_whole or op.feeds or forms.count(form) < len(forms):
            return super()._plan(op)
        feed = {
            name: np.concatenate([request.data[name] for request in progress]) for name, *_ in form
        }
        return [Call(feed, list(range(len(progress))), [[request.rows for request in progress]])]

    def _run_call(self, call: Call, op: BoundOp, watch: CallWatch) -> None:
        if len(call.items) == 1 and type(call.feed) is dict:  # it is fed again at the next step
            call.feed = dict(call.feed)
        self.before = self._kept(call)
        super()._run_call(call, op, watch)

    def _may_try_again(self, call: Call, error: BaseException, attempts: int) -> bool:
        if not _are_same(self.before, self._kept(call)):
            self.changed.add(call.items[0])
            return False
        return super()._may_try_again(call, error, attempts)

    def _is_worth_isolating(self, call: Call) -> bool:
        return call.items[0] not in self.changed and super()._is_worth_isolating(call)

    def _distributed(self, call: Call) -> list[Any]:
        """Return the rows of each item, and record which items end."""
        parts, ends = cut(call.result, len(call.items), call.spans)
        for place, part, is_last in zip(call.items, parts, ends, strict=True):
            self.ends[place] = is_last
            if part is NO_PART:
                self.outcomes[place] = ENDED
        return parts

    def forget(self) -> None:
        """Drop everything except what its spans need, to free large arrays."""
        self.prepared, self.contexts, self.calls, self.before = {}, [], [], ([], [])
        self.progress, self.states = [], {}
        if not self.executions and set(map(type, self.outcomes)) == _DICTS:
            self.outcomes = []

    def _kept(self, call: Call) -> Kept:
        """Return the states of a call's items, to find changes later."""
        if not self.contexts:
            return [], []
        states = [self.contexts[place].state for place in call.items]
        sizes, growing = [], _GROWING
        kinds = set(map(type, chain.from_iterable(map(dict.values, states))))
        if any(map(growing.__getitem__, kinds)):  # otherwise C compares them
            values = [value for state in states for value in state.values()]
            sizes = [len(value) for value in values if growing[type(value)]]
        return list(map(dict.copy, states)), sizes


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


ENDS = (PipelineError, Answer)

_MANY = 4  # requests in one step that make it worth to hold parts
_HOLD_NS = 10_000_000  # parts of quick steps are held at most so long, to go together
_QUICK_NS = _HOLD_NS // 2  # a shorter step is quick: the loop finds its parts by itself
_MUCH = ALL >> 1  # room of a request with one answer, which no number of parts uses up
_HELD_BYTES = 2**20  # of held parts for requests with one answer


class Steps:
    """Makes the parts of requests that join, advance step by step, and leave: one call for all.

    A request that joins during a step is in the next step; a request without room for another part
    pauses. The end of each request is sent, also if nobody waits for it.

    Parts of quick steps go to the loop several at a time. Parts of a request with one answer go
    when the answer is complete, or the slice is over. For other requests the first part goes at
    once, and later ones go in groups, within the further room.
    """

    def __init__(self) -> None:
        self.items: list[int] = []  # no two requests share a part
        self.is_over: bool = False
        self.seated: list[int] = []  # the places that have begun, in this order
        self.progress: list[Progress] = []  # of each place
        self.held: dict[int, Bundle] = {}  # parts that were not sent yet, by place
        self._vacated: list[int] = []  # places that became free since the last step
        self._held_bytes = 0
        self._unsent: list[Entry] = []  # entries to be sent next
        self._steps: list[StepRun] = []  # steps that were not reported yet

    def turn(
        self,
        run: StreamRun,
        op: BoundOp,
        watch: StreamWatch,
        clock_ns: Callable[[], int],
        until_ns: int,
    ) -> bool:
        """Step until no request has room, or other runs need a turn."""
        try:
            while not run.is_superseded:
                self._clear(run)
                self._seat(run)
                run.stepping = self._ready(run)
                if not run.stepping:
                    break
                self._step(run, op, watch, clock_ns)
                if clock_ns() > until_ns:
                    break
        finally:
            self._send(run, watch)
            self._forget(op)
            run.stepping = []
        return False

    def close(self, op: BoundOp, watch: StreamWatch) -> None:
        """Do nothing: nothing runs between steps."""

    def take_unsent(self, run: StreamRun) -> list[Entry]:
        entries: list[Entry] = [*self._unsent, *self.held.items()]
        run.steps += self._steps
        self._unsent, self.held, self._steps = [], {}, []
        return entries

    def without(self, places: Sequence[int]) -> Steps:
        following = Steps()
        following.progress = list(self.progress)
        following.seated = [place for place in self.seated if place not in places]
        for place in places:
            if place < len(following.progress):  # it had begun
                following.progress[place] = Progress()
        return following

    def _clear(self, run: StreamRun) -> None:
        """Free the places of requests that ended because a part could not be sent."""
        if any(map(run.ended.__getitem__, self.seated)):
            for place in [place for place in self.seated if run.ended[place]]:
                self._vacate(place)

    def _vacate(self, place: int) -> None:
        self.progress[place] = Progress()
        self.seated.remove(place)
        self._vacated.append(place)

    def _seat(self, run: StreamRun) -> None:
        """Let the items that have joined begin."""
        while run.joining:
            place = run.joining.popleft()
            while len(self.progress) <= place:
                self.progress.append(Progress())
            self.progress[place] = Progress(sequence=_first_step(run.numbers[place], place))
            run.made[place], run.ended[place] = 0, False
            self.seated.append(place)

    def _forget(self, op: BoundOp) -> None:
        """Drop the states of requests that have left."""
        if op.feeds is not None:
            for place in self._vacated:
                op.feeds.drop(place)
        self._vacated.clear()

    def _ready(self, run: StreamRun) -> list[int]:
        """Return the places of requests that have room; end requests that are over."""
        ready, over = [], []
        items, made, room = run.items, run.made, run.allowed
        for place in self.seated:
            allowed = room[place]
            if allowed == UNWANTED or items[place].is_over:
                over.append(place)
            elif made[place] < allowed:
                ready.append(place)
        for place in over:
            self._end(run, place, ENDED)
        return ready

    def _step(
        self, run: StreamRun, op: BoundOp, watch: StreamWatch, clock_ns: Callable[[], int]
    ) -> None:
        places = run.stepping
        self._forget(op)
        step = StepRun(
            [run.items[place] for place in places],
            progress=[self.progress[place] for place in places],
        )
        step.run(op, watch, clock_ns)
        if run.is_superseded:
            return
        run.start_ns = step.start_ns
        self._steps.append(step)
        is_quick = len(places) >= _MANY and step.end_ns - step.start_ns < _QUICK_NS
        self._take(run, step, is_quick and run.holds)
        if run.holds:
            step.forget()
        if self._unsent or not run.holds or self._held_bytes > _HELD_BYTES:
            self._send(run, watch, is_quick)

    def _take(self, run: StreamRun, step: StepRun, may_hold: bool) -> None:
        """Take the parts of a step: they are sent now, or held."""
        now, held, made, allowed = step.end_ns, self.held, run.made, run.allowed
        for place, outcome, is_last in zip(run.stepping, step.outcomes, step.ends, strict=True):
            if type(outcome) is not dict:
                if outcome is not None:  # otherwise it was over before it began
                    self._take_other(run, place, outcome, is_last)
                continue
            if place not in held:
                held[place] = Bundle()
            bundle = held[place]
            parts, times_ns = bundle.parts, bundle.times_ns
            parts.append(outcome)
            times_ns.append(now)
            made[place] = sent = made[place] + 1
            room, count = allowed[place] - sent, len(parts)
            if room >= _MUCH:  # they will be one answer
                size = size_of(outcome)
                bundle.bytes += size
                self._held_bytes += size
            elif not may_hold or sent == count or count >= room or now - times_ns[0] > _HOLD_NS:
                self._release(place)
            if is_last:
                self._end(run, place, ENDED)

    def _take_other(self, run: StreamRun, place: int, outcome: Any, is_last: bool) -> None:
        """Take a Goto, or the end of a request."""
        if outcome is ENDED or isinstance(outcome, ENDS):
            self._end(run, place, outcome)
            return
        self._release(place)
        self._unsent.append((place, outcome))
        run.made[place] += 1
        if is_last:
            self._end(run, place, ENDED)

    def _end(self, run: StreamRun, place: int, outcome: Any) -> None:
        """End a request with this outcome, after its parts."""
        self._release(place)
        self._unsent.append((place, outcome))
        run.ended[place] = True
        self._vacate(place)

    def _release(self, place: int) -> None:
        """Let the held parts of a request be sent next."""
        bundle = self.held.pop(place, None)
        if bundle is not None:
            self._unsent.append((place, bundle))
            self._held_bytes -= bundle.bytes

    def _send(self, run: StreamRun, watch: StreamWatch, may_wait: bool | None = None) -> None:
        """Send parts and ends to the loop; without `may_wait` also all held parts."""
        if run.is_superseded:  # another worker sends the rest: see `left`
            return
        if may_wait is None or self._held_bytes > _HELD_BYTES:
            for place in list(self.held):
                self._release(place)
        if self._unsent or self._steps:
            entries, run.may_wait = self._unsent, bool(may_wait)
            run.steps += self._steps
            self._unsent, self._steps = [], []
            watch.yielded(run, entries)
            self._clear(run)  # before the next request at such a place is in a step


def stepped_run(number: int) -> StreamRun:
    """Return the run that requests join, at the worker with this number."""
    return StreamRun([], number, pulls=[Steps()], ran_at=number, reports_steps=True)


def _first_step(number: int, place: int) -> SequenceStep | None:
    """Return the first step of the request at a place; None: the Op has no `sequence`."""
    return SequenceStep(id=number, start=True, slot=place) if number else None
