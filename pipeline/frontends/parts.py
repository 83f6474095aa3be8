"""PartsReader: reads an answer in parts, for frontends that send them in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

from pipeline.answer_head import AnswerHead
from pipeline.engine.request import Begin, RequestTarget, StreamHandle, StreamSink
from pipeline.errors import PipelineError


class PartsReader(StreamSink):
    """Sink of a request whose answer a coroutine reads on the event loop.

    Attributes:
        parts: parts that were not read yet, at most as many as the stream's window.
        has_ended: `last` is known, and follows `parts`.
        last: None, an error, or the only answer of a pipeline without parts.
        head: head of `last` from user code; None: not set.
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

    def take_head(self, head: AnswerHead) -> None:
        """Note the head that user code set."""
        self.head = head

    def fail(self, error: PipelineError) -> None:
        """Note the error in the end."""
        self.failure, self.head = error, error.head

    def add(self, answers: Sequence[Any]) -> None:
        """Add parts of the answer."""
        self.parts += answers
        if self._waiter is not None:
            self._wake()

    def end(self, answer: Any) -> None:
        """Note the end of the answer."""
        self.last, self.has_ended = answer, True
        self._wake()

    async def wait(self) -> bool:
        """Wait for a part, or for the end; False: another wake-up."""
        if not self.parts and not self.has_ended:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return bool(self.parts) or self.has_ended

    def took_part(self, count: int = 1) -> None:
        """Report that parts are on their way to the caller, so that more may follow."""
        if self._request is not None:
            self._request.took_part(count)

    def cancel(self) -> None:
        """Drop the request, because its caller has left; no effect after the answer."""
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
    """Begin a request; yield each answer, with whether it is a part (False: the last answer).

    The only answer of a unary pipeline is a last one; so is an error, which may follow parts. A
    stream without an error ends with its last part. A part counts as taken when the next one is
    asked for. Closing the generator early, when the caller has left, drops the request. Raises what
    `Engine.begin` does. `reader` is for callers that need the head.
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
