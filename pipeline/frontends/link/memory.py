"""GatewayMemory: memory that a server shares with a gateway, so that payloads bypass the link."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from pipeline.engine.offload import Offload
from pipeline.errors import OverloadedError
from pipeline.frontends.link.frames import (
    FRAME_BYTES,
    PLACE,
    BrokenError,
    PlacedBytes,
    SharedRegion,
    freed,
)
from pipeline.proto.slices import SLICE_BYTES, Piece, sliced
from pipeline.workers.shm.arena import Block, address_of
from pipeline.workers.shm.server_memory import ServerMemory

_LONG_BYTES = 16 * 1024  # a longer piece is passed by its place
_AT_ONCE_BYTES = 256 * 1024  # copied at once, which takes 0.05 ms
_MOST_FREED = FRAME_BYTES // 8


class InReach(NamedTuple):
    """A long answer that the gateway can read.

    `pieces` keep its memory; `parts` are the short pieces, and the places of long ones.
    """

    pieces: Sequence[Piece]
    parts: list[bytes | PlacedBytes]


class GatewayMemory:
    """A gateway's region of the server's memory, and the answers that the gateway reads.

    The gateway gets one end of a pipe. It closes that end when it has unmapped the whole region,
    and the system closes it when the gateway's process ends. Only then is the region taken back,
    not at the end of the connection: until then the gateway may write to its places, and read the
    answers.

    Args:
        memory: of the server.

    Raises:
        OSError: this process may open no more files.

    Attributes:
        is_mapped: the gateway has reported that it reads and writes the region.
        lent: blocks of the gateway that were not reported as free.
    """

    def __init__(self, memory: ServerMemory) -> None:
        self._memory = memory
        self._region = memory.open_region()
        try:
            self._held, self._given = os.pipe()
        except OSError:
            memory.close_region(self._region)
            raise
        self._read_by_gateway: dict[int, Any] = {}  # answers, by call
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_mapped: bool = False
        self.lent: int = 0

    @property
    def description(self) -> SharedRegion:
        """Return the description of the region for the gateway; descriptors are sent separately."""
        return SharedRegion(self._region, self._memory.arena.region_bytes)

    def give(self, transport: asyncio.Transport, greeting: bytes) -> int:
        """Send the first bytes of a connection with the descriptors; return how many were sent."""
        sent, local = 0, cast(socket.socket, transport.get_extra_info("socket"))
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(local.fileno())) as sender:
            sent = socket.send_fds(sender, [greeting], [self._memory.arena.fd, self._given])
        os.close(self._given)
        return sent

    def message(self, data: bytes) -> memoryview:
        """Return the message at the place in `data`. Raises BrokenError.

        Its block is free when nothing refers to it any more.
        """
        if len(data) != PLACE.size:
            raise BrokenError(f"a message in memory with {len(data)} bytes of places")
        region, offset, size = PLACE.unpack(data)
        if region != self._region or offset + size > self._memory.arena.region_bytes:
            raise BrokenError(f"a message of {size} bytes at {offset} of region {region}")
        self.lent += 1
        body: memoryview = self._memory.body_of(Block(region, offset, size)).data
        return body

    def freed(self) -> bytes:
        """Return the frame with the blocks that are free again; b"": none."""
        blocks = self._memory.take_freed(self._region)
        offsets = [block.offset for block in blocks]
        self.lent -= len(offsets)
        starts = range(0, len(offsets), _MOST_FREED)
        return b"".join(freed(offsets[at : at + _MOST_FREED]) for at in starts)

    # Answers --------------------------------------------------------------------------------

    def in_reach(
        self, pieces: Sequence[Piece], most_bytes: int
    ) -> Sequence[Piece] | InReach | None:
        """Return an answer ready to be sent; None: it is long, and must be `copied` first.

        Args:
            most_bytes: of a frame, for all places and short pieces.
        """
        if not self.is_mapped:
            return pieces
        parts: list[bytes | PlacedBytes] = []
        for piece in pieces:
            most_bytes -= PLACE.size
            if len(piece) < _LONG_BYTES:
                most_bytes -= len(piece)
                parts.append(bytes(piece))
            elif (block := self._find(piece)) is not None:
                parts.append(block)
            else:
                return self._moved(pieces)
        return InReach(pieces, parts) if most_bytes >= 0 else pieces

    def _moved(self, pieces: Sequence[Piece]) -> Sequence[Piece] | InReach | None:
        size = sum(map(len, pieces))
        if size > _AT_ONCE_BYTES:
            return None
        room = self._room(size)
        if room is None:
            return pieces
        _gather(pieces, room.pieces[0])
        return room

    async def copied(self, pieces: Sequence[Piece], offload: Offload) -> Sequence[Piece] | InReach:
        """Return a long answer in memory that the gateway can read, if there is room."""
        room = self._room(sum(map(len, pieces)))
        if room is None:
            return pieces
        await offload.run(functools.partial(_gather, pieces, room.pieces[0]))
        return room

    def _room(self, size: int) -> InReach | None:
        """Return room for an answer in other memory, or None."""
        try:
            room = self._memory.place(size).data
        except OverloadedError:
            return None
        block = self._find(room)
        return None if block is None else InReach((room,), [block])

    def _find(self, piece: Piece) -> Block | None:
        array = np.frombuffer(piece, np.uint8)
        return self._memory.arena.find(address_of(array), array.nbytes)

    def keep(self, number: int, answer: InReach) -> list[bytes | PlacedBytes]:
        """Keep the answer to a call until the gateway has read it; return the message for the
        gateway.
        """
        self._read_by_gateway[number] = answer.pieces
        return answer.parts

    def has_read(self, number: int) -> None:
        """Release an answer that the gateway has read."""
        self._read_by_gateway.pop(number, None)

    # The end --------------------------------------------------------------------------------

    def leave(self, loop: asyncio.AbstractEventLoop, ended: Callable[[], object]) -> None:
        """Take the memory back when the gateway has released it, then call `ended`."""

        def over() -> None:
            self.close()
            ended()

        if self._held >= 0:
            self._loop = loop
            loop.add_reader(self._held, over)

    def close(self) -> None:
        """Take the memory back: no other process has it."""
        if self._loop is not None:
            self._loop.remove_reader(self._held)
        if self._held >= 0:
            os.close(self._held)
            self._held = -1
            self._read_by_gateway.clear()
            if self._memory.arena.fd >= 0:  # otherwise all of it is gone
                self._memory.close_region(self._region)


def _gather(pieces: Sequence[Piece], room: Piece) -> None:
    """Copy the pieces, one after the other."""
    at, whole = 0, np.frombuffer(room, np.uint8)
    for piece in pieces:
        for part in sliced(np.frombuffer(piece, np.uint8), SLICE_BYTES):
            whole[at : at + len(part)] = part
            at += len(part)
