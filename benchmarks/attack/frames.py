"""HTTP/2 frames that no client library sends, written by hand (RFC 9113, RFC 7541)."""

from __future__ import annotations

import struct
from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY = range(8)
WINDOW_UPDATE, CONTINUATION = 8, 9
END_STREAM, END_HEADERS = 1, 4
CANCEL = struct.pack(">I", 8)
INITIAL_WINDOW_SIZE = 4

INDEXED = 0x80  # HPACK: a field that is in one of the tables
FIRST_DYNAMIC = 62


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return one frame of any kind, sensible or not."""
    head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags])
    return head + struct.pack(">I", stream) + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def window_update(stream: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", increment))


def stream_id(number: int) -> int:
    """Return the id of a caller's n-th stream, from 0."""
    return 2 * number + 1


def literals(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return fields that no table keeps, uncompressed."""
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields)


def kept(name: bytes, value: bytes) -> bytes:
    """Return a field that the dynamic table keeps: the newest there has index FIRST_DYNAMIC."""
    return b"\x40" + _text(name) + _text(value)


def _text(text: bytes) -> bytes:
    return _number(len(text), 7) + text


def _number(value: int, bits: int) -> bytes:
    """Return an integer of HPACK with a prefix of so many bits, whose other bits are 0."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([value])
    rest, value = bytearray([most]), value - most
    while value >= 0x80:
        rest.append(value & 0x7F | 0x80)
        value >>= 7
    rest.append(value)
    return bytes(rest)
