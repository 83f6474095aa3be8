"""Questions that one copy of a server has for all of them, and how the server passes them on."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec


class QueryRequest(msgspec.Struct, frozen=True, array_like=True):
    """`number` is the asker's own: of the copy, or of the server that passes it on."""

    number: int
    text: str
    limit_s: float


class QueryReply(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a question: of one copy, or of all of them."""

    number: int
    answers: list[bytes]


class QueryClient:
    """A copy's side: asks, and takes the reply.

    Args:
        send: takes a question to the server.
    """

    def __init__(self, send: Callable[[QueryRequest], object]) -> None:
        self._send = send
        self._numbers = itertools.count()
        self._open: dict[int, asyncio.Future[list[bytes]]] = {}

    async def ask(self, text: str, limit_s: float) -> list[bytes]:
        """What each copy answers, as far as it is known after `limit_s`; none if nobody is."""
        number = next(self._numbers)
        reply = self._open[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(QueryRequest(number, text, limit_s))
            with contextlib.suppress(TimeoutError):  # the server is gone, and we shall follow it
                return await asyncio.wait_for(reply, 2 * limit_s)
            return []
        finally:
            del self._open[number]

    def reply(self, reply: QueryReply) -> None:
        """Take what the server says."""
        waiting = self._open.get(reply.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply.answers)


class Replica(Protocol):
    """A copy, as the server's side sees it. Compared by identity."""

    figures: bytes
    """The last Snapshot that it told of itself."""

    def question(self, question: QueryRequest) -> None:
        """Ask it."""

    def reply(self, reply: QueryReply) -> None:
        """Tell it what became of a question of its own."""


class _PendingQuery:
    """One question on its round."""

    def __init__(self, asker: Replica, question: QueryRequest, members: Iterable[Replica]) -> None:
        self.asker = asker
        self.question = question
        self.answers: dict[Replica, bytes] = {}
        self.awaited = set(members)
        self.timer: asyncio.TimerHandle | None = None


class ReplicaQuery:
    """The server's side: passes questions on, collects answers.

    Args:
        members: the copies that run now.
        stand_in: an answer for a copy that gives none in time, or b"".
        extra: answers for copies that are no more; they have what each of them last said.
    """

    def __init__(
        self,
        members: Callable[[], Iterable[Replica]],
        stand_in: Callable[[Replica, str], bytes],
        extra: Callable[[str], list[bytes]],
    ) -> None:
        self._members = members
        self._stand_in = stand_in
        self._extra = extra
        self._numbers = itertools.count()
        self._open: dict[int, _PendingQuery] = {}

    def begin(self, asker: Replica, question: QueryRequest) -> None:
        """Pass on a copy's question; `asker.reply` is called when all have answered, or in time."""
        inquiry = _PendingQuery(asker, question, self._members())
        number = next(self._numbers)
        self._open[number] = inquiry
        loop = asyncio.get_running_loop()
        inquiry.timer = loop.call_later(question.limit_s, self._end, number)
        for member in list(inquiry.awaited):
            member.question(QueryRequest(number, question.text, question.limit_s))

    def answered(self, member: Replica, reply: QueryReply) -> str:
        """Take a copy's answer. The text of the question; "" if nobody waits for it any more."""
        inquiry = self._open.get(reply.number)
        if inquiry is None or member not in inquiry.awaited:
            return ""
        inquiry.awaited.remove(member)
        inquiry.answers[member] = b"".join(reply.answers)
        if not inquiry.awaited:
            self._end(reply.number)
        return inquiry.question.text

    def left(self, member: Replica) -> None:
        """A copy is gone: nobody waits for its answer, nor is it to be counted twice."""
        for number, inquiry in list(self._open.items()):
            inquiry.awaited.discard(member)
            if self._extra(inquiry.question.text):
                inquiry.answers.pop(member, None)
            if not inquiry.awaited:
                self._end(number)

    def _end(self, number: int) -> None:
        inquiry = self._open.pop(number)
        if inquiry.timer is not None:
            inquiry.timer.cancel()
        text = inquiry.question.text
        answers = [*inquiry.answers.values()]
        answers += [self._stand_in(member, text) for member in inquiry.awaited]
        answers += self._extra(text)
        reply = QueryReply(inquiry.question.number, [answer for answer in answers if answer])
        inquiry.asker.reply(reply)

    def close(self) -> None:
        """Cancel the timers: nobody is answered any more."""
        for inquiry in self._open.values():
            if inquiry.timer is not None:
                inquiry.timer.cancel()
        self._open.clear()
