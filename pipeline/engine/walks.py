"""Walks: those that are under way; how they begin, and what becomes of what they did.

On the event loop only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from pipeline.engine.batch_run import BatchRun
from pipeline.engine.channel import Item, keep_places, own_dict
from pipeline.engine.hosting import takes
from pipeline.engine.lone_run import LoneRun
from pipeline.engine.lone_walk import LoneWalk, walk_of
from pipeline.engine.pack_jobs import PackJob
from pipeline.engine.walk import Walk, WalkPlan
from pipeline.engine.walk_api import Host, Lender
from pipeline.engine.walk_books import take_down
from pipeline.engine.worker_api import Loop, Worker
from pipeline.errors import PipelineError, described

if TYPE_CHECKING:
    from pipeline.engine.dispatcher import OpDispatcher
    from pipeline.engine.executor import Executor

_LOGGER = logging.getLogger(__name__)

_STEP_S = 0.005  # a step that lasts so long becomes its worker's own, the others go on without it


class Walks:
    """The walks that are under way. Which way they go is up to who derives: see `Fusing`."""

    def __init__(self, executor: Executor, loop: Loop, clock_ns: Callable[[], int]) -> None:
        self._executor = executor
        self._loop = loop
        self._clock_ns = clock_ns
        self._is_bounded = next(iter(executor.nodes.values())).room.size > 0
        self._under_way: dict[Walk, None] = {}
        self._timer: Any = None

    def plan(self, leader: OpDispatcher) -> WalkPlan | None:
        """Return how walks go that begin at `leader`; None: they do not."""
        raise NotImplementedError

    def changed(self) -> None:
        """Have the groups formed anew."""
        raise NotImplementedError

    def begin(self, leader: OpDispatcher, runs: Sequence[BatchRun]) -> Sequence[Any]:
        """Return the jobs for batches that leave: walks, or as they are."""
        plan = self.plan(leader)
        entered = () if plan is None else plan.entered
        for run in runs:
            for item in run.items:
                if item.entered and item.entered is not entered:
                    self.enter_apart(item)
        if plan is None or not _may_go(plan, runs, self._is_bounded):
            for run in runs:
                for item in run.items:
                    if item.entered:
                        self.enter_apart(item)
            return runs
        walks = []
        for run in runs:
            run.is_step = True
            walks.append(self._begun(walk_of(plan, run)))
        if plan.host is not None:
            plan.host.walk(walks)
            return ()
        return walks

    def begin_alone(self, leader: OpDispatcher, run: LoneRun) -> Any:
        """Return the job for a request that leaves: a walk, or as it is; None: neither is right."""
        plan = self.plan(leader)
        if (plan.entered if plan is not None else ()) is not run.entered:
            return None
        if plan is None:
            return run
        return None if plan.edges is not None else self._begun(LoneWalk(plan, run))

    def _begun(self, walk: Walk) -> Walk:
        """Take note that a walk leaves."""
        plan = walk.plan
        plan.walks += 1
        self._under_way[walk] = None
        for watch in plan.watches:
            watch.submitted()
        if self._timer is None:
            self._timer = self._loop.call_at(self._loop.time() + _STEP_S, self._look)
        return walk

    def enter_apart(self, item: Item) -> None:
        """Hand what an item reads to the Ops that it stands for, too, each by itself."""
        nodes, item.entered = item.entered, ()
        ((slot, part),) = item.inputs.items()
        for node in nodes:
            if not item.is_over:
                node.enqueue(item.request, slot, own_dict(part))

    def done(self, worker: Worker | None, walk: Walk) -> None:
        """Take note of what a walk has done; what it has not goes the usual way."""
        if type(walk) is LoneWalk and walk.is_through and not self._is_bounded:
            self._went_through(walk)
            return
        leader, lead = walk.plan.steps[0].node, walk.lead
        self._end(walk)
        if ended_ns := walk.end_ns:
            leader.load.served((ended_ns - walk.began_ns) / 1e9)
        node, run = walk.moved or (leader, lead)
        node.release(run)
        self._settle(walk, ())
        if not node.is_dirty and len(node.scheduler):
            self._executor.mark_dirty(node)

    def _went_through(self, walk: LoneWalk) -> None:
        """Take note of a walk that did all that there was to do."""
        plan, lead = walk.plan, walk.lead
        leader, (item,) = plan.steps[0].node, lead.items
        plan.walks -= 1
        del self._under_way[walk]
        load = leader.load
        load.served((walk.last_ns - walk.began_ns) / 1e9)
        if type(lead) is LoneRun:
            load.running -= 1
            load.items -= 1
        else:
            leader.release(lead)
        if take_down(walk, self._clock_ns):
            self.changed()
        request = item.request
        for step, _, answer in walk.outs:
            if item.generation == request.generation:
                self._executor.leave(step, item, answer)
        if item.generation == request.generation:
            self._executor.gone(item)
        if not leader.is_dirty and len(leader.scheduler):
            self._executor.mark_dirty(leader)

    def lost(self, walk: Walk, error: PipelineError) -> None:
        """Take note that no worker will take a walk."""
        self.undo(walk)
        if walk.plan.edges is not None:
            walk.plan.edges.lost(walk)
        walk.plan.steps[0].node.lost(walk.lead, error)

    def undo(self, walk: Walk) -> None:
        """Make a walk that has not begun a batch of its first Op, as any other."""
        self._end(walk)
        walk.lead.is_step = False
        for item in walk.lead.items:
            if item.entered:
                self.enter_apart(item)

    def part(self, run: BatchRun) -> bool:
        """Make a step of a walk, which goes on too long, a batch like any other; the rest goes on.

        Returns whether it is one; else it has ended meanwhile.
        """
        if run.is_step:
            for walk in self._under_way:
                if walk.is_at(run):
                    self._part(walk)
                    break
        return not run.is_step

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """Look for steps that last too long."""
        self._timer = None
        now_ns = self._clock_ns()
        for walk in list(self._under_way):
            if walk.plan.host is not None:
                self._move_if_slow(walk, walk.plan.host)
            elif walk.began_ns and now_ns - walk.step_ns >= _STEP_S * 1e9:
                self._part(walk)
        if self._under_way and self._timer is None:
            self._timer = self._loop.call_at(self._loop.time() + _STEP_S, self._look)

    def _part(self, walk: Walk) -> None:
        leader = walk.plan.steps[0].node
        found = (walk.plan.host or cast(Lender, leader.workers)).part(walk)
        if found is None:
            return
        place, _, run = found
        if isinstance(run, PackJob):
            assert walk.plan.edges is not None, "it made the job"
            walk.plan.edges.part(walk, place, run)
            self.done(None, walk)
            return
        self._end(walk)
        run.is_step = False
        self._count_as(walk, place, run)
        self._settle(walk, [item.request for item in run.items])
        self._executor.mark_dirty(leader)

    def _move_if_slow(self, walk: Walk, host: Host) -> None:
        """Let the first Op go on with others, while a later one takes its time."""
        found = None if walk.moved is not None else host.slow_step(walk, _STEP_S)
        if found is not None:
            place, _, run = found
            self._count_as(walk, place, run)
            self._executor.mark_dirty(walk.plan.steps[0].node)

    def _count_as(self, walk: Walk, place: int, run: BatchRun) -> None:
        """Count a walk as a run of the step that it is at."""
        node, counted = walk.moved or (walk.plan.steps[0].node, walk.lead)
        if counted is not run:
            node.release(counted)
            walk.moved = walk.plan.steps[place].node, run
            walk.moved[0].count(run)

    def _end(self, walk: Walk) -> None:
        walk.plan.walks -= 1
        del self._under_way[walk]
        for step in walk.plan.steps[1:] if self._is_bounded else ():
            step.node.room.release(walk.lead.items)
            self._executor.mark_dirty(step.node)
        if walk.opening is not None:
            walk.plan.steps[0].node.load.items -= walk.opening.missing(walk.lead.items)

    def _settle(self, walk: Walk, kept: Sequence[Any]) -> None:
        """Tell what was done, and pass on what came of it; a run still has those in `kept`."""
        items = walk.lead.items
        if take_down(walk, self._clock_ns):
            self.changed()
        if walk.plan.edges is not None:
            walk.plan.edges.settle(walk)
        if walk.failure is not None:
            self._fail(walk.failure, items)
        for step, index, answer in walk.outs:
            if not items[index].is_over:
                self._executor.leave(step, items[index], answer)
        for step, index, inputs in walk.left():
            item = items[index]
            for slot, part in inputs.items():
                if not item.is_over:
                    step.node.enqueue(item.request, slot, part)
        for item in items:
            if item.request not in kept:
                self._executor.gone(item)

    def _fail(self, failure: BaseException, items: Iterable[Item]) -> None:
        what = f"a request could not be passed from Op to Op: {described(failure)}"
        _LOGGER.error("%s", what, exc_info=failure)
        for item in items:
            if not item.is_over:
                self._executor.complete(item.request, PipelineError(what))


def _may_go(plan: WalkPlan, runs: Sequence[BatchRun], is_bounded: bool) -> bool:
    """Return whether runs go as walks; in bounded channels places are kept for them then."""
    items = [item for run in runs for item in run.items] if is_bounded else []
    nodes = [step.node for step in plan.steps[1:]] if is_bounded else []
    return takes(plan, runs) and keep_places(nodes, items)
