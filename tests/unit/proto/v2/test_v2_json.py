"""The v2 protocol over HTTP: JSON and binary bodies to requests, responses to bodies."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import ml_dtypes
import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipeline.errors import PackageError, PayloadTypeError
from pipeline.proto.v2.codec import InferRequest, InferResponse, RequestedOutput
from pipeline.proto.v2.json import RawInput, binary_names, read_request, write_response
from pipeline.proto.v2.raw import DATATYPES

IN_JSON = [name for name in DATATYPES if name not in ("FP16", "BF16")]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)


@st.composite
def arrays(draw: st.DrawFn, datatypes: list[str]) -> np.ndarray:
    datatype = draw(st.sampled_from(datatypes))
    shape = draw(SHAPES)
    if datatype == "BYTES":
        flat = np.empty(int(np.prod(shape)), object)
        flat[:] = [draw(st.text(max_size=5)).encode() for _ in flat]
        return flat.reshape(shape)
    if datatype == "BF16":
        return draw(hnp.arrays(np.float32, shape)).astype(ml_dtypes.bfloat16)
    return draw(hnp.arrays(DATATYPES[datatype], shape))


def datatype_named(array: np.ndarray) -> str:
    return next(name for name, dtype in DATATYPES.items() if dtype == array.dtype)


# --- what a client does, after the protocol's documents ---------------------------------------


def raw_of(array: np.ndarray) -> bytes:
    if array.dtype == object:
        return b"".join(struct.pack("<I", len(item)) + item for item in array.ravel())
    return array.tobytes()


def nested(array: np.ndarray) -> Any:
    data = array.tolist()
    return json.loads(json.dumps(data, default=bytes.decode))


def posted(tensors: dict[str, tuple[np.ndarray, str]], **more: Any) -> tuple[bytes, int | None]:
    """A request's body and header length; each tensor is "flat", "nested" or "binary"."""
    inputs, tail = [], b""
    for name, (array, form) in tensors.items():
        entry: dict[str, Any] = {
            "name": name,
            "shape": list(array.shape),
            "datatype": datatype_named(array),
        }
        if form == "binary":
            entry["parameters"] = {"binary_data_size": len(raw_of(array))}
            tail += raw_of(array)
        else:
            entry["data"] = nested(array if form == "nested" and array.ndim else array.ravel())
        inputs.append(entry)
    text = json.dumps({"inputs": inputs, **more}).encode()
    is_binary = any(form == "binary" for _, form in tensors.values())
    return text + tail, len(text) if is_binary else None


