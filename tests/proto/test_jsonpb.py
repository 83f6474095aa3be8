"""Requests and responses as JSON: what json_format says, said faster."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import PackageError
from pipeline.proto.codec import numpy_to_tensor
from pipeline.proto.jsonpb import request_from_json, response_to_json
from pipeline.proto.pipeline_service_pb2 import Request, Response, Tensor

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
# JSON has one NaN. json_format refuses the shortest digits of the largest float32 as too large.
FLOAT32_MAX = float(np.finfo(np.float32).max)
FLOATS = st.lists(
    st.floats(width=32, allow_nan=False).filter(lambda number: abs(number) != FLOAT32_MAX)
    | st.just(math.nan),
    max_size=5,
)
DOUBLES = st.lists(st.floats(allow_nan=False) | st.just(math.nan), max_size=5)
TEXTS = st.lists(st.text(max_size=5), max_size=3)

TENSORS = st.builds(
    Tensor,
    int64_data=st.lists(INT64, max_size=5),
    float_data=FLOATS,
    int_data=st.lists(INT32, max_size=5),
    float64_data=DOUBLES,
    uint32_data=st.lists(st.integers(0, 2**32 - 1), max_size=5),
    bool_data=st.lists(st.booleans(), max_size=5),
    complex64_data=FLOATS,
    complex128_data=DOUBLES,
    str_data=TEXTS,
    byte_data=st.binary(max_size=8),
    elem_type=INT32,
    shape=st.lists(INT32, max_size=3),
    lod=st.lists(INT32, max_size=3),
    name=st.text(max_size=5),
)
REQUESTS = st.builds(
    Request,
    key=TEXTS,
    value=TEXTS,
    tensors=st.lists(TENSORS, max_size=2),
    name=st.text(max_size=5),
    method=st.text(max_size=5),
    logid=INT64,
    clientip=st.text(max_size=5),
)
RESPONSES = st.builds(
    Response,
    err_no=INT32,
    err_msg=st.text(max_size=5),
    key=TEXTS,
    value=TEXTS,
    tensors=st.lists(TENSORS, max_size=2),
)


# --- requests -------------------------------------------------------------------------------


@settings(deadline=None)
@given(REQUESTS, st.booleans(), st.booleans())
def test_a_request_is_read_as_it_was_written(request_: Request, original: bool, defaults: bool):
    body = json_format.MessageToJson(
        request_,
        preserving_proto_field_name=original,
        always_print_fields_with_no_presence=defaults,
    ).encode()
    read = request_from_json(body, request_.name, request_.method)
    assert read.SerializeToString() == request_.SerializeToString()


# Values that a field may be given, right and wrong: json_format's verdict is ours.
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**33), 2**33),
    st.sampled_from([2**63 - 1, 2**63, -(2**63), 1e39, -1e39, 1.0, 1e300]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        ["", "1", "-5", "1.5", "1e3", "NaN", "Infinity", "-Infinity", "nan", "AAA=", "x"]
    ),
)
VALUES = st.one_of(
    SCALARS, st.lists(SCALARS, max_size=3), st.just({}), st.just([[]]), st.just([{}])
)


def spellings(message: Any) -> list[str]:
    names = [name for field in message.DESCRIPTOR.fields for name in (field.name, field.json_name)]
    return [*dict.fromkeys(names), "unknown"]


# Neither text nor lists in the place of a tensor: json_format takes "" and [] for an empty one.
TENSOR_OBJECTS = st.dictionaries(st.sampled_from(spellings(Tensor)), VALUES, max_size=3)
REQUEST_OBJECTS = st.dictionaries(
    st.sampled_from([name for name in spellings(Request) if name != "tensors"]), VALUES, max_size=3
)


def both_verdicts(fields: Any) -> tuple[bytes | None, bytes | None]:
    """The message as json_format and as we read it; None for refused."""
    try:
        expected = json_format.ParseDict(fields, Request(), ignore_unknown_fields=True)
        expected.name, expected.method = "name", "method"
        theirs = expected.SerializeToString()
    except json_format.ParseError:
        theirs = None
    try:
        ours = request_from_json(json.dumps(fields).encode(), "name", "method").SerializeToString()
    except PackageError:
        ours = None
    return theirs, ours


@settings(deadline=None, max_examples=500)
@given(REQUEST_OBJECTS, st.lists(TENSOR_OBJECTS | st.none() | st.integers(), max_size=2))
def test_any_object_is_taken_or_refused_as_json_format_does(
    fields: dict[str, Any], tensors: list[Any]
):
    fields["tensors"] = tensors
    theirs, ours = both_verdicts(fields)
    assert ours == theirs


def test_the_url_stands_above_the_body():
    body = b'{"name": "other", "method": "other", "key": ["x"], "value": ["1"]}'
    read = request_from_json(body, "uci", "prediction")
    assert read == Request(key=["x"], value=["1"], name="uci", method="prediction")


def test_an_empty_body_is_an_empty_request():
    assert request_from_json(b"", "uci", "prediction") == Request(name="uci", method="prediction")


@pytest.mark.parametrize("logid", [b"7", b'"7"', b"7.0"])
def test_a_log_id_is_a_number_or_its_text(logid: bytes):
    read = request_from_json(b'{"logid": %b, "clientip": "10.0.0.1"}' % logid, "a", "b")
    assert (read.logid, read.clientip) == (7, "10.0.0.1")


def test_null_is_the_default_and_unknown_fields_are_ignored():
    body = b'{"key": null, "logid": null, "tensors": null, "new": {"deep": [1]}}'
    assert request_from_json(body, "a", "b") == Request(name="a", method="b")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b'{"key": ["x"],}', "not JSON"),
        (b"[]", "object, not an array"),
        (b"null", "object, not null"),
        (b"5", "object, not a number"),
        (b'{"key": "x"}', "key"),
        (b'{"key": [1]}', "key field"),
        (b'{"key": [null]}', r"key\[0\]"),
        (b'{"value": ["a", {}]}', "value field"),
        (b'{"logid": "x"}', "logid"),
        (b'{"logid": true}', "logid"),
        (b'{"logid": 9223372036854775808}', "logid"),
        (b'{"name": 5}', "name"),
        (b'{"tensors": {}}', "tensors must be an array, not an object"),
        (b'{"tensors": [[]]}', r"tensors\[0\] must be an object, not an array"),
        (b'{"tensors": [{}, null]}', r"tensors\[1\] must be an object, not null"),
        (b'{"tensors": [{}, {"shape": [1.5]}]}', r"tensors\[1\]: .*shape\[0\]"),
        (b'{"tensors": [{"float_data": [1e39]}]}', r"tensors\[0\]: .*float_data\[0\]"),
        (b'{"tensors": [{"floatData": ["x"]}]}', r"tensors\[0\]: .*float_data\[0\]"),
        (b'{"tensors": [{"byte_data": []}]}', r"tensors\[0\]: .*byte_data"),
        (b'{"tensors": [{"name": []}]}', r"tensors\[0\]: .*name"),
        (b'{"tensors": [{"byte_data": "A"}]}', r"tensors\[0\]: .*byte_data"),
        (b'{"tensors": [{"elem_type": 2147483648}]}', r"tensors\[0\]: .*elem_type"),
    ],
)
def test_what_is_malformed_is_refused_with_its_place(body: bytes, told: str):
    with pytest.raises(PackageError, match=told):
        request_from_json(body, "a", "b")


def test_a_refusal_does_not_repeat_a_whole_field():
    with pytest.raises(PackageError) as caught:
        request_from_json(json.dumps({"key": "x" * 100_000}).encode(), "a", "b")
    assert len(str(caught.value)) < 1000


def test_a_field_given_under_both_its_names_is_the_last_one():
    body = b'{"tensors": [{"elem_type": 1, "floatData": ["2"], "float_data": [3], "elemType": 5}]}'
    (tensor,) = request_from_json(body, "a", "b").tensors
    assert tensor == Tensor(elem_type=5, float_data=[3])


# --- responses ------------------------------------------------------------------------------


def as_float32(name: str, value: Any) -> Any:
    """A float32 field's numbers by value: their shortest digits can be chosen in two ways."""
    if name in ("float_data", "complex64_data"):
        return [item if isinstance(item, str) else np.float32(item) for item in value]
    return value


