"""When an Op counts as quick: plain numbers, no clocks."""

from __future__ import annotations

import random
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.trips.pace import Pace

QUICK_NS, BETWEEN_NS, SLOW_NS, STUCK_NS = 5_000, 500_000, 5_000_000, 10**12


def changes(pace, took):
    """How often it has changed in these runs."""
    return sum(pace.took(ns) for ns in took)


def runs_until(pace, took):
    """After how many of these runs it changes for the first time."""
    return next(number for number, ns in enumerate(took, 1) if pace.took(ns))


def settled(ns=QUICK_NS):
    """The pace of an Op that has taken so long for a thousand runs."""
    pace = Pace(is_fusable=True)
    changes(pace, [ns] * 1000)
    return pace


def mixed(seed, slow, slow_ns=SLOW_NS):
    """Runs without end: of each ten in a row `slow` take long, at random places."""
    rng = random.Random(seed)
    while True:
        ten = [slow_ns] * slow + [QUICK_NS] * (10 - slow)
        rng.shuffle(ten)
        yield from ten


def test_an_op_is_quick_after_a_few_runs_that_were():
    pace = Pace(is_fusable=True)
    assert not pace.is_quick
    assert runs_until(pace, [QUICK_NS] * 100) == 15
    assert pace.is_quick


def test_a_slow_first_run_has_no_special_weight():
    pace = Pace(is_fusable=True)
    pace.took(STUCK_NS)
    assert runs_until(pace, [QUICK_NS] * 100) < 22


def test_an_op_that_becomes_slow_is_detected_soon():
    assert 10 < runs_until(settled(), [SLOW_NS] * 100) < 23


def test_a_recently_quick_op_that_becomes_slow_is_detected_as_soon():
    pace = Pace(is_fusable=True)
    runs_until(pace, [QUICK_NS] * 100)
    assert 10 < runs_until(pace, [SLOW_NS] * 100) < 23


def test_how_slow_it_is_makes_no_difference():
    assert runs_until(settled(), [1_000_001] * 100) == runs_until(settled(), [STUCK_NS] * 100)


def test_an_op_that_becomes_quick_again_joins_again():
    assert runs_until(settled(SLOW_NS), [QUICK_NS] * 100) < 70


def test_some_hiccups_in_a_row_part_no_group():
    pace = settled()
    for _ in range(100):
        assert changes(pace, [STUCK_NS] * 10 + [QUICK_NS] * 90) == 0
    assert pace.is_quick


@pytest.mark.parametrize("slow", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_an_op_with_delays_in_a_fifth_of_its_runs_stays_quick(seed, slow):
    pace = settled()
    assert changes(pace, islice(mixed(seed, slow), 10_000)) == 0
    assert pace.is_quick


@pytest.mark.parametrize("seed", range(5))
def test_an_op_that_is_slow_in_most_of_its_runs_stays_slow(seed):
    pace = settled()
    took = mixed(seed, 7)
    assert runs_until(pace, took) < 100
    assert changes(pace, islice(took, 10_000)) == 0
    assert not pace.is_quick


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("slow", range(11))
def test_no_mixture_makes_an_op_oscillate(seed, slow):
    pace = Pace(is_fusable=True)
    assert changes(pace, islice(mixed(seed, slow), 10_000)) <= 20


def test_an_op_between_the_limits_does_not_change():
    pace = Pace(is_fusable=True)
    assert changes(pace, [BETWEEN_NS] * 1000) == 0
    assert not pace.is_quick
    changes(pace, [QUICK_NS] * 100)
    assert changes(pace, [BETWEEN_NS] * 1000) == 0
    assert pace.is_quick


def test_an_op_that_hangs_is_not_quick_for_a_while():
    pace = settled()
    assert pace.hung()
    assert not pace.hung()
    assert 50 < runs_until(pace, [QUICK_NS] * 100) < 70


def test_batches_are_quick_by_the_time_of_a_request():
    pace = Pace(is_fusable=True)
    batches = [(32 * QUICK_NS, 32)] * 20
    assert next(number for number, run in enumerate(batches, 1) if pace.took(*run)) == 4
    pace = Pace(is_fusable=True)
    assert not any(pace.took(8 * BETWEEN_NS, 8) for _ in range(1000))


def test_small_batches_that_had_to_wait_do_not_outweigh_full_ones():
    pace = Pace(is_fusable=True)
    for _ in range(20):
        pace.took(SLOW_NS, 1)
        pace.took(32 * QUICK_NS, 32)
        pace.took(32 * QUICK_NS, 32)
    assert pace.is_quick


def test_a_batch_with_a_long_run_is_not_quick_at_any_size():
    pace = Pace(is_fusable=True)
    assert not any(pace.took(2_000_001, 1000) for _ in range(1000))
    pace = settled()
    assert not any(pace.took(4_900_000, 1000) for _ in range(1000))
    assert any(pace.took(5_000_001, 1000) for _ in range(22))


def test_one_batch_that_had_to_wait_parts_no_group():
    pace = settled()
    assert not any(pace.took(STUCK_NS, 32) for _ in range(5))
    assert pace.took(STUCK_NS, 32)


@given(st.lists(st.integers(0, 10**13), max_size=300))
def test_the_slow_share_is_between_0_and_1_and_changes_are_returned(took):
    pace = Pace(is_fusable=True)
    for ns in took:
        before = pace.is_quick
        assert pace.took(ns) == (pace.is_quick != before)
        assert 0 <= pace.slow_share <= 1
