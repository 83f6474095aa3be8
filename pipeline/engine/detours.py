"""Edges between Ops; and Detours, the router for Goto, loops and jumps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pipeline.engine.ports import LoopEdge, OpNode, Receiver, Router, alone
from pipeline.engine.request import RequestState
from pipeline.engine.run.payload import LOCAL, Absent
from pipeline.errors import GraphError
from pipeline.op import Op
from pipeline.routes import Goto


class Detours:
    """Router of answers that only some Ops get; the other Ops get an Absent.

    A target of jumps answers once, by itself or through a jump in its place; and again when a jump
    back, or a loop, makes it run again.
    """

    def __init__(self, executor: Router) -> None:
        self._executor = executor
        self._passing: dict[RequestState, list[tuple[int, Sequence[Receiver], str, Any]]] = {}

    def pass_on(
        self, request: RequestState, receivers: Sequence[Receiver], producer: str, answer: Any
    ) -> None:
        """Send answers to Ops that will pass them on without running; a loop replaces recursion."""
        entry = request.generation, receivers, producer, answer
        passing = self._passing.get(request)
        if passing is not None:  # the running call handles it
            passing.append(entry)
            return
        # Each request has its own list: a request that is admitted when this one ends must not wait
        # here.
        passing = self._passing[request] = [entry]
        try:
            for generation, receivers, producer, answer in passing:
                if request.generation == generation:
                    self._executor.send(request, receivers, producer, answer)
        finally:
            del self._passing[request]

    def goto(self, source: OpNode, request: RequestState, goto: Goto) -> None:
        """Send an answer to the Ops that it names, and an Absent to the others."""
        links, to = source.links, goto.to
        if not to:
            links.withheld.update(links.successors)
            self._executor.route(source, request, Absent((source.name,)))
            return
        named = [reader for reader in links.successors if reader.name in to]
        if len(named) == len(to):
            if links.is_target:
                request.detoured().settled.add(source)
            self._send_to(named, request, source, goto.answer)
        elif len(to) == 1 and to[0] in links.loops:
            self._loop(source, request, links.loops[to[0]], goto.answer)
        else:
            self._executor.route(source, request, bad_goto(source, to))

    def _send_to(
        self,
        named: Sequence[OpNode],
        request: RequestState,
        source: OpNode,
        answer: Any,
    ) -> None:
        generation = request.generation
        others = [reader for reader in source.links.successors if reader not in named]
        source.links.withheld.update(others)
        if named:
            self._executor.send(request, alone(named), source.name, answer)
        if others and request.generation == generation:
            self.pass_on(request, alone(others), source.name, Absent((source.name,)))

    def _loop(self, source: OpNode, request: RequestState, loop: LoopEdge, answer: Any) -> None:
        """Run an Op that leads to `source` again, and all Ops between them."""
        detours = request.detoured()
        if detours.loops[source] >= source.op.pipeline_max_loops:
            self._executor.route(source, request, _too_many_loops(source, loop))
            return
        detours.loops[source] += 1
        detours.settled -= {loop.target, *loop.below}
        source.links.taken[loop.target] += 1
        source.links.withheld.update(source.links.successors)
        loop.target.begin_lap(request)
        for node in loop.below:
            node.begin_lap(request, loop.again)
        loop.target.enqueue(request, source.name, answer, is_all=True)

    def jump(self, source: OpNode, request: RequestState, answer: Any) -> None:
        """Send an answer in the place of the answers of the Ops that it jumps to."""
        executor = self._executor
        if executor.last in source.links.targets:
            executor.complete(request, answer)
            return
        detours, generation, links = request.detoured(), request.generation, source.links
        distinct = dict.fromkeys(links.targets)
        settled = detours.settled
        targets = [to for to in distinct if to not in settled or source in to.links.below]
        detours.settled = (settled | {source}) - links.runs_again | {*targets}
        for node in links.begins_laps:
            node.begin_lap(request, node.channel.producers)
        for target in targets:
            if request.generation == generation:
                readers = target.links.successors
                links.taken.update(readers)
                self._executor.send(request, alone(readers), target.name, answer, source.name)
        is_heard_of = source in links.targets or source in links.runs_again
        if is_heard_of:
            links.withheld.update(links.successors)
        elif request.generation == generation:
            self._send_to((), request, source, None)


# Edges of the graph -------------------------------------------------------------------------------


def link(nodes: Mapping[Op, OpNode], successors_of: Callable[[Op], list[Op]]) -> None:
    """Set the neighbours of every dispatcher. `nodes` are in the order of the graph."""
    domains = {node.workers.memory_domain for node in nodes.values()}
    for op, node in reversed([*nodes.items()]):
        links = node.links
        links.successors = tuple(nodes[successor] for successor in successors_of(op))
        links.receivers = alone(links.successors)
        further = (after.links.below for after in links.successors)
        links.below = frozenset(links.successors).union(*further)
        links.opens_payloads = bool(domains - {LOCAL, node.workers.memory_domain})
    for op, node in nodes.items():
        links = node.links
        links.targets = tuple(nodes[target] for target in op.get_jump_to_ops())
        back = [target.links.below for target in links.targets if node in target.links.below]
        links.loops = _loops_of(op, nodes)
        links.runs_again = frozenset().union(*back)
        links.begins_laps = _wholly_below(node, nodes)
        for target in links.targets:
            target.links.is_target = True
    _bound(list(nodes.values()))


def _wholly_below(jumper: OpNode, nodes: Mapping[Op, OpNode]) -> tuple[OpNode, ...]:
    """Return the Ops that run again, with all Ops that they read, when `jumper` jumps back."""
    below: dict[OpNode, None] = {}
    for target in jumper.links.targets:
        inside = {target}
        for op, node in nodes.items() if jumper in target.links.below else ():
            if all(nodes.get(producer) in inside for producer in op.get_input_ops()):
                inside.add(node)
                below[node] = None
    return tuple(below)


def _bound(nodes: list[OpNode]) -> None:
    """Set, for each Op, which Ops wait for a place in its channel.

    An Op fills the channels of its successors and, if it jumps, of its targets' successors. It
    waits only for Ops later in the graph, so that two Ops never wait for each other.
    """
    for place, node in enumerate(nodes):
        links = node.links
        jumped = (after for target in links.targets for after in target.links.successors)
        readers = {*links.successors, *jumped}
        behind = [other for other in nodes[place + 1 :] if other in readers]
        node.room.behind = tuple(other.scheduler for other in behind)
        for other in behind:
            other.room.held_back += (node,)


def _loops_of(op: Op, nodes: Mapping[Op, OpNode]) -> dict[str, LoopEdge]:
    """Return an Op's loops; set which parts the joins in them have to keep."""
    named = {node.name: node for node in nodes.values()}
    loops = {}
    for name in op.pipeline_loop_to:
        target = named[name]
        below = tuple(node for node in nodes.values() if node in target.links.below)
        again = frozenset(node.name for node in (target, *below))
        loops[name] = LoopEdge(target, below, again)
        target.links.is_in_loop = True
        for node in below:
            node.links.is_in_loop = True
            outside = frozenset(node.channel.producers) - again
            if outside and node.op.pipeline_config.channel_recv_first_arrive:
                raise GraphError(
                    f"Op {node.name!r} takes the first of several answers that arrives, and "
                    f"{op.name!r} may run it again by its loop_to {name!r}: then it cannot read "
                    f"Ops outside the loop, which answer only once: {_listed(sorted(outside))}."
                )
            node.channel.repeats |= outside
    return loops


# Errors ---------------------------------------------------------------------------------------


def bad_goto(source: OpNode, to: tuple[str, ...]) -> GraphError:
    """Return the error for a Goto to an Op that it cannot lead to."""
    links = source.links
    known = {reader.name for reader in links.successors} | links.loops.keys()
    text = f"Op {source.name!r} returned Goto to {_listed(to)}: "
    if known.issuperset(to):
        text += "name one loop, or Ops that read this one, not both"
    else:
        text += f"{_listed([name for name in to if name not in known])} does not read it"
    readers = _listed([reader.name for reader in links.successors])
    return GraphError(f"{text}. Its readers: {readers}; loop_to: {_listed(links.loops)}.")


def _too_many_loops(source: OpNode, loop: LoopEdge) -> GraphError:
    """Return the error for a request that has looped too often."""
    most = source.op.pipeline_max_loops
    return GraphError(
        f"Op {source.name!r} has sent the request back to {loop.target.name!r} {most} times, "
        "which is its max_loops."
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
