"""SteppedRun: the requests that are under way at one worker of an Op with `batching: iterative`.

Plain code for any worker, as `engine.batch_run`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, ClassVar, cast

import msgspec
import numpy as np
from msgspec import field

from pipeline.data import RequestContext, SequenceStep, context_of
from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.run.call import Call
from pipeline.engine.run.collate import Form, form_of, rows_brought
from pipeline.engine.run.stage_errors import stage_error
from pipeline.engine.run.stages import BatchRun, CallWatch, keep_changes
from pipeline.engine.streams.combine import size_of
from pipeline.engine.streams.flow import ALL, ENDED, UNWANTED, Bundle
from pipeline.engine.streams.run import NO_PART, SLICE_NS, Entry, StreamRun, StreamWatch, cut
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
            kept = [each.context for each in self.progress]
            if None in kept:
                kept = list(map(_context, self.items, self.progress))
            self.contexts: list[RequestContext] = cast("list[RequestContext]", kept)
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

    def _postprocess(self, op: BoundOp) -> None:
        calls = self.calls or []
        is_whole = len(calls) == 1 and len(calls[0].items) == len(self.items)
        if not is_whole or self.states or calls[0].error or any(map(_IS_FEED, self.items)):
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


class Vacant:
    """Item of a place that nobody has."""

    request = None
    data_id = -1
    log_id = 0
    deadline = None
    is_over = True

    def is_cancelled(self) -> bool:
        return True


VACANT = Vacant()


class Made(list[Entry]):
    """Entries that steps have made; a part of them may be a Bundle.

    Attributes:
        steps: those that ran since the last ones were told.
        may_wait: whether it is soon enough if the loop hears of them when it looks by itself: they
            are those of many requests, and a step takes no time.
    """

    def __init__(self, entries: Iterable[Entry] = (), steps: Sequence[StepRun] = ()) -> None:
        super().__init__(entries)
        self.steps: Sequence[StepRun] = steps
        self.may_wait: bool = False


class SteppedRun(StreamRun, eq=False):
    """Requests that join, go on step by step, and leave; each has a place meanwhile.

    A slice is as many steps as there is time for. Who joins while it runs is in its next step, who
    has no room for another part sits out. The end of each is told, also of those that nobody waits
    for: only then another one may have its place.

    Parts of quick steps go to the loop several at a time: of who takes one answer when that is
    there, or the slice is over; of others the first one at once, and then as many as there is
    further room for.

    Attributes:
        holds: whether parts may be kept a while: nobody asks when each was there.
        joining: places whose items have not begun; the loop adds to it, the worker takes.
        free: places that nobody has. The loop's.
        stepping: places of those in the step that runs; as the next two the worker's.
        seated: places of those that have begun, in this order.
        progress: of each place.
        numbers: of the sequences in each place; 0: the Op has no `sequence`. The loop's.
        vacated: places that somebody has left since the last step. The worker's.
        held: parts that were not told yet, by place; as the next two the worker's.
        untold: what is to be told next.
        steps: that were not told yet.
    """

    tells_steps: ClassVar[bool] = True

    holds: bool = False
    joining: deque[int] = field(default_factory=deque)
    free: list[int] = field(default_factory=list)
    stepping: list[int] = field(default_factory=list)
    seated: list[int] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    vacated: list[int] = field(default_factory=list)
    held: dict[int, Bundle] = field(default_factory=dict)
    held_bytes: int = 0
    untold: list[Entry] = field(default_factory=list)
    steps: list[StepRun] = field(default_factory=list)

    # On the loop --------------------------------------------------------------------------------

    def join(self, item: Any, allowed: int, number: int = 0) -> int:
        """Have an item be in the next step, as the sequence `number`; return its place."""
        place = self.free.pop() if self.free else len(self.items)
        self.join_at(place, item, number, allowed)
        return place

    def joined(self) -> list[int]:
        """Take the places of those who are told to a worker elsewhere, and begin there."""
        places = list(self.joining)
        self.joining.clear()
        for place in places:
            self.made[place], self.ended[place] = 0, False
        return places

    def begin_anew(self) -> None:
        """Have all join again: the worker that was told of them has not begun."""
        self.joining = deque(self.taken)

    def join_at(self, place: int, item: Any, number: int = 0, allowed: int | None = None) -> None:
        """Have an item, whose place was chosen elsewhere, be in the next step."""
        while len(self.items) <= place:
            self._items.append(VACANT)
            self.allowed.append(0)
            self.made.append(0)
            self.ended.append(True)
            self.numbers.append(0)
        self._items[place], self.numbers[place] = item, number
        if allowed is not None:
            self.allowed[place] = allowed
        self.joining.append(place)

    @property
    def _items(self) -> list[Any]:
        return cast(list[Any], self.items)

    def leave(self, place: int) -> None:
        """Give up a place whose end was told."""
        self._items[place] = VACANT
        self.free.append(place)

    @property
    def taken(self) -> list[int]:
        """Return the places that somebody has."""
        return [place for place, item in enumerate(self.items) if item is not VACANT]

    @property
    def number(self) -> int:
        """Return the number of the worker."""
        return self.ran_at

    @property
    def has_work(self) -> bool:
        if self.is_superseded:
            return False
        least = 1 if self.busy_ns > SLICE_NS else self.least
        return bool(self.joining) or any(
            self._room([place]) >= least
            for place, has_ended in enumerate(self.ended)
            if not has_ended
        )

    def begun(self) -> list[int]:
        """Return the places of those that the worker may have begun with."""
        return [place for place in self.taken if place not in self.joining]

    def without(self, places: Sequence[int]) -> SteppedRun:
        """Return a run that goes on with all but those in these places, which stay theirs."""
        run = SteppedRun(list(self.items), self.worker, least=self.least, ran_at=self.ran_at)
        run.holds = self.holds
        run.allowed, run.made, run.ended = list(self.allowed), list(self.made), list(self.ended)
        run.joining, run.free = deque(self.joining), list(self.free)
        run.progress, run.numbers = list(self.progress), list(self.numbers)
        run.seated = [place for place in self.seated if place not in places]
        for place in places:
            run.ended[place] = True
            if place < len(run.progress):  # it had begun
                run.progress[place] = Progress()
        return run

    def left(self) -> Made:
        """Take what the worker had not told when it was given up."""
        made = Made([*self.untold, *self.held.items()], self.steps)
        self.untold, self.held, self.steps = [], {}, []
        return made

    def _failed(self, op_name: str, worker: int, indexes: Sequence[int], what: str) -> str:
        return super()._failed(op_name, worker, self.stepping or self.taken or [0], what)

    # In the worker ------------------------------------------------------------------------------

    def _go_on(
        self, op: BoundOp, watch: StreamWatch, clock_ns: Callable[[], int], until_ns: int
    ) -> None:
        """Step until nobody has room, or others are to have a turn."""
        self.groups: list[list[int]] | None = []
        while not self.is_superseded:
            self._seat()
            self.stepping = self._ready()
            if not self.stepping:
                break
            self._step(op, watch, clock_ns)
            if clock_ns() > until_ns:
                break
        self._say(watch)

    def _end_all(self, error: PipelineError, watch: StreamWatch) -> None:
        for place in self.seated[:]:
            self._end(place, error)
        self._say(watch)

    def _pause(self, op: BoundOp) -> None:
        self.stepping = []
        self._forget(op)
        op.context = None  # it has the states of those in the last step

    def _seat(self) -> None:
        """Have those begin who have joined."""
        while self.joining:
            place = self.joining.popleft()
            while len(self.progress) <= place:
                self.progress.append(Progress())
            self.progress[place] = Progress(sequence=_first_step(self.numbers[place], place))
            self.made[place], self.ended[place] = 0, False
            self.seated.append(place)

    def _forget(self, op: BoundOp) -> None:
        """Drop the states of requests that have left."""
        if op.feeds is not None:
            for place in self.vacated:
                op.feeds.drop(place)
        self.vacated.clear()

    def _ready(self) -> list[int]:
        """Return the places of requests that have room; end those that are over."""
        ready, over = [], []
        items, made, room = self.items, self.made, self.allowed
        for place in self.seated:
            allowed = room[place]
            if allowed == UNWANTED or items[place].is_over:
                over.append(place)
            elif made[place] < allowed:
                ready.append(place)
        for place in over:
            self._end(place, ENDED)
        return ready

    def _step(self, op: BoundOp, watch: StreamWatch, clock_ns: Callable[[], int]) -> None:
        places = self.stepping
        self._forget(op)
        step = StepRun(
            [self.items[place] for place in places],
            progress=[self.progress[place] for place in places],
        )
        step.run(op, watch, clock_ns)
        if self.is_superseded:
            return
        self.start_ns: int = step.start_ns
        self.steps.append(step)
        is_quick = len(places) >= _MANY and step.end_ns - step.start_ns < _QUICK_NS
        self._take(step, places, is_quick and self.holds)
        if self.holds:
            step.forget()
        if self.untold or not self.holds or self.held_bytes > _HELD_BYTES:
            self._say(watch, is_quick)

    def _take(self, step: StepRun, places: Sequence[int], may_hold: bool) -> None:
        """Take what a step has made: to be told now, or to be held."""
        now, held, made, allowed = step.end_ns, self.held, self.made, self.allowed
        for place, outcome, is_last in zip(places, step.outcomes, step.ends, strict=True):
            if type(outcome) is not dict:
                if outcome is not None:  # else it was over before it began
                    self._take_other(place, outcome, is_last)
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
                self.held_bytes += size
            elif not may_hold or sent == count or count >= room or now - times_ns[0] > _HOLD_NS:
                self._let_go(place)
            if is_last:
                self._end(place, ENDED)

    def _take_other(self, place: int, outcome: Any, is_last: bool) -> None:
        """Take a Goto, or what ends a request."""
        if outcome is ENDED or isinstance(outcome, ENDS):
            self._end(place, outcome)
            return
        self._let_go(place)
        self.untold.append((place, outcome))
        self.made[place] += 1
        if is_last:
            self._end(place, ENDED)

    def _end(self, place: int, outcome: Any) -> None:
        """Have a request end with this, behind its parts."""
        self._let_go(place)
        self.untold.append((place, outcome))
        self.ended[place] = True
        self.progress[place] = Progress()
        self.seated.remove(place)
        self.vacated.append(place)

    def _let_go(self, place: int) -> None:
        """Have what is held of a request be told next."""
        bundle = self.held.pop(place, None)
        if bundle is not None:
            self.untold.append((place, bundle))
            self.held_bytes -= bundle.bytes

    def _say(self, watch: StreamWatch, may_wait: bool | None = None) -> None:
        """Have the loop told of parts and ends; without `may_wait` of all that is held."""
        if self.is_superseded:  # another one tells it: see `left`
            return
        if may_wait is None or self.held_bytes > _HELD_BYTES:
            for place in list(self.held):
                self._let_go(place)
        made = Made(self.untold, self.steps)
        made.may_wait = bool(may_wait)
        self.untold, self.steps = [], []
        if made or made.steps:
            watch.yielded(self, made)
            unsent = [place for place in self.seated if self.ended[place]]
            for place in unsent:  # which may be another's in the next step
                self.progress[place] = Progress()
                self.seated.remove(place)
                self.vacated.append(place)


def _first_step(number: int, place: int) -> SequenceStep | None:
    """Return what who has a place is in its first step; None: the Op has no `sequence`."""
    return SequenceStep(id=number, start=True, slot=place) if number else None