def answered(
    body: bytes, header_length: int | None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The fields of an answer, and its outputs as arrays."""
    text = body if header_length is None else body[:header_length]
    at = len(text)
    fields = json.loads(text)
    collected = {}
    for output in fields["outputs"]:
        dtype, shape = DATATYPES[output["datatype"]], output["shape"]
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            data = [item.encode() if isinstance(item, str) else item for item in output["data"]]
            array = np.empty(len(data), dtype)
            array[:] = data
        elif output["datatype"] == "BYTES":
            raw, data = body[at : at + size], []
            while raw:
                (length,) = struct.unpack_from("<I", raw)
                data.append(raw[4 : 4 + length])
                raw = raw[4 + length :]
            array = np.empty(len(data), object)
            array[:] = data
        else:
            array = np.frombuffer(body[at : at + size], dtype)
        at += size or 0
        collected[output["name"]] = array.reshape(shape)
    assert at == len(body)
    return fields, collected


def same(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype == object:
        return one.shape == other.shape and one.tolist() == other.tolist()
    one, other = (
        (a.astype(np.float32) if a.dtype == ml_dtypes.bfloat16 else a) for a in (one, other)
    )
    has_nan = one.dtype.kind == "f"
    return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=has_nan)


# --- round trips ------------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.text(max_size=4),
        st.one_of(
            st.tuples(arrays(IN_JSON), st.sampled_from(["flat", "nested", "binary"])),
            st.tuples(arrays(["FP16", "BF16"]), st.just("binary")),
        ),
        max_size=3,
    )
)
def test_tensors_are_parsed_unchanged(tensors):
    # A nested list without elements does not tell its shape: such arrays are sent flat.
    tensors = {
        name: (array, "flat" if form == "nested" and not array.size else form)
        for name, (array, form) in tensors.items()
    }
    request = read_request(*posted(tensors))
    assert list(request.inputs) == list(tensors)
    for name, (array, _) in tensors.items():
        assert same(request.inputs[name], array)
        assert request.inputs[name].flags.writeable


@given(
    st.dictionaries(st.text(max_size=4), arrays(IN_JSON), max_size=3),
    st.dictionaries(st.text(min_size=5, max_size=8), arrays(list(DATATYPES)), max_size=2),
)
def test_tensors_are_written_unchanged(in_json, in_binary):
    response = InferResponse("m", "1", outputs={**in_json, **in_binary})
    fields, result = answered(*write_response(response, set(in_binary)))
    assert [output["name"] for output in fields["outputs"]] == list(response.outputs)
    for name, array in response.outputs.items():
        assert same(result[name], array)


def test_fields_of_a_request_are_read():
    body, length = posted(
        {"x": (np.ones((1, 2), np.int32), "flat")},
        id="7",
        parameters={"a": "s", "b": 2**64 - 1, "c": -1.5, "d": True, "timeout": 5},
        outputs=[{"name": "y", "parameters": {"binary_data": True}}, {"name": "z"}],
    )
    request = read_request(body, length, model_name="m", model_version="3")
    assert (request.model_name, request.model_version, request.id) == ("m", "3", "7")
    assert request.parameters == {"a": "s", "b": 2**64 - 1, "c": -1.5, "d": True, "timeout": 5}
    assert request.outputs == [RequestedOutput("y", {"binary_data": True}), RequestedOutput("z")]


def test_unknown_fields_are_ignored():
    body = b'{"inputs":[{"name":"x","shape":[1],"datatype":"INT8","data":[1],"more":{}}],"more":[]}'
    assert read_request(body).inputs["x"].tolist() == [1]


def test_an_answer_is_written_in_the_order_that_clients_know():
    response = InferResponse("m", "1", "7", {"p": True}, {"y": np.array([[1, 2]], np.int64)})
    body, length = write_response(response)
    assert length is None
    assert body == (
        b'{"id":"7","model_name":"m","model_version":"1","parameters":{"p":true},'
        b'"outputs":[{"name":"y","datatype":"INT64","shape":[1,2],"data":[1,2]}]}'
    )


def test_an_answer_without_id_and_parameters_names_neither():
    body, _ = write_response(InferResponse("m", "1"))
    assert body == b'{"model_name":"m","model_version":"1","outputs":[]}'


def test_binary_outputs_follow_the_json_in_order():
    outputs = {"a": np.array([1], np.int8), "b": np.array(["é", b"\xff"], object)}
    body, length = write_response(InferResponse("m", "1", outputs=outputs), {"a", "b"})
    assert body[length:] == b"\x01" + b"\x02\0\0\0\xc3\xa9" + b"\x01\0\0\0\xff"
    sizes = [output["parameters"] for output in json.loads(body[:length])["outputs"]]
    assert sizes == [{"binary_data_size": 1}, {"binary_data_size": 11}]


def test_arrays_of_any_layout_are_written():
    outputs = {
        "big": np.arange(3, dtype=">i4"),
        "view": np.arange(6, dtype=np.int32).reshape(2, 3).T,
        "chars": np.array(["a", "文"]),
        "scalar": np.array(5.5),
    }
    for binary in ([], list(outputs)):
        _, result = answered(*write_response(InferResponse("m", outputs=outputs), binary))
        assert result["big"].tolist() == [0, 1, 2]
        assert result["view"].tolist() == [[0, 3], [1, 4], [2, 5]]
        assert result["chars"].tolist() == [b"a", "文".encode()]
        assert result["scalar"].tolist() == 5.5


def test_floats_that_are_not_finite_have_the_names_that_clients_know():
    values = np.array([np.nan, np.inf, -np.inf, 0.5], np.float32)
    body, _ = write_response(InferResponse("m", outputs={"y": values}))
    assert b'"data":[NaN,Infinity,-Infinity,0.5]' in body
    read = read_request(*posted({"x": (values, "flat")})).inputs["x"]
    np.testing.assert_array_equal(read, values)


# --- which outputs are binary -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wants", "outputs", "wanted"),
    [
        (False, [], set()),
        (True, [], {"y", "z"}),
        (False, [RequestedOutput("y", {"binary_data": True}), RequestedOutput("z")], {"y"}),
        (
            True,
            [RequestedOutput("y", {"binary_data": False}), RequestedOutput("z")],
            {"z"},
        ),
    ],
)
def test_the_request_selects_binary_outputs(wants, outputs, wanted):
    request = InferRequest("m", outputs=outputs, wants_binary=wants)
    assert binary_names(request, ["y", "z"]) == wanted


# --- data alone ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "found"), [((2, 3), (2, 3)), ((1, -1), (1, 6)), ((-1, 3), (2, 3)), ((-1,), (6,))]
)
def test_a_raw_body_is_the_only_input(shape, found):
    array = np.arange(6, dtype=np.int16)
    request = read_request(array.tobytes(), 0, raw_inputs=[RawInput("x", "INT16", shape)])
    assert request.inputs["x"].shape == found
    assert request.inputs["x"].ravel().tolist() == array.tolist()
    assert binary_names(request, ["y"]) == {"y"}


def test_data_alone_of_bytes_are_one_element():
    request = read_request(b"\xffany", 0, raw_inputs=[RawInput("x", "BYTES", (1, -1))])
    assert request.inputs["x"].tolist() == [[b"\xffany"]]


MANY_SIZES = "raw input 'x' can not be deduced because there are more than one variable-sized dim"
NO_ELEMENT = "For BYTE datatype raw input 'x', the model must have input shape [1]"


@pytest.mark.parametrize(
    ("raw_input", "text"),
    [
        (RawInput("x", "INT16", (2,)), "Expected 4, got 5"),
        (RawInput("x", "INT16", (-1,)), "Expected 4, got 5"),
        (RawInput("x", "INT16", (-1, 0)), "Expected 0, got 5"),
        (RawInput("x", "INT16", (-1, -1)), MANY_SIZES),
        (RawInput("x", "BYTES", (2,)), NO_ELEMENT),
        (RawInput("x", "INT4", (2,)), "'INT4' is not one of"),
    ],
)
def test_data_alone_that_do_not_fit_are_refused(raw_input, text):
    with pytest.raises(PackageError) as caught:
        read_request(b"12345", 0, raw_inputs=[raw_input])
    assert text in str(caught.value)


def test_a_raw_body_is_refused_for_models_without_exactly_one_input():
    with pytest.raises(PackageError, match="send JSON"):
        read_request(b"12345", 0)
    two = [RawInput(name, "INT8", (5,)) for name in "ab"]
    text = r"must only have 1 input \(found 1\) to be deduced but got 2 inputs in 'm' model conf"
    with pytest.raises(PackageError, match=text):
        read_request(b"12345", 0, model_name="m", raw_inputs=two)


# --- requests that are wrong --------------------------------------------------------------------


def tensor(**changes: Any) -> dict[str, Any]:
    entry = {"name": "x", "shape": [2], "datatype": "INT32", "data": [1, 2], **changes}
    return {key: value for key, value in entry.items() if value is not ...}


WRONG_TENSORS = [
    (5, "inputs[0] must be a JSON object, not 5"),
    (tensor(name=...), "inputs[0] has no 'name'"),
    (tensor(name=None), "'name' of inputs[0] must be a string, not null"),
    (
        tensor(datatype=...),
        "input 'x': Unable to parse 'datatype': attempt to access non-existing object member",
    ),
    (tensor(datatype="INT4"), "input 'x': datatype 'INT4' is not one of BOOL"),
    (tensor(shape=...), "it has no 'shape'"),
    (tensor(shape=2), "'shape' of it must be a list, not 2"),
    (tensor(shape=[2.0]), "'shape' must have whole numbers"),
    (tensor(shape=[True, 2]), "'shape' must have whole numbers"),
    (tensor(shape=[-2]), "shape [-2] has a negative dimension"),
    (tensor(shape=[1] * 99), "99 dimensions are more than"),
    (tensor(shape=[0, 2**62, 2**62], data=[]), "no array has the shape"),
    (tensor(shape=[2**40, 0], data=[]), "rows without elements"),
    (
        tensor(shape=[2**40, 2**40]),
        "invalid shape for input 'x': shape [1099511627776,1099511627776] causes total element "
        "count to exceed maximum size of 9223372036854775807",
    ),
    (
        tensor(shape=[2**62], datatype="FP32"),
        "byte size overflow for input 'x': element count (4611686018427387904) * data type size "
        "(4) exceeds maximum allowed size (9223372036854775807)",
    ),
    (tensor(shape=[3]), "INT32 of shape [3] has 3 elements, but 'data' holds 2"),
    (tensor(data=...), "But no field is set: it has no 'data'"),
    (tensor(data="12"), "'data' of it must be a list, not \"12\""),
    (tensor(data=[[1], 2]), "'data' has lists and elements side by side"),
    (tensor(data=[[1], [2, 3]]), "'data' has lists of different lengths side by side"),
    (tensor(data=json.loads("[" * 90 + "]" * 90)), "lists in more than"),
    (tensor(data=[1, 2.5]), "INT32 takes whole numbers, but element 1 of 'data' is 2.5"),
    (tensor(data=[1.0, True]), "INT32 takes whole numbers, but element 1 of 'data' is true"),
    (tensor(data=[-(2**63) - 1, 2], datatype="INT64"), "INT64 takes whole numbers, but element 0"),
    (tensor(data=[1.0, math.inf], datatype="INT64"), "INT64 takes whole numbers, but element 1"),
    (tensor(data=[128.0, 2], datatype="INT8"), "'data' holds 128, which no INT8 can be"),
    (tensor(data=[1, True]), "INT32 takes whole numbers, but element 1 of 'data' is true"),
    (tensor(data=[1, None]), "element 1 of 'data' is null"),
    (tensor(data=[1, {}]), "element 1 of 'data' is an object"),
    (tensor(data=[1, 2**31]), "'data' holds 2147483648, which no INT32 can be"),
    (tensor(data=[-1, 2], datatype="UINT64"), "'data' holds -1, which no UINT64 can be"),
    (tensor(data=[2**63, 2], datatype="INT64"), "which no INT64 can be"),
    (tensor(data=[2**64, 2], datatype="UINT64"), "UINT64 takes whole numbers, but element 0"),
    (tensor(data=[1e39, 2], datatype="FP32"), "'data' holds 1e+39, which no FP32 can be"),
    (tensor(data=["1", 2], datatype="FP64"), "FP64 takes numbers, but element 0"),
    (tensor(data=[1, 0], datatype="BOOL"), "BOOL takes true or false, but element 0"),
    (tensor(data=["a", 5], datatype="BYTES"), "BYTES takes strings, but element 1"),
    (tensor(data=[1, "y" * 1000]), 'is "' + "y" * 40 + '..."'),
    (tensor(datatype="FP16"), "FP16 has no JSON form: send it as binary data"),
    (tensor(parameters=[]), "'parameters' of input 'x' must be a JSON object"),
    (
        tensor(parameters={"p": None}),
        "parameter 'p' has invalid type. It should be either 'int', 'bool', or 'string'.",
    ),
    (tensor(parameters={"binary_data_size": 8}), "it has both 'data' and 'binary_data_size'"),
    (tensor(parameters={"binary_data_size": -8}, data=...), "must be a number of bytes, not -8"),
    (tensor(parameters={"binary_data_size": True}, data=...), "must be a number of bytes"),
    (tensor(parameters={"binary_data_size": 8}, data=...), "no Inference-Header-Content-Length"),
    (
        tensor(parameters={"shared_memory_region": "r"}),
        "But set 'data' 'shared_memory_region'",
    ),
]


@pytest.mark.parametrize(("entry", "text"), WRONG_TENSORS)
def test_a_wrong_tensor_is_refused_by_name(entry, text):
    with pytest.raises(PackageError) as caught:
        read_request(json.dumps({"inputs": [entry]}).encode())
    assert text in str(caught.value)


def test_an_error_names_its_input_once():
    entry = tensor(parameters={"shared_memory_region": "r"})
    with pytest.raises(PackageError) as caught:
        read_request(json.dumps({"inputs": [entry]}).encode())
    assert str(caught.value).count("input 'x'") == 1


def test_whole_numbers_may_be_written_as_floats():
    entry = tensor(data=[1.0, 2, -3e2, 2.0**53], shape=[4], datatype="INT64")
    result = read_request(json.dumps({"inputs": [entry]}).encode()).inputs["x"]
    assert result.dtype == np.int64
    assert result.tolist() == [1, 2, -300, 2**53]


@pytest.mark.parametrize("came", [4, 12])
def test_binary_data_of_the_wrong_size_are_refused_with_tritons_message(came):
    entry = tensor(shape=[2], data=..., parameters={"binary_data_size": came})
    head = json.dumps({"inputs": [entry]}).encode()
    words = f"] input byte size mismatch for input 'x' for model 'm'. Expected 8, got {came}"
    with pytest.raises(PackageError) as caught:
        read_request(head + bytes(came), len(head), model_name="m")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("elements", "words"),
    [
        (1, "expected 2 string elements for inference input 'x' for model 'm', got 1"),
        (
            3,
            "unexpected number of string elements 3 for inference input 'x' for model 'm', expecti",
        ),
    ],
)
def test_text_of_a_wrong_number_of_elements_is_refused_with_tritons_message(elements, words):
    raw = b"\x01\x00\x00\x00a" * elements
    parameters = {"binary_data_size": len(raw)}
    entry = tensor(datatype="BYTES", shape=[2], data=..., parameters=parameters)
    head = json.dumps({"inputs": [entry], "id": "7"}).encode()
    with pytest.raises(PackageError) as caught:
        read_request(head + raw, len(head), model_name="m")
    assert str(caught.value).startswith(f"[request id: 7] {words}")


def test_a_raw_body_of_the_wrong_size_is_refused_with_tritons_message():
    with pytest.raises(PackageError) as caught:
        read_request(bytes(6), 0, model_name="m", raw_inputs=[RawInput("x", "INT32", (4,))])
    words = "input byte size mismatch for input 'x' for model 'm'. Expected 16, got 6"
    assert str(caught.value).startswith(f"[request id: <id_unknown>] {words}")


def test_an_output_requested_twice_is_refused():
    body = {"inputs": [tensor()], "outputs": [{"name": "y"}, {"name": "z"}, {"name": "y"}]}
    with pytest.raises(PackageError, match="id_unknown>] output 'y' already exists in request"):
        read_request(json.dumps(body).encode())


WRONG_REQUESTS = [
    (b"", "the request is not valid JSON"),
    (b'{"inputs":[}', "the request is not valid JSON"),
    (b'{"inputs":[NaN}', "the request is not valid JSON"),
    (b'{"inputs":' + b"[" * 5000 + b"NaN", "the request is not valid JSON"),
    (b'{"id":"\\ud800","inputs":[], "n":NaN}', "the request is not valid JSON"),
    (b'{"inputs":[], "n":[NaN,1' + b"0" * 100 + b"]}", "the request is not valid JSON"),
    (b"\xff", "the request is not valid JSON"),
    (b"[" * 10**6, "the request is not valid JSON"),
    (b"[]", "the request must be a JSON object, not a list"),
    (b"{}", "the request has no 'inputs'"),
    (b'{"inputs":{}}', "'inputs' of the request must be a list, not an object"),
    (b'{"inputs":[],"id":"%b"}' % (b"7" * 65537), "'id' of the request has more than 65536 bytes"),
    (b'{"inputs":[],"id":5}', "'id' of the request must be a string, not 5"),
    (b'{"inputs":[],"parameters":{"binary_data_output":1}}', "must be true or false, not 1"),
    (b'{"inputs":[],"outputs":{}}', "'outputs' of the request must be a list"),
    (b'{"inputs":[],"outputs":[5]}', "outputs[0] must be a JSON object"),
    (b'{"inputs":[],"outputs":[{}]}', "outputs[0] has no 'name'"),
    (
        b'{"inputs":[],"outputs":[{"name":"y","parameters":{"binary_data":"yes"}}]}',
        "parameter 'binary_data' of outputs[0] must be true or false, not \"yes\"",
    ),
    (
        b'{"inputs":[],"outputs":[{"name":"y","parameters":{"shared_memory_region":"r",'
        b'"classification":1}}]}',
        "output can't set both 'shared_memory_region' and 'classification'",
    ),
]


@pytest.mark.parametrize(("body", "text"), WRONG_REQUESTS)
def test_a_wrong_request_is_refused_with_the_place(body, text):
    with pytest.raises(PackageError) as caught:
        read_request(body)
    assert text in str(caught.value)


def test_two_inputs_with_one_name_are_refused():
    body = json.dumps({"inputs": [tensor(), tensor()]}).encode()
    with pytest.raises(PackageError, match="id_unknown>] input 'x' already exists in request"):
        read_request(body)


def test_a_duplicate_name_among_many_is_found_in_linear_time():
    inputs = [tensor(name=f"x{number % 10_000}") for number in range(10_001)]
    with pytest.raises(PackageError, match="input 'x0' already exists in request"):
        read_request(json.dumps({"inputs": [*inputs[1:], inputs[0]]}).encode())


def test_no_size_that_a_caller_states_is_trusted():
    entry = tensor(shape=[2**61], datatype="INT64", data=...)
    entry["parameters"] = {"binary_data_size": 2**64 - 1}
    text = json.dumps({"inputs": [entry]}).encode()
    with pytest.raises(PackageError, match="but 3 bytes are left of the body"):
        read_request(text + b"abc", len(text))


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (10**9, "inference header size should be in range (0, 102), got: 1000000000"),
        (-1, "inference header size should be in range (0, 102), got: -1"),
        (5, "the request is not valid JSON"),
        (None, "the request is not valid JSON"),
    ],
)
def test_a_wrong_header_length_is_refused(length, text):
    body, _ = posted({"x": (np.ones(2, np.int8), "binary")})
    with pytest.raises(PackageError) as caught:
        read_request(body, length)
    assert text in str(caught.value)


def test_bytes_that_no_input_takes_are_refused():
    body, length = posted({"x": (np.ones(2, np.int8), "binary")})
    with pytest.raises(PackageError, match=r"^unexpected additional input data for model ''$"):
        read_request(body + b"!", length)


def test_binary_data_that_end_too_early_are_refused():
    body, length = posted({"x": (np.ones(2, np.int8), "binary")})
    with pytest.raises(PackageError, match="'binary_data_size' is 2, but 1 bytes are left"):
        read_request(body[:-1], length)


def test_an_input_without_elements_needs_no_data():
    entry = tensor(shape=[0, 3], data=...)
    body = json.dumps({"inputs": [entry]}).encode()
    assert read_request(body).inputs["x"].shape == (0, 3)


# --- answers that cannot be -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "error", "text"),
    [
        (np.ones(1, np.float16), PackageError, "output 'y': FP16 has no JSON form: ask for it"),
        (np.array([b"\xff"], object), PackageError, "output 'y': it has bytes that are no UTF-8"),
        (np.array([5], object), PayloadTypeError, "output 'y': an element of BYTES is str or"),
        (np.ones(1, np.complex64), PayloadTypeError, "output 'y': dtype complex64 has no"),
        (np.array(["\ud800"], object), PayloadTypeError, "the response has no JSON form"),
    ],
)
def test_an_output_that_has_no_json_form_is_an_error(array, error, text):
    with pytest.raises(error) as caught:
        write_response(InferResponse("m", outputs={"y": array}))
    assert text in str(caught.value)


# --- anything at all --------------------------------------------------------------------------


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
TENSOR_LIKE = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["x", "y"]) | JSON_VALUES,
        "datatype": st.sampled_from(list(DATATYPES)) | JSON_VALUES,
        "shape": st.lists(st.integers(-1, 3), max_size=3) | JSON_VALUES,
        "data": JSON_VALUES,
        "parameters": st.dictionaries(
            st.sampled_from(["binary_data_size", "binary_data", "classification", "p"]),
            st.integers(-1, 9) | JSON_VALUES,
        )
        | JSON_VALUES,
    },
)
REQUEST_LIKE = st.fixed_dictionaries(
    {},
    optional={
        "id": st.text(max_size=3) | JSON_VALUES,
        "inputs": st.lists(TENSOR_LIKE, max_size=3) | JSON_VALUES,
        "outputs": st.lists(TENSOR_LIKE, max_size=3) | JSON_VALUES,
        "parameters": JSON_VALUES,
    },
)


@given(REQUEST_LIKE, st.binary(max_size=20), st.none() | st.integers(-2, 400), st.booleans())
@example({"inputs": []}, b"", None, True)
def test_any_json_is_parsed_or_refused(fields, tail, length, is_right):
    text = json.dumps(fields).encode()
    try:
        request = read_request(text + tail, len(text) if is_right else length)
    except PackageError as error:
        str(error).encode()  # it goes into an answer
    else:
        orjson.dumps([request.id, request.parameters, list(request.inputs)])


@given(st.binary(max_size=60), st.none() | st.integers(0, 60))
def test_any_bytes_are_parsed_or_refused(body, length):
    try:
        read_request(body, length, raw_inputs=[RawInput("x", "BYTES", (1,))])
    except PackageError as error:
        str(error).encode()


@given(st.data())
def test_a_damaged_request_is_read_or_refused(data):
    body, length = posted(
        {"x": (np.ones((1, 2), np.int32), "nested"), "y": (np.ones(2, np.float32), "binary")}
    )
    at = data.draw(st.integers(0, len(body) - 1))
    damaged = body[:at] + data.draw(st.binary(max_size=3)) + body[at + 1 :]
    try:
        request = read_request(damaged, length)
    except PackageError:
        return
    assert all(array.size <= len(damaged) for array in request.inputs.values())


def test_binary_data_output_is_not_a_parameter_of_the_model():
    body = b'{"inputs":[],"parameters":{"binary_data_output":true,"mine":1}}'
    request = read_request(body)
    assert (request.parameters, request.wants_binary) == ({"mine": 1}, True)
