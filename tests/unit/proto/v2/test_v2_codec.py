"""Arrays to v2 tensors and back, and tensors that are wrong."""

from __future__ import annotations

import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipeline.errors import PackageError, PayloadTypeError
from pipeline.proto.inference_v2_pb2 import (
    InferTensorContents,
    ModelInferRequest,
    ModelInferResponse,
    ModelMetadataResponse,
)
from pipeline.proto.v2.codec import add_tensor, contents_to_array, tensors_to_arrays
from pipeline.proto.v2.raw import DATATYPES, array_to_raw, datatype_of, raw_to_array, with_text

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
NUMERIC = [name for name in DATATYPES if name != "BYTES"]
IN_CONTENTS = [name for name in NUMERIC if name not in ("FP16", "BF16")]
FIELDS = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "BOOL": "bool_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}

# Recorded from the messages of tritonclient 2.73.
RECORDED_REQUEST = bytes.fromhex(
    "0a016d1201311a0137220e0a0170120921000000000000f83f220d0a0774696d656f7574120210092a0d0a017812"
    "04465033321a0201022a0d0a0173120542595445531a010132190a017912140a0e636c617373696669636174696f"
    "6e120210033a080000c03f000000c03a0602000000c3a9"
)
RECORDED_RESPONSE = bytes.fromhex(
    "0a016d1201311a01372a1b0a01791204494e54381a01022a0d120b01ffffffffffffffffff012a120a017a120542"
    "595445531a01012a034201ff"
)
RECORDED_METADATA = bytes.fromhex(
    "0a016d1201311a046f6e6e7822160a01781204465033321a0bffffffffffffffffff01022a160a01791205425954"
    "45531a0affffffffffffffffff01"
)


def test_a_request_of_another_client_is_parsed():
    request = ModelInferRequest.FromString(RECORDED_REQUEST)
    assert (request.model_name, request.model_version, request.id) == ("m", "1", "7")
    assert request.parameters["p"].double_param == 1.5
    assert request.parameters["timeout"].int64_param == 9
    (output,) = request.outputs
    assert (output.name, output.parameters["classification"].int64_param) == ("y", 3)
    arrays = tensors_to_arrays(request.inputs, request.raw_input_contents)
    assert arrays["x"].tolist() == [[1.5, -2.0]]
    assert arrays["s"].tolist() == ["é".encode()]
    assert request.SerializeToString(deterministic=True) == RECORDED_REQUEST


def test_a_response_for_another_client_is_compatible():
    response = ModelInferResponse.FromString(RECORDED_RESPONSE)
    arrays = tensors_to_arrays(response.outputs, response.raw_output_contents)
    assert (response.id, arrays["y"].tolist(), arrays["z"].tolist()) == ("7", [1, -1], [b"\xff"])
    described = ModelMetadataResponse.FromString(RECORDED_METADATA)
    (given,), (answered,) = described.inputs, described.outputs
    assert (given.name, given.datatype, given.shape) == ("x", "FP32", [-1, 2])
    assert (answered.name, answered.datatype, answered.shape) == ("y", "BYTES", [-1])
    assert (described.versions, described.platform) == (["1"], "onnx")


def numbers(names: list[str]) -> st.SearchStrategy[np.ndarray]:
    """Arrays of these datatypes; bfloat16, which hypothesis does not know, from its bits."""

    def of(name: str) -> st.SearchStrategy[np.ndarray]:
        if name == "BF16":
            return hnp.arrays(np.uint16, SHAPES).map(lambda bits: bits.view(ml_dtypes.bfloat16))
        return hnp.arrays(DATATYPES[name], SHAPES)

    return st.sampled_from(names).flatmap(of)


@st.composite
def blobs(draw: st.DrawFn) -> np.ndarray:
    array = np.empty(draw(SHAPES), object)
    for index in np.ndindex(array.shape):
        array[index] = draw(st.binary(max_size=6))
    return array


