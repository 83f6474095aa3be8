"""Inputs and outputs of a model: which fit, and the errors of the others."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.frontends.api.describing import ModelTensors
from pipeline.frontends.v2 import V2Error, V2Status
from pipeline.frontends.v2.interface import (
    ModelInterface,
    Slot,
    fits,
    interface_of,
)
from pipeline.frontends.v2.model import ConfiguredModel
from pipeline.predictors.base import ModelMetadata, TensorMetadata
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.repository.backends.identity import IdentityBackend
from pipeline.repository.backends.onnxruntime import OnnxRuntimeBackend
from pipeline.repository.backends.python.backend import PythonBackend

PLAIN = ModelInterface(
    (Slot("a", "FP32", (2, -1)), Slot("b", "INT64", (1,))), (Slot("y", "FP32", (1,)),)
)
BATCHED = ModelInterface(
    (Slot("a", "FP32", (2,)), Slot("b", "INT64", (1,))), None, max_batch_size=4
)


def floats(*shape):
    return np.zeros(shape, np.float32)


def ints(*shape):
    return np.zeros(shape, np.int64)


def refusal(interface, **inputs):
    with pytest.raises(V2Error) as caught:
        interface.check_inputs("m", inputs)
    assert caught.value.kind is V2Status.INVALID
    return str(caught.value)


def test_inputs_that_fit_are_one_sample_without_a_batch():
    assert PLAIN.check_inputs("m", {"b": ints(1), "a": floats(2, 7)}) == 1


def test_the_first_dimension_is_the_number_of_samples_with_one():
    assert BATCHED.check_inputs("m", {"a": floats(3, 2), "b": ints(3, 1)}) == 3


def test_a_model_without_declarations_accepts_any_tensor():
    assert ModelInterface().check_inputs("m", {"x": floats(9, 9)}) == 1
    ModelInterface().check_outputs("m", ["whatever"])


def test_an_input_of_any_rank_takes_any_shape():
    any_rank = ModelInterface((Slot("a", "FP32", None),))
    assert any_rank.check_inputs("m", {"a": floats(1, 2, 3)}) == 1
    assert any_rank.inputs is not None
    assert any_rank.inputs[0].full_shape(batches=False) == [-1]


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({"a": floats(2, 1), "c": ints(1)}, "unexpected inference input 'c'"),
        (
            {"a": floats(2, 1), "b": ints(1), "c": ints(1)},
            "expected 2 inputs but got 3 inputs for model 'm'. Got input(s) ['a','b','c'], but ",
        ),
        (
            {"a": floats(2, 1)},
            "expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['a'], but missing "
            "required input(s) ['b']. Please provide all required input(s).",
        ),
        (
            {"a": ints(2, 1), "b": ints(1)},
            "inference input 'a' data-type is 'INT64', but model 'm' expects 'FP32'",
        ),
        (
            {"a": floats(3, 1), "b": ints(1)},
            "unexpected shape for input 'a' for model 'm'. Expected [2,-1], got [3,1]",
        ),
        ({"a": floats(2), "b": ints(1)}, "Expected [2,-1], got [2]"),
    ],
)
def test_inputs_that_do_not_match_are_refused_with_tritons_message(inputs, text):
    assert text in refusal(PLAIN, **inputs)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ((5, 5), "inference request batch-size must be <= 4 for 'm'"),
        ((2, 3), "input 'b' batch size does not match other inputs for 'm'"),
        ((0, 0), "inference request batch-size must be >= 1 for 'm'"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(rows, text):
    assert text in refusal(BATCHED, a=floats(rows[0], 2), b=ints(rows[1], 1))


def test_a_batch_is_part_of_the_shape_that_is_expected():
    assert "Expected [-1,2], got [2]" in refusal(BATCHED, a=floats(2), b=ints(1, 1))


def test_an_output_that_is_not_there_is_refused():
    with pytest.raises(V2Error, match="unexpected inference output 'z' for model 'm'"):
        PLAIN.check_outputs("m", ["y", "z"])


@pytest.mark.parametrize(
    ("shape", "expected", "answer"),
    [((), [], True), ((3,), [-1], True), ((3,), [2], False), ((3, 1), [-1], False)],
)
def test_a_shape_fits_where_every_dimension_does(shape, expected, answer):
    assert fits(shape, expected) is answer


# Of loaded models -------------------------------------------------------------------------------


def note(*shapes, dtype="float32"):
    inputs = [TensorMetadata(f"x{i}", dtype, shape) for i, shape in enumerate(shapes)]
    outputs = [TensorMetadata("y", "float32", [-1, 2]), TensorMetadata("z", "", [-1])]
    return ModelMetadata("onnxruntime_onnx", inputs, outputs)


def test_a_model_with_a_free_first_dimension_accepts_batches():
    interface = interface_of(note([-1, 3], [-1]), batch_size=1)
    assert interface == ModelInterface(
        (Slot("x0", "FP32", (3,)), Slot("x1", "FP32", ())),
        (Slot("y", "FP32", (2,)), Slot("z", "BYTES", ())),
        max_batch_size=4,
        output_checks=frozenset({"type"}),
    )


@pytest.mark.parametrize(("batch_size", "most", "found"), [(2, 0, 4), (16, 0, 16), (16, 3, 3)])
def test_a_model_accepts_batches_of_four_or_of_the_size_of_its_op(batch_size, most, found):
    interface = interface_of(note([-1, 3]), batch_size, most=most)
    assert interface is not None
    assert interface.max_batch_size == found


@pytest.mark.parametrize("shapes", [([1, 3],), ([-1, 3], [2]), ([],), (None,), ()])
def test_any_other_model_takes_one_sample(shapes):
    interface = interface_of(note(*shapes), batch_size=8)
    assert interface is not None
    assert interface.max_batch_size == 0
    assert [slot.shape for slot in interface.inputs or ()] == [
        tuple(shape) if shape else None  # a scalar may also come as [1]
        for shape in shapes
    ]


@pytest.mark.parametrize(("shape", "kind"), [([], "number"), (None, None)])
def test_a_scalar_is_described_as_scalar_and_an_unknown_rank_is_not(shape, kind):
    interface = interface_of(note(shape), batch_size=1)
    assert interface is not None
    assert interface.check_inputs("m", {"x0": floats(1)}) == 1
    described, _ = ModelTensors("m", interface.inputs, False).json_schema()
    assert described["properties"]["x0"].get("type") == kind


def test_only_fetched_outputs_are_shown_and_checked():
    interface = interface_of(note([-1, 3]), batch_size=1, fetch=("y",))
    assert interface is not None
    assert interface.outputs == (Slot("y", "FP32", (2,)),)


def test_a_model_with_a_tensor_that_the_protocol_lacks_has_no_interface():
    assert interface_of(note([-1], dtype="complex64"), batch_size=1) is None


def test_an_optional_input_may_be_missing():
    some = ModelInterface(
        (Slot("a", "FP32", (2,)), Slot("b", "FP32", (2,)), Slot("c", "FP32", (2,), True))
    )
    both = {"a": floats(2), "b": floats(2)}
    assert some.check_inputs("m", both) == 1
    assert some.check_inputs("m", {**both, "c": floats(2)}) == 1
    assert "unexpected shape for input 'c'" in refusal(some, **both, c=floats(3))
    assert refusal(some, a=floats(2), c=floats(2)) == (
        "expected number of inputs between 2 and 3 but got 2 inputs for model 'm'. Got input(s) "
        "['a','c'], but missing required input(s) ['b']. Please provide all required input(s)."
    )
    assert refusal(some, **both, d=floats(2)) == "unexpected inference input 'd' for model 'm'"


@pytest.mark.parametrize(
    ("backend", "checks"),
    [(PythonBackend, set()), (OnnxRuntimeBackend, {"type"}), (IdentityBackend, {"shape", "type"})],
)
def test_the_backend_decides_what_of_outputs_is_checked(backend, checks):
    assert backend.output_checks == checks
    model = ConfiguredModel(ModelConfig(), None, {}, backend.output_checks)
    assert model.interface.output_checks == checks
