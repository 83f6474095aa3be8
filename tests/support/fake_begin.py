"""`Engine.begin`, played by a coroutine function that answers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from pipeline.engine.request import AnswerFuture, Begin, RequestHandle, RequestTarget, ResponseSink


class Nothing:
    """The handle of a request that was answered at once."""

    def cancel(self) -> None:
        pass


def begin_of(handle: Callable[..., Awaitable[Any]]) -> Begin:
    """Answer requests as `handle` does, which is given a target only if there is one.

    What it raises before it waits for anything is raised by `begin`; later, where its sink is
    awaited, there.
    """

    def begin(
        raw: Any, timeout_s: float | None, target: RequestTarget | None, sink: ResponseSink
    ) -> RequestHandle:
        asked = (raw, timeout_s) if target is None else (raw, timeout_s, target)
        coroutine: Any = handle(*asked)
        try:
            first = coroutine.send(None)
        except StopIteration as end:
            sink.end(end.value)
            return Nothing()
        task = asyncio.ensure_future(_resumed(coroutine, first))
        task.add_done_callback(lambda task: _end(task, sink))
        return task

    return begin


@types.coroutine
def _resumed(coroutine: Coroutine[Any, Any, Any], awaited: Any) -> Generator[Any, Any, Any]:
    """What a coroutine returns that waits for something already."""
    step: Callable[[], Any]
    while True:
        try:
            value = yield awaited
            step = functools.partial(coroutine.send, value)
        except BaseException as error:
            step = functools.partial(coroutine.throw, error)
        try:
            awaited = step()
        except StopIteration as end:
            return end.value


def _end(task: asyncio.Task[Any], sink: ResponseSink) -> None:
    if task.cancelled():
        return
    error = task.exception()
    if error is None:
        sink.end(task.result())
    elif isinstance(sink, AnswerFuture):
        with contextlib.suppress(asyncio.InvalidStateError):
            sink.set_exception(error)
    else:
        raise error
