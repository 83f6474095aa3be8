"""TimedCall: the engine calls of one request to `/v1`, within the client's timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from pipeline.answer_head import AnswerHead
from pipeline.engine.offload import Offload
from pipeline.engine.request import Begin, RequestTarget, ask
from pipeline.errors import PipelineError

MOST_AT_ONCE = 64
"""Texts of one call that the engine works on at a time."""

_Made = TypeVar("_Made")


class TimedCall:
    """One call, on the event loop; its time runs from now.

    Args:
        begin: of the engine.
        offload: reads and writes large messages.
        left_s: how long the client waits; None: without a limit.

    Attributes:
        head: the first head that user code set on one of the answers.
        failure: the first error of several answers.
    """

    def __init__(self, begin: Begin, offload: Offload, left_s: float | None) -> None:
        self.begin = begin
        self.head: AnswerHead | None = None
        self.failure: PipelineError | None = None
        self._offload = offload
        self._clock = asyncio.get_running_loop().time
        self._ends_at = None if left_s is None else self._clock() + left_s

    def left(self) -> float | None:
        """Return how long the client still waits, in seconds, at least 0."""
        return None if self._ends_at is None else max(0.0, self._ends_at - self._clock())

    async def answer(self, raw: Any, target: RequestTarget) -> Any:
        """Return the engine's answer; note its head and its failure."""
        future = ask(self.begin, raw, self.left(), target)
        answer = await future
        self.head = self.head or future.head
        self.failure = self.failure or future.failure
        return answer

    async def made(self, make: Callable[[], _Made], is_short: bool) -> _Made:
        """Return what `make` returns; call it on the event loop if short, else in a thread."""
        return make() if is_short else (await self._offload.run(make, self.left()))[0]


async def all_of(works: Sequence[Callable[[], Awaitable[_Made]]]) -> list[_Made]:
    """Return all results; up to `MOST_AT_ONCE` run at a time, the first error ends the others."""
    if len(works) == 1:
        return [await works[0]()]
    turn = asyncio.Semaphore(MOST_AT_ONCE)

    async def result(work: Callable[[], Awaitable[_Made]]) -> _Made:
        async with turn:
            return await work()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(result(work)) for work in works]
    except* PipelineError as errors:
        raise _first(errors) from None
    return [task.result() for task in tasks]


def _first(errors: BaseExceptionGroup[PipelineError]) -> PipelineError:
    """Return the first error of a group, however deep it is."""
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
