"""A LoneWalk goes from Op to Op as one object, and what it does not do is left to others."""

from __future__ import annotations

import contextvars
import itertools
import sys
from types import SimpleNamespace

import pytest

from pipeline import Op
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.engine.batch_run import BatchRun
from pipeline.engine.bound_op import BoundOp
from pipeline.engine.channel import Item
from pipeline.engine.lone_run import LoneRun
from pipeline.engine.lone_walk import LoneWalk, walk_of
from pipeline.engine.walk import Step, Walk, WalkPlan
from pipeline.errors import PipelineError
from pipeline.op import configure_op


class Signs(Op):
    """Adds its name; `during` is called with it first."""

    during = staticmethod(lambda name: None)

    def preprocess(self, input_dicts, data_id, log_id):
        self.during(self.name)
        return {"x": "+".join(part["x"] for part in input_dicts.values()) + self.name}


class Lent:
    """A worker that lends itself, while it `is_idle`."""

    def __init__(self, op):
        settings = load_config(yml_dict={"rpc_port": 0})
        configure_op(op, resolve_op(op.name, op.pipeline_given, settings))
        self.op = BoundOp(op, 0)
        self.number = 0
        self.is_idle = True

    def borrow(self):
        return self if self.is_idle else None

    def give_back(self, worker):
        assert worker is self

    def perform(self, run, clock_ns):
        run.run(self.op, None, clock_ns)


class LentDirectly(Lent):
    """... and may be taken in line."""

    def __init__(self, op):
        self.idle = []
        super().__init__(op)
        self.backlog, self.addressed = [], []
        self.enter = contextvars.copy_context().run
        self.employed = 0

    @property
    def is_idle(self):
        return self in self.idle

    @is_idle.setter
    def is_idle(self, is_idle):
        self.idle[:] = [self] if is_idle else []

    def borrow(self):
        return self.idle.pop() if self.idle and not self.backlog else None

    def give_back(self, worker):
        self.idle.append(worker)

    def employ(self, worker):
        self.employed += 1

    def states(self):
        return []

    def part(self, walk):
        raise NotImplementedError


@pytest.fixture(params=[Lent, LentDirectly], autouse=True)
def lender(request, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "LENDER", request.param)
    return request.param


LENDER = Lent
in_line = pytest.mark.parametrize("lender", [LentDirectly], indirect=True)
EDGES = {"a": ("read",), "b": ("a",), "c": ("a",), "d": ("b", "c")}


def diamond(order="bc", during=None):
    """A plan of a, b and c beside each other, and d, which reads both in this order."""
    edges = EDGES | {"d": tuple(order)}
    steps, workers = [], {}
    for name, producers in edges.items():
        op = Signs(name=name)
        if during is not None:
            op.during = during
        workers[name] = LENDER(op)
        readers = [reader for reader, read in edges.items() if name in read]
        steps.append(
            Step(
                None, name, workers[name],
                producers=producers,
                readers=tuple(([*edges].index(r), order > 0) for order, r in enumerate(readers)),
                is_read_outside=name == "d",
                is_join=len(producers) > 1,
            )
        )  # fmt: skip
    return WalkPlan(tuple(steps)), workers


def lone(kind=LoneRun, **changes):
    request = SimpleNamespace(generation=0, target=None)
    item = Item(request, 0, 7, 5, {"read": {"x": ""}}, 0.0, ready_ns=1)
    if kind is BatchRun:
        return BatchRun([item])
    return LoneRun(request, changes.get("generation", 0), 7, 5, item.inputs, 0.0, 1)


def gone(plan, workers, lead=None):
    walk = walk_of(plan, lead or lone())
    assert type(walk) is LoneWalk
    return walk, walk.go(workers["a"], itertools.count(10).__next__)


def left(walk):
    return {step.name: inputs for step, _, inputs in walk.left()}


@pytest.mark.parametrize("kind", [LoneRun, BatchRun])
@pytest.mark.parametrize(("order", "value"), [("bc", "ab+acd"), ("cb", "ac+abd")])
def test_it_goes_through_all_that_read_it_in_their_own_order(kind, order, value):
    plan, workers = diamond(order)
    walk, is_at_its_end = gone(plan, workers, lone(kind))
    assert is_at_its_end
    assert walk.is_through
    assert [(step.name, answer) for step, _, answer in walk.outs] == [("d", {"x": value})]
    walk.tell_apart()
    times = [(ready_ns, start_ns, end_ns) for _, _, _, ready_ns, start_ns, _, end_ns in walk.plain]
    assert times == [(1, 10, 12), (12, 12, 14), (12, 14, 16), (16, 16, 18)]
    assert walk.end_ns == 18
    assert left(walk) == {}


