"""Arrays as Ops read them, and Ops' answers as arrays."""

from __future__ import annotations

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pipeline import ProductError
from pipeline.data import ChannelData
from pipeline.errors import (
    ClosedError,
    ConflictError,
    DeadlineError,
    InputError,
    NoServiceError,
    PayloadTypeError,
    PipelineError,
    PredictorError,
    PredictorUnavailableError,
    UnspecifiedError,
)
from pipeline.frontends.v2 import V2Error, V2Status, v2_error
from pipeline.frontends.v2.convert import arrays_of, payload_of, request_of, values_of
from pipeline.frontends.v2.interface import ModelInterface, Slot
from pipeline.proto.codec import decode_tensors, numpy_to_tensor
from pipeline.proto.pipeline_service_pb2 import Response
from pipeline.proto.v2.raw import array_of

ANYTHING = ModelInterface()


def text(*elements, shape=None):
    array = np.empty(len(elements), object)
    array[:] = [e.encode() if isinstance(e, str) else e for e in elements]
    return array if shape is None else array.reshape(shape)


def same(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected


# In -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "value"),
    [
        (text("é"), "é"),
        (text("a", shape=(1, 1)), "a"),
        (text("a", shape=()), "a"),
        (text(b"\xff"), b"\xff"),
        (text("a", "b"), ["a", "b"]),
        (text("a", b"\xff"), ["a", b"\xff"]),
        (text(), []),
        (np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32)),
    ],
)
def test_an_undeclared_array_becomes_its_most_likely_type(array, value):
    same(values_of({"x": array}, ANYTHING)["x"], value)


def test_text_in_several_dimensions_is_an_array_of_text():
    value = values_of({"x": text("a", b"\xff", shape=(2, 1))}, ANYTHING)["x"]
    assert value.shape == (2, 1)
    assert value.ravel().tolist() == ["a", b"\xff"]


@pytest.mark.parametrize(
    ("shape", "batch", "value"),
    [((1,), 0, "a"), ((), 0, "a"), ((-1,), 0, ["a"]), (None, 0, ["a"]), ((), 4, ["a"])],
)
def test_the_form_of_text_depends_on_the_declaration_only(shape, batch, value):
    interface = ModelInterface((Slot("x", "BYTES", shape),), None, batch)
    came = text("a", shape=() if shape == () and not batch else (1,))
    assert values_of({"x": came}, interface) == {"x": value}


def test_a_request_of_a_custom_request_op_has_pairs_and_tensors():
    numbers = np.arange(3, dtype=np.int32)
    request = request_of({"a": "é", "n": numbers, "l": ["x", "y"], "b": b"\xff"}, "17")
    assert list(zip(request.key, request.value, strict=True)) == [("a", "é")]
    assert request.logid == 17
    values = decode_tensors(request.tensors)
    assert (values["l"], values["b"]) == (["x", "y"], b"\xff")
    np.testing.assert_array_equal(values["n"], numbers)


@pytest.mark.parametrize("text_id", ["", "a1", "-3", "9" * 19, "9" * 400, "²"])
def test_an_id_that_is_not_a_log_id_is_zero(text_id):
    assert request_of({}, text_id).logid == 0


def test_a_value_that_a_request_cannot_hold_is_refused():
    with pytest.raises(PayloadTypeError, match="'b'"):
        request_of({"b": ["a", b"\xff"]}, "")


# Out ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "array"),
    [
        ("é", np.array(["é"], object)),
        (b"\xff\0", np.array([b"\xff\0"], object)),
        (bytearray(b"a"), np.array([b"a"], object)),
        (["a", "bc"], np.array(["a", "bc"], object)),
        ([["a"], [b"b"]], np.array([["a"], [b"b"]], object)),
        (np.array(["a", "bc"]), np.array(["a", "bc"], object)),
        (1.5, np.array([1.5])),
        (7, np.array([7])),
        (True, np.array([True])),
        (np.float32(2), np.array([2], np.float32)),
        (np.array(3, np.int8), np.array([3], np.int8)),
        ([1, 2], np.array([1, 2])),
        ((1.0, 2.0), np.array([1.0, 2.0])),
        ([[True], [False]], np.array([[True], [False]])),
        ([np.zeros(2, np.float32)] * 2, np.zeros((2, 2), np.float32)),
        ([], np.zeros(0)),
        (2**64 - 1, np.array([2**64 - 1], np.uint64)),
    ],
)
def test_values_become_arrays(value, array):
    same(array_of(value), array)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": 1},
        object(),
        [None],
        ["a", 1],
        [1, "a"],
        [[1], [1, 2]],
        [["a"], "b"],
        1j,
        np.array([1j]),
        2**64,
        [2**70],
        np.array([{}], object),
        np.array(["2026-01-01"], "datetime64[D]"),
    ],
)
def test_a_value_without_a_form_in_the_protocol_is_refused(value):
    with pytest.raises(V2Error, match="output 'y' of model 'm'") as caught:
        arrays_of({"y": value}, ANYTHING, "m", [])
    assert caught.value.kind is V2Status.INTERNAL


