"""SteppedRun: places, who joins, who leaves, what is left of a run that is given up."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import numpy as np

from pipeline import Op, RequestOp
from pipeline.config.schema import load_config, resolve_op
from pipeline.data import NO_INFO
from pipeline.engine.bound_op import BoundOp
from pipeline.engine.streams.flow import ENDED
from pipeline.engine.streams.run import SLICE_NS
from pipeline.engine.streams.stepped import SteppedRun
from pipeline.op import configure_op


class Steps(Op):
    """Says how many steps each request has made; `n` of them in all."""

    def preprocess(self, input_dicts, *, context):
        context.state["at"] = 0
        return {"n": np.array([input_dicts["in"]["n"]])}

    def process(self, feed_batch, *, context):
        SIZES.append(len(context))
        between()
        for each in context:
            each.state["at"] += 1
        at = np.array([each.state["at"] for each in context])
        return {"at": at, "done": at >= feed_batch[0]["n"]}

    def postprocess(self, input_dicts, fetch_dict):
        return {"at": int(fetch_dict["at"][0])}


SIZES: list[int] = []
WHILE: list = []  # called one a step


def between():
    if WHILE:
        WHILE.pop(0)()


class Watch(list):
    """Told of parts and ends: [(place, what)]."""

    def call_begins(self):
        pass

    def call_ends(self):
        pass

    def yielded(self, run, entries):
        self += [(place, "end" if told is ENDED else told["at"]) for place, told in entries]


def item(n):
    return SimpleNamespace(
        data_id=n, log_id=0, inputs={"in": {"n": n}}, deadline=None, trace="", is_feed=False,
        info=NO_INFO, is_over=False, is_cancelled=lambda: False,
    )  # fmt: skip


def bound():
    op = Steps("steps", [RequestOp()])
    settings = load_config(
        yml_dict={"rpc_port": 0, "op": {"steps": {"batching": "iterative", "batch_size": 4}}}
    )
    configure_op(op, resolve_op("steps", op.pipeline_given, settings))
    SIZES.clear()
    WHILE.clear()
    return BoundOp(op, 0)


def no_time():
    """A clock by which no slice is ever cut off."""
    return 0


def ran(run, op):
    watch = Watch()
    run.run(op, watch, no_time)
    return watch


def test_who_joins_while_a_step_runs_is_in_the_next_one():
    op, run = bound(), SteppedRun([], 0)
    run.join(item(2), 99)
    WHILE.append(lambda: run.join(item(1), 99))
    assert ran(run, op) == [(0, 1), (0, 2), (0, "end"), (1, 1), (1, "end")]
    assert SIZES == [1, 2]
    assert not run.has_work


def test_a_place_is_anothers_when_its_end_was_told():
    op, run = bound(), SteppedRun([], 0)
    assert [run.join(item(1), 99), run.join(item(1), 99)] == [0, 1]
    ran(run, op)
    run.leave(1)
    assert run.taken == [0]
    assert run.join(item(3), 99) == 1
    assert run.has_work
    assert ran(run, op) == [(1, 1), (1, 2), (1, 3), (1, "end")]


def test_who_has_no_room_sits_out_until_there_is_some():
    op, run = bound(), SteppedRun([], 0)
    run.join(item(5), 2)
    run.join(item(1), 9)
    assert ran(run, op)[-1] == (0, 2)
    assert not run.has_work
    run.allowed[0] = 3
    assert run.has_work
    assert ran(run, op) == [(0, 3)]


def test_who_is_over_leaves_and_its_end_is_told():
    op, run = bound(), SteppedRun([], 0)
    gone = item(9)
    run.join(gone, 99)
    WHILE.append(lambda: setattr(gone, "is_over", True))
    assert ran(run, op) == [(0, 1), (0, "end")]


def test_a_run_that_is_given_up_goes_on_without_those_in_its_step():
    op, run = bound(), SteppedRun([], 0)
    run.join(item(3), 1)
    ran(run, op)
    run.join(item(2), 99)
    run.allowed[0] = 99
    following = run.without([0])
    assert ran(following, op) == [(1, 1), (1, 2), (1, "end")]
    assert following.items[0] is run.items[0], "whose error was not told yet"
    assert following.progress[0].context is None, "nor is its state kept"


class Unsent(Watch):
    """Cannot send the part after `sent` of them, as a process may not: that request ends."""

    def __init__(self, sent):
        super().__init__()
        self.sent, self.then = sent, None

    def yielded(self, run, entries):
        if len(self) != self.sent:
            super().yielded(run, entries)
            return
        ((place, _),) = entries
        run.ended[place] = True
        self.append((place, "unsent"))
        if self.then:
            self.then()


def test_a_place_whose_part_could_not_be_sent_is_anothers_in_the_next_slice():
    op, run, watch = bound(), SteppedRun([], 0), Unsent(1)
    run.join_at(0, item(9))
    run.allowed[0] = 9
    times = iter(range(0, 10**15, SLICE_NS))  # a step is a slice
    while not watch or watch[-1] != (0, "unsent"):
        run.run(op, watch, lambda: next(times))
    run.join_at(0, item(2))
    run.run(op, watch := Watch(), no_time)
    assert watch == [(0, 1), (0, 2), (0, "end")]
    assert set(SIZES) == {1}, "it is in each step once"


def test_a_place_whose_part_could_not_be_sent_is_anothers_in_the_next_step():
    op, run, watch = bound(), SteppedRun([], 0), Unsent(1)
    run.join_at(0, item(9))
    run.allowed[0] = 9
    watch.then = lambda: run.join_at(0, item(2))
    run.run(op, watch, no_time)
    assert watch == [(0, 1), (0, "unsent"), (0, 1), (0, 2), (0, "end")]
    assert set(SIZES) == {1}


def test_who_could_not_be_sent_a_part_is_forgotten_at_once():
    op, run, watch = bound(), SteppedRun([], 0), Unsent(0)
    run.join_at(0, item(9))
    run.allowed[0] = 9
    times = iter(range(0, 10**15, SLICE_NS + 1))  # the step ends the slice
    run.run(op, watch, lambda: next(times))
    assert watch == [(0, "unsent")]
    assert run.progress[0].context is None


class Large:
    """Something that a model keeps of a request."""


def test_what_was_kept_of_a_request_goes_with_it_and_not_with_the_next_step():
    op, run = bound(), SteppedRun([], 0)
    run.join(item(2), 99)
    kept = []
    WHILE.append(lambda: keep_in(op, kept))
    assert ran(run, op)[-1] == (0, "end")
    assert kept[0]() is None


def keep_in(op, kept):
    (context,) = op.context
    large = context.state["large"] = Large()
    kept.append(weakref.ref(large))
