"""OpGroups: groups of quick Ops that follow each other, and that a trip runs in a row."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.config.batching import traits_of
from pipeline.config.sections import bounds_of
from pipeline.engine.journal.spans import TripRows
from pipeline.engine.ports import OpNode, PackStop, Receiver, Router, TripStop, alone
from pipeline.engine.run.hooks import asking
from pipeline.engine.run.op_facts import OpFacts
from pipeline.engine.trips.trip import Step, TripPlan
from pipeline.op import EXECUTOR_NAME, Op, runs_process

if TYPE_CHECKING:
    from pipeline.engine.trips.pace import Pace
    from pipeline.engine.worker_api import Workers

_MOST_STEPS = 64
_BOUND_TO_A_THREAD = (sqlite3.Connection, sqlite3.Cursor, threading.local)
_LOOK_NS = 1_000_000_000  # the period between checks of an Op that keeps failing
_MOST_LOOKED_AT = 256  # values in an Op, or in one of its containers


class OpGroups:
    """The groups of a graph, formed again when an Op becomes quick or slow.

    Args:
        is_on: whether there are groups at all.
    """

    def __init__(self, executor: Router, is_on: bool) -> None:
        self._executor = executor
        self._nodes: tuple[OpNode, ...] = tuple(executor.nodes.values())
        self._plans: list[TripPlan] = []
        self._of_leader: dict[TripStop, TripPlan | None] = {}
        self._is_on = is_on
        self._unpacker: TripStop | None = None
        self._packer: PackStop | None = None
        self.end_at(None, None)

    def end_at(self, unpacker: TripStop | None, packer: PackStop | None) -> None:
        """Let groups begin with the RequestOp, and end with the ResponseOp, if possible."""
        for end in (unpacker, packer):
            if end is not None and self._is_on:
                end.pace.is_fusable = end.pace.was_fusable = is_fusable_end(end)
        self._unpacker = unpacker if unpacker and unpacker.pace.is_fusable else None
        self._packer = packer if packer and packer.pace.is_fusable else None
        is_on = self._is_on and len(self._nodes) + len(self._ends) > 1
        for node in self._nodes:
            is_fusable = is_on and obstacle(node, self._nodes) is None
            node.pace.is_fusable = node.pace.was_fusable = is_fusable

    @property
    def _ends(self) -> list[TripStop]:
        return [end for end in (self._unpacker, self._packer) if end is not None]

    def names(self) -> dict[str, tuple[str, ...]]:
        """Return, for each Op in a group, the names of the Ops in the group."""
        names: dict[str, tuple[str, ...]] = {}
        for node in self._nodes:
            plan = None if node.name in names else self.plan(node)
            if plan is not None and len(plan.ops) > 1:
                group = tuple(plan.steps[place].name for place in plan.ops)
                names |= {name: group for name in group if name not in names}
        return names

    def form(self) -> None:
        """Form the groups again. Running and queued trips continue with their old plans."""
        self._plans = [plan for plan in self._plans if plan.trips]
        self._of_leader.clear()
        for stop in (*self._nodes, *self._ends):
            if is_groupable(stop) and is_bound(stop.op, stop.workers):
                stop.pace.is_fusable = False
            stop.pace.entered = ()
        for node in self._nodes:
            node.links.receivers = self._receivers(node.links.successors)
        self._executor.receivers = self._receivers(self._executor.entries)

    def _receivers(self, readers: Sequence[OpNode]) -> tuple[Receiver, ...]:
        """Return the receivers of an answer: of Ops that are entered together only the first."""
        single = [node for node in readers if is_groupable(node) and not node.channel.is_join]
        if len(single) < 2:
            return alone(readers)
        first = min(single, key=place_of)
        others = [node for node in single if node is not first and takes_single_requests(node)]
        first.pace.entered = entered = tuple(sorted(others, key=place_of))
        return tuple(
            (node, entered if node is first else ()) for node in readers if node not in entered
        )

    def plan(self, leader: TripStop) -> TripPlan | None:
        """Return the plan of trips that begin at `leader`; None: there are none."""
        try:
            return self._of_leader[leader]
        except KeyError:
            plan = self._of_leader[leader] = self.planned(leader)
            return plan

    def planned(self, leader: TripStop) -> TripPlan | None:
        """Make the plan of a group that begins at `leader`; None: there is no group."""
        receivers = self._executor.receivers
        opens = leader is self._unpacker
        if opens and (len(receivers) > 1 or receivers[0][0].channel.is_join):
            return None
        first: Any = receivers[0][0] if opens else leader
        if not (is_groupable(leader) and is_groupable(first)):
            return None
        inside, entered = self._inside(first), first.pace.entered
        closes = (
            self._packer is not None
            and is_groupable(self._packer)
            and self._executor.last in inside
        )
        if len(inside) + opens + closes == 1 or not all(node in inside for node in entered):
            return None
        places = {node: place for place, node in enumerate(inside, opens)}
        steps = [self._step(node, places, closes) for node in inside]
        if opens:
            steps.insert(0, _opening(leader, [places[node] for node in (first, *entered)]))
        if closes and self._packer is not None:
            producers = (self._executor.last.name,)
            steps.append(_end(self._packer, "@pack", producers, make=self._packer.step))
        ops = range(opens, opens + len(inside))
        plan = TripPlan(
            tuple(steps),
            None if opens else first,
            ops,
            () if opens else tuple(places[node] for node in entered),
            () if opens else entered,
            0 if opens else next((at for at in ops if not steps[at].is_plain), ops.stop),
            closes,
            books=tuple((step.node.links, step.node.pace) for step in steps),
            is_whole=len(inside) == len(self._nodes),
            recorders=tuple(node.spans for node in inside),
            watches=tuple(node.watch for node in inside if node.watch.timeout_s is not None),
        )
        if (journal := first.spans.journal) is not None:
            last_read = [max(-1, steps[place].last_read - opens) for place in ops]
            plan.rows = TripRows(journal, plan.recorders, last_read)
        self._plans.append(plan)
        return plan

    def _inside(self, leader: OpNode) -> list[OpNode]:
        """Return the Ops of the group that begins at `leader`, each after the Ops that it reads."""
        entered, inside, names = leader.pace.entered, [leader], {leader.name}
        for node in self._nodes[place_of(leader) + 1 :]:
            reads_inside = names.issuperset(node.channel.producers)
            is_next = reads_inside and is_groupable(node) and begins_at_once(node)
            if (is_next or node in entered) and len(inside) < _MOST_STEPS:
                inside.append(node)
                names.add(node.name)
        return inside

    def _step(self, node: OpNode, places: dict[OpNode, int], closes: bool) -> Step:
        successors = node.links.successors
        outside: list[Receiver] = []
        for first, entered in node.links.receivers:
            rest = [op for op in (first, *entered) if op not in places]
            outside += [(first, entered)] if len(rest) == 1 + len(entered) else alone(rest)
        readers = tuple(
            (places[reader], order > 0)
            for order, reader in enumerate(successors)
            if reader in places
        )
        is_last = self._executor.last is node
        if is_last and closes:
            readers = ((max(places.values()) + 1, False),)
        lender = node.workers.lender
        assert lender is not None, "the others are in no group"
        is_read_outside = (is_last and not closes) or bool(outside)
        only_reader = readers[0][0] if len(readers) == 1 and not is_read_outside else 0
        return Step(
            node,
            node.name,
            lender,
            node.channel.producers,
            readers,
            is_read_outside,
            keeps_own=bool(outside) and successors[0] in places,
            outside=tuple(outside),
            only_reader=only_reader if readers else -1,
            last_read=max(
                (at for other, at in places.items() if other.name in node.channel.producers),
                default=-1,
            ),
            is_plain=OpFacts(node.op).is_plain,
        )

    def has_trips(self, node: OpNode) -> bool:
        """Return whether any running trip may come to an Op, or is there."""
        return any(plan.trips and node in plan.nodes for plan in self._plans)


def place_of(node: OpNode) -> int:
    """Return the place of an Op in the graph."""
    return node.spans.index


def is_groupable(node: TripStop) -> bool:
    """Return whether an Op, or an end of the graph, may be in a group now."""
    return node.pace.is_quick and node.pace.is_fusable


def takes_single_requests(node: OpNode) -> bool:
    """Return whether an Op takes a request alone, without waiting for others."""
    return node.op.pipeline_config.batch_size == 1 or not runs_process(node.op)


def begins_at_once(node: OpNode) -> bool:
    """Return whether an idle worker of an Op gets a request at once, alone if no other is there."""
    return takes_single_requests(node) or node.op.pipeline_config.auto_batching_timeout_s is None


def _end(end: TripStop, name: str, producers: tuple[str, ...] = (), **fields: Any) -> Step:
    """Return the step of a RequestOp or ResponseOp."""
    lender = end.workers.lender
    assert lender is not None, "the others are in no group"
    return Step(end, name, lender, producers, **{"is_plain": False, "only_reader": -1, **fields})


def _opening(unpacker: TripStop, readers: Sequence[int]) -> Step:
    """Return the step of the RequestOp; `readers` are the indexes of its readers."""
    given = tuple((place, order > 0) for order, place in enumerate(readers))
    only_reader = readers[0] if len(readers) == 1 else 0
    return _end(unpacker, EXECUTOR_NAME, readers=given, only_reader=only_reader)


def is_fusable_end(end: TripStop) -> bool:
    """Return whether a user's RequestOp or ResponseOp may be in a group."""
    config, op = end.op.pipeline_config, end.op
    is_other = end.workers.lender is None or bool(asking(op)) or bounds_of(config) is not None
    return config.fuse and not is_other and not has_threads_module(op)


