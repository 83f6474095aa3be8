"""Trip: one request on its way through several quick Ops, which one thread runs in a row.

Plain code: it knows neither threads nor the event loop.
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

_LONGEST_NS = 2_000_000  # no step begins after a trip has run this long


class Step(msgspec.Struct, frozen=True, eq=False):
    """One Op of a trip; or a user's RequestOp before them, or ResponseOp after them.

    Attributes:
        node: the Op's dispatcher, or the packer or unpacker.
        lender: its workers.
        producers: the names of the Ops that it reads, in the Op's order.
        readers: the steps that read its answer, and whether each gets a copy of the dict.
        is_read_outside: whether Ops outside the trip read it, or it is the request's answer.
        keeps_own: whether these get a copy of the dict.
        outside: the Ops outside, see `Links.receivers`.
        only_reader: the index of the only step that reads its answer, if no Op outside does; -1 if
            it
            is only read outside; otherwise 0.
        last_read: the index of the last step that it reads; -1: it reads none.
        is_plain: whether its Op is plain, see OpFacts.
        make: makes the job for its worker, if the step runs alone.
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
    """A path through several Ops. It does not change; `trips` counts the trips that run.

    Attributes:
        steps: in an order in which each comes after the steps that it reads; the first one leads.
        leader: the dispatcher of the first step; None: a RequestOp, which counts no requests.
        ops: the indexes of the steps that are Ops.
        packs: whether a pack follows the Ops.
        ends: number of marks up to the last Op.
        all_marks: number of marks of all steps.
        entries: the indexes of the steps that read the same as the first and are entered with it.
        entered: their dispatchers.
        short: how many of the first steps are Ops without `process`: trips of a busy server end
            there.
        nodes: of all steps.
        fast_steps: for each step its index, name, only reader, whether it is plain, its idle
            workers
            and backlog.
        blank: the inputs of each step, and the answers for Ops outside, before anything has come. A
            step that reads several has their names with None, in the Op's own order.
        outlets: steps that are read outside.
        books: for each step the objects that count its answers and their times.
        recorders: of the spans of each Op.
        rows: records requests that took all steps; None: there is no journal.
        is_whole: whether the steps are all Ops of the graph.
        watches: of the steps' workers that have a timeout.
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
    fast_steps: tuple[tuple[int, str, int, bool, list[Any], deque[Any]], ...] = ()
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
        self.fast_steps = tuple(
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

    The thread that runs it borrows an idle worker for each step. It ends at the first step without
    an idle worker, after an answer that is not a dict, or when it has run for long; the remaining
    steps run Op by Op. `held` has the worker of the running step: a thread that takes the step out,
    see `take_out`, makes it an ordinary job of that worker.

    Attributes:
        lead: the job of the plan's first step, as it would be without a trip.
        until: how many steps it may take.
        worker: None: any worker may begin it.
        walker: the worker whose thread runs it.
        began_ns: when it began; 0 before.
        step_ns: when the running step began.
        step_inputs: for each step its inputs; last the answers that are read outside, by Op.
        marks: the fields of each step that was done; see OF_STEP. The next step began at its end.
        runs: by index, (worker, run) of steps with `process` that marks cannot describe.
        batch: the index of the last step with `process`, and its run.
        answer: of the last step, if it is not a dict.
        failure: a defect of this library on some data; the client gets its text.
        is_void: whether its request had ended before it began, and nothing was done.
        apart: the job that the running step has become; see `take_out`.
    """

    plan: TripPlan
    lead: Any
    until: int
    item: Item
    worker: None = None
    walker: Any = None
    began_ns: int = 0
    step_ns: int = 0
    step_inputs: list[dict[str, Any]] = field(default_factory=list)
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
        """Run the steps without a pause, as many as possible.

        Returns whether the trip has ended; otherwise the running step has become its worker's own
        job.
        """
        self.walker = walker
        try:
            return self._steps(walker, clock_ns)
        except BaseException as error:  # the thread must survive it
            self.failure = error
            return True

    def _enter(self) -> None:
        """Give each first step its inputs, in a dict of its own."""
        plan, inputs = self.plan, self.item.inputs
        step_inputs = self.step_inputs = [*map(dict.copy, plan.blank)]
        step_inputs[0] = inputs
        if plan.entries:
            ((slot, part),) = inputs.items()
            for place in plan.entries:
                step_inputs[place] = {slot: own_dict(part)}

    def _steps(self, walker: Any, clock_ns: Callable[[], int]) -> bool:
        """Run steps with as few bytecodes as possible; return whether none was taken out."""
        self._enter()
        plan, held, marks, item = self.plan, self.held, self.marks, self.item
        inputs = self.step_inputs
        request, generation = item.request, item.generation
        data_id, log_id = item.data_id, item.log_id
        self.began_ns = self.step_ns = now_ns = clock_ns()
        if generation != request.generation:
            self.is_void = True
            return True
        latest_ns, worker = now_ns + _LONGEST_NS, walker
        for place, name, reader, is_plain, idle, backlog in plan.fast_steps[: self.until]:
            if place:
                if backlog or now_ns > latest_ns or generation != request.generation:
                    return True
                try:
                    worker = idle.pop()
                except IndexError:
                    return True
            if is_plain:
                held.append(worker)  # from here on another thread may take the step out
                answer, middle_ns = worker.visit(inputs[place], data_id, log_id, clock_ns, self)
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
                inputs[reader][name] = answer
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
        """Pass on the answer of a step that several steps or Ops read."""
        if step.is_read_outside:
            self.step_inputs[-1][step.name] = dict(answer) if step.keeps_own else answer
        for reader, is_own in step.readers:
            self.step_inputs[reader][step.name] = dict(answer) if is_own else answer

    def ready_ns(self, place: int) -> int:
        """Return when all inputs of a step were there."""
        last = self.plan.steps[place].last_read
        return self.item.ready_ns if last < 0 else self.marks[OF_STEP * last + OF_STEP - 1]

    def take_out(self) -> tuple[int, Any, Any] | None:
        """Make the running step a batch of its worker's own; return None if no step runs now.

        Called in any thread: of it and the thread that runs the trip, the first gets the step.
        """
        for worker in self.held[:1]:
            place = self.done
            if place == len(self.plan.steps):
                break
            at, batch = self.batch or (-1, None)
            run = batch if batch is not None and at == place else self._as_batch(place)
            # set before the worker is taken, because the worker's thread then writes the results
            # there
            self.apart = run
            try:
                self.held.remove(worker)
            except ValueError:
                break
            self.step_inputs[place] = {}
            return place, worker, run
        return None

    def _as_batch(self, place: int) -> Any:
        """Return the job of a step for its worker alone: for an Op a batch of one."""
        if not place and type(self.lead) is not Item:
            return self.lead
        item = self.item.following(self.step_inputs[place], self.ready_ns(place))
        return self.plan.steps[place].make([item])

    # For the loop, when no thread runs the trip any more ------------------------------------------

    def remaining(self) -> list[tuple[TripStop, dict[str, Any]]]:
        """Return the inputs of steps that were not taken."""
        left = []
        for step, inputs in list(zip(self.plan.steps, self.step_inputs, strict=False))[self.done :]:
            parts = {slot: part for slot, part in inputs.items() if part is not None}
            if parts:
                left.append((step.node, parts))
        return left

    def times(self, place: int) -> tuple[int, ...]:
        """Return when the stages of a finished step began, and when it ended."""
        at = OF_STEP * place
        start_ns = self.marks[at - 1] if place else self.began_ns
        return (start_ns, *self.marks[at + 1 : at + OF_STEP])


def _blank(step: Step) -> dict[str, Any]:
    return dict.fromkeys(step.producers) if len(step.producers) > 1 else {}
