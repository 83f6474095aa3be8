"""Trips: the trips that run now; how they begin, and how their results are recorded and passed on.

On the event loop only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from pipeline.engine.journal.journal import Outcome
from pipeline.engine.journal.spans import OF_STEP
from pipeline.engine.op.channel import Item, own_dict
from pipeline.engine.ports import OpNode, Router, TripStop
from pipeline.engine.request import RequestState
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.trips import pace
from pipeline.engine.trips.groups import OpGroups, is_bound_after_all
from pipeline.engine.trips.trip import Trip, TripPlan
from pipeline.engine.worker_api import Loop, Worker
from pipeline.errors import PipelineError, described

_LOGGER = logging.getLogger(__name__)

# a step that runs this long becomes its worker's own job; the trip continues without it
_STEP_S = 0.005


class Trips:
    """The trips that run now, and the groups of Ops that they pass.

    Args:
        is_on: whether there are trips at all.
        is_idle: returns whether the server is almost idle; only then a trip includes `process`,
            unpack
            or pack: under load one thread would do the work that several could share.

    Attributes:
        groups: decides which Ops a trip passes.
    """

    def __init__(
        self,
        executor: Router,
        loop: Loop,
        clock_ns: Callable[[], int],
        is_on: bool,
        is_idle: Callable[[], bool],
    ) -> None:
        self.groups: OpGroups = OpGroups(executor, is_on)
        self._executor = executor
        self._loop = loop
        self._clock_ns = clock_ns
        self._is_idle = is_idle
        self._under_way: dict[Trip, None] = {}
        self._timer: Any = None
        self._is_due = False

    # OpGroups -------------------------------------------------------------------------------------

    def hung(self, node: OpNode) -> None:
        """Note that an Op hangs: it is in no group for now."""
        if node.pace.hung():
            self.changed()

    def changed(self) -> None:
        """Have the groups formed again."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._regroup)

    def has_trips(self, node: OpNode) -> bool:
        """Return whether any running trip may come to an Op, or is there."""
        return self.groups.has_trips(node)

    def _regroup(self) -> None:
        self._is_due = False
        self.groups.form()

    # In -----------------------------------------------------------------------------------------

    def begin(self, leader: OpNode, runs: Sequence[BatchRun]) -> list[Any]:
        """Return the jobs for batches that leave: trips, or the batches themselves."""
        plan = self.groups.plan(leader)
        return [self._job(plan, run) for run in runs]

    def _job(self, plan: TripPlan | None, run: BatchRun) -> Trip | BatchRun:
        item = run.items[0]
        if plan is not None and len(run.items) == 1 and item.entered is plan.entered:
            until = self._until(plan, item.request)
            if until and not (item.is_feed or item.is_alone):
                return self._begun(Trip(plan, run, until, item))
        for item in run.items:
            if item.entered:
                self._enter_apart(item)
        return run

    def begin_alone(self, leader: OpNode, run: Item) -> Trip | Item:
        """Return the job for an item that leaves: a trip, or the item itself."""
        plan = self.groups.plan(leader)
        if plan is not None and plan.entered is run.entered:
            until = self._until(plan, run.request)
            if until:
                return self._begun(Trip(plan, run, until, run))
        if run.entered:
            self._enter_apart(run)
        return run

    def begin_before(self, unpacker: TripStop, job: Any, request: RequestState) -> Any:
        """Return the job for a request that has to be unpacked: a trip, or `job` itself."""
        plan, target = self.groups.plan(unpacker), request.target
        if plan is None or not (target is None or target.op is None):
            return job
        until = self._until(plan, request)
        if not until:
            return job
        request.live += 1
        ids = request.generation, request.data_id, request.log_id
        job.item = item = Item(request, *ids, {}, self._loop.time())
        return self._begun(Trip(plan, job, until, item))

    def _until(self, plan: TripPlan, request: RequestState) -> int:
        """Return how many steps a trip may take now; 0: it would gain nothing."""
        count = len(plan.steps)
        if plan.packs and request.target is not None and not request.target.wants_response:
            count -= 1
        if plan.short < count and not self._is_idle():
            count = plan.short
        return count if count > 1 else 0

    def _begun(self, trip: Trip) -> Trip:
        """Note that a trip leaves."""
        plan = trip.plan
        plan.trips += 1
        self._under_way[trip] = None
        for watch in plan.watches:
            watch.submitted()
        if self._timer is None:
            self._timer = self._loop.call_at(self._loop.time() + _STEP_S, self._look)
        return trip

    def _enter_apart(self, item: Item) -> None:
        """Send the inputs of an item to the other Ops that it stands for, each separately."""
        nodes, item.entered = item.entered, ()
        ((slot, part),) = item.inputs.items()
        for node in nodes:
            if not item.is_over:
                node.enqueue(item.request, slot, own_dict(part))

    # Out ----------------------------------------------------------------------------------------

    def done(self, worker: Worker | None, trip: Trip) -> None:
        """Record the results of a trip; steps that it did not take go the usual way."""
        leader = trip.plan.leader
        self._end(trip)
        if leader is not None:
            if trip.marks:
                leader.load.served((trip.marks[-1] - trip.began_ns) / 1e9)
            leader.release(trip.lead)
        self._settle(trip)
        item = trip.item
        if item.generation == item.request.generation:
            self._executor.item_done(item)
        if leader is not None and not leader.is_dirty and len(leader.scheduler):
            self._executor.cycle.mark_dirty(leader)

    def lost(self, trip: Trip, error: PipelineError) -> None:
        """Note that no worker will take a trip: it becomes a lost run of its first Op."""
        self._end(trip)
        if trip.item.entered:
            self._enter_apart(trip.item)
        if trip.plan.leader is not None:
            trip.plan.leader.lost(trip.lead, error)

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """Find steps that run too long."""
        self._timer = None
        now_ns = self._clock_ns()
        for trip in list(self._under_way):
            if trip.began_ns and now_ns - trip.step_ns >= _STEP_S * 1e9:
                self._part(trip)
        if self._under_way and self._timer is None:
            self._timer = self._loop.call_at(self._loop.time() + _STEP_S, self._look)

    def _part(self, trip: Trip) -> None:
        """Make a step that runs too long a run of its Op; the rest continues without it."""
        plan = trip.plan
        leader, part = plan.leader, plan.steps[0].lender.part(trip)
        if part is None:
            return
        place, _, run = part
        self._end(trip)
        if leader is not None and run is not trip.lead:
            leader.release(trip.lead)
        self._settle(trip)
        if leader is None or run is not trip.lead:
            plan.steps[place].node.count(run)
        if leader is not None:
            self._executor.cycle.mark_dirty(leader)

    def _end(self, trip: Trip) -> None:
        trip.plan.trips -= 1
        del self._under_way[trip]

    def _settle(self, trip: Trip) -> None:
        """Record the steps that were done, and pass on their answers."""
        plan, item, executor = trip.plan, trip.item, self._executor
        if _record(trip, self._clock_ns):
            self.changed()
        if trip.failure is not None:
            self._fail(trip.failure, item)
            return
        request, outside = item.request, trip.step_inputs[-1] if trip.step_inputs else {}
        for step in plan.outlets if outside else ():
            if step.name in outside and item.generation == request.generation:
                executor.leave(step, request, outside[step.name])
        if trip.answer is None and len(trip.marks) == plan.all_marks:
            return
        for node, inputs in trip.remaining():
            for slot, part in inputs.items():
                if item.generation == request.generation:
                    node.enqueue(request, slot, part)
        if trip.answer is not None and item.generation == request.generation:
            plan.steps[trip.done - 1].node.route(request, trip.answer)

    def _fail(self, failure: BaseException, item: Item) -> None:
        what = f"a request could not be passed from one Op to the next: {described(failure)}"
        _LOGGER.error("%s", what, exc_info=failure)
        if not item.is_over:
            self._executor.complete(item.request, PipelineError(what))


