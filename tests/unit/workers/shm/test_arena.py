from __future__ import annotations

import collections
import contextlib
import errno
import mmap
import os
from resource import RLIM_INFINITY, RLIMIT_AS, RLIMIT_FSIZE

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import InitError
from pipeline.system import resources
from pipeline.workers.shm.arena import Arena, Block, RegionAllocator, new_arena

PAGE = mmap.PAGESIZE
MIB = 2**20


def resident(arena: Arena) -> int:
    """Bytes of memory behind the arena."""
    return os.fstat(arena.fd).st_blocks * 512


def test_regions_have_separate_numbers_and_memory(arena):
    regions = [arena.new_region() for _ in range(3)]
    assert regions == [0, 1, 2]
    for region in regions:
        view = arena.view(region)
        assert len(view) == MIB
        assert bytes(view) == bytes(MIB)
        view[:] = bytes([region + 1]) * MIB
    assert [{*arena.view(region)} for region in regions] == [{1}, {2}, {3}]


def test_an_untouched_region_uses_no_memory(arena):
    arena.view(arena.new_region())
    assert resident(arena) == 0


def test_a_recycled_region_uses_no_memory_and_is_zeroed(arena):
    first, second = arena.new_region(), arena.new_region()
    for region in (first, second):
        arena.view(region)[:] = b"x" * MIB
    arena.recycle(first)
    assert resident(arena) == MIB
    assert {*arena.view(second)} == {ord("x")}
    assert arena.new_region() == first
    assert {*arena.view(first)} == {0}
    assert arena.new_region() == 2


@pytest.mark.parametrize("region", [0, 1, -1])
def test_only_a_region_in_use_is_recycled(arena, region):
    arena.new_region()
    arena.recycle(0)
    with pytest.raises(ValueError, match="not in use"):
        arena.recycle(region)


def test_a_block_shows_its_bytes(arena):
    region = arena.new_region()
    arena.view(region)[100:104] = b"abcd"
    assert bytes(arena.read(Block(region, 101, 2))) == b"bc"
    assert len(arena.read(Block(region, MIB, 0))) == 0


@pytest.mark.parametrize(
    "block",
    [Block(0, MIB - 1, 2), Block(1, 0, 1), Block(-1, 0, 1)],
    ids=["beyond the end", "no such region", "negative"],
)
def test_a_block_outside_of_the_arena_is_refused(arena, block):
    arena.new_region()
    with pytest.raises(ValueError):
        arena.read(block)


def test_an_arena_has_no_name_in_the_file_system(arena):
    arena.view(arena.new_region())[:1] = b"x"
    assert os.fstat(arena.fd).st_nlink == 0


def test_a_view_of_a_closed_arena_stays_readable(arena):
    region = arena.new_region()
    arena.view(region)[:5] = b"hello"
    taken = arena.read(Block(region, 0, 5))
    arena.close()
    arena.close()
    assert bytes(taken) == b"hello"
    with pytest.raises(ValueError, match="closed"):
        arena.read(Block(region, 0, 5))


