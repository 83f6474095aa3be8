"""Conditions: what a Goto makes of the edges of a graph: answers that are absent, and loops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.engine.state import EdgeState
from pipeline.errors import GraphError
from pipeline.op import Op

if TYPE_CHECKING:
    from pipeline.engine.op.channel import Links
    from pipeline.engine.op.dispatcher import OpDispatcher


class Absent:
    """Stands for an answer that will not come, for it went elsewhere.

    Args:
        by: names of the Ops that sent theirs elsewhere.
    """

    __slots__ = ("by",)

    def __init__(self, by: tuple[str, ...]) -> None:
        self.by: tuple[str, ...] = by


def present(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs without those that are absent; if all are, one that says why."""
    for part in inputs.values():
        if type(part) is Absent:
            break
    else:
        return inputs
    found = {name: part for name, part in inputs.items() if type(part) is not Absent}
    if found:
        return found
    by = dict.fromkeys(name for part in inputs.values() for name in part.by)
    return {next(iter(inputs)): Absent(tuple(by))}


class WayBack(msgspec.Struct, frozen=True, eq=False):
    """A way back from an Op to one that leads to it.

    Attributes:
        target: the Op that runs again, and gets the answer.
        below: what runs again after that.
        again: the names of all these.
    """

    target: OpDispatcher
    below: tuple[OpDispatcher, ...]
    again: frozenset[str]


def loops_of(op: Op, nodes: Mapping[Op, OpDispatcher]) -> dict[str, WayBack]:
    """Return an Op's loops; what is joined in them is told whose parts it has to keep."""
    named = {node.name: node for node in nodes.values()}
    loops = {}
    for name in op.pipeline_loop_to:
        target = named[name]
        below = tuple(node for node in nodes.values() if node in target.links.below)
        again = frozenset(node.name for node in (target, *below))
        loops[name] = WayBack(target, below, again)
        target.links.is_in_loop = True
        for node in below:
            node.links.is_in_loop = True
            outside = frozenset(node.channel.producers) - again
            if outside and node.op.pipeline_config.channel_recv_first_arrive:
                raise GraphError(
                    f"Op {node.name!r} takes the first of several answers that arrives, and "
                    f"{op.name!r} may have it run again by its loop_to {name!r}: then it cannot "
                    f"read what comes once only, of {_listed(sorted(outside))}."
                )
            node.channel.repeats |= outside
    return loops


def edges_of(links: Links) -> list[EdgeState]:
    """Return who got how many of an Op's answers."""
    edges = []
    for node in dict.fromkeys((*links.successors, *links.ways)):
        is_read = node in links.successors
        sent = links.taken[node] + (links.answered - links.withheld[node] if is_read else 0)
        edges.append(EdgeState(node.name, sent, max(0, links.answered - sent)))
    return edges


# Errors ---------------------------------------------------------------------------------------


def no_such_way(source: OpDispatcher, to: tuple[str, ...]) -> GraphError:
    """Return what is told where a Goto names an Op that it cannot lead to."""
    links = source.links
    known = {reader.name for reader in links.successors} | links.loops.keys()
    text = f"Op {source.name!r} returned Goto to {_listed(to)}: "
    if known.issuperset(to):
        text += "a loop is alone, name it or Ops that read this one"
    else:
        text += f"{_listed([name for name in to if name not in known])} does not read it"
    readers = _listed([reader.name for reader in links.successors])
    return GraphError(f"{text}. Those that read it: {readers}; loop_to: {_listed(links.loops)}.")


def too_many_loops(source: OpDispatcher, loop: WayBack) -> GraphError:
    """Return what is told a request that has been looped too often."""
    most = source.op.pipeline_max_loops
    return GraphError(
        f"Op {source.name!r} has sent the request back to {loop.target.name!r} {most} times, "
        "which is its max_loops."
    )


def nowhere(absent: Absent) -> GraphError:
    """Return what is told a request of which nothing reaches the ResponseOp."""
    return GraphError(
        f"the request got lost in the graph: what {_listed(absent.by)} answered went to no Op that "
        "leads to the ResponseOp. Check Goto, or jump_to_ops."
    )


def waits_in_vain() -> GraphError:
    """Return what is told a request that no Op works on any more."""
    return GraphError(
        "the request got lost in the graph: an Op waits for an answer that will not come. Check "
        "jump_to_ops and loop_to."
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
