"""Tensors on the wire: values come back as they went, and what does not fit is refused by name."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipeline.errors import PackageError, PayloadTypeError
from pipeline.proto.codec import (
    ElemType,
    decode_request,
    decode_tensors,
    numpy_to_tensor,
    tensor_to_numpy,
)
from pipeline.proto.pipeline.blocks import PACKED_DTYPES, read_packed, write_packed
from pipeline.proto.pipeline_service_pb2 import Tensor

NUMERIC = {
    ElemType.INT64: (np.int64, "int64_data"),
    ElemType.FP32: (np.float32, "float_data"),
    ElemType.INT32: (np.int32, "int_data"),
    ElemType.FP64: (np.float64, "float64_data"),
    ElemType.INT16: (np.int16, "int_data"),
    ElemType.FP16: (np.float16, "float_data"),
    ElemType.UINT16: (np.uint16, "uint32_data"),
    ElemType.UINT8: (np.uint8, "uint32_data"),
    ElemType.INT8: (np.int8, "int_data"),
    ElemType.BOOL: (np.bool_, "bool_data"),
    ElemType.COMPLEX64: (np.complex64, "complex64_data"),
    ElemType.COMPLEX128: (np.complex128, "complex128_data"),
    ElemType.BF16: (ml_dtypes.bfloat16, "byte_data"),
}
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
RAW_BYTES = st.binary().filter(lambda data: not data.startswith(b"\x93NUMPY"))
NPY_V1 = b"\x93NUMPY\x01\x00"


def same(left: Any, right: Any) -> bool:
    """Same type, dtype, shape and bits; NaNs of one bit pattern are the same."""
    if isinstance(left, np.ndarray) and left.dtype != object:
        return (
            isinstance(right, np.ndarray)
            and left.dtype == right.dtype
            and left.shape == right.shape
            and left.tobytes() == right.tobytes()
        )
    return type(left) is type(right) and bool(np.all(left == right))


def sent(tensor: Tensor) -> Tensor:
    """The tensor as it arrives at a peer."""
    return Tensor.FromString(tensor.SerializeToString())


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    dtype = np.dtype(draw(st.sampled_from([dtype for dtype, _ in NUMERIC.values()])))
    if dtype == ml_dtypes.bfloat16:
        return draw(hnp.arrays(np.uint16, SHAPES)).view(dtype)
    return draw(hnp.arrays(dtype, SHAPES))


# --- round trips ----------------------------------------------------------------------------


@settings(deadline=None)
@given(arrays(), st.booleans(), st.text())
def test_an_array_survives_the_round_trip(array: np.ndarray[Any, Any], as_bytes: bool, name: str):
    tensor = sent(numpy_to_tensor(name, array, as_bytes=as_bytes))
    back = tensor_to_numpy(tensor)
    assert tensor.name == name
    assert back.flags.writeable
    if array.dtype == np.float16 and not as_bytes:  # a NaN's payload may not survive float32
        np.testing.assert_array_equal(back, array, strict=True)
    else:
        assert same(back, array)


@pytest.mark.parametrize("elem_type", NUMERIC)
def test_an_array_travels_in_the_field_of_its_elem_type(elem_type: ElemType):
    dtype, field = NUMERIC[elem_type]
    tensor = numpy_to_tensor("x", np.ones((2, 3), dtype))
    assert tensor.elem_type == elem_type
    assert list(tensor.shape) == [2, 3]
    data_fields = [each.name for each, _ in tensor.ListFields() if each.name.endswith("_data")]
    assert data_fields == [field]


@settings(deadline=None)
@given(arrays(), st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=9))
def test_a_lod_of_any_length_is_decoded_as_offsets(array: np.ndarray[Any, Any], lod: list[int]):
    values = decode_tensors([sent(numpy_to_tensor("x", array, lod=lod))])
    assert list(values) == ["x", "x.lod"]
    assert same(values["x.lod"], np.array(lod, np.int32))


@settings(deadline=None)
@given(st.one_of(st.text(), RAW_BYTES, st.lists(st.text(), min_size=1)))
def test_text_and_bytes_survive_the_round_trip(value: Any):
    assert same(tensor_to_numpy(sent(numpy_to_tensor("x", value))), value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, np.array(7, np.int64)),
        (True, np.array(True)),
        (0.1, np.array(0.1)),
        (1 - 2j, np.array(1 - 2j)),
        (np.float32(0.1), np.array(0.1, np.float32)),
        ([[1, 2], [3, 4]], np.array([[1, 2], [3, 4]], np.int64)),
        ((1.5, 2), np.array([1.5, 2.0])),
        ([], np.empty(0)),
        (np.array([2**32 - 1], np.uint32), np.array([2**32 - 1], np.int64)),
        (np.array([2**63 - 1], np.uint64), np.array([2**63 - 1], np.int64)),
        (np.array([1.5, 2.5], ">f4"), np.array([1.5, 2.5], np.float32)),
        (np.arange(6).reshape(2, 3).T, np.array([[0, 3], [1, 4], [2, 5]])),
        (np.array([1 + 2j, 3j]).reshape(2, 1).T, np.array([[1 + 2j, 3j]])),
        (np.array(["a", "bc"]), ["a", "bc"]),
        (np.array([["a"], ["bc"]]), np.array([["a"], ["bc"]], object)),
        (np.array([b"ab", b"c"]), np.array([b"ab", b"c"])),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
        (np.str_("a"), "a"),
    ],
)
def test_a_value_is_sent_as_the_nearest_thing_that_the_wire_has(value: Any, expected: Any):
    assert same(tensor_to_numpy(sent(numpy_to_tensor("x", value))), expected)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "NoneType"),
        ({"a": 1}, "dict"),
        ([1, "a"], "int"),
        ([None], "NoneType"),
        ([[1], [1, 2]], "inhomogeneous"),
        ([b"a\x00"], "bytes"),
        (2**70, "int"),
        (np.array([2**63], np.uint64), "9223372036854775808"),
        (np.array(["2020-01-01"], "M8[D]"), "datetime64"),
        (np.zeros(1, "f4,i4"), "f4"),
        (np.zeros(1, np.longdouble), "float128"),
        ("\ud800", "surrogate"),
    ],
)
def test_a_value_that_cannot_be_sent_is_refused_with_its_name(value: Any, told: str):
    with pytest.raises(PayloadTypeError, match=told) as caught:
        numpy_to_tensor("picture", value)
    assert "'picture'" in str(caught.value)


@pytest.mark.parametrize("lod", [[2**31], ["a"], [0.5]])
def test_a_lod_outside_int32_is_refused(lod: list[Any]):
    with pytest.raises(PayloadTypeError, match="'x'"):
        numpy_to_tensor("x", np.zeros(3), lod=lod)


# --- reading what others send ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (Tensor(elem_type=1, float_data=[0.5]), np.array(0.5, np.float32)),
        (Tensor(elem_type=1, float_data=[0.5, 1]), np.array([0.5, 1], np.float32)),
        (Tensor(elem_type=1), np.empty(0, np.float32)),
        (Tensor(elem_type=1, shape=[0, 3]), np.empty((0, 3), np.float32)),
        (Tensor(elem_type=5, float_data=[0.1], shape=[1]), np.array([0.1], np.float16)),
        # What the predecessor's client makes of an array of uint16.
        (Tensor(elem_type=6, uint32_data=[0x3F80]), np.array(0x3F80, np.uint16)),
        (Tensor(elem_type=14, byte_data=b"\x80\x3f"), np.array(1, ml_dtypes.bfloat16)),
        (
            Tensor(elem_type=10, complex64_data=[1, 2, 3, 4], shape=[2]),
            np.array([1 + 2j, 3 + 4j], np.complex64),
        ),
        (Tensor(elem_type=12, str_data=["a"]), "a"),
        (Tensor(elem_type=12, str_data=["a"], shape=[1]), ["a"]),
        (Tensor(elem_type=12, str_data=["a", "b"]), ["a", "b"]),
        (Tensor(elem_type=12), []),
        (Tensor(elem_type=13, byte_data=b"\x93NUMPX"), b"\x93NUMPX"),
        (Tensor(elem_type=13), b""),
    ],
)
def test_a_tensor_is_read_by_its_elem_type_and_shape(tensor: Tensor, expected: Any):
    assert same(tensor_to_numpy(tensor), expected)


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        (Tensor(elem_type=15), "elem_type 15 is unknown"),
        (Tensor(elem_type=14, byte_data=b"abc"), "byte_data holds 3 bytes, an odd number"),
        (Tensor(elem_type=-1), "elem_type -1 is unknown"),
        (
            Tensor(elem_type=1, float_data=[1, 2], shape=[3]),
            r"\[3\] needs 3 elements, but float_data holds 2",
        ),
        (Tensor(elem_type=1, float_data=[1, 2], shape=[-2, 1]), "negative"),
        (Tensor(elem_type=1, float_data=[1, 2, 3], shape=[-1, 2]), "float_data holds 3"),
        (Tensor(elem_type=1, float_data=[1, 2], shape=[-1, 0]), "float_data holds 2"),
        (Tensor(elem_type=1, shape=[-1, 2]), "float_data holds 0"),
        (Tensor(elem_type=1, shape=[2**30, 0]), "rows without elements"),
        (Tensor(elem_type=1, float_data=[1], shape=[-1, -1]), "float_data holds 1"),
        (Tensor(elem_type=1, float_data=[1], shape=[1] * 65), "65 dimensions"),
        (Tensor(elem_type=1, shape=[2**31 - 1] * 60), "needs"),
        (Tensor(elem_type=1, shape=[0] + [2**31 - 1] * 60), "no array has the shape"),
        (Tensor(float_data=[1, 2]), "int64_data, which is empty; float_data holds 2"),
        (Tensor(float_data=[1, 2], shape=[2]), "int64_data, which is empty; float_data holds 2"),
        (Tensor(elem_type=12, byte_data=b"ab"), "byte_data holds 2"),
        (Tensor(elem_type=13, str_data=["ab"]), "str_data holds 1"),
        (Tensor(elem_type=4, int_data=[1, 32768]), "32768 does not fit int16"),
        (Tensor(elem_type=7, uint32_data=[256]), "256 does not fit uint8"),
        (Tensor(elem_type=8, int_data=[-129]), "-129 does not fit int8"),
        (Tensor(elem_type=6, uint32_data=[65536]), "65536 does not fit uint16"),
        (Tensor(elem_type=5, float_data=[1e6]), "too large for float16"),
        (Tensor(elem_type=10, complex64_data=[1, 2, 3]), "holds 3 numbers"),
        (Tensor(elem_type=11, complex128_data=[1]), "holds 1 numbers"),
        (Tensor(elem_type=12, str_data=["a"], shape=[2]), "str_data holds 1"),
        (Tensor(elem_type=12, str_data=["a"], shape=[1, 2]), "str_data holds 1"),
    ],
)
def test_data_that_does_not_fit_is_refused_with_the_tensors_name(tensor: Tensor, told: str):
    tensor.name = "picture"
    with pytest.raises(PackageError, match=told) as caught:
        tensor_to_numpy(tensor)
    assert "'picture'" in str(caught.value)


def test_the_later_of_two_tensors_with_one_name_wins():
    tensors = [numpy_to_tensor("x", 1), numpy_to_tensor("x", 2)]
    assert decode_tensors(tensors) == {"x": 2}


# Every way to be wrong at once: sizes, fields and types have nothing to do with each other.
@settings(deadline=None, max_examples=300)
@given(
    st.builds(
        Tensor,
        int64_data=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
        float_data=st.lists(st.floats(width=32), max_size=4),
        int_data=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4),
        uint32_data=st.lists(st.integers(0, 2**32 - 1), max_size=4),
        complex64_data=st.lists(st.floats(width=32), max_size=5),
        str_data=st.lists(st.text(), max_size=3),
        byte_data=st.one_of(st.binary(), st.binary().map(lambda tail: NPY_V1 + tail)),
        elem_type=st.integers(-1, 15),
        shape=st.lists(st.one_of(st.integers(-1, 4), st.integers(2**30, 2**31 - 1)), max_size=4),
        lod=st.lists(st.integers(-5, 5), max_size=3),
    )
)
def test_any_tensor_is_decoded_or_refused(tensor: Tensor):
    with contextlib.suppress(PackageError):
        decode_tensors([tensor])


# --- .npy -----------------------------------------------------------------------------------


def npy(header: bytes, body: bytes = b"", version: bytes = b"\x01\x00") -> Tensor:
    data = b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header + body
    return Tensor(name="x", elem_type=13, byte_data=data)


def header(descr: str, shape: str, order: str = "False") -> bytes:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()


@settings(deadline=None)
@given(
    hnp.arrays(
        st.one_of(
            hnp.scalar_dtypes().filter(lambda dtype: dtype.itemsize > 0),
            hnp.byte_string_dtypes(min_len=1),
        ),
        SHAPES,
    ),
    st.sampled_from([(1, 0), (2, 0), (3, 0)]),
    st.booleans(),
)
def test_a_npy_file_that_numpy_wrote_is_read(
    array: np.ndarray[Any, Any], version: tuple[int, int], fortran: bool
):
    file = io.BytesIO()
    ordered = np.asfortranarray(array) if fortran else array
    np.lib.format.write_array(file, ordered, version=version, allow_pickle=False)
    back = tensor_to_numpy(Tensor(elem_type=13, byte_data=file.getvalue()))
    assert back.dtype == array.dtype
    assert back.shape == ordered.shape
    assert back.flags.writeable
    assert back.tobytes() == ordered.tobytes()


def test_a_npy_file_of_objects_is_never_unpickled():
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(PackageError, match="plain dtype"):
        tensor_to_numpy(Tensor(elem_type=13, byte_data=file.getvalue()))


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        (npy(header("'<f4'", "(1000000000000,)"), b"1234"), "needs 4000000000000 bytes, but 4"),
        (npy(header("'<f4'", "(2,)"), b"1234"), "needs 8 bytes, but 4"),
        (npy(header("'<f4'", "(1,)"), b"12345678"), "needs 4 bytes, but 8"),
        (npy(header("'<f4'", f"({'1,' * 65})"), b"1234"), "65 dimensions"),
        (npy(header("'<f4'", "(-1,)"), b"1234"), "plain dtype"),
        (npy(header("'<f3'", "(1,)"), b"123"), "unknown"),
        (npy(header("'|V0'", "(1000000000000,)")), "needs 0 bytes"),
        (npy(header("'(1000000,)f4'", "(1,)")), "plain dtype"),
        (npy(header("[('a', '<f4')]", "(1,)"), b"1234"), "plain dtype"),
        (npy(header("__import__('os')", "(1,)"), b"1234"), "plain dtype"),
        (npy(b"", version=b"\x09\x00"), "version 9"),
        (Tensor(name="x", elem_type=13, byte_data=b"\x93NUMPY"), "version None"),
        (Tensor(name="x", elem_type=13, byte_data=b"\x93NUMPY\x01\x00\x01"), "inside its header"),
        (
            Tensor(name="x", elem_type=13, byte_data=b"\x93NUMPY\x02\x00\xff\xff\xff\xff"),
            "4294967295 bytes",
        ),
    ],
)
def test_an_inconsistent_npy_file_is_refused(tensor: Tensor, told: str):
    with pytest.raises(PackageError, match=told):
        tensor_to_numpy(tensor)


# --- packed fields --------------------------------------------------------------------------


@settings(deadline=None)
@given(st.data())
def test_packed_bytes_equal_protobufs(data: st.DataObject):
    field = data.draw(st.sampled_from(sorted(PACKED_DTYPES)))
    numbers = data.draw(hnp.arrays(PACKED_DTYPES[field], st.integers(0, 200)))
    quick, slow = Tensor(name="x", shape=[3]), Tensor(name="x", shape=[3])
    write_packed(quick, field, numbers)
    getattr(slow, field).extend(numbers.tolist())
    assert quick.SerializeToString() == slow.SerializeToString()
    assert read_packed(slow, field).tobytes() == numbers.tobytes()


def test_a_packed_field_is_found_among_other_fields():
    tensor = Tensor(int64_data=[1, -1], float_data=[2.0], int_data=[3], uint32_data=[4] * 200)
    tensor.str_data.extend(["a", "b"])
    tensor.complex64_data.extend([5.0, 6.0])
    assert read_packed(tensor, "complex64_data").tolist() == [5.0, 6.0]
    assert read_packed(tensor, "float_data").tolist() == [2.0]
    assert read_packed(tensor, "float64_data").tolist() == []


def test_unknown_fields_of_a_newer_peer_do_not_disturb():
    newer = b"\xf2\x01\x01a"  # field 30
    mistyped = b"\x10\x05"  # field 2, float_data, as one varint
    known = numpy_to_tensor("x", np.float32(2.5)).SerializeToString()
    tensor = Tensor.FromString(newer + mistyped + known)
    assert tensor_to_numpy(tensor) == np.float32(2.5)


@pytest.mark.parametrize(
    ("shape", "expected"), [([-1, 2], [[1, 2], [3, 4]]), ([2, -1], [[1, 2], [3, 4]]), ([-1], None)]
)
def test_one_unknown_dimension_is_inferred_from_the_elements(shape, expected):
    tensor = Tensor(elem_type=1, float_data=[1, 2, 3, 4], shape=shape)
    assert tensor_to_numpy(tensor).tolist() == (expected or [1, 2, 3, 4])


def test_one_text_of_a_request_is_a_str_and_of_an_answer_a_list():
    texts = [Tensor(name="t", elem_type=12, str_data=["abc"], shape=[1])]
    assert decode_request(texts) == {"t": "abc"}
    assert decode_tensors(texts) == {"t": ["abc"]}
    texts[0].str_data.append("d")
    texts[0].shape[:] = [2]
    assert decode_request(texts) == {"t": ["abc", "d"]}
