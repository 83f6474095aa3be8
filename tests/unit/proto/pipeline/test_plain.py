"""Plain requests and answers say what those of protobuf say, and come out as the same bytes."""

from __future__ import annotations

import json
import random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data import ChannelData
from pipeline.errors import PackageError
from pipeline.op import Op, RequestOp, ResponseOp
from pipeline.proto.pipeline.json import request_from_json, response_to_json
from pipeline.proto.pipeline.plain import (
    PlainRequest,
    PlainResponse,
    pack_plain,
    plain_of,
    plain_request_from_json,
)
from pipeline.proto.pipeline_service_pb2 import Request, Response, Tensor

_PIECES = [
    b"{", b"}", b"[", b"]", b",", b":", b'"key"', b'"value"', b'"logid"', b'"name"', b'"clientip"',
    b'"method"', b'"tensors"', b'"other"', b'"a"', b"null", b"true", b"1", b"-0", b"1.0", b"1e3",
    b"1e999", b"01", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808",
    b"-9223372036854775809", b"18446744073709551616", b'"\xc3\xa9"', b'"\xff"', b'"\\ud800"',
    b'"\xed\xa0\x80"', b'"\\ud83d\\ude00"', b'"\\u0000"', b'"\x7f"', b'"\x01"', b" ", b"\n", b"NaN",
    b"\xef\xbb\xbf", b'"\\u006bey"', b'"1"', b"\x0b",
]  # fmt: skip
_WHOLE = [
    b'"key":["a"]', b'"value":["b"]', b'"key":[]', b'"key":["a","b"]', b'"value":["\xe8\xaf\x8d"]',
    b'"logid":7', b'"logid":"7"', b'"logid":7.0', b'"logid":true', b'"name":"n"', b'"name":1',
    b'"clientip":"127.0.0.1"', b'"tensors":[]', b'"tensors":[{"name":"t"}]', b'"key":[1]',
    b'"key":null', b'"value":"b"', b'"appid":{}', b'"logid":18446744073709551615',
    b'"key":["\\ud83d\\ude00"]', b'"key":["\\udc00"]',
]  # fmt: skip


def _bodies() -> list[bytes]:
    """Half of them objects of whole fields, some twice; half of them mostly no JSON."""
    draw = random.Random(7)
    whole = [b"{%b}" % b",".join(draw.choices(_WHOLE, k=draw.randrange(5))) for _ in range(3000)]
    broken = [b"".join(draw.choices(_PIECES, k=draw.randrange(8))) for _ in range(3000)]
    cut = [body[: draw.randrange(len(body) + 1)] for body in whole[:500]]
    return [b"", *whole, *broken, *cut]


def _outcome(read, body: bytes):
    try:
        request = read(body, "service", "method")
    except PackageError as error:
        return str(error)
    pairs = [*request.key], [*request.value]
    others = request.name, request.method, request.logid, request.clientip, len(request.tensors)
    return (*pairs, *others, type(request.logid))


def test_plain_and_protobuf_parsers_give_equal_results_and_errors():
    plain = 0
    for body in _bodies():
        assert _outcome(plain_request_from_json, body) == _outcome(request_from_json, body), body
        try:
            plain += type(plain_request_from_json(body, "s", "m")) is PlainRequest
        except PackageError:
            continue
    assert plain > 500, "the usual ones do not become protobuf"


@pytest.mark.parametrize(
    "body",
    [b'{"logid":%b}' % (b"[" * 9000 + b"]" * 9000), b'{"logid":' * 6000 + b"1" + b"}" * 6000],
)
def test_a_body_that_is_too_deep_is_refused_with_the_same_message(body):
    assert "depth" in _outcome(plain_request_from_json, body)
    assert _outcome(plain_request_from_json, body) == _outcome(request_from_json, body)


def test_a_usual_request_is_plain_and_our_request_op_unpacks_it():
    body = b'{"key": ["x", "y"], "value": ["1", "\xe8\xaf\x8d"], "logid": 12}'
    request = plain_request_from_json(body, "service", "method")
    assert type(request) is PlainRequest
    assert (request.name, request.method) == ("service", "method")
    unpacked = RequestOp().unpack_request_package(request)
    assert unpacked == ({"x": "1", "y": "词"}, 12, None, "")


