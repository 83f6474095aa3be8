"""Graph: the checked DAG of Ops from one RequestOp to one ResponseOp."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.errors import GraphError
from pipeline.op import Op, RequestOp, ResponseOp


@dataclass(frozen=True, slots=True)
class Graph:
    """The Ops of a pipeline, each after all Ops that it reads."""

    request_op: RequestOp
    response_op: ResponseOp
    ops: tuple[Op, ...]

    @property
    def all_ops(self) -> tuple[Op, ...]:
        """Return all Ops, with the RequestOp and the ResponseOp."""
        return (self.request_op, *self.ops, self.response_op)

    @property
    def last_op(self) -> Op:
        """Return the Op whose answer the ResponseOp packs."""
        return self.response_op.get_input_ops()[0]

    def successors(self, op: Op) -> list[Op]:
        """Return the Ops that read `op`, in graph order; the ResponseOp is not among them."""
        return [other for other in self.ops if op in other.get_input_ops()]


def build_graph(
    response_op: ResponseOp, on_loose: Callable[[Sequence[Op]], None] | None = None
) -> Graph:
    """Collect the Ops that lead to `response_op`, and check them.

    Args:
        on_loose: called with the Ops that lead nowhere, which are left out; None: they are an
            error.

    Raises:
        GraphError: naming the Ops: not one input of the ResponseOp, a cycle, not exactly one
            RequestOp, a source that is not a RequestOp, duplicate names, Ops that lead nowhere,
            jump targets outside the graph, loops to Ops that do not lead back.
    """
    if not isinstance(response_op, ResponseOp):
        raise GraphError(
            f"Failed to set response_op: expected a ResponseOp, found {response_op!r} "
            f"({type(response_op).__name__})."
        )
    inputs = response_op.get_input_ops()
    if len(inputs) != 1:
        raise GraphError(
            f"Failed to set response_op: a ResponseOp reads exactly one Op, found {len(inputs)} "
            f"({names_of(inputs)}). Put one Op before it that combines them."
        )
    ordered = _in_order(response_op)
    request_op = _only_request_op(ordered)
    ops = tuple(op for op in ordered if op is not request_op and op is not response_op)
    graph = Graph(request_op, response_op, ops)
    _check_names(graph)
    if loose := _loose_ops(graph):
        if on_loose is None:
            raise GraphError(
                f"Ops that do not lead to the ResponseOp: {names_of(loose)}. Add them to the "
                "input_ops of an Op that does, or remove them."
            )
        on_loose(loose)
    for op in (request_op, *ops):
        op.pipeline_in_a_graph = True
    _check_jumps(graph)
    for op in ops:
        _check_loops(op, graph)
    return graph


def _in_order(response_op: ResponseOp) -> list[Op]:
    """Return all Ops that lead to `response_op`, inputs first; depth first, without recursion."""
    ordered: list[Op] = []
    on_path: list[Op] = []
    done: set[Op] = set()
    pending: list[tuple[Op, Iterator[Op]]] = []

    def enter(op: Op) -> None:
        on_path.append(op)
        pending.append((op, iter(op.get_input_ops())))

    enter(response_op)
    while pending:
        op, inputs = pending[-1]
        following = next((other for other in inputs if other not in done), None)
        if following is None:
            pending.pop()
            on_path.pop()
            done.add(op)
            ordered.append(op)
        elif following in on_path:
            cycle = [*on_path[on_path.index(following) :], following]
            raise GraphError(
                f"The Ops form a cycle: {' <- '.join(repr(member.name) for member in cycle)}. "
                "Remove one of these input_ops; to run Ops again use jump_to_ops."
            )
        else:
            enter(following)
    return ordered


def _only_request_op(ops: list[Op]) -> RequestOp:
    request_ops = [op for op in ops if isinstance(op, RequestOp)]
    orphans = [op for op in ops if not op.get_input_ops() and not isinstance(op, RequestOp)]
    if orphans:
        raise GraphError(
            f"Ops without input: {names_of(orphans)}. Give each the RequestOp, or an Op that "
            "leads back to it, as input_ops."
        )
    if len(request_ops) > 1:
        readers = {
            op.name: [other.name for other in op.get_input_ops() if other in request_ops]
            for op in ops
        }
        starts = ", ".join(repr(name) for name, op_readers in readers.items() if op_readers)
        raise GraphError(
            f"DAG contains multiple RequestOps ({len(request_ops)}), read by {starts}: create "
            "one RequestOp and hand it to all of them."
        )
    if not any(not isinstance(op, RequestOp | ResponseOp) for op in ops):
        raise GraphError("DAG contains no Op between the RequestOp and the ResponseOp: add one.")
    return request_ops[0]


def _check_names(graph: Graph) -> None:
    counts = Counter(op.name for op in (graph.request_op, *graph.ops))
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise GraphError(
            f"Op names must be unique, found more than one of {', '.join(map(repr, twice))}: "
            "give each Op its own name."
        )


def _loose_ops(graph: Graph) -> list[Op]:
    """Return the Ops that read this graph, but do not lead to the ResponseOp."""
    members = {graph.request_op, *graph.ops}
    loose: list[Op] = []
    frontier = sorted(members, key=lambda op: op.name)
    while frontier:
        for op in frontier.pop().pipeline_consumers:
            known = op in members or op in loose or op.pipeline_in_a_graph
            if not known and not isinstance(op, ResponseOp):
                loose.append(op)
                frontier.append(op)
    return loose


def _check_jumps(graph: Graph) -> None:
    for op in graph.ops:
        outside = [target for target in op.get_jump_to_ops() if target not in graph.ops]
        if outside:
            raise GraphError(
                f"Op {op.name!r} has jump_to_ops outside the graph: {names_of(outside)}."
            )


def _check_loops(op: Op, graph: Graph) -> None:
    if not op.pipeline_loop_to:
        return
    leading = {op}
    for other in reversed(graph.ops):
        if any(other in reader.get_input_ops() for reader in leading):
            leading.add(other)
    known = {lead.name for lead in leading}
    wrong = [name for name in op.pipeline_loop_to if name not in known]
    if wrong:
        raise GraphError(
            f"Op {op.name!r}: loop_to names {', '.join(map(repr, wrong))}, which does not lead to "
            f"it. Name the Op itself, or an Op that leads to it: {names_of([*leading])}."
        )
    most = op.pipeline_max_loops
    if type(most) is not int or most < 1:
        raise GraphError(f"Op {op.name!r}: max_loops must be a whole number >= 1, found {most!r}.")


def names_of(ops: Sequence[Op]) -> str:
    """Return the names of Ops for a text."""
    return ", ".join(sorted(repr(op.name) for op in ops)) or "none"
