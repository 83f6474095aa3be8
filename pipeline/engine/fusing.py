"""Fusing: has quick Ops that follow each other run in one go; see `walk`.

Which Ops are quick is seen by how long they take, so groups form, come apart and form again. On the
event loop only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from pipeline.engine.batch_run import BatchRun
from pipeline.engine.channel import Item, Receiver, alone, keep_places, own_dict
from pipeline.engine.fusable import (
    goes,
    goes_along,
    is_bound,
    obstacle,
    place_of,
)
from pipeline.engine.hosting import HostedGroups, is_hosted, takes, with_one_exit
from pipeline.engine.pack_jobs import PackJob
from pipeline.engine.walk import Step, Walk, WalkPlan
from pipeline.engine.walk_api import Host, Lender
from pipeline.engine.walk_books import take_down
from pipeline.engine.worker_api import Loop, Worker
from pipeline.errors import PipelineError, described

if TYPE_CHECKING:
    from pipeline.engine.dispatcher import OpDispatcher
    from pipeline.engine.edges import Edges
    from pipeline.engine.executor import Executor

_LOGGER = logging.getLogger(__name__)

_STEP_S = 0.005  # a step that lasts so long becomes its worker's own, the others go on without it
_MOST_STEPS = 64


class Fusing:
    """Groups of Ops, and the walks through them that are under way.

    Args:
        is_on: whether Ops in threads are fused at all.
        hosts: whether Ops in processes are.

    Attributes:
        edges: unpack and pack as parts of walks; None: they never are.
    """

    def __init__(
        self,
        executor: Executor,
        loop: Loop,
        clock_ns: Callable[[], int],
        is_on: bool,
        hosts: bool = False,
    ) -> None:
        self._executor = executor
        self._loop = loop
        self._clock_ns = clock_ns
        self._nodes: tuple[OpDispatcher, ...] = tuple(executor.nodes.values())
        self._is_bounded = self._nodes[0].room.size > 0
        self._plans: list[WalkPlan] = []
        self._under_way: dict[Walk, None] = {}
        self._timer: Any = None
        self._is_due = False
        self.edges: Edges | None = None
        self.hosted: HostedGroups = HostedGroups(self, loop)
        for node in self._nodes:
            if hosts if is_hosted(node) else is_on:
                is_fusable = obstacle(node, self._nodes) is None
                node.pace.is_fusable = node.pace.was_fusable = is_fusable

    # Groups -------------------------------------------------------------------------------------

    def took(self, node: OpDispatcher, run: BatchRun) -> None:
        """Take down how long an Op took."""
        if node.pace.took(run.end_ns - run.start_ns, len(run.items)):
            self.changed()

    def hung(self, node: OpDispatcher) -> None:
        """Take down that an Op hangs: it goes by itself for now."""
        if node.pace.hung():
            self.changed()

    def changed(self) -> None:
        """Have the groups formed anew."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._regroup)

    def groups(self) -> dict[str, tuple[str, ...]]:
        """Return, for each Op that does not go by itself, the names of those that it goes with."""
        found: dict[str, tuple[str, ...]] = {}
        for node in self._nodes:
            plan = None if node.name in found else self.plan(node)
            if plan is not None and len(plan.steps) > 1:
                group = tuple(step.name for step in plan.steps)
                found |= {name: group for name in group if name not in found}
        return found

    def _regroup(self) -> None:
        """Form the groups anew. Walks that are under way, or queued, go on as they were planned."""
        self._is_due = False
        self._plans = [plan for plan in self._plans if plan.walks]
        for node in self._nodes:
            pace = node.pace
            if goes(node) and is_bound(node.op, node.workers):
                pace.is_fusable = False
            pace.plan, pace.is_planned, pace.entered = None, False, ()
        if self.edges is not None:
            self.edges.look_again()
        for node in self._nodes:
            node.links.receivers = self._receivers(node.links.successors)
        self._executor.receivers = self._receivers(self._executor.entries)
        self.hosted.regroup(self._nodes)
        if self.edges is not None:
            self.edges.regrouped()

    def _receivers(self, readers: Sequence[OpDispatcher]) -> tuple[Receiver, ...]:
        """Return whom to hand an answer for `readers`: of those that go together only the first."""
        single = [node for node in readers if goes(node) and not node.channel.is_join]
        if len(single) < 2 or self._is_bounded:  # each of them waits in its own channel
            return alone(readers)
        first = min(single, key=place_of)
        others = [node for node in single if node is not first and goes_along(first, node)]
        first.pace.entered = entered = tuple(sorted(others, key=place_of))
        return tuple(
            (node, entered if node is first else ()) for node in readers if node not in entered
        )

    def plan(self, leader: OpDispatcher) -> WalkPlan | None:
        """Return how walks go that begin at `leader`; None: they do not."""
        pace = leader.pace
        if not pace.is_planned:
            pace.plan, pace.is_planned = self.planned(leader), True
        return pace.plan

    def planned(self, leader: OpDispatcher) -> WalkPlan | None:
        """Return the plan of a group that begins at `leader`, made anew; None: there is none."""
        if not goes(leader):
            return None
        entered = leader.pace.entered
        inside = [leader]
        names = {leader.name}
        for node in self._nodes[place_of(leader) + 1 :]:
            reads_inside = names.issuperset(node.channel.producers)
            is_next = reads_inside and goes(node) and goes_along(leader, node)
            if (is_next or node in entered) and len(inside) < _MOST_STEPS:
                inside.append(node)
                names.add(node.name)
        if is_hosted(leader):
            inside = with_one_exit(inside, self._executor.last)
        entered = tuple(node for node in entered if node in inside)
        edges = self.edges
        if edges is not None and not edges.go_along(leader, inside):
            edges = None
        if (len(inside) == 1 and edges is None) or entered != leader.pace.entered:
            return None
        places = {node: place for place, node in enumerate(inside)}
        plan = WalkPlan(
            tuple(self._step(node, places) for node in inside),
            tuple(places[node] for node in entered),
            leader.pace.entered,
            frozenset(inside),
            edges=edges,
            recorders=tuple(node.spans for node in inside),
            watches=tuple(node.watch for node in inside if node.watch.timeout_s is not None),
        )
        self._plans.append(plan)
        return plan

    def _step(self, node: OpDispatcher, places: dict[OpDispatcher, int]) -> Step:
        readers = node.links.successors
        outside: list[Receiver] = []
        for first, entered in node.links.receivers:
            rest = [each for each in (first, *entered) if each not in places]
            outside += [(first, entered)] if len(rest) == 1 + len(entered) else alone(rest)
        is_last = self._executor.last is node
        return Step(
            node,
            node.name,
            cast(Lender, node.workers),  # nobody asks those that have a host
            node.op.pipeline_config.batch_size,
            node.channel.producers,
            tuple(
                (places[reader], order > 0)
                for order, reader in enumerate(readers)
                if reader in places
            ),
            is_read_outside=is_last or bool(outside),
            keeps_own=bool(outside) and readers[0] in places,
            outside=tuple(outside),
            others=alone(reader for reader in readers if reader not in places),
            is_join=node.channel.is_join,
        )

    # Walks --------------------------------------------------------------------------------------

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
            walks.append(Walk(plan, run))
        plan.walks += len(walks)
        self._under_way.update(dict.fromkeys(walks))
        for watch in plan.watches:
            watch.submitted()
        if self._timer is None:
            self._timer = self._loop.call_at(self._loop.time() + _STEP_S, self._look)
        if plan.host is not None:
            plan.host.walk(walks)
            return ()
        return walks

    def enter_apart(self, item: Item) -> None:
        """Hand what an item reads to the Ops that it stands for, too, each by itself."""
        nodes, item.entered = item.entered, ()
        ((slot, part),) = item.inputs.items()
        for node in nodes:
            if not item.is_over:
                node.enqueue(item.request, slot, own_dict(part))

    def done(self, worker: Worker | None, walk: Walk) -> None:
        """Take note of what a walk has done; what it has not goes the usual way."""
        leader, lead = walk.plan.steps[0].node, walk.lead
        self._end(walk)
        if ended_ns := walk.end_ns:
            leader.load.served((ended_ns - walk.began_ns) / 1e9)
        node, run = walk.moved or (leader, lead)
        node.release(run)
        self._settle(walk, ())
        if not node.is_dirty and len(node.scheduler):
            self._executor.mark_dirty(node)

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
                held = walk.held[:1]  # at once: it may end in its thread meanwhile
                if held and held[0][2] is run:
                    self._part(walk)
                    break
        return not run.is_step

    def is_visited(self, node: OpDispatcher) -> bool:
        """Return whether any walk under way may come, or be, at an Op."""
        return any(plan.walks and node in plan.nodes for plan in self._plans)

    def close(self) -> None:
        """Cancel the timers."""
        self.hosted.close()
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
