"""The layout of a graph: everything to the right of what it reads, nothing on top of another."""

from __future__ import annotations

import itertools

from fake_page import graph_of
from hypothesis import given
from hypothesis import strategies as st

from pipeline import Op, RequestOp, ResponseOp
from pipeline.engine.graph import build_graph
from pipeline.frontends.dashboard.layout import REQUEST_BOX, RESPONSE_BOX, lay_out, layout_of


@st.composite
def dags(draw):
    """(names, edges, jumps): each node reads some of those before it."""
    names = [f"n{number}" for number in range(draw(st.integers(1, 9)))]
    edges, jumps = [], []
    for number, name in enumerate(names[1:], 1):
        read = draw(st.sets(st.sampled_from(names[:number]), min_size=1, max_size=3))
        edges += [(source, name) for source in sorted(read)]
    if len(names) > 1:
        pairs = st.tuples(st.sampled_from(names), st.sampled_from(names))
        jumps = [jump for jump in draw(st.sets(pairs, max_size=3)) if jump not in edges]
    return names, edges, sorted(jumps)


@given(dags())
def test_wires_lead_to_the_right_and_boxes_do_not_overlap(dag):
    names, edges, jumps = dag
    places, through = lay_out(names, edges, jumps)
    assert set(places) == set(names)
    assert set(through) == {*edges, *jumps}
    for source, target in edges:
        path = [places[source], *through[source, target], places[target]]
        columns = [column for column, _ in path]
        assert columns == list(range(columns[0], columns[0] + len(path)))
    for jump in jumps:
        if places[jump[1]][0] <= places[jump[0]][0]:
            assert through[jump] == []
    everywhere = [*places.values(), *(place for between in through.values() for place in between)]
    assert len(everywhere) == len(set(everywhere))
    by_column = {}
    for column, row in places.values():
        by_column.setdefault(column, []).append(row)
    for rows in by_column.values():
        rows.sort()
        assert all(b - a > 0.99 for a, b in itertools.pairwise(rows))


def test_crossing_wires_are_untangled():
    #  a   b        each reads the one that is not opposite
    #    x
    #  d   c
    edges = [("s", "a"), ("s", "b"), ("b", "c"), ("a", "d"), ("c", "e"), ("d", "e")]
    places, _ = lay_out(list("sabcde"), edges)
    assert (places["a"][1] < places["b"][1]) == (places["d"][1] < places["c"][1])


def test_a_chain_is_a_straight_line():
    places, _ = lay_out(list("abc"), [("a", "b"), ("b", "c")])
    assert places == {"a": (0, 0.0), "b": (1, 0.0), "c": (2, 0.0)}


def test_a_wire_passes_around_a_box():
    edges = [("a", "b"), ("b", "c"), ("a", "c")]
    places, through = lay_out(list("abc"), edges)
    ((column, row),) = through["a", "c"]
    assert column == places["b"][0]
    assert abs(row - places["b"][1]) > 0.5


def test_a_layout_starts_at_the_request_op_and_ends_at_the_response_op():
    layout = layout_of(graph_of(("", "a"), ("", "b"), ("a", "c"), ("b", "c")))
    columns = {box.name: box.column for box in layout.boxes}
    assert columns == {REQUEST_BOX: 0, "a": 1, "b": 1, "c": 2, RESPONSE_BOX: 3}
    assert {box.name: box.kind for box in layout.boxes}[REQUEST_BOX] == "RequestOp"
    assert [box.name for box in layout.boxes][0::4] == [REQUEST_BOX, RESPONSE_BOX]
    wires = {(wire.source, wire.target) for wire in layout.wires}
    assert ("c", RESPONSE_BOX) in wires
    assert len(wires) == 5


def test_a_loop_leads_back():
    draft = Op("draft", RequestOp())
    check = Op("check", draft, loop_to=[draft, "check"])
    wires = layout_of(build_graph(ResponseOp(check))).wires
    loops = {(w.source, w.target): w.through for w in wires if w.is_jump}
    assert loops == {("check", "draft"): [], ("check", "check"): []}


def test_a_jump_leads_to_the_readers_of_its_target():
    first = Op("first", [RequestOp()])
    second = Op("second", [first])
    last = Op("last", [second])
    first.set_jump_to_ops([second])
    last.set_jump_to_ops([first])
    layout = layout_of(build_graph(ResponseOp([last])))
    jumps = {(w.source, w.target): len(w.through) for w in layout.wires if w.is_jump}
    assert jumps == {("first", "last"): 1, ("last", "second"): 0}
