"""Inputs without elements: what is answered without the engine, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.errors import InputError
from pipeline.predictors.base import TEXT, TensorSpec
from pipeline.predictors.signature import ModelSignature, answer_without_rows

F32 = np.dtype(np.float32)


def answer(inputs, outputs, arrays, names=None):
    specs = [TensorSpec(name, F32, shape) for name, shape in inputs.items()]
    answers = [TensorSpec(name, dtype, shape) for name, (dtype, shape) in outputs.items()]
    signature = ModelSignature("m", specs, answers)
    arrays = {name: np.zeros(shape, np.float32) for name, shape in arrays.items()}
    return answer_without_rows(signature, arrays, names or list(outputs))


def test_inputs_with_elements_are_left_to_the_engine():
    assert answer({"x": ("n", 2)}, {"y": (F32, ("n", 2))}, {"x": (1, 2)}) is None


@pytest.mark.parametrize(
    ("inputs", "output", "arrays", "shape"),
    [
        ({"x": ("n", 2)}, ("n", 5), {"x": (0, 2)}, (0, 5)),
        ({"x": (None, 2)}, (None, 5), {"x": (0, 2)}, (0, 5)),
        ({"x": (None, "t")}, (None, "t", 5), {"x": (0, 7)}, (0, 7, 5)),
        ({"x": (1, "t")}, (1, "t", 5), {"x": (1, 0)}, (1, 0, 5)),
        ({"x": ("n",), "z": ("n", "t")}, ("n", "t"), {"x": (2,), "z": (2, 0)}, (2, 0)),
    ],
)
def test_outputs_that_have_no_elements_either_are_answered(inputs, output, arrays, shape):
    result = answer(inputs, {"y": (F32, output), "text": (TEXT, output)}, arrays)
    assert [(name, value.shape, value.dtype) for name, value in result.items()] == [
        ("y", shape, F32),
        ("text", shape, TEXT),
    ]


@pytest.mark.parametrize(
    ("inputs", "output", "arrays"),
    [
        ({"x": ("n", 2)}, (1, 2), {"x": (0, 2)}),  # a sum over the rows
        ({"x": ("n", 2)}, (), {"x": (0, 2)}),
        ({"x": ("n", 2)}, None, {"x": (0, 2)}),
        ({"x": None}, ("n", 2), {"x": (0, 2)}),
        ({"x": (None, 2)}, (None, None), {"x": (0, 2)}),
        ({"x": ("n", 2), "z": ("m", 2)}, ("n", 2), {"x": (1, 2), "z": (0, 2)}),
        ({"x": (None, "past")}, (None, 2), {"x": (1, 0)}),
        ({"x": ("n", 2), "z": (0,)}, ("n", 2), {"x": (1, 2), "z": (0,)}),
    ],
)
def test_outputs_of_unknown_shape_are_refused(inputs, output, arrays):
    with pytest.raises(InputError, match=r"\[m\] feed '[xz]' has shape .*'y' is.*takes_empty"):
        answer(inputs, {"y": (F32, output)}, arrays)


def test_only_requested_outputs_are_considered():
    outputs = {"y": (F32, ("n", 2)), "sum": (F32, (1, 2))}
    assert list(answer({"x": ("n", 2)}, outputs, {"x": (0, 2)}, ["y"])) == ["y"]
