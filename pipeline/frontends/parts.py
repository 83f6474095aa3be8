"""Answers that come in parts, for frontends that send one behind the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

from pipeline.answer_head import AnswerHead
from pipeline.engine.request import Begin, RequestTarget, StreamHandle, StreamSink
from pipeline.errors import PipelineError


class PartsReader(StreamSink):
    """Sink of a request whose answer a coroutine reads, on the event loop.

    Attributes:
        parts: the ones that came and were not read; at most as many as the window of the stream.
        has_ended: `last` is known, and follows `parts`.
        last: None, an error, or the only answer of a pipeline without parts.
        head: what user code sets in the head of `last`; None: nothing.
        failure: the error in `last`; None: no error.
    """

    def __init__(self) -> None:
        self.parts: deque[Any] = deque()
        self.has_ended: bool = False
        self.last: Any = None
        self.head: AnswerHead | None = None
        self.failure: PipelineError | None = None
        self._request: StreamHandle | None = None
        self._waiter: asyncio.Future[None] | None = None

    def begin(
        self,
        begin: Begin,
        raw: Any,
        timeout_s: float | None = None,
        target: RequestTarget | None = None,
    ) -> None:
        """Begin the request. Raises what `Engine.begin` does."""
        self._request = cast(StreamHandle, begin(raw, timeout_s, target, self))

    def say(self, head: AnswerHead) -> None:
        """Take what user code says of the answer's head."""
        self.head = head

    def fail(self, error: PipelineError) -> None:
        """Take the error that the end tells."""
        self.failure, self.head = error, error.head

    def add(self, answers: Sequence[Any]) -> None:
        """Take parts of the answer."""
        self.parts += answers
        if self._waiter is not None:
            self._wake()

    def end(self, answer: Any) -> None:
        """Take the end."""
        self.last, self.has_ended = answer, True
        self._wake()

    async def wait(self) -> bool:
        """Wait for a part, or for the end; False: somebody else has woken it."""
        if not self.parts and not self.has_ended:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return bool(self.parts) or self.has_ended

    def took_part(self, count: int = 1) -> None:
        """Take note that parts are on their way to the caller: others may follow."""
        if self._request is not None:
            self._request.took_part(count)

    def cancel(self) -> None:
        """Drop the request, whose caller has left; does nothing once it is answered."""
        if self._request is not None and not self.has_ended:
            self._request.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def answers_to(
    begin: Begin,
    raw: Any,
    timeout_s: float | None = None,
    target: RequestTarget | None = None,
    reader: PartsReader | None = None,
) -> AsyncGenerator[tuple[Any, bool], None]:
    """Begin a request; yield each answer, and whether it is one part of several (False: the last).

    The one answer of a unary pipeline is a last one; so is an error, which may come behind parts.
    A stream that ends well has none: all of its answers are parts. A part counts as taken when the
    next one is asked for. Closed early, as for a caller who has left, it drops the request. Raises
    what `Engine.begin` does. `reader` reads them, if its caller asks it for the head.
    """
    reader = reader or PartsReader()
    reader.begin(begin, raw, timeout_s, target)
    try:
        while await reader.wait() and reader.parts:
            yield reader.parts.popleft(), True
            reader.took_part()
        if reader.last is not None:
            yield reader.last, False
    finally:
        reader.cancel()
