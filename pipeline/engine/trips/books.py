"""Books of trips: how long each Op took, whether it failed, and the spans of its requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.engine.journal.journal import Outcome
from pipeline.engine.journal.spans import take_down_plain
from pipeline.engine.trips import pace
from pipeline.engine.trips.groups import is_bound_after_all
from pipeline.engine.trips.rows import OF_STEP
from pipeline.engine.trips.trip import Trip
from pipeline.errors import PipelineError


def take_down(trip: Trip, clock_ns: Callable[[], int]) -> bool:
    """Take down what a trip has done; return whether the groups have to be formed anew."""
    plan, marks, item = trip.plan, trip.marks, trip.item
    if not marks:
        if trip.is_void and plan.recorders[0].is_wanted:
            plan.recorders[0].unfinished([item], Outcome.OTHER)
        return False
    request = item.request
    is_usual = trip.answer is None and not trip.runs and request.spans is None
    if not is_usual or len(marks) < OF_STEP * len(plan.steps):
        _take_down_spans(trip, clock_ns())
    elif plan.rows is not None:
        began_ns, end_ns = trip.began_ns, marks[-1]
        if item.generation == request.generation:
            inputs_ns = sum(marks[1::3]) - sum(marks[2::3]) + end_ns - began_ns
            request.input_ns += inputs_ns
            request.output_ns += end_ns - began_ns - inputs_ns
        times = item.ready_ns, began_ns, clock_ns()
        plan.rows.journal.add_trip(
            plan.rows, plan.rows.pack(item.data_id, request.rows, *times, *marks)
        )
    return _is_other_pace(trip)


def _is_other_pace(trip: Trip) -> bool:
    """Take down how long each Op took; return whether the groups have to be formed anew."""
    plan, marks, began_ns = trip.plan, trip.marks, trip.began_ns
    is_slow = marks[-1] - began_ns > pace._SLOW_NS  # so that a step may be
    is_other, done = False, len(marks) // OF_STEP
    for links, its_pace in plan.books[:done]:
        links.answered += 1
        if its_pace.slow_share > pace._NONE:
            is_slow = True
    if is_slow:
        for (_, its_pace), step_end_ns in zip(plan.books, marks[2::3], strict=False):
            is_other |= its_pace.took(step_end_ns - began_ns)
            began_ns = step_end_ns
    if isinstance(trip.answer, PipelineError):
        node = plan.steps[done - 1].node
        is_other |= is_bound_after_all(node.op, node.workers, node.pace, marks[-1])
    return is_other


def _take_down_spans(trip: Trip, now_ns: int) -> None:
    """Take down the spans, in the order of the steps."""
    recorders = trip.plan.recorders
    if not recorders[0].is_wanted:
        return
    runs: dict[int, Any] = {place: (worker, run) for place, worker, run in trip.runs}
    done = trip.done
    plain = {times[0]: times for times in trip.plain_times()} if len(runs) < done else {}
    for place in range(done):
        if place in runs:
            worker, run = runs[place]
            recorders[place].batch(worker, run, now_ns)
        else:
            take_down_plain(recorders, [plain[place]], trip.item, now_ns)
