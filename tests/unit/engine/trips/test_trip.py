"""A trip takes one request from Op to Op in line, and what it does not do is left to others."""

from __future__ import annotations

import contextvars
import itertools
from functools import partial
from types import SimpleNamespace

import pytest

from pipeline import Op
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.engine.op.channel import Item
from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.run.stages import BatchRun
from pipeline.engine.trips.trip import Step, Trip, TripPlan
from pipeline.errors import PipelineError
from pipeline.op import configure_op


class Signs(Op):
    """Adds its name; `during` is called with it first."""

    during = staticmethod(lambda name: None)

    def preprocess(self, input_dicts, data_id, log_id):
        self.during(self.name)
        return {"x": "+".join(part["x"] for part in input_dicts.values()) + self.name}


class SignsLate(Signs):
    """The same, in `process`."""

    def preprocess(self, input_dicts, data_id, log_id):
        return {"x": "+".join(part["x"] for part in input_dicts.values())}

    def process(self, feed_batch, typical_logid):
        self.during(self.name)
        return {"x": feed_batch[0]["x"] + self.name}


class Worker:
    """The one worker of an Op, and its pool."""

    def __init__(self, op):
        settings = load_config(yml_dict={"rpc_port": 0})
        configure_op(op, resolve_op(op.name, op.pipeline_given, settings))
        self.op = BoundOp(op, 0)
        self.number = 0
        self.idle, self.backlog, self.addressed = [self], [], []
        self.is_leaving = False
        self.visit = partial(contextvars.copy_context().run, self.op.plain)
        self.employed = 0

    def perform(self, run, clock_ns):
        run.run(self.op, self, clock_ns)

    def call_begins(self):
        """Ignore it."""

    call_ends = call_begins

    def employ(self, worker):
        self.employed += 1


class Node:
    """A dispatcher, as far as a plan looks at it."""

    def __init__(self, name):
        self.name = name

    def job_of(self, item):
        return BatchRun([item])


EDGES = {"a": ("read",), "b": ("a",), "c": ("a",), "d": ("b", "c")}


def diamond(order="bc", during=None, **kinds):
    """A plan of a, b and c beside each other, and d, which reads both in this order."""
    edges = EDGES | {"d": tuple(order)}
    names = [*"abcd"]
    steps, workers = [], {}
    for name in names:
        op = kinds.get(name, Signs)(name=name)
        if during is not None:
            op.during = during
        workers[name] = Worker(op)
        readers = [reader for reader in names if name in edges[reader]]
        steps.append(
            Step(
                Node(name), name, workers[name], edges[name],
                readers=tuple((names.index(r), at > 0) for at, r in enumerate(readers)),
                is_read_outside=name == "d",
                only_reader={"a": 0, "d": -1}.get(name, 3),
                is_plain=workers[name].op.is_plain,
                last_read=max((names.index(r) for r in edges[name] if r in names), default=-1),
            )
        )  # fmt: skip
    return TripPlan(tuple(steps)), workers


def lone(kind=Item, generation=0):
    request = SimpleNamespace(generation=0, target=None, deadline=None, trace="")
    inputs = {"read": {"x": ""}}
    if kind is BatchRun:
        return BatchRun([Item(request, generation, 7, 5, inputs, 0.0, ready_ns=1)])
    return Item(request, generation, 7, 5, inputs, 0.0, 1)


def trip_of(plan, lead, until=4):
    return Trip(plan, lead, until, lead.items[0])


def run_trip(plan, workers, lead=None, until=4):
    trip = trip_of(plan, lead or lone(), until)
    return trip, trip.go(workers["a"], itertools.count(10).__next__)


def remaining_inputs(trip):
    return {node.name: inputs for node, inputs in trip.remaining()}


@pytest.mark.parametrize("kind", [Item, BatchRun])
@pytest.mark.parametrize(("order", "value"), [("bc", "ab+acd"), ("cb", "ac+abd")])
def test_a_trip_runs_all_readers_in_their_order(kind, order, value):
    plan, workers = diamond(order)
    trip, is_at_its_end = run_trip(plan, workers, lone(kind))
    assert is_at_its_end
    assert trip.done == 4
    assert trip.step_inputs[-1] == {"d": {"x": value}}
    assert remaining_inputs(trip) == {}
    times = [(trip.ready_ns(place), *trip.times(place)[::3]) for place in range(4)]
    assert times == [(1, 10, 12), (12, 12, 14), (12, 14, 16), (16, 16, 18)]


