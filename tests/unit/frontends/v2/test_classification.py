"""The classification extension: the highest values of an output, in text."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.frontends.v2.convert import classes_of, classes_wanted
from pipeline.frontends.v2.errors import V2Error
from pipeline.proto.v2.codec import RequestedOutput


def test_the_highest_with_their_labels():
    array = np.array([0.5, 0.25, 0.75, 0.25], np.float32)
    assert classes_of(array, 2, [b"a", b"b\xff", b"c"], batches=False).tolist() == [
        b"0.750000:2:c",
        b"0.500000:0:a",
    ]
    assert classes_of(array, 9, [b"a"], batches=False).tolist() == [
        *(b"0.750000:2", b"0.500000:0:a"),
        *(b"0.250000:1", b"0.250000:3"),
    ]


def test_each_row_of_a_batch_has_its_own():
    array = np.array([[[1, 2], [4, 3]], [[8, 7], [6, 5]]], np.int8)
    classes = classes_of(array, 1, [], batches=True)
    assert classes.tolist() == [[b"4:2"], [b"8:0"]]


def test_unsigned_numbers_of_all_bits():
    array = np.array([2**64 - 1, 2**64 - 2], np.uint64)
    assert classes_of(array, 1, [], batches=False).tolist() == [b"18446744073709551615:0"]


@pytest.mark.parametrize("array", [np.array(["x"], object), np.array([True])])
def test_an_output_without_classes_is_refused(array):
    with pytest.raises(V2Error, match="class result not available for output due to unsupported"):
        classes_of(array, 1, [], batches=False)


def test_an_output_too_large_for_classification_is_refused():
    with pytest.raises(V2Error, match="classification output tensor too large"):
        classes_of(np.zeros(1_000_001, np.int8), 1, [], batches=False)


def test_only_outputs_with_a_count_are_classified():
    outputs = [
        RequestedOutput("x", {"classification": 3}),
        RequestedOutput("y", {"classification": 0}),
        RequestedOutput("z"),
    ]
    assert classes_wanted(outputs) == {"x": 3}


@pytest.mark.parametrize("count", [-1, "3", True, 1.5, 2**32])
def test_an_invalid_number_of_classes_is_refused(count):
    with pytest.raises(V2Error, match="must be a number of classes"):
        classes_wanted([RequestedOutput("x", {"classification": count})])
