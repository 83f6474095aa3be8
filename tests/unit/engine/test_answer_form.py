"""Answers as bytes and back, and the keys of requests."""

from __future__ import annotations

import pickle

import ml_dtypes
import numpy as np
import pytest

from pipeline.engine.op.answer_form import NoFormError, has_form, key_of, packed, unpacked
from pipeline.errors import InputError
from pipeline.routes import Goto

ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.arange(12).reshape(3, 4).T,  # its bytes are in another order
    np.zeros((0, 3), np.int64),
    np.array(7, np.uint8),
    np.array([True, False]),
    np.array([1.5, 2.5], ml_dtypes.bfloat16),
    np.array([[b"a", "b\0c"], [b"", b"\xff"]], object),
    np.array(["x", "yz"]),
    np.arange(3, dtype=">i4"),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_an_array_returns_unchanged_and_writable(array):
    result = unpacked(packed({"y": array}))["y"]
    assert (result.dtype, result.shape) == (array.dtype, array.shape)
    assert np.array_equal(result, array)
    assert result.flags.writeable


def test_plain_data_returns_unchanged():
    answer = {"text": "é", "bytes": b"\0", "n": 5, "x": 1.5, "no": None, "l": [1, {"a": [True]}]}
    assert unpacked(packed(answer)) == answer


@pytest.mark.parametrize(
    "value",
    [object(), (1, 2), {1: 2}, 2**70, np.array([1, "a"], object), np.zeros(2, [("a", "i4")])],
)
def test_objects_have_no_packed_form(value):
    with pytest.raises(NoFormError):
        packed({"y": value})


def test_errors_and_routes_have_no_packed_form():
    assert has_form({"y": 1})
    assert not has_form(InputError("no"))
    assert not has_form(Goto({"y": 1}, "there"))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff\xff\xff\xff",
        pickle.dumps({"y": 1}),
        packed({"y": np.arange(9)})[:-1],
        packed({"y": np.arange(9)}) + b"\0",
        packed({"y": np.arange(9)}).replace(b"<i8", b"|O8"),
    ],
)
def test_invalid_packed_bytes_are_refused(value):
    with pytest.raises(ValueError):
        unpacked(value)


def key(inputs, outputs=(), model=b"m", **said):
    return key_of(model, inputs, outputs, said)


def test_the_order_of_inputs_does_not_matter():
    a, b = np.arange(3), np.ones(3)
    assert key({"a": a, "b": b}) == key({"b": b, "a": a})
    assert key({"op": {"a": a, "b": b}}) == key({"op": {"b": b, "a": a}})


def test_a_key_differs_for_each_difference_of_requests():
    zeros = np.zeros((2, 2), np.int32)
    keys = [
        key({"a": zeros}),
        key({"b": zeros}),
        key({"a": zeros.reshape(4)}),
        key({"a": zeros.astype(np.float32)}),
        key({"a": zeros + 1}),
        key({"a": zeros}, ["y"]),
        key({"a": zeros}, model=b"other"),
        key({"a": zeros}, mode=1),
        key({"a": zeros}, mode="1"),
        key({"a": np.array([b"ab", b"c"], object)}),
        key({"a": np.array([b"a", b"bc"], object)}),
        key({"a": "text"}),
        key({"a": b"text"}),
        key({"op": {"a": zeros}}),
    ]
    assert len(set(keys)) == len(keys)


def test_the_key_of_a_view_equals_that_of_its_copy():
    grid = np.arange(12).reshape(3, 4)
    assert key({"a": grid[:, ::2]}) == key({"a": grid[:, ::2].copy()})
