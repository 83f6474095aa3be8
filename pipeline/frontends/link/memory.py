"""GatewayMemory: what a server and one gateway share, so that payloads need not pass the link."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, cast

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

_LONG_BYTES = 16 * 1024  # of a piece that is not worth a copy
_AT_ONCE_BYTES = 256 * 1024  # of a copy, which takes 0.05 ms
_MOST_FREED = FRAME_BYTES // 8


class GatewayMemory:
    """One gateway's region of the server's memory, and the answers that the gateway reads.

    It is taken back when the process of the gateway has ended, not when the connection has: until
    then the gateway may write to what it was given, and read what it was told of.

    Args:
        memory: of the server.
        process: of the gateway; OSError: it cannot be watched.

    Attributes:
        is_mapped: the gateway has said that it reads and writes it.
        lent: blocks of the gateway's that it was not told to be free.
    """

    def __init__(self, memory: ServerMemory, process: int) -> None:
        self._process = os.pidfd_open(process)
        self._memory = memory
        self._region = memory.open_region()
        self._read_by_gateway: dict[int, Any] = {}  # answers, by their calls
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_mapped: bool = False
        self.lent: int = 0

    @property
    def told(self) -> SharedRegion:
        """Return what the gateway has to know, beside the descriptor."""
        return SharedRegion(self._region, self._memory.arena.region_bytes)

    @property
    def fd(self) -> int:
        """Return the descriptor of the memory."""
        return self._memory.arena.fd

    def message(self, data: bytes) -> memoryview:
        """Return the message that lies where `data` say. Raises BrokenError.

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
        """Return what tells the gateway which of its blocks are free; b"": none are."""
        blocks = self._memory.take_freed(self._region)
        offsets = [block.offset for block in blocks]
        self.lent -= len(offsets)
        starts = range(0, len(offsets), _MOST_FREED)
        return b"".join(freed(offsets[at : at + _MOST_FREED]) for at in starts)

    # Answers --------------------------------------------------------------------------------

    def places(
        self, number: int, pieces: Sequence[Piece], most_bytes: int
    ) -> list[bytes | PlacedBytes] | None:
        """Return where the pieces of an answer lie, which stay until the gateway has read them.

        None: a long one lies elsewhere, or a frame has no room for so many.

        Args:
            most_bytes: of a frame, for the places and the short pieces themselves.
        """
        found: list[bytes | PlacedBytes] = []
        for piece in pieces:
            most_bytes -= PLACE.size
            if len(piece) < _LONG_BYTES:
                most_bytes -= len(piece)
                found.append(bytes(piece))
            elif (block := self._find(piece)) is not None:
                found.append(block)
            else:
                return None
            if most_bytes < 0:
                return None
        self._read_by_gateway[number] = pieces
        return found

    def _find(self, piece: Piece) -> Block | None:
        array = np.frombuffer(piece, np.uint8)
        return self._memory.arena.find(address_of(array), array.nbytes)

    def _room(self, size: int) -> np.ndarray[Any, Any] | None:
        """Return room for an answer that lies elsewhere; None: there is none."""
        try:
            found = self._memory.place(size)
        except OverloadedError:
            return None
        return found if self._find(found.data) is not None else None

    def in_reach(self, pieces: Sequence[Piece]) -> Sequence[Piece] | None:
        """Return an answer as it is to be sent; None: it is long, and is to be `copied` first."""
        if not self.is_mapped or all(len(p) < _LONG_BYTES or self._find(p) for p in pieces):
            return pieces
        size = sum(map(len, pieces))
        if size > _AT_ONCE_BYTES:
            return None
        room = self._room(size)
        if room is None:
            return pieces
        _gather(pieces, room)
        return (room.data,)

    async def copied(self, pieces: Sequence[Piece], offload: Offload) -> Sequence[Piece]:
        """Return a long answer where the gateway can read it, if there is room for it."""
        room = self._room(sum(map(len, pieces)))
        if room is None:
            return pieces
        await offload.run(functools.partial(_gather, pieces, room))
        return (room.data,)

    def has_read(self, number: int) -> None:
        """Let go of an answer that the gateway has read."""
        self._read_by_gateway.pop(number, None)

    # The end --------------------------------------------------------------------------------

    def leave(self, loop: asyncio.AbstractEventLoop, ended: Callable[[], object]) -> None:
        """Take all of it back, and call `ended`, when the process of the gateway has ended."""

        def over() -> None:
            self.close()
            ended()

        if self._process >= 0:
            self._loop = loop
            loop.add_reader(self._process, over)

    def close(self) -> None:
        """Take all of it back: nobody else has it any more."""
        if self._loop is not None:
            self._loop.remove_reader(self._process)
        if self._process >= 0:
            os.close(self._process)
            self._process = -1
            self._read_by_gateway.clear()
            if self._memory.arena.fd >= 0:  # else it is gone in whole
                self._memory.close_region(self._region)


def _gather(pieces: Sequence[Piece], room: np.ndarray[Any, Any]) -> None:
    """Copy the pieces, one behind the other."""
    at = 0
    for piece in pieces:
        for part in sliced(np.frombuffer(piece, np.uint8), SLICE_BYTES):
            room[at : at + len(part)] = part
            at += len(part)


def sent_with(transport: asyncio.Transport, greeting: bytes, fd: int) -> int:
    """Send the first bytes of a connection with a descriptor; return how many were sent."""
    at = cast(socket.socket, transport.get_extra_info("socket")).fileno()
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(at)) as local:
        return socket.send_fds(local, [greeting], [fd])
    return 0
