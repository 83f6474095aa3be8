"""Snappy blocks without a native library: reads all of them, writes them uncompressed.

The format is google/snappy's format_description.txt: the length of the plain data as a varint,
then elements. The two low bits of an element's first byte say what it is: a literal, or a copy of
what was written `offset` bytes before, its offset in 1 byte (and 3 bits), in 2 or in 4 bytes.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from pipeline.proto.pipeline.blocks import read_varint, varint

_LITERAL, _COPY_1, _COPY_2, _COPY_4 = 0, 1, 2, 3
# Of a literal's length, less 1: what fits into the first byte, and 60 to 63 for 1 to 4 more bytes.
_MAX_SHORT_LITERAL = 59
_LITERAL_4_TAG = 63 << 2


def encode(data: bytes) -> bytes:
    """Return `data` as one literal: every reader of snappy takes it, and it is no smaller."""
    length = len(data)
    if length >= 2**32:
        raise ValueError(f"{length} bytes do not fit into a snappy block")
    if not data:
        return varint(0)
    literal = bytes((_LITERAL_4_TAG,)) + (length - 1).to_bytes(4, "little")
    return b"".join((varint(length), literal, data))


def decode(block: bytes | memoryview, max_bytes: int) -> bytes:
    """Return the data of one block.

    Memory stays within `max_bytes` whatever the block says. Pure Python: about 0.4 us for each
    element, of which a block that does not compress has few.

    Raises:
        ValueError: the data are longer than `max_bytes`, or this is no snappy block.
    """
    block = bytes(block)
    try:
        length, at = read_varint(block, 0)
    except DecodeError:
        raise ValueError("the block does not begin with a length") from None
    if length > max_bytes:
        raise ValueError(f"the data have {length} bytes, more than {max_bytes}")
    out = bytearray()
    try:
        while at < len(block):
            at = _read_element(block, at, out)
            if len(out) > length:
                raise ValueError(f"the data are longer than the {length} bytes that it states")
    except IndexError:
        raise ValueError("the block ends within an element") from None
    if len(out) != length:
        raise ValueError(f"the data have {len(out)} bytes, not the {length} that it states")
    return bytes(out)


def _read_element(block: bytes, at: int, out: bytearray) -> int:
    """Append what the element at `at` stands for; the position behind it.

    Raises IndexError where the block ends before the element does.
    """
    tag = block[at]
    kind = tag & 3
    if kind == _LITERAL:
        return _read_literal(block, at, out)
    if kind == _COPY_1:
        _copy(out, tag >> 5 << 8 | block[at + 1], 4 + (tag >> 2 & 7))
        return at + 2
    if kind == _COPY_2:
        _copy(out, block[at + 1] | block[at + 2] << 8, 1 + (tag >> 2))
        return at + 3
    last = block[at + 4]  # IndexError here, where a slice would just be shorter
    _copy(out, int.from_bytes(block[at + 1 : at + 4], "little") | last << 24, 1 + (tag >> 2))
    return at + 5


def _read_literal(block: bytes, at: int, out: bytearray) -> int:
    length = block[at] >> 2
    at += 1
    if length > _MAX_SHORT_LITERAL:
        extra = length - _MAX_SHORT_LITERAL
        length = int.from_bytes(block[at : at + extra], "little")
        at += extra
    end = at + length + 1
    if end > len(block):
        raise IndexError
    out += block[at:end]
    return end


def _copy(out: bytearray, offset: int, length: int) -> None:
    """Append `length` bytes from `offset` bytes before the end, which they may run over."""
    start = len(out) - offset
    if start < 0 or not offset:
        raise ValueError(f"a copy from {offset} bytes back, after {len(out)} bytes")
    if offset >= length:
        out += out[start : start + length]
        return
    pattern = out[start:]
    out += (pattern * (length // offset + 1))[:length]
