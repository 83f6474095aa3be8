"""Controls are arrays of a row for each request; rows that nobody sent are zeros between them."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.config.sequences import Control, Kind
from pipeline.data import SequenceStep
from pipeline.engine.sequences.controls import Controls, gathered, spread

FIRST = SequenceStep(id=2**64 - 1, start=True)
LAST = SequenceStep(id=7, end=True, slot=3)


def array_of(control, *steps):
    (values,) = Controls("m", [control]).arrays(steps).values()
    return values


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(Kind.START, [[1], [0]]), (Kind.END, [[0], [1]]), (Kind.READY, [[1], [1]])],
)
@pytest.mark.parametrize(
    ("datatype", "dtype", "values"),
    [("INT32", "int32", (0, 1)), ("FP32", "float32", (0, 1)), ("BOOL", "bool", (False, True))],
)
def test_flags(kind, expected, datatype, dtype, values):
    array = array_of(Control("C", kind, datatype, values), FIRST, LAST)
    assert array.dtype == dtype
    assert array.tolist() == np.array(expected, dtype).tolist()


def test_a_flag_has_the_values_that_were_chosen():
    assert array_of(Control("C", Kind.START, "FP32", (-1.5, 8.0)), FIRST, LAST).tolist() == [
        [8.0],
        [-1.5],
    ]


@pytest.mark.parametrize(
    ("datatype", "expected"),
    [
        ("UINT64", [[2**64 - 1], [7]]),
        ("INT64", [[-1], [7]]),
        ("UINT32", [[2**32 - 1], [7]]),
        ("INT32", [[-1], [7]]),
    ],
)
def test_ids_that_are_numbers_have_their_low_bits(datatype, expected):
    array = array_of(Control("I", Kind.CORRID, datatype), FIRST, LAST)
    assert array.dtype == datatype.lower()
    assert array.tolist() == expected


def test_ids_that_are_texts():
    array = array_of(Control("I", Kind.CORRID, "STRING"), SequenceStep(id="käse"))
    assert array.tolist() == [["käse"]]


@pytest.mark.parametrize(
    ("datatype", "id", "text"),
    [
        ("UINT64", 5, None),
        ("STRING", "a", None),
        ("STRING", 5, "data-type is 'UINT64', but model 'm' expects 'BYTES'"),
        ("INT32", "a", "data-type is 'BYTES', but model 'm' expects 'INT32'"),
    ],
)
def test_an_id_of_another_kind_is_refused(datatype, id, text):
    refusal = Controls("m", [Control("I", Kind.CORRID, datatype)]).refusal(id)
    expected = text and f"sequence batching control 'I' {text}"
    assert (refusal and str(refusal)) == expected


FEED = {
    "x": np.array([[1, 2], [3, 4]], np.int32),
    "text": np.array([[b"a"], [b"b"]], object),
    "names": ["a", "b"],
    "scale": 2.0,
}


def test_rows_between_are_empty():
    result = spread(FEED, [1, 3])
    assert result["x"].tolist() == [[0, 0], [1, 2], [0, 0], [3, 4]]
    assert result["x"].dtype == np.int32
    assert result["text"].tolist() == [[b""], [b"a"], [b""], [b"b"]]
    assert result["names"] == ["", "a", "", "b"]
    assert result["scale"] == 2.0


def test_filler_rows_are_removed():
    result = gathered(spread(FEED, [1, 3]) | {"other": np.arange(3)}, [1, 3])
    assert result["x"].tolist() == FEED["x"].tolist()
    assert result["text"].tolist() == FEED["text"].tolist()
    assert result["names"] == FEED["names"]
    assert result["other"].tolist() == [0, 1, 2]


def test_without_filler_rows_no_array_is_copied():
    assert spread(FEED, [0, 1])["x"] is FEED["x"]
    assert gathered(FEED, [0, 1]) is FEED
