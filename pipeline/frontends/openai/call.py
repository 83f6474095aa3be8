"""TimedCall: what one request to `/v1` does with the engine, in the time that its caller gives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from pipeline.answer_head import AnswerHead
from pipeline.engine.offload import Offload
from pipeline.engine.request import Begin, RequestTarget, ask
from pipeline.errors import PipelineError

MOST_AT_ONCE = 64
"""Texts of one call that are worked on."""

_Made = TypeVar("_Made")


class TimedCall:
    """One call, on the event loop; its time runs from now.

    Args:
        begin: of the engine.
        offload: where what is large is read and written.
        left_s: how long the caller waits; None: as long as it takes.

    Attributes:
        head: the first one that user code says, of several answers.
        failure: the first error of several answers.
    """

    def __init__(self, begin: Begin, offload: Offload, left_s: float | None) -> None:
        self.begin = begin
        self.head: AnswerHead | None = None
        self.failure: PipelineError | None = None
        self._offload = offload
        self._clock = asyncio.get_running_loop().time
        self._ends = None if left_s is None else self._clock() + left_s

    def left(self) -> float | None:
        """Return how long its caller still waits, in s; never less than 0."""
        return None if self._ends is None else max(0.0, self._ends - self._clock())

    async def answer(self, raw: Any, target: RequestTarget) -> Any:
        """Return what the engine answers; what user code says of its head is in `head`."""
        answer = ask(self.begin, raw, self.left(), target)
        found = await answer
        self.head = self.head or answer.head
        self.failure = self.failure or answer.failure
        return found

    async def made(self, make: Callable[[], _Made], is_short: bool) -> _Made:
        """Return what `make` returns: called on the event loop if that is short, else beside it."""
        return make() if is_short else (await self._offload.run(make, self.left()))[0]


async def all_of(works: Sequence[Callable[[], Awaitable[_Made]]]) -> list[_Made]:
    """Return the results of all, some of which run at a time; the first error ends the others."""
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
