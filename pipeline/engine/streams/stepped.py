"""SteppedRun: the requests that are under way at one worker of an Op with `batching: iterative`.

Plain code for any worker, as `engine.batch_run`.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from msgspec import field

from pipeline.engine.batch_run import CallWatch
from pipeline.engine.bound_op import BoundOp
from pipeline.engine.stage_errors import stage_error
from pipeline.engine.streams.flow import ENDED
from pipeline.engine.streams.run import SLICE_NS, UNWANTED, Entry, StreamRun, StreamWatch
from pipeline.engine.streams.step import Progress, StepRun
from pipeline.errors import PipelineError
from pipeline.routes import Answer

ENDS = (PipelineError, Answer)

_MANY = 4  # requests in one step, and
_QUICK_NS = 2_000_000  # a step of less: the loop looks by itself for what was made


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
    """Entries that one step has made.

    Attributes:
        step: what ran; None: no step did, requests left.
        may_wait: whether it is soon enough if they are told with those of the next steps: there
            are many of them, and a step takes no time.
    """

    step: StepRun | None = None
    may_wait: bool = False


class SteppedRun(StreamRun, eq=False):
    """Requests that join, go on step by step, and leave; each has a place meanwhile.

    A slice is as many steps as there is time for. Who joins while it runs is in its next step, who
    has no room for another part sits out. The end of each is told, also of those that nobody waits
    for: only then another one may have its place.

    Attributes:
        joining: places whose items have not begun; the loop adds to it, the worker takes.
        free: places that nobody has. The loop's.
        stepping: places of those in the step that runs; as the next two the worker's.
        seated: places of those that have begun, in this order.
        progress: of each place.
    """

    joining: deque[int] = field(default_factory=deque)
    free: list[int] = field(default_factory=list)
    stepping: list[int] = field(default_factory=list)
    seated: list[int] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)

    # On the loop --------------------------------------------------------------------------------

    def join(self, item: Any, allowed: int) -> int:
        """Have an item be in the next step; return its place."""
        if self.free:
            place = self.free.pop()
            self._items[place], self.allowed[place] = item, allowed
        else:
            place = len(self.items)
            self._items.append(item)
            self.allowed.append(allowed)
            self.made.append(0)
            self.ended.append(True)
        self.joining.append(place)
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

    def join_at(self, place: int, item: Any) -> None:
        """Have an item, whose place was chosen elsewhere, be in the next step."""
        while len(self.items) <= place:
            self._items.append(VACANT)
            self.allowed.append(0)
            self.made.append(0)
            self.ended.append(True)
        self._items[place] = item
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
        run.allowed, run.made, run.ended = list(self.allowed), list(self.made), list(self.ended)
        run.joining, run.free = deque(self.joining), list(self.free)
        run.progress = list(self.progress)
        run.seated = [place for place in self.seated if place not in places]
        for place in places:
            run.ended[place] = True
            if place < len(run.progress):  # it had begun
                run.progress[place] = Progress()
        return run

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
                self.stepping = self._ready(teller)
                if not self.stepping:
                    break
                self._step(op, teller, clock_ns)
                if clock_ns() - began_ns > SLICE_NS:
                    break
        except BaseException as error:  # ours, on data of any type: the worker must survive it
            failed = stage_error(error, op, "process", 0)
            self._say(teller, Made((place, failed) for place in self.seated))
            self.seated = []
        self.stepping = []
        op.context = None  # it has the states of those in the last step
        self.end_ns: int = clock_ns()
        self.busy_ns: int = self.end_ns - began_ns

    def _seat(self) -> None:
        """Have those begin who have joined."""
        while self.joining:
            place = self.joining.popleft()
            while len(self.progress) <= place:
                self.progress.append(Progress())
            self.progress[place] = Progress()
            self.made[place], self.ended[place] = 0, False
            self.seated.append(place)

    def _ready(self, watch: StreamWatch) -> list[int]:
        """Return the places of those that have room; who is over leaves."""
        ready, over = [], []
        for place in self.seated:
            allowed = self.allowed[place]
            if allowed == UNWANTED or self.items[place].is_over:
                over.append(place)
            elif self.made[place] < allowed:
                ready.append(place)
        if over:
            self._say(watch, Made((place, ENDED) for place in over))
        return ready

    def _step(self, op: BoundOp, watch: StreamWatch, clock_ns: Callable[[], int]) -> None:
        places = self.stepping
        step = StepRun(
            [self.items[place] for place in places],
            progress=[self.progress[place] for place in places],
        )
        step.run(op, watch, clock_ns)
        if self.is_superseded:
            return
        made = Made()
        made.step = step
        for place, outcome, is_last in zip(places, step.outcomes, step.ends, strict=True):
            if outcome is None:  # it was over before it began
                continue
            made.append((place, outcome))
            if is_last and outcome is not ENDED and not isinstance(outcome, ENDS):
                made.append((place, ENDED))
        self.start_ns: int = step.start_ns
        made.may_wait = len(places) >= _MANY and step.end_ns - step.start_ns < _QUICK_NS
        self._say(watch, made)

    def _say(self, watch: StreamWatch, made: Made) -> None:
        """Have the loop told of parts and ends; what cannot be sent ends a request, too."""
        ends = False
        for place, outcome in made:
            if outcome is ENDED or (type(outcome) is not dict and isinstance(outcome, ENDS)):
                self.ended[place] = ends = True
                self.progress[place] = Progress()
            else:
                self.made[place] += 1
        if ends:
            self.seated = [place for place in self.seated if not self.ended[place]]
        if made and not self.is_superseded:
            watch.yielded(self, made)
            unsent = [place for place in self.seated if self.ended[place]]
            for place in unsent:  # which may be another's in the next step
                self.progress[place] = Progress()
                self.seated.remove(place)

    def _room(self, group: Sequence[int]) -> int:
        (place,) = group
        if self.allowed[place] == UNWANTED or self.items[place].is_over:
            return sys.maxsize
        return self.allowed[place] - self.made[place]
