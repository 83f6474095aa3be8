"""Books of walks: how long each Op took, whether it failed, and the spans of its requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pipeline.engine import pace
from pipeline.engine.fusable import goes, is_bound_after_all
from pipeline.engine.journal import Outcome
from pipeline.engine.lone_walk import LoneWalk
from pipeline.engine.plain_step import PlainTimes
from pipeline.engine.span_recorder import take_down_plain
from pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pipeline.engine.dispatcher import OpDispatcher
    from pipeline.engine.walk import Walk


def take_down(walk: Walk, clock_ns: Callable[[], int]) -> bool:
    """Take down what a walk has done; return whether the groups have to be formed anew."""
    plan, finished = walk.plan, walk.finished
    if isinstance(walk, LoneWalk) and walk.marks:
        if walk.lead.items[0].request.spans is None:
            return _take_down_whole(walk, clock_ns)
        walk.tell_apart()
    plain = walk.plain if isinstance(walk, LoneWalk) else []
    if not plan.steps[0].node.spans.is_wanted:
        pass
    elif finished:
        _take_down_spans(walk, plain, clock_ns())
    elif plain:
        take_down_plain(plan.recorders, plain, walk.lead.items[0], clock_ns())
    elif isinstance(walk, LoneWalk) and walk.is_void:
        plan.recorders[0].unfinished(walk.lead.items, Outcome.OTHER)
    steps, is_slow = (
        plan.steps,
        walk.end_ns - walk.began_ns > pace._SLOW_NS,
    )  # so that a step may be
    is_other = False
    for place, _, outcome, _, start_ns, _, end_ns in plain:
        node = steps[place].node
        node.links.answered += 1
        if is_slow or node.pace.slow_share > pace._NONE:
            is_other |= node.pace.took(end_ns - start_ns)
        if type(outcome) is not dict:
            is_other |= _is_bound(node, outcome, end_ns)
    for place, _, run in finished:
        node, outcome = steps[place].node, run.outcomes[0] if run.outcomes else None
        node.links.answered += len(run.items)
        is_other |= node.pace.took(run.end_ns - run.start_ns, len(run.items))
        is_other |= _is_bound(node, outcome, run.end_ns)
    return is_other


def _take_down_whole(walk: LoneWalk, clock_ns: Callable[[], int]) -> bool:
    """Take down a walk that went as nearly all do, in one row."""
    plan, marks, (item,) = walk.plan, walk.marks, walk.lead.items
    request, began_ns, end_ns, rows = item.request, walk.began_ns, walk.last_ns, plan.rows
    if rows is not None:
        if item.generation == request.generation:
            inputs_ns = sum(marks[1::3]) - sum(marks[2::3]) + end_ns - began_ns
            request.input_ns += inputs_ns
            request.output_ns += end_ns - began_ns - inputs_ns
        times = item.ready_ns, began_ns, clock_ns()
        rows.journal.add_walked(rows, rows.pack(item.data_id, request.rows, *times, *marks))
    is_slow, is_other = end_ns - began_ns > pace._SLOW_NS, False  # so that a step may be
    for links, its_pace in plan.books:
        links.answered += 1
        if its_pace.slow_share > pace._NONE:
            is_slow = True
    if is_slow:
        for (_, its_pace), step_end_ns in zip(plan.books, marks[2::3], strict=True):
            is_other |= its_pace.took(step_end_ns - began_ns)
            began_ns = step_end_ns
    return is_other


def _take_down_spans(walk: Walk, plain: Sequence[PlainTimes], now_ns: int) -> None:
    """Take down the spans, in the order of the steps."""
    recorders = walk.plan.recorders
    runs = walk.finished + [(times[0], times[1], times) for times in plain]
    for place, worker, run in sorted(runs, key=itemgetter(0)):
        if type(run) is tuple:
            take_down_plain(recorders, [run], walk.lead.items[0], now_ns)
        else:
            recorders[place].batch(worker, run, now_ns)


def _is_bound(node: OpDispatcher, outcome: Any, now_ns: int) -> bool:
    """Return whether an Op fails, in a group, and is bound to its thread after all."""
    return (
        isinstance(outcome, PipelineError)
        and goes(node)
        and is_bound_after_all(node.op, node.workers, node.pace, now_ns)
    )
