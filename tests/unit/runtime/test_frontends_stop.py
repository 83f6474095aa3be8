"""How long the frontends of a server that stops wait for callers that read slowly."""

from __future__ import annotations

import asyncio
from typing import cast

from doubles import virtual

from pipeline.frontends.base import Frontend
from pipeline.runtime.service import _Frontends


class Slow:
    """A frontend with an answer that its caller reads for 20 s."""

    def __init__(self) -> None:
        self.read = asyncio.Event()
        self.was_cut_off = False

    async def start(self, is_ready: bool) -> None:
        asyncio.get_running_loop().call_later(20.0, self.read.set)

    async def stop(self, grace_s: float) -> None:
        try:
            await asyncio.wait_for(self.read.wait(), grace_s)
        except TimeoutError:
            self.was_cut_off = True


async def stopping(grace_s: float, cancelled_after_s: float = 60.0) -> tuple[bool, float]:
    """Whether the caller was cut off, and when the frontends had stopped."""
    loop, slow, cancelled = asyncio.get_running_loop(), Slow(), asyncio.Event()
    frontends, frontend = _Frontends(), cast(Frontend, slow)
    await frontends.open({"http": frontend})
    loop.call_later(cancelled_after_s, cancelled.set)
    began = loop.time()
    await frontends.stop(began + grace_s, cancelled)
    return slow.was_cut_off, loop.time() - began


@virtual
async def test_a_caller_that_reads_slowly_has_the_grace_period() -> None:
    assert await stopping(30.0) == (False, 20.0)


@virtual
async def test_a_caller_that_reads_too_slowly_is_cut_off_at_its_end() -> None:
    assert await stopping(10.0) == (True, 10.0)
    assert await stopping(0.0) == (True, 1.0)


@virtual
async def test_a_second_signal_ends_it() -> None:
    assert await stopping(30.0, cancelled_after_s=5.0) == (True, 6.0)
