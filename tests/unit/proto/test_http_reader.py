"""A client's reader of an answer over HTTP."""

from __future__ import annotations

from pipeline.proto.http import HttpReader


def test_spaces_around_a_value_are_removed():
    reader = HttpReader("the server", 100)
    reader.take(b"HTTP/1.1 200 OK\r\nA: \t1 2 \t\r\nContent-Length: 2 \r\n\r\n{}")
    assert reader.headers == {"a": "1 2", "content-length": "2"}
    assert reader.is_whole
    assert reader.body == b"{}"
