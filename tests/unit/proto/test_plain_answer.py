"""Plain answers: what the parts of a request's fields were is what is written."""

from __future__ import annotations

import base64
import json
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from plain_values import OBJECTS, same

from pipeline.errors import PayloadTypeError, TooLargeError
from pipeline.proto.plain_answer import write_large_object, write_object
from pipeline.proto.slices import Limits

LIMITS = Limits()
NUMBERS = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", ">i4", ">f8")


@given(OBJECTS)
def test_each_value_is_written_unchanged(fields):
    assert same(json.loads(write_object(fields)), fields)
    assert same(json.loads(write_large_object(fields, LIMITS)), fields)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3)])
def test_an_array_is_a_nested_list(dtype, shape):
    array = np.arange(math.prod(shape)).astype(dtype).reshape(shape)
    for one in (array, array.T, np.asfortranarray(array)):
        wanted = {"x": one.tolist()}
        assert same(json.loads(write_object({"x": one})), wanted)
        assert same(json.loads(write_large_object({"x": one}, LIMITS)), wanted)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (math.nan, None),
        (-math.inf, None),
        (np.array([1.5, math.nan], np.float32), [1.5, None]),
        (np.float32(0.1), 0.1),
        (np.float16(1.5), 1.5),
        (np.bool_(True), True),
        (np.array([1.5, 2], ml_dtypes.bfloat16), [1.5, 2.0]),
        (np.array(["a", b"b", None], dtype=object), ["a", "Yg==", None]),
        (np.array(["a", "bc"]), ["a", "bc"]),
        (b"\x00\xff", base64.b64encode(b"\x00\xff").decode()),
        (bytearray(b"a"), "YQ=="),
        ((1, (2,)), [1, [2]]),
        ({1: {None: 2}}, {"1": {"None": 2}}),
        (2**70, 2**70),
        ([{"x": 2**70, "y": math.nan}], [{"x": 2**70, "y": None}]),
        ("\ud800", "\\ud800"),
    ],
)
def test_a_value_outside_json_becomes_the_nearest_one(value, shown):
    assert same(json.loads(write_object({"x": value})), {"x": shown})
    assert same(json.loads(write_large_object({"x": value}, LIMITS)), {"x": shown})


def test_a_large_array_is_written_in_slices():
    array = np.arange(60_000, dtype=np.float32).reshape(3, 200, 100) / 7
    assert write_large_object({"x": array}, LIMITS) == write_object({"x": array})


@pytest.mark.parametrize(
    "fields",
    [
        {"x": [n / 7 for n in range(40_000)], "y": "a,b"},
        {"x": [[n, [n, "],["]] for n in range(20_000)]},
        {"x": {str(n): [n] * 9 for n in range(9_000)}},
        {"x": 'a:"\\' * 70_000, "y": [2**70] * 30_000},
    ],
)
def test_a_large_object_is_written_in_slices(fields):
    assert json.loads(write_large_object(fields, LIMITS)) == fields


@pytest.mark.parametrize("write", [write_object, lambda fields: write_large_object(fields, LIMITS)])
@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"x": object()}, "x is of type object"),
        ({"x": [{"a": [1, 1j]}]}, "x[0].a[1] is of type complex"),
        ({"x": np.array([1j])}, "x[0] is of type complex"),
        ({"x": [0] * 20_000 + [object()]}, "x[20000] is of type object"),
    ],
)
def test_a_value_without_a_form_is_named_by_its_path(write, fields, path):
    with pytest.raises(PayloadTypeError) as caught:
        write(fields)
    assert f"the answer's {path}, which has no form in JSON: answer with" in str(caught.value)


def test_a_value_that_holds_itself_is_refused():
    endless_list: list = []
    endless_list.append(endless_list)
    with pytest.raises(PayloadTypeError, match="nested too deeply"):
        write_object({"x": endless_list})


def test_limits_apply_to_large_objects():
    with pytest.raises(TooLargeError, match="max_json_bytes"):
        write_large_object({"x": "a" * 2000}, Limits(json_bytes=1000))
