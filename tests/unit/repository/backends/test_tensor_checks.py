"""Configurations that contradict their models, with Triton's texts."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf import text_format

from pipeline.errors import ConfigError
from pipeline.predictors.base import TEXT, TensorSpec
from pipeline.predictors.signature import ModelSignature
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.repository.backends.tensor_checks import check_signature

FLOAT = np.dtype(np.float32)


def spec(name, *shape, dtype=FLOAT):
    return TensorSpec(name, dtype, None if shape == (None,) else shape)


def check(text, inputs, outputs=(), options=()):
    config = text_format.Parse(f'name: "m" {text}', ModelConfig())
    check_signature(config, ModelSignature("m.onnx", inputs, outputs, options=options))


def slot(name, dims="16", more="", kind="FP32", side="input"):
    return f'{side} {{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] {more} }}'


RAGGED = "allow_ragged_batch: true"
SCATTERED = 'batch_output { target_name: "y" source_input: "x" }'


@pytest.mark.parametrize(
    ("text", "inputs"),
    [
        (slot("x"), [spec("x", 16)]),
        (slot("x"), [spec("x", None)]),
        (slot("x"), [spec("x", "n")]),
        (slot("x", "1"), [spec("x")]),
        (f"max_batch_size: 4 {slot('x')}", [spec("x", "n", 16)]),
        (f"max_batch_size: 4 {slot('x', '4, 4', 'reshape { shape: 16 }')}", [spec("x", "n", 16)]),
        (f"max_batch_size: 4 {slot('x', '-1', RAGGED)}", [spec("x", None)]),
        (slot("x", kind="STRING"), [spec("x", 16, dtype=TEXT)]),
    ],
)
def test_a_configuration_fits_its_model(text, inputs):
    check(text, inputs)


def test_an_output_is_checked_unless_a_batch_makes_its_shape():
    out = slot("y", "4", side="output")
    with pytest.raises(ConfigError, match=r"tensor 'y': the model expects 1 dimensions"):
        check(out, [], [spec("y", 16)])
    check(f"max_batch_size: 4 {slot('x')} {out} {SCATTERED}", [spec("x", "n", 16)], [spec("y", 9)])


def test_optional_inputs_are_initializers():
    text = slot("x") + slot("scale", "1", "optional: true")
    check(text, [spec("x", 16)], options=[spec("scale", 1)])
    with pytest.raises(ConfigError, match="unexpected inference input 'scale', allowed inputs are"):
        check(text, [spec("x", 16)])


CONTROL = """
sequence_batching { control_input {
  name: "start" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } }
"""
STATE = """
sequence_batching { state {
  input_name: "in" output_name: "out" data_type: TYPE_FP32 dims: 1 } }
"""


def test_controls_states_and_batch_inputs_are_inputs_too():
    check(CONTROL + slot("x"), [spec("x", 16), spec("start", 1, dtype=np.dtype(np.int32))])
    check(STATE + slot("x"), [spec("x", 16), spec("in", 1)])
    made = 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "n" source_input: "x" }'
    check(slot("x") + made, [spec("x", 16), spec("n", 1)])


@pytest.mark.parametrize(
    ("text", "inputs", "error"),
    [
        (
            slot("x"),
            [spec("x", 16), spec("z", 16)],
            "unable to load model 'm', configuration expects 1 inputs, model provides 2",
        ),
        (
            slot("a"),
            [spec("x", 16)],
            "unexpected inference input 'a', allowed inputs are: x",
        ),
        (
            slot("x", kind="INT32"),
            [spec("x", 16)],
            "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'x', "
            "model provides TYPE_FP32",
        ),
        (
            slot("x", "16, 1"),
            [spec("x", 16)],
            "model 'm', tensor 'x': the model expects 1 dimensions (shape [16]) but the model "
            "configuration specifies 2 dimensions (shape [16,1])",
        ),
        (
            f"max_batch_size: 4 {slot('x', '-1')}",
            [spec("x", "n", 16)],
            "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,16]) but the model "
            "configuration specifies 2 dimensions (an initial batch dimension because "
            "max_batch_size > 0 followed by the explicit tensor shape, making complete shape "
            "[-1,-1])",
        ),
        (
            f"max_batch_size: 4 {slot('x')}",
            [spec("x", 1, 16)],
            "model 'm', tensor 'x': for the model to support batching the shape should have at "
            "least 1 dimension and the first dimension must be -1; but shape expected by the model "
            "is [1,16]",
        ),
        (
            f"max_batch_size: 4 {slot('x', '-1', RAGGED)}",
            [spec("x", "n", 16)],
            "unable to load model 'm', configuration expects model provides input with shape [-1]  "
            "for ragged input 'x', model provides [-1,16]",
        ),
        (
            slot("x", "2"),
            [spec("x")],
            "unable to load model 'm', scalar tensor 'x', should only provide 1 in the model "
            "configuration when the model doesn't support batching. Model configuration provided: "
            "[2].",
        ),
        (
            CONTROL + slot("x"),
            [spec("x", 16), spec("start", 1)],
            "unable to load model 'm', sequence control 'start', the model expects data-type FP32 "
            "but the model configuration specifies data-type TYPE_INT32",
        ),
    ],
)
def test_a_contradiction_is_refused(text, inputs, error):
    with pytest.raises(ConfigError) as caught:
        check(text, inputs)
    assert str(caught.value) == error