def test_a_long_text_among_short_ones_costs_its_own_length_only():
    array = array_of(["x" * 2**20] + ["y"] * 2000)  # as an array of "<U" these would be 8 GB
    assert array.nbytes < 2**16


@given(
    arrays.arrays(
        st.sampled_from([np.int8, np.uint16, np.int64, np.float32, np.float64, np.bool_]),
        arrays.array_shapes(min_dims=1, max_dims=3),
    )
)
def test_arrays_pass_unchanged(array):
    same(array_of(array), array)


def test_all_values_or_the_requested_ones_are_answered_in_order():
    payload = {"a": 1, "b": 2.0, "c": "x"}
    assert list(arrays_of(payload, ANYTHING, "m", [])) == ["a", "b", "c"]
    assert list(arrays_of(payload, ANYTHING, "m", ["c", "a"])) == ["c", "a"]


def test_an_output_neither_declared_nor_returned_is_refused():
    with pytest.raises(V2Error, match="unexpected inference output 'z' for model 'm'") as caught:
        arrays_of({"a": 1}, ANYTHING, "m", ["z"])
    assert caught.value.kind is V2Status.INVALID


# Declared -----------------------------------------------------------------------------------


def fitted(value, datatype, shape, batch=0):
    interface = ModelInterface(None, (Slot("y", datatype, shape),), batch)
    return arrays_of({"y": value, "more": 1}, interface, "m", [])["y"]


@pytest.mark.parametrize(
    ("value", "datatype", "shape", "array"),
    [
        (0.5, "FP32", (1,), np.array([0.5], np.float32)),
        (3, "FP64", (), np.array(3.0)),
        (7, "INT8", (1, 1), np.array([[7]], np.int8)),
        ([1.0, 2.0], "BF16", (-1,), np.array([1, 2], ml_dtypes.bfloat16)),
        ("a", "BYTES", (1,), np.array(["a"], object)),
        ([], "BYTES", (-1,), np.array([], object)),
        ([], "INT32", (-1,), np.array([], np.int32)),
        (1e300, "FP32", (1,), np.array([np.inf], np.float32)),
    ],
)
def test_an_answer_is_converted_to_the_declaration(value, datatype, shape, array):
    same(fitted(value, datatype, shape), array)


@pytest.mark.parametrize(
    ("value", "datatype", "shape", "reason"),
    [
        ([1, 2], "INT32", (1,), r"its shape is \[2\], but \[1\] is declared"),
        (0.5, "INT32", (1,), "it is FP64, but INT32 is declared"),
        ("a", "FP32", (1,), "it is BYTES, but FP32 is declared"),
        (1, "BYTES", (1,), "it is INT64, but BYTES is declared"),
        (300, "INT8", (1,), "numbers that INT8, which is declared, cannot hold"),
        (-1, "UINT64", (1,), "UINT64"),
    ],
)
def test_an_answer_that_does_not_match_the_declaration_is_an_error(value, datatype, shape, reason):
    with pytest.raises(V2Error, match=reason) as caught:
        fitted(value, datatype, shape)
    assert caught.value.kind is V2Status.INTERNAL


def test_a_model_without_checked_shapes_may_return_any_shape():
    interface = ModelInterface(None, (Slot("y", "FP32", (2,)),), 4, frozenset({"type"}))
    (array,) = arrays_of({"y": np.zeros(3, np.float32)}, interface, "m", []).values()
    assert array.shape == (3,)
    with pytest.raises(V2Error, match="it is BYTES"):
        arrays_of({"y": "a"}, interface, "m", [])


def test_a_model_without_checked_types_keeps_a_type_that_the_declared_one_cannot_hold():
    interface = ModelInterface(None, (Slot("y", "BOOL", (2,)),), 4, frozenset())
    for value in (np.ones(2, np.float16), np.array(["a"], object)):
        (array,) = arrays_of({"y": value}, interface, "m", []).values()
        assert array.dtype == value.dtype
    integers = msgspec.structs.replace(interface, outputs=(Slot("y", "FP32", (2,)),))
    (array,) = arrays_of({"y": np.ones(2, int)}, integers, "m", []).values()
    assert array.dtype == np.float32


