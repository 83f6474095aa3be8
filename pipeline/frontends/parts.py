"""Answers that come in parts, for frontends that send one behind the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, cast

from pipeline.engine.request import Begin, RequestTarget, StreamHandle, StreamSink


class _Arrived(StreamSink):
    """The sink of a request whose answers are waited for.

    Attributes:
        parts: those that came and are not fetched yet, at most `dag.stream_window`.
        last: what ended the request; None: nothing came behind the parts.
        has_ended: whether it is answered.
        changed: set whenever something came.
    """

    __slots__ = ("changed", "has_ended", "last", "parts")

    def __init__(self) -> None:
        self.parts: deque[Any] = deque()
        self.last: Any = None
        self.has_ended: bool = False
        self.changed: asyncio.Event = asyncio.Event()

    def part(self, answer: Any) -> None:
        """Keep a part."""
        self.parts.append(answer)
        self.changed.set()

    def end(self, answer: Any) -> None:
        """Keep the last answer."""
        self.last, self.has_ended = answer, True
        self.changed.set()


async def answers_to(
    begin: Begin,
    raw: Any,
    timeout_s: float | None = None,
    target: RequestTarget | None = None,
) -> AsyncGenerator[tuple[Any, bool], None]:
    """Begin a request; yield each answer, and whether it is one part of several (False: the last).

    The one answer of a unary pipeline is a last one; so is an error, which may come behind parts.
    A stream that ends well has none: all of its answers are parts. A part counts as taken when the
    next one is asked for. Closed early, as for a caller who has left, it drops the request. Raises
    what `Engine.begin` does.
    """
    sink = _Arrived()
    request = cast(StreamHandle, begin(raw, timeout_s, target, sink))
    try:
        while True:
            while sink.parts:
                yield sink.parts.popleft(), True
                request.took_part()
            if sink.has_ended:
                break
            sink.changed.clear()
            await sink.changed.wait()
        if sink.last is not None:
            yield sink.last, False
    finally:
        request.cancel()