# What a trip has done --------------------------------------------------------------------------


def _record(trip: Trip, clock_ns: Callable[[], int]) -> bool:
    """Record the results of a trip; return whether the groups have to be formed again."""
    plan, marks, item = trip.plan, trip.marks, trip.item
    if not marks:
        if trip.is_void and plan.leader is not None and plan.recorders[0].is_wanted:
            plan.recorders[0].unfinished([item], Outcome.OTHER)
        return False
    request, rows, began_ns, is_well = item.request, plan.rows, trip.began_ns, trip.answer is None
    if len(marks) > plan.ends:  # the pack ran also, and has no span
        is_well, marks = trip.runs.pop(plan.ops.stop) is not None, marks[: plan.ends]
    if not is_well or trip.runs or request.spans is not None or len(marks) < plan.ends:
        _record_spans(trip)
    elif rows is not None:
        if plan.leader is None:
            began_ns, marks = item.ready_ns, marks[OF_STEP:]
        times = item.ready_ns, began_ns, clock_ns(), *marks
        is_over = item.generation != request.generation
        if plan.is_whole and request.trip_rows is None and not is_over:
            request.trip_rows = rows, times
        else:
            rows.add_spans(request, times, is_over)
    return _update_paces(trip)


def _update_paces(trip: Trip) -> bool:
    """Record how long each Op took; return whether the groups have to be formed again."""
    plan, marks, began_ns = trip.plan, trip.marks, trip.began_ns
    is_slow = marks[-1] - began_ns > pace.SLOW_NS  # so one of the steps may be slow
    is_other, done, none = False, len(marks) // OF_STEP, pace.NO_SHARE
    for links, its_pace in plan.books[:done]:
        links.answered += 1
        if its_pace.slow_share > none:
            is_slow = True
    if is_slow:
        ends = marks[OF_STEP - 1 :: OF_STEP]
        for (_, its_pace), step_end_ns in zip(plan.books, ends, strict=False):
            is_other |= its_pace.took(step_end_ns - began_ns)
            began_ns = step_end_ns
    answer = trip.answer
    if answer is not None and done > plan.ops.stop:
        answer = answer.result  # of the pack
    if isinstance(answer, PipelineError):
        node = plan.steps[done - 1].node
        is_other |= is_bound_after_all(node.op, node.workers, node.pace, marks[-1])
    return is_other


def _record_spans(trip: Trip) -> None:
    """Record the spans, in the order of the steps."""
    ops, recorders, marks, last = trip.plan.ops, trip.plan.recorders, trip.marks, trip.done - 1
    if not recorders[0].is_wanted and trip.item.request.spans is None:
        return
    now_ns = recorders[0].clock_ns()
    for recorder, place in zip(recorders, range(ops.start, min(last + 1, ops.stop)), strict=False):
        if place in trip.runs:
            recorder.batch(*trip.runs[place], now_ns)
        else:
            answer = trip.answer if place == last and trip.answer is not None else {}
            item = trip.item.following({}, trip.ready_ns(place))
            recorder.alone(item, answer, marks[OF_STEP * place], trip.times(place), now_ns)
