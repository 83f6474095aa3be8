"""Goto, Answer and loops, over scripted workers on a virtual clock."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from doubles import Engine, Tag, answers, run_virtual, virtual

from pipeline import Answer, Goto, Op, ProductError, RequestOp, ResponseOp
from pipeline.engine.graph import build_graph
from pipeline.engine.request import RequestTarget
from pipeline.errors import ErrorCode, GraphError


def path_of(response):
    return answers(response)["path"]


class Sends(Tag):
    """Sends its answer where the request's `to` says for it: "name:a,b;other:end"."""

    def postprocess(self, input_dicts, fetched, data_id, log_id):
        asked = next(iter(input_dicts.values())).get("to", "")
        answer = {**fetched, "to": asked}
        paths = dict(part.split(":") for part in asked.split(";") if part)
        if self.name not in paths:
            return answer
        to = paths[self.name]
        return Answer(answer) if to == "end" else Goto(answer, [n for n in to.split(",") if n])


class Early(Sends):
    """The same from `preprocess`."""

    def preprocess(self, input_dicts, data_id, log_id):
        data, *_ = super().preprocess(input_dicts, data_id, log_id)
        return super().postprocess(input_dicts, data, data_id, log_id)

    def postprocess(self, input_dicts, fetched, data_id, log_id):
        return {**fetched, "path": fetched["path"] + "+post", "to": ""}


def cascade(kind=Sends, **given):
    """cheap -> out, and cheap -> big -> out."""
    cheap = kind("cheap", RequestOp(), **given)
    return Tag("out", [cheap, Sends("big", cheap)])


def ask(last, config=None, service_s=None, **asked):
    """The answer of one request of a graph of its own."""

    async def main():
        async with Engine(last, config, service_s) as engine:
            response = await engine.ask(**asked)
            assert not engine.executor.inside
            return response

    return run_virtual(main())


# Goto ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Sends, Early])
@pytest.mark.parametrize(
    ("to", "path"),
    [
        ("cheap:out", "cheap>out"),
        ("cheap:big", "cheap>big>out"),
        ("cheap:big,out", "(cheap|cheap>big)>out"),
    ],
)
def test_only_the_named_readers_get_an_answer(kind, to, path):
    assert path_of(ask(cascade(kind), to=to)) == path


@virtual
async def test_an_op_without_inputs_does_not_run():
    async with Engine(cascade()) as engine:
        assert path_of(await engine.ask(to="cheap:out")) == "cheap>out"
        assert engine.pools["big"].batches == []


@virtual
async def test_each_request_of_a_batch_has_its_own_targets():
    config = {"op": {"cheap": {"batch_size": 4, "auto_batching_timeout": 10}}}
    async with Engine(cascade(), config, {"big": 5.0}) as engine:
        order = []

        async def one(to):
            order.append(path_of(await engine.ask(to=to)))

        await asyncio.gather(*map(one, ["cheap:big", "cheap:out", "cheap:out", "cheap:out"]))
        assert len(engine.pools["cheap"].batches) == 1
        assert order == ["cheap>out"] * 3 + ["cheap>big>out"]


def test_ops_may_be_named_as_ops():
    cheap = Tag("cheap", RequestOp())
    big = Tag("big", cheap)
    cheap.postprocess = lambda input_dicts, fetched: Goto(fetched, big)
    assert path_of(ask(Tag("out", [cheap, big]))) == "cheap>big>out"
    assert Goto({}, big, "out", [big, "x"]).to == ("big", "out", "x")


def test_a_whole_branch_is_absent_and_another_one_is_not_waited_for():
    fork = Sends("fork", RequestOp())
    left = Tag("l2", [Tag("l1", [fork]), Tag("l0", [fork])])
    right = Tag("r2", [Tag("r1", [fork])])
    last = Tag("join", [left, right])
    assert path_of(ask(last, to="fork:r1")) == "fork>r1>r2>join"


