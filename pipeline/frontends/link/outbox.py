"""Outbox: sends messages to a peer, in fair turns and within its credit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pipeline.frontends.link.frames import (
    DATA,
    END,
    FRAME_BYTES,
    HEAD,
    LAST,
    MESSAGE,
    MORE,
    SUCCESS,
    BrokenError,
    answered,
    frame,
    placed,
    reset,
)
from pipeline.frontends.link.memory import GatewayMemory, InReach
from pipeline.proto.slices import Piece

Message = bytes | Sequence[Piece]
"""A message, in one piece or several; those in pieces are long."""

_FLUSH_BYTES = 4 * FRAME_BYTES  # of long messages; then the event loop has others to see to


class Sending:
    """Messages of one call that are cut to pieces: long ones, and all of a stream.

    Attributes:
        number: the call's id.
        credit: bytes of DATA that the peer takes.
        size: bytes that wait.
        room: done when few of them do.
        waiting: pieces of messages (the rest of the first one), and whether the message continues.
        end: the END that follows them; None: not yet.
        is_queued: whether it waits for its turn.
    """

    __slots__ = ("credit", "end", "is_queued", "number", "room", "size", "waiting")

    def __init__(self, number: int, credit: int) -> None:
        self.number: int = number
        self.credit: int = credit
        self.size: int = 0
        self.room: asyncio.Future[None] | None = None
        self.waiting: deque[tuple[memoryview, bool]] = deque()
        self.end: bytes | None = None
        self.is_queued: bool = False

    @property
    def needs_credit(self) -> bool:
        """True if the next frame takes some."""
        return bool(self.waiting) and len(self.waiting[0][0]) > 0

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
        call_credit: bytes of DATA that the peer takes of a call, to begin with.
        stream_credit: those of a stream.
        memory: that it shares with the peer; None: none.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, write: Callable[[bytes], None]) -> None:
        self.call_credit: int = 0
        self.stream_credit: int = 0
        self.memory: GatewayMemory | None = None
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

    # Sending ---------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send a frame, together with the others that get ready in this round of the loop."""
        self._short.append(data)
        if not self._is_awaited:
            self._is_awaited = True
            self._loop.call_soon(self.flush)

    def answer(self, number: int, message: Message | InReach, end: bytes = SUCCESS) -> None:
        """Answer a unary call, and end it as `end` says."""
        if isinstance(message, bytes):
            if len(message) + len(end) <= FRAME_BYTES:
                self.send(answered(number, message, end))
                return
            message = (message,)
        elif isinstance(message, InReach):
            assert self.memory is not None, "it has found it"
            self.send(placed(number, end, self.memory.keep(number, message)))
            return
        sending = self._begin(number, self.call_credit)
        self._add(sending, message)
        self.finish(sending, end)

    def fail(self, number: int, end: bytes) -> None:
        """End a call without an answer, as `end_of` says, behind what is being sent of it."""
        if (sending := self._sendings.get(number)) is not None:
            self.finish(sending, end)
        else:
            self.send(frame(END, number, end, LAST))

    def begin(self, number: int) -> Sending:
        """Return what sends the messages of a stream."""
        return self._begin(number, self.stream_credit)

    def _begin(self, number: int, credit: int) -> Sending:
        sending = self._sendings[number] = Sending(number, credit)
        return sending

    def add(self, sending: Sending, message: bytes) -> None:
        """Send a message after the waiting ones."""
        self._add(sending, (message,))

    def _add(self, sending: Sending, pieces: Sequence[Piece]) -> None:
        for index, piece in enumerate(pieces, start=1):
            sending.waiting.append((memoryview(piece), index < len(pieces)))
            sending.size += len(piece)
        self._queue(sending)

    def finish(self, sending: Sending, end: bytes = SUCCESS) -> None:
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
        """Send `size` bytes more of DATA of a call."""
        if (sending := self._sendings.get(number)) is not None:
            sending.credit += size
            self._queue(sending)

    # Messages in shared memory
    # -----------------------------------------------------------------------

    def message_at(self, places: bytes) -> memoryview:
        """Return the message of the peer that lies there. Raises BrokenError."""
        if self.memory is None:
            raise BrokenError("a message in memory that is not shared")
        return self.memory.message(places)

    def refuse(self, number: int, places: bytes, reason: int, text: str = "") -> None:
        """Begin nothing for a call, whose message is free if it lies in memory."""
        if places:
            self.message_at(places)
        self.send(reset(number, reason, text))

    # How it is written ----------------------------------------------------------------------

    def flush(self) -> None:
        """Write all short messages, and of long ones as much as the peer takes."""
        self._is_awaited = False
        packet, self._short = self._short, []
        memory = self.memory
        if memory is not None and memory.lent and (freed := memory.freed()):
            packet.append(freed)
        if self._turns and not self._is_full:
            self._add_pieces(packet, _FLUSH_BYTES)
            if self._turns:
                self._flush_soon()
        if packet:
            self._write(b"".join(packet) if len(packet) > 1 else packet[0])

    def empty(self) -> None:
        """Write everything that has credit, whether the peer takes it or not."""
        packet, self._short = self._short, []
        while self._turns:
            self._add_pieces(packet, _FLUSH_BYTES)
        if packet:
            self._write(b"".join(packet))

    def clear(self) -> None:
        """Drop everything that is not written."""
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
        while self._turns and most > 0:
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
        rest, goes_on = sending.waiting.popleft()
        size = min(len(rest), FRAME_BYTES, sending.credit)
        if size < len(rest):
            sending.waiting.appendleft((rest[size:], goes_on))
            goes_on = True
        flags = MESSAGE | MORE if goes_on else MESSAGE
        packet.append(HEAD.pack(size, DATA, flags, 0, sending.number))
        packet.append(rest[:size])
        sending.credit -= size
        sending.size -= size
        if sending.room is not None and sending.size < FRAME_BYTES:
            sending.make_room()
        return HEAD.size + size
