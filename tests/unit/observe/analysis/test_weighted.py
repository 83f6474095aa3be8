"""Figures of rows that stand for several: as if each were there that often."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fake_service import MS, request, requests_of, turn, turns_of
from hypothesis import given
from hypothesis import strategies as st

from pipeline.observe.analysis.figures import Durations, count, figures_of, percentile, weighted
from pipeline.observe.analysis.sampling import LOAD, Sample

whole = st.integers(1, 5)
values = st.lists(st.tuples(st.integers(0, 100), whole), min_size=1, max_size=20)


@given(values)
def test_weighted_sums_and_means_equal_those_of_repeated_values(pairs):
    times, weights = (np.array(column) for column in zip(*pairs, strict=True))
    spans, repeated = Durations(times * MS, weights), np.repeat(times, weights)
    assert spans.total_s == pytest.approx(repeated.sum() / 1e3)
    assert spans.mean_ms == pytest.approx(repeated.mean())


@given(values, st.integers(0, 100))
def test_weighted_percentiles_are_close_to_those_of_repeated_values(pairs, percent):
    times, weights = (np.array(column) for column in zip(*pairs, strict=True))
    result = percentile(times, weights, percent)
    assert times.min() <= result <= times.max()
    ordered, place = np.sort(np.repeat(times, weights)), percent / 100 * weights.sum()
    low, high = (int(np.clip(place + by, 0, weights.sum() - 1)) for by in (-6, 6))
    assert ordered[low] <= result <= ordered[high]


@given(st.lists(st.integers(0, 100), min_size=1), st.floats(0, 100))
def test_percentiles_of_equal_weights_equal_numpys(times, percent):
    result = percentile(np.array(times), np.full(len(times), 64.0), percent)
    assert result == np.percentile(times, percent)


def test_durations_of_no_rows_are_unknown():
    nothing = Durations(np.array([]), np.array([]))
    assert math.isnan(nothing.mean_ms)
    assert math.isnan(nothing.percentile_ms(50))
    assert nothing.total_s == 0.0


def test_rows_count_by_their_weight_and_at_least_one():
    rows = requests_of(request(1), request(2))
    assert count(weighted(rows, np.array([16.0, 8.0]))) == 24
    assert count(weighted(rows, np.array([0.1, 0.2]))) == 1
    assert count(weighted(rows[:0], np.array([]))) == 0


def test_weighted_figures_equal_those_of_repeated_rows():
    turns = turns_of(turn(data_id=1), turn(data_id=9), turn(data_id=2, batch=2))
    requests = requests_of(request(1), request(2, outcome=3))
    sample = Sample(np.array([2.0, 2.0, 4.0]), np.array([4.0, 4.0]), np.empty(0, LOAD))
    result = figures_of(turns, requests, ["bow"], sample)
    (bow,) = result.ops
    assert (result.requests, result.told, result.failed) == (8, 2, 4)
    assert (bow.requests, bow.batches, bow.batch_size, bow.visits) == (8, 6, 8 / 6, 1.0)
    assert result.inside == pytest.approx(8 * 5 / 6.5)


@pytest.mark.parametrize(
    ("loads", "seconds"),
    [
        ([], 0.0065),
        ([(0, 100 * MS, 50 * MS)], 0.050),
        ([(0, 100 * MS, 3 * MS)], 0.0065),  # of requests that had not ended then
        ([(3 * MS, 7 * MS, 4 * MS)], 0.0065),
        ([(3 * MS, 107 * MS, 4 * MS), (107 * MS, 207 * MS, 40 * MS)], 0.0465),
        ([(7 * MS, 107 * MS, 50 * MS), (7 * MS, 107 * MS, 50 * MS)], 0.0815),  # two copies
    ],
)
def test_time_in_which_only_others_were_there_counts(loads, seconds):
    rows = requests_of(request(1))
    sample = Sample(np.ones(0), np.ones(1), np.array(loads, LOAD))
    assert figures_of(turns_of(), rows, [], sample).seconds == pytest.approx(seconds)
