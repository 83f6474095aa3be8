"""Tensors of the general model service: values come back as they went, lies are refused."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from golden import FRAMES
from google.protobuf.descriptor import Descriptor
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipeline.errors import PayloadTypeError
from pipeline.proto import pipeline_service_pb2
from pipeline.proto.brpc.frames import FrameError, FrameReader, decompress
from pipeline.proto.brpc.general_model import (
    BrpcElemType,
    dtype_of,
    elem_type_of,
    lod_of,
    tensor_to_array,
    value_pieces,
    value_to_tensor,
)
from pipeline.proto.general_model_pb2 import ModelOutput, Request, Response, Tensor
from pipeline.proto.pipeline.blocks import PACKED_DTYPES

NUMERIC = {
    BrpcElemType.INT64: (np.int64, "int64_data"),
    BrpcElemType.FP32: (np.float32, "float_data"),
    BrpcElemType.INT32: (np.int32, "int_data"),
    BrpcElemType.FP64: (np.float64, "float64_data"),
    BrpcElemType.INT16: (np.int16, "tensor_content"),
    BrpcElemType.FP16: (np.float16, "tensor_content"),
    BrpcElemType.BF16: (ml_dtypes.bfloat16, "tensor_content"),
    BrpcElemType.UINT8: (np.uint8, "tensor_content"),
    BrpcElemType.INT8: (np.int8, "tensor_content"),
    BrpcElemType.BOOL: (np.bool_, "bool_data"),
    BrpcElemType.COMPLEX64: (np.complex64, "complex64_data"),
    BrpcElemType.COMPLEX128: (np.complex128, "complex128_data"),
}
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
TEXTS = hnp.arrays(np.object_, SHAPES, elements=st.text(max_size=5))


def sent(tensor: Tensor) -> Tensor:
    """The tensor as it arrives at a peer."""
    return Tensor.FromString(tensor.SerializeToString())


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    return (left.dtype, left.shape, left.tobytes()) == (right.dtype, right.shape, right.tobytes())


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    dtype = np.dtype(draw(st.sampled_from([dtype for dtype, _ in NUMERIC.values()])))
    if dtype == ml_dtypes.bfloat16:
        return draw(hnp.arrays(np.uint16, SHAPES)).view(dtype)
    return draw(hnp.arrays(dtype, SHAPES))


# --- round trips ------------------------------------------------------------------------------


@settings(deadline=None)
@given(arrays(), st.text(), st.text())
def test_an_array_survives_the_round_trip(array: np.ndarray, name: str, alias: str):
    tensor = sent(value_to_tensor(name, alias, array))
    back = tensor_to_array(tensor)
    assert (tensor.name, tensor.alias_name) == (name, alias)
    assert same_bits(back, array)
    assert back.flags.writeable
    assert lod_of(tensor) is None


@settings(deadline=None)
@given(TEXTS)
def test_text_of_any_shape_survives_the_round_trip(texts: np.ndarray):
    tensor = sent(value_to_tensor("x", "x", texts))
    back = tensor_to_array(tensor)
    assert tensor.elem_type == BrpcElemType.STRING
    assert (back.dtype, back.shape) == (np.dtype(object), texts.shape)
    assert back.tolist() == texts.tolist()


@pytest.mark.parametrize("value", [["a", "失败"], ("a", "失败"), np.array(["a", "失败"])])
def test_a_list_of_text_is_an_array_of_one_dimension(value: Any):
    tensor = value_to_tensor("x", "x", value)
    assert list(tensor.data) == ["a", "失败"]
    assert tensor_to_array(tensor).tolist() == ["a", "失败"]
    assert list(tensor.shape) == [2]


@settings(deadline=None)
@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1), st.booleans())
def test_offsets_survive_the_round_trip(lod: list[int], as_array: bool):
    value = np.array(lod, dtype=np.int64) if as_array else lod
    offsets = lod_of(sent(value_to_tensor("x", "x", np.zeros(3), value)))
    assert offsets is not None
    assert offsets.dtype == np.int32
    assert offsets.tolist() == lod


@pytest.mark.parametrize("elem_type", NUMERIC)
def test_an_array_travels_in_the_field_of_its_elem_type(elem_type: BrpcElemType):
    dtype, field = NUMERIC[elem_type]
    tensor = value_to_tensor("x", "y", np.ones((2, 3), dtype))
    assert tensor.elem_type == elem_type
    assert list(tensor.shape) == [2, 3]
    fields = {each.name for each, _ in tensor.ListFields()}
    assert fields - {"elem_type", "shape", "name", "alias_name"} == {field}
    assert dtype_of(elem_type) == dtype
    assert elem_type_of(np.dtype(dtype)) is elem_type


def test_text_has_an_elem_type_and_object_for_a_dtype():
    assert dtype_of(20) == np.dtype(object)
    assert elem_type_of(np.dtype(object)) is BrpcElemType.STRING


def test_an_unknown_elem_type_is_an_error():
    with pytest.raises(ValueError, match="12 is unknown: there is 0 INT64"):
        dtype_of(12)
    with pytest.raises(ValueError, match="datetime64"):
        elem_type_of(np.dtype("M8[s]"))


@pytest.mark.parametrize("dtype", [">i4", ">f4", ">f2", ">i2", ">c8"])
def test_foreign_byte_order_is_turned(dtype: str):
    array = np.arange(6).astype(dtype).reshape(2, 3)
    back = tensor_to_array(sent(value_to_tensor("x", "x", array)))
    assert back.dtype == np.dtype(dtype).newbyteorder("=")
    assert (back == array).all()


def test_a_strided_array_is_sent_in_order():
    array = np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::-1].T
    for dtype in (np.float32, np.uint8, np.int64, np.complex64):
        view = array.astype(dtype, order="K")
        assert (tensor_to_array(value_to_tensor("x", "x", view)) == view).all()


@pytest.mark.parametrize(
    ("dtype", "wider"), [(np.uint16, np.int32), (np.uint32, np.int64), (np.uint64, np.int64)]
)
def test_unsigned_numbers_travel_as_wider_signed_ones(dtype: type, wider: type):
    back = tensor_to_array(value_to_tensor("x", "x", np.array([1, 2], dtype)))
    assert back.dtype == wider
    assert back.tolist() == [1, 2]


# --- what cannot be sent ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["u2", "u4", "i8", "f4", "c8", "?"])
def test_a_large_array_has_the_bytes_of_a_message(dtype: str):
    array = np.arange(2**16).astype(dtype)
    message = Tensor.FromString(b"".join(value_pieces("in", "x", array, [0, 3])))
    assert message == value_to_tensor("in", "x", array, [0, 3])


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (np.array(["2020-01-01"], "M8[s]"), "datetime64"),
        (np.array([b"a"]), "dtype"),
        (np.array([1, "a"], dtype=object), "must hold str only, not int"),
        (["a", 1], "must hold str only, not int"),
        (np.array([2**64 - 1], np.uint64), "does not fit"),
        (np.array(["\ud800"], dtype=object), "surrogates"),
        ("text", "a str cannot be sent"),
        (b"text", "a bytes cannot be sent"),
        (3, "a int cannot be sent"),
        ({"a": 1}, "a dict cannot be sent"),
    ],
)
def test_a_value_without_a_form_is_refused_with_its_name(value: Any, why: str):
    with pytest.raises(PayloadTypeError, match=f"tensor 'alias': .*{why}"):
        value_to_tensor("name", "alias", value)


@pytest.mark.parametrize("lod", [["a"], [2**31], [[0, 1], [2]]])
def test_offsets_outside_int32_are_refused(lod: Any):
    with pytest.raises(PayloadTypeError, match="tensor 'y'"):
        value_to_tensor("x", "y", np.zeros(3), lod)


# --- tensors that lie -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (Tensor(elem_type=12), "elem_type 12 is unknown"),
        (Tensor(elem_type=-1), "elem_type -1 is unknown"),
        (Tensor(elem_type=1, float_data=[1], shape=[2]), "[2] needs 2 elements, but float_data"),
        (Tensor(elem_type=1, float_data=[1], shape=[-2]), "negative"),
        (Tensor(elem_type=1, shape=[2**31 - 1] * 3), "float_data holds 0"),
        (Tensor(elem_type=1, shape=[0] + [2**31 - 1] * 3), "no array has the shape"),
        (Tensor(elem_type=1, float_data=[1], shape=[1] * 65), "65 dimensions"),
        (Tensor(elem_type=20, data=["a"], shape=[2]), "data holds 1"),
        (Tensor(elem_type=5, tensor_content=b"abc", shape=[1]), "3 bytes"),
        (Tensor(elem_type=5, tensor_content=b"abcd", shape=[1]), "tensor_content holds 2"),
        (Tensor(elem_type=10, complex64_data=[1, 2, 3], shape=[1]), "in pairs"),
        (Tensor(float_data=[1], shape=[1]), "int64_data, which is empty; float_data holds 1"),
        (Tensor(float_data=[1]), "int64_data, which is empty; float_data holds 1"),
        (Tensor(tensor_content=b"ab"), "int64_data, which is empty; tensor_content holds 2"),
    ],
)
def test_data_that_do_not_fit_are_refused_by_name(tensor: Tensor, why: str):
    tensor.alias_name = "price"
    with pytest.raises(FrameError, match="tensor 'price': .*" + re.escape(why)):
        tensor_to_array(tensor)


def test_without_a_shape_one_element_is_a_scalar_and_several_are_a_row():
    assert tensor_to_array(Tensor(elem_type=1, float_data=[2.5])).shape == ()
    assert tensor_to_array(Tensor(elem_type=1, float_data=[2.5, 1])).shape == (2,)
    assert tensor_to_array(Tensor(elem_type=20, data=["a"])).shape == ()


def test_floats_that_are_not_packed_are_read():
    loose = b"".join(b"\x15" + np.float32(n).tobytes() for n in (1, 2))
    tensor = Tensor.FromString(loose + b"\x50\x01")
    assert tensor_to_array(tensor).tolist() == [1.0, 2.0]


SMALL = st.integers(-3, 9)
TENSORS = st.builds(
    Tensor,
    int64_data=st.lists(SMALL, max_size=3),
    float_data=st.lists(SMALL, max_size=3),
    int_data=st.lists(SMALL, max_size=3),
    bool_data=st.lists(st.booleans(), max_size=3),
    complex64_data=st.lists(SMALL, max_size=3),
    data=st.lists(st.text(max_size=2), max_size=3),
    tensor_content=st.binary(max_size=8),
    elem_type=st.sampled_from([*BrpcElemType, 12, -1]),
    shape=st.lists(SMALL | st.sampled_from([2**31 - 1, -(2**31)]), max_size=4),
)


@settings(max_examples=400, deadline=None)
@given(TENSORS)
def test_any_tensor_is_an_array_or_a_frame_error(tensor: Tensor):
    try:
        array = tensor_to_array(tensor)
    except FrameError:
        return
    assert array.dtype == dtype_of(tensor.elem_type)
    if tensor.shape:
        said = [item for item in tensor.shape if item != -1]  # that one is what is left
        assert [*array.shape] == [*tensor.shape] or len(said) == array.ndim - 1


# --- the wire ---------------------------------------------------------------------------------


def test_all_types_of_a_genuine_answer_are_read():
    (frame,) = FrameReader().feed(FRAMES["brpc general ok, gzip reply, all dtypes", "s2c"])
    response = Response.FromString(decompress(frame.meta.compress_type, frame.body, 1000))
    (output,) = response.outputs
    arrays = {tensor.alias_name: tensor_to_array(tensor) for tensor in output.tensor}
    expected = {
        "price": np.array([[7.8]], np.float32),
        "ids": np.array([1, -2, 2**53 + 1], np.int64),
        "i32": np.array([-5, 6], np.int32),
        "u8": np.array([[1, 2], [254, 255]], np.uint8),
        "fp16": np.array([1, -2], np.float16),
    }
    assert arrays.keys() == expected.keys()
    assert all(same_bits(arrays[name], expected[name]) for name in expected)
    lods = {tensor.alias_name: lod_of(tensor) for tensor in output.tensor}
    assert lods.pop("ids").tolist() == [0, 1, 3]
    assert set(lods.values()) == {None}


def numbers(message: Descriptor) -> dict[str, int]:
    return {field.name: field.number for field in message.fields}


def test_the_messages_have_the_released_numbers():
    assert numbers(Tensor.DESCRIPTOR) == {
        "int64_data": 1,
        "float_data": 2,
        "int_data": 3,
        "float64_data": 4,
        "uint32_data": 5,
        "bool_data": 6,
        "complex64_data": 7,
        "complex128_data": 8,
        "data": 9,
        "elem_type": 10,
        "shape": 11,
        "lod": 12,
        "name": 13,
        "alias_name": 14,
        "tensor_content": 15,
    }
    assert numbers(Request.DESCRIPTOR) == {
        "tensor": 1,
        "fetch_var_names": 2,
        "profile_server": 3,
        "log_id": 4,
    }
    assert numbers(ModelOutput.DESCRIPTOR) == {"tensor": 1, "engine_name": 2}
    assert numbers(Response.DESCRIPTOR) == {
        "outputs": 1,
        "profile_time": 2,
        "profile_server": 3,
        "log_id": 4,
        "err_no": 5,
        "err_msg": 6,
    }


def test_the_packed_fields_equal_those_of_the_pipeline_service():
    """`packed` writes and reads both kinds of tensors by the numbers of one of them."""
    ours = Tensor.DESCRIPTOR.fields_by_name
    theirs = pipeline_service_pb2.Tensor.DESCRIPTOR.fields_by_name
    for field in PACKED_DTYPES:
        assert (ours[field].number, ours[field].type) == (theirs[field].number, theirs[field].type)
    in_front = [field for field in Tensor.DESCRIPTOR.fields if field.number <= 8]
    assert all(field.is_packed for field in in_front)
