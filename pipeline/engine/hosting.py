"""Hosting: quick Ops in processes that follow each other run in one go, in processes of their own.

Each of these has a copy of every Op of the group. The Ops' own processes stay, for what does not
go through the whole group, and for when it comes apart. On the event loop only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from pipeline.engine.batch_run import BatchRun
from pipeline.engine.walk import Walk, WalkPlan
from pipeline.engine.walk_api import Host, Hosting
from pipeline.engine.worker_api import Loop
from pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pipeline.engine.dispatcher import OpDispatcher
    from pipeline.engine.fusing import Fusing

_LOGGER = logging.getLogger(__name__)

_SETTLED_S = 0.5  # Ops become quick one after the other: processes are started for all at once

Members = tuple["OpDispatcher", ...]


class HostedGroups:
    """The groups of Ops in processes: starts hosts for them, and has those end that are not needed.

    The Ops of a group whose host cannot start go each by itself from then on.
    """

    def __init__(self, fusing: Fusing, loop: Loop) -> None:
        self._fusing = fusing
        self._loop = loop
        self._hosts: dict[Members, Host] = {}
        self._wanted: dict[Members, WalkPlan] = {}
        self._timer: Any = None
        self._is_closed = False

    def regroup(self, nodes: Iterable[OpDispatcher]) -> None:
        """Plan the groups anew; those whose host is up run in one go from now on."""
        self._wanted = {}
        hosted = [node for node in nodes if is_hosted(node)]
        for node in hosted:
            if node.pace.is_fusable and cast(Hosting, node.workers).keeps_state:
                node.pace.is_fusable = False
                _LOGGER.info("[%s] shares no process: requests change its attributes", node.name)
        for node in hosted:
            node.pace.plan, node.pace.is_planned = None, True
            if not any(node in members for members in self._wanted):
                self._plan(node)
        for members, host in self._hosts.items():
            if members not in self._wanted:
                host.take_back_all()
        is_settled = self._is_closed or self._wanted.keys() == self._hosts.keys()
        if self._timer is None and not is_settled:
            self._timer = self._loop.call_at(self._loop.time() + _SETTLED_S, self._settle)

    def _plan(self, leader: OpDispatcher) -> None:
        plan = self._fusing.planned(leader)
        if plan is None:
            return
        members = tuple(step.node for step in plan.steps)
        self._wanted[members] = plan
        host = self._hosts.get(members)
        if host is not None and host.is_up:
            leader.pace.plan, plan.host = plan, host

    def _settle(self) -> None:
        """Start the hosts that are missing, and have the others end."""
        self._timer = None
        for members in [each for each in self._hosts if each not in self._wanted]:
            self._hosts.pop(members).retire()
        for members, plan in self._wanted.items():
            workers = members[0].workers
            if members not in self._hosts and isinstance(workers, Hosting):
                self._hosts[members] = workers.host(plan, self)

    def host_changed(self) -> None:
        for members, host in list(self._hosts.items()):
            if host.has_failed:
                del self._hosts[members]
                for node in members:
                    node.pace.is_fusable = False
        self._fusing.changed()

    def returned(self, walk: Walk) -> None:
        self._fusing.undo(walk)
        leader = walk.plan.steps[0].node
        leader.workers.submit([walk.lead])
        leader.watch.submitted()

    def crashed(self, walk: Walk, error: PipelineError) -> None:
        place, _, run = walk.held[0]
        node = walk.plan.steps[place].node
        if self._fusing.part(run):
            self._fusing.hung(node)
            node.lost(run, error)

    def close(self) -> None:
        """Start nothing any more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()


def is_hosted(node: OpDispatcher) -> bool:
    """Return whether walks through an Op need a host."""
    return isinstance(node.workers, Hosting)


def go_along_in_process(leader: OpDispatcher, node: OpDispatcher) -> bool:
    """Return whether two Ops may share a process.

    Where a process ends, what it had finished of a request goes with it. So none but the first
    may be tried again, and one with a model of its own is not loaded twice.
    """
    return (
        is_hosted(leader)
        and is_hosted(node)
        and node.op.concurrency == leader.op.concurrency
        and node.op.pipeline_config.retry <= 1
        and node.workers.note is None
        and leader.workers.note is None
    )


def with_one_exit(inside: Sequence[OpDispatcher], last: OpDispatcher) -> list[OpDispatcher]:
    """Return as many of a group's Ops, from the first on, as leave it at one place only.

    So nothing outside waits for, or goes on with, what a process had finished when it ended.
    """
    for count in range(len(inside), 1, -1):
        kept = set(inside[:count])
        exits = [
            node for node in kept if node is last or not kept.issuperset(node.links.successors)
        ]
        if len(exits) == 1:
            return list(inside[:count])
    return list(inside[:1])


def takes(plan: WalkPlan, runs: Sequence[BatchRun]) -> bool:
    """Return whether the host, if there is one, takes these runs as walks: all of them, or none."""
    return plan.host is None or (
        plan.host.is_up
        and all(
            not item.is_alone and bool(item.entered) == bool(plan.entries)
            for run in runs
            for item in run.items
        )
    )
