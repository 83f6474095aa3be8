"""Requests and responses as JSON: what json_format says, but strictly, and faster."""

from __future__ import annotations

import base64
import json
import math
import re
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import PackageError
from pipeline.proto.codec import numpy_to_tensor
from pipeline.proto.pipeline.json import (
    large_request_from_json,
    request_from_json,
    response_to_json,
)
from pipeline.proto.pipeline_service_pb2 import Request, Response, Tensor
from pipeline.proto.slices import Limits

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
def test_a_written_request_is_parsed_unchanged(request_: Request, original: bool, defaults: bool):
    body = json_format.MessageToJson(
        request_,
        preserving_proto_field_name=original,
        always_print_fields_with_no_presence=defaults,
    ).encode()
    read = request_from_json(body, request_.name, request_.method)
    assert read.SerializeToString() == request_.SerializeToString()


# Values that a field may be given, right and wrong.
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


_TEXTS = ("key", "value", "str_data", "strData")  # null among these is "", as there


# Neither text nor lists in the place of a tensor: json_format takes "" and [] for an empty one.
TENSOR_OBJECTS = st.dictionaries(st.sampled_from(spellings(Tensor)), VALUES, max_size=3)
REQUEST_OBJECTS = st.dictionaries(
    st.sampled_from([name for name in spellings(Request) if name != "tensors"]), VALUES, max_size=3
)


@settings(deadline=None, max_examples=500)
@given(REQUEST_OBJECTS, st.lists(TENSOR_OBJECTS | st.none() | st.integers(), max_size=2))
def test_requests_are_parsed_as_json_format_parses_them(
    fields: dict[str, Any], tensors: list[dict[str, Any]]
):
    fields["tensors"] = tensors
    try:
        ours = request_from_json(json.dumps(fields).encode(), "name", "method")
    except PackageError:
        return
    for known in (fields, *(tensor for tensor in tensors if isinstance(tensor, dict))):
        known |= {
            name: ["" if item is None else item for item in value]
            for name, value in known.items()
            if name in _TEXTS and isinstance(value, list)
        }
    theirs = json_format.ParseDict(fields, Request(), ignore_unknown_fields=True)
    theirs.name, theirs.method = "name", "method"
    assert ours.SerializeToString() == theirs.SerializeToString()


def test_the_url_overrides_the_body():
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


@pytest.mark.parametrize("name", ["[a.b]", "[", "", "Key", "unknown"])
def test_a_field_of_any_unknown_name_is_ignored(name: str):
    body = json.dumps({name: {"deep": [1]}, "tensors": [{name: [None]}]}).encode()
    assert request_from_json(body, "a", "b") == Request(name="a", method="b", tensors=[Tensor()])


@pytest.mark.parametrize("name", ["[a.b]", "", "Key", "`", "] `"])
def test_fields_of_ones_own_alone_are_refused_at_any_size(name: str):
    body = json.dumps({"logid": 1, name: "x", "other": 1}).encode()
    with pytest.raises(PackageError, match=re.escape(f'the field "{name}" and none of key')):
        request_from_json(body, "a", "b")
    with pytest.raises(PackageError, match=re.escape(f'the field "{name}" and none of key')):
        large_request_from_json([body], "a", "b", Limits(10**6, 10**6))


def read(field: str, sent: str) -> Any:
    """What a field of a tensor is when it is sent as `sent`."""
    (tensor,) = request_from_json(
        f'{{"tensors": [{{"{field}": {sent}}}]}}'.encode(), "", ""
    ).tensors
    value = getattr(tensor, field)
    return value if isinstance(value, int | str | bytes) else list(value)


INF = math.inf


