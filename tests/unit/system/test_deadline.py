"""When the running call has to end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from pipeline.deadline import call_deadline, set_call_deadline, time_left
from pipeline.errors import DeadlineError


@pytest.fixture(autouse=True)
def no_deadline_after() -> Iterator[None]:
    yield
    set_call_deadline(None)


def test_the_shortest_limit_holds():
    assert time_left(None, 20.0) == 20.0
    assert time_left(30.0, 20.0) == 30.0, "the default is for who has no limit"
    set_call_deadline(time.monotonic() + 5)
    assert 0 < time_left(None, 20.0) <= 5
    assert 0 < time_left(30.0, 20.0) <= 5
    assert time_left(0.5, 20.0) == 0.5


def test_a_call_that_is_too_late_is_not_made():
    set_call_deadline(time.monotonic() - 0.001)
    with pytest.raises(DeadlineError):
        time_left(None, 20.0)


def test_a_deadline_belongs_to_its_thread_and_is_inherited_by_coroutines():
    async def seen() -> float | None:
        return call_deadline()

    set_call_deadline(77.0)
    others: list[float | None] = []
    thread = threading.Thread(target=lambda: others.append(call_deadline()))
    thread.start()
    thread.join()
    assert others == [None]
    loop = asyncio.new_event_loop()
    running = threading.Thread(target=loop.run_forever)
    running.start()
    try:
        assert asyncio.run_coroutine_threadsafe(seen(), loop).result() == 77.0
    finally:
        loop.call_soon_threadsafe(loop.stop)
        running.join()
        loop.close()
