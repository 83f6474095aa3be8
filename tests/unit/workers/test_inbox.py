"""LoopInbox: what threads post is called on the loop, in order."""

from __future__ import annotations

import asyncio

from doubles import on_loop

from pipeline.workers.inbox import LoopInbox


@on_loop
async def test_a_delayed_call_runs_when_the_loop_polls():
    loop = CountingLoop(asyncio.get_running_loop())
    collected, drained = [], asyncio.Event()
    inbox = LoopInbox(loop, drained.set)

    def say(number):
        inbox.post_soon(lambda *item: collected.append(item), number, 0)

    say(0)
    say(1)
    assert loop.woken == 1
    await drained.wait()
    say(2)
    assert loop.woken == 1, "it looks again"
    drained.clear()
    await drained.wait()
    assert collected == [(0, 0), (1, 0), (2, 0)]
    await loop.looked_in_vain.wait()
    say(3)
    assert loop.woken == 2


class CountingLoop:
    """A loop that counts how often it is woken."""

    def __init__(self, loop):
        self._loop = loop
        self.woken = 0
        self.looked_in_vain = asyncio.Event()

    def call_soon_threadsafe(self, callback):
        self.woken += 1
        self._loop.call_soon(callback)

    def call_later(self, delay, callback):
        def look():
            callback()
            if not callback.__self__._is_looking:
                self.looked_in_vain.set()

        self._loop.call_later(delay, look)


@on_loop
async def test_an_urgent_call_runs_waiting_ones_first():
    loop = asyncio.get_running_loop()
    collected, drained = [], asyncio.Event()
    inbox = LoopInbox(loop, drained.set)
    inbox.post_soon(lambda *item: collected.append(item), 1, 0)
    inbox.post(lambda *item: collected.append(item), 2, 0)
    await drained.wait()
    assert collected == [(1, 0), (2, 0)]
