"""Batches, columns and sums of the journal's rows, against plain loops."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.journal.journal import NO_WORKER, REQUEST, SPAN, Rows
from pipeline.observe.tables import batches, columns, groups, joined, sorted_by, tally


def turns_of(*places: tuple[int, int, int]) -> Rows:
    """Turns of (op, worker, batch), which have their own numbers as data ids."""
    turns = np.zeros(len(places), SPAN)
    for number, place in enumerate(places):
        turns[number] = (*place, number, *[0] * 8)
    return turns


@pytest.mark.parametrize(
    ("places", "sizes"),
    [
        ([], []),
        ([(0, 0, 1)], [1]),
        ([(0, 0, 1), (0, 0, 1), (0, 1, 1)], [2, 1]),
        ([(0, 0, 1), (0, 0, 2), (1, 0, 2)], [1, 1, 1]),
        ([(0, NO_WORKER, -1)] * 3, [1, 1, 1]),
        ([(0, 0, 1), (0, NO_WORKER, -1), (0, 0, 1)], [1, 1, 1]),
    ],
)
def test_batches_are_neighbours_of_the_same_op_worker_and_number(places, sizes):
    result = batches(turns_of(*places))
    assert result.sizes.tolist() == sizes
    assert result.first.tolist() == [sum(sizes[:number]) for number in range(len(sizes))]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=20))
def test_each_span_has_its_batch(runs):
    places = [(op, 0, number) for number, (op, size) in enumerate(runs) for _ in range(size)]
    result = batches(turns_of(*places))
    assert result.sizes.tolist() == [size for _, size in runs]
    assert result.of(np.arange(len(places))).tolist() == [batch for _, _, batch in places]


def test_columns_are_in_the_requested_order():
    turns = turns_of((0, 1, 5), (2, 3, 6))
    assert columns(turns, "batch", "op").tolist() == [[5, 6], [0, 2]]
    assert columns(turns).shape == (0, 2)


def test_tables_are_joined_with_their_fields():
    requests = np.zeros(2, REQUEST)
    requests["end_ns"] = [7, 8]
    whole = joined([requests, requests[:0], requests[1:]])
    assert whole.dtype == REQUEST
    assert whole["end_ns"].tolist() == [7, 8, 8]


KEYS = st.integers(0, 3) | st.integers(0, 2**40)


@given(st.lists(KEYS, min_size=1))
def test_sorting_is_ascending_and_stable(keys):
    order = sorted_by(np.array(keys, np.int64))
    result = list(range(len(keys))) if order is None else order.tolist()
    assert result == sorted(range(len(keys)), key=lambda place: keys[place])


@given(st.lists(st.tuples(KEYS, st.integers(-(2**62), 2**62)), min_size=1))
def test_sums_by_key_are_exact_and_wrap(rows):
    result = groups(np.array([key for key, _ in rows], np.int64))
    values = np.array([[value for _, value in rows], [1] * len(rows)], np.int64)
    expected = defaultdict(list)
    for key, value in rows:
        expected[key].append(value)
    assert result.keys.tolist() == sorted(expected)
    listed = [expected[key] for key in sorted(expected)]
    assert result.sizes.tolist() == [len(of_key) for of_key in listed]
    sums, counts = result.sums(values).tolist()
    assert [total % 2**64 for total in sums] == [sum(of_key) % 2**64 for of_key in listed]
    assert counts == result.sizes.tolist()
    assert result.most(values[0]).tolist() == [max(of_key) for of_key in listed]


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2))))
def test_a_tally_counts_cells(cells):
    counters = np.full((2, 3), 5, np.uint64)
    tally(counters, np.array([row * 3 + column for row, column in cells], np.intp))
    for row, column in itertools.product(range(2), range(3)):
        assert counters[row, column] == 5 + cells.count((row, column))
