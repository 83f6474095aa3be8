"""Choices of one request: each is a request to the pipeline, and they run side by side."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple

from pipeline.data import ChannelData
from pipeline.engine.request import RequestTarget
from pipeline.engine.streams.combine import PartCounter, StreamLimits
from pipeline.errors import PipelineError, TooLargeError
from pipeline.frontends.api.answers import is_short_answer, payload_of, quick_payload
from pipeline.frontends.api.pipelines import EngineRequest
from pipeline.frontends.http.routes import WebStream
from pipeline.frontends.http.streams import EVENTS, stream_in
from pipeline.frontends.openai.answers import Choice, joined
from pipeline.frontends.openai.call import MOST_AT_ONCE, TimedCall
from pipeline.frontends.openai.writers import Writer
from pipeline.frontends.parts import PartsReader, answers_to
from pipeline.openai import Delta
from pipeline.proto.slices import SHORT_BYTES

_HEARTBEAT_S = 15.0  # a stream that is silent for longer sends a heartbeat


class ChoiceRequest(NamedTuple):
    """A choice, and its request to the engine."""

    choice: Choice
    raw: Any
    target: RequestTarget


def requests_of(
    engine_requests: Sequence[EngineRequest], key: str, stops: Sequence[str], in_parts: bool
) -> list[ChoiceRequest]:
    """Return the requests of all choices; `key` has the text of an answer, or of a part."""
    return [
        ChoiceRequest(Choice(at, key, stops, in_parts), *engine_request)
        for at, engine_request in enumerate(engine_requests)
    ]


async def whole_of(request: ChoiceRequest, call: TimedCall) -> Delta:
    """Return the content of a choice. Raises PipelineError."""
    answer = await call.answer(request.raw, request.target)
    choice = request.choice
    return await call.made(
        lambda: choice.whole(payload_of(answer, call.failure)),
        is_short_answer(answer),
    )


async def whole_of_parts(request: ChoiceRequest, call: TimedCall, limits: StreamLimits) -> Delta:
    """Return the content of a choice from a pipeline that streams; cancel it at a stop.

    Raises PipelineError; TooLargeError for more than `limits`.
    """
    choice, counter = request.choice, PartCounter()
    deltas: list[Delta] = []

    def take(answer: Any) -> None:
        payload = payload_of(answer, reader.failure)
        if too_much := counter.add(payload, limits):
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
    return await call.made(partial(joined, deltas), counter.bytes <= SHORT_BYTES)


class _Reader(PartsReader):
    """Reader of a choice that arrives in parts.

    Args:
        request: for the choice.
        stream: is woken when there is something to read.

    Attributes:
        is_over: all its events are sent.
        untaken: parts that were sent and filled the connection's buffer.
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
    """Choices of one request as a stream of events.

    A short part is sent at once if every part before it is sent and there is room.

    Args:
        requests: begun in order, up to a number of them at once.
        call: asks the engine.
        writer: of the events.
    """

    def __init__(self, requests: Sequence[ChoiceRequest], call: TimedCall, writer: Writer) -> None:
        self._call = call
        self._writer = writer
        self._readers = [_Reader(request, self) for request in requests]
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[bool] | None = None
        self._is_begun = False  # the events before the first part are sent; they may be large
        self._has_more = False  # to read: parts arrived while nothing waited for them
        self._send: Callable[[bytes], bool] | None = None
        self._sent_at = self._loop.time()  # time of the last piece
        self._timer: asyncio.TimerHandle | None = None

    def stream(self) -> WebStream:
        """Return the stream; the choices are cancelled if the client disconnects."""
        return stream_in(EVENTS, self._pieces(), self._set_send)

    def _set_send(self, send: Callable[[bytes], bool]) -> None:
        self._send = send

    def wake(self, is_read: bool = True) -> None:
        """Have the waiting parts read, or with `is_read` False a heartbeat sent."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(is_read)
        elif is_read:
            self._has_more = True

    def sends(self, reader: _Reader, answers: Sequence[Any]) -> bool:
        """Send parts of a choice at once; False: they are not short, or others precede them."""
        send, waiter, choice = self._send, self._waiter, reader.request.choice
        if send is None or waiter is None or waiter.done() or choice.stops or not self._is_begun:
            return False
        for answer in answers:
            payload = quick_payload(answer)
            if payload is None or not self._writer.is_short_part(choice, payload):
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
        """Yield the body; a part counts as taken when the next piece is asked for.

        An error ends all choices: before the first piece it is raised, later it is one more event.
        If the generator is closed early, because the client disconnected, all are cancelled.
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
        """Have a heartbeat sent if nothing was sent for `_HEARTBEAT_S`."""
        now = self._loop.time()
        if now >= self._sent_at + _HEARTBEAT_S:
            self._sent_at = now
            self.wake(is_read=False)
        self._timer = self._loop.call_at(self._sent_at + _HEARTBEAT_S, self._look)

    async def _waited(self) -> bool:
        """Wait until there is something to read; False: a heartbeat is due."""
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
        """Write the waiting parts of a choice; join small events.

        Returns the pieces, the number of parts in them, and why the next part cannot be written.
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
        """Return the last events of a choice: its last answer, what was held back, and the end."""
        choice, events = reader.request.choice, []
        if choice.is_cut:
            reader.cancel()
        elif reader.last is not None:
            events.append(await self._part(reader, reader.last))
        if rest := choice.rest():
            part = partial(self._writer.part, choice, rest)
            events.append(await self._call.made(part, self._is_short_part(choice, rest)))
        reader.is_over = True
        end = await self._call.made(partial(self._writer.end, choice), self._writer.is_short)
        return [*filter(None, events), end]

    def _is_short_part(self, choice: Choice, payload: Any) -> bool:
        """Return whether the next events are short: those of a short part."""
        if not self._is_begun:
            return self._writer.is_short
        return isinstance(payload, Mapping) and self._writer.is_short_part(choice, payload)

    async def _part(self, reader: _Reader, answer: Any) -> bytes:
        """Return the events of a part; b"" if it has nothing to send yet."""
        choice = reader.request.choice

        def event() -> bytes:
            delta = choice.take(payload_of(answer, reader.failure))
            return self._writer.part(choice, delta) if delta else b""

        payload = answer.payload if isinstance(answer, ChannelData) else None
        is_short = is_short_answer(answer) and self._is_short_part(choice, payload)
        events = await self._call.made(event, is_short)
        self._is_begun = self._is_begun or bool(events)
        return events
