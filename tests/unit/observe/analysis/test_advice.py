"""Advice: which Op it finds, what it says, and that a service that follows it does more."""

from __future__ import annotations

import dataclasses
import math

import pytest
from fake_service import FakeOp, play, request, requests_of, turns_of, with_settings
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.observe.analysis.advice import Advice, advise
from pipeline.observe.analysis.figures import Figures, figures_of


def measured(ops: dict[str, FakeOp], clients: int = 32, count: int = 400) -> Figures:
    turns, requests = play([*ops.values()], clients, count)
    return figures_of(turns, requests, [*ops])


def advice_on(ops: dict[str, FakeOp], target_per_s: float | None = None) -> Advice:
    return advise(measured(ops), target_per_s)


def test_the_slowest_op_is_the_bottleneck_and_gets_the_workers_it_lacks():
    advice = advice_on({"words": FakeOp(1, 0), "rank": FakeOp(8, 0)})
    assert (advice.bottleneck, advice.is_full) == ("rank", True)
    assert advice.target_per_s == pytest.approx(500, rel=0.02)  # four times as much
    assert advice.as_config() == {"rank": {"concurrency": 4}}
    assert advice.expected_per_s == pytest.approx(500, rel=0.02)
    assert any("preprocess" in why for why in advice.ops[0].why)


def test_no_more_is_aimed_at_than_the_callers_can_ask_for():
    figures = measured({"words": FakeOp(1, 0), "rank": FakeOp(8, 0)}, clients=2)
    advice = advise(figures)
    assert advice.target_per_s == pytest.approx(2 / 0.009, rel=0.02)
    assert advice.as_config() == {"rank": {"concurrency": 2}}


def test_a_requested_rate_determines_the_advised_workers():
    """op_concurrency = op_cost x expected QPS, chapter 6.4."""
    advice = advice_on({"words": FakeOp(1, 0), "rank": FakeOp(8, 0)}, 1000.0)
    assert advice.as_config() == {"rank": {"concurrency": 8}}
    advice = advice_on({"words": FakeOp(1, 0), "rank": FakeOp(8, 0)}, 2000.0)
    assert advice.as_config() == {"words": {"concurrency": 2}, "rank": {"concurrency": 16}}


def test_a_model_with_a_queue_is_advised_a_batch_until_it_is_measured():
    advice = advice_on({"words": FakeOp(1, 0), "bow": FakeOp(0, 9, 1)})
    (given_,) = advice.ops
    assert (given_.op, given_.concurrency, given_.batch_size) == ("bow", 2, 16)
    assert any("if it takes 16 as quickly as one" in why for why in given_.why)


def test_the_gain_of_batches_is_estimated_from_several_sizes():
    ops = {"words": FakeOp(1, 0, concurrency=8), "bow": FakeOp(0, 9, 1, 1, batch_size=4)}
    turns, requests = play([*ops.values()], 32, 400)
    few, _ = play([*ops.values()], 2, 40)
    few["data_id"] += 1000
    both = figures_of(_joined(few, turns), requests, [*ops])
    (bow,) = [advice for advice in advise(both).ops if advice.op == "bow"]
    assert bow.batch_size == 16
    assert any("a batch of n takes 9 ms + n x 1 ms" in why for why in bow.why)


def test_batches_without_a_gain_are_not_advised():
    ops = {"words": FakeOp(3, 0), "bow": FakeOp(0, 0, 10, batch_size=4)}
    few, _ = play([*ops.values()], 2, 40)
    few["data_id"] += 1000
    turns, requests = play([*ops.values()], 32, 400)
    (bow,) = [
        advice
        for advice in advise(figures_of(_joined(few, turns), requests, [*ops])).ops
        if advice.op == "bow"
    ]
    assert (bow.batch_size, bow.concurrency) == (None, 4)
    assert any("batches bring little here" in why for why in bow.why)


def test_a_service_with_time_to_spare_is_left_alone():
    turns, requests = play([FakeOp(1, 0, concurrency=4)], 1, 200)
    figures = figures_of(turns, requests, ["words"])
    idle = dataclasses.replace(figures.ops[0], busy=0.1, waiting=0.0)
    advice = advise(dataclasses.replace(figures, ops=(idle,)))
    assert (advice.bottleneck, advice.is_full, advice.ops) == ("words", False, ())
    assert math.isnan(advice.expected_per_s)


def test_idle_workers_are_named():
    ops = {"words": FakeOp(0.1, 0, concurrency=8), "rank": FakeOp(8, 0)}
    assert advice_on(ops).as_config() == {
        "words": {"concurrency": 1},
        "rank": {"concurrency": 4},
    }


def test_a_record_without_turns_has_no_advice():
    advice = advise(figures_of(turns_of(), requests_of(request()), []))
    assert (advice.bottleneck, advice.ops, advice.notes) == (None, (), ("no Op has run",))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"let_in_ms": 50.0}, "worker_num"),
        ({"unpack_ms": 900.0}, "unpacking and packing"),
        ({"told": 3}, "3 requests"),
    ],
)
def test_a_limit_that_no_setting_of_an_op_changes_is_noted(changes, text):
    figures = measured({"words": FakeOp(1, 0)})
    assert not any(text in note for note in advise(figures).notes)
    assert any(text in note for note in advise(dataclasses.replace(figures, **changes)).notes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [({"hand_over_ms": 5.0}, "on their way"), ({"growth_per_s": 900.0}, "channel grew by 900")],
)
def test_a_problem_of_a_channel_is_noted(changes, text):
    figures = measured({"words": FakeOp(1, 0)}, count=2000)
    odd = dataclasses.replace(figures.ops[0], **changes)
    assert not any(text in note for note in advise(figures).notes)
    notes = advise(dataclasses.replace(figures, ops=(odd,))).notes
    assert any(text in note for note in notes)


costs = st.floats(0.5, 20)
played_ops = st.builds(FakeOp, costs, costs, st.floats(0, 5), st.integers(1, 3))


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(st.sampled_from("abcd"), played_ops, min_size=1), st.integers(4, 24))
def test_a_service_that_follows_the_advice_is_not_slower(ops, clients):
    before = measured(ops, clients, 300)
    advice = advise(before)
    after = measured(with_settings(ops, advice.as_config()), clients, 300)
    assert after.per_s >= before.per_s * 0.9
    if advice.ops and all(given_.batch_size is None for given_ in advice.ops):
        assert after.per_s >= min(advice.expected_per_s, advice.target_per_s) * 0.75


def _joined(first, second):
    import numpy as np

    later = second.copy()
    later["batch"] += 10_000
    return np.concatenate([first, later])
