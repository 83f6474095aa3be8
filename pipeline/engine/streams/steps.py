"""Steps: the parts of requests at one worker of an Op with `batching: iterative`, step by step.

Plain code for any worker, as `engine.batch_run`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
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
"""(copies of states, sizes of what in them may have others)"""


_DICTS = {dict}
_IS_FEED = attrgetter("is_feed")


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
            kept = [progress.context for progress in self.progress]
            if None in kept:
                kept = list(map(_context, self.items, self.progress))
            self.contexts: list[RequestContext] = cast("list[RequestContext]", kept)
        if self.progress[0].sequence is not None:  # then each is one
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
            progress, data = self.progress[place], began.prepared.get(index)
            progress.has_begun, progress.data = True, data
            progress.skips_process = index in began.skipping
            progress.stored = began.states.get(index)
            if type(data) is dict and op.runs_process and not op.most_rows:
                form, progress.rows = form_of(data)
                first = self.progress[0].form
                progress.form = first if form == first else form  # the same one is soon compared
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
        """Return the calls: one, without a look at what is fed, where all of that has one form."""
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
        """Return the rows of each item, and take down who ends."""
        parts, ends = cut(call.result, len(call.items), call.spans)
        for place, part, is_last in zip(call.items, parts, ends, strict=True):
            self.ends[place] = is_last
            if part is NO_PART:
                self.outcomes[place] = ENDED
        return parts

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
        sizes, growing = [], _GROWING
        kinds = set(map(type, chain.from_iterable(map(dict.values, states))))
        if any(map(growing.__getitem__, kinds)):  # else C looks through them
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

_MANY = 4  # requests in one step, and
_HOLD_NS = 10_000_000  # parts of quick steps are kept for at most so long, to go together
_QUICK_NS = _HOLD_NS // 2  # a step of less: the loop looks by itself for what was made
_MUCH = ALL >> 1  # room of who takes one answer, which no number of parts uses up
_HELD_BYTES = 2**20  # of parts that are kept for who takes one answer


class Steps:
    """Makes the parts of those who join, go on step by step, and leave: a call for all at once.

    Who joins while a step runs is in the next one, who has no room for another part sits out. The
    end of each is told, also of those that nobody waits for.

    Parts of quick steps go to the loop several at a time: of who takes one answer when that is
    there, or the slice is over; of others the first one at once, and then as many as there is
    further room for.
    """

    def __init__(self) -> None:
        self.items: list[int] = []  # nobody shares a part
        self.is_over: bool = False
        self.seated: list[int] = []  # those that have begun, in this order
        self.progress: list[Progress] = []  # of each place
        self.held: dict[int, Bundle] = {}  # parts that were not told yet, by place
        self._vacated: list[int] = []  # places that somebody has left since the last step
        self._held_bytes = 0
        self._untold: list[Entry] = []  # what is to be told next
        self._steps: list[StepRun] = []  # that were not told yet

    def turn(
        self,
        run: StreamRun,
        op: BoundOp,
        watch: StreamWatch,
        clock_ns: Callable[[], int],
        until_ns: int,
    ) -> bool:
        """Step until nobody has room, or others are to have a turn."""
        try:
            self._clear(run)
            while not run.is_superseded:
                self._seat(run)
                run.stepping = self._ready(run)
                if not run.stepping:
                    break
                self._step(run, op, watch, clock_ns)
                if clock_ns() > until_ns:
                    break
        finally:
            self._say(run, watch)
            self._forget(op)
            run.stepping = []
            op.context = None  # it has the states of those in the last step
        return False

    def close(self, op: BoundOp, watch: StreamWatch) -> None:
        """Nothing runs between steps."""

    def left(self, run: StreamRun) -> list[Entry]:
        entries: list[Entry] = [*self._untold, *self.held.items()]
        run.steps += self._steps
        self._untold, self.held, self._steps = [], {}, []
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
        """Have those leave who have ended elsewhere, as their part could not be sent."""
        if any(map(run.ended.__getitem__, self.seated)):
            for place in [place for place in self.seated if run.ended[place]]:
                self._vacate(place)

    def _vacate(self, place: int) -> None:
        self.progress[place] = Progress()
        self.seated.remove(place)
        self._vacated.append(place)

    def _seat(self, run: StreamRun) -> None:
        """Have those begin who have joined."""
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
        """Return the places of requests that have room; end those that are over."""
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
        if self._untold or not run.holds or self._held_bytes > _HELD_BYTES:
            self._say(run, watch, is_quick)

    def _take(self, run: StreamRun, step: StepRun, may_hold: bool) -> None:
        """Take what a step has made: to be told now, or to be held."""
        now, held, made, allowed = step.end_ns, self.held, run.made, run.allowed
        for place, outcome, is_last in zip(run.stepping, step.outcomes, step.ends, strict=True):
            if type(outcome) is not dict:
                if outcome is not None:  # else it was over before it began
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
            if room >= _MUCH:  # one answer is made of them
                size = size_of(outcome)
                bundle.bytes += size
                self._held_bytes += size
            elif not may_hold or sent == count or count >= room or now - times_ns[0] > _HOLD_NS:
                self._let_go(place)
            if is_last:
                self._end(run, place, ENDED)

    def _take_other(self, run: StreamRun, place: int, outcome: Any, is_last: bool) -> None:
        """Take a Goto, or what ends a request."""
        if outcome is ENDED or isinstance(outcome, ENDS):
            self._end(run, place, outcome)
            return
        self._let_go(place)
        self._untold.append((place, outcome))
        run.made[place] += 1
        if is_last:
            self._end(run, place, ENDED)

    def _end(self, run: StreamRun, place: int, outcome: Any) -> None:
        """Have a request end with this, behind its parts."""
        self._let_go(place)
        self._untold.append((place, outcome))
        run.ended[place] = True
        self._vacate(place)

    def _let_go(self, place: int) -> None:
        """Have what is held of a request be told next."""
        bundle = self.held.pop(place, None)
        if bundle is not None:
            self._untold.append((place, bundle))
            self._held_bytes -= bundle.bytes

    def _say(self, run: StreamRun, watch: StreamWatch, may_wait: bool | None = None) -> None:
        """Have the loop told of parts and ends; without `may_wait` of all that is held."""
        if run.is_superseded:  # another one tells it: see `left`
            return
        if may_wait is None or self._held_bytes > _HELD_BYTES:
            for place in list(self.held):
                self._let_go(place)
        if self._untold or self._steps:
            entries, run.may_wait = self._untold, bool(may_wait)
            run.steps += self._steps
            self._untold, self._steps = [], []
            watch.yielded(run, entries)
            self._clear(run)  # before who has such a place next is in a step


def stepped_run(number: int) -> StreamRun:
    """Return what those join who go on step by step, at the worker with this number."""
    return StreamRun([], number, pulls=[Steps()], ran_at=number, tells_steps=True)


def _first_step(number: int, place: int) -> SequenceStep | None:
    """Return what who has a place is in its first step; None: the Op has no `sequence`."""
    return SequenceStep(id=number, start=True, slot=place) if number else None
