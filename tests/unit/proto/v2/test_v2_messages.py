"""The v2 protocol's messages: requests, responses, and what describes and counts models."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipeline.errors import PackageError, PayloadTypeError
from pipeline.proto.inference_v2_pb2 import (
    TYPE_FP32,
    TYPE_STRING,
    ModelConfig,
    ModelConfigResponse,
    ModelInferRequest,
    ModelInferResponse,
    ModelInstanceGroup,
    ModelQueuePolicy,
    ModelStatisticsResponse,
    RepositoryIndexResponse,
)
from pipeline.proto.v2.codec import (
    InferRequest,
    InferResponse,
    RequestedOutput,
    add_tensor,
    request_from_message,
    response_pieces,
    tensors_to_arrays,
)
from pipeline.proto.v2.raw import DATATYPES

# Recorded from the messages of tritonclient 2.51.
RECORDED_STATISTICS = bytes.fromhex(
    "0a93010a016d12013118052006280732300a040801100b12040802100c1a040803100d22040804100e2a04080510"
    "0f3204080610103a04080710114204080810123a1408041204080110151a040802101622040803101742120a0343"
    "505510ffffffffffffffffff0118094a290a013012240a040801101f1204080210201a0408031021220408041022"
    "2a0408051023320408061024"
)
RECORDED_CONFIG = bytes.fromhex(
    "0a680a016d1201701a040a02080120082a140a0178100b220bffffffffffffffffff0103400132080a0179100d1a"
    "01013a0a0a016710021a010120024201665a110a0104100518013208080110061801200772080a016b12030a0176"
    "8a0101629a01020801c201020801"
)
RECORDED_ENSEMBLE = bytes.fromhex(
    "7a200a1e0a016110ffffffffffffffffff011a060a016912017422060a016f120175"
)
RECORDED_INDEX = bytes.fromhex("0a100a016d1201311a055245414459220172")


def durations(message):
    return {
        field.name: (duration.count, duration.ns)
        for field, duration in message.ListFields()
        if field.message_type is not None
    }


def test_statistics_have_the_numbers_that_clients_read():
    message = ModelStatisticsResponse.FromString(RECORDED_STATISTICS)
    (model,) = message.model_stats
    counted = (model.last_inference, model.inference_count, model.execution_count)
    assert (model.name, model.version, counted) == ("m", "1", (5, 6, 7))
    assert durations(model.inference_stats) == {
        "success": (1, 11),
        "fail": (2, 12),
        "queue": (3, 13),
        "compute_input": (4, 14),
        "compute_infer": (5, 15),
        "compute_output": (6, 16),
        "cache_hit": (7, 17),
        "cache_miss": (8, 18),
    }
    (batch,) = model.batch_stats
    compute = {"compute_input": (1, 21), "compute_infer": (2, 22), "compute_output": (3, 23)}
    assert (batch.batch_size, durations(batch)) == (4, compute)
    (memory,) = model.memory_usage
    assert (memory.type, memory.id, memory.byte_size) == ("CPU", -1, 9)
    assert durations(model.response_stats["0"]) == {
        "compute_infer": (1, 31),
        "compute_output": (2, 32),
        "success": (3, 33),
        "fail": (4, 34),
        "empty_response": (5, 35),
        "cancel": (6, 36),
    }
    assert message.SerializeToString(deterministic=True) == RECORDED_STATISTICS


def test_a_configuration_has_the_numbers_that_clients_read():
    message = ModelConfigResponse.FromString(RECORDED_CONFIG)
    config = message.config
    assert (config.name, config.platform, config.backend) == ("m", "p", "b")
    assert (config.max_batch_size, config.default_model_filename) == (8, "f")
    (x,), (y,) = config.input, config.output
    assert (x.name, x.data_type, list(x.dims), x.optional) == ("x", TYPE_FP32, [-1, 3], True)
    assert (y.name, y.data_type, list(y.dims)) == ("y", TYPE_STRING, [1])
    assert config.version_policy.latest.num_versions == 1
    (group,) = config.instance_group
    cpu = ModelInstanceGroup.KIND_CPU
    assert (group.name, group.kind, group.count, list(group.gpus)) == ("g", cpu, 2, [1])
    batching = config.dynamic_batching
    policy = batching.default_queue_policy
    assert list(batching.preferred_batch_size) == [4]
    assert (batching.max_queue_delay_microseconds, batching.preserve_ordering) == (5, True)
    assert (policy.timeout_action, policy.allow_timeout_override) == (ModelQueuePolicy.DELAY, True)
    assert (policy.default_timeout_microseconds, policy.max_queue_size) == (6, 7)
    assert config.parameters["k"].string_value == "v"
    assert config.model_transaction_policy.decoupled
    assert config.response_cache.enable
    assert message.SerializeToString(deterministic=True) == RECORDED_CONFIG


def test_steps_of_an_ensemble_have_the_numbers_that_clients_read():
    message = ModelConfig.FromString(RECORDED_ENSEMBLE)
    (step,) = message.ensemble_scheduling.step
    assert (step.model_name, step.model_version) == ("a", -1)
    assert (dict(step.input_map), dict(step.output_map)) == ({"i": "t"}, {"o": "u"})
    assert message.SerializeToString(deterministic=True) == RECORDED_ENSEMBLE


def test_an_index_has_the_numbers_that_clients_read():
    message = RepositoryIndexResponse.FromString(RECORDED_INDEX)
    (model,) = message.models
    assert (model.name, model.version, model.state, model.reason) == ("m", "1", "READY", "r")
    assert message.SerializeToString(deterministic=True) == RECORDED_INDEX


# --- requests -----------------------------------------------------------------------------------


def test_a_request_becomes_arrays_and_python_values():
    message = ModelInferRequest(model_name="m", model_version="3", id="7")
    message.parameters["b"].bool_param = False
    message.parameters["i"].int64_param = -5
    message.parameters["s"].string_param = "text"
    message.parameters["d"].double_param = 0.5
    message.parameters["u"].uint64_param = 2**64 - 1
    add_tensor(message.inputs, message.raw_input_contents, "x", np.array([[1, 2]], np.int32))
    message.outputs.add(name="y").parameters["p"].int64_param = 1
    request = request_from_message(message)
    assert (request.model_name, request.model_version, request.id) == ("m", "3", "7")
    expected = {"b": False, "i": -5, "s": "text", "d": 0.5, "u": 2**64 - 1}
    assert request.parameters == expected
    assert [type(request.parameters[key]) for key in "bisdu"] == [bool, int, str, float, int]
    assert request.inputs["x"].tolist() == [[1, 2]]
    assert request.outputs == [RequestedOutput("y", {"p": 1})]


def test_an_empty_request_is_one():
    assert request_from_message(ModelInferRequest()) == InferRequest("")


def wrong_input(name: str) -> ModelInferRequest:
    message = ModelInferRequest()
    add_tensor(message.inputs, message.raw_input_contents, "x", np.ones(1, np.int8))
    message.inputs[0].parameters[name].string_param = "region"
    return message


def wrong_output(name: str, count: int) -> ModelInferRequest:
    message = ModelInferRequest()
    message.outputs.add(name="y").parameters[name].int64_param = count
    return message


def twice() -> ModelInferRequest:
    message = ModelInferRequest()
    for _ in range(2):
        add_tensor(message.inputs, message.raw_input_contents, "x", np.ones(1, np.int8))
    return message


def partly_raw() -> ModelInferRequest:
    """Both of its inputs have contents, and the first has raw data besides."""
    message = ModelInferRequest(model_name="m", raw_input_contents=[b"\x01"])
    for name in "xy":
        tensor = message.inputs.add(name=name, datatype="INT8", shape=[1])
        tensor.contents.int_contents.append(1)
    return message


def wrong_size(came: int) -> ModelInferRequest:
    message = ModelInferRequest(model_name="m", raw_input_contents=[bytes(came)])
    message.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    return message


def text_of(elements: int) -> ModelInferRequest:
    message = ModelInferRequest(model_name="m", id="7")
    tensor = message.inputs.add(name="x", datatype="BYTES", shape=[2])
    tensor.contents.bytes_contents.extend([b"a"] * elements)
    return message


def contents_of(field: str = "", count: int = 2) -> ModelInferRequest:
    message = ModelInferRequest(model_name="m")
    tensor = message.inputs.add(name="x", datatype="INT32", shape=[2])
    if field:
        getattr(tensor.contents, field).extend([1] * count)
    return message


def parameter(name: str, field: str = "") -> ModelInferRequest:
    message = ModelInferRequest()
    if field:
        setattr(message.parameters[name], field, "1" if field == "string_param" else 1)
    else:
        message.parameters[name].SetInParent()
    return message


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            wrong_output("shared_memory_region", 1),
            "invalid value type for 'shared_memory_region' parameter for tensor 'y', expected str",
        ),
        (
            wrong_output("shared_memory_offset", 1),
            "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter",
        ),
        (twice(), "[request id: <id_unknown>] input 'x' already exists in request"),
        (
            partly_raw(),
            "contents field must not be specified when using raw_input_contents for 'x' for "
            "model 'm'",
        ),
        (
            wrong_size(12),
            "input byte size mismatch for input 'x' for model 'm'. Expected 8, got 12",
        ),
        (
            contents_of("int_contents", 3),
            "input byte size mismatch for input 'x' for model 'm'. Expected 8, got 12",
        ),
        (
            contents_of("fp32_contents"),
            "unexpected explicit tensor data for input tensor 'x' for model 'm' of type 'FP32', "
            "expected datatype 'INT32'",
        ),
        (contents_of(), "unable to find data for input tensor 'x' for model 'm' in request."),
        (
            text_of(1),
            "[request id: 7] expected 2 string elements for inference input 'x' for model 'm', "
            "got 1",
        ),
        (text_of(3), "unexpected number of string elements 3 for inference input 'x' for model"),
        (
            parameter("p"),
            "invalid value type for 'p' parameter, expected int64_param, bool_param, or "
            "string_param.",
        ),
        (
            parameter("sequence_id", "bool_param"),
            "invalid value type for 'sequence_id' parameter, expected int64_param or string_param.",
        ),
        (
            parameter("timeout", "string_param"),
            "invalid value type for 'timeout' parameter, expected int64_param.",
        ),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(message, text):
    with pytest.raises(PackageError) as caught:
        request_from_message(message)
    assert text in str(caught.value)


def test_an_output_requested_twice_is_refused():
    message = ModelInferRequest()
    for name in "yzy":
        message.outputs.add(name=name)
    with pytest.raises(PackageError, match="output 'y' already exists in request"):
        request_from_message(message)


def test_a_classification_is_looked_at_by_the_model():
    (output,) = request_from_message(wrong_output("classification", 3)).outputs
    assert output.parameters == {"classification": 3}


# --- responses ----------------------------------------------------------------------------------

PARAMETERS = st.dictionaries(
    st.text(max_size=5),
    st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    max_size=4,
)
ARRAYS = st.sampled_from(["BOOL", "INT8", "UINT64", "FP16", "FP64", "INT64"]).flatmap(
    lambda name: hnp.arrays(DATATYPES[name], hnp.array_shapes(min_dims=0, min_side=0, max_side=3))
)


def message_of(response: InferResponse) -> ModelInferResponse:
    return ModelInferResponse.FromString(b"".join(response_pieces(response)))


@given(PARAMETERS, st.dictionaries(st.text(max_size=5), ARRAYS, max_size=3))
def test_a_response_is_converted_completely(parameters, outputs):
    message = message_of(InferResponse("m", "1", "7", parameters, outputs))
    assert (message.model_name, message.model_version, message.id) == ("m", "1", "7")
    as_request = ModelInferRequest(parameters=message.parameters)
    read = request_from_message(as_request).parameters
    assert read == parameters
    assert {key: type(value) for key, value in read.items()} == {
        key: type(value) for key, value in parameters.items()
    }
    arrays = tensors_to_arrays(message.outputs, message.raw_output_contents)
    assert list(arrays) == list(outputs)
    for name, array in outputs.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)


def test_a_response_holds_bfloat16_and_text():
    outputs = {"h": np.ones(2, ml_dtypes.bfloat16), "t": np.array(["é", b"\xff"], object)}
    message = message_of(InferResponse("m", outputs=outputs))
    assert [output.datatype for output in message.outputs] == ["BF16", "BYTES"]
    assert message.raw_output_contents[0] == b"\x80\x3f" * 2


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, "\ud800", None, [1], b"\xff"], ids=repr)
def test_a_parameter_that_the_protocol_cannot_carry_is_an_error(value):
    with pytest.raises(PayloadTypeError, match="parameter 'p' of a response"):
        response_pieces(InferResponse("m", parameters={"p": value}))


def test_an_output_that_the_protocol_cannot_carry_is_an_error():
    with pytest.raises(PayloadTypeError, match="tensor 'y': dtype complex64"):
        response_pieces(InferResponse("m", outputs={"y": np.ones(1, np.complex64)}))
