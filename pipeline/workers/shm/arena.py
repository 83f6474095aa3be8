"""Shared memory of a server and its worker processes: regions, and the blocks in each of them."""

from __future__ import annotations

import bisect
import mmap
import os
import threading
from typing import Any, ClassVar

import msgspec
import numpy as np

from pipeline.engine.run.payload import ALIGNMENT
from pipeline.errors import InitError
from pipeline.system.resources import mappable_bytes

_PAGE = mmap.PAGESIZE
# Measured to another process and back: a block costs 12 us for any size, and so does the socket
# pair with 4 KiB of an array or 10 KiB of bytes; with 1 MiB the socket pair costs 3 ms more.
MIN_BLOCK_BYTES = 16 * 1024
# To touch a page for the first time costs more than to copy 4 KiB into it: so memory is returned in
# bulk only, and not all of it.
_MAX_KEPT_BYTES = 32 << 20
# All other Python code waits meanwhile: 30 ms.
_MAX_TRIMMED_BYTES = 64 << 20


class Block(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`size` bytes at `offset` of a region; messages contain it instead of the bytes."""

    region: int
    offset: int
    size: int


def new_arena(most_mib: int) -> Arena:
    """Return an arena with regions of at most `most_mib` MiB, and no more than can be mapped."""
    return Arena(min(most_mib * 2**20, mappable_bytes()))


class Arena:
    """One nameless file in memory, cut into regions of equal size; only touched pages use memory.

    The file system does not refer to it, so it vanishes with the last process that has it open or
    mapped, however that process ends. Forked processes inherit it; a spawned process gets it by
    pickling, and needs the file descriptor under the same number (`pass_fds`).

    The parent hands out the regions. Each is written by one process, through a `RegionAllocator`,
    and read by all. Not thread-safe.

    Args:
        region_bytes: address space of a region; a multiple of the page size.
        fd: of an existing file.

    Raises:
        InitError: this system has no `memfd_create`.
    """

    def __init__(self, region_bytes: int = 2**30, fd: int | None = None) -> None:
        if not hasattr(os, "memfd_create"):
            raise InitError(
                "process workers share memory through memfd_create, which only Linux has: "
                "use `workers: thread` here"
            )
        if region_bytes <= 0 or region_bytes % _PAGE:
            raise ValueError(f"a region of {region_bytes} bytes is not a number of whole pages")
        self.fd: int = os.memfd_create("pipeline") if fd is None else fd
        self.region_bytes = region_bytes
        self._count = os.fstat(self.fd).st_size // region_bytes
        self._unused: list[int] = []
        self._maps: dict[int, mmap.mmap] = {}
        self._mapping = threading.Lock()  # two maps of a region would have two addresses
        self._views: dict[int, memoryview] = {}
        self._places: list[tuple[int, int]] = []  # (address, region) of all maps, sorted

    def __reduce__(self) -> tuple[type[Arena], tuple[int, int]]:
        return Arena, (self.region_bytes, self.fd)

    def new_region(self) -> int:
        """Return the number of an unused region, filled with zeros. For the parent.

        Raises:
            InitError: the file cannot be that large.
        """
        if self._unused:
            return self._unused.pop()
        size = (self._count + 1) * self.region_bytes
        try:
            os.ftruncate(self.fd, size)
        except OSError as error:
            raise InitError(
                f"shared memory cannot have {size} bytes: {error}. Raise the limit of a file's "
                "size (ulimit -f), or set a smaller dag.shared_memory_mib"
            ) from error
        self._count += 1
        return self._count - 1

    def recycle(self, region: int) -> None:
        """Return the memory of `region` to the system, and its number to `new_region`. For the
        parent.

        Call it only when no process reads or writes the region any more.
        """
        if region in self._unused or not 0 <= region < self._count:
            raise ValueError(f"region {region} is not in use")
        self.view(region)
        self._maps[region].madvise(mmap.MADV_REMOVE, 0, self.region_bytes)
        self._unused.append(region)

    def view(self, region: int) -> memoryview:
        """Return all of `region`, writable; it is mapped at the first call in this process."""
        view = self._views.get(region)
        return self._map(region) if view is None else view

    def read(self, block: Block) -> memoryview:
        """Return the bytes of `block`, shared and writable."""
        end = block.offset + block.size
        if end > self.region_bytes:
            raise ValueError(f"{block} ends outside of its region")
        return self.view(block.region)[block.offset : end]

    def _map(self, region: int) -> memoryview:
        if region < 0 or self.fd < 0:  # mmap would take the latter for "any memory"
            raise ValueError(f"region {region} cannot be mapped: it does not exist, or is closed")
        with self._mapping:
            if region not in self._views:
                start = region * self.region_bytes
                self._maps[region] = mapped = mmap.mmap(self.fd, self.region_bytes, offset=start)
                # A core dump would contain all of it, also what no process has touched.
                mapped.madvise(mmap.MADV_DONTDUMP)
                self._views[region] = view = memoryview(mapped)
                bisect.insort(self._places, (address_of(np.frombuffer(view, np.uint8)), region))
            return self._views[region]

    def find(self, address: int, size: int) -> Block | None:
        """Return the bytes at an address of this process as a block; None: they are elsewhere."""
        place = bisect.bisect(self._places, (address, self._count)) - 1
        if place < 0:
            return None
        start, region = self._places[place]
        offset = address - start
        return Block(region, offset, size) if offset + size <= self.region_bytes else None

    def close(self) -> None:
        """Forget the memory in this process. Memory with a view lives as long as the view."""
        self._views.clear()
        self._places.clear()
        for mapped in self._maps.values():
            try:
                mapped.close()
            except BufferError:  # it is still read: unmapped when the last view goes
                continue
        self._maps.clear()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class RegionAllocator:
    """Cuts blocks from one region: first fit from the lowest address, so that memory stays dense.

    For the only process that writes the region; not thread-safe. `used` is the number of allocated
    bytes, rounded up to whole lines of 64 bytes for each block.

    Args:
        view: all of the region, from `Arena.view`.
        region: its number.
        reserved: bytes at the beginning that are never allocated (the worker's status page).
        keep_bytes: memory that may stay after the last block for the next burst; at least two
            pages. Each `free` returns up to 64 MiB of more to the system, down to half of this.

    Attributes:
        min_bytes: shorter values stay in the message.
        most_bytes: size of all blocks together, when it is empty.
    """

    min_bytes: ClassVar[int] = MIN_BLOCK_BYTES

    def __init__(
        self, view: memoryview, region: int, reserved: int = 4096, keep_bytes: int = _MAX_KEPT_BYTES
    ) -> None:
        assert isinstance(view.obj, mmap.mmap), "the view of a whole region"
        self.region = region
        self.used: int = 0
        self._mapped = view.obj
        self._size = len(view)
        self._keep = keep_bytes
        # Free ranges by address; between two of them there is always a block.
        self._starts = [_up(reserved, ALIGNMENT)]
        self._ends = [self._size]
        self.most_bytes: int = self._size - self._starts[0]
        self._sizes: dict[int, int] = {}  # of blocks by their offsets
        self._touched = 0  # no page from here on has memory

    def alloc(self, size: int) -> Block | None:
        """Return a block of `size` bytes, or None if there is no room for it."""
        if size < 0:
            raise ValueError(f"a block cannot have {size} bytes")
        needed = _up(size, ALIGNMENT) or ALIGNMENT
        for place, start in enumerate(self._starts):
            if self._ends[place] - start >= needed:
                break
        else:
            return None
        end = start + needed
        if end == self._ends[place]:
            del self._starts[place], self._ends[place]
        else:
            self._starts[place] = end
        self._sizes[start] = size
        self.used += needed
        self._touched = max(self._touched, end)
        return Block(self.region, start, size)

    def free(self, block: Block) -> None:
        """Free `block`.

        Raises:
            ValueError: it was not allocated here, or was freed before.
        """
        if block.region != self.region or self._sizes.get(block.offset) != block.size:
            raise ValueError(f"{block} is not given out from region {self.region}")
        del self._sizes[block.offset]
        start, end = block.offset, block.offset + (_up(block.size, ALIGNMENT) or ALIGNMENT)
        self.used -= end - start
        place = bisect.bisect(self._starts, start)
        if place < len(self._starts) and self._starts[place] == end:
            end = self._ends[place]
            del self._starts[place], self._ends[place]
        if place and self._ends[place - 1] == start:
            self._ends[place - 1] = end
        else:
            self._starts.insert(place, start)
            self._ends.insert(place, end)
        if self._touched - self._starts[-1] > self._keep and self._ends[-1] == self._size:
            self._trim()

    def _trim(self) -> None:
        """Return memory of the last free range to the system: so much that it is quick."""
        end = _up(self._touched, _PAGE)
        kept = max(_up(self._starts[-1] + self._keep // 2, _PAGE), end - _MAX_TRIMMED_BYTES)
        self._mapped.madvise(mmap.MADV_REMOVE, kept, end - kept)
        self._touched = kept


def address_of(array: np.ndarray[Any, Any]) -> int:
    """Return the address of the first byte of an array."""
    address: int = array.__array_interface__["data"][0]
    return address


def _up(size: int, unit: int) -> int:
    """Return `size` rounded up to a multiple of `unit`, a power of two."""
    return (size + unit - 1) & -unit
