"""Frames of WebSockets: cut anywhere, and broken ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_ws import masked

from pipeline.frontends.http.websocket import (
    BINARY,
    CLOSE,
    MORE,
    PING,
    TEXT,
    WebMessage,
    WebSocketError,
    WebSocketReader,
    frame,
)

SIZES = st.sampled_from([0, 1, 3, 125, 126, 127, 65535, 65536])


def messages(reader: WebSocketReader, data: bytes) -> list[WebMessage]:
    return [found for found in reader.take(data) if found.kind != MORE]


@given(
    st.lists(
        st.tuples(st.sampled_from([TEXT, BINARY, PING]), SIZES, st.binary(min_size=4, max_size=4))
    ),
    st.integers(1, 70000),
)
def test_messages_are_read_however_they_are_cut(asked, step):
    meant, came = [], b""
    for kind, size, mask in asked:
        data = bytes(at % 251 for at in range(size if kind != PING else size % 126))
        meant.append(WebMessage(kind, data))
        came += masked(kind, data, mask=mask)
    reader = WebSocketReader(100_000)
    read = [
        one for at in range(0, len(came), step) for one in messages(reader, came[at : at + step])
    ]
    assert read == meant


def test_a_message_in_pieces_with_a_ping_between_them():
    came = masked(TEXT, b"a", False) + masked(PING, b"p") + masked(MORE, b"b", False) + masked(MORE)
    assert messages(WebSocketReader(10), came) == [WebMessage(PING, b"p"), WebMessage(TEXT, b"ab")]


@given(st.binary(max_size=300), st.integers(1, 300))
def test_any_bytes_are_messages_or_an_error_of_the_protocol(data, step):
    reader, codes = WebSocketReader(200), []
    for at in range(0, len(data), step):
        try:
            for message in reader.take(data[at : at + step]):
                assert len(message.data) <= 200
        except WebSocketError as error:
            codes.append(error.code)
            break
    assert set(codes) <= {1002, 1009}


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x81\x01a", 1002),  # not masked
        (b"\xc1\x80", 1002),  # a bit of an extension
        (b"\x83\x80", 1002),  # no opcode
        (b"\x80\x80", 1002),  # more of nothing
        (masked(TEXT, b"a", False) + masked(TEXT, b"b"), 1002),
        (masked(PING, b"a", False), 1002),
        (masked(PING, bytes(126)), 1002),
        (b"\x81\xfe\x00\x05", 1002),  # longer than needed
        (b"\x81\xff" + (5).to_bytes(8), 1002),
        (b"\x81\xff\xff" + bytes(7), 1002),
        (b"\x81\xff" + (2**40).to_bytes(8), 1009),  # told before its bytes come
        (masked(TEXT, bytes(60), False) + masked(MORE, bytes(60)), 1009),
    ],
)
def test_frames_that_break_the_protocol(data, code):
    with pytest.raises(WebSocketError) as raised:
        messages(WebSocketReader(100), data)
    assert raised.value.code == code


def test_frames_of_the_server_have_the_shortest_length():
    heads = {
        size: frame(CLOSE, bytes(size))[: -size or None] for size in (0, 125, 126, 65535, 65536)
    }
    assert [len(head) for head in heads.values()] == [2, 2, 4, 4, 10]
