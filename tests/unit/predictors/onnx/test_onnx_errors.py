"""Errors of model files say what is wrong and what to do."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_doubles import CPU, FLOAT, build, value_info

from pipeline.errors import InitError
from pipeline.predictors.onnx import OnnxModel
from pipeline.predictors.onnx.binding import brief, why_it_does_not_load
from pipeline.predictors.onnx.predictor import load


@pytest.fixture
def path(tmp_path):
    return tmp_path / "toy.onnx"


def model_of_node(kind, domain="", element_type=FLOAT, **versions):
    return build(
        [helper.make_node(kind, ["x"], ["y"], domain=domain)],
        [value_info("x", element_type, ["n", 2])],
        [value_info("y", element_type, ["n", 2])],
        **versions,
    ).SerializeToString()


def with_weights():
    return build(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [value_info("x", FLOAT, ["n", 2])],
        [value_info("y", FLOAT, ["n", 2])],
        [numpy_helper.from_array(np.ones((500, 2), np.float32), "w")],
    )


MODEL = with_weights().SerializeToString()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"not a model", "is not an ONNX file, or is cut short"),
        (b"", "is not an ONNX file, or is cut short"),
        (bytes(1000), "is not an ONNX file, or is cut short"),
        (MODEL[: len(MODEL) // 2], "is not an ONNX file, or is cut short"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n", "git lfs pull"),
        (
            model_of_node("Identity", ir_version=99),
            r"ir_version is 99.*up to \d+: upgrade onnxruntime",
        ),
        (
            model_of_node("Identity", opsets={"": 99}),
            r"opset is 99.*up to \d+: upgrade onnxruntime",
        ),
        (model_of_node("Nonsense"), "opset 21.*has no operator Nonsense: upgrade"),
        (
            model_of_node("Private", "my.domain", opsets={"": 17, "my.domain": 1}),
            "has no operator my.domain:Private: export",
        ),
        (
            model_of_node("Sqrt", element_type=TensorProto.BFLOAT16),
            "has no Sqrt for the types that the model gives it on this device",
        ),
    ],
    ids=["text", "empty", "zeros", "half", "lfs", "ir", "opset", "operator", "domain", "types"],
)
def test_a_file_that_cannot_be_loaded_is_an_error_with_path_and_reason(path, content, said):
    path.write_bytes(content)
    with pytest.raises(InitError, match=rf"model_config: cannot load {path}: .*{said}"):
        load(OnnxModel(path), CPU)


def save_apart(path):
    onnx.save(
        with_weights(), path, save_as_external_data=True, location="toy.weights", size_threshold=0
    )
    return path.parent / "toy.weights"


def test_weights_that_are_missing_are_named(path):
    save_apart(path).unlink()
    with pytest.raises(InitError, match=r"toy\.weights is missing, which has weights of the model"):
        load(OnnxModel(path), CPU)


def test_weights_that_are_cut_short_are_named(path):
    save_apart(path).write_bytes(b"ab")
    with pytest.raises(InitError, match="the weights of w is cut short: copy it again"):
        load(OnnxModel(path), CPU)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # What other versions of onnxruntime say, and what they say on machines with a card.
        ("Load failed: ModelProto does not have a graph.", "is not an ONNX file"),
        ("filesystem error: No such file or directory [/m/a.data]", "/m/a.data is missing"),
        ("GetFileLength for /m/a.data failed: Invalid fd", "/m/a.data is missing"),
        (
            "CUDA failure 101: invalid device ordinal ; GPU=0 ; hostname=h ; expr=cudaSetDevice",
            r"the card cannot be used \(invalid device ordinal\): see that its number in devices",
        ),
        ("Invalid device ID: 9, must be between 0 and 2", "there is no card 9"),
        ("Please install TensorRT libraries as mentioned", "have libnvinfer in LD_LIBRARY_PATH"),
    ],
)
def test_known_errors_are_explained_and_quoted(path, text, said):
    path.write_bytes(MODEL)
    explained = why_it_does_not_load(path, RuntimeError(text))
    assert re.search(said, explained)
    assert f"(onnxruntime: {text})" in explained


def test_an_unknown_complaint_is_passed_on_in_one_line(path):
    assert why_it_does_not_load(path, RuntimeError("a\n  b")) == "a b"


def test_a_long_complaint_is_cut():
    assert brief(RuntimeError("x" * 5000)) == "x" * 400 + "..."
    assert brief(RuntimeError()) == "RuntimeError"
