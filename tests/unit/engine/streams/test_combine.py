"""Parts of a stream as one answer."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.engine.streams.combine import combined, size_of


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["a", "b", ""], "ab"),
        ([b"a", bytearray(b"b")], b"ab"),
        ([[1], [], [2, 3]], [1, 2, 3]),
        ([1, 2, 3], 3),
        ([{"a": 1}, {"b": 2}], {"b": 2}),
        (["a", 1], 1),
        ([None], None),
    ],
)
def test_values_are_put_together_by_their_kind(values, expected):
    assert combined([{"x": value} for value in values]) == {"x": expected}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([np.zeros((1, 2)), np.ones((2, 2))], [[0, 0], [1, 1], [1, 1]]),
        ([np.array(1), np.array(2)], [1, 2]),
        ([np.int64(1), np.int64(2)], [1, 2]),
        ([np.zeros((1, 2)), np.ones((1, 3))], [[1, 1, 1]]),
    ],
)
def test_arrays_are_put_together_along_their_rows_if_they_fit(values, expected):
    assert combined([{"x": value} for value in values])["x"].tolist() == expected


def test_a_combined_part_has_the_keys_of_all_parts():
    assert combined([{"a": "1"}, {"b": "2"}, {"a": "3"}]) == {"a": "13", "b": "2"}
    assert combined([]) == {}


def test_a_size_counts_the_contents_of_a_part():
    assert size_of({"x": np.zeros(1000)}) >= 8000
    assert size_of({"x": ["a" * 1000, b"b" * 1000]}) >= 2000
    assert 0 < size_of({"x": 1}) < 1000


LONG = "a" * 100_000


@pytest.mark.parametrize(
    "value",
    [
        [""] * 1000 + [LONG],
        [1] * 1000 + [LONG.encode()],
        [{"y": 1}] * 1000 + [{"y": LONG}],
        [[""] for _ in range(1000)] + [["", LONG]],
        (*[0] * 1000, np.zeros(12_500)),
        {str(number): 1 for number in range(1000)} | {"z": (LONG,)},
        np.array([""] * 1000 + [LONG], dtype=object),
        [memoryview(bytes(100_000))],
        {"y": [np.zeros(12_500)]},
    ],
)
def test_a_size_counts_large_values_at_any_depth(value):
    assert 100_000 < size_of({"x": value}) < 200_000


def test_a_size_counts_each_value_of_a_list():
    assert 90_000 < size_of({"x": ["a" * 82] * 1000}) < 100_000
    assert size_of({"x": []}) < 1000


def test_the_size_of_a_repeated_list_is_computed_without_visiting_each():
    row = [0] * 100_000
    assert size_of({"x": [row] * 1_000_000}) > 100_000 * 1_000_000


def test_the_size_of_a_recursive_list_is_finite():
    endless: list[object] = [1]
    endless.append(endless)
    assert size_of({"x": endless}) < 1000
