"""Walker: runs walks through a group of Ops in one worker process."""

from __future__ import annotations

import contextvars
import copy
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import msgspec

from pipeline.engine.batch_run import BatchRun
from pipeline.engine.bound_op import BoundOp
from pipeline.engine.lone_walk import LoneWalk, walk_of
from pipeline.engine.walk import Step, Walk, WalkPlan
from pipeline.engine.walk_api import Run
from pipeline.errors import PipelineError, described, error_to_fields, note_op
from pipeline.workers.process.pages import StatusPage, StepTimes
from pipeline.workers.process.wire import ErrorFields, Init, StepResult

_IMMUTABLE = frozenset({int, float, bool, str, bytes, type(None)})


class WalkingOp:
    """A copy of one Op of the group; it lends itself."""

    def __init__(
        self, op: BoundOp, context: contextvars.Context, place: int, status: StatusPage
    ) -> None:
        self.op: BoundOp = op
        self.number: int = op.worker
        self.job: Any = None
        self.began_ns: int = 0
        self.job_started: float | None = None
        self.call_started: float | None = None
        self._context = context
        self._place = place
        self._status = status

    def perform(self, run: Run, clock_ns: Callable[[], int]) -> None:
        """Run a batch; the server sees that it is this Op that runs."""
        self._status.step_begins(self._place)
        self._context.run(run.run, self.op, self._status, clock_ns)
        self._status.step_ends(self._place, _times(run))

    def borrow(self) -> WalkingOp:
        return self

    def give_back(self, worker: Any) -> None:
        """It is nobody else's."""

    def states(self) -> Iterable[dict[str, Any]]:
        return [self.op.state]

    def part(self, walk: Walk) -> None:
        """Nobody takes a walk from it; who would ends the process."""


class Walked(msgspec.Struct, eq=False):
    """End of a walk.

    Attributes:
        answers: (place of the step, answer): of the last step, if it got there; and of those whose
            answers go elsewhere than to all that read them.
        left: (place of a step that was not taken, what came for it).
    """

    start_ns: int
    end_ns: int
    steps: list[StepResult]
    answers: list[tuple[int, Any]]
    left: list[tuple[int, dict[str, Any]]]


class Walker:
    """The Ops of a group, and the way through them; see `walk`."""

    def __init__(self, members: Sequence[WalkingOp], init: Init) -> None:
        last = len(members) - 1
        steps = [
            Step(
                cast(Any, None),  # the server's
                step.name,
                member,
                producers=step.producers,
                readers=step.readers,
                is_read_outside=place == last,
                is_join=len(step.producers) > 1,
            )
            for place, (step, member) in enumerate(zip(init.steps, members, strict=True))
        ]
        self.ops: list[BoundOp] = [member.op for member in members]
        self._leader = members[0]
        self._places = {step: place for place, step in enumerate(steps)}
        self._plan = WalkPlan(tuple(steps), init.entries, own=own)

    def go(self, item: Any) -> Walked:
        """Run an item through the group. Raises nothing."""
        clock_ns = time.monotonic_ns
        now_ns = clock_ns()
        if item.failure is not None:
            note_op(item.failure, self._plan.steps[0].name)
            failed = StepResult(0, now_ns, now_ns, now_ns, now_ns, -1, _fields(item.failure))
            return Walked(now_ns, now_ns, [failed], [(-1, item.failure)], [])
        lead = BatchRun([item])
        walk = walk_of(self._plan, lead)
        walk.go(self._leader, clock_ns)
        steps = _results(walk)
        if walk.failure is not None:  # ours, on data of any type
            text = f"a request could not be passed from Op to Op: {described(walk.failure)}"
            return Walked(now_ns, clock_ns(), steps, [(-1, PipelineError(text))], [])
        answers = [(self._places[step], answer) for step, _, answer in walk.outs]
        left = [(self._places[step], inputs) for step, _, inputs in walk.left()]
        return Walked(now_ns, clock_ns(), steps, answers, left)


def own(payload: Any) -> Any:
    """Return a copy of which its reader may change everything, as of what came from elsewhere."""
    if not isinstance(payload, dict):
        return payload if isinstance(payload, PipelineError) else copy.deepcopy(payload)
    if all(type(value) in _IMMUTABLE for value in payload.values()):
        return dict(payload)
    return copy.deepcopy(payload)


def _times(run: Run) -> StepTimes:
    middle_ns = run.process_end_ns if isinstance(run, BatchRun) else run.preprocess_end_ns
    return run.start_ns, run.preprocess_end_ns, middle_ns, run.end_ns


def _results(walk: Walk) -> list[StepResult]:
    found = [
        StepResult(place, start_ns, middle_ns, middle_ns, end_ns, -1, _error(outcome))
        for place, _, outcome, _, start_ns, middle_ns, end_ns in (
            walk.plain if isinstance(walk, LoneWalk) else ()
        )
    ]
    for place, _, run in walk.finished:
        rows = run.rows[0] if run.rows else -1
        found.append(StepResult(place, *_times(run), rows, _error(run.outcomes[0])))
    return sorted(found, key=lambda step: step.place)


def _error(outcome: Any) -> ErrorFields | None:
    return _fields(outcome) if isinstance(outcome, PipelineError) else None


def _fields(error: PipelineError) -> ErrorFields:
    return ErrorFields(*error_to_fields(error), error.op)