def test_an_error_is_reported_when_other_parts_are_absent():
    class Fails(Op):
        def preprocess(self, input_dicts):
            raise ProductError(51, "refuses")

    fork = Sends("fork", RequestOp())
    last = Tag("join", [Tag("a", [fork]), Fails("bad", [fork])])
    assert ask(last, to="fork:bad").err_msg == "refuses"


def test_an_absent_part_is_not_a_first_arrival():
    fork = Sends("fork", RequestOp())
    last = Tag("join", [Tag("a", [fork]), Tag("b", [fork])])
    config = {"op": {"join": {"channel_recv_first_arrive": True}}}
    assert path_of(ask(last, config, {"b": 0.1}, to="fork:b")) == "fork>b>join"
    assert ask(last, config, to="fork:").err_no == ErrorCode.CONF_ERROR


def test_a_branch_may_end_and_others_continue():
    fork = Sends("fork", RequestOp())
    last = Tag("join", [Sends("a", [fork]), Tag("b", [fork])])
    assert path_of(ask(last, to="a:")) == "fork>b>join"


def test_a_request_that_cannot_reach_the_end_gets_an_error_with_its_last_ops():
    fork = Tag("fork", RequestOp())

    class Ends(Tag):
        def postprocess(self, input_dicts, fetched):
            return Goto(fetched)

    response = ask(Tag("last", [Tag("join", [Ends("a", [fork]), Ends("b", [fork])])]))
    assert response.err_no == ErrorCode.CONF_ERROR
    assert "lost in the graph: what 'a', 'b' answered went to no Op" in response.err_msg


@pytest.mark.parametrize("to", ["nowhere", "big,nowhere", "last", "cheap"])
def test_a_goto_to_an_op_that_does_not_read_it_is_an_error_with_the_readers(to):
    last = Tag("last", [cascade()])
    response = ask(last, to=f"cheap:{to}")
    assert response.err_no == ErrorCode.CONF_ERROR
    assert "Op 'cheap' returned Goto to" in response.err_msg
    assert "Its readers: 'big', 'out'; loop_to: none." in response.err_msg


def test_the_last_op_cannot_use_goto():
    response = ask(Sends("only", RequestOp()), to="only:only")
    assert "Its readers: none; loop_to: none." in response.err_msg


def test_a_goto_of_the_last_op_to_no_op_is_an_error():
    response = ask(Sends("only", RequestOp()), to="only:")
    assert "lost in the graph: what 'only' answered went to no Op" in response.err_msg


@virtual
async def test_a_request_of_a_single_op_gets_its_plain_answer():
    last = cascade()
    async with Engine(last) as engine:
        cheap = next(op for op in engine.nodes if op.name == "cheap")
        for to in ("cheap:big", "cheap:end", "cheap:nowhere"):
            target = RequestTarget(cheap, {"x": {"to": to}}, wants_response=False)
            data = await engine.executor.handle(None, None, target)
            assert data.parse() == {"path": "cheap", "to": to}


def test_a_goto_without_a_dict_is_an_error():
    class Wrong(Op):
        def postprocess(self, input_dicts, fetched):
            return Goto(3, "out")

    wrong = Wrong("wrong", RequestOp())
    response = ask(Tag("out", [wrong]))
    assert response.err_no == ErrorCode.TYPE_ERROR
    assert "Op 'wrong': postprocess returned Goto with int in it" in response.err_msg


def test_process_is_for_several_requests_and_returns_no_goto():
    class Wrong(Op):
        def process(self, feed_batch):
            return Goto(feed_batch[0], "out")

    response = ask(Tag("out", [Wrong("wrong", RequestOp())]))
    assert response.err_no == ErrorCode.TYPE_ERROR
    assert "return Goto from postprocess" in response.err_msg


