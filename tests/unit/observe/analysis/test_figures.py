"""Figures of a record: times, waiting, load, the critical path, the formulas of the document."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fake_service import MS, FakeOp, never_ran, play, request, requests_of, turn, turns_of
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.journal.journal import REQUEST, SPAN, Outcome
from pipeline.observe.analysis.figures import (
    avg_batch_cost,
    figures_of,
    op_concurrency,
)

NAMES = ["words", "bow", "cnn", "combine"]


def test_the_formulas_equal_the_documented_ones():
    assert op_concurrency(0.010, 500.0) == 5.0
    assert avg_batch_cost(4, 1.0, 8.0, 4.0) == 4.0


def test_times_of_an_op_are_means_over_batches():
    rows = turns_of(
        *(turn(data_id=number, batch=1) for number in range(3)),
        turn(data_id=9, batch=2, start_ns=10 * MS, preprocess_end_ns=13 * MS,
             process_end_ns=14 * MS, end_ns=15 * MS, ready_ns=6 * MS, result_received_ns=16 * MS),
    )  # fmt: skip
    (op,) = figures_of(rows, requests_of(), NAMES).ops
    assert (op.name, op.requests, op.batches, op.batch_size) == ("words", 4, 2, 2.0)
    assert (op.prep_ms, op.midp_ms, op.postp_ms, op.cost_ms) == (2.0, 1.0, 1.0, 4.0)
    assert (op.request_cost_ms, op.largest_batch, op.hand_over_ms) == (2.0, 3, 1.0)
    assert op.queue_ms == (3 * 1 + 4) / 4


def test_failed_batches_do_not_count_in_the_times():
    bad = int(Outcome.BACKEND)
    rows = turns_of(
        turn(data_id=1, batch=1),
        turn(data_id=2, batch=2, outcome=bad, end_ns=100 * MS),
        never_ran(data_id=3),
    )
    (op,) = figures_of(rows, requests_of(request(1), request(2, outcome=bad)), NAMES).ops
    assert (op.requests, op.failed, op.never_ran, op.cost_ms) == (2, 1, 1, 3.0)
    (op,) = figures_of(turns_of(never_ran()), requests_of(), NAMES).ops
    assert (op.batches, op.workers, op.capacity_per_s) == (0, 0, math.inf)
    assert math.isnan(op.cost_ms)


def test_a_saturated_op_is_busy_all_the_time():
    turns, requests = play([FakeOp(1, 9, concurrency=2)], clients=8, count=1000)
    result = figures_of(turns, requests, NAMES)
    (op,) = result.ops
    assert (op.workers, op.capacity_per_s, op.visits) == (2, 200.0, 1.0)
    assert 0.99 < op.busy <= 1.0
    assert op.waiting == pytest.approx(6.0, abs=0.1)
    assert op.most_waiting == 6
    assert result.per_s == pytest.approx(200.0, rel=0.01)
    assert result.inside == pytest.approx(8.0, abs=0.1)
    assert result.latency.p50 == pytest.approx(40.0, rel=0.01)


def test_idle_stretches_between_requests_do_not_count():
    times = {name: value + 10_000 * MS for name, value in {
        "start_ns": MS // 2, "admitted_ns": MS * 3 // 4, "dispatched_ns": MS,
        "completed_ns": 6 * MS, "end_ns": 7 * MS}.items()}  # fmt: skip
    result = figures_of(turns_of(), requests_of(request(1), request(2, **times)), NAMES)
    assert result.seconds == 0.013
    assert result.latency.mean == 6.5
    assert (result.let_in_ms, result.unpack_ms, result.graph_ms, result.pack_ms) == (
        0.25,
        0.25,
        5,
        1,
    )


def test_capacity_counts_requests_that_bypass_the_op():
    """Half of them come here, so the service does twice what the Op does."""
    rows = turns_of(turn(data_id=1))
    (op,) = figures_of(rows, requests_of(request(1), request(2)), NAMES).ops
    assert op.visits == 0.5
    assert op.capacity_per_s == pytest.approx(2 / 0.003)


def test_the_critical_path_has_the_ops_that_delayed_the_answer():
    """words -> bow and cnn at once -> combine; bow is slower in two of three requests."""
    rows = []
    for data_id, (bow, cnn) in enumerate([(9, 4), (9, 4), (3, 8)]):
        ready = 2 + max(bow, cnn) + 1
        spans = [(0, 0, 1), (1, 2, 2 + bow), (2, 2, 2 + cnn), (3, ready + 1, ready + 2)]
        readies = [0, 1, 1, ready]
        rows += [
            turn(op, data_id, batch=data_id, ready_ns=(1 + at) * MS, start_ns=(1 + start) * MS,
                 preprocess_end_ns=0, process_end_ns=0, end_ns=(1 + end) * MS)
            for (op, start, end), at in zip(spans, readies, strict=True)
        ]  # fmt: skip
    path = figures_of(turns_of(*rows), requests_of(), NAMES).path
    assert path is not None
    assert path.ops == ("words", "bow", "combine")
    assert (path.cost_ms, path.queue_ms) == (1 + 9 + 1, 0 + 1 + 1)
    assert path.share == pytest.approx(2 / 3)


def test_the_cost_of_batches_is_a_line_through_several_sizes():
    played = FakeOp(0.5, 10.0, 1.0, batch_size=8)
    turns, requests = play([FakeOp(2.0, 0.0), played], clients=12, count=400)
    op = figures_of(turns, requests, NAMES).ops[1]
    assert op.line is not None
    assert op.line.fixed_ms == pytest.approx(10.0)
    assert op.line.each_ms == pytest.approx(1.5)
    assert op.line.cost_ms(8) == pytest.approx(1.5 + 10 / 8)


@pytest.mark.parametrize(
    ("costs", "fixed_ms", "each_ms"),
    [({1: 5, 2: 4}, 4.5, 0.0), ({1: 1, 2: 4}, 0.0, 5 / 3)],
    ids=["larger ones take no longer", "larger ones take longer than their share"],
)
def test_the_cost_of_batches_has_no_negative_part(costs, fixed_ms, each_ms):
    rows = []
    for number in range(20):
        size = 1 + number % 2
        rows += [
            turn(data_id=number * 2 + part, batch=number, end_ns=(2 + costs[size]) * MS)
            for part in range(size)
        ]
    line = figures_of(turns_of(*rows), requests_of(), NAMES).ops[0].line
    assert line is not None
    assert (line.fixed_ms, line.each_ms) == pytest.approx((fixed_ms, each_ms))


def test_the_growth_of_a_channel_is_arrivals_minus_departures():
    """100/s come for 100 ms, 50/s leave."""
    rows = turns_of(*(
        turn(data_id=number, batch=number, ready_ns=(100 + number * 10) * MS,
             start_ns=(100 + number * 20) * MS, end_ns=(120 + number * 20) * MS)
        for number in range(11)
    ))  # fmt: skip
    (op,) = figures_of(rows, requests_of(), NAMES).ops
    assert op.growth_per_s == pytest.approx(50.0)
    assert op.most_waiting == 5


def test_the_figures_of_an_empty_record_are_unknown():
    result = figures_of(turns_of(), requests_of(), [])
    assert (result.requests, result.ops, result.path) == (0, (), None)
    assert math.isnan(result.per_s)
    assert math.isnan(result.latency.p99)


times = st.integers(-1, 40)


@given(
    st.lists(st.tuples(st.integers(0, 3), *[st.integers(-1, 2)] * 3, *[times] * 8), max_size=20),
    st.lists(st.tuples(*[st.integers(-1, 3)] * 5, *[times] * 8), max_size=20),
)
def test_any_rows_have_figures(turns, requests):
    result = figures_of(np.array(turns, SPAN), np.array(requests, REQUEST), NAMES)
    assert sum(op.requests + op.never_ran for op in result.ops) == len(turns)
    assert all(op.waiting >= 0 or math.isnan(op.waiting) for op in result.ops)
