"""LoneWalk: one request on its way through several Ops: what nearly all walks are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pipeline.engine.batch_run import BatchRun
from pipeline.engine.lone_run import LoneRun
from pipeline.engine.plain_step import PlainStep, PlainTimes
from pipeline.engine.walk import Walk, WalkPlan, longest_ns

_LONE = [0]  # the items of a batch of one


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
        plain: of each step that was a PlainStep, its outcome and times.
        is_void: whether its request was over before it began, and nothing was done.
        is_through: whether it went as nearly all do: each step is a PlainStep that answered.
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
    plain: list[PlainTimes] = field(default_factory=list)
    is_void: bool = False
    is_through: bool = False

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
                        (place, worker, answer, ready_ns[place], now_ns, middle_ns, end_ns)
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

    def _as_batch(self, place: int, run: Any) -> Any:
        if run is self:
            lead, item = self.lead, self.lead.items[0]
            is_own = place == 0 and isinstance(lead, BatchRun)
            again = item.following(self.inputs, self.ready_ns[place])
            run = self.apart = lead if is_own else BatchRun([again])
        return run


def walk_of(plan: WalkPlan, lead: LoneRun | BatchRun) -> Walk:
    """Return the walk that begins with `lead`."""
    items = lead.items
    if len(items) == 1 and not (items[0].is_feed or items[0].is_alone):
        return LoneWalk(plan, lead)
    assert isinstance(lead, BatchRun), "a LoneRun has all that a LoneWalk needs"
    return Walk(plan, lead)
