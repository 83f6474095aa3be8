"""Requests of one stream that are worked on side by side, and the order of their answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

AHEAD = 64
"""Requests of one stream that are worked on at a time; those behind wait."""

WAITING_BYTES = 4 * 2**20
"""What may wait of one stream; then no more of it is read. A caller who writes all of its requests
before it reads an answer would wait for ever behind fewer."""

_TASK_BYTES = 2048  # what a waiting request takes beside its message


class Place:
    """A request's place behind those before it in a stream.

    Args:
        before: that of the request before; None: it is the first.
    """

    def __init__(self, before: Place | None = None) -> None:
        self._is_next = asyncio.Event()
        self._has_left = False
        self._behind: Place | None = None
        if before is None or before._is_over:
            self._is_next.set()
        else:
            before._behind = self

    @property
    def _is_over(self) -> bool:
        return self._has_left and self._is_next.is_set()

    async def come(self) -> None:
        """Wait until all before have left; at once for one that has left itself."""
        if not self._has_left:
            await self._is_next.wait()

    def leave(self) -> None:
        """Let those behind pass: all of this request is said, or it is said out of its order."""
        self._has_left = True
        place: Place | None = self
        while place is not None and place._is_over:
            place = place._behind
            if place is not None:
                place._is_next.set()


async def side_by_side(
    messages: AsyncIterator[bytes],
    answers: Callable[[bytes, Place], AsyncGenerator[bytes, None]],
) -> AsyncGenerator[bytes, None]:
    """Yield the answers to all messages, each as it comes.

    `answers` yields those to one message, and waits for its place itself. It goes on when the last
    one is taken, so a caller who does not read makes all requests wait. What it raises ends the
    stream, in its place; an error of the messages does behind the answers to those before. Closed
    early, all that goes on is closed.
    """
    said: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(1)
    room = asyncio.Semaphore(AHEAD)
    has_begun = asyncio.Event()
    waiting_bytes = 0
    working: set[asyncio.Task[None]] = set()

    async def work(message: bytes, place: Place) -> None:
        nonlocal waiting_bytes
        async with room:
            waiting_bytes -= len(message) + _TASK_BYTES
            has_begun.set()
            found = answers(message, place)
            del message
            try:
                async with aclosing(found):
                    async for answer in found:
                        await said.put(answer)
            except Exception as error:
                await place.come()
                await said.put(error)
            finally:
                place.leave()

    async def read() -> None:
        nonlocal waiting_bytes
        last: Place | None = None
        failure: Exception | None = None
        try:
            async for message in messages:
                last = Place(last)
                waiting_bytes += len(message) + _TASK_BYTES
                task = asyncio.ensure_future(work(message, last))
                working.add(task)
                task.add_done_callback(working.discard)
                while waiting_bytes > WAITING_BYTES:
                    has_begun.clear()
                    await has_begun.wait()
        except Exception as error:
            failure = error
        if working:
            await asyncio.wait(working)
        await said.put(failure)

    reader = asyncio.ensure_future(read())
    try:
        while (answer := await said.get()) is not None:
            if isinstance(answer, Exception):
                raise answer
            yield answer
    finally:
        left = [reader, *working]
        for unfinished in left:
            unfinished.cancel()
        await asyncio.gather(*left, return_exceptions=True)