def comparable(fields: dict[str, Any]) -> dict[str, Any]:
    tensors = [
        {name: as_float32(name, value) for name, value in tensor.items()}
        for tensor in fields["tensors"]
    ]
    return {**fields, "tensors": tensors}


@settings(deadline=None)
@given(RESPONSES)
def test_a_response_is_written_as_json_format_writes_it(response: Response):
    expected = json_format.MessageToDict(
        response, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    assert comparable(json.loads(response_to_json(response))) == comparable(expected)


@settings(deadline=None)
@given(RESPONSES)
def test_a_response_is_read_back_as_it_was_written(response: Response):
    read = json_format.Parse(response_to_json(response), Response())
    assert read.SerializeToString() == response.SerializeToString()


def test_the_fields_of_a_response_stand_in_the_predecessors_order():
    response = Response(key=["price"], value=["[[18.901151]]"])
    assert response_to_json(response) == (
        b'{"err_no":0,"err_msg":"","key":["price"],"value":["[[18.901151]]"],"tensors":[]}'
    )


def test_a_tensor_is_written_with_all_its_fields():
    response = Response(tensors=[numpy_to_tensor("x", np.array([0.1, np.nan, -np.inf], "f4"))])
    response.tensors.append(numpy_to_tensor("y", np.array([2**53 + 1])))
    response.tensors.append(numpy_to_tensor("z", b"\xff\xfe"))
    x, y, z = json.loads(response_to_json(response))["tensors"]
    assert list(x) == [field.name for field in Tensor.DESCRIPTOR.fields]
    assert x["float_data"] == [0.1, "NaN", "-Infinity"]
    assert y["int64_data"] == ["9007199254740993"]
    assert base64.b64decode(z["byte_data"]) == b"\xff\xfe"