def test_a_system_without_memfd_is_refused_with_advice(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(InitError, match="workers: thread"):
        Arena()


@pytest.mark.parametrize("size", [0, -PAGE, PAGE + 1])
def test_a_region_is_a_number_of_whole_pages(size):
    with pytest.raises(ValueError, match="whole pages"):
        Arena(size)


# RegionAllocator ------------------------------------------------------------------------


@pytest.fixture
def memory(arena: Arena) -> RegionAllocator:
    region = arena.new_region()
    return RegionAllocator(arena.view(region), region)


def span(block: Block) -> tuple[int, int]:
    """First byte and end of what a block takes up."""
    return block.offset, block.offset + max(64, -(-block.size // 64) * 64)


def first_gap(live: list[Block], begin: int, end: int, size: int) -> int | None:
    """Where a block of `size` bytes fits first, found the slow way."""
    for block in sorted(live, key=span):
        if block.offset - begin >= size:
            return begin
        begin = span(block)[1]
    return begin if end - begin >= size else None


def pattern(block: Block) -> bytes:
    return (b"%d." % block.offset * (block.size // 2 + 1))[: block.size]


# A number >= 0 asks for that many bytes; one < 0 frees a block.
STEPS = st.lists(
    st.integers(0, 1000) | st.integers(0, 5 * PAGE) | st.integers(-50, -1), max_size=60
)


@settings(deadline=None)
@given(STEPS)
def test_blocks_are_allocated_first_fit_and_can_all_be_freed(steps):
    arena, reserved, size = Arena(16 * PAGE), 100, 16 * PAGE
    memory = RegionAllocator(arena.view(arena.new_region()), 0, reserved, keep_bytes=2 * PAGE)
    begin, live = 128, []
    for step in steps:
        if step >= 0:
            needed = max(64, -(-step // 64) * 64)
            expected = first_gap(live, begin, size, needed)
            block = memory.alloc(step)
            if expected is None:
                assert block is None
            else:
                assert block == Block(0, expected, step)
                arena.read(block)[:] = pattern(block)
                live.append(block)
        elif live:
            memory.free(live.pop(step % len(live)))
        assert memory.used == sum(span(b)[1] - span(b)[0] for b in live)
        assert all(bytes(arena.read(block)) == pattern(block) for block in live)
        top = max((span(block)[1] for block in live), default=begin)
        assert resident(arena) <= top + 2 * PAGE + PAGE
    for block in live:
        memory.free(block)
    assert memory.used == 0
    assert memory.alloc(size - begin) == Block(0, begin, size - begin)
    arena.close()


def test_the_status_page_is_never_allocated(arena, memory):
    block = memory.alloc(MIB - 4096)
    assert block is not None
    assert block.offset == 4096
    assert memory.alloc(0) is None


def test_an_empty_block_has_its_own_place(memory):
    first, second = memory.alloc(0), memory.alloc(0)
    assert first.size == second.size == 0
    assert first.offset != second.offset
    memory.free(first)
    memory.free(second)
    assert memory.used == 0


def test_a_negative_size_is_refused(memory):
    with pytest.raises(ValueError, match="-1"):
        memory.alloc(-1)


def test_only_allocated_blocks_can_be_freed(memory):
    block = memory.alloc(1000)
    strangers = (
        Block(block.region + 1, block.offset, block.size),
        Block(block.region, block.offset + 64, block.size),
        Block(block.region, block.offset, block.size - 1),
    )
    for stranger in strangers:
        with pytest.raises(ValueError, match="not given out"):
            memory.free(stranger)
    memory.free(block)
    with pytest.raises(ValueError, match="not given out"):
        memory.free(block)
    assert memory.used == 0


def test_a_file_above_the_systems_limit_is_refused_with_advice(arena, monkeypatch):
    def too_large(fd, size):
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(os, "ftruncate", too_large)
    with pytest.raises(InitError, match=r"File too large.*ulimit -f.*dag\.shared_memory_mib"):
        arena.new_region()


def test_memory_returns_to_the_system_in_slices():
    arena = Arena(256 * MIB)
    memory = RegionAllocator(arena.view(arena.new_region()), 0)
    first, large = memory.alloc(100), memory.alloc(200 * MIB)
    arena.read(large)[:] = bytes(200 * MIB)
    memory.free(large)
    sizes = [resident(arena) // MIB]
    for _ in range(3):
        memory.free(memory.alloc(100))
        sizes.append(resident(arena) // MIB)
    assert sizes == [136, 72, 16, 16]
    memory.free(first)
    arena.close()


def test_memory_returns_to_the_system_after_a_burst():
    arena = Arena(64 * MIB)
    memory = RegionAllocator(arena.view(arena.new_region()), 0)
    blocks = [memory.alloc(MIB) for _ in range(60)]
    for block in blocks:
        arena.read(block)[:] = b"x" * MIB
    assert resident(arena) >= 60 * MIB
    for block in blocks[1:]:
        memory.free(block)
    assert resident(arena) <= 33 * MIB
    assert bytes(arena.read(blocks[0])) == b"x" * MIB
    arena.close()


@pytest.mark.parametrize(
    ("limits", "most_mib", "expected"),
    [
        ({}, 3, 3 * 2**20),
        ({}, 2**20, 8 * 2**30),
        ({RLIMIT_AS: 2**34}, 65536, 2**30),  # `ulimit -v` of 16 GiB
        ({RLIMIT_FSIZE: 2**34}, 65536, 2**30),  # `ulimit -f`
        ({RLIMIT_AS: 2**34, RLIMIT_FSIZE: 2**30}, 65536, 2**26),
        ({RLIMIT_AS: 2**14}, 1, mmap.PAGESIZE),
    ],
)
def test_a_region_is_no_larger_than_many_processes_can_map(monkeypatch, limits, most_mib, expected):
    monkeypatch.setattr(resources.os, "sysconf", lambda name: 2**33 // mmap.PAGESIZE)
    limits = collections.defaultdict(lambda: RLIM_INFINITY, limits)
    monkeypatch.setattr(resources.resource, "getrlimit", lambda kind: (limits[kind], 0))
    with contextlib.closing(new_arena(most_mib)) as arena:
        assert arena.region_bytes == expected
