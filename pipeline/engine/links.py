"""Links: the neighbours of an Op's dispatcher in the graph; and how a graph is linked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from pipeline.engine.payload import LOCAL
from pipeline.op import Op

if TYPE_CHECKING:
    from pipeline.engine.dispatcher import OpDispatcher


class Links(msgspec.Struct, eq=False):
    """Neighbours of an Op: those that its answers lead to.

    Attributes:
        successors: those that read its answers.
        below: all that its answers lead to.
        targets: of its jumps.
        runs_again: what runs again after it jumped back.
        begins_laps: those of them that read no other Op.
        is_target: whether jumps are for it.
        opens_payloads: whether it has to open what it reads, for its workers cannot.
    """

    successors: tuple[OpDispatcher, ...] = ()
    below: frozenset[OpDispatcher] = frozenset()
    targets: tuple[OpDispatcher, ...] = ()
    runs_again: frozenset[OpDispatcher] = frozenset()
    begins_laps: tuple[OpDispatcher, ...] = ()
    is_target: bool = False
    opens_payloads: bool = False


def link(nodes: dict[Op, OpDispatcher], successors_of: Callable[[Op], list[Op]]) -> None:
    """Tell every dispatcher of its neighbours. `nodes` are in the order of the graph."""
    domains = {node.workers.memory_domain for node in nodes.values()}
    for op, node in reversed(nodes.items()):
        links = node.links
        links.successors = tuple(nodes[successor] for successor in successors_of(op))
        further = (after.links.below for after in links.successors)
        links.below = frozenset(links.successors).union(*further)
        links.opens_payloads = bool(domains - {LOCAL, node.workers.memory_domain})
    for op, node in nodes.items():
        links = node.links
        links.targets = tuple(nodes[target] for target in op.get_jump_to_ops())
        back = [target.links.below for target in links.targets if node in target.links.below]
        links.runs_again = frozenset().union(*back)
        links.begins_laps = _wholly_below(node, nodes)
        for target in links.targets:
            target.links.is_target = True
    _bound(list(nodes.values()))


def _wholly_below(jumper: OpDispatcher, nodes: dict[Op, OpDispatcher]) -> tuple[OpDispatcher, ...]:
    """Return the Ops that run again, with all that they read, when `jumper` jumps back."""
    found: dict[OpDispatcher, None] = {}
    for target in jumper.links.targets:
        inside = {target}
        for op, node in nodes.items() if jumper in target.links.below else ():
            if all(nodes.get(producer) in inside for producer in op.get_input_ops()):
                inside.add(node)
                found[node] = None
    return tuple(found)


def _bound(nodes: list[OpDispatcher]) -> None:
    """Set who waits for a place in whose channel.

    An Op fills the channels of its successors and, where it jumps, of its targets' successors. It
    waits only for those further down, so that two never wait for each other.
    """
    for place, node in enumerate(nodes):
        links = node.links
        jumped = (after for target in links.targets for after in target.links.successors)
        readers = {*links.successors, *jumped}
        behind = [other for other in nodes[place + 1 :] if other in readers]
        node.room.behind = tuple(other.scheduler for other in behind)
        for other in behind:
            other.room.held_back += (node,)
