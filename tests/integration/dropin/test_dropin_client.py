"""The drop-in's client over HTTP, and servers that are not there or answer oddly."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest
from raw_server import Answers, answering_all
from served import free_port

from pipeline.errors import (
    InitError,
    InputError,
    PredictorError,
    PredictorUnavailableError,
)
from pipeline.proto.general_model_pb2 import Response

MESSAGE = Response(err_no=5, err_msg="x" * 50).SerializeToString()
PROTO = b"HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\n"
PACKED = PROTO + b"Content-Encoding: gzip\r\n"
WHOLE = PROTO + b"Content-Length: %d\r\n\r\n%b" % (len(MESSAGE), MESSAGE)


@pytest.fixture
def answering() -> Iterator[Answers]:
    with answering_all() as answers:
        yield answers


def test_a_missing_server_is_an_error_of_the_http_client(http_client):
    http_client.connect(f"127.0.0.1:{free_port()}")
    with pytest.raises(PredictorUnavailableError, match="refused"):
        http_client.predict({"words": [1]})


@pytest.mark.parametrize(
    "headers",
    [
        {"x": "y\r\nevil: 1"},
        {"x": "\u20ac"},
        {"x": "\udc80"},
        {"x\r\nevil": "1"},
        {"x y": "1"},
        {"\u00e9": "1"},
        {"x": b"\r\n"},
    ],
)
def test_invalid_headers_are_refused_before_the_request(answering, http_client, headers):
    server = answering(WHOLE)
    http_client.connect(server.address)
    http_client.add_http_headers(headers)
    with pytest.raises(InputError, match="header"):
        http_client.predict({"words": [1]})
    assert server.heard == []
    for name in headers:
        del http_client.headers[name]
    http_client.add_http_headers({"x": "\u00e9", "y": 5, "z": b"a"})
    assert http_client.predict({"words": [1]}).err_no == 5
    assert b"\r\nx: \xe9\r\ny: 5\r\nz: a\r\n" in server.heard[0]


@pytest.mark.parametrize("path", ["/a b", "/a\r\nx: y", "/\u00e9", "/\udc80", "a", "", "/a#b"])
def test_an_invalid_path_is_refused_before_the_request(answering, http_client, path):
    server = answering(WHOLE)
    http_client.connect(server.address)
    http_client.set_service_name(path)
    with pytest.raises(InputError, match="service name"):
        http_client.predict({"words": [1]})
    assert server.heard == []
    http_client.set_service_name("/a%20b/c?d=e")
    assert http_client.predict({"words": [1]}).err_no == 5


@pytest.mark.parametrize(("ip", "port"), [("a..b", "80"), ("\udc80", "80"), ("a", "\u00b2")])
def test_an_invalid_address_is_refused_on_use(http_client, ip, port):
    http_client.ip, http_client.port = ip, port
    with pytest.raises(InitError, match="is not an address"):
        http_client.predict({"words": [1]})


# Answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        WHOLE,
        PROTO + b"\r\n" + MESSAGE,
        PROTO.replace(b"1.1", b"1.0") + b"\r\n" + MESSAGE,
        PACKED + b"\r\n" + gzip.compress(MESSAGE, mtime=0),
    ],
)
def test_an_answer_may_end_with_its_connection(answering, http_client, answer):
    http_client.connect(answering(answer).address)
    assert http_client.predict({"words": [1]}).err_msg == "x" * 50


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (PROTO + b"Content-Length: 99\r\n\r\n" + MESSAGE, "cut off"),
        (PACKED + b"\r\n" + gzip.compress(MESSAGE, mtime=0)[:-9], "cut off"),
        (PACKED + b"\r\n" + MESSAGE, "not valid gzip"),
        (PROTO + b"\r\n\xff", "is not a Response"),
        (b"HTTP/1.1 200 OK\r\n\r\n{", "not valid JSON"),
    ],
)
def test_an_unreadable_answer_is_an_error(answering, http_client, answer, text):
    http_client.connect(answering(answer).address)
    with pytest.raises(PredictorError, match=text):
        http_client.predict({"words": [1]})