def assert_same(one: np.ndarray, other: np.ndarray) -> None:
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    if one.dtype == object:
        assert one.tolist() == other.tolist()
    else:
        assert one.tobytes() == other.tobytes()


@given(st.lists(numbers(NUMERIC) | blobs(), max_size=3))
def test_arrays_survive_the_round_trip(arrays: list[np.ndarray]):
    request = ModelInferRequest()
    for number, array in enumerate(arrays):
        add_tensor(request.inputs, request.raw_input_contents, str(number), array)
    request = ModelInferRequest.FromString(request.SerializeToString())
    back = tensors_to_arrays(request.inputs, request.raw_input_contents)
    assert list(back) == [str(number) for number in range(len(arrays))]
    for array, copy in zip(arrays, back.values(), strict=True):
        assert_same(array, copy)
        assert copy.flags.writeable


@given(numbers(IN_CONTENTS) | blobs())
def test_contents_are_read_as_the_array_that_they_are(array: np.ndarray):
    datatype = datatype_of(array.dtype)
    contents = InferTensorContents(**{FIELDS[datatype]: array.ravel().tolist()})
    assert_same(contents_to_array(datatype, array.shape, contents), array)


@pytest.mark.parametrize(
    ("array", "raw"),
    [
        (np.array([1, -2], ">i2"), b"\x01\x00\xfe\xff"),
        (np.array([1.5], np.float16), b"\x00\x3e"),
        (np.array([1.5], ml_dtypes.bfloat16), b"\xc0\x3f"),
        (np.array([True, False]), b"\x01\x00"),
        (np.arange(4, dtype=np.uint8)[::2], b"\x00\x02"),
        (np.array(["é"]), b"\x02\x00\x00\x00\xc3\xa9"),
        (np.array([b"a\x00b", ""], object), b"\x03\x00\x00\x00a\x00b\x00\x00\x00\x00"),
    ],
)
def test_the_raw_form_is_the_protocols(array: np.ndarray, raw: bytes):
    assert array_to_raw(array) == raw


def test_text_is_decoded_element_by_element():
    raw = array_to_raw(np.array([["é", b"\xff\xd8"]], object))
    assert with_text(raw_to_array("BYTES", (1, 2), raw)).tolist() == [["é", b"\xff\xd8"]]
    floats = np.zeros(2)
    assert with_text(floats) is floats


def test_any_byte_but_zero_is_true():
    assert raw_to_array("BOOL", (3,), b"\x00\x01\x07").view(np.uint8).tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (np.zeros(1, np.complex64), "tensor 'x': dtype complex64 has no datatype"),
        (np.zeros(1, "M8[s]"), "tensor 'x': dtype datetime64"),
        (np.array(["\ud800"]), "tensor 'x': .* has no UTF-8 form"),
        (np.array([1], object), "tensor 'x': an element of BYTES is str or bytes, not int"),
    ],
)
def test_a_value_that_the_protocol_cannot_carry_is_refused_with_its_name(
    array: np.ndarray, told: str
):
    request = ModelInferRequest()
    with pytest.raises(PayloadTypeError, match=told):
        add_tensor(request.inputs, request.raw_input_contents, "x", array)
    assert request == ModelInferRequest()


@pytest.mark.parametrize(
    ("datatype", "shape", "raw", "told"),
    [
        ("FP32", (2,), b"\x00" * 4, r"FP32 of shape \[2\] takes 8 bytes, but 4 came"),
        ("FP32", (-1,), b"\x00" * 4, "negative dimension"),
        ("FP32", (1,) * 65, b"\x00" * 4, "65 dimensions are more than"),
        ("FP32", (0, 2**62, 2**62), b"", "no array has the shape"),
        ("FP32", (2**11, 2**10, 0), b"", "has 2097152 rows without elements"),
        ("FP32", (2**62, 2**62), b"", "causes total element count to exceed"),
        ("STRING", (1,), b"", "datatype 'STRING' is not one of BOOL, "),
        ("BYTES", (2,), b"\x01\x00\x00\x00a", "1 elements of BYTES came, but its shape has 2"),
        ("BYTES", (2**40,), b"", "0 elements of BYTES came"),
        ("BYTES", (2,), b"\x01\x00\x00\x00a\x01", "ends within the length of element 1 of 2"),
        ("BYTES", (1,), b"\xff\xff\xff\xffa", "element 0 of BYTES needs 4294967294 bytes more"),
        ("BYTES", (1,), b"\x00\x00\x00\x00a", "2 elements of BYTES came, but its shape has 1"),
        ("BYTES", (0,), b"a", "1 elements of BYTES came, but its shape has 0"),
    ],
)
def test_raw_data_that_do_not_fit_are_refused(
    datatype: str, shape: tuple[int, ...], raw: bytes, told: str
):
    with pytest.raises(PackageError, match=told):
        raw_to_array(datatype, shape, raw)


