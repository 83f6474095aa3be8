"""Frames of the link between our gateway and a LinkFrontend: their writer and their reader.

docs/gateway.md ("The link") describes the format and says why it is so. In short, with all numbers
big-endian, a frame is

    u32 size of the payload, u8 kind, u8 flags, u16 method, u64 id of the call, payload

with a payload of at most 64 KiB: longer messages are cut to pieces that take turns with the frames
of others. pipeline/gateway/internal/link/frame.go has the other side.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

VERSION = 4
"""Of the format. Both sides are of one version; 2 and 3 had other frames."""

HELLO, OPEN, HEADERS, DATA, END, RESET, CREDIT, PING, PONG, STATE, GOAWAY = range(1, 12)
"""Kinds."""

MORE, LAST, MESSAGE = 1, 2, 4
"""Flags: the message goes on; this side sends no more; there are data of a message, maybe none."""

CANCELED, REFUSED, TOO_LARGE, OVERRUN, BROKEN, NO_METHOD = range(1, 7)
"""Reasons of a RESET; only REFUSED is safe to repeat."""

FRAME_BYTES = 64 * 1024
"""Most of a frame's payload."""

METADATA_BYTES = 32 * 1024
"""Most metadata of a call."""

CALL_CREDIT, CONNECTION_CREDIT = 2**20, 64 * 2**20
"""Bytes of DATA that a peer may send before it is given credit for more."""

HEAD = struct.Struct(">IBBHQ")
OPENED = struct.Struct(">qBH")
"""Payload of an OPEN: ns left or -1, sizes of caller and metadata, which follow; then data."""

ENDED = struct.Struct(">BHiHHH")
"""Payload of an END: gRPC's code, HTTP's status, err_no, s of Retry-After or 0, sizes of the text
and the trailers, which follow; then data."""

STATED = struct.Struct(">BI")
"""Payload of a STATE: 1 if the server is ready, else 0; calls in flight."""

_NUMBER, _LONG = struct.Struct(">I"), struct.Struct(">Q")
_SUCCESS = ENDED.pack(0, 200, 0, 0, 0, 0)
_ANSWER_BYTES = FRAME_BYTES - len(_SUCCESS)
_WHOLE = MESSAGE | LAST
_FLUSH_BYTES = 4 * FRAME_BYTES  # of long messages; then the event loop has others to see to
_TEXT_BYTES = 48 * 1024
_MAX = 0xFFFF


class BrokenError(Exception):
    """A peer sent something that is no frame, or that it may not send."""


class LinkLimits(msgspec.Struct, frozen=True):
    """LinkLimits of a side: what it takes."""

    call_credit: int = CALL_CREDIT
    connection_credit: int = CONNECTION_CREDIT
    calls: int = 0
    message_bytes: int = 0


class MethodEntry(msgspec.Struct, frozen=True):
    """A line of the table of methods: the number that an OPEN has, and the name."""

    id: int
    name: str
    stream: bool = False


class Hello(msgspec.Struct, frozen=True):
    """First word of a side, in JSON.

    A server says there which metadata it wants: `trace`: the caller's traceparent, `headers`: all.
    """

    version: int = VERSION
    secret: str = ""
    limits: LinkLimits = LinkLimits()
    methods: Sequence[MethodEntry] = ()
    trace: bool = False
    headers: bool = False


def read_hello(kind: int, payload: bytes) -> Hello:
    """Read the first frame of a gateway. Raises BrokenError."""
    if kind != HELLO:
        raise BrokenError(f"it does not begin with a HELLO; this server has {_VERSION_TEXT}")
    try:
        said = msgspec.json.decode(payload, type=Hello)
    except msgspec.DecodeError as error:
        raise BrokenError(f"a HELLO that cannot be read: {error}") from error
    if said.version != VERSION:
        raise BrokenError(f"it speaks version {said.version}; this server has {_VERSION_TEXT}")
    if said.limits.call_credit <= 0 or said.limits.connection_credit <= 0:
        raise BrokenError("a HELLO without credit")
    return said


_VERSION_TEXT = (
    f"version {VERSION} of the link: build the gateway anew with `python -m pipeline.gateway.build`"
)


def frame(kind: int, number: int, payload: bytes = b"", flags: int = 0, method: int = 0) -> bytes:
    """Return a frame that needs no cutting."""
    return HEAD.pack(len(payload), kind, flags, method, number) + payload


def hello(said: Hello) -> bytes:
    """Return a HELLO."""
    return frame(HELLO, 0, msgspec.json.encode(said))


def goaway(last: int, text: str) -> bytes:
    """Return a GOAWAY: calls after the one with the id `last` are not taken."""
    return frame(GOAWAY, 0, _LONG.pack(last) + text.encode())


