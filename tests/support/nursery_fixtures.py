"""Fixtures for tests of worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop
from doubles import wait_until
from garbage import collect
from nursery import Nursery
from obedient import living, our_files

from pipeline.workers.zygote.controller import EntryPoint


@pytest.fixture
def nursery() -> Iterator[Callable[..., Nursery]]:
    """Makes nurseries; at the end no child, file descriptor or double report is left of them."""
    uvloop.new_event_loop().close()  # the first one opens what the library never closes
    collect()
    before = our_files()
    made: list[Nursery] = []

    def make(*entry_points: EntryPoint, **options: Any) -> Nursery:
        made.append(Nursery(*entry_points, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
        assert all(states.count("ended") == 1 for states in one.states.values())
        assert all(states[-1] == "ended" for states in one.states.values())
        wait_until(lambda one=one: not living(child.pid for child in one.children))
    assert our_files() <= before
