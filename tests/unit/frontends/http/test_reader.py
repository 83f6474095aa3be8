"""The reader reads a caller's bytes in any pieces, up to the end of a request."""

from __future__ import annotations

import pytest

from pipeline.frontends.http.exchange import Exchange
from pipeline.frontends.http.reader import RequestReader
from pipeline.frontends.http.routes import HttpError

BEHIND = b"GET /behind HTTP/1.1\r\n\r\n"


class Caller:
    """Bytes that come in pieces, and what a reader makes of them."""

    def __init__(self) -> None:
        self.begun: list[Exchange] = []
        self.reader = RequestReader(self.begun.append)
        self.data = b""

    def say(self, data: bytes) -> None:
        self.data += data
        self.data = self.data[self.reader.read(self.data, 0) :]


REQUESTS = {
    "GET": (b"GET /a%20b?x=1 HTTP/1.1\r\nA: 1\r\na: 2\r\n\r\n", b""),
    "a length": (
        b"POST /a%20b?x=1 HTTP/1.1\r\nContent-Length: 8\r\na: 2\r\n\r\n\r\n\r\n{}\r\n",
        b"\r\n\r\n{}\r\n",
    ),
    "chunks": (
        b"POST /a%20b?x=1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\na: 2\r\n\r\n"
        b"4\r\n\r\n\r\n\r\n2;x=y\r\n{}\r\n0\r\nTrailer: x\r\n\r\n",
        b"\r\n\r\n{}",
    ),
    "an upgrade": (
        b"POST /a%20b?x=1 HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n"
        b"a: 2\r\n\r\n{}",
        b"{}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_may_be_cut_anywhere_and_its_successor_is_not_read(name):
    raw, body = REQUESTS[name]
    for cut in range(len(raw)):
        caller = Caller()
        caller.say(raw[:cut])
        caller.say(raw[cut:] + BEHIND)
        (exchange,) = caller.begun
        assert caller.data == BEHIND
        assert not exchange.has_more
        assert not caller.reader.is_inside
        assert exchange.body == body
        assert (exchange.path, exchange.raw_path, exchange.query) == ("/a b", "/a%20b", "x=1")
        assert exchange.said[b"a"] == b"2"
        assert b"trailer" not in dict(exchange.fields)


def test_spaces_around_a_value_are_removed():
    caller = Caller()
    caller.say(b"GET / HTTP/1.1\r\nA: \t1 2 \t\r\nb:\t \r\n\r\n")
    assert caller.begun[0].fields == [(b"a", b"1 2"), (b"b", b"")]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "it is TLS"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "it is HTTP/2"),
        (b"GET / HTTP/1.1\r\nA b\r\n\r\n", "Invalid header token"),
        (b"GET / HTTP/1.1\r\nA: b\r\n\n", "Invalid header field char"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", '"gzip": send chunked'),
    ],
)
def test_an_invalid_request_is_refused_with_its_reason(raw, text):
    with pytest.raises(HttpError, match=text) as caught:
        Caller().say(raw)
    assert caught.value.status == 400