def reset(number: int, reason: int, text: str = "") -> bytes:
    """Return a RESET."""
    return frame(RESET, number, bytes((reason,)) + _cut(text))


def credit(number: int, size: int) -> bytes:
    """Return a CREDIT for so many bytes more; the number is 0 for those of the connection."""
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
    said = _cut(text)
    told = trailers if len(trailers) + len(said) <= _ANSWER_BYTES else b""
    head = ENDED.pack(code, status, err_no, min(retry_after_s, _MAX), len(said), len(told))
    return head + said + told


def _cut(text: str) -> bytes:
    data = text.encode("utf-8", "backslashreplace")
    return (
        data if len(data) <= _TEXT_BYTES else data[:_TEXT_BYTES].decode("utf-8", "ignore").encode()
    )


OnOpen = Callable[[int, int, int, bytes, int, int], None]
"""Takes flags, method and id of an OPEN, and bytes with the places where its payload is."""

OnFrame = Callable[[int, int, int, bytes], None]
"""Takes kind, flags, id and payload of any other frame."""


class Inbox:
    """A reader that finds the frames in a peer's bytes, however these are cut.

    Args:
        on_open: takes each OPEN.
        on_frame: takes each other frame.
    """

    __slots__ = ("_needed", "_on_frame", "_on_open", "_rest")

    def __init__(self, on_open: OnOpen, on_frame: OnFrame) -> None:
        self.use(on_open, on_frame)
        self._rest = bytearray()  # of a frame that has not arrived in whole
        self._needed = 0  # bytes that it has to have

    def use(self, on_open: OnOpen, on_frame: OnFrame) -> None:
        """Hand frames on to these from now on."""
        self._on_open = on_open
        self._on_frame = on_frame

    def take(self, data: bytes) -> bool:
        """Hand on the frames that are there in whole; False: there is none. Raises BrokenError."""
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
        """Return the size of the frames that are there in whole."""
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
    """Credit for DATA that is given to a peer, of one call or of all."""

    __slots__ = ("_left", "_owed", "_size")

    def __init__(self, size: int) -> None:
        self._size = self._left = size
        self._owed = 0

    def take(self, size: int) -> bool:
        """Note that so much has come; False: there was no credit for it."""
        self._left -= size
        return self._left >= 0

    def give_back(self, size: int) -> int:
        """Note that so much was used, and return the bytes of a CREDIT that is due; 0: none."""
        self._owed += size
        if self._owed < self._size // 2:
            return 0
        due, self._owed = self._owed, 0
        self._left += due
        return due


class Sending:
    """Messages of one call that are cut to pieces: long ones, and all of a stream.

    Attributes:
        number: the call's id.
        credit: bytes of DATA that the peer takes.
        size: bytes that wait.
        room: done when few of them do.
        waiting: messages, of the first what is left.
        end: what ends the call behind them; None: nothing so far.
        is_queued: whether it waits for its turn.
    """

    __slots__ = ("credit", "end", "is_queued", "number", "room", "size", "waiting")

    def __init__(self, number: int, credit: int) -> None:
        self.number: int = number
        self.credit: int = credit
        self.size: int = 0
        self.room: asyncio.Future[None] | None = None
        self.waiting: deque[memoryview] = deque()
        self.end: bytes | None = None
        self.is_queued: bool = False

    @property
    def needs_credit(self) -> bool:
        """True if the next frame takes some."""
        return bool(self.waiting) and len(self.waiting[0]) > 0

    @property
    def is_over(self) -> bool:
        """True when nothing is left to send."""
        return not self.waiting and self.end is None

    def make_room(self) -> None:
        """Wake who waits for its messages to be taken."""
        if self.room is not None and not self.room.done():
            self.room.set_result(None)


