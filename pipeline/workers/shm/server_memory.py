"""ServerMemory: the server's data in shared memory, and its lifetime."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from pipeline.engine.run.payload import ALIGNMENT, MemoryDomain
from pipeline.workers.shm.arena import MIN_BLOCK_BYTES, Arena, Block, RegionAllocator, address_of
from pipeline.workers.shm.payload import (
    BlockLease,
    Loads,
    MemoryHold,
    SerializedPayload,
    SharedPayload,
    serialize,
)
from pipeline.workers.shm.pickling import anything_of, data_of


class ServerMemory(MemoryDomain):
    """The server's side of the arena, the memory domain of worker processes.

    Each process writes to a region of its own and alone decides which parts of it are free; the
    server writes data of the frontends and of thread Ops. A worker's block is in use as long as a
    SharedPayload refers to it; then the next frame to its worker reports it as free. The region of
    a worker that has ended is used again when its last block is free.

    Args:
        arena: shared by all.
        trusts_workers: whether a worker's payloads are opened here without checks.
    """

    is_mapped: ClassVar[bool] = True
    min_bytes: ClassVar[int] = MIN_BLOCK_BYTES

    def __init__(self, arena: Arena, trusts_workers: bool = False) -> None:
        self.arena = arena
        self._loads: Loads = anything_of if trusts_workers else data_of
        own = arena.new_region()
        self.own_region: int = own
        self._own = RegionAllocator(arena.view(own), own)
        self.most_bytes: int = self._own.most_bytes
        self._released: deque[Block] = deque()
        self._freed: dict[int, list[Block]] = {}
        self._used: Counter[int] = Counter()
        self._placed: set[Block] = set()  # for bodies, by `place`
        self._placed_bytes = 0
        # of the payload that is being serialized
        self._kept: dict[Block, np.ndarray[Any, Any]] = {}

    def alloc(self, size: int) -> Block | None:
        """Return a block to write to; None: there is no room."""
        self._settle()
        return self._own.alloc(size)

    def free(self, block: Block) -> None:
        """Give back an unused block."""
        if block not in self._kept:
            self._own.free(block)

    def place(self, size: int, aligned_at: int = 0) -> np.ndarray[Any, Any]:
        """Return memory for a body, see MemoryDomain; `serialize` does not copy arrays there.

        Bodies that clients announce and do not send use only address space, at most half of the
        region.
        """
        pad = -aligned_at % ALIGNMENT
        block = None
        is_open = self.arena.fd >= 0  # bodies may still arrive at the very end
        if is_open and self._placed_bytes + size <= self.arena.region_bytes // 2:
            block = self.alloc(size + pad)
        if block is None:
            return super().place(size, aligned_at)
        self._placed.add(block)
        self._placed_bytes += block.size
        return self.body_of(block)[pad:]

    def body_of(self, block: Block) -> np.ndarray[Any, Any]:
        """Return the bytes of a block; the block stays in use until they are deleted."""
        self._used[block.region] += 1
        view = self.arena.read(block)
        return np.asarray(MemoryHold(view, BlockLease([block], self._released.extend)))

    def serialize(self, payload: Any) -> SharedPayload:
        """Serialize a payload for another process. Raises as `payload.serialize` does.

        An array that lies in the arena already is not copied.
        """
        kept = self._kept
        if kept:  # from a payload that could not be serialized
            kept = self._kept = {}
        serialized = serialize(payload, self, self.arena, find=self._find)
        if not kept:
            return self._payload(serialized, anything_of, "")
        self._kept = {}
        return self._payload(serialized, anything_of, "", kept)

    def _find(self, array: np.ndarray[Any, Any]) -> Block | None:
        block = self.arena.find(address_of(array), array.nbytes)
        if block is not None:
            self._kept[block] = array
        return block

    def payload(self, serialized: SerializedPayload, maker: str = "") -> SharedPayload:
        """Take over a payload that a worker of the Op `maker` has serialized."""
        return self._payload(serialized, self._loads, maker)

    def _payload(
        self,
        serialized: SerializedPayload,
        loads: Loads,
        maker: str,
        kept: Mapping[Block, np.ndarray[Any, Any]] = {},
    ) -> SharedPayload:
        for block in serialized.buffers:
            if block not in kept:
                self._used[block.region] += 1
        return SharedPayload(serialized, self.arena, self._released.extend, loads, maker, kept)

    def open_region(self) -> int:
        """Return a region for a new worker."""
        region = self.arena.new_region()
        self._freed[region] = []
        return region

    def take_freed(self, region: int) -> list[Block]:
        """Return the worker's blocks that became free since the last call."""
        self._settle()
        freed = self._freed[region]
        if freed:
            self._freed[region] = []
        return freed

    def close_region(self, region: int) -> None:
        """Note that the worker that wrote to `region` has ended."""
        del self._freed[region]
        self._recycle_if_unused(region)

    @property
    def used(self) -> int:
        """Return how many blocks are in use, here and in the workers' regions."""
        self._settle()
        return sum(self._used.values())

    def close(self) -> None:
        """Unmap everything; payloads must not be opened any more."""
        self.arena.close()

    def _settle(self) -> None:
        """Free the blocks of SharedPayloads that died in any thread; on the loop."""
        released = self._released
        while released:
            block = released.popleft()
            region = block.region
            self._used[region] -= 1
            if region == self.own_region:
                self._own.free(block)
                if block in self._placed:
                    self._placed.remove(block)
                    self._placed_bytes -= block.size
            elif region in self._freed:
                self._freed[region].append(block)
            else:
                self._recycle_if_unused(region)

    def _recycle_if_unused(self, region: int) -> None:
        if not self._used[region]:
            del self._used[region]
            self.arena.recycle(region)
