"""ResponseSink: takes the answer of one request; a unary one has one answer, a stream several."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from pipeline.engine.request import RequestTarget


class ResponseSink(Protocol):
    """Receiver of a request's answer, on the event loop; it must not block.

    A sink is ended once, maybe before `Engine.begin` returns, and gets nothing after that. The
    sink of a request that was cancelled gets nothing at all.
    """

    def part(self, answer: Any) -> None:
        """Take one answer of a stream; others follow, or the end."""

    def end(self, answer: Any) -> None:
        """Take the last answer, which of a unary request is the only one, or an error's."""


class RequestHandle(Protocol):
    """A request that has begun."""

    def cancel(self) -> object:
        """Drop the request, whose caller has left; does nothing once it is answered."""


Begin = Callable[[Any, float | None, RequestTarget | None, ResponseSink], RequestHandle]
"""`Engine.begin`: (raw, timeout_s, target, sink) -> the request."""


class UnarySink:
    """Base of the sinks of requests that have one answer."""

    __slots__ = ()

    def part(self, answer: Any) -> None:
        """Refuse what a unary request never gets."""
        raise TypeError("a unary request has one answer")


class AnswerFuture(UnarySink, asyncio.Future[Any]):
    """Sink of a request whose answer is awaited; whoever cancels the future cancels the request."""

    __slots__ = ("request",)

    request: RequestHandle | None
    end: Callable[..., None] = asyncio.Future.set_result

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the request, too."""
        was_pending = super().cancel(msg)
        if was_pending and (request := getattr(self, "request", None)) is not None:
            request.cancel()
        return was_pending


def ask(
    begin: Begin,
    raw: Any,
    timeout_s: float | None = None,
    target: RequestTarget | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
) -> AnswerFuture:
    """Begin a request whose answer is awaited."""
    answer = AnswerFuture(loop=loop)
    answer.request = begin(raw, timeout_s, target, answer)
    return answer
