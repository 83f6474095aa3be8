"""Books of trips: how long each Op took, whether it failed, and the spans of its requests."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.engine.journal.journal import Outcome
from pipeline.engine.journal.spans import OF_STEP
from pipeline.engine.trips import pace
from pipeline.engine.trips.groups import is_bound_after_all
from pipeline.engine.trips.trip import Trip
from pipeline.errors import PipelineError


def take_down(trip: Trip, clock_ns: Callable[[], int]) -> bool:
    """Take down what a trip has done; return whether the groups have to be formed anew."""
    plan, marks, item = trip.plan, trip.marks, trip.item
    if not marks:
        if trip.is_void and plan.recorders[0].is_wanted:
            plan.recorders[0].unfinished([item], Outcome.OTHER)
        return False
    request, rows = item.request, plan.rows
    is_usual = trip.answer is None and not trip.runs and request.spans is None
    if not is_usual or len(marks) < OF_STEP * len(plan.steps):
        _take_down_spans(trip)
    elif rows is not None:
        told = item.ready_ns, trip.began_ns, clock_ns(), *marks
        is_over = item.generation != request.generation
        if plan.is_whole and request.way is None and not is_over:
            request.way = rows, told
        else:
            rows.add_spans(request, told, is_over)
    return _is_other_pace(trip)


def _is_other_pace(trip: Trip) -> bool:
    """Take down how long each Op took; return whether the groups have to be formed anew."""
    plan, marks, began_ns = trip.plan, trip.marks, trip.began_ns
    is_slow = marks[-1] - began_ns > pace._SLOW_NS  # so that a step may be
    is_other, done, none = False, len(marks) // OF_STEP, pace._NONE
    for links, its_pace in plan.books[:done]:
        links.answered += 1
        if its_pace.slow_share > none:
            is_slow = True
    if is_slow:
        ends = marks[OF_STEP - 1 :: OF_STEP]
        for (_, its_pace), step_end_ns in zip(plan.books, ends, strict=False):
            is_other |= its_pace.took(step_end_ns - began_ns)
            began_ns = step_end_ns
    if isinstance(trip.answer, PipelineError):
        node = plan.steps[done - 1].node
        is_other |= is_bound_after_all(node.op, node.workers, node.pace, marks[-1])
    return is_other


def _take_down_spans(trip: Trip) -> None:
    """Take down the spans, in the order of the steps."""
    recorders, marks, last = trip.plan.recorders, trip.marks, trip.done - 1
    if not recorders[0].is_wanted:
        return
    now_ns = recorders[0].clock_ns()
    for place in range(last + 1):
        recorder = recorders[place]
        if place in trip.runs:
            recorder.batch(*trip.runs[place], now_ns)
        else:
            answer = trip.answer if place == last and trip.answer is not None else {}
            item = trip.item.following({}, trip.ready_ns(place))
            recorder.alone(item, answer, marks[OF_STEP * place], trip.times(place), now_ns)
