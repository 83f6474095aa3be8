"""Snappy blocks: what is described comes out, what lies is refused within its bound."""

from __future__ import annotations

import pytest
from golden import FRAMES
from hypothesis import given
from hypothesis import strategies as st

from pipeline.proto.brpc.frames import Compression, FrameError, FrameReader, compress, decompress

MIB = 2**20


def encode(data: bytes) -> bytes:
    return compress(Compression.SNAPPY, data)


def decode(block: bytes | memoryview, max_bytes: int) -> bytes:
    return decompress(Compression.SNAPPY, block, max_bytes)


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes((number & 0x7F | 0x80,))
        number >>= 7
    return out + bytes((number,))


def literal(data: bytes, extra: int) -> bytes:
    """A literal whose length is in the tag (`extra` 0) or in 1 to 4 bytes behind it."""
    if not extra:
        return bytes((len(data) - 1 << 2,)) + data
    return bytes((59 + extra << 2,)) + (len(data) - 1).to_bytes(extra, "little") + data


def copy(offset: int, length: int, size: int) -> bytes:
    """A copy whose offset has `size` bytes: 1 (lengths 4 to 11), 2 or 4 (1 to 64)."""
    if size == 1:
        return bytes((offset >> 8 << 5 | length - 4 << 2 | 1, offset & 0xFF))
    return bytes((length - 1 << 2 | {2: 2, 4: 3}[size],)) + offset.to_bytes(size, "little")


@st.composite
def blocks(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """(a block of all kinds of elements, the data that it stands for)."""
    elements, data = b"", b""
    for _ in range(draw(st.integers(0, 8))):
        if not data or draw(st.booleans()):
            extra = draw(st.sampled_from((0, 1, 2, 3, 4)))
            # Nobody writes a length behind the tag for less; the library wants 4 bytes there.
            plain = draw(st.binary(min_size=4 if extra else 1, max_size=60))
            elements += literal(plain, extra)
            data += plain
            continue
        size = draw(st.sampled_from((1, 2, 4)))
        length = draw(st.integers(4, 11) if size == 1 else st.integers(1, 64))
        offset = draw(st.integers(1, min(len(data), 2047)))
        elements += copy(offset, length, size)
        for _ in range(length):  # byte by byte: a copy may run over what it writes
            data += data[-offset : len(data) - offset + 1]
    return varint(len(data)) + elements, data


@given(blocks())
def test_every_kind_of_element_is_read(block_and_data: tuple[bytes, bytes]):
    block, data = block_and_data
    assert decode(block, len(data)) == data
    assert decode(memoryview(block), len(data)) == data


@given(st.binary())
def test_encoded_data_is_decoded_unchanged(data: bytes):
    assert decode(encode(data), len(data)) == data


def test_data_of_two_and_more_bytes_of_length_are_written():
    data = bytes(range(256)) * 300
    assert decode(encode(data), len(data)) == data


def test_data_of_the_reference_library_is_decoded():
    (frame,) = FrameReader().feed(FRAMES["brpc echo snappy reply", "s2c"])
    rest = bytes.fromhex("1000180020ebe590c5ffffffffff012a00")
    assert decode(frame.body, 100) == b"\x0a\x40" + b"z" * 64 + rest


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\xff\xff\xff\xff\xff\xff",
        b"\x80",
        b"\x05",
        b"\x05" + literal(b"abc", 0),
        b"\x02" + literal(b"abc", 0),
        b"\x03" + literal(b"abc", 0)[:-1],
        b"\x03" + literal(b"abc", 2)[:2],
        b"\x08" + literal(b"abcd", 0) + b"\x01",
        b"\x08" + literal(b"abcd", 0) + copy(4, 4, 2)[:-1],
        b"\x08" + literal(b"abcd", 0) + copy(4, 4, 4)[:-1],
        b"\x08" + literal(b"abcd", 0) + copy(5, 4, 1),
        b"\x08" + literal(b"abcd", 0) + copy(0, 4, 1),
        b"\x08" + copy(1, 4, 1),
    ],
)
def test_a_broken_block_is_refused(block: bytes):
    with pytest.raises(FrameError, match="a body as snappy: corrupt input"):
        decode(block, MIB)


def test_a_block_that_states_too_much_is_refused_before_it_is_read():
    with pytest.raises(FrameError, match="more than 1048576"):
        decode(varint(2**32 - 1) + b"\x00" * 100, MIB)


def test_a_block_that_holds_more_than_it_states_is_refused():
    bomb = varint(1000) + literal(b"a", 0) + copy(1, 64, 2) * 100_000
    with pytest.raises(FrameError, match="a body as snappy"):
        decode(bomb, MIB)


@given(st.binary(max_size=200))
def test_any_block_is_data_or_a_frame_error(block: bytes):
    try:
        data = decode(block, 4096)
    except FrameError:
        return
    assert len(data) <= 4096