def test_a_step_without_an_idle_worker_is_left_with_its_readers():
    plan, workers = diamond()
    workers["b"].idle.clear()
    trip, is_at_its_end = run_trip(plan, workers)
    assert is_at_its_end
    assert trip.done == 1
    assert remaining_inputs(trip) == {"b": {"a": {"x": "a"}}, "c": {"a": {"x": "a"}}}


def test_a_waiting_job_gets_its_worker_before_the_trip():
    plan, workers = diamond()
    workers["c"].backlog.append("a job")
    trip, _ = run_trip(plan, workers)
    assert remaining_inputs(trip) == {"c": {"a": {"x": "a"}}, "d": {"b": {"x": "ab"}}}


def test_it_ends_at_an_answer_that_is_an_error():
    def during(name):
        if name == "b":
            raise ValueError(name)

    plan, workers = diamond(during=during)
    trip, is_at_its_end = run_trip(plan, workers)
    assert is_at_its_end
    assert trip.done == 2
    assert isinstance(trip.answer, PipelineError)
    assert remaining_inputs(trip) == {"c": {"a": {"x": "a"}}}


@pytest.mark.parametrize("named", ["b", "c", "d"])
def test_a_step_with_process_runs_as_a_batch_of_one(named):
    plan, workers = diamond(**{named: SignsLate})
    trip, is_at_its_end = run_trip(plan, workers)
    assert is_at_its_end
    assert trip.step_inputs[-1] == {"d": {"x": "ab+acd"}}
    assert trip.runs == {}, "marks tell all"
    with_process = []
    for step in range(4):
        start_ns, preprocess_end_ns, process_end_ns, end_ns = trip.times(step)
        assert start_ns < preprocess_end_ns <= process_end_ns < end_ns
        if preprocess_end_ns < process_end_ns:
            with_process.append(plan.steps[step].name)
    assert with_process == [named]


@pytest.mark.parametrize("kind", [Item, BatchRun])
@pytest.mark.parametrize("with_process", [(), "bd"])
@pytest.mark.parametrize("name", [*"abcd"])
def test_a_removed_step_reports_to_its_batch(kind, name, with_process):
    collected = []

    def during(current):
        if current == name:
            collected.append(trip.take_out())

    plan, workers = diamond(during=during, **dict.fromkeys(with_process, SignsLate))
    lead = lone(kind)
    trip = trip_of(plan, lead)
    assert not trip.go(workers["a"], itertools.count(10).__next__)
    ((place, worker, batch),) = collected
    assert (plan.steps[place].name, worker) == (name, workers[name])
    assert (batch is lead) == (kind is BatchRun and name == "a")
    ((answer,), end_ns) = batch.outcomes, batch.end_ns
    assert answer["x"].endswith(name)
    assert end_ns > batch.start_ns
    assert trip.done == place
    assert name not in remaining_inputs(trip)
    assert trip.take_out() is None


def test_a_trip_of_a_finished_request_runs_no_step():
    plan, workers = diamond(during=lambda name: pytest.fail(name))
    trip, is_at_its_end = run_trip(plan, workers, lone(generation=1))
    assert is_at_its_end
    assert trip.is_void
    assert trip.done == 0


def test_a_trip_of_a_request_that_ends_stops_at_the_next_step():
    def during(name):
        if name == "b":
            lead.request.generation = -1

    plan, workers = diamond(during=during)
    lead = lone()
    trip, _ = run_trip(plan, workers, lead)
    assert trip.done == 2


def test_it_takes_no_more_steps_than_it_may():
    plan, workers = diamond()
    trip, is_at_its_end = run_trip(plan, workers, until=3)
    assert is_at_its_end
    assert trip.done == 3
    assert remaining_inputs(trip) == {"d": {"b": {"x": "ab"}, "c": {"x": "ac"}}}


def test_a_job_for_a_lent_worker_is_passed_to_it():
    def during(name):
        if name == "c":
            workers["c"].addressed.append("a job")

    plan, workers = diamond(during=during)
    trip, _ = run_trip(plan, workers)
    assert trip.done == 4
    assert [workers[name].employed for name in "abcd"] == [0, 0, 1, 0]
    assert all(worker.idle for worker in workers.values())


def test_a_leaving_worker_is_notified_on_its_return():
    plan, workers = diamond()
    workers["b"].is_leaving = True
    run_trip(plan, workers)
    assert [workers[name].employed for name in "abcd"] == [0, 1, 0, 0]


def test_entries_get_separate_dicts():
    plan, _ = diamond()
    plan = TripPlan((plan.steps[1], plan.steps[2]), entries=(1,))
    lead = lone()
    trip = trip_of(plan, lead, 2)
    trip._enter()
    first, second = trip.step_inputs[0]["read"], trip.step_inputs[1]["read"]
    assert first == second
    assert first is not second
