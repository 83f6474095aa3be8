"""ReplicaQuery: what one replica asks all of them, and what the server as a whole answers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from pipeline.observe.snapshot import ModelCounters, Snapshot, of_no_replica
from pipeline.observe.statistics import merge

SNAPSHOT = "snapshot"
"""Asks for the Snapshot of a process."""

_RECORD = "record"
_TIMEOUT_S = 1.0  # for a replica to answer; it may be busy, stopped or dying

Ask = Callable[[str, float], Awaitable[list[bytes]]]
"""(question, seconds for the answer) -> what each replica of the server answers."""

Record = Callable[[float], Awaitable[list[bytes]]]
"""(seconds) -> what happens in each replica meanwhile."""


class ServerView:
    """The server as a whole, whichever of its replicas is asked."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def snapshots(self) -> list[Snapshot]:
        answers = await self._ask(SNAPSHOT, _TIMEOUT_S)
        return [msgspec.msgpack.decode(answer, type=Snapshot) for answer in answers]

    async def record(self, seconds: float) -> list[bytes]:
        """Return what happens in each replica in the next `seconds`; see `dashboard.recent`."""
        return await self._ask(f"{_RECORD} {seconds!r}", seconds + _TIMEOUT_S)


class RetiredCounters:
    """The counters of replicas that have ended: no sum falls when one of them dies."""

    def __init__(self) -> None:
        self._models: list[ModelCounters] = []

    def add(self, packed: bytes) -> None:
        """Add the last Snapshot of a replica that has ended."""
        snapshot = msgspec.msgpack.decode(packed, type=Snapshot)
        for model in snapshot.models:
            model.memory = []
        self._models = merge([self._models, snapshot.models])

    def snapshots(self) -> list[bytes]:
        """Return one more Snapshot, if there is anything in it."""
        if not self._models:
            return []
        return [msgspec.msgpack.encode(of_no_replica(self._models))]


class QueryRequest(msgspec.Struct, frozen=True, array_like=True):
    """A question. `number` is the sender's own: a replica's, or the server's that passes it on."""

    number: int
    text: str
    timeout_s: float


class QueryReply(msgspec.Struct, frozen=True, array_like=True):
    """The answers to a question: of one replica, or of all of them."""

    number: int
    answers: list[bytes]


class QueryClient:
    """A replica's side: sends questions to the server, and takes the reply."""

    def __init__(self, send: Callable[[QueryRequest], object]) -> None:
        self._send = send
        self._numbers = itertools.count()
        self._pending: dict[int, asyncio.Future[list[bytes]]] = {}

    async def ask(self, text: str, timeout_s: float) -> list[bytes]:
        """Return what each replica answers, as far as it is known after `timeout_s`."""
        number = next(self._numbers)
        reply = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(QueryRequest(number, text, timeout_s))
            with contextlib.suppress(TimeoutError):  # the server is gone, and we shall follow it
                return await asyncio.wait_for(reply, 2 * timeout_s)
            return []
        finally:
            del self._pending[number]

    def on_reply(self, reply: QueryReply) -> None:
        """Take what the server says."""
        waiting = self._pending.get(reply.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply.answers)


class Replica(Protocol):
    """A replica, as the server's side sees it. Compared by identity."""

    snapshots: dict[str, bytes]
    """The last Snapshots that it told of itself, by the questions that ask for them."""

    def send_query(self, request: QueryRequest) -> None:
        """Ask it."""

    def send_reply(self, reply: QueryReply) -> None:
        """Tell it what became of a question of its own."""


@dataclass(slots=True)
class _PendingQuery:
    """One question on its round."""

    asker: Replica
    request: QueryRequest
    awaited: set[Replica]
    timer: asyncio.TimerHandle
    answers: dict[Replica, bytes] = field(default_factory=dict)


class ReplicaQuery:
    """The server's side: passes questions on, collects answers.

    The last Snapshot that a replica told, and that the same question asks for, stands in for one
    that gives none in time, or has ended.

    Args:
        members: returns the replicas that run now.
    """

    def __init__(self, members: Callable[[], Iterable[Replica]]) -> None:
        self._members = members
        self._retired: defaultdict[str, RetiredCounters] = defaultdict(RetiredCounters)
        self._numbers = itertools.count()
        self._pending: dict[int, _PendingQuery] = {}

    def start(self, asker: Replica, request: QueryRequest) -> None:
        """Pass on a question; `asker` gets the reply when all have answered, or in time."""
        number, members = next(self._numbers), list(self._members())
        timer = asyncio.get_running_loop().call_later(request.timeout_s, self._finish, number)
        self._pending[number] = _PendingQuery(asker, request, set(members), timer)
        for member in members:
            member.send_query(QueryRequest(number, request.text, request.timeout_s))
        if not members:
            self._finish(number)

    def on_reply(self, member: Replica, reply: QueryReply) -> None:
        """Take a replica's answer, unless nobody waits for it any more."""
        query = self._pending.get(reply.number)
        if query is None or member not in query.awaited:
            return
        query.awaited.remove(member)
        query.answers[member] = answer = b"".join(reply.answers)
        text = query.request.text
        if answer and text in member.snapshots:  # what was shown must not be less when it is dead
            member.snapshots[text] = answer
        if not query.awaited:
            self._finish(reply.number)

    def on_exit(self, member: Replica) -> None:
        """Wait no longer for a replica that has ended, and do not count it twice."""
        for text, snapshot in member.snapshots.items():
            self._retired[text].add(snapshot)
        for number, query in list(self._pending.items()):
            query.awaited.discard(member)
            if self._retired_answers(query.request.text):
                query.answers.pop(member, None)
            if not query.awaited:
                self._finish(number)

    def _retired_answers(self, text: str) -> list[bytes]:
        return self._retired[text].snapshots() if text in self._retired else []

    def _finish(self, number: int) -> None:
        query = self._pending.pop(number)
        query.timer.cancel()
        text = query.request.text
        answers = [*query.answers.values(), *self._retired_answers(text)]
        answers += [member.snapshots.get(text, b"") for member in query.awaited]
        query.asker.send_reply(
            QueryReply(query.request.number, [answer for answer in answers if answer])
        )

    def close(self) -> None:
        """Cancel the timers: nobody is answered any more."""
        for query in self._pending.values():
            query.timer.cancel()
        self._pending.clear()
