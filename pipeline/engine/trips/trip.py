"""Trip: one request on its way through several quick Ops, which one thread runs in line.

Plain code for whoever runs the Ops: it knows neither threads nor the event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.engine.journal.spans import OF_STEP, SpanRecorder, TripRows
from pipeline.engine.op.channel import Item, own_dict
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.worker_api import Lender

if TYPE_CHECKING:
    from pipeline.engine.op.worker_watch import WorkerWatch
    from pipeline.engine.ports import Links, OpNode, Receiver, TripStop
    from pipeline.engine.trips.pace import Pace

_LONGEST_NS = 2_000_000  # no step begins when a trip has lasted so long


class Step(msgspec.Struct, frozen=True, eq=False):
    """One Op of a trip; or a user's RequestOp before them, or ResponseOp behind them.

    Attributes:
        node: the Op's dispatcher, or who unpacks or packs.
        lender: its workers.
        producers: those that it reads, by name, in the Op's order.
        readers: the steps that read its answer, and whether they get a dict of their own.
        is_read_outside: whether anybody else reads it, or it is the request's answer.
        keeps_own: whether these get a dict of their own.
        outside: these others, see `Links.receivers`.
        only_reader: the place of the one step that reads its answer, where nobody else does; -1
            where it is read outside alone; else 0.
        last_read: the place of the last step that it reads; -1: of none in the plan.
        is_plain: whether its Op is, see OpFacts.
        make: makes the job that it is for its worker alone.
    """

    node: TripStop
    name: str
    lender: Lender
    producers: tuple[str, ...]
    readers: tuple[tuple[int, bool], ...] = ()
    is_read_outside: bool = False
    keeps_own: bool = False
    outside: tuple[Receiver, ...] = ()
    only_reader: int = 0
    last_read: int = -1
    is_plain: bool = True
    make: Callable[[list[Item]], Any] = BatchRun


class TripPlan(msgspec.Struct, eq=False):
    """A way through several Ops. It does not change; `trips` counts those under way.

    Attributes:
        steps: in an order in which each comes after all that it reads; the first one leads.
        leader: its dispatcher; None: a RequestOp, at which nobody counts requests.
        ops: the places of the steps that are Ops.
        packs: whether one comes behind them.
        ends: marks of those and of what comes before them.
        all_marks: marks of all steps.
        entries: the places of those that read what the first one reads, and are entered with it.
        entered: their dispatchers.
        short: how many of the first steps are Ops without `process`: a busy server's trips end
            there.
        nodes: of all steps.
        ways: of each step its place, name, only reader, whether it is plain, idle workers, backlog.
        blank: what came for each step, and for what is read outside, while nothing has. Who reads
            several has their names in it, with None, so that they come in the Op's own order.
        outlets: steps that are read outside.
        books: of each step, what counts its answers and how long they take.
        recorders: of the spans of each Op.
        rows: takes down requests that went through all steps; None: nobody reads it.
        is_whole: whether the steps are all Ops of the graph.
        watches: those of the steps' workers that have a timeout.
    """

    steps: tuple[Step, ...]
    leader: OpNode | None = None
    ops: range = range(0)
    entries: tuple[int, ...] = ()
    entered: tuple[OpNode, ...] = ()
    short: int = 0
    packs: bool = False
    ends: int = 0
    all_marks: int = 0
    nodes: frozenset[TripStop] = frozenset()
    trips: int = 0
    ways: tuple[tuple[int, str, int, bool, list[Any], deque[Any]], ...] = ()
    blank: tuple[dict[str, Any], ...] = ()
    outlets: tuple[Step, ...] = ()
    books: tuple[tuple[Links, Pace], ...] = ()
    recorders: tuple[SpanRecorder, ...] = ()
    rows: TripRows | None = None
    is_whole: bool = False
    watches: tuple[WorkerWatch, ...] = ()

    def __post_init__(self) -> None:
        self.all_marks = OF_STEP * len(self.steps)
        self.ends = OF_STEP * self.ops.stop or self.all_marks
        self.nodes = frozenset(step.node for step in self.steps)
        self.ways = tuple(
            (
                *(place, step.name, step.only_reader, step.is_plain),
                *(step.lender.idle, step.lender.backlog),
            )
            for place, step in enumerate(self.steps)
        )
        self.outlets = tuple(step for step in self.steps if step.is_read_outside)
        self.blank = (*map(_blank, self.steps), {})


@dataclass(slots=True, eq=False)
class Trip:
    """One request on its way through the steps of a plan.

    Whoever runs it borrows an idle worker for each step. It ends at the first step for which none
    is idle, behind an answer that is no dict, or when it has taken long; what is left of it goes
    Op by Op. `held` has the worker of the step that runs: who takes that out, see `take_out`,
    makes the step a job of that worker like any other.

    Attributes:
        lead: the job of the plan's first step, as it would be without a trip.
        until: how many steps it may take.
        worker: None: any worker will do to begin it.
        walker: the worker whose thread runs it.
        began_ns: when it began; 0 before.
        step_ns: when the step began that runs.
        came: for each step what came for it, and last what is read outside, by the Op's name.
        marks: of each step that was done; see OF_STEP. The next one began at its end.
        runs: by place, (worker, run) of steps with `process` of which marks do not tell all.
        batch: the place of the last step with `process`, and its run.
        answer: of the last step, where that is no dict.
        failure: of ours, on data of any type: what its caller is told.
        is_void: whether its request was over before it began, and nothing was done.
        apart: the job that the step has become; see `take_out`. What follows is for that one.
    """

    plan: TripPlan
    lead: Any
    until: int
    item: Item
    worker: None = None
    walker: Any = None
    began_ns: int = 0
    step_ns: int = 0
    came: list[dict[str, Any]] = field(default_factory=list)
    held: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    runs: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    batch: tuple[int, Any] | None = None
    answer: Any = None
    failure: BaseException | None = None
    is_void: bool = False
    apart: Any = None
    outcome: Any = field(init=False)
    start_ns: int = field(init=False)
    preprocess_end_ns: int = field(init=False)
    process_end_ns: int = field(init=False)
    end_ns: int = field(init=False)

    @property
    def done(self) -> int:
        """Return how many steps were done."""
        return len(self.marks) // OF_STEP

    def go(self, walker: Any, clock_ns: Callable[[], int]) -> bool:
        """Run the steps, as many as can be run in one go.

        Returns whether it is at its end; else the step that ran has become its worker's own.
        """
        self.walker = walker
        try:
            return self._steps(walker, clock_ns)
        except BaseException as error:  # whoever runs it must survive it
            self.failure = error
            return True

    def _enter(self) -> None:
        """Have each first step get what it reads, in a dict of its own."""
        plan, inputs = self.plan, self.item.inputs
        came = self.came = [*map(dict.copy, plan.blank)]
        came[0] = inputs
        if plan.entries:
            ((slot, part),) = inputs.items()
            for place in plan.entries:
                came[place] = {slot: own_dict(part)}

    def _steps(self, walker: Any, clock_ns: Callable[[], int]) -> bool:
        """Run steps with as few bytecodes as that takes; return whether none was taken out."""
        self._enter()
        plan, held, marks, came, item = self.plan, self.held, self.marks, self.came, self.item
        request, generation = item.request, item.generation
        data_id, log_id = item.data_id, item.log_id
        self.began_ns = self.step_ns = now_ns = clock_ns()
        if generation != request.generation:
            self.is_void = True
            return True
        latest_ns, worker = now_ns + _LONGEST_NS, walker
        for place, name, reader, is_plain, idle, backlog in plan.ways[: self.until]:
            if place:
                if backlog or now_ns > latest_ns or generation != request.generation:
                    return True
                try:
                    worker = idle.pop()
                except IndexError:
                    return True
            if is_plain:
                held.append(worker)  # from now on others may take the step out
                answer, middle_ns = worker.visit(came[place], data_id, log_id, clock_ns, self)
                later_ns = middle_ns
                end_ns = clock_ns()
            else:
                batch = self._as_batch(place)
                self.batch = place, batch
                held.append(worker)
                answer, middle_ns, later_ns, end_ns = self._whole(batch, worker, clock_ns)
                log_id = item.log_id
            try:
                held.pop()
            except IndexError:
                if is_plain:
                    self.outcome, self.start_ns, self.end_ns = answer, now_ns, end_ns
                    self.preprocess_end_ns = self.process_end_ns = middle_ns
                    assert self.apart is not None, "it was taken out"
                    self.apart.take(self)
                return False
            marks += (worker.number, middle_ns, later_ns, end_ns)
            self.step_ns = now_ns = end_ns
            if place:
                idle.append(worker)
                if backlog or worker.addressed or worker.is_leaving:
                    plan.steps[place].lender.employ(worker)
            if type(answer) is not dict:
                self.answer = answer
                return True
            if reader:
                came[reader][name] = answer
            else:
                self._hand_on(plan.steps[place], answer)
        return True

    def _whole(
        self, run: Any, worker: Any, clock_ns: Callable[[], int]
    ) -> tuple[Any, int, int, int]:
        """Run a step that is not plain; return its answer and three times."""
        worker.perform(run, clock_ns)
        answer = run.outcomes[0] if run.outcomes else None
        if self.held and (type(answer) is not dict or run.rows or run.executions):
            self.runs[self.done] = worker, run
        return answer, run.preprocess_end_ns, run.process_end_ns, run.end_ns

    def _hand_on(self, step: Step, answer: dict[str, Any]) -> None:
        """Pass on the answer of a step that several read."""
        if step.is_read_outside:
            self.came[-1][step.name] = dict(answer) if step.keeps_own else answer
        for reader, is_own in step.readers:
            self.came[reader][step.name] = dict(answer) if is_own else answer

    def ready_ns(self, place: int) -> int:
        """Return when all was there that a step reads."""
        last = self.plan.steps[place].last_read
        return self.item.ready_ns if last < 0 else self.marks[OF_STEP * last + OF_STEP - 1]

    def take_out(self) -> tuple[int, Any, Any] | None:
        """Make the step that runs a batch of its worker's own; None if no step runs just now.

        Called in any thread: of it and the thread that runs the trip, the first has the step.
        """
        for worker in self.held[:1]:
            place = self.done
            if place == len(self.plan.steps):
                break
            at, batch = self.batch or (-1, None)
            run = batch if batch is not None and at == place else self._as_batch(place)
            self.apart = run  # before the worker is taken, whose thread then tells it what it did
            try:
                self.held.remove(worker)
            except ValueError:
                break
            self.came[place] = {}
            return place, worker, run
        return None

    def _as_batch(self, place: int) -> Any:
        """Return the job that a step is for its worker alone: of an Op a batch of one."""
        if not place and type(self.lead) is not Item:
            return self.lead
        item = self.item.following(self.came[place], self.ready_ns(place))
        return self.plan.steps[place].make([item])

    # What the loop asks, when nobody runs it any more ---------------------------------------------

    def left(self) -> list[tuple[TripStop, dict[str, Any]]]:
        """Return what came for steps that were not taken."""
        left = []
        for step, came in list(zip(self.plan.steps, self.came, strict=False))[self.done :]:
            parts = {slot: part for slot, part in came.items() if part is not None}
            if parts:
                left.append((step.node, parts))
        return left

    def times(self, place: int) -> tuple[int, ...]:
        """Return when the stages of a step began that was done, and when it ended."""
        at = OF_STEP * place
        start_ns = self.marks[at - 1] if place else self.began_ns
        return (start_ns, *self.marks[at + 1 : at + OF_STEP])


def _blank(step: Step) -> dict[str, Any]:
    return dict.fromkeys(step.producers) if len(step.producers) > 1 else {}