def test_declared_shapes_are_without_the_batch():
    assert fitted(np.zeros((3, 2), np.float32), "FP32", (2,), batch=4).shape == (3, 2)
    with pytest.raises(V2Error, match=r"\[2\], but \[-1, 2\]"):
        fitted(np.zeros(2, np.float32), "FP32", (2,), batch=4)


def test_a_declared_output_that_is_missing_is_an_error_of_the_servers():
    with pytest.raises(V2Error, match="did not answer with its output 'y'") as caught:
        arrays_of({}, ModelInterface(None, (Slot("y", "FP32", (1,)),)), "m", [])
    assert caught.value.kind is V2Status.INTERNAL


# Answers ------------------------------------------------------------------------------------


def test_an_answer_that_was_packed_is_unpacked():
    response = Response(key=["t", "f", "pipeline.profile"], value=["a", "[0.5]", "..."])
    response.tensors.append(numpy_to_tensor("n", np.arange(2)))
    interface = ModelInterface(None, (Slot("f", "FP32", (1,)), Slot("t", "BYTES", (1,))))
    values = payload_of(response, interface)
    assert list(values) == ["t", "f", "n"]
    assert (values["t"], values["f"]) == ("a", [0.5])
    assert payload_of(response, ANYTHING)["f"] == "[0.5]", "text stays text if nobody says more"


def test_text_where_numbers_are_declared_is_reported():
    interface = ModelInterface(None, (Slot("f", "FP32", (1,)),))
    values = payload_of(Response(key=["f"], value=["none"]), interface)
    with pytest.raises(V2Error, match="it is BYTES, but FP32"):
        arrays_of(values, interface, "m", [])


@pytest.mark.parametrize(
    ("answer", "kind", "reason"),
    [
        (Response(err_no=51, err_msg="no face"), V2Status.INVALID, r"\[51\] no face"),
        (Response(err_no=6000, err_msg="late"), V2Status.UNAVAILABLE, "late"),
        (ChannelData(1, error=InputError("shape")), V2Status.INVALID, "shape"),
        (ChannelData(1, payload=[1]), V2Status.INTERNAL, "a list"),
        ("a str", V2Status.INTERNAL, "a str, not a Response"),
        (Response(tensors=[{"name": "x", "elem_type": 99}]), V2Status.INTERNAL, "99"),
    ],
)
def test_an_error_or_an_invalid_answer_raises(answer, kind, reason):
    with pytest.raises(V2Error, match=reason) as caught:
        payload_of(answer, ANYTHING)
    assert caught.value.kind is kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ClosedError("x"), V2Status.UNAVAILABLE),
        (DeadlineError("x"), V2Status.UNAVAILABLE),
        (NoServiceError("x"), V2Status.NOT_FOUND),
        (InputError("x"), V2Status.INVALID),
        (UnspecifiedError("x"), V2Status.UNKNOWN),
        (ConflictError("x"), V2Status.ALREADY_EXISTS),
        (PredictorError("x"), V2Status.INTERNAL),
        (PredictorUnavailableError("x"), V2Status.UNAVAILABLE),
        (PayloadTypeError("x"), V2Status.INTERNAL),
        (PipelineError("x"), V2Status.INTERNAL),
        (ProductError(6000, "x"), V2Status.INVALID),
    ],
)
def test_errors_have_a_kind(error, kind):
    assert v2_error(error).kind is kind


def test_names_and_errors_are_encodable():
    assert list(arrays_of({"\udcff": 1, 2: 2}, ANYTHING, "m", [])) == ["\\udcff", "2"]
    assert str(v2_error(ProductError(51, "no file \udcff"))) == "[51] no file \\udcff"


def test_text_in_as_many_dimensions_as_numpy_has_is_an_answer():
    most = 64 if int(np.__version__.split(".")[0]) >= 2 else 32
    text = np.full((1,) * most, "é", object)
    assert array_of(text).shape == text.shape
    assert array_of(text.tolist()).shape == text.shape


def test_a_recursive_list_is_an_error():
    endless = []
    endless.append(endless)
    with pytest.raises(V2Error, match="output 'y' of model 'm'"):
        arrays_of({"y": endless}, ANYTHING, "m", [])


def test_an_output_that_is_wanted_many_times_is_made_once():
    made = []

    class Counted(bytearray):
        def __bytes__(self):
            made.append(self)
            return b"x"

    outputs = arrays_of({"y": Counted(), "z": 1}, ModelInterface(), "m", ["y", "z"] * 1000)
    assert list(outputs) == ["y", "z"]
    assert len(made) == 1
