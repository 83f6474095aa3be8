"""Frames of the link between our gateway and a LinkFrontend, on a Unix socket.

All numbers are big-endian. A frame is

    u32 size of what follows, u8 kind, u64 id, body

and a body has at most 64 KiB: a longer message is cut, so that the frames of others pass between
two of its pieces. All pieces but the last come as MORE or MORE_BACK; they and the body of the last
one are the message. The bodies, first those from the gateway, then those to it, are

    1  ASK        i64 nanoseconds that the caller gives (negative: it did not say), u16 size of its
                  traceparent, the traceparent, and a Request in protobuf; before that, in version
                  3, u16 size of the headers, and of each its name and its value, ended by \\n
    2  CANCEL     empty; the caller of this id has left: there is no answer any more, and no piece
    3  MORE       a piece of an ASK; the first has all that is before the Request
    4  PING       empty; to be answered at once, with the same id
    16 READY      u8 version of this format (3 is 2 with the headers of requests, for a server
                  with `dag.forward_headers`), u8 1 if the server is ready, else 0; the id is 0. The
                  first frame of a connection, and one at every change
    17 ANSWER     a Response in protobuf
    18 FAILURE    u16 HTTP status, i32 err_no, u16 seconds of Retry-After or 0, and the text in
                  UTF-8: as the HTTP frontend answers
    19 MORE_BACK  a piece of an ANSWER or a FAILURE
    20 PONG       empty

Ids are the gateway's: any that is not in flight. Each is answered once, in any order. A gateway
sends a PING at least every half a second; who says nothing for long is gone, to either side. Both
sides are of one version: a gateway refuses a server of another. pipeline/gateway/internal/link has
the other side.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

VERSION = 2
HEADED_VERSION = 3

ASK, CANCEL, MORE, PING = 1, 2, 3, 4
READY, ANSWER, FAILURE, MORE_BACK, PONG = 16, 17, 18, 19, 20

PIECE_BYTES = 64 * 1024
"""Most of a frame's body."""

HEAD = struct.Struct(">IBQ")
ASKED = struct.Struct(">qH")  # what is before the traceparent
STATE = struct.Struct(">BB")
FAILED = struct.Struct(">HiH")

_COUNTED = HEAD.size - 4  # of the head; the size itself is not
_PIECES_AT_ONCE = 4  # then the event loop has others to see to


class BrokenError(Exception):
    """A peer sent something that is no frame."""


class LinkFrame(NamedTuple):
    """One from a gateway."""

    kind: int
    number: int
    body: bytes


class Inbox:
    """A reader that finds the frames in a gateway's bytes, however these are cut."""

    __slots__ = ("_needed", "_rest")

    def __init__(self) -> None:
        self._rest = bytearray()  # of a frame that has not arrived in whole
        self._needed = 0  # bytes that it has to have

    def take(self, data: bytes, use: Callable[[LinkFrame], None]) -> None:
        """Hand on the frames that are there in whole. Raises BrokenError."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data = bytes(self._rest)
        taken = self._take(data, use)
        if taken < len(data) or self._rest:
            self._rest = bytearray(data[taken:])

    def _take(self, data: bytes, use: Callable[[LinkFrame], None]) -> int:
        """Return the size of the frames that are there in whole."""
        start, there = 0, len(data)
        while there - start >= HEAD.size:
            size, kind, number = HEAD.unpack_from(data, start)
            if not ASK <= kind <= PING or not 0 <= size - _COUNTED <= PIECE_BYTES:
                raise BrokenError(f"a frame of kind {kind} with {size} bytes")
            body = start + HEAD.size
            end = body + size - _COUNTED
            if end > there:
                self._needed = end - start
                return start
            use(LinkFrame(kind, number, data[body:end]))
            start = end
        self._needed = HEAD.size
        return start


class Outbox:
    """A writer to a gateway: small messages in one packet, large ones piece by piece between them.

    Args:
        loop: the event loop that calls it.
        write: of the connection's transport.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, write: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._write = write
        self._small: list[bytes] = []
        self._large: deque[tuple[int, int, memoryview]] = deque()
        self._is_full = False
        self._is_awaited = False  # a flush

    @property
    def has_large(self) -> bool:
        """True while pieces of large messages wait."""
        return bool(self._large)

    def send(self, kind: int, number: int, body: bytes) -> None:
        """Send a message, together with the others that get ready in this round of the loop."""
        if len(body) > PIECE_BYTES:
            self._large.append((kind, number, memoryview(body)))
        else:
            self._small.append(_head(kind, number, len(body)) + body)
        self._flush_soon()

    def drop(self, number: int) -> None:
        """Forget what is left of the large message of this id."""
        if self._large:
            self._large = deque(each for each in self._large if each[1] != number)

    def flush(self) -> None:
        """Write all small messages, and of large ones as much as the gateway takes."""
        self._is_awaited = False
        self._write_small()
        for _ in range(_PIECES_AT_ONCE):
            if not self._large or self._is_full:
                return
            self._write_piece()
        if self._large and not self._is_full:
            self._flush_soon()

    def empty(self) -> None:
        """Write all that there is, whether the gateway takes it or not."""
        self._write_small()
        while self._large:
            self._write_piece()

    def clear(self) -> None:
        """Forget all that is not written."""
        self._small.clear()
        self._large.clear()

    def pause(self) -> None:
        """Hold large messages back: the gateway does not take more."""
        self._is_full = True

    def resume(self) -> None:
        """Go on: the gateway takes more."""
        self._is_full = False
        self.flush()

    def _flush_soon(self) -> None:
        if not self._is_awaited:
            self._is_awaited = True
            self._loop.call_soon(self.flush)

    def _write_small(self) -> None:
        if self._small:
            self._write(b"".join(self._small))
            self._small.clear()

    def _write_piece(self) -> None:
        kind, number, rest = self._large.popleft()
        piece = rest[:PIECE_BYTES]
        if len(piece) < len(rest):
            self._large.append((kind, number, rest[PIECE_BYTES:]))
            kind = MORE_BACK
        self._write(b"".join((_head(kind, number, len(piece)), piece)))


def _head(kind: int, number: int, size: int) -> bytes:
    return HEAD.pack(_COUNTED + size, kind, number)