def test_a_jump_op_may_use_goto_for_single_requests():
    class Jumps(Sends):
        def check_jumping(self, input_data):
            assert all(isinstance(data.payload, dict) for data in input_data.values())
            return True

    fork = Jumps("fork", RequestOp())
    big = Tag("big", fork)
    last = Tag("last", [big])
    fork.set_jump_to_ops([big])
    assert path_of(ask(last, to="fork:big")) == "fork>big>last"
    assert path_of(ask(last)) == "fork>last"


@pytest.mark.parametrize("to", ["first:", "first:nowhere"])
def test_any_number_of_ops_may_be_absent(to):
    last = first = Sends("first", RequestOp())
    for number in range(1500):
        last = Tag(f"op{number}", last)
    assert ask(last, {"dag": {"fuse": "off"}}, to=to).err_no == ErrorCode.CONF_ERROR
    assert first.name == "first"


# Answer ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Sends, Early])
@virtual
async def test_an_answer_ends_its_request_and_no_other_op_runs(kind):
    async with Engine(Tag("last", [cascade(kind)])) as engine:
        assert path_of(await engine.ask(to="cheap:end")) == "cheap"
        assert engine.pools["big"].batches == engine.pools["last"].batches == []


@virtual
async def test_an_answer_waits_for_no_other_branch():
    read = RequestOp()
    last = Tag("join", [Sends("quick", read), Tag("slow", read)])
    async with Engine(last, service_s={"slow": 9.0}) as engine:
        began = asyncio.get_running_loop().time()
        assert path_of(await engine.ask(to="quick:end")) == "quick"
        assert asyncio.get_running_loop().time() - began < 1.0, "of virtual time"
        await asyncio.sleep(10)
        assert engine.pools["join"].batches == []


@virtual
async def test_an_answer_of_process_ends_each_request_with_its_own_rows():
    class Final(Op):
        def preprocess(self, input_dicts):
            (given,) = input_dicts.values()
            return {"x": np.array([[int(given["x"])]])}

        def process(self, feed_batch):
            return Answer({"y": feed_batch[0]["x"] + 1})

        def postprocess(self, input_dicts, fetched):
            raise AssertionError("it is over")

    last = Tag("last", [Final("final", RequestOp(), batch_size=3, auto_batching_timeout=9)])
    async with Engine(last) as engine:
        responses = await asyncio.gather(*(engine.ask(x=str(x)) for x in range(3)))
        assert [response.value[0] for response in responses] == [
            "array([[1]])",
            "array([[2]])",
            "array([[3]])",
        ]
        assert len(engine.pools["final"].batches) == 1


# Loops -----------------------------------------------------------------------------------------


class Refines(Tag):
    """Goes back to `back` until its path has its own name so often."""

    def __init__(self, name, input_ops, back, times, **given):
        super().__init__(name, input_ops, loop_to=[back], **given)
        self.back, self.times = back, times

    def postprocess(self, input_dicts, fetched, data_id, log_id):
        is_done = fetched["path"].count(self.name) >= self.times
        return fetched if is_done else Goto(fetched, self.back)


def test_a_loop_repeats_the_ops_in_it():
    read = RequestOp()
    check = Refines("check", [Tag("b", [Tag("a", [read])])], "a", 3)
    assert path_of(ask(Tag("last", [check]))) == "a>b>check>a>b>check>a>b>check>last"


def test_an_op_may_run_again_by_itself():
    again = Refines("again", RequestOp(), "again", 4)
    assert path_of(ask(again)) == "again>again>again>again"


@virtual
async def test_too_many_laps_are_an_error_with_the_limit():
    check = Refines("check", [Tag("a", [RequestOp()])], "a", 99, max_loops=3)

    async with Engine(Tag("last", [check])) as engine:
        response = await engine.ask()
        assert response.err_no == ErrorCode.CONF_ERROR
        assert "sent the request back to 'a' 3 times, which is its max_loops" in (response.err_msg)
        assert len(engine.pools["a"].batches) == 4


