from __future__ import annotations

import pytest
from doubles import Tag, chain

from pipeline import Op, RequestOp, ResponseOp
from pipeline.engine.graph import build_graph
from pipeline.errors import GraphError


def names(graph):
    return [op.name for op in graph.ops]


def test_ops_follow_all_ops_that_they_read():
    read = RequestOp()
    a = Tag("a", [read])
    b = Tag("b", [a, read])
    c = Tag("c", [a])
    d = Tag("d", [c, b, a])
    graph = build_graph(ResponseOp([d]))
    order = names(graph)
    assert set(order) == {"a", "b", "c", "d"}
    assert order.index("a") < order.index("b") < order.index("d")
    assert order.index("c") < order.index("d")
    assert graph.successors(a) == [op for op in graph.ops if op in (b, c, d)]
    assert graph.last_op is d


def test_an_op_that_skips_levels_is_a_plain_edge():
    read = RequestOp()
    b = Tag("b", [Tag("a", [read])])
    assert names(build_graph(ResponseOp([Tag("j", [b, read])]))) == ["a", "b", "j"]


def test_a_very_long_chain_needs_no_recursion():
    last = chain(*(f"op{i}" for i in range(3000)))
    assert len(build_graph(ResponseOp([last])).ops) == 3000


def test_duplicate_names_are_named():
    read = RequestOp()
    last = Tag("same", [Tag("same", [read])])
    with pytest.raises(GraphError, match="unique, found more than one of 'same'"):
        build_graph(ResponseOp([last]))


def test_a_cycle_is_named():
    read = RequestOp()
    a = Tag("a", [read])
    b = Tag("b", [a])
    a.set_input_ops([read, b])
    with pytest.raises(GraphError, match="cycle: 'b' <- 'a' <- 'b'"):
        build_graph(ResponseOp([b]))


def test_two_request_ops_are_refused_by_their_readers_names():
    last = Tag("j", [Tag("a", [RequestOp()]), Tag("b", [RequestOp()])])
    with pytest.raises(GraphError, match=r"multiple RequestOps \(2\), read by 'a', 'b'"):
        build_graph(ResponseOp([last]))


def test_an_op_without_input_is_named():
    read = RequestOp()
    last = Tag("j", [Tag("a", [read]), Tag("orphan", [])])
    with pytest.raises(GraphError, match="without input: 'orphan'"):
        build_graph(ResponseOp([last]))


def test_an_op_without_a_path_to_the_end_is_named():
    read = RequestOp()
    a = Tag("a", [read])
    b = Tag("dangling", [a])
    c = Tag("behind", [b])
    with pytest.raises(GraphError, match="do not lead to the ResponseOp: 'behind', 'dangling'"):
        build_graph(ResponseOp([a]))
    assert c.get_input_ops() == [b]


def test_ops_of_another_server_on_the_same_request_op_are_not_loose():
    read = RequestOp()
    build_graph(ResponseOp([Tag("one", [read])]))
    two = Tag("two", [read])
    assert names(build_graph(ResponseOp([two]))) == ["two"]


def test_a_response_op_reads_exactly_one_op():
    read = RequestOp()
    both = [Tag("a", [read]), Tag("b", [read])]
    with pytest.raises(GraphError, match=r"exactly one Op, found 2 \('a', 'b'\)"):
        build_graph(ResponseOp(both))


def test_only_a_response_op_ends_a_graph():
    with pytest.raises(GraphError, match="expected a ResponseOp"):
        build_graph(Tag("a", [RequestOp()]))


def test_a_graph_needs_an_op():
    with pytest.raises(GraphError, match="no Op between"):
        build_graph(ResponseOp([RequestOp()]))


def test_jump_targets_belong_to_the_graph():
    read = RequestOp()
    a = Tag("a", [read], jump_to_ops=[Tag("far", [RequestOp()])])
    with pytest.raises(GraphError, match="'a' has jump_to_ops outside the graph: 'far'"):
        build_graph(ResponseOp([a]))


@pytest.mark.parametrize("wrong", ["read", [1], 3])
def test_inputs_must_be_ops(wrong):
    with pytest.raises((GraphError, TypeError)):
        Op("a", input_ops=wrong)
