"""The arrows of a graph, and its layout: columns by depth, with few crossing lines."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import msgspec

from pipeline.engine.graph import Graph
from pipeline.op import Op

REQUEST_BOX, RESPONSE_BOX = "@request", "@response"
"""Names of the RequestOp and the ResponseOp in a drawing: no Op is called so by chance."""

Place = tuple[int, float]
Edge = tuple[str, str]
_Point = (
    str | tuple[str, str, int]
)  # a node, or the place where an edge passes a column: (*edge, column)

_WIRE_ROWS = 0.3
_SWEEPS = 6  # over the columns, forwards and backwards; more rarely change anything


class Box(msgspec.Struct, frozen=True):
    """One Op. `column` counts from 0, `row` is relative to the middle: negative is above."""

    name: str
    kind: str
    column: int
    row: float


class DrawnEdge(msgspec.Struct, frozen=True):
    """One Op read by another; `is_jump`: only if the first jumps, or loops, to it.

    `through` has (column, row) of the places between them.
    """

    source: str
    target: str
    through: list[tuple[int, float]]
    is_jump: bool = False


class Layout(msgspec.Struct, frozen=True):
    """A graph, ready to be drawn."""

    boxes: list[Box]
    wires: list[DrawnEdge]


class Arrows(msgspec.Struct, frozen=True):
    """All Ops of a graph, each after its input Ops, and the edges between them.

    All numbers are indexes in `ops`: `edges` (from, to), `jumps` (from, to, the name of the Op that
    the first answers for), `loops` (from, to, maximum laps of a request).
    """

    ops: tuple[Op, ...]
    edges: list[tuple[int, int]]
    jumps: list[tuple[int, int, str]]
    loops: list[tuple[int, int, int]]


def arrows_of(graph: Graph) -> Arrows:
    """Return the Ops of a graph and its arrows."""
    ops = (graph.request_op, *graph.ops, graph.response_op)
    places = {op: place for place, op in enumerate(ops)}
    named = {op.name: place for place, op in enumerate(graph.ops, 1)}
    read = {op: list(dict.fromkeys(op.get_input_ops())) for op in ops}
    edges = [(places[source], places[op]) for op in ops for source in read[op]]
    jumps = [
        (places[op], places[reader], target.name)  # where the answers of the jump's target go
        for op in graph.ops
        for target in op.get_jump_to_ops()
        for reader in ops
        if target in read[reader]
    ]
    loops = [
        (places[op], named[name], op.pipeline_max_loops)
        for op in graph.ops
        for name in op.pipeline_loop_to
    ]
    return Arrows(ops, edges, jumps, loops)


def layout_of(graph: Graph) -> Layout:
    """Lay a pipeline out from its RequestOp on the left to its ResponseOp."""
    arrows = arrows_of(graph)
    names = [REQUEST_BOX, *(op.name for op in graph.ops), RESPONSE_BOX]
    edges = [(names[source], names[reader]) for source, reader in arrows.edges]
    beside = (*arrows.jumps, *arrows.loops)
    jumps = dict.fromkeys((names[source], names[reader]) for source, reader, _ in beside)
    new_jumps = [jump for jump in jumps if jump not in edges]
    places, through = lay_out(names, edges, new_jumps)
    return Layout(
        boxes=[
            Box(name, type(op).__name__, *places[name])
            for name, op in zip(names, arrows.ops, strict=True)
        ],
        wires=[DrawnEdge(*edge, through[edge], edge not in edges) for edge in (*edges, *new_jumps)],
    )


def lay_out(
    names: Sequence[str], edges: Sequence[Edge], jumps: Sequence[Edge] = ()
) -> tuple[dict[str, Place], dict[Edge, list[Place]]]:
    """Return (column, row) of each node, and the nodes that each edge and jump passes.

    Args:
        names: of the nodes, each after its predecessors.
        edges: pairs of names.
        jumps: pairs of names; they may lead back, and then pass nothing.
    """
    depth = _depths(names, edges)
    points: dict[Edge, list[_Point]] = {
        (source, target): [
            (source, target, column) for column in range(depth[source] + 1, depth[target])
        ]
        for source, target in (*edges, *jumps)
    }
    columns = _columns(names, depth, points)
    steps = [
        step
        for (source, target), between in points.items()
        if depth[source] < depth[target]
        for step in zip([source, *between], [*between, target], strict=True)
    ]
    places = _places(_untangled(columns, steps))
    nodes = {name: places[name] for name in names}
    return nodes, {edge: [places[point] for point in between] for edge, between in points.items()}


def _depths(names: Sequence[str], edges: Sequence[Edge]) -> dict[str, int]:
    """Return the length of the longest path to each node."""
    depth = dict.fromkeys(names, 0)
    for name in names:
        before = [depth[source] + 1 for source, target in edges if target == name]
        depth[name] = max(before, default=0)
    return depth


_Columns = list[list[_Point]]
_Step = tuple[_Point, _Point]


def _columns(
    names: Sequence[str], depth: dict[str, int], points: dict[Edge, list[_Point]]
) -> _Columns:
    columns: _Columns = [[] for _ in range(max(depth.values()) + 1)]
    for name in names:
        columns[depth[name]].append(name)
    for (source, _), between in points.items():
        for column, point in enumerate(between, depth[source] + 1):
            columns[column].append(point)
    return columns


def _untangled(columns: _Columns, steps: Sequence[_Step]) -> _Columns:
    """Return the best of a few orders, with points near the points that they are linked to."""
    before: dict[_Point, list[_Point]] = {}
    after: dict[_Point, list[_Point]] = {}
    for source, target in steps:
        after.setdefault(source, []).append(target)
        before.setdefault(target, []).append(source)
    best, least = columns, _crossings(columns, after)
    for sweep in range(_SWEEPS):
        onwards = sweep % 2 == 0
        columns = _swept(columns, before if onwards else after, onwards)
        crossings = _crossings(columns, after)
        if crossings < least:
            best, least = columns, crossings
    return best


def _swept(columns: _Columns, linked: dict[_Point, list[_Point]], onwards: bool) -> _Columns:
    rows = {point: row for point, (_, row) in _places(columns).items()}
    swept: _Columns = []
    for column in columns if onwards else reversed(columns):
        middle = {
            point: fmean(rows[other] for other in linked.get(point, [point])) for point in column
        }
        swept.append(sorted(column, key=middle.__getitem__))
        rows |= {point: row for point, (_, row) in _places([swept[-1]]).items()}
    return swept if onwards else swept[::-1]


def _crossings(columns: _Columns, after: dict[_Point, list[_Point]]) -> int:
    place = {point: number for column in columns for number, point in enumerate(column)}
    total = 0
    for column in columns:
        lines = [(place[point], place[end]) for point in column for end in after.get(point, [])]
        total += sum(
            (one[0] - other[0]) * (one[1] - other[1]) < 0
            for number, one in enumerate(lines)
            for other in lines[:number]
        )
    return total


def _places(columns: _Columns) -> dict[_Point, Place]:
    """Centre every column around row 0; an edge needs less room than an Op."""
    places: dict[_Point, Place] = {}
    for number, column in enumerate(columns):
        sizes = [1.0 if isinstance(point, str) else _WIRE_ROWS for point in column]
        upper = -sum(sizes) / 2
        for point, size in zip(column, sizes, strict=True):
            places[point] = (number, upper + size / 2)
            upper += size
    return places
