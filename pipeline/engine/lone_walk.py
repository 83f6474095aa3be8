"""LoneWalk: one request on its way through several Ops: what nearly all walks are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pipeline.engine.batch_run import BatchRun
from pipeline.engine.channel import Item
from pipeline.engine.lone_run import LoneRun
from pipeline.engine.plain_step import PlainStep, PlainTimes
from pipeline.engine.stage_errors import stage_error
from pipeline.engine.walk import Walk, WalkPlan, longest_ns

_LONE = [0]  # the items of a batch of one
_OF_STEP = 3  # marks
_ANSWERED: dict[str, Any] = {}  # stands for an answer of which nothing but its kind matters


@dataclass(slots=True, eq=False)
class LoneWalk(Walk):
    """A walk of one request. At each Op that `is_plain` it is the run itself, as a PlainStep is.

    Attributes:
        inputs: what the Op reads at which it is.
        start_ns: when that began.
        preprocess_end_ns: of that Op, or the one before.
        end_ns: when the last step was at its end.
        outcome: of that step; see PlainStep.
        apart: the batch that the step has become, see `take_out`.
        marks: of each step, from the first on, that went as nearly all do: the number of its
            worker, and when its preprocess and it ended; the next one began then.
        plain: of each other step that was a PlainStep, its outcome and times; see `tell_apart`.
        is_void: whether its request was over before it began, and nothing was done.
        is_through: whether it went as nearly all do: each step is a PlainStep that answered.
        is_in_line: whether it runs, or ran to its end, as `_in_line` says.
    """

    lead: LoneRun | BatchRun
    data_id: int = 0
    log_id: int = 0
    inputs: Any = None
    start_ns: int = 0
    preprocess_end_ns: int = 0
    end_ns: int = 0
    outcome: Any = None
    apart: BatchRun | None = None
    marks: list[int] = field(default_factory=list)
    plain: list[PlainTimes] = field(default_factory=list)
    is_void: bool = False
    is_through: bool = False
    is_in_line: bool = False

    run: ClassVar[Callable[..., None]] = PlainStep.run  # it has all that is asked for there

    def _steps(self, walker: Any, clock_ns: Callable[[], int]) -> bool:
        plan, held, plain = self.plan, self.held, self.plain
        item = self.lead.items[0]
        self.data_id, self.log_id = item.data_id, item.log_id
        self._enter()
        came, ready_ns, only_readers, parts = (
            self.came,
            self.ready_ns,
            plan.only_readers,
            plan.parts,
        )
        now_ns = clock_ns()
        self.began_ns: int = now_ns
        self.step_ns: int = now_ns
        latest_ns = now_ns + longest_ns(1)
        if (is_over := item.is_over) and isinstance(self.lead, LoneRun):
            self.is_void = True
            return True
        if plan.direct and not is_over and (self.lead.items[0].entered or not plan.entries):
            try:
                if not self._in_line(walker, clock_ns, latest_ns):
                    return False
            except BaseException:
                self.tell_apart()
                raise
            if len(self.marks) == _OF_STEP * len(plan.steps) and plan.edges is None:
                self._take_outside()
                self.is_through = True
                return True
            self.tell_apart()
            now_ns = self.step_ns
        worker, place = walker, 0
        try:
            for place, step in enumerate(plan.steps):
                inputs = came[place]
                if inputs is None:
                    continue
                if place:
                    if self.has_failed or not parts[place]:
                        if not self._waiting(place, step):
                            continue
                        inputs = came[place]
                    elif len(inputs) < parts[place]:
                        continue
                    if now_ns > latest_ns or item.is_cancelled():
                        break
                    worker = step.lender.borrow()
                    if worker is None:
                        continue
                if worker.op.is_plain and not is_over:
                    came[place] = self.outcome = None
                    self.inputs, self.start_ns = inputs, now_ns
                    worker.began_ns, worker.job = now_ns, self  # before others may take it out
                    held.append((place, worker, self))
                    worker.perform(self, clock_ns)
                    try:
                        held.pop()
                    except IndexError:
                        PlainStep.tell(self)  # type: ignore[arg-type]  # as with `run`
                        return False
                    answer, end_ns = self.outcome, self.end_ns
                    middle_ns = self.preprocess_end_ns
                    plain.append(
                        (place, worker.number, answer, ready_ns[place], now_ns, middle_ns, end_ns)
                    )
                    self.step_ns = now_ns = end_ns
                    reader = only_readers[place]
                    if type(answer) is not dict or not reader:
                        self._hand_on(step, 0, answer, end_ns)
                    elif reader < 0:
                        self.outs.append((step, 0, answer))
                    else:
                        ready_ns[reader] = end_ns
                        if (others := came[reader]) is None:
                            came[reader] = {step.name: answer}
                        else:
                            others[step.name] = answer
                elif not self._run(place, _LONE, worker, clock_ns):
                    return False
                else:
                    self.end_ns = now_ns = self.step_ns
                if place:
                    step.lender.give_back(worker)
                worker = None
        except BaseException:
            if place and worker is not None:
                plan.steps[place].lender.give_back(worker)
            raise
        is_whole = len(plain) == len(came) and not self.has_failed
        self.is_through = is_whole and plan.edges is None
        return True

    def _in_line(self, walker: Any, clock_ns: Callable[[], int], latest_ns: int) -> bool:
        """Run steps while each goes as nearly all do, with as few bytecodes as that takes.

        `held` has the worker alone meanwhile, and `came` a dict for each step, and one more for
        what is read outside. Returns whether no step was taken out.
        """
        plan, held, marks = self.plan, self.held, self.marks
        item: Item = self.lead if isinstance(self.lead, LoneRun) else self.lead.items[0]
        request, generation, data_id, log_id = (
            item.request,
            item.generation,
            item.data_id,
            item.log_id,
        )
        came: list[Any] = self.came
        blank: list[Any] = [*map(dict.copy, plan.blank)]
        for place in plan.led:
            blank[place] = came[place]
        came[:], self.is_in_line = blank, True
        worker, now_ns = walker, self.began_ns
        for place, name, reader, idle, backlog in plan.ways:
            if place:
                if backlog or now_ns > latest_ns or generation != request.generation:
                    return True
                try:
                    worker = idle.pop()
                except IndexError:
                    return True
            op, enter, inputs = worker.op, worker.enter, came[place]
            if not op.is_plain:
                if place:
                    plan.steps[place].lender.give_back(worker)
                return True
            middle_ns, answer = 0, None
            held.append(worker)
            try:
                data = returned = enter(op.users_preprocess, inputs, data_id, log_id)
                if type(returned) is tuple and len(returned) == 4:
                    data, skip, code, _ = returned
                    if code is not None or type(skip) is not bool:
                        data = None
                if type(data) is dict:
                    middle_ns = clock_ns()
                    if held or self._is_ours():
                        answer = enter(op.users_postprocess, inputs, data, data_id, log_id)
                        if type(answer) is tuple and len(answer) == 3 and answer[1] is None:
                            answer = answer[0]
                        if type(answer) is not dict:
                            answer = enter(op.answered, answer)
                else:
                    data, _ = enter(op.prepared, returned)
                    middle_ns = clock_ns()
                    if held or self._is_ours():
                        answer = enter(op.postprocess, inputs, data, data_id, log_id)
                end_ns = clock_ns()
            except BaseException as error:  # user code; a worker survives even SystemExit
                stage = "postprocess" if middle_ns else "preprocess"
                answer = enter(stage_error, error, op, stage, log_id)
                end_ns = clock_ns()
                middle_ns = middle_ns or end_ns
            try:
                held.pop()
            except IndexError:
                self.outcome, self.start_ns, self.end_ns = answer, now_ns, end_ns
                self.preprocess_end_ns = middle_ns
                PlainStep.tell(self)  # type: ignore[arg-type]  # as with `run`
                return False
            marks += (worker.number, middle_ns, end_ns)
            self.step_ns = now_ns = end_ns
            if place:
                idle.append(worker)
                if backlog or worker.addressed:
                    plan.steps[place].lender.employ(worker)  # type: ignore[attr-defined]
            if type(answer) is not dict:
                self.tell_apart(answer)
                self._hand_on(plan.steps[place], 0, answer, end_ns)
                return True
            if reader:
                came[reader][name] = answer
            else:
                self._hand_on(plan.steps[place], 0, answer, end_ns)
        return True

    def _is_ours(self) -> bool:
        """Return whether the step that was taken out is still to be ended here."""
        return self.apart is None or not self.apart.is_superseded

    @property
    def last_ns(self) -> int:
        """Return when its last step was at its end."""
        return self.marks[-1] if self.marks else self.end_ns

    def _take_outside(self) -> None:
        """Have `outs` say what is read outside."""
        if outside := self.came.pop():
            for step in self.plan.outlets:
                if step.name in outside:
                    self.outs.append((step, 0, outside[step.name]))

    def tell_apart(self, last: Any = _ANSWERED) -> None:
        """Have `plain`, not `marks`, say what was done; the last step gave the answer `last`."""
        marks, ready_ns, start_ns = self.marks, self.ready_ns, self.began_ns
        done = len(marks) // _OF_STEP
        ends_ns = marks[2::_OF_STEP]
        if self.is_in_line:
            self.is_in_line = False
            if len(self.came) > len(self.plan.steps):
                self._take_outside()
            self.came[:done] = [None] * done
            self.came[done:] = [inputs or None for inputs in self.came[done:]]
        for place, read in enumerate(self.plan.last_read):
            if 0 <= read < done:
                ready_ns[place] = ends_ns[read]
        for place, end_ns in enumerate(ends_ns):
            answer = last if place == done - 1 else _ANSWERED
            number, middle_ns = marks[_OF_STEP * place : _OF_STEP * place + 2]
            self.plain.append((place, number, answer, ready_ns[place], start_ns, middle_ns, end_ns))
            self.end_ns = start_ns = end_ns
        marks.clear()

    def take_out(self) -> tuple[int, Any, BatchRun] | None:
        """See Walk."""
        if not self.is_in_line:
            return Walk.take_out(self)
        for worker in self.held[:1]:
            place = len(self.marks) // _OF_STEP
            if place == len(self.plan.steps):
                break
            self.inputs = self.came[place]
            batch = self._as_batch(place, self)
            try:
                self.held.remove(worker)
            except ValueError:
                break
            self.tell_apart()
            self.came[place] = None
            return place, worker, batch
        return None

    def is_at(self, run: BatchRun) -> bool:
        """See Walk."""
        return not self.is_in_line and Walk.is_at(self, run)

    def _as_batch(self, place: int, run: Any) -> Any:
        if run is self:
            lead, item = self.lead, self.lead.items[0]
            is_own = place == 0 and isinstance(lead, BatchRun)
            last = self.plan.last_read[place]
            is_marked = 0 <= last < len(self.marks) // _OF_STEP
            ready_ns = self.marks[_OF_STEP * last + 2] if is_marked else self.ready_ns[place]
            again = item.following(self.inputs, ready_ns)
            run = self.apart = lead if is_own else BatchRun([again])
        return run


def walk_of(plan: WalkPlan, lead: LoneRun | BatchRun) -> Walk:
    """Return the walk that begins with `lead`."""
    items = lead.items
    if len(items) == 1 and not (items[0].is_feed or items[0].is_alone):
        return LoneWalk(plan, lead)
    assert isinstance(lead, BatchRun), "a LoneRun has all that a LoneWalk needs"
    return Walk(plan, lead)
