"""Frames of the link between the gateway and a LinkFrontend: their writer and their reader.

docs/gateway.md ("The link") describes the format and the reasons. In short, with big-endian
numbers, a frame is

    u32 size of the payload, u8 kind, u8 flags, u16 method, u64 id of the call, payload

with a payload of at most 64 KiB: longer messages are split into pieces that alternate with other
calls' frames. pipeline/gateway/internal/link/frame.go is the other side.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

VERSION = 7
"""Of the format. Both sides are of one version; those before it had other frames or limits."""

HELLO, OPEN, HEADERS, DATA, END, RESET, CREDIT, PING, PONG, STATE, GOAWAY, FREED = range(1, 13)
"""Kinds."""

MORE, LAST, MESSAGE, PLACED = 1, 2, 4, 8
"""Flags: the message continues; this side sends no more; there are data of a message, maybe empty;
the data are PLACES, which say where the message lies in the server's memory."""

CANCELED, REFUSED, TOO_LARGE, OVERRUN, BROKEN, NO_METHOD, LEFT = range(1, 8)
"""Reasons of a RESET; only REFUSED is safe to repeat. LEFT: a POST is for the HTTP port; with a
text it is whatever its body is."""

FRAME_BYTES = 64 * 1024
"""Most of a frame's payload."""

CALL_CREDIT, STREAM_CREDIT = 2**20, 2 * FRAME_BYTES
"""Bytes of DATA that a peer may send before it is given credit for more: of a unary call, and of a
stream, where what is not taken is held."""

HEAD = struct.Struct(">IBBHQ")
OPENED = struct.Struct(">qBH")
"""Payload of an OPEN: ns left or -1, sizes of caller and metadata, which follow; then data."""

ENDED = struct.Struct(">BHiHHH")
"""Payload of an END: gRPC's code, HTTP's status, err_no, s of Retry-After or 0, sizes of the text
and the trailers, which follow; then data."""

STATED = struct.Struct(">BI")
"""Payload of a STATE: 1 if the server is ready, else 0; calls in flight."""

PLACE = struct.Struct(">IQQ")
"""A piece of a message: region, offset and size; behind NO_REGION the piece itself follows."""

NO_REGION = 2**32 - 1

_NUMBER, _LONG = struct.Struct(">I"), struct.Struct(">Q")
SUCCESS = ENDED.pack(0, 200, 0, 0, 0, 0)
"""Payload of an END that says that all went well."""

ANSWER_BYTES = FRAME_BYTES - len(SUCCESS)
"""Most of an answer that its END has with it."""

_WHOLE = MESSAGE | LAST
_TEXT_BYTES = 48 * 1024
_MAX = 0xFFFF


class BrokenError(Exception):
    """A peer sent something that is not a frame, or a frame that it may not send."""


class LinkLimits(msgspec.Struct, frozen=True):
    """Limits of a side for what it accepts."""

    call_credit: int = CALL_CREDIT
    stream_credit: int = STREAM_CREDIT
    calls: int = 0
    message_bytes: int = 0


class SharedRegion(msgspec.Struct, frozen=True):
    """A region of the server's memory that a gateway may write to; its descriptor follows."""

    region: int = 0
    region_bytes: int = 0


class MethodEntry(msgspec.Struct, frozen=True):
    """An entry of the table of methods: the number in an OPEN, and the name."""

    id: int
    name: str
    stream: bool = False


class Hello(msgspec.Struct, frozen=True):
    """First message of a side, in JSON.

    A server says which metadata it wants: `trace`: the client's traceparent, `headers`: all.
    """

    version: int = VERSION
    secret: str = ""
    limits: LinkLimits = LinkLimits()
    methods: Sequence[MethodEntry] = ()
    trace: bool = False
    headers: bool = False
    memory: SharedRegion | None = None


def read_hello(kind: int, payload: bytes) -> Hello:
    """Read the first frame of a gateway. Raises BrokenError."""
    if kind != HELLO:
        raise BrokenError(f"it does not begin with a HELLO; this server has {_VERSION_TEXT}")
    try:
        received = msgspec.json.decode(payload, type=Hello)
    except msgspec.DecodeError as error:
        raise BrokenError(f"a HELLO that cannot be read: {error}") from error
    if received.version != VERSION:
        raise BrokenError(f"it speaks version {received.version}; this server has {_VERSION_TEXT}")
    if received.limits.call_credit <= 0 or received.limits.stream_credit <= 0:
        raise BrokenError("a HELLO without credit")
    return received


_VERSION_TEXT = (
    f"version {VERSION} of the link: rebuild the gateway with `python -m pipeline.gateway.build`"
)


def frame(kind: int, number: int, payload: bytes = b"", flags: int = 0, method: int = 0) -> bytes:
    """Return a frame that fits without splitting."""
    return HEAD.pack(len(payload), kind, flags, method, number) + payload


def answered(number: int, message: bytes, end: bytes = SUCCESS) -> bytes:
    """Return the END of a call with its answer; both fit a frame."""
    return HEAD.pack(len(end) + len(message), END, _WHOLE, 0, number) + end + message


