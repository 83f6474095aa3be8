"""Which Ops stream, where each stream comes from and ends, and what is refused before the start."""

from __future__ import annotations

import pytest
from doubles import chain
from streaming import Count, Mark

from pipeline import Op, RequestOp, ResponseOp
from pipeline.engine.graph import build_graph
from pipeline.engine.streams.plan import plan_streams
from pipeline.errors import GraphError


def plan(last):
    return plan_streams(build_graph(ResponseOp([last])))


def test_a_graph_without_generators_has_no_plan():
    assert plan(chain("a", "b")) is None


def test_each_op_after_a_generator_streams():
    before = Mark("before", RequestOp())
    count = Count("count", before)
    last = Mark("last", count)
    result = plan(last)
    assert result.makers == {count}
    assert result.sources == {count: count, last: count}
    assert result.reads == {last: {"count"}}
    assert result.ends == {count: ((None, ""),)}
    assert [result.has(op) for op in (before, count, last)] == [False, True, True]


def test_a_stream_ends_where_it_is_gathered_or_read_by_a_generator():
    count = Count("count", RequestOp())
    again = Count("again", count)
    gathers = Mark("gathers", [count, again], gather=True)
    result = plan(gathers)
    assert result.ends == {
        count: ((again, ""), (gathers, "count")),
        again: ((gathers, "again"),),
    }
    assert gathers not in result.sources


def test_a_stream_with_several_paths_to_the_end_ends_once():
    count = Count("count", RequestOp())
    last = Mark("last", [Mark("a", count), Mark("b", count)])
    assert plan(last).ends == {count: ((None, ""),)}


def test_two_streams_that_meet_are_refused_with_their_names():
    read = RequestOp()
    with pytest.raises(GraphError, match=r"'j' reads two streams.*'one'.*'two'.*gather=True"):
        plan(Mark("j", [Count("one", read), Mark("m", Count("two", read))]))


def test_an_op_that_gathers_must_read_a_stream():
    with pytest.raises(GraphError, match="gather=True, but the Ops that it reads do not stream"):
        plan(Mark("g", RequestOp(), gather=True))


def test_a_join_of_a_stream_with_an_answer_at_its_end_is_refused():
    count = Count("count", RequestOp())
    whole = Mark("whole", count, gather=True)
    with pytest.raises(
        GraphError,
        match="'last' reads parts of the stream of 'count', and an Op that answers only at its end",
    ):
        plan(Mark("last", [Mark("a", count), Mark("b", whole)]))
    again = Count("again", Mark("c", count))
    with pytest.raises(GraphError, match="the stream of 'count'"):
        plan(Mark("last", [again, whole]))


def test_a_stream_that_starts_after_the_end_of_another_may_join_it():
    whole = Mark("whole", Count("count", RequestOp()), gather=True)
    assert plan(Mark("last", [Count("again", whole), whole])) is not None


def test_jumps_and_streams_exclude_each_other():
    jumps = Op("jumps", RequestOp())
    count = Count("count", jumps)
    jumps.set_jump_to_ops(count)
    with pytest.raises(GraphError, match="'count' streams, and 'jumps' jumps"):
        plan(count)


def test_loops_over_a_stream_are_refused():
    first = Mark("first", RequestOp())
    last = Mark("last", Count("count", first), loop_to=["first"])
    with pytest.raises(GraphError, match="'last' has loop_to, and makes or reads a stream"):
        plan(last)


def test_a_stream_parallel_to_a_loop_is_refused():
    """The target would run again while the stream of its last answer is under way."""
    first = Mark("first", RequestOp())
    again = Mark("again", first, loop_to=["first"])
    with pytest.raises(GraphError, match=r"'count', 'last': .* the loop of 'again' to 'first'"):
        plan(Mark("last", [Count("count", first), again]))


def test_an_op_that_reads_a_stream_cannot_be_a_loop_target():
    first = Mark("first", Count("count", RequestOp()))
    again = Mark("again", Mark("whole", first, gather=True), loop_to=["first"])
    with pytest.raises(GraphError, match="'first': parts are made or read beside"):
        plan(again)


def test_an_op_that_reads_a_stream_and_an_op_of_a_loop_is_refused():
    first = Mark("first", RequestOp())
    again = Mark("again", first, loop_to=["first"])
    count = Count("count", again)
    with pytest.raises(GraphError, match="'last': parts are made or read beside"):
        plan(Mark("last", [count, Mark("beside", first)]))
    plan(Mark("last", [count, first]))  # it answers before the one that loops does


def test_a_stream_after_a_loop_or_gathered_within_it_is_allowed():
    first = Mark("first", RequestOp())
    again = Mark("again", first, loop_to=["first"])
    assert plan(Count("count", [first, again])) is not None
    whole = Mark("whole", Count("count", Mark("first", RequestOp())), gather=True)
    assert plan(Mark("again", whole, loop_to=["first"])) is not None


def test_an_op_in_a_loop_cannot_join_a_stream_with_an_input_from_outside():
    read = RequestOp()
    whole = Mark("whole", [Count("count", Mark("first", read)), read], gather=True)
    with pytest.raises(GraphError, match="'whole': a stream is read in the loop of 'again'"):
        plan(Mark("again", whole, loop_to=["first"]))