@pytest.mark.parametrize(
    ("field", "sent", "value"),
    [
        ("int64_data", '[1, "2", 3.0, 1e3, "1e3", "1.0", 100e-2]', [1, 2, 3, 1000, 1000, 1, 1]),
        ("int64_data", "[-9223372036854775808]", [-(2**63)]),
        ("int64_data", '["9223372036854775807"]', [2**63 - 1]),
        ("int64_data", "[9007199254740991.0, 9007199254740993]", [2**53 - 1, 2**53 + 1]),
        ("int_data", '[-2147483648, "2147483647", -0, "-0"]', [-(2**31), 2**31 - 1, 0, 0]),
        ("uint32_data", '[4294967295, "-0.0"]', [2**32 - 1, 0]),
        ("shape", "[1.0, -1]", [1, -1]),
        ("elem_type", '"5"', 5),
        ("elem_type", "5.0", 5),
        ("float_data", '["NaN", "Infinity", "-Infinity", 1]', ["nan", INF, -INF, 1.0]),
        ("float_data", '["1.5", "-0", 3.4028235e38]', [1.5, -0.0, float(np.float32(FLOAT32_MAX))]),
        ("float_data", "[1e-46, 1e-400]", [0.0, 0.0]),
        ("float64_data", '["1e308", 18446744073709551616]', [1e308, 2.0**64]),
        ("complex64_data", '["1", -0.0]', [1.0, -0.0]),
        ("bool_data", "[true, false]", [True, False]),
        ("str_data", '["", "\\u0000", "é"]', ["", "\0", "é"]),
        ("byte_data", '""', b""),
        ("byte_data", '"QQ=="', b"A"),
        ("byte_data", '"QQ"', b"A"),
        ("byte_data", '"QR=="', b"A"),
        ("byte_data", '"+/+/"', b"\xfb\xff\xbf"),
        ("byte_data", '"-_-_"', b"\xfb\xff\xbf"),
        ("byte_data", '"-_8"', b"\xfb\xff"),
        ("byte_data", '"QUJD\\r\\nREVG\\n\\n"', b"ABCDEF"),
    ],
)
def test_forms_that_proto3_json_allows_are_parsed(field: str, sent: str, value: Any):
    assert str(read(field, sent)) == str(value).replace("'nan'", "nan")


OF_64_BITS = "an integer of 64 bits, from 2\\^53 on without point and exponent"


