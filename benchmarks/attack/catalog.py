"""The attacks: what one connection sends, how often, on how many connections."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.attack import frames
from benchmarks.attack.frames import frame


class Wire(enum.Enum):
    """The protocol that an attack speaks."""

    H2 = "HTTP/2"
    HTTP = "HTTP/1.1"
    TCP = "nothing"  # not even TLS


@dataclass(frozen=True, slots=True)
class Attack:
    """One kind of attack.

    `piece(n)` is the n-th piece that a connection sends, which counts as `units`; `per_s` pieces a
    second. A connection that the server closes is opened again, a few times a second.
    """

    name: str
    piece: Callable[[int], bytes]
    units: int = 1
    per_s: float = 20.0
    connections: int = 4
    reads: bool = True
    wire: Wire = Wire.H2


_BATCH = 1000  # control frames in one write: 20,000 a second on each of 4 connections
_FRAME_BYTES = 16384
_BODY_BYTES = 60_000


def attacks(is_grpc: bool) -> list[Attack]:
    """Return the attacks on a listener; gRPC's has no attacks over HTTP/1.1."""
    listed = [*_floods(is_grpc), *_bombs(is_grpc), *_waits(is_grpc)]
    return listed if is_grpc else [*listed, *_slow_http()]


def request(is_grpc: bool, number: int, flags: int, more: bytes = b"") -> bytes:
    """Return the HEADERS of the n-th request of a connection, followed by `more` fields."""
    return frame(frames.HEADERS, flags, frames.stream_id(number), _fields(is_grpc) + more)


def _fields(is_grpc: bool) -> bytes:
    path = b"/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
    kind = b"application/grpc" if is_grpc else b"application/json"
    return frames.literals(
        [
            (b":method", b"POST"),
            (b":scheme", b"https"),
            (b":path", path if is_grpc else b"/echo/prediction"),
            (b":authority", b"localhost"),
            (b"content-type", kind),
            (b"te", b"trailers"),
        ]
    )


