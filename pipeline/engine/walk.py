"""Walk: a batch on its way through several Ops in one go, where each takes less than a hop.

Plain code for whoever runs the Ops: it knows neither threads nor the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import field

from pipeline.engine.batch_run import BatchRun
from pipeline.engine.channel import Item, Receiver, first_error, own_dict
from pipeline.engine.plain_step import PlainStep
from pipeline.engine.walk_api import Host, Lender, Stepper
from pipeline.errors import PipelineError
from pipeline.routes import Routed

if TYPE_CHECKING:
    from pipeline.engine.dispatcher import OpDispatcher
    from pipeline.engine.edges import Edges, Opening

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
    """

    steps: tuple[Step, ...]
    entries: tuple[int, ...] = ()
    entered: tuple[OpDispatcher, ...] = ()
    nodes: frozenset[OpDispatcher] = frozenset()
    walks: int = 0
    host: Host | None = None
    own: Callable[[Any], Any] = own_dict
    edges: Edges | None = None


class Walk(msgspec.Struct, eq=False):
    """A batch of the plan's first Op, and what comes of it behind that Op.

    Whoever runs it borrows an idle worker for each step, and stops where there is none, or when
    it takes long: the rest goes the usual way. While a step runs `held` has (place of the step,
    worker, run): who takes that out, see `take_out`, makes it a job of that worker like any other,
    and nothing more is done here.

    A batch of one item, as nearly all are, goes a way of its own: each step is at most one run.

    Attributes:
        lead: the batch.
        began_ns: when it began; 0 before.
        failure: of ours, on data of any type: what is told to the requests.
        step_ns: when the step began that runs.
        finished: (place of the step, worker, run) of each run that came to its end.
        outs: (step, place of the item, answer) of the answers that somebody else reads.
        moved: the Op, and its run, that it counts as, if no longer as one of the first Op.
        ready: for each step the items that it has not taken, with their places in the batch.
        parts: what came for a step that reads several, by (step, place of the item).
        came: of a lone item, what came for each step that it has not taken.
        walker: the worker whose thread runs it.
        opening: those of its requests that were not unpacked when it left.
    """

    plan: WalkPlan
    lead: BatchRun
    failure: BaseException | None = None
    began_ns: int = 0
    step_ns: int = 0
    held: list[tuple[int, Any, Any]] = field(default_factory=list)
    finished: list[tuple[int, Any, Any]] = field(default_factory=list)
    outs: list[tuple[Step, int, Any]] = field(default_factory=list)
    moved: tuple[OpDispatcher, BatchRun] | None = None
    ready: list[list[tuple[int, Item]]] = field(default_factory=list)
    parts: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    came: list[dict[str, Any] | None] = field(default_factory=list)
    walker: Any = None
    opening: Opening | None = None

    @property
    def worker(self) -> int | None:
        """The number of the worker that has to run it, as of any job."""
        return self.lead.worker

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

    def _steps(self, walker: Stepper, clock_ns: Callable[[], int]) -> bool:
        if len(self.lead.items) == 1:
            return self._go_alone(walker, clock_ns)
        return self._go(walker, clock_ns)

    def _go(self, walker: Stepper, clock_ns: Callable[[], int]) -> bool:
        plan, lead = self.plan, self.lead
        self.ready = [[] for _ in plan.steps]
        if plan.entries:
            self._enter()
        self.began_ns = self.step_ns = clock_ns()
        if not self.perform(0, walker, lead, clock_ns):
            return False
        self.finished.append((0, walker, lead))
        for index, outcome in enumerate(lead.outcomes):
            if outcome is not None:
                self._answer(0, index, outcome, lead.end_ns)
        for place, waiting in enumerate(self.ready):
            if not waiting:
                continue
            self.step_ns = now_ns = clock_ns()
            if now_ns - self.began_ns > longest_ns(len(lead.items)):
                break
            lender = plan.steps[place].lender
            worker = lender.borrow()
            if worker is None:
                break
            try:
                if not self._step(place, waiting, worker, clock_ns):
                    return False
            except BaseException:
                lender.give_back(worker)
                raise
            lender.give_back(worker)
        return True

    def _go_alone(self, walker: Stepper, clock_ns: Callable[[], int]) -> bool:
        """Do what `_go` does with one item, which comes to each step once at most."""
        plan, lead, held, finished = self.plan, self.lead, self.held, self.finished
        item = lead.items[0]
        data_id, log_id = item.data_id, item.log_id
        came = self.came = [None] * len(plan.steps)
        ready_ns = [item.ready_ns] * len(plan.steps)
        if plan.entries and item.entered:
            ((slot, part),) = item.inputs.items()
            for place in plan.entries:
                came[place] = {slot: plan.own(part)}
        self.began_ns = self.step_ns = clock_ns()
        if not self.perform(0, walker, lead, clock_ns):
            return False
        finished.append((0, walker, lead))
        answer = lead.outcomes[0]
        if item.is_alone and answer is not None:
            self.outs.append((plan.steps[0], 0, answer))
            return True
        has_failed = self._hand_on(plan.steps[0], answer, lead.end_ns, ready_ns)
        for place, step in enumerate(plan.steps):
            inputs = came[place]
            if inputs is None:
                continue
            if step.is_join:
                if len(inputs) < len(step.producers):
                    continue
                inputs = {producer: inputs[producer] for producer in step.producers}
            error = first_error(inputs) if has_failed else None
            if error is not None:
                came[place] = None
                self._hand_on(step, error, ready_ns[place], ready_ns)
                continue
            if item.is_cancelled():
                break
            self.step_ns = now_ns = clock_ns()
            if now_ns - self.began_ns > _LONGEST_NS:
                break
            lender = step.lender
            worker = lender.borrow()
            if worker is None:
                break
            came[place] = None
            try:
                if worker.op.is_plain:
                    run = PlainStep(inputs, data_id, log_id, ready_ns[place])
                    entry = (place, worker, run)
                    held.append(entry)
                    worker.perform(run, now_ns, clock_ns)
                    try:
                        held.pop()
                    except IndexError:
                        run.tell()
                        return False
                    finished.append(entry)
                    answer, end_ns = run.outcome, run.end_ns
                else:
                    batch = BatchRun([item.following(inputs, ready_ns[place])], is_step=True)
                    if not self.perform(place, worker, batch, clock_ns):
                        return False
                    finished.append((place, worker, batch))
                    answer, end_ns = batch.outcomes[0], batch.end_ns
                if self._hand_on(step, answer, end_ns, ready_ns):
                    has_failed = True
            except BaseException:
                lender.give_back(worker)
                raise
            lender.give_back(worker)
        return True

    def _hand_on(self, step: Step, answer: Any, end_ns: int, ready_ns: list[int]) -> bool:
        """Pass on what came of a lone item at a step; return whether it is an error."""
        if answer is None:  # it was over
            return False
        if type(answer) is not dict and isinstance(answer, Routed):  # the loop knows where to
            self.outs.append((step, 0, answer))
            return False
        if step.is_read_outside:
            self.outs.append((step, 0, self.plan.own(answer) if step.keeps_own else answer))
        for reader, is_own in step.readers:
            part = self.plan.own(answer) if is_own else answer
            ready_ns[reader] = end_ns
            inputs = self.came[reader]
            if inputs is None:
                self.came[reader] = {step.name: part}
            else:
                inputs[step.name] = part
        return type(answer) is not dict and isinstance(answer, PipelineError)

    def take_out(self) -> tuple[int, Any, BatchRun] | None:
        """Make the step that runs a batch of its worker's own; None if no step runs just now.

        Others than whoever runs the walk may ask: what both take, the one who is first has.
        """
        for entry in self.held[:]:
            place, worker, run = entry
            if isinstance(run, PlainStep):
                item = self.lead.items[0].following(run.inputs, run.ready_ns)
                run.apart = batch = BatchRun([item])
            else:
                batch = run
            try:
                self.held.remove(entry)
            except ValueError:
                break
            return place, worker, batch
        return None

    def _enter(self) -> None:
        """Give the further entries their copies, before anybody can change the original."""
        for place in self.plan.entries:
            for index, item in enumerate(self.lead.items):
                if item.entered:
                    ((slot, part),) = item.inputs.items()
                    self._take(place, index, slot, self.plan.own(part), item.ready_ns)

    def _step(
        self,
        place: int,
        waiting: list[tuple[int, Item]],
        worker: Stepper,
        clock_ns: Callable[[], int],
    ) -> bool:
        """Run one Op for all that waits for it; return whether the worker is still lent to us."""
        size = self.plan.steps[place].size
        while waiting:
            taken = waiting[:size]
            del waiting[:size]
            items = [entry for entry in taken if not entry[1].is_over]
            if not items:
                continue
            run = BatchRun([item for _, item in items], is_step=True)
            if not self.perform(place, worker, run, clock_ns):
                return False
            self.finished.append((place, worker, run))
            for (index, _), outcome in zip(items, run.outcomes, strict=True):
                if outcome is not None:
                    self._answer(place, index, outcome, run.end_ns)
            self.step_ns = run.end_ns
        return True

    def perform(self, place: int, worker: Any, run: Any, clock_ns: Callable[[], int]) -> bool:
        """Run a step, or one of the ends; return whether the worker is still lent to us."""
        held = self.held
        held.append((place, worker, run))
        worker.perform(run, self.step_ns, clock_ns)
        try:
            held.pop()
        except IndexError:
            return False
        return True

    def _answer(self, place: int, index: int, answer: Any, ready_ns: int) -> None:
        """Pass on the answer of a step to those that read it."""
        step = self.plan.steps[place]
        is_routed = isinstance(answer, Routed)  # the loop knows where to
        if is_routed or (place == 0 and self.lead.items[index].is_alone):
            self.outs.append((step, index, answer))
            return
        if step.is_read_outside:
            out = self.plan.own(answer) if step.keeps_own else answer
            self.outs.append((step, index, out))
        for reader, is_own in step.readers:
            part = self.plan.own(answer) if is_own else answer
            self._take(reader, index, step.name, part, ready_ns)

    def _take(self, place: int, index: int, slot: str, part: Any, ready_ns: int) -> None:
        """Take what a step reads; an error takes the place of its answer."""
        producers = self.plan.steps[place].producers
        if len(producers) == 1:
            inputs = {slot: part}
            error: Any = part if isinstance(part, PipelineError) else None
        else:
            parts = self.parts.setdefault((place, index), {})
            parts[slot] = part
            if len(parts) < len(producers):
                return
            del self.parts[place, index]
            inputs = {producer: parts[producer] for producer in producers}
            error = first_error(inputs)
        if error is not None:
            self._answer(place, index, error, ready_ns)
            return
        item = self.lead.items[index].following(inputs, ready_ns)
        self.ready[place].append((index, item))

    def left(self) -> list[tuple[Step, int, dict[str, Any]]]:
        """Return what nothing was done with: (step, place of the item, what came for it)."""
        steps = self.plan.steps
        waiting = [
            (steps[place], index, item.inputs)
            for place, entries in enumerate(self.ready)
            for index, item in entries
        ]
        waiting += [
            (steps[place], 0, inputs)
            for place, inputs in enumerate(self.came)
            if inputs is not None
        ]
        return waiting + [
            (steps[place], index, parts) for (place, index), parts in self.parts.items()
        ]