@virtual
async def test_requests_loop_each_for_itself():
    class Counts(Refines):
        def postprocess(self, input_dicts, fetched, data_id, log_id):
            self.times = 1 + data_id % 4
            return super().postprocess(input_dicts, fetched, data_id, log_id)

    a = Tag("a", [RequestOp()], batch_size=4)
    check = Counts("check", [a], "a", 0, batch_size=4, max_loops=3)
    async with Engine(check, service_s={"a": 0.01}) as engine:
        responses = await asyncio.gather(*(engine.ask() for _ in range(8)))
        assert [path_of(response).count("check") for response in responses] == [1, 2, 3, 4] * 2


def test_a_join_in_a_loop_gets_the_same_outer_input_in_each_lap():
    read = RequestOp()
    first = Tag("first", [read])
    join = Tag("join", [read, first])
    check = Refines("check", [join], "first", 2)
    path = path_of(ask(Tag("last", [check]), path="in"))
    assert path == "(in|(in|in>first)>join>check>first)>join>check>last"


@pytest.mark.parametrize("slow", ["side", "check"])
def test_a_branch_parallel_to_a_loop_answers_for_the_last_lap(slow):
    """Its answer of an earlier lap, and a turn of it that is under way, count no more."""
    first = Tag("first", [RequestOp()])
    check = Refines("check", [first], "first", 2)
    last = Tag("last", [check, Tag("side", [first])])
    path = path_of(ask(last, service_s={slow: 0.5}))
    assert path == "(first>check>first>check|first>check>first>side)>last"


def test_a_target_that_joins_reads_the_loops_answer_alone():
    read = RequestOp()
    first = Tag("first", [Tag("a", [read]), Tag("b", [read])])
    check = Refines("check", [first], "first", 2)
    assert path_of(ask(check)) == "(a|b)>first>check>first>check"


def test_loops_nest():
    a = Tag("a", [RequestOp()])
    inner = Refines("i", [a], "a", 2)

    class Outer(Refines):
        def postprocess(self, input_dicts, fetched, data_id, log_id):
            if fetched["path"].count("o") < 2:
                return Goto({"path": "o"}, "a")
            return fetched

    outer = Outer("o", [inner], "a", 2)
    assert path_of(ask(Tag("last", [outer]))) == "o>a>i>a>i>o>last"


def test_a_loop_is_named_alone():
    class Both(Tag):
        def postprocess(self, input_dicts, fetched):
            return Goto(fetched, "a", "last")

    both = Both("both", [Tag("a", [RequestOp()])], loop_to="a")
    response = ask(Tag("last", [both]))
    assert "name one loop, or" in response.err_msg
    assert "Its readers: 'last'; loop_to: 'a'." in response.err_msg


@pytest.mark.parametrize("name", ["nowhere", "last", "beside", "@DAGExecutor"])
def test_a_loop_leads_back(name):
    read = RequestOp()
    first = Tag("first", [read])
    op = Tag("op", [first], loop_to=["first", name])
    with pytest.raises(GraphError, match=rf"'op': loop_to names '{name}'.*'first', 'op'"):
        build_graph(ResponseOp(Tag("last", [op, Tag("beside", [read])])))


@virtual
async def test_a_race_in_a_loop_has_no_part_from_outside():
    read = RequestOp()
    first = Tag("first", [read])
    race = Tag("race", [first, Tag("once", [read])])
    check = Refines("check", [race], "first", 2)
    config = {"op": {"race": {"channel_recv_first_arrive": True}}}
    with pytest.raises(GraphError, match=r"'race' takes the first .* answer only once: 'once'"):
        Engine(check, config)


@pytest.mark.parametrize("given", [5, ["a", None], [["a"], object()]])
def test_a_loop_or_goto_to_something_other_than_an_op_is_an_error(given):
    with pytest.raises(GraphError, match="expected an Op, its name, or a list of these, found"):
        Tag("op", [RequestOp()], loop_to=given)
    with pytest.raises(GraphError, match="expected an Op"):
        Goto({}, given)