class Outbox:
    """A writer to a peer: short messages in one packet, long ones piece by piece between them.

    Args:
        loop: the event loop that calls it.
        write: of the connection's transport.

    Attributes:
        credit: bytes of DATA that the peer takes on this connection.
        call_credit: those with which each call begins.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, write: Callable[[bytes], None]) -> None:
        self.credit: int = 0
        self.call_credit: int = 0
        self._loop = loop
        self._write = write
        self._short: list[bytes] = []
        self._sendings: dict[int, Sending] = {}
        self._turns: deque[Sending] = deque()
        self._is_full = False
        self._is_awaited = False  # a flush

    @property
    def has_long(self) -> bool:
        """True while pieces of long messages wait."""
        return bool(self._turns)

    # What is sent ---------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send a frame, together with the others that get ready in this round of the loop."""
        self._short.append(data)
        if not self._is_awaited:
            self._is_awaited = True
            self._loop.call_soon(self.flush)

    def answer(self, number: int, message: bytes) -> None:
        """Answer a unary call, and end it."""
        size = len(message)
        if size <= _ANSWER_BYTES:
            head = HEAD.pack(len(_SUCCESS) + size, END, _WHOLE, 0, number)
            self.send(head + _SUCCESS + message)
        else:
            sending = self.begin(number)
            self.add(sending, message)
            self.finish(sending, _SUCCESS)

    def fail(self, number: int, end: bytes) -> None:
        """End a call without an answer, as `end_of` says, behind what is being sent of it."""
        if (sending := self._sendings.get(number)) is not None:
            self.finish(sending, end)
        else:
            self.send(frame(END, number, end, LAST))

    def begin(self, number: int) -> Sending:
        """Return what sends the messages of a call."""
        sending = self._sendings[number] = Sending(number, self.call_credit)
        return sending

    def add(self, sending: Sending, message: bytes) -> None:
        """Send a message behind those that wait."""
        sending.waiting.append(memoryview(message))
        sending.size += len(message)
        self._queue(sending)

    def finish(self, sending: Sending, end: bytes = _SUCCESS) -> None:
        """End the call behind them."""
        sending.end = end
        self._queue(sending)

    def drop(self, number: int) -> None:
        """Forget what is left of a call."""
        if (sending := self._sendings.pop(number, None)) is not None:
            sending.waiting.clear()
            sending.end = None
            sending.size = 0
            if sending.is_queued:
                self._turns.remove(sending)
            sending.make_room()

    def add_credit(self, number: int, size: int) -> None:
        """Send `size` bytes more of DATA, of one call or, with 0, of all."""
        if number == 0:
            self.credit += size
        elif (sending := self._sendings.get(number)) is not None:
            sending.credit += size
            self._queue(sending)
        if self._turns:
            self._flush_soon()

    # How it is written ----------------------------------------------------------------------

    def flush(self) -> None:
        """Write all short messages, and of long ones as much as the peer takes."""
        self._is_awaited = False
        packet, self._short = self._short, []
        if self._turns and not self._is_full:
            self._add_pieces(packet, _FLUSH_BYTES)
            if self._turns and self._can_go_on:
                self._flush_soon()
        if packet:
            self._write(b"".join(packet) if len(packet) > 1 else packet[0])

    def empty(self) -> None:
        """Write all that there is credit for, whether the peer takes it or not."""
        packet, self._short = self._short, []
        while self._turns and self._can_go_on:
            self._add_pieces(packet, _FLUSH_BYTES)
        if packet:
            self._write(b"".join(packet))

    def clear(self) -> None:
        """Forget all that is not written."""
        self._short.clear()
        for number in list(self._sendings):
            self.drop(number)

    def pause(self) -> None:
        """Hold long messages back: the peer does not take more."""
        self._is_full = True

    def resume(self) -> None:
        """Go on: the peer takes more."""
        self._is_full = False
        self.flush()

    @property
    def _can_go_on(self) -> bool:
        """True if the next in turn has something that the connection has credit for."""
        return self.credit > 0 or not self._turns[0].needs_credit

    def _queue(self, sending: Sending) -> None:
        if sending.is_queued or sending.is_over:
            return
        if sending.credit > 0 or not sending.needs_credit:
            sending.is_queued = True
            self._turns.append(sending)
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_awaited:
            self._is_awaited = True
            self._loop.call_soon(self.flush)

    def _add_pieces(self, packet: list[Any], most: int) -> None:
        """Add pieces of the calls in turn, up to about `most` bytes."""
        while self._turns and most > 0 and self._can_go_on:
            sending = self._turns.popleft()
            sending.is_queued = False
            if sending.waiting:
                most -= self._add_piece(packet, sending)
                self._queue(sending)
            elif sending.end is not None:
                packet.append(frame(END, sending.number, sending.end, LAST))
                sending.end = None
                self._sendings.pop(sending.number, None)

    def _add_piece(self, packet: list[Any], sending: Sending) -> int:
        rest = sending.waiting.popleft()
        size = min(len(rest), FRAME_BYTES, sending.credit, self.credit)
        flags = MESSAGE
        if size < len(rest):
            sending.waiting.appendleft(rest[size:])
            flags |= MORE
        packet.append(HEAD.pack(size, DATA, flags, 0, sending.number))
        packet.append(rest[:size])
        sending.credit -= size
        self.credit -= size
        sending.size -= size
        if sending.room is not None and sending.size < FRAME_BYTES:
            sending.make_room()
        return HEAD.size + size


def fields(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Return names and values as metadata and trailers have them."""
    return "".join(f"{name}\n{value}\n" for name, value in pairs).encode("latin-1")