def placed(number: int, end: bytes, pieces: Iterable[bytes | PlacedBytes]) -> bytes:
    """Return the END of a call whose answer is mostly in the server's memory."""
    parts = [end]
    for piece in pieces:
        if isinstance(piece, bytes):
            parts += (PLACE.pack(NO_REGION, 0, len(piece)), piece)
        else:
            parts.append(PLACE.pack(piece.region, piece.offset, piece.size))
    return frame(END, number, b"".join(parts), _WHOLE | PLACED)


def freed(offsets: Sequence[int]) -> bytes:
    """Return a FREED: the blocks of a gateway that begin at `offsets` are read."""
    return frame(FREED, 0, struct.pack(f">{len(offsets)}Q", *offsets))


def hello(settings: Hello) -> bytes:
    """Return a HELLO."""
    return frame(HELLO, 0, msgspec.json.encode(settings))


def goaway(last: int, text: str) -> bytes:
    """Return a GOAWAY: calls after the id `last` are not accepted."""
    return frame(GOAWAY, 0, _LONG.pack(last) + text.encode())


def reset(number: int, reason: int, text: str = "") -> bytes:
    """Return a RESET."""
    return frame(RESET, number, bytes((reason,)) + _cut(text))


def credit(number: int, size: int) -> bytes:
    """Return a CREDIT of so many more bytes for a call."""
    return frame(CREDIT, number, _NUMBER.pack(size))


def read_credit(payload: bytes) -> int:
    """Return the bytes of a CREDIT. Raises BrokenError."""
    if len(payload) != _NUMBER.size:
        raise BrokenError(f"a CREDIT of {len(payload)} bytes")
    return int(_NUMBER.unpack(payload)[0])


def end_of(
    code: int,
    status: int,
    err_no: int = 0,
    retry_after_s: int = 0,
    text: str = "",
    trailers: bytes = b"",
) -> bytes:
    """Return the payload of an END without data."""
    message = _cut(text)
    sent_trailers = trailers if len(trailers) + len(message) <= ANSWER_BYTES else b""
    head = ENDED.pack(
        code, status, err_no, min(retry_after_s, _MAX), len(message), len(sent_trailers)
    )
    return head + message + sent_trailers


def _cut(text: str) -> bytes:
    data = text.encode("utf-8", "backslashreplace")
    return (
        data if len(data) <= _TEXT_BYTES else data[:_TEXT_BYTES].decode("utf-8", "ignore").encode()
    )


class PlacedBytes(Protocol):
    """Bytes in the server's memory."""

    @property
    def region(self) -> int: ...

    @property
    def offset(self) -> int: ...

    @property
    def size(self) -> int: ...


OnOpen = Callable[[int, int, int, bytes, int, int], None]
"""Takes flags, method and id of an OPEN, and bytes with the places where its payload is."""

OnFrame = Callable[[int, int, int, bytes], None]
"""Takes kind, flags, id and payload of any other frame."""


class Inbox:
    """A reader that finds the frames in a peer's bytes, however these are split.

    Args:
        on_open: receives each OPEN.
        on_frame: receives each other frame.
    """

    __slots__ = ("_needed", "_on_frame", "_on_open", "_rest")

    def __init__(self, on_open: OnOpen, on_frame: OnFrame) -> None:
        self.use(on_open, on_frame)
        self._rest = bytearray()  # of a partial frame
        self._needed = 0  # size of the partial frame

    def use(self, on_open: OnOpen, on_frame: OnFrame) -> None:
        """Pass frames to these receivers from now on."""
        self._on_open = on_open
        self._on_frame = on_frame

    def take(self, data: bytes) -> bool:
        """Pass on the complete frames; False: there is none. Raises BrokenError."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return False
            data = bytes(self._rest)
        taken = self._take(data)
        if taken < len(data) or self._rest:
            self._rest = bytearray(data[taken:])
        return taken > 0

    def _take(self, data: bytes) -> int:
        """Return the size of the complete frames."""
        start, there, head, unpack = 0, len(data), HEAD.size, HEAD.unpack_from
        while there - start >= head:
            size, kind, flags, method, number = unpack(data, start)
            if size > FRAME_BYTES:
                raise BrokenError(f"a frame of kind {kind} with {size} bytes")
            body = start + head
            end = body + size
            if end > there:
                self._needed = end - start
                return start
            if kind == OPEN:
                self._on_open(flags, method, number, data, body, end)
            else:
                self._on_frame(kind, flags, number, data[body:end])
            start = end
        self._needed = head
        return start


class Window:
    """A peer's credit for DATA of a call."""

    __slots__ = ("_left", "_owed", "_size")

    def __init__(self, size: int) -> None:
        self._size = self._left = size
        self._owed = 0

    def take(self, size: int) -> bool:
        """Note received bytes; False: there was no credit for them."""
        self._left -= size
        return self._left >= 0

    def give_back(self, size: int) -> int:
        """Note used bytes, and return the bytes of a CREDIT that is due; 0: none."""
        self._owed += size
        if self._owed < self._size // 2:
            return 0
        due, self._owed = self._owed, 0
        self._left += due
        return due


def fields(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Return names and values from metadata or trailers."""
    return "".join(f"{name}\n{value}\n" for name, value in pairs).encode("latin-1")
