"""Fixtures for tests of worker processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop
from doubles import wait_until
from garbage import collect
from stepped_zygotes import SteppedZygotes
from zygote_children import living, open_files, our_files

from pipeline.workers.shm.arena import Arena
from pipeline.workers.zygote.controller import EntryPoint


def _shared_memory() -> Counter[str]:
    """Links in /proc of what this process has open of our kind.

    The rest is not compared: gRPC's threads, which other tests leave behind, open and close
    descriptors of their own when they like.
    """
    return Counter(file for file in open_files() if file.startswith("/memfd:pipeline"))


@pytest.fixture
def arena() -> Iterator[Arena]:
    """An arena of regions of 1 MiB, which leaves no memory behind."""
    collect()
    before = _shared_memory()
    arena = Arena(2**20)
    yield arena
    arena.close()
    assert _shared_memory() <= before


@pytest.fixture
def make_family() -> Iterator[Callable[..., SteppedZygotes]]:
    """Make groups of zygotes, which leave no child, file descriptor or double report behind."""
    uvloop.new_event_loop().close()  # the first one opens what the library never closes
    collect()
    before = our_files()
    made: list[SteppedZygotes] = []

    def make(*entry_points: EntryPoint, **options: Any) -> SteppedZygotes:
        made.append(SteppedZygotes(*entry_points, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
        assert all(states.count("ended") == 1 for states in one.states.values())
        assert all(states[-1] == "ended" for states in one.states.values())
        wait_until(lambda one=one: not living(child.pid for child in one.children))
    assert our_files() <= before
