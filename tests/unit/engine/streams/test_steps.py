"""Steps: places, who joins, who leaves, what is left of a run that is given up."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import numpy as np

from pipeline import Op, RequestOp
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.data import NO_INFO
from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.streams import steps
from pipeline.engine.streams.flow import ALL, ENDED, Bundle
from pipeline.engine.streams.run import SLICE_NS
from pipeline.engine.streams.steps import stepped_run
from pipeline.op import configure_op


class Steps(Op):
    """Says how many steps each request has made; `n` of them in all."""

    def preprocess(self, input_dicts, *, context):
        context.state["at"] = 0
        return {"n": np.array([input_dicts["in"]["n"]])}

    def process(self, feed_batch, *, context):
        SIZES.append(len(context))
        between()
        for entry in context:
            entry.state["at"] += 1
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
    """Records parts and ends: [(place, what)]."""

    def call_begins(self):
        pass

    def call_ends(self):
        pass

    def yielded(self, run, entries):
        self += [(place, shown(reported)) for place, reported in entries]


def shown(told):
    if isinstance(told, Bundle):
        at = [part["at"] for part in told.parts]
        return at if len(at) > 1 or told.bytes else at[0]
    return "end" if told is ENDED else told["at"]


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
    run.steps.clear()  # the loop has taken them
    return watch


def test_a_request_that_joins_during_a_step_is_in_the_next_one():
    op, run = bound(), stepped_run(0)
    run.join(item(2), 99)
    WHILE.append(lambda: run.join(item(1), 99))
    assert ran(run, op) == [(0, 1), (0, 2), (0, "end"), (1, 1), (1, "end")]
    assert SIZES == [1, 2]
    assert not run.has_work


def test_a_place_is_free_after_its_end_was_reported():
    op, run = bound(), stepped_run(0)
    assert [run.join(item(1), 99), run.join(item(1), 99)] == [0, 1]
    ran(run, op)
    run.leave(1)
    assert run.taken == [0]
    assert run.join(item(3), 99) == 1
    assert run.has_work
    assert ran(run, op) == [(1, 1), (1, 2), (1, 3), (1, "end")]


def test_a_request_without_room_skips_steps_until_it_has_some():
    op, run = bound(), stepped_run(0)
    run.join(item(5), 2)
    run.join(item(1), 9)
    assert ran(run, op)[-1] == (0, 2)
    assert not run.has_work
    run.allowed[0] = 3
    assert run.has_work
    assert ran(run, op) == [(0, 3)]


def test_a_finished_request_leaves_and_its_end_is_reported():
    op, run = bound(), stepped_run(0)
    gone = item(9)
    run.join(gone, 99)
    WHILE.append(lambda: setattr(gone, "is_over", True))
    assert ran(run, op) == [(0, 1), (0, "end")]


def test_a_run_that_is_given_up_continues_without_the_requests_in_its_step():
    op, run = bound(), stepped_run(0)
    run.join(item(3), 1)
    ran(run, op)
    run.join(item(2), 99)
    run.allowed[0] = 99
    following = run.without([0])
    assert ran(following, op) == [(1, 1), (1, 2), (1, "end")]
    assert following.items[0] is run.items[0], "whose error was not told yet"
    assert following.pulls[0].progress[0].context is None, "nor is its state kept"


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


def test_a_place_whose_part_could_not_be_sent_is_reused_in_the_next_slice():
    op, run, watch = bound(), stepped_run(0), Unsent(1)
    run.join_at(0, item(9))
    run.allowed[0] = 9
    times = iter(range(0, 10**15, SLICE_NS))  # a step is a slice
    while not watch or watch[-1] != (0, "unsent"):
        run.run(op, watch, lambda: next(times))
    run.join_at(0, item(2))
    run.run(op, watch := Watch(), no_time)
    assert watch == [(0, 1), (0, 2), (0, "end")]
    assert set(SIZES) == {1}, "it is in each step once"


def test_a_place_whose_part_could_not_be_sent_is_reused_in_the_next_step():
    op, run, watch = bound(), stepped_run(0), Unsent(1)
    run.join_at(0, item(9))
    run.allowed[0] = 9
    watch.then = lambda: run.join_at(0, item(2))
    run.run(op, watch, no_time)
    assert watch == [(0, 1), (0, "unsent"), (0, 1), (0, 2), (0, "end")]
    assert set(SIZES) == {1}


def test_a_request_whose_part_could_not_be_sent_is_released_at_once():
    op, run, watch = bound(), stepped_run(0), Unsent(0)
    run.join_at(0, item(9))
    run.allowed[0] = 9
    times = iter(range(0, 10**15, SLICE_NS + 1))  # the step ends the slice
    run.run(op, watch, lambda: next(times))
    assert watch == [(0, "unsent")]
    assert run.pulls[0].progress[0].context is None


class Large:
    """Something that a model keeps of a request."""


def test_the_context_of_a_request_is_released_at_its_end():
    op, run = bound(), stepped_run(0)
    run.join(item(2), 99)
    collected = []
    WHILE.append(lambda: keep_in(op, collected))
    assert ran(run, op)[-1] == (0, "end")
    assert collected[0]() is None


def keep_in(op, kept):
    (context,) = op.context
    large = context.state["large"] = Large()
    kept.append(weakref.ref(large))


def holding(*allowed, steps=9):
    """A run of as many requests as are quick together, each of so many steps."""
    run = stepped_run(0)
    run.holds = True
    for entry in allowed:
        run.join(item(steps), entry)
    return run


def test_parts_of_a_combined_answer_are_reported_together_after_the_last():
    watch = ran(holding(ALL, ALL, ALL, ALL, steps=3), bound())
    assert watch == [(place, what) for place in range(4) for what in ([1, 2, 3], "end")]


def test_parts_of_a_stream_are_sent_in_groups_as_large_as_the_room():
    op, run = bound(), holding(8, ALL, ALL, ALL, steps=9)
    reported = [what for place, what in ran(run, op) if place == 0]
    assert reported == [1, [2, 3, 4, 5], [6, 7], 8], "the first one at once"
    run.allowed[0] = 16
    assert [what for place, what in ran(run, op) if place == 0] == [9, "end"]


def test_parts_of_few_requests_or_of_slow_steps_are_not_held():
    assert ran(holding(99, 99, steps=2), bound())[:4] == [(0, 1), (1, 1), (0, 2), (0, "end")]
    run, watch = holding(99, 99, 99, 99, steps=2), Watch()
    times = iter(range(0, 10**12, 1_000_000))
    run.run(bound(), watch, lambda: next(times))
    assert watch[:4] == [(place, 1) for place in range(4)]


def test_a_slice_reports_all_held_parts_at_its_end():
    op, run, watch = bound(), holding(ALL, steps=99), Watch()
    times = iter(range(0, 10**12, SLICE_NS // 10))
    run.run(op, watch, lambda: next(times))
    ((_, parts),) = watch
    assert parts == list(range(1, run.made[0] + 1))
    assert not run.pulls[0].held


def test_parts_of_a_combined_answer_are_held_up_to_a_size(monkeypatch):
    monkeypatch.setattr(steps, "_HELD_BYTES", 1000)
    watch = ran(holding(ALL, steps=9), bound())
    assert [what for _, what in watch] == [[1, 2, 3, 4], [5, 6, 7, 8], [9], "end"]


def test_a_run_that_is_given_up_returns_its_unsent_parts():
    op, run = bound(), holding(ALL, steps=9)

    def hangs():
        run.is_superseded = True

    WHILE.extend([lambda: None, lambda: None, hangs])
    assert ran(run, op) == []
    left = run.take_unsent()
    assert [(place, shown(reported)) for place, reported in left] == [(0, [1, 2])]
    assert len(run.steps) == 2
    assert not run.take_unsent()


def test_a_run_that_is_given_up_returns_its_unsent_ends():
    op, run = bound(), holding(ALL, ALL, steps=9)

    def goes():
        run.items[1].is_over = True

    WHILE.extend([goes, lambda: setattr(run, "is_superseded", True)])
    assert ran(run, op) == []
    left = [(place, shown(reported)) for place, reported in run.take_unsent()]
    assert left == [(1, [1]), (1, "end"), (0, [1])]


def test_a_part_has_the_end_of_its_step_as_its_time():
    op, run, reported = bound(), holding(ALL, steps=3), []
    watch = Watch()
    watch.yielded = lambda run, made: reported.append(made)
    times = iter(range(100))
    run.run(op, watch, lambda: next(times))
    (made,) = reported
    assert made[0][1].times_ns == [step.end_ns for step in run.steps]
