"""Where the Ops of a graph stand when it is drawn: columns by depth, few crossing lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from pipeline.engine.graph import Graph
from pipeline.op import Op

REQUEST_BOX, RESPONSE_BOX = "@request", "@response"
"""Names of the RequestOp and the ResponseOp in a drawing: no Op is called so by chance."""

Place = tuple[int, float]
Edge = tuple[str, str]
_Point = str | tuple[str, str, int]  # a node, or where a wire passes a column: (*edge, column)

_WIRE_ROWS = 0.3
_SWEEPS = 6  # over the columns, there and back; more of them hardly ever change anything


class Box(msgspec.Struct, frozen=True):
    """One Op. `column` counts from 0, `row` is around 0: what is above is negative."""

    name: str
    kind: str
    column: int
    row: float


class DrawnEdge(msgspec.Struct, frozen=True):
    """One Op read by another; with `is_jump` only if the first jumps (`jump_to_ops`).

    `through` has (column, row) of the places between both.
    """

    source: str
    target: str
    through: list[tuple[int, float]]
    is_jump: bool = False


class Layout(msgspec.Struct, frozen=True):
    """A graph, ready to be drawn."""

    boxes: list[Box]
    wires: list[DrawnEdge]


def layout_of(graph: Graph) -> Layout:
    """A pipeline from its RequestOp on the left to its ResponseOp."""
    names: dict[Op, str] = {op: op.name for op in graph.ops}
    names |= {graph.request_op: REQUEST_BOX, graph.response_op: RESPONSE_BOX}
    readers = (*graph.ops, graph.response_op)
    edges = _unique((names[source], names[op]) for op in readers for source in op.get_input_ops())
    jumps = _unique(
        (names[op], names[reader])  # where the answers of the jump's target go
        for op in graph.ops
        for target in op.get_jump_to_ops()
        for reader in readers
        if target in reader.get_input_ops()
    )
    jumps = [jump for jump in jumps if jump not in edges]
    ordered = [names[op] for op in (graph.request_op, *readers)]
    places, through = lay_out(ordered, edges, jumps)
    kinds = {name: type(op).__name__ for op, name in names.items()}
    return Layout(
        boxes=[Box(name, kinds[name], *places[name]) for name in ordered],
        wires=[DrawnEdge(*edge, through[edge], edge in jumps) for edge in (*edges, *jumps)],
    )


def _unique(edges: Iterable[Edge]) -> list[Edge]:
    return list(dict.fromkeys(edges))


def lay_out(
    names: Sequence[str], edges: Sequence[Edge], jumps: Sequence[Edge] = ()
) -> tuple[dict[str, Place], dict[Edge, list[Place]]]:
    """(column, row) of each node, and those that each edge and jump passes on its way.

    Args:
        names: of the nodes, each after all that it is reached from.
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
    """The longest way to each node."""
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
    """The best of a few orders in which each point stands amid those that it is linked with."""
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
        middle = {point: _mean(rows, linked.get(point, [point])) for point in column}
        swept.append(sorted(column, key=middle.__getitem__))
        rows |= {point: row for point, (_, row) in _places([swept[-1]]).items()}
    return swept if onwards else swept[::-1]


def _mean(rows: dict[_Point, float], points: list[_Point]) -> float:
    return sum(rows[point] for point in points) / len(points)


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
    """Every column is centred around row 0; a wire needs less room than an Op."""
    places: dict[_Point, Place] = {}
    for number, column in enumerate(columns):
        sizes = [1.0 if isinstance(point, str) else _WIRE_ROWS for point in column]
        upper = -sum(sizes) / 2
        for point, size in zip(column, sizes, strict=True):
            places[point] = (number, upper + size / 2)
            upper += size
    return places
