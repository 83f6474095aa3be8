"""Walk: a batch on its way through several Ops in one go, where each takes less than a hop.

Plain code for whoever runs the Ops: it knows neither threads nor the event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import msgspec

from pipeline.engine.batch_run import BatchRun
from pipeline.engine.channel import Receiver, first_error, own_dict
from pipeline.engine.walk_api import DirectLender, Host, Lender, Stepper
from pipeline.errors import PipelineError, note_op
from pipeline.routes import Routed

if TYPE_CHECKING:
    from pipeline.engine.channel import Links
    from pipeline.engine.dispatcher import OpDispatcher
    from pipeline.engine.edges import Edges, Opening
    from pipeline.engine.pace import Pace
    from pipeline.engine.span_recorder import SpanRecorder
    from pipeline.engine.walk_rows import WalkRows
    from pipeline.engine.worker_watch import WorkerWatch

_LONGEST_NS = 2_000_000  # no step begins when a walk has lasted so long
_LONGER_NS = 100_000  # ... and for each further request of a batch


def longest_ns(requests: int) -> int:
    """Return how long a walk of so many requests may have lasted when a step begins."""
    return _LONGEST_NS + (requests - 1) * _LONGER_NS


class Step(msgspec.Struct, frozen=True, eq=False):
    """One Op of a walk.

    Attributes:
        node: the Op's dispatcher.
        lender: its workers.
        size: requests in one run of it, at most.
        producers: those that it reads, by name; `is_join`: several.
        readers: the steps that read its answer, and whether they get a dict of their own.
        is_read_outside: whether anybody else reads it, or it is the request's answer.
        keeps_own: whether these get a dict of their own.
        outside: these others, see `Links.receivers`.
        others: the same, each by itself: so errors go.
    """

    node: OpDispatcher
    name: str
    lender: Lender
    size: int = 1
    producers: tuple[str, ...] = ()
    readers: tuple[tuple[int, bool], ...] = ()
    is_read_outside: bool = False
    keeps_own: bool = False
    outside: tuple[Receiver, ...] = ()
    others: tuple[Receiver, ...] = ()
    is_join: bool = False


class WalkPlan(msgspec.Struct, eq=False):
    """A way through several Ops. It does not change; `walks` counts those that are under way.

    Attributes:
        steps: in an order in which each comes after all that it reads; the first one leads.
        entries: the places of those that read what the first one reads, and are entered with it.
        entered: their dispatchers.
        nodes: the dispatchers of all steps.
        host: what runs its walks, if not the workers of the first step.
        own: makes the copy that a further reader of the same answer gets.
        edges: what unpacks requests before the first step, and packs answers behind the last.
        only_readers: for each step the place of the one step that reads its answer, where nobody
            else does; -1 where it is read outside alone; else 0.
        parts: for each step how many parts it waits for, where they come in its own order; else 0.
        last_read: for each step the place of the last one that it reads; -1: of none in the plan.
        direct: whether steps can be run in line: all that they read is in the plan, in their order,
            and their workers are lent directly, see DirectLender.
        ways: for each step then its place, its name, its only reader's place, and its idle workers
            and backlog. blank, led: an empty dict for each step, and one; those that come with a
            request. outlets: steps that are read outside.
        books: of each step, what counts its answers and how long they take.
        rows: takes down who went through all steps; None: nobody reads it.
        recorders: of the spans of each step.
        watches: of those workers that have a timeout.
    """

    steps: tuple[Step, ...]
    entries: tuple[int, ...] = ()
    entered: tuple[OpDispatcher, ...] = ()
    nodes: frozenset[OpDispatcher] = frozenset()
    walks: int = 0
    host: Host | None = None
    own: Callable[[Any], Any] = own_dict
    edges: Edges | None = None
    only_readers: tuple[int, ...] = ()
    parts: tuple[int, ...] = ()
    last_read: tuple[int, ...] = ()
    direct: bool = False
    ways: tuple[tuple[int, str, int, list[Any], deque[Any]], ...] = ()
    blank: tuple[dict[str, Any], ...] = ()
    led: tuple[int, ...] = ()
    outlets: tuple[Step, ...] = ()
    books: tuple[tuple[Links, Pace], ...] = ()
    rows: WalkRows | None = None
    recorders: tuple[SpanRecorder, ...] = ()
    watches: tuple[WorkerWatch, ...] = ()

    def __post_init__(self) -> None:
        self.only_readers = tuple(map(self._only_reader, self.steps))
        names = [step.name for step in self.steps]
        self.parts = tuple(
            len(step.producers)
            if not step.is_join or [*step.producers] == [n for n in names if n in step.producers]
            else 0
            for step in self.steps
        )
        places = {name: place for place, name in enumerate(names)}
        self.last_read = tuple(
            max((places.get(name, -1) for name in step.producers), default=-1)
            for step in self.steps
        )
        self.led = (0, *self.entries)
        self.outlets = tuple(step for step in self.steps if step.is_read_outside)
        self.blank = ({},) * (len(self.steps) + 1)
        self.direct = all(
            isinstance(step.lender, DirectLender)
            and (place in self.led or (self.parts[place] and {*step.producers} <= places.keys()))
            for place, step in enumerate(self.steps)
        )
        self.ways = tuple(map(self._way, range(len(self.steps)))) if self.direct else ()

    def _way(self, place: int) -> tuple[int, str, int, list[Any], deque[Any]]:
        step, lender = self.steps[place], cast(DirectLender, self.steps[place].lender)
        return place, step.name, self.only_readers[place], lender.idle, lender.backlog

    def _only_reader(self, step: Step) -> int:
        if step.is_read_outside:
            return 0 if step.readers else -1
        return step.readers[0][0] if len(step.readers) == 1 else 0


@dataclass(slots=True, eq=False)
class Walk:
    """A batch of the plan's first Op, and what comes of it behind that Op.

    Whoever runs it borrows an idle worker for each step, and leaves those for which there is none;
    when it takes long, it stops: the rest goes the usual way. While a step runs `held` has (place
    of the step, worker, run): who takes that out, see `take_out`, makes it a job of that worker
    like any other, and nothing more is done here.

    What came for the steps, and when, has a place for each item of the batch at each step: that
    of item i at step s of a batch of n is s * n + i.

    Attributes:
        lead: the batch, a BatchRun.
        began_ns: when it began; 0 before.
        failure: of ours, on data of any type: what is told to the requests.
        step_ns: when the step began that runs.
        finished: (place of the step, worker, run) of each run that came to its end.
        outs: (step, place of the item, answer) of the answers that somebody else reads.
        moved: the Op, and its run, that it counts as, if no longer as one of the first Op.
        came: what came for the steps and was not taken; None: nothing.
        ready_ns: when the last part of it came.
        has_failed: whether an error is among it, or was.
        walker: the worker whose thread runs it.
        opening: those of its requests that were not unpacked when it left.
    """

    plan: WalkPlan
    lead: Any
    failure: BaseException | None = None
    began_ns: int = 0
    step_ns: int = 0
    held: list[tuple[int, Any, Any]] = field(default_factory=list)
    finished: list[tuple[int, Any, Any]] = field(default_factory=list)
    outs: list[tuple[Step, int, Any]] = field(default_factory=list)
    moved: tuple[OpDispatcher, BatchRun] | None = None
    came: list[dict[str, Any] | None] = field(default_factory=list)
    ready_ns: list[int] = field(default_factory=list)
    has_failed: bool = False
    walker: Any = None
    opening: Opening | None = None

    @property
    def worker(self) -> int | None:
        """The number of the worker that has to run it, as of any job."""
        number: int | None = self.lead.worker
        return number

    @property
    def end_ns(self) -> int:
        """The end of its last step; 0: there was none."""
        return max((run.end_ns for _, _, run in self.finished[-1:]), default=0)

    def go(self, walker: Stepper, clock_ns: Callable[[], int]) -> bool:
        """Run all steps, or those that can be run in one go.

        Returns whether it is at its end; else the step that ran has become its worker's own.
        """
        self.walker, edges = walker, self.plan.edges
        try:
            if edges is None:
                return self._steps(walker, clock_ns)
            return (
                edges.unpack(self, clock_ns)
                and (not self.lead.items or self._steps(walker, clock_ns))
                and edges.pack(self, clock_ns)
            )
        except BaseException as error:  # whoever runs it must survive it
            self.failure = error
            return True

    def _steps(self, walker: Any, clock_ns: Callable[[], int]) -> bool:
        """Run the steps; return whether none of them was taken out."""
        plan, lead = self.plan, self.lead
        self._enter()
        self.began_ns = clock_ns()
        latest_ns = self.began_ns + longest_ns(len(lead.items))
        worker: Any = None
        place = 0
        try:
            for place, step in enumerate(plan.steps):
                if not (waiting := self._waiting(place, step)):
                    continue
                if not place:
                    worker = walker
                elif (worker := step.lender.borrow()) is None:
                    continue
                self.step_ns = now_ns = clock_ns()
                if now_ns > latest_ns and place:
                    step.lender.give_back(worker)
                    break
                if not self._run(place, waiting, worker, clock_ns):
                    return False
                if place:
                    step.lender.give_back(worker)
                worker = None
        except BaseException:
            if place and worker is not None:
                plan.steps[place].lender.give_back(worker)
            raise
        return True

    def _enter(self) -> None:
        """Note what the first steps read, before anybody can change the original."""
        plan, items = self.plan, self.lead.items
        count = len(items)
        self.ready_ns = [item.ready_ns for item in items] * len(plan.steps)
        came: list[dict[str, Any] | None] = [None] * len(self.ready_ns)
        self.came = came
        for index, item in enumerate(items):
            came[index] = item.inputs
            if item.entered and plan.entries:
                ((slot, part),) = item.inputs.items()
                own: Any = dict if type(part) is dict and plan.own is own_dict else plan.own
                for place in plan.entries:
                    came[place * count + index] = {slot: own(part)}

    def _waiting(self, place: int, step: Step) -> list[int]:
        """Return the items that a step can be run for; an error goes on as its answer."""
        came, count, found = self.came, len(self.lead.items), []
        if not place:
            return [*range(count)]
        for index in range(count):
            number = place * count + index
            inputs = came[number]
            if inputs is None or len(inputs) < len(step.producers):
                continue
            inputs = {producer: inputs[producer] for producer in step.producers}
            error = first_error(inputs) if self.has_failed else None
            came[number] = inputs if error is None else None
            if error is None:
                found.append(index)
            else:
                self._hand_on(step, index, error, self.ready_ns[number])
        return found

    def _run(
        self, place: int, waiting: Sequence[int], worker: Any, clock_ns: Callable[[], int]
    ) -> bool:
        """Run one Op for some items; return whether the worker is still lent to us."""
        step, lead = self.plan.steps[place], self.lead
        size = step.size if place else len(waiting)
        for begin in range(0, len(waiting), size):
            indexes, items = [], []
            for index in waiting[begin : begin + size]:
                number, item = place * len(lead.items) + index, lead.items[index]
                inputs, self.came[number] = self.came[number], None
                if place and inputs is not None and not item.is_cancelled():
                    indexes.append(index)
                    items.append(item.following(inputs, self.ready_ns[number]))
            if place and not items:
                continue
            run = BatchRun(items, is_step=True) if place else lead
            if not self.perform(place, worker, run, clock_ns):
                return False
            self.finished.append((place, worker, run))
            for index, outcome in zip(indexes or waiting, run.outcomes, strict=True):
                self._hand_on(step, index, outcome, run.end_ns)
            self.step_ns = run.end_ns
        return True

    def perform(self, place: int, worker: Any, run: Any, clock_ns: Callable[[], int]) -> bool:
        """Run a step, or one of the ends; return whether the worker is still lent to us."""
        held = self.held
        worker.began_ns, worker.job = self.step_ns, run  # before others may take it out
        held.append((place, worker, run))
        worker.perform(run, clock_ns)
        try:
            held.pop()
        except IndexError:
            return False
        return True

    def _hand_on(self, step: Step, index: int, answer: Any, ready_ns: int) -> None:
        """Pass on what came of an item at a step to those that read it."""
        if answer is None:  # it was over
            return
        plan, items, came = self.plan, self.lead.items, self.came
        is_error = is_routed = False
        if type(answer) is not dict:
            is_error, is_routed = isinstance(answer, PipelineError), isinstance(answer, Routed)
            note_op(answer, step.name)
        if is_routed or (
            step is plan.steps[0] and items[index].is_alone
        ):  # the loop knows where to
            self.outs.append((step, index, answer))
            return
        if step.is_read_outside:
            self.outs.append((step, index, plan.own(answer) if step.keeps_own else answer))
        for reader, is_own in step.readers:
            number, part = reader * len(items) + index, plan.own(answer) if is_own else answer
            self.ready_ns[number] = ready_ns
            inputs = came[number]
            if inputs is None:
                came[number] = {step.name: part}
            else:
                inputs[step.name] = part
        self.has_failed = self.has_failed or is_error

    def take_out(self) -> tuple[int, Any, BatchRun] | None:
        """Make the step that runs a batch of its worker's own; None if no step runs just now.

        Others than whoever runs the walk may ask: what both take, the one who is first has.
        """
        for entry in self.held[:]:
            place, worker, run = entry
            batch = self._as_batch(place, run)
            try:
                self.held.remove(entry)
            except ValueError:
                break
            return place, worker, batch
        return None

    def is_at(self, run: BatchRun) -> bool:
        """Return whether it is this batch that runs."""
        held = self.held[:1]  # at once: it may end in its thread meanwhile
        return bool(held) and held[0][2] is run

    def _as_batch(self, place: int, run: Any) -> Any:
        """Return the batch that a step becomes, if it is none, which is to be taken out."""
        return run

    def left(self) -> list[tuple[Step, int, dict[str, Any]]]:
        """Return what nothing was done with: (step, place of the item, what came for it)."""
        steps, count = self.plan.steps, len(self.lead.items)
        return [
            (steps[number // count], number % count, inputs)
            for number, inputs in enumerate(self.came)
            if inputs is not None
        ]
