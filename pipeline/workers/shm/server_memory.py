"""ServerMemory: what the server and its workers keep in shared memory, and until when."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from pipeline.engine.run.payload import MemoryDomain
from pipeline.workers.shm.arena import Arena, Block, RegionAllocator
from pipeline.workers.shm.payload import Loads, SerializedPayload, SharedPayload, serialize
from pipeline.workers.shm.pickling import anything_of, data_of


class ServerMemory(MemoryDomain):
    """The server's side of the arena, the memory domain of worker processes.

    Each process writes to a region of its own and alone decides what of it is free; this one
    writes what comes from the frontends and from thread Ops. A worker's block is in use as long
    as a SharedPayload refers to it; then its worker is told, with the next frame that it gets.
    The region of a worker that has ended is used again when its last block is free.

    Args:
        arena: that all share.
        trusts_workers: whether what a worker has serialized is opened here whatever is in it.
    """

    def __init__(self, arena: Arena, trusts_workers: bool = False) -> None:
        self.arena = arena
        self._loads: Loads = anything_of if trusts_workers else data_of
        own = arena.new_region()
        self.own_region: int = own
        self._own = RegionAllocator(arena.view(own), own)
        self._released: deque[Block] = deque()
        self._freed: dict[int, list[Block]] = {}
        self._used: Counter[int] = Counter()

    def alloc(self, size: int) -> Block | None:
        """Return a block to write to; None when there is no room."""
        self._settle()
        return self._own.alloc(size)

    def free(self, block: Block) -> None:
        """Give back a block that came to nothing."""
        self._own.free(block)

    def serialize(self, payload: Any) -> SharedPayload:
        """Serialize a payload that is to leave this process. Raises as `payload.serialize` does."""
        return self._payload(serialize(payload, self, self.arena), anything_of, "")

    def payload(self, serialized: SerializedPayload, maker: str = "") -> SharedPayload:
        """Take charge of what was serialized by a worker of the Op `maker`."""
        return self._payload(serialized, self._loads, maker)

    def _payload(self, serialized: SerializedPayload, loads: Loads, maker: str) -> SharedPayload:
        for block in serialized.buffers:
            self._used[block.region] += 1
        return SharedPayload(serialized, self.arena, self._released.extend, loads, maker)

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
        """Take note that the worker that wrote to `region` has ended."""
        del self._freed[region]
        self._recycle_if_unused(region)

    @property
    def used(self) -> int:
        """Blocks that are in use, here and in the workers' regions."""
        self._settle()
        return sum(self._used.values())

    def close(self) -> None:
        """Unmap everything; what still refers to it must not be opened any more."""
        self.arena.close()

    def _settle(self) -> None:
        """SharedPayloads die in any thread: what they held is looked at here, on the loop."""
        released = self._released
        while released:
            block = released.popleft()
            region = block.region
            self._used[region] -= 1
            if region == self.own_region:
                self._own.free(block)
            elif region in self._freed:
                self._freed[region].append(block)
            else:
                self._recycle_if_unused(region)

    def _recycle_if_unused(self, region: int) -> None:
        if not self._used[region]:
            del self._used[region]
            self.arena.recycle(region)
