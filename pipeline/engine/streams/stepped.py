"""SteppedRun: the requests that are under way at one worker of an Op with `batching: iterative`.

Plain code for any worker, as `engine.batch_run`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, cast

from msgspec import field

from pipeline.data import SequenceStep
from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.run.stage_errors import ids_of, stage_error
from pipeline.engine.run.stages import CallWatch
from pipeline.engine.streams.combine import size_of
from pipeline.engine.streams.flow import ALL, ENDED, UNWANTED, Bundle
from pipeline.engine.streams.run import SLICE_NS, Entry, StreamRun, StreamWatch
from pipeline.engine.streams.step import Progress, StepRun
from pipeline.errors import PipelineError
from pipeline.routes import Answer

ENDS = (PipelineError, Answer)

_MANY = 4  # requests in one step, and
_QUICK_NS = 2_000_000  # a step of less: the loop looks by itself for what was made
_HOLD_NS = 10_000_000  # parts of quick steps are kept for at most so long, to go together
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

    @property
    def goes_on(self) -> bool:
        return False  # parts of a step go at once, and there may be no other

    def run(self, op: BoundOp, watch: CallWatch, clock_ns: Callable[[], int]) -> None:
        """Run a slice: until nobody has room, or others are to have a turn. Raises nothing."""
        began_ns = clock_ns()
        teller = cast(StreamWatch, watch)
        self.groups: list[list[int]] | None = []
        try:
            while not self.is_superseded:
                self._seat()
                self.stepping = self._ready()
                if not self.stepping:
                    break
                self._step(op, teller, clock_ns)
                if clock_ns() - began_ns > SLICE_NS:
                    break
            self._say(teller)
        except BaseException as error:  # ours, on data of any type: the worker must survive it
            failed = stage_error(error, op, "process", 0, *ids_of(self.items))
            for place in self.seated[:]:
                self._end(place, failed)
            self._say(teller)
        self.stepping = []
        self._forget(op)
        op.context = None  # it has the states of those in the last step
        self.end_ns: int = clock_ns()
        self.busy_ns: int = self.end_ns - began_ns

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
        for place in self.seated:
            allowed = self.allowed[place]
            if allowed == UNWANTED or self.items[place].is_over:
                over.append(place)
            elif self.made[place] < allowed:
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