def test_what_nobody_is_idle_for_is_left_and_the_others_go_on():
    plan, workers = diamond()
    workers["b"].is_idle = False
    walk, is_at_its_end = gone(plan, workers)
    assert is_at_its_end
    assert not walk.is_through
    assert left(walk) == {"b": {"a": {"x": "a"}}, "d": {"c": {"x": "ac"}}}


def test_an_error_goes_on_as_an_answer():
    def during(name):
        if name == "b":
            raise ValueError(name)

    plan, workers = diamond(during=during)
    walk, _ = gone(plan, workers)
    assert not walk.is_through
    ((step, _, answer),) = walk.outs
    assert step.name == "d"
    assert isinstance(answer, PipelineError)
    assert [place for place, *_ in walk.plain] == [0, 1, 2]


@pytest.mark.parametrize("kind", [LoneRun, BatchRun])
@pytest.mark.parametrize("name", [*"abcd"])
def test_a_step_that_is_taken_out_tells_the_batch_that_it_has_become(kind, name):
    found = []

    def during(current):
        if current == name:
            found.append(walk.take_out())

    plan, workers = diamond(during=during)
    lead = lone(kind)
    walk = walk_of(plan, lead)
    assert not walk.go(workers["a"], itertools.count(10).__next__)
    ((place, worker, batch),) = found
    assert (plan.steps[place].name, worker) == (name, workers[name])
    assert (batch is lead) == (kind is BatchRun and name == "a")
    assert batch.outcomes == [walk.outcome]
    assert batch.end_ns == walk.end_ns
    assert name not in {plan.steps[done].name for done, *_ in walk.plain}
    assert walk.take_out() is None


def test_of_a_request_that_is_over_nothing_is_done():
    plan, workers = diamond(during=lambda name: pytest.fail(name))
    walk, is_at_its_end = gone(plan, workers, lone(generation=1))
    assert is_at_its_end
    assert walk.is_void
    assert walk.plain == []


def test_one_that_ends_on_the_way_goes_no_further():
    def during(name):
        if name == "b":
            lead.request.generation = -1

    plan, workers = diamond(during=during)
    lead = lone()
    walk, _ = gone(plan, workers, lead)
    assert [place for place, *_ in walk.plain] == [0, 1]
    assert not walk.is_through


def test_what_is_fed_or_for_one_op_alone_is_a_walk_of_a_batch():
    plan, _ = diamond()
    fed, alone = lone(BatchRun), lone(BatchRun)
    fed.items[0].is_feed = True
    alone.items[0].request.target = SimpleNamespace(op=object())
    assert [type(walk_of(plan, lead)) for lead in (fed, alone)] == [Walk, Walk]


@in_line
def test_what_waits_for_a_worker_has_it_before_the_walk():
    plan, workers = diamond()
    workers["b"].backlog.append("a job")
    walk, _ = gone(plan, workers)
    assert left(walk) == {"b": {"a": {"x": "a"}}, "d": {"c": {"x": "ac"}}}


@in_line
def test_a_job_for_a_worker_that_was_lent_in_line_is_given_to_it():
    def during(name):
        if name == "c":
            workers["c"].addressed.append("a job")

    plan, workers = diamond(during=during)
    walk, _ = gone(plan, workers)
    assert walk.is_through
    assert [workers[name].employed for name in "abcd"] == [0, 0, 1, 0]
    assert all(worker.is_idle for worker in workers.values())


@in_line
def test_the_marks_of_a_walk_in_line_say_what_its_steps_say_by_themselves():
    plan, workers = diamond()
    walk, _ = gone(plan, workers)
    assert walk.marks == [0, 11, 12, 0, 13, 14, 0, 15, 16, 0, 17, 18]
    assert walk.plain == []
    walk.tell_apart()
    assert walk.marks == []
    assert [place for place, *_ in walk.plain] == [0, 1, 2, 3]