@pytest.mark.parametrize("body", [b'{"key": ["x"]}', b'{"key": ["x", "y"], "value": ["1"]}'])
def test_keys_without_values_are_refused_with_the_same_message(body):
    texts = []
    for read in (plain_request_from_json, request_from_json):
        with pytest.raises(PackageError) as raised:
            RequestOp().unpack_request_package(read(body, "", ""))
        texts.append(str(raised.value))
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("body", "pairs"),
    [
        (b'{"value": ["x"]}', {}),
        (b'{"key": ["x"], "value": ["1", "2"]}', {"x": "1"}),
        (b'{"key": ["x"], "value": [null]}', {"x": ""}),
    ],
)
def test_values_without_a_key_are_ignored_and_null_is_empty(body, pairs):
    for read in (plain_request_from_json, request_from_json):
        request = read(body, "", "")
        assert RequestOp().unpack_request_package(request)[0] == pairs
        if isinstance(request, PlainRequest):
            assert request.pairs() == pairs


class _Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"a": "b"},
        {"a": "词", "é": '"\\\n\x00\x7f'},
        {1: "one", None: ""},
        {"a": np.arange(3.0), "b": ["x", "y"]},
        {"a": np.array([[1.5, np.nan], [np.inf, -0.0]], np.float32)},
        {"a": np.array(["x"])},
        {"a": []},
    ],
)
def test_an_answer_of_texts_or_arrays_is_the_same_bytes(payload):
    packed = pack_plain(payload)
    assert packed is not None
    response = ResponseOp(Op("last")).pack_response_package(ChannelData(1, payload=payload))
    assert packed.to_json() == response_to_json(response)
    assert packed.to_message() == response.SerializeToString()
    assert json.loads(packed.to_json())["key"] == [str(key) for key in payload]


@pytest.mark.parametrize(
    "payload",
    [
        {"a": "x", "b": 5},
        {"a": "x", "b": np.zeros(1)},
        {"a": b"x"},
        {"a": _Text("x")},
        {"a": "\ud800"},
        {"\udc00": "x"},
    ],
)
def test_a_payload_without_a_plain_form_is_left_to_protobuf(payload):
    assert pack_plain(payload) is None


_texts = st.text(max_size=5) | st.text(min_size=100, max_size=400) | st.just("x" * 20_000)
_requests = st.builds(
    Request,
    key=st.lists(_texts, max_size=40),
    value=st.lists(_texts, max_size=40),
    name=_texts,
    method=_texts,
    clientip=_texts,
    logid=st.just(0) | st.integers(-(2**63), 2**63 - 1),
    tensors=st.just([]) | st.just([Tensor(name="t")]),
)
_few = st.builds(Request, key=st.lists(_texts, max_size=3), value=st.lists(_texts, max_size=3))


def _fields(request):
    pairs = [*request.key], [*request.value]
    return (*pairs, request.name, request.method, request.clientip, request.logid)


@given(_requests)
def test_a_request_of_pairs_becomes_plain(request):
    plain = plain_of(request)
    assert _fields(plain) == _fields(request)
    assert isinstance(plain, PlainRequest) != bool(request.tensors)


@given(st.lists(_texts, max_size=5), st.lists(_texts, max_size=5))
def test_a_plain_answer_is_the_same_message(keys, values):
    wanted = Response(key=keys, value=values).SerializeToString()
    assert PlainResponse(keys, values).to_message() == wanted


class _Words(msgspec.Struct):
    words: list[str]


def test_a_tensor_of_one_text_is_a_str_unless_a_schema_declares_a_list():
    tensor = Tensor(name="words", elem_type=12, str_data=["abc"], shape=[1])
    request = Request(tensors=[tensor])
    assert RequestOp().unpack_request_package(request)[0] == {"words": "abc"}
    assert RequestOp(_Words).unpack_request_package(request)[0] == {"words": ["abc"]}