def obstacle(node: OpNode, nodes: Iterable[OpNode]) -> str | None:
    """Return why an Op can never be in a group; None: it can."""
    config = node.op.pipeline_config
    if not config.fuse:
        return "fuse is false"
    if node.group_obstacle:
        return node.group_obstacle
    if node.room.size:
        return "channels are bounded"
    if node.streams:
        return "it makes or reads a stream"
    if bounds_of(config) is not None:
        return "its number of workers changes"
    if node.workers.lender is None:
        return f"its workers ({config.workers}) run only their own Op"
    if not traits_of(config.batching).lets_pass:
        return f"its scheduler, {config.batching}, has to see each request"
    if config.channel_recv_first_arrive and node.channel.is_join:
        return "it takes the first of several answers"
    if node.links.targets or node.links.is_target:
        return "it jumps, or is jumped to"
    if any(node in other.links.runs_again for other in nodes):
        return "it runs again after a jump back"
    if node.links.is_in_loop:
        return "it runs again in a loop"
    if has_threads_module(node.op):
        return "its module has thread-local data"
    return None


def has_threads_module(op: Op) -> bool:
    """Return whether a module of an Op has thread-local data."""
    modules = [sys.modules.get(kind.__module__) for kind in type(op).__mro__]
    return any(
        isinstance(value, threading.local)
        for module in modules
        if module is not None
        for value in list(vars(module).values())
    )