@pytest.mark.parametrize(
    ("field", "sent", "told"),
    [
        *(
            ("int64_data", f"[{sent}]", rf"int64_data\[0\] must be {OF_64_BITS}, not ")
            for sent in (
                "-9223372036854775809", "9223372036854775808", "9007199254740992.0", "1e19",
                "9007199254740993.0", '"9007199254740993.0"', '"-9223372036854775809"', "1.5",
                "1e-1", "true", "null", '""', '" 1"', '"1 "', '"1\\n"', '"+1"', '"01"', '"1_0"',
                '"１"', '"0x1"', '"1."', '"1e"', '"NaN"', '"[1]"', '"null"', '"\\"1\\""', "[1]",
            )
        ),
        ("int_data", "[1, 2147483648]", r"int_data\[1\] must be an integer of 32 bits, not 2"),
        ("int_data", '["a"]', r'int_data\[0\] must be an integer of 32 bits, not "a"'),
        ("uint32_data", "[-1]", r"uint32_data\[0\] must be an integer of 32 bits without a sign"),
        ("shape", "[1, 1.5]", r"shape\[1\] must be an integer of 32 bits, not 1.5"),
        ("elem_type", "true", "elem_type must be an integer of 32 bits, not true"),
        *(
            ("float_data", f"[1, {sent}]", r"float_data\[1\] must be a number in the range of fl")
            for sent in (
                "1e39", "-1e39", "3.4028235677973367e38", '"1e39"', "true", "null", "[1.5]", "{}",
                '"inf"', '"-inf"', '"nan"', '"+Infinity"', '"infinity"', '" 1.5"', '"1_0.5"',
                '".5"', '"1."', '"0x1p3"', '"1,5"', '""', '"true"', '"[]"', '"1e309"',
            )
        ),
        ("float64_data", '["1e309"]', r'float64_data\[0\] must be a number or "NaN", '),
        ("float64_data", "1.5", "float64_data must be an array, not 1.5"),
        ("complex64_data", "[1e39]", r"complex64_data\[0\]"),
        ("bool_data", "[true, 1]", r"bool_data\[1\] must be true or false, not 1"),
        ("bool_data", '["true"]', r"bool_data\[0\] must be true or false"),
        ("str_data", '["a", 1]', r"str_data\[1\] must be a string, not 1"),
        ("name", "5", "name must be a string, not 5"),
        *(
            ("byte_data", sent, "byte_data must be a string of base64, not ")
            for sent in (
                '"Q"', '"QQ="', '"QQ==="', '"Q==="', '"QUJD="', '"QUJD===="', '"="', '"===="',
                '"QQ==QQ=="', '"Q=Q="', '"Q Q="', '"A!B@"', '"é"', '"+_+_"', '"-/-/"', "5", "[]",
            )
        ),
    ],
)  # fmt: skip
def test_an_ambiguous_value_is_refused(field: str, sent: str, told: str):
    with pytest.raises(PackageError, match=rf"tensors\[0\]\.{told}"):
        read(field, sent)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b'{"key": ["x"],}', "not JSON"),
        (b'{"unknown": 1e999}', "not JSON"),
        (b"[]", "object, not an array"),
        (b"null", "object, not null"),
        (b"5", "object, not 5"),
        (b'{"key": "x"}', 'key must be an array, not "x"'),
        (b'{"key": [1]}', r"key\[0\] must be a string, not 1"),
        (b'{"value": ["a", {}]}', r"value\[1\] must be a string, not an object"),
        (b'{"logid": "x"}', f'logid must be {OF_64_BITS}, not "x"'),
        (b'{"logid": true}', "logid"),
        (b'{"logid": 9223372036854775808}', "logid"),
        (b'{"logid": -9223372036854775809}', "logid"),
        (b'{"name": 5}', "name must be a string, not 5"),
        (b'{"tensors": {}}', "tensors must be an array, not an object"),
        (b'{"tensors": [[]]}', r"tensors\[0\] must be an object, not an array"),
        (b'{"tensors": [{}, null]}', r"tensors\[1\] must be an object, not null"),
        (b'{"tensors": [{}, {"floatData": ["x"]}]}', r"tensors\[1\]\.float_data\[0\] must be"),
        (b'{"key": ' + b"[" * 1000 + b"]" * 1000 + b"}", r"key\[0\] must be a string"),
    ],
)
def test_a_malformed_request_is_refused_with_its_position(body: bytes, told: str):
    with pytest.raises(PackageError, match=told):
        request_from_json(body, "a", "b")


def test_a_refusal_does_not_repeat_a_whole_field():
    with pytest.raises(PackageError) as caught:
        request_from_json(json.dumps({"key": "x" * 100_000}).encode(), "a", "b")
    assert len(str(caught.value)) < 200


def test_of_a_field_that_is_there_twice_the_last_one_counts():
    body = b"""{"key": ["a"], "key": ["b"], "logid": 1, "logid": null, "tensors": [
        {"elem_type": 1, "floatData": ["2"], "float_data": [3], "elemType": 5, "shape": [1],
         "strData": ["a"], "str_data": ["b"], "boolData": [true], "bool_data": null}]}"""
    tensor = Tensor(elem_type=5, float_data=[3], shape=[1], str_data=["b"])
    assert request_from_json(body, "a", "b") == Request(
        name="a", method="b", key=["b"], tensors=[tensor]
    )


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


# json_format leaves "+" and "/" to a function of Python that warns of them from 3.15 on.
@pytest.mark.filterwarnings("ignore:invalid character .* URL-safe Base64:FutureWarning")
@settings(deadline=None)
@given(RESPONSES)
def test_a_written_response_is_parsed_unchanged(response: Response):
    read = json_format.Parse(response_to_json(response), Response())
    assert read.SerializeToString() == response.SerializeToString()


def test_the_fields_of_a_response_have_the_predecessors_order():
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
