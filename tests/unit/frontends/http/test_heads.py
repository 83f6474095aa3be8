"""Which heads lead into the lane, and which of them are remembered."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from pipeline.frontends.http import heads
from pipeline.frontends.http.exchange import head_of
from pipeline.frontends.http.heads import HeadMemory
from pipeline.frontends.http.routes import WebRequest


class Large(NamedTuple):
    """An endpoint."""

    takes_large: bool


class Service:
    """Answers all paths below /s/, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []

    def in_line(self, request: WebRequest) -> Any:
        self.asked.append((request.path, request.headers))
        return request.path if request.path.startswith("/s/") else None


def head(*headers: str, line: str = "POST /s/m HTTP/1.1", length: object = 5) -> bytes:
    lines = [line, *headers, *([] if length is None else [f"Content-Length: {length}"]), "", ""]
    return "\r\n".join(lines).encode("latin-1")


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ("Host: h", "User-Agent: u", "Accept-Encoding: gzip", "Connection: Keep-Alive"),
        ("X-Request-Id: 1", "traceparent: x", "Grpc-Timeout: 1S", "Cookie: a=b"),
        ("Content-Type: text/plain;charset=utf-8", "Accept:*/*"),
    ],
)
def test_plain_posts_have_a_lane(headers):
    result = HeadMemory([Service()]).find(head(*headers))
    assert result[:2] == ("/s/m", 5)


def test_spaces_around_a_value_are_removed():
    service = Service()
    HeadMemory([service]).find(head("A: \t1 2 \t"))
    ((_, headers),) = service.asked
    assert headers[b"a"] == b"1 2"


@pytest.mark.parametrize(
    "data",
    [
        head(line="GET /s/m HTTP/1.1"),
        head(line="post /s/m HTTP/1.1"),
        head(line="POST /s/m HTTP/1.0"),
        head(line="POST /s/m"),
        head(line="POST  /s/m HTTP/1.1"),
        head(line="POST /s/m?x HTTP/1.1"),
        head(line="POST /s/%6d HTTP/1.1"),
        head(line="POST /s//m HTTP/1.1"),
        head(line="POST /s/m/ HTTP/1.1"),
        head(line="POST /t/m HTTP/1.1"),
        head(line="POST http://h/s/m HTTP/1.1"),
        b"\r\n" + head(),
        head(length=None),
        head(length=""),
        head(length="+5"),
        head(length="-5"),
        head(length="0x5"),
        head(length="5, 5"),
        head(length=2**64),
        head(length=65537),
        head("Grpc-Timeout: x"),
        head("Content-Length: 5"),
        head("content-length: 6"),
        head("Content-Length : 5", length=None),
        head("Transfer-Encoding: chunked"),
        head("Transfer-Encoding: identity"),
        head("Transfer-Encoding : chunked"),
        head("A: b\r\n Transfer-Encoding: chunked"),
        head("A: b\r\n\tc"),
        head("A: b\nTransfer-Encoding: chunked"),
        head("A: b\rTransfer-Encoding: chunked"),
        head("A: b\r\r"),
        head("A\x00: b"),
        head(": b"),
        head("A b"),
        head("Connection: close"),
        head("Connection: keep-alive, close"),
        head("Connection: keep-alive", "Connection: keep-alive"),
        head("Connection: upgrade", "Upgrade: h2c"),
        head("Upgrade: h2c"),
        head("Expect: 100-continue"),
        head("Content-Encoding: gzip"),
        head("Origin: http://elsewhere"),
        head("X-A: 1", "x-a: 2"),
        head("A: " + "a" * 8192),
        head()[:-1],
        head()[:-2],
        b"",
        b"POST",
    ],
)
def test_an_unusual_head_is_not_remembered(data):
    memory = HeadMemory([Service()])
    assert memory.find(data) is None
    assert not memory._known


def test_a_head_is_read_once_while_its_bytes_are_the_same():
    service = Service()
    memory = HeadMemory([service])
    for _ in range(3):
        assert memory.find(head("Host: h"))
        assert memory.find(head("Host: i"))
    assert [headers[b"host"] for _, headers in service.asked] == [b"h", b"i"]


@pytest.mark.parametrize(
    "header",
    ["traceparent: 00-1", "Grpc-Timeout: 1S", "X-Request-Id: 1", "Authorization: Bearer x",
     "Cookie: a=b", "Forwarded: for=1", "User-Agent: " + "u" * 2048],
)  # fmt: skip
def test_a_head_that_varies_or_is_secret_or_long_is_not_remembered(header):
    memory = HeadMemory([Service()])
    assert memory.find(head(header))
    assert not memory._known


def test_the_memory_of_heads_is_bounded():
    memory = HeadMemory([Service()])
    for number in range(3 * heads._MAX_KNOWN):
        assert memory.find(head(f"Host: {number}"))
        assert len(memory._known) <= heads._MAX_KNOWN
    assert memory.find(head("Host: 0"))


def test_services_are_consulted_in_order():
    class Other(Service):
        def in_line(self, request: WebRequest) -> Any:
            return "other"

    memory = HeadMemory([Service(), Other()])
    assert memory.find(head())[:2] == ("/s/m", 5)
    assert memory.find(head(line="POST /t/m HTTP/1.1"))[:2] == ("other", 5)


def test_a_status_without_words_has_a_head_too():
    assert head_of(499, b"text/plain", ()).startswith(b"HTTP/1.1 499 \r\n")
    assert head_of(200, b"text/plain", ()).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_large_body_is_for_the_lane_where_its_endpoint_takes_it():
    class LargeService(Service):
        def in_line(self, request: WebRequest) -> Any:
            return Large(b"inference-header-content-length" in request.headers)

    memory = HeadMemory([LargeService()], most_large_bytes=100_000)
    text = "Inference-Header-Content-Length: 117"
    assert memory.find(head(text, length=100_000)) == (Large(True), 100_000, 117)
    assert memory.find(head(text, length=100_001)) is None
    assert memory.find(head(length=100_000)) is None


def test_a_body_longer_than_the_limit_is_left_to_the_routes():
    memory = HeadMemory([Service()], most_bytes=5)
    assert memory.find(head(length=5)) is not None
    assert memory.find(head(length=6)) is None
