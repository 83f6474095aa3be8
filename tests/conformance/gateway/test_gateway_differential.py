"""Whatever is posted, the gateway answers as the server's own HTTP door.

`DIFFERENTIAL_EXAMPLES=5000 pytest ...` looks longer.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from conformance_dialogue import EMPTY_TENSOR, ask, normal, same
from conformance_gateway import PATIENT, both_ports, gateway_before
from conformance_server import Holder, conformance_server
from google.protobuf import json_format
from hostile import mutated
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_http import Answer, Connection

from pipeline.proto.pipeline import json as jsonpb
from pipeline.proto.pipeline_service_pb2 import Request, Tensor

EXAMPLES = int(os.environ.get("DIFFERENTIAL_EXAMPLES") or 150)

look = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


class Pair:
    """The door and the gateway, each on a connection that lasts as long as it lets it."""

    def __init__(self, *ports: int) -> None:
        self._connections = {port: Connection(port) for port in ports}

    def ask(self, raw: bytes, method: str) -> list[Answer]:
        for connection in self._connections.values():
            connection.send(raw)
        answers = [connection.answer(method) for connection in self._connections.values()]
        for port, answer in zip(self._connections, answers, strict=True):
            if answer.headers.get("connection") == "close":
                self._connections[port].close()
                self._connections[port] = Connection(port)
        return answers

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


@pytest.fixture(scope="module")
def pair(gateway_binary: Path, module_logs: None) -> Iterator[Pair]:
    with (
        conformance_server(Holder()) as server,
        gateway_before(gateway_binary, both_ports(server), flags=PATIENT) as gateway,
    ):
        gateway.wait_until_ready()
        assert server.http_port is not None
        result = Pair(server.http_port, gateway.port)
        yield result
        result.close()


def assert_alike(pair: Pair, body: bytes, *headers: str, **more: str) -> Answer:
    """Both answer the same; and not with an error of their own."""
    raw = ask(body, *headers, **more)
    door, gateway = pair.ask(raw, more.get("method", "POST"))
    assert same(normal(gateway), normal(door)), (raw, door, gateway)
    assert door.status < 500, (raw, door)
    return door


# JSON ---------------------------------------------------------------------------------------

EDGES = (0, 1, 2**31, 2**32, 2**53, 2**63, 2**64)


def is_read_alike(number: str) -> bool:
    """Return whether both doors read a number alike.

    The others are in `conformance.DIFFERENT`: integers with a point or an exponent that a double
    cannot hold exactly, which the embedded door's parser takes for doubles.
    """
    is_integer = not set(number) & set(".eE")
    return is_integer or not 2**53 <= abs(float(number)) < 2**64


@st.composite
def any_numbers(draw: Any) -> str:
    """A number of JSON in one of the ways in which it can be written."""
    number = draw(st.sampled_from(EDGES)) + draw(st.integers(-2, 2))
    return draw(
        st.sampled_from([str(number), f"-{abs(number)}" if number else "0", f"{number}.0"])
        | st.integers(-(2**70), 2**70).map(str)
        | st.floats(allow_nan=False, allow_infinity=False).map(repr)
        | st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr)
        | st.tuples(st.integers(-99, 99), st.integers(-50, 50)).map(
            lambda pair: f"{pair[0]}e{pair[1]}"
        )
    )


def object_of(members: list[tuple[str, str]]) -> str:
    inside = ", ".join(f"{name}: {value}" for name, value in members)
    return f"{{{inside}}}"


def array_of(items: list[str]) -> str:
    return f"[{', '.join(items)}]"


numbers = any_numbers().filter(is_read_alike)
ODD_TEXTS = (
    "", " ", "NaN", "nan", "Infinity", "-Infinity", "inf", "1e3", "1.0", " 1", "1 ", "+1", "01",
    "0x1", "1_0", "QQ==", "QQ", "-_-_", "+/+/", "Q", "Q!", "true", "null", "\0", "\ud83d\ude00",
    "1e999", "-0", "１",
)  # fmt: skip
texts = st.sampled_from([json.dumps(text) for text in ODD_TEXTS]) | (
    st.text().map(lambda text: json.dumps(text, ensure_ascii=False))
    | st.text().map(json.dumps)
    | numbers.map(lambda number: f'"{number}"')
)
words = st.sampled_from(["true", "false", "null", "[]", "{}", "[null]", "NaN", "-", "01", ".5"])
values = numbers | texts | words
anything = st.recursive(
    values,
    lambda inner: (
        st.lists(inner, max_size=3).map(array_of)
        | st.lists(st.tuples(texts, inner), max_size=3).map(object_of)
    ),
    max_leaves=6,
)
lists = st.lists(values, max_size=4).map(array_of)


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return "".join([first, *map(str.title, rest)])


tensor_names = st.sampled_from([*EMPTY_TENSOR, *map(camel, EMPTY_TENSOR), "u"]).map(json.dumps)
request_names = st.sampled_from(["key", "value", "logid", "clientip", "name", "method", "u"])
members = st.tuples(tensor_names, lists | lists | anything)
tensors = st.lists(members, max_size=4).map(object_of)
fields = (
    st.tuples(st.just('"tensors"'), st.lists(tensors, max_size=2).map(array_of))
    | st.tuples(st.just('"tensors"'), anything)
    | st.tuples(request_names.map(json.dumps), lists | anything)
    | st.tuples(texts, anything)
)  # fmt: skip
bodies = st.lists(fields, max_size=3).map(object_of)


@look
@given(bodies)
def test_json_of_odd_values_is_answered_alike(pair, body):
    assert_alike(pair, body.encode("utf-8", "surrogatepass"))


GOOD = (
    b'{"key": ["a"], "value": ["\\u00e9 \xe6\xbc\xa2"], "logid": "7", "u": [{"a": null}, 1.5e3]}',
    json.dumps(
        {
            "tensors": [
                {
                    "name": "n", "elem_type": 1, "float_data": [1.5, "NaN", -4.25], "shape": [3, 1],
                    "int64Data": ["5", 6, 7.0], "bool_data": [True], "byte_data": "QUJD",
                }
            ]
        }
    ).encode(),
)  # fmt: skip


@look
@given(st.sampled_from(GOOD), st.integers(0, 2**32))
def test_bodies_with_wounds_are_answered_alike(pair, good, seed):
    assert_alike(pair, mutated(good, random.Random(seed)))


@look
@given(st.binary(max_size=40))
def test_noise_is_answered_alike(pair, body):
    assert_alike(pair, body)


# The rest of a body -------------------------------------------------------------------------

parts = st.sampled_from(
    [
        "conf",
        "echo",
        "told",
        "health",
        "live",
        "ready",
        "v2",
        "x",
        "",
        ".",
        "..",
        ":",
        "é",
        "\0",
        "/",
    ]
) | st.text(max_size=3)
paths = st.lists(
    st.tuples(parts, st.sampled_from(["", "/", "!*'();:@&=+$,-._~"])).map(
        lambda part: quote(part[0], safe=part[1], errors="replace")
    ),
    max_size=4,
).map(lambda quoted: "/" + "/".join(quoted))
tails = st.sampled_from(["", "?", "?a=b", "?%zz", "?/x", "#f", ";v=1"])
methods = st.sampled_from(["POST", "POST", "POST", "GET", "HEAD", "PUT", "OPTIONS", "DELETE"])


@look
@given(paths, tails, methods)
def test_targets_are_answered_alike(pair, path, tail, method):
    assert_alike(pair, b"", path=path + tail, method=method)


headers = st.tuples(
    st.sampled_from(["Content-Encoding", "Grpc-Timeout", "Content-Type", "Grpc-Metadata-A", "A"]),
    st.sampled_from(["", "gzip", "x-gzip", "deflate", "identity", "br", "20S", "99999999H", "0x1S"])
    | st.text(st.characters(max_codepoint=255, exclude_categories=["Cc"]), max_size=6),
).map(": ".join)
packings = st.sampled_from([lambda data: data, gzip.compress, zlib.compress, lambda data: data[:9]])


@look
@given(st.lists(headers, max_size=3), st.sampled_from(GOOD), st.lists(packings, max_size=2))
def test_headers_and_packed_bodies_are_answered_alike(pair, lines, body, packed):
    for pack in packed:
        body = pack(body)
    assert_alike(pair, body, *lines)


# Messages -----------------------------------------------------------------------------------


def many(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(elements, max_size=5)


# Hypothesis tries the texts of our own code too: this one has the server answer with its times.
words_of_unicode = st.text(st.characters(exclude_categories=["Cs"])).filter(
    lambda text: text != "pipeline.profile"
)
int32 = st.integers(-(2**31), 2**31 - 1)
messages = st.builds(
    Request,
    key=many(words_of_unicode),
    value=many(words_of_unicode),
    logid=st.integers(-(2**63), 2**63 - 1),
    tensors=many(
        st.builds(
            Tensor,
            int64_data=many(st.integers(-(2**63), 2**63 - 1)),
            float_data=many(st.floats(width=32)),
            int_data=many(int32),
            float64_data=many(st.floats()),
            uint32_data=many(st.integers(0, 2**32 - 1)),
            bool_data=many(st.booleans()),
            complex64_data=many(st.floats(width=32)),
            complex128_data=many(st.floats()),
            str_data=many(words_of_unicode),
            byte_data=st.binary(max_size=20),
            elem_type=int32,
            shape=many(int32),
            lod=many(int32),
            name=words_of_unicode,
        )
    ),
)


@look
@given(messages, st.booleans())
def test_messages_are_returned_equal_and_unchanged(pair, message, in_its_own_names):
    body = json_format.MessageToJson(message, preserving_proto_field_name=in_its_own_names)
    answer = assert_alike(pair, body.encode())
    assert answer.status == 200
    back = jsonpb.request_from_json(answer.body, name="", method="")
    back.logid = message.logid
    assert json_format.MessageToDict(back) == json_format.MessageToDict(message)
