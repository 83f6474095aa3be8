"""Stretches of time, against counting each tick."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.observe.tables import covered_ns, covered_until, merged

intervals = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda pair: tuple(sorted(pair))),
    max_size=8,
)


def columns(pairs):
    reshape = np.array(pairs, np.int64).reshape(-1, 2)
    return reshape[:, 0], reshape[:, 1]


def ticks(pairs):
    return {tick for start, end in pairs for tick in range(start, end)}


@given(intervals)
def test_merged_stretches_are_the_same_time_in_order_and_apart(pairs):
    starts, ends = merged(*columns(pairs))
    assert ticks(zip(starts.tolist(), ends.tolist(), strict=True)) == ticks(pairs)
    assert (starts[1:] > ends[:-1]).all()
    assert (starts <= ends).all()


@given(intervals, st.integers(0, 30), st.integers(0, 30))
def test_the_covered_time_between_two_times_is_counted(pairs, first, last):
    starts, ends = merged(*columns(pairs))
    assert covered_ns(starts, ends) == len(ticks(pairs))
    within = [tick for tick in ticks(pairs) if first <= tick < last]
    assert covered_ns(starts, ends, (first, last)) == len(within)


@given(intervals, st.lists(st.integers(-5, 35), max_size=5), st.just(0) | st.just(1_795 * 10**15))
def test_the_covered_time_until_any_time_is_counted(pairs, times, epoch):
    starts, ends = merged(*columns(pairs))
    result = covered_until(np.array(times, np.int64) + epoch, starts + epoch, ends + epoch)
    assert result.tolist() == [len([t for t in ticks(pairs) if t < time]) for time in times]
