"""Fusing: has quick Ops that follow each other run in one go; see `walk`.

Which Ops are quick is seen by how long they take, so groups form, come apart and form again. On the
event loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from pipeline.engine.batch_run import BatchRun
from pipeline.engine.channel import Receiver, alone
from pipeline.engine.fusable import (
    goes,
    goes_along,
    is_bound,
    obstacle,
    place_of,
)
from pipeline.engine.hosting import HostedGroups, is_hosted, with_one_exit
from pipeline.engine.walk import Step, WalkPlan
from pipeline.engine.walk_api import Lender
from pipeline.engine.walk_rows import WalkRows
from pipeline.engine.walks import Walks
from pipeline.engine.worker_api import Loop

if TYPE_CHECKING:
    from pipeline.engine.dispatcher import OpDispatcher
    from pipeline.engine.edges import Edges
    from pipeline.engine.executor import Executor

_MOST_STEPS = 64


class Fusing(Walks):
    """Groups of Ops, and the walks through them.

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
        super().__init__(executor, loop, clock_ns)
        self._nodes: tuple[OpDispatcher, ...] = tuple(executor.nodes.values())
        self._plans: list[WalkPlan] = []
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
            books=tuple((node.links, node.pace) for node in inside),
            recorders=tuple(node.spans for node in inside),
            watches=tuple(node.watch for node in inside if node.watch.timeout_s is not None),
        )
        if (journal := leader.spans.journal) is not None:
            plan.rows = WalkRows(journal, plan.recorders, plan.last_read)
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

    def is_visited(self, node: OpDispatcher) -> bool:
        """Return whether any walk under way may come, or be, at an Op."""
        return any(plan.walks and node in plan.nodes for plan in self._plans)

    def close(self) -> None:
        """Cancel the timers."""
        super().close()
        self.hosted.close()
