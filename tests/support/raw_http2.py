"""HTTP/2 frames by hand: what no gRPC client would send."""

from __future__ import annotations

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY = range(8)
_END_STREAM, _END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame of any kind, sensible or not."""
    length = struct.pack(">I", len(payload))[1:]
    return length + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header_block(path: bytes) -> bytes:
    """The headers of a gRPC call, none of them compressed."""
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"x"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
    return b"".join(
        b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields
    )


def call_of(path: bytes, message: bytes = b"") -> bytes:
    """A connection's first bytes, and one call of `path`."""
    return (
        PREFACE
        + frame(SETTINGS, 0, 0)
        + frame(HEADERS, _END_HEADERS, 1, header_block(path))
        + frame(DATA, _END_STREAM, 1, b"\x00" + struct.pack(">I", len(message)) + message)
    )