def is_bound(op: Op, workers: Workers) -> bool:
    """Return whether an Op holds an object, directly or within, that only its thread may use."""
    if workers.lender is None:  # they lend their Op to no other thread
        return False
    states = (vars(op), *workers.lender.states())
    values = [value for state in states for value in list(state.values())]
    is_bound_itself = any(isinstance(value, _BOUND_TO_A_THREAD) for value in values)
    return is_bound_itself or _holds_connection(values)


def is_bound_after_all(op: Op, workers: Workers, pace: Pace, now_ns: int) -> bool:
    """Check an Op again after a failure, at most once a second; return `is_bound`."""
    if now_ns - pace.looked_at_ns <= _LOOK_NS:
        return False
    pace.looked_at_ns = now_ns
    return is_bound(op, workers)


def _holds_connection(values: list[Any]) -> bool:
    """Return whether a connection of sqlite3 is in some values; skip large containers."""
    seen: set[int] = set()
    while values and len(seen) < _MOST_LOOKED_AT:
        value = values.pop()
        if isinstance(value, sqlite3.Connection | sqlite3.Cursor):
            return True
        if id(value) in seen or isinstance(value, Op | type):
            continue
        seen.add(id(value))
        if not isinstance(value, list | tuple | dict):
            try:
                value = object.__getattribute__(value, "__dict__")
            except AttributeError:
                continue
        if len(value) <= _MOST_LOOKED_AT:
            values += list(value.values()) if isinstance(value, dict) else value
    return False
