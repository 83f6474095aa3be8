"""Choices of one request: each is a request to the pipeline, all of them side by side."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple

from pipeline.engine.request import RequestTarget
from pipeline.engine.streams.combine import PartCounter, StreamLimits
from pipeline.errors import PipelineError, TooLargeError
from pipeline.frontends.api.answers import is_short_answer, payload_of, quick_payload
from pipeline.frontends.api.pipelines import Asked
from pipeline.frontends.http.routes import WebStream
from pipeline.frontends.http.streams import EVENTS, stream_in
from pipeline.frontends.openai.answers import Choice, joined
from pipeline.frontends.openai.call import MOST_AT_ONCE, TimedCall
from pipeline.frontends.openai.writers import Writer
from pipeline.frontends.parts import PartsReader, answers_to
from pipeline.openai import Delta
from pipeline.proto.slices import SHORT_BYTES

_HEARTBEAT_S = 15.0  # that a stream may be silent


class ChoiceRequest(NamedTuple):
    """A choice, and what the engine is asked for it."""

    choice: Choice
    raw: Any
    target: RequestTarget


def requests_of(
    asked: Sequence[Asked], key: str, stops: Sequence[str], in_parts: bool
) -> list[ChoiceRequest]:
    """Return the requests of all choices, whose answers, or parts, have their text under a key."""
    return [ChoiceRequest(Choice(at, key, stops, in_parts), *each) for at, each in enumerate(asked)]


async def whole_of(request: ChoiceRequest, call: TimedCall) -> Delta:
    """Return all that a choice says. Raises PipelineError."""
    answer = await call.answer(request.raw, request.target)
    choice = request.choice
    return await call.made(
        lambda: choice.whole(payload_of(answer, call.failure)),
        is_short_answer(answer),
    )


async def whole_of_parts(request: ChoiceRequest, call: TimedCall, limits: StreamLimits) -> Delta:
    """Return all that a choice says whose pipeline streams, which is cancelled at a stop.

    Raises PipelineError; TooLargeError for more than `limits`.
    """
    choice, kept = request.choice, PartCounter()
    deltas: list[Delta] = []

    def take(answer: Any) -> None:
        payload = payload_of(answer, reader.failure)
        if too_much := kept.add(payload, limits):
            raise TooLargeError(f"the parts of a stream are to be one answer, and are {too_much}")
        deltas.append(choice.take(payload))

    reader = PartsReader()
    parts = answers_to(call.begin, request.raw, call.left(), request.target, reader)
    async with aclosing(parts):
        async for answer, _ in parts:
            await call.made(partial(take, answer), is_short_answer(answer))
            if choice.is_cut:
                break
    deltas.append(choice.rest())
    return await call.made(partial(joined, deltas), kept.bytes <= SHORT_BYTES)


class _Reader(PartsReader):
    """Reader of a choice that comes part by part.

    Args:
        request: for the choice.
        stream: is told when there is something to be read.

    Attributes:
        is_over: nothing more of it is told.
        untaken: parts that were sent, and left no room for others.
        error: why a part cannot be written.
    """

    def __init__(self, request: ChoiceRequest, stream: ChoiceStream) -> None:
        super().__init__()
        self.request = request
        self.is_over: bool = False
        self.untaken = 0
        self.error: PipelineError | None = None
        self._stream = stream

    def add(self, answers: Sequence[Any]) -> None:
        if not self._stream.sends(self, answers):
            super().add(answers)
            self._stream.wake()

    def end(self, answer: Any) -> None:
        super().end(answer)
        self._stream.wake()


class ChoiceStream:
    """Choices of one request as events, each part as it comes.

    A part that is short goes out at once, if all before it is on its way and there is room.

    Args:
        requests: are begun in their order, some at once.
        call: asks for them.
        writer: of the events.
    """

    def __init__(self, requests: Sequence[ChoiceRequest], call: TimedCall, writer: Writer) -> None:
        self._call = call
        self._writer = writer
        self._readers = [_Reader(request, self) for request in requests]
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[bool] | None = None
        self._has_more = False  # to read, which came while nobody waited for it
        self._send: Callable[[bytes], bool] | None = None
        self._sent_at = self._loop.time()  # the last piece
        self._timer: asyncio.TimerHandle | None = None

    def stream(self) -> WebStream:
        """Return it; the choices are cancelled if the caller leaves."""
        return stream_in(EVENTS, self._pieces(), self._take_way)

    def _take_way(self, send: Callable[[bytes], bool]) -> None:
        self._send = send

    def wake(self, is_read: bool = True) -> None:
        """Have what is there read; else, a heartbeat sent."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(is_read)
        elif is_read:
            self._has_more = True

    def sends(self, reader: _Reader, answers: Sequence[Any]) -> bool:
        """Send parts of a choice at once; False: they have to wait their turn, or are not short."""
        send, waiter, choice = self._send, self._waiter, reader.request.choice
        if send is None or waiter is None or waiter.done() or choice.stops:
            return False
        for answer in answers:
            if quick_payload(answer) is None:
                return False
        piece = b""
        try:
            for answer in answers:
                if delta := choice.take(answer.payload):
                    piece += self._writer.part(choice, delta)
        except PipelineError as error:
            reader.error = error
        self._sent_at = self._loop.time()
        if (not piece or send(piece)) and reader.error is None:
            reader.took_part(len(answers))
        else:
            reader.untaken = len(answers)
            self.wake()
        return True

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the body; a part counts as taken when the piece behind it is asked for.

        An error ends all choices: it is raised before the first piece, and one more event behind
        that. Closed early, as for a caller who has left, all are cancelled.
        """
        has_begun = False
        self._look()
        try:
            async with aclosing(self._events()) as events:
                async for piece in events:
                    has_begun = True
                    yield piece
        except PipelineError as error:
            if not has_begun:
                raise
            yield self._writer.error(error)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for reader in self._readers:
                reader.cancel()

    async def _events(self) -> AsyncGenerator[bytes, None]:
        call, waiting, active = self._call, deque(self._readers), list[_Reader]()
        while waiting or active:
            while waiting and len(active) < MOST_AT_ONCE:
                active.append(reader := waiting.popleft())
                request = reader.request
                reader.begin(call.begin, request.raw, call.left(), request.target)
            if not await self._waited():
                yield EVENTS.heartbeat
            for reader in active:
                if reader.untaken:
                    yield b""  # comes back when there is room
                pieces, count, error = await self._written(reader)
                for piece in pieces:
                    yield piece
                if error is not None:
                    raise error
                if taken := count + reader.untaken:
                    reader.took_part(taken)
                    reader.untaken = 0
            active = [reader for reader in active if not reader.is_over]
        choices, writer = [reader.request.choice for reader in self._readers], self._writer
        yield await call.made(partial(writer.last, choices), writer.is_short)

    def _look(self) -> None:
        """Have a heartbeat sent whenever nothing was for so long."""
        now = self._loop.time()
        if now >= self._sent_at + _HEARTBEAT_S:
            self._sent_at = now
            self.wake(is_read=False)
        self._timer = self._loop.call_at(self._sent_at + _HEARTBEAT_S, self._look)

    async def _waited(self) -> bool:
        """Wait until there is something to read; False: nothing was sent for long."""
        self._sent_at = self._loop.time()
        if not self._has_more:
            self._waiter = self._loop.create_future()
            try:
                return await self._waiter
            finally:
                self._waiter = None
        self._has_more = False
        return True

    async def _written(self, reader: _Reader) -> tuple[Sequence[bytes], int, PipelineError | None]:
        """Write what is there of a choice: small events go together.

        Returns their pieces, how many parts these are of, and why the next one cannot be written.
        """
        pieces: list[bytes] = []
        size = count = 0
        choice = reader.request.choice
        try:
            if reader.error is not None:
                return pieces, count, reader.error
            while reader.parts and size <= SHORT_BYTES and not choice.is_cut:
                count += 1
                body = await self._part(reader, reader.parts.popleft())
                if body:
                    pieces.append(body)
                    size += len(body)
            if reader.parts and not choice.is_cut:
                self._has_more = True
            elif reader.has_ended or choice.is_cut:
                pieces += await self._end(reader)
        except PipelineError as error:
            return pieces, count, error
        return [b"".join(pieces)] if pieces and size <= SHORT_BYTES else pieces, count, None

    async def _end(self, reader: _Reader) -> Sequence[bytes]:
        """Return the last events of a choice: its one answer, what was held back, and the end."""
        choice, events = reader.request.choice, []
        if choice.is_cut:
            reader.cancel()
        elif reader.last is not None:
            events.append(await self._part(reader, reader.last))
        if rest := choice.rest():
            events.append(self._writer.part(choice, rest))
        reader.is_over = True
        end = await self._call.made(partial(self._writer.end, choice), self._writer.is_short)
        return [*filter(None, events), end]

    async def _part(self, reader: _Reader, answer: Any) -> bytes:
        """Return the events of a part; b"" if nothing of it is told yet."""
        choice = reader.request.choice

        def event() -> bytes:
            delta = choice.take(payload_of(answer, reader.failure))
            return self._writer.part(choice, delta) if delta else b""

        return event() if is_short_answer(answer) else await self._call.made(event, False)
