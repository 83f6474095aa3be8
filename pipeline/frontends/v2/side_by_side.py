"""Requests of one stream that run side by side, and the order of their answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from pipeline.engine.request import Begin, RequestHandle
from pipeline.proto.slices import SHORT_BYTES

AHEAD = 64
"""Requests of one stream that are worked on at a time; those behind wait. But steps of sequences:
one of them may wait for what ends another sequence, and comes far behind it."""

WAITING_BYTES = 4 * 2**20
"""Limit of one stream's waiting messages; then no more of it is read. With a lower one a caller
that writes all of its requests before it reads an answer would wait forever."""

STEPS_BYTES = 64 * 2**20
"""Limit of the memory of active steps of sequences; above it no more of the stream is read."""

_TASK_BYTES = 2048  # memory of a waiting request beside its message
_STEP_BYTES = 8192  # memory of an active request
_SEQUENCE_ID = b"sequence_id"


class Place:
    """A request's place in the order of a stream.

    Args:
        before: place of the previous request; None: it is the first.

    Attributes:
        entrance: for a step of a sequence, its place in the order in which steps enter the engine,
            because large messages take longer to read; None: not needed.
    """

    def __init__(self, before: Place | None = None) -> None:
        self.entrance: Place | None = None
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
        """Wait until all requests before it have left; return at once if it has left itself."""
        if not self._has_left:
            await self._is_next.wait()

    def leave(self) -> None:
        """Let the next requests pass: this one is answered, or is answered out of order."""
        self._has_left = True
        place: Place | None = self
        while place is not None and place._is_over:
            place = place._behind
            if place is not None:
                place._is_next.set()

    def leaving(self, begin: Begin) -> Begin:
        """Return `begin`, extended so that the next requests pass when it has run."""

        def begun(*arguments: Any) -> RequestHandle:
            try:
                return begin(*arguments)
            finally:
                self.leave()

        return begun


class _Bound:
    """A limit of bytes; above it no more is read."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = 0
        self._freed = asyncio.Event()

    def use(self, count: int) -> None:
        self._used += count

    def free(self, count: int) -> None:
        self._used -= count
        self._freed.set()

    async def room(self) -> None:
        while self._used > self._most:
            self._freed.clear()
            await self._freed.wait()


async def side_by_side(
    messages: AsyncIterator[bytes],
    answers: Callable[[bytes, Place], AsyncGenerator[bytes, None]],
) -> AsyncGenerator[bytes, None]:
    """Yield the answers to all messages as they arrive.

    `answers` yields the answers to one message, and waits for its turn itself. It continues when
    its last answer is taken, so a client that does not read makes all requests wait. An error that
    it raises ends the stream at its place; an error of the messages ends it after the earlier
    answers. Closing early cancels all active requests.
    """
    stream = _Stream(answers)
    reader = asyncio.ensure_future(stream.read(messages))
    try:
        while (answer := await stream.answers.get()) is not None:
            if isinstance(answer, Exception):
                raise answer
            yield answer
    finally:
        left = [reader, *stream.working]
        for unfinished in left:
            unfinished.cancel()
        await asyncio.gather(*left, return_exceptions=True)


class _Stream:
    """The requests of one stream.

    Attributes:
        said: answers, or an error that ends the stream; None: the end.
        working: a task for each request.
    """

    def __init__(self, answers: Callable[[bytes, Place], AsyncGenerator[bytes, None]]) -> None:
        self.answers: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(1)
        self.working: set[asyncio.Task[None]] = set()
        self._answers = answers
        self._room = asyncio.Semaphore(AHEAD)
        self._waiting, self._steps = _Bound(WAITING_BYTES), _Bound(STEPS_BYTES)

    async def read(self, messages: AsyncIterator[bytes]) -> None:
        """Begin a request for each message; report when all are answered."""
        last: Place | None = None
        last_entrance: Place | None = None
        failure: Exception | None = None
        try:
            async for message in messages:
                last = Place(last)
                is_step = message.find(_SEQUENCE_ID, 0, SHORT_BYTES) >= 0
                if is_step or len(message) > SHORT_BYTES:  # it may be one
                    last.entrance = last_entrance = Place(last_entrance)
                bound = self._steps if is_step else self._waiting
                bound.use(len(message) + (_STEP_BYTES if is_step else _TASK_BYTES))
                work = self._work_on_step if is_step else self._work
                task = asyncio.ensure_future(work(message, last))
                self.working.add(task)
                task.add_done_callback(self.working.discard)
                del message
                await self._waiting.room()
                await self._steps.room()
        except Exception as error:
            failure = error
        if self.working:
            await asyncio.wait(self.working)
        await self.answers.put(failure)

    async def _work(self, message: bytes, place: Place) -> None:
        async with self._room:
            self._waiting.free(len(message) + _TASK_BYTES)
            answers = self._answers(message, place)
            del message
            await self._put(answers, place)

    async def _work_on_step(self, message: bytes, place: Place) -> None:
        size = len(message) + _STEP_BYTES
        answers = self._answers(message, place)
        del message
        await self._put(answers, place)
        self._steps.free(size)

    async def _put(self, answers: AsyncGenerator[bytes, None], place: Place) -> None:
        try:
            async with aclosing(answers):
                async for answer in answers:
                    await self.answers.put(answer)
        except Exception as error:
            await place.come()
            await self.answers.put(error)
        finally:
            place.leave()
            if place.entrance is not None:
                place.entrance.leave()
