"""The run with zeros at load time: its shapes, its values, its failures."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pipeline.predictors.base import TensorSpec
from pipeline.predictors.local import warm_up, warm_up_shapes
from pipeline.predictors.signature import ModelSignature


def spec(name, *shape, dtype=np.float32):
    return TensorSpec(name, np.dtype(dtype), shape or None)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((3, 4), (3, 4)),
        (("n", 3), (1, 3)),
        ((None, 3), (1, 3)),
        ((2, "batch", 128), (2, 1, 128)),
        ((), ()),
        (("n", "n"), None),
        (("n", 3, "h", "w"), None),
        ((None, None), None),
    ],
)
def test_a_lone_dynamic_dimension_is_a_batch_of_one(shape, expected):
    shapes = warm_up_shapes([spec("x", *shape)], {})
    assert shapes == ({} if expected is None else {"x": expected})


def test_a_configured_shape_is_used_unchanged():
    assert warm_up_shapes([spec("x", "n", 3, "h", "w")], {"x": [2, 3, 32, 64]}) == {
        "x": (2, 3, 32, 64)
    }


def test_named_dimensions_have_the_size_of_the_configured_inputs():
    inputs = [
        spec("mask", "batch", "length"),
        spec("state", 2, "batch", 128),
        spec("words", "batch", "length"),
    ]
    assert warm_up_shapes(inputs, {"words": [4, 16]}) == {
        "words": (4, 16),
        "mask": (4, 16),
        "state": (2, 4, 128),
    }


def test_the_shape_of_an_unknown_input_is_ignored():
    assert warm_up_shapes([spec("x", "n")], {"inner.tensor_0": [1, 2]}) == {"x": (1,)}


class Model:
    """Keeps what it was fed; fails if told to."""

    def __init__(self, *inputs, error=None):
        self.signature = ModelSignature("toy.onnx", inputs, [spec("y", "n")])
        self.error = error
        self.calls = []

    def __call__(self, names, arrays):
        self.calls.append((names, arrays))
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, ml_dtypes.bfloat16])
def test_numbers_are_zeros_of_the_model_s_dtype(dtype):
    model = Model(spec("x", "n", 2, dtype=dtype))
    assert warm_up(model, model.signature, {})
    ((names, feed),) = model.calls
    assert names == ("y",)
    assert feed["x"].dtype == dtype
    assert feed["x"].astype(float).tolist() == [[0, 0]]


def test_text_is_empty():
    model = Model(spec("x", "n", dtype=object))
    warm_up(model, model.signature, {})
    assert model.calls[0][1]["x"].tolist() == [""]


def test_without_all_shapes_there_is_no_warm_up_but_a_log_line(caplog):
    caplog.set_level("INFO")
    model = Model(spec("words", "n", "length"), spec("x", "n"))
    assert not warm_up(model, model.signature, {})
    assert model.calls == []
    assert "no warm-up: the model does not say how large words is" in caplog.text
    assert "set_dynamic_shape_info" in caplog.text
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_a_model_that_refuses_zeros_is_a_warning(caplog):
    model = Model(spec("rate", dtype=np.int64), error=ValueError("no such\nrate"))
    assert not warm_up(model, model.signature, {})
    assert "[toy.onnx] the warm-up failed" in caplog.text
    assert "no such rate" in caplog.text
    assert {record.levelname for record in caplog.records} == {"WARNING"}


@pytest.mark.parametrize("shape", [[-1, 3], ["n", 3]])
def test_an_invalid_configured_shape_is_a_warning(shape, caplog):
    model = Model(spec("x", "n", 3))
    assert not warm_up(model, model.signature, {"x": shape})
    assert model.calls == []
    assert "the warm-up failed" in caplog.text