def message(is_grpc: bool, size: int = 10) -> bytes:
    """Return the body of a request whose answer is about as long."""
    if not is_grpc:
        return b'{"key": ["x"], "value": ["%s"]}' % (b"v" * size)
    value = b"\x1a\x01x\x22" + _varint(size) + b"v" * size  # fields 3 and 4: key, value
    return b"\0" + len(value).to_bytes(4, "big") + value


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _floods(is_grpc: bool) -> list[Attack]:
    """Control frames that cost the sender a few bytes each."""
    opened = request(is_grpc, 0, frames.END_HEADERS)

    def behind(first: bytes, many: bytes) -> Callable[[int], bytes]:
        batch = many * _BATCH
        return lambda number: first * (number == 0) + batch

    def resets(number: int) -> bytes:
        streams = range(number * _BATCH // 4, (number + 1) * _BATCH // 4)
        return b"".join(
            request(is_grpc, at, frames.END_HEADERS)
            + frame(frames.RST_STREAM, 0, frames.stream_id(at), frames.CANCEL)
            for at in streams
        )

    def made_resets(number: int) -> bytes:
        streams = range(number * _BATCH // 4, (number + 1) * _BATCH // 4)
        return b"".join(
            request(is_grpc, at, frames.END_HEADERS) + frames.window_update(frames.stream_id(at), 0)
            for at in streams
        )

    ping, setting = frame(frames.PING, 0, 0, bytes(8)), frames.settings((3, 100))
    flood = {
        "SETTINGS": behind(b"", setting),
        "PING": behind(b"", ping),
        "empty DATA": behind(opened, frame(frames.DATA, 0, 1)),
        "WINDOW_UPDATE": behind(opened, frames.window_update(1, 1)),
        "PRIORITY": behind(b"", frame(frames.PRIORITY, 0, 1, b"\0\0\0\0\1")),
        "unknown frames": behind(b"", frame(0xEE, 0, 0)),
    }
    return [
        Attack("rapid reset", resets, _BATCH // 4),
        Attack("resets that the server makes", made_resets, _BATCH // 4),
        *(Attack(f"{name} flood", piece, _BATCH) for name, piece in flood.items()),
        Attack("SETTINGS flood, unread", flood["SETTINGS"], _BATCH, reads=False),
        Attack("PING flood, unread", flood["PING"], _BATCH, reads=False),
    ]


def _bombs(is_grpc: bool) -> list[Attack]:
    """Headers that become much more, or never end."""
    room = _FRAME_BYTES - 5000
    again = bytes([frames.INDEXED | frames.FIRST_DYNAMIC]) * room
    large = frames.kept(b"x", b"a" * 4000)
    empty = bytes([frames.INDEXED | 15]) * (room + 4000)  # accept-charset, static: no value

    def bomb(number: int) -> bytes:
        more = (large if number == 0 else b"") + again
        return request(is_grpc, number, frames.END_HEADERS | frames.END_STREAM, more)

    def confetti(number: int) -> bytes:
        return request(is_grpc, number, frames.END_HEADERS | frames.END_STREAM, empty)

    def endless(payload: bytes, count: int) -> Callable[[int], bytes]:
        batch = frame(frames.CONTINUATION, 0, 1, payload) * count
        return lambda number: request(is_grpc, 0, 0) * (number == 0) + batch

    filler = frames.literals([(b"x", b"a" * 4000)])
    return [
        Attack("HPACK bomb", bomb, per_s=50),
        Attack("header confetti", confetti, per_s=50),
        Attack("CONTINUATION flood", endless(filler, 100), 100),
        Attack("CONTINUATION flood, empty", endless(b"", _BATCH), _BATCH),
    ]


def _waits(is_grpc: bool) -> list[Attack]:
    """Callers that hold what they have."""
    body = message(is_grpc, _BODY_BYTES)
    pieces = [body[at : at + _FRAME_BYTES] for at in range(0, len(body), _FRAME_BYTES)]
    no_window = frames.settings((frames.INITIAL_WINDOW_SIZE, 0))

    def asked(number: int) -> bytes:
        stream = frames.stream_id(number)
        last = len(pieces) - 1
        return request(is_grpc, number, frames.END_HEADERS) + b"".join(
            frame(frames.DATA, frames.END_STREAM * (at == last), stream, piece)
            for at, piece in enumerate(pieces)
        )

    def unread(number: int) -> bytes:
        return no_window * (number == 0) + (asked(number) if number < 100 else b"")

    def dribble(number: int) -> bytes:
        if number == 0:
            return no_window + b"".join(map(asked, range(10)))
        return b"".join(frames.window_update(frames.stream_id(at), 1) for at in range(10)) * 20

    def open_streams(number: int) -> bytes:
        at = range(number * 50, (number + 1) * 50) if number < 100 else ()
        return b"".join(request(is_grpc, stream, frames.END_HEADERS) for stream in at)

    drop = frame(frames.CONTINUATION, 0, 1, b"\x00")
    return [
        Attack("zero window", unread),
        Attack("windows of one byte", dribble, 200),
        Attack("5,000 requests without a body", open_streams, 50),
        Attack(
            "slow headers over HTTP/2",
            lambda number: drop if number else request(is_grpc, 0, 0),
            per_s=1,
            connections=100,
        ),
        Attack("idle HTTP/2", lambda number: b"", per_s=1, connections=300),
        Attack("half open", lambda number: b"", per_s=1, connections=500, wire=Wire.TCP),
        Attack(
            "no TLS, garbage",
            lambda number: b"\x16\x03\x01" * _BATCH,
            connections=20,
            wire=Wire.TCP,
        ),
    ]


def _slow_http() -> list[Attack]:
    """Slow callers of HTTP/1.1."""
    head = b"POST /echo/prediction HTTP/1.1\r\nHost: localhost\r\n"
    body = message(False, _BODY_BYTES)
    whole = head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    long = head + b"Content-Length: 1000000\r\n\r\n"
    one = {"per_s": 1.0, "connections": 200, "wire": Wire.HTTP}
    return [
        Attack("slow headers", lambda number: b"A" if number else head, **one),  # type: ignore[arg-type]
        Attack("slow bodies", lambda number: b" " if number else long, **one),  # type: ignore[arg-type]
        Attack(
            "slow reading", lambda number: whole * (number < 50), per_s=2, connections=50,
            reads=False, wire=Wire.HTTP,
        ),
        Attack(
            "requests behind each other", lambda number: (head + b"\r\n") * 20, 20, wire=Wire.HTTP
        ),
    ]  # fmt: skip