@pytest.mark.parametrize("most", [0, -1, 1.5, None, True])
def test_the_number_of_loops_is_checked(most):
    op = Tag("op", [RequestOp()], loop_to="op", max_loops=most)
    with pytest.raises(GraphError, match=r"max_loops must be a whole number >= 1"):
        build_graph(ResponseOp(op))


@virtual
async def test_a_deadline_ends_a_loop():
    check = Refines("check", [Tag("a", [RequestOp()])], "a", 99)
    async with Engine(check, service_s={"a": 0.1}) as engine:
        response = await engine.ask(timeout_s=1.0)
        assert response.err_no == ErrorCode.TIMEOUT
        await asyncio.sleep(10)
        assert len(engine.pools["a"].batches) <= 11
        assert not engine.executor.inside


# Counted ---------------------------------------------------------------------------------------


def edges_of(engine):
    """{(from, to): (answers that came there, answers that did not)} of an engine."""
    states = engine.executor.state().ops
    return {(op.name, edge.to): (edge.sent, edge.absent) for op in states for edge in op.edges}


@virtual
async def test_answers_and_skips_are_counted_for_each_edge():
    async with Engine(Tag("last", [cascade()])) as engine:
        for to in ("cheap:out", "cheap:out", "cheap:big", "", "cheap:end"):
            await engine.ask(to=to)
        assert edges_of(engine) == {
            ("cheap", "big"): (2, 3),
            ("cheap", "out"): (3, 2),
            ("big", "out"): (2, 0),
            ("out", "last"): (4, 0),
        }
        assert {op.name: op.skipped for op in engine.executor.state().ops}["big"] == 2


@virtual
async def test_laps_are_counted_for_each_edge():
    check = Refines("check", [Tag("a", [RequestOp()])], "a", 3)
    async with Engine(Tag("last", [check])) as engine:
        await engine.ask()
        assert edges_of(engine) == {
            ("a", "check"): (3, 0),
            ("check", "last"): (1, 2),
            ("check", "a"): (2, 1),
        }


@virtual
async def test_jumps_are_counted_for_each_edge():
    class Jumps(Tag):
        def check_jumping(self, input_data):
            return "hop" in next(iter(input_data.values())).payload["path"]

    jumper = Jumps("jumper", RequestOp())
    over = Tag("over", jumper)
    jumper.set_jump_to_ops(over)
    async with Engine(Tag("last", [over])) as engine:
        for path in ("hop", "hop", "walk"):
            await engine.ask(path=path)
        assert edges_of(engine) == {
            ("jumper", "over"): (1, 2),
            ("jumper", "last"): (2, 1),
            ("over", "last"): (1, 0),
        }


# Cascades --------------------------------------------------------------------------------------


@virtual
async def test_the_sure_ones_do_not_wait_for_a_dear_model():
    """One in ten goes to a model of 50 ms, behind one of 2 ms; 16 callers, virtual time."""
    loop, took = asyncio.get_running_loop(), {"big": [], "out": []}
    config = {"op": {"cheap": {"batch_size": 8}, "big": {"batch_size": 8}}}
    numbers = iter(range(2000))

    async def caller(engine):
        for number in numbers:
            to, began = "out" if number % 10 else "big", loop.time()
            await engine.ask(to=f"cheap:{to}")
            took[to].append(loop.time() - began)

    async with Engine(cascade(), config, {"cheap": 0.002, "big": 0.05}) as engine:
        await asyncio.gather(*(caller(engine) for _ in range(16)))
    sure, unsure = sorted(took["out"]), sorted(took["big"])
    assert (len(sure), len(unsure)) == (1800, 200)
    assert sure[900] <= 0.005
    assert sure[-1] <= 0.01 < 0.05 <= unsure[0]
