"""The arena, between processes."""

from __future__ import annotations

import mmap
import os
import pickle
import subprocess
import sys
from collections.abc import Callable

from garbage import fork

from pipeline.workers.shm.arena import Block

PAGE = mmap.PAGESIZE


MIB = 2**20


def in_child(work: Callable[[], None]) -> int:
    """The exit status of a forked process that does `work`."""
    pid = fork()
    if not pid:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_process_reads_and_writes_the_same_memory(arena):
    mapped, grown = arena.new_region(), arena.new_region()
    arena.view(mapped)[:5] = b"hello"

    def work() -> None:
        assert bytes(arena.read(Block(mapped, 0, 5))) == b"hello"
        arena.read(Block(mapped, 0, 5))[:] = b"HELLO"
        arena.view(grown)[:5] = b"there"

    assert in_child(work) == 0
    assert bytes(arena.view(mapped)[:5]) == b"HELLO"
    assert bytes(arena.view(grown)[:5]) == b"there"


def test_a_forked_process_maps_a_region_that_is_newer_than_itself(arena):
    reads, writes = os.pipe()
    region = 0

    def work() -> None:
        assert os.read(reads, 1) == b"x"
        assert bytes(arena.view(region)[:3]) == b"new"

    pid = fork()
    if not pid:
        os._exit(in_child(work))
    assert arena.new_region() == region
    arena.view(region)[:3] = b"new"
    os.write(writes, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(reads)
    os.close(writes)


def test_a_spawned_process_attaches_by_pickle_and_inherited_descriptor(arena):
    region = arena.new_region()
    arena.view(region)[:5] = b"hello"
    script = (
        "import pickle, sys\n"
        "arena = pickle.load(sys.stdin.buffer)\n"
        f"view = arena.view({region})\n"
        "assert bytes(view[:5]) == b'hello'\n"
        "view[:5] = b'there'\n"
        f"assert arena.new_region() == {region + 1}\n"
        "del view\n"
        "arena.close()\n"
    )
    subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        input=pickle.dumps(arena),
        pass_fds=[arena.fd],
        check=True,
    )
    assert bytes(arena.view(region)[:5]) == b"there"
