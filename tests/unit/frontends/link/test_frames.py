"""Frames of the link: written as Go reads them, and read however they are cut."""

from __future__ import annotations

import json
from typing import Any

import link_peer
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import TESTS

from pipeline.frontends.link import frames
from pipeline.frontends.link.frames import (
    CREDIT,
    DATA,
    END,
    FRAME_BYTES,
    HEAD,
    HEADERS,
    LAST,
    MESSAGE,
    MORE,
    OPEN,
    OPENED,
    PING,
    PONG,
    REFUSED,
    STATE,
    STATED,
    BrokenError,
    Hello,
    Inbox,
    LinkLimits,
    MethodEntry,
    Window,
    frame,
    read_hello,
)

GOLDEN = TESTS / "support" / "golden" / "link_frames.json"
"""What each is in hex; the test of Go's package `frame` has the same table."""

Seen = tuple[Any, ...]


def test_frames_are_the_golden_ones():
    open_data = {"timeout_ns": -1, "metadata": b"a\nb\n", "method": 7, "caller": b"c:1"}
    written = {
        "open": link_peer.message(258, b"data", **open_data),
        "open without time, a message of a stream follows": frame(
            OPEN, 1, OPENED.pack(0, 0, 0), 0, 2
        ),
        "data, more follows": frame(DATA, 2, b"piece", MESSAGE | MORE),
        "data, the last": frame(DATA, 2, b"", MESSAGE | LAST),
        "no message follows": frame(DATA, 2, b"", LAST),
        "headers": frame(HEADERS, 3, frames.fields([("a", "b")])),
        "answered": frames.answered(2**64 - 1, b"data"),
        "answered with nothing": frames.answered(4, b""),
        "ended": frame(END, 5, frames.SUCCESS, LAST),
        "failed": frame(END, 6, frames.end_of(8, 503, 3004, 7, "hä", b"a\nb\n"), LAST),
        "a negative err_no": frame(END, 7, frames.end_of(2, 500, -7), LAST),
        "reset": frames.reset(8, REFUSED, "why"),
        "credit of a call": frames.credit(9, 2**20),
        "most credit": frames.credit(9, 2**32 - 1),
        "ping": frame(PING, 10),
        "pong": frame(PONG, 10),
        "ready": frame(STATE, 0, STATED.pack(True, 300)),
        "goaway": frames.goaway(11, "it stops"),
    }
    assert {name: data.hex() for name, data in written.items()} == json.loads(GOLDEN.read_text())


class Reader:
    """Writes down what an Inbox hands on."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.inbox = Inbox(self.open, self.frame)

    def open(self, *how: Any) -> None:
        flags, method, number, data, start, end = how
        self.seen.append((OPEN, flags, method, number, data[start:end]))

    def frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        self.seen.append((kind, flags, number, payload))


FRAMES = st.tuples(
    st.integers(0, 255),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=300) | st.just(b"x" * FRAME_BYTES),
    st.integers(0, 255),
    st.integers(0, 2**16 - 1),
)


@given(written=st.lists(FRAMES, max_size=8), data=st.data())
def test_frames_are_parsed_with_any_cuts(written, data):
    stream = b"".join(frame(*item) for item in written)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reader = Reader()
    arrived = 0
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        before = len(reader.seen)
        has_any = start < end and reader.inbox.take(stream[start:end])
        assert has_any == (len(reader.seen) > before)
        arrived = end
    assert arrived == len(stream)
    assert reader.seen == [
        (kind, flags, method, number, payload) if kind == OPEN else (kind, flags, number, payload)
        for kind, number, payload, flags, method in written
    ]


def test_a_frame_that_is_too_large_is_refused_before_its_payload():
    with pytest.raises(BrokenError, match="a frame of kind 4 with 65537 bytes"):
        Reader().inbox.take(HEAD.pack(FRAME_BYTES + 1, DATA, 0, 0, 1))


def test_a_hello_is_parsed_unchanged():
    hello = Hello(
        secret="hush",
        limits=LinkLimits(1, 2, 3, 4),
        methods=[MethodEntry(1, "a"), MethodEntry(2, "b", stream=True)],
        trace=True,
        headers=True,
    )
    assert read_hello(frames.HELLO, frames.hello(hello)[HEAD.size :]) == hello


@pytest.mark.parametrize(
    ("kind", "payload", "why"),
    [
        (PING, b"", "it does not begin with a HELLO; this server has version 7 of the link"),
        (frames.HELLO, b"{", "a HELLO that cannot be read"),
        (frames.HELLO, b'{"version":3}', "it speaks version 3; this server has version 7"),
        (frames.HELLO, b'{"version":"4"}', "a HELLO that cannot be read"),
        (frames.HELLO, b'{"version":7,"limits":{"call_credit":0}}', "without credit"),
    ],
)
def test_an_invalid_hello_is_refused(kind, payload, why):
    with pytest.raises(BrokenError, match=why):
        read_hello(kind, payload)


def test_unknown_fields_of_a_hello_are_ignored():
    assert read_hello(frames.HELLO, b'{"version":7,"more":[1]}') == Hello()


def test_an_end_holds_a_text_of_any_length_and_of_any_character():
    text = "\ud800" + "ä" * 60_000
    payload = frames.end_of(13, 500, 1, 2**20, text, b"a\n" * 30_000)
    assert len(payload) <= FRAME_BYTES
    status, err_no, said = link_peer.refusal_of((END, 1, payload))
    assert (status, err_no) == (500, 1)
    assert said.startswith("\\ud800ää")
    assert link_peer.retry_after_s_of((END, 1, payload)) == 0xFFFF


@pytest.mark.parametrize("payload", [b"", b"123", b"12345"])
def test_a_credit_has_four_bytes(payload):
    with pytest.raises(BrokenError, match=f"a CREDIT of {len(payload)} bytes"):
        frames.read_credit(payload)
    assert frames.read_credit(frames.credit(1, 7)[HEAD.size :]) == 7
    assert frames.credit(1, 7)[4] == CREDIT


@given(sizes=st.lists(st.integers(0, 1000), max_size=100))
def test_credit_is_returned_in_halves_and_none_is_lost(sizes):
    window = Window(1000)
    sent = given_back = used = 0
    for size in sizes:
        has_credit = window.take(size)
        sent += size
        assert has_credit == (sent <= 1000 + given_back)
        if not has_credit:
            return
        used += size
        due = window.give_back(size)
        given_back += due
        assert due == 0 or due >= 500
        assert used - given_back < 500