@pytest.mark.parametrize(
    ("datatype", "contents", "told"),
    [
        ("INT8", {"int_contents": [1, 300]}, "int_contents holds 1 to 300, too much for INT8"),
        ("UINT8", {"uint_contents": [1, 256]}, "too much for UINT8"),
        ("INT32", {"int64_contents": [1, 2]}, "has 2 elements, but int_contents holds 0"),
        ("FP16", {"fp32_contents": [1, 2]}, "FP16 has no contents: it travels raw only"),
    ],
)
def test_contents_that_do_not_fit_are_refused(datatype: str, contents: Any, told: str):
    with pytest.raises(PackageError, match=told):
        contents_to_array(datatype, (2,), InferTensorContents(**contents))


@pytest.mark.parametrize(
    ("contents", "told"),
    [
        (
            {"int_contents": [1], "bool_contents": [True]},
            "unexpected explicit tensor data for input tensor 'x' for model 'm' of type 'BOOL', "
            "expected datatype 'INT32'",
        ),
        (
            {"int_contents": [1], "uint_contents": [1]},
            "unexpected explicit tensor data for input tensor 'x' for model 'm', binary data was "
            "already supplied.",
        ),
    ],
)
def test_contents_of_two_types_are_refused_as_triton_does(contents: Any, told: str):
    message = ModelInferRequest()
    message.inputs.add(name="x", datatype="INT32", shape=[1]).contents.CopyFrom(
        InferTensorContents(**contents)
    )
    with pytest.raises(PackageError) as refused:
        tensors_to_arrays(message.inputs, [], ("m", ""))
    assert str(refused.value).endswith(told)


def test_a_message_with_partly_raw_tensors_is_refused():
    response = ModelInferResponse(raw_output_contents=[b"\x01"])
    response.outputs.add(name="a", datatype="INT8", shape=[1])
    response.outputs.add(name="b", datatype="INT8", shape=[1])
    with pytest.raises(PackageError, match="2 tensors, but 1 raw contents"):
        tensors_to_arrays(response.outputs, response.raw_output_contents)
    response.raw_output_contents.append(b"\x02")
    response.outputs[1].contents.int_contents.append(2)
    with pytest.raises(PackageError, match="tensor 'b': it has contents, but"):
        tensors_to_arrays(response.outputs, response.raw_output_contents)


@given(st.sampled_from(list(DATATYPES)), SHAPES, st.binary(max_size=40))
def test_any_bytes_give_an_array_or_are_refused(datatype: str, shape: Any, raw: bytes):
    try:
        array = raw_to_array(datatype, shape, raw)
    except PackageError:
        return
    assert array.shape == shape


def test_empty_contents_with_raw_data_are_ignored():
    response = ModelInferResponse(raw_output_contents=[b"\x01"])
    response.outputs.add(name="a", datatype="INT8", shape=[1]).contents.SetInParent()
    arrays = tensors_to_arrays(response.outputs, response.raw_output_contents)
    assert arrays["a"].tolist() == [1]


def test_lengths_before_elements_are_little_endian():
    assert struct.unpack("<I", array_to_raw(np.array([b"abc"], object))[:4]) == (3,)
