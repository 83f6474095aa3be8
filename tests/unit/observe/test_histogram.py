"""Buckets of times, and percentiles of them."""

from __future__ import annotations

import bisect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.observe.snapshot import LATENCY_STEPS
from pipeline.observe.tables import LATENCY_BOUNDS_NS, buckets, percentile

BOUNDS = LATENCY_BOUNDS_NS.tolist()


def bucket_of(ns: int) -> int:
    return min(bisect.bisect_left(BOUNDS, ns), LATENCY_STEPS - 1)


def buckets_of(times_ns: list[int]) -> list[int]:
    return buckets(np.array(times_ns, np.int64)).tolist()


def test_each_bound_is_in_its_bucket_and_longer_times_in_the_next():
    assert buckets_of(BOUNDS) == list(range(LATENCY_STEPS))
    longer = [bound + 1 for bound in BOUNDS]
    assert buckets_of(longer) == [*range(1, LATENCY_STEPS), LATENCY_STEPS - 1]


@given(st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 62).map(lambda n: 2**n)))
def test_a_time_is_in_the_first_bucket_that_is_long_enough(times_ns):
    assert buckets_of(times_ns) == [bucket_of(ns) for ns in times_ns]


def test_buckets_have_the_shape_of_the_times():
    assert buckets(np.array([[0, 1000], [1001, 2**62]])).tolist() == [[0, 0], [1, 120]]


@given(
    st.lists(st.integers(1, BOUNDS[-1]), min_size=1),
    st.floats(0, 1),
)
def test_a_percentile_is_in_the_bucket_of_the_true_one(times_ns, q):
    histogram = [0] * LATENCY_STEPS
    for ns in times_ns:
        histogram[bucket_of(ns)] += 1
    true = float(np.quantile(times_ns, q, method="inverted_cdf"))
    bucket = bucket_of(int(true))
    lower = float(LATENCY_BOUNDS_NS[bucket - 1]) if bucket else 0.0
    assert lower <= percentile(histogram, q) <= float(LATENCY_BOUNDS_NS[bucket])


def test_percentiles_of_empty_buckets_are_0_and_percentages_are_refused():
    assert percentile([0] * LATENCY_STEPS, 0.99) == 0.0
    with pytest.raises(ValueError, match="q is 99"):
        percentile([0] * LATENCY_STEPS, 99)


def test_a_difference_of_histograms_of_a_restarted_copy_has_a_percentile():
    difference = [-3] * LATENCY_STEPS
    difference[8] = 1
    assert percentile(difference, 1.0) == float(LATENCY_BOUNDS_NS[8])
