"""Choices of one request: each is a request to the pipeline, all of them side by side."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple

from pipeline.engine.request import RequestTarget
from pipeline.engine.streams.combine import Kept, StreamLimits
from pipeline.errors import PipelineError, TooLargeError
from pipeline.frontends.api.answers import is_short_answer, payload_of
from pipeline.frontends.api.pipelines import Asked
from pipeline.frontends.http.streams import StreamForm
from pipeline.frontends.openai.answers import Choice, joined
from pipeline.frontends.openai.call import MOST_AT_ONCE, TimedCall
from pipeline.frontends.openai.writers import Writer
from pipeline.frontends.parts import PartsReader, answers_to
from pipeline.openai import Delta
from pipeline.proto.slices import SHORT_BYTES

_HEARTBEAT_S = 15.0  # that a stream may be silent
EVENTS = StreamForm(
    content_type=b"text/event-stream",
    part_head=b"data: ",
    error_head=b"data: ",
    tail=b"\n\n",
    heartbeat=b": heartbeat\n\n",
)


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
    choice, kept = request.choice, Kept()
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
    return joined([*deltas, choice.rest()])


class _Reader(PartsReader):
    """Reader of a choice that comes part by part; `is_over`: nothing more of it is told.

    Args:
        arrived: is set when there is something to be read.
    """

    def __init__(self, request: ChoiceRequest, arrived: asyncio.Event) -> None:
        super().__init__()
        self.request = request
        self.is_over: bool = False
        self._arrived = arrived

    def add(self, answers: Sequence[Any]) -> None:
        super().add(answers)
        self._arrived.set()

    def end(self, answer: Any) -> None:
        super().end(answer)
        self._arrived.set()


class ChoiceStream:
    """Choices of one request as events, each chunk as it comes.

    Args:
        requests: are begun in their order, some at once.
        call: asks for them.
        writer: of the chunks.
    """

    def __init__(self, requests: Sequence[ChoiceRequest], call: TimedCall, writer: Writer) -> None:
        self._call = call
        self._writer = writer
        self._arrived = asyncio.Event()
        self._readers = [_Reader(request, self._arrived) for request in requests]

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the body; a part counts as taken when the piece behind it is asked for.

        An error ends all choices: it is raised before the first piece, and one more event behind
        that. Closed early, as for a caller who has left, all are cancelled.
        """
        has_begun = False
        try:
            async with aclosing(self._chunks()) as chunks:
                async for piece in chunks:
                    has_begun = True
                    yield piece
        except PipelineError as error:
            if not has_begun:
                raise
            yield self._writer.error(error)
        finally:
            for reader in self._readers:
                reader.cancel()

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        call, waiting, active = self._call, deque(self._readers), list[_Reader]()
        while waiting or active:
            while waiting and len(active) < MOST_AT_ONCE:
                active.append(reader := waiting.popleft())
                request = reader.request
                reader.begin(call.begin, request.raw, call.left(), request.target)
            if not await self._waited():
                yield EVENTS.heartbeat
            for reader in active:
                pieces, count, error = await self._written(reader)
                for piece in pieces:
                    yield piece
                if error is not None:
                    raise error
                for _ in range(count):
                    reader.took_part()
            active = [reader for reader in active if not reader.is_over]
        yield self._writer.last([reader.request.choice for reader in self._readers])

    async def _waited(self) -> bool:
        """Wait until there is something to read; False: nothing came for long."""
        try:
            if not self._arrived.is_set():
                async with asyncio.timeout(_HEARTBEAT_S):
                    await self._arrived.wait()
        except TimeoutError:
            return False
        self._arrived.clear()
        return True

    async def _written(self, reader: _Reader) -> tuple[Sequence[bytes], int, PipelineError | None]:
        """Write what is there of a choice: small chunks go together.

        Returns their pieces, how many parts these are of, and why the next one cannot be written.
        """
        pieces: list[bytes] = []
        size = count = 0
        choice = reader.request.choice
        try:
            while reader.parts and size <= SHORT_BYTES and not choice.is_cut:
                count += 1
                body = await self._chunk(reader, reader.parts.popleft())
                if body:
                    pieces.append(body)
                    size += len(body)
            if reader.parts and not choice.is_cut:
                self._arrived.set()
            elif reader.has_ended or choice.is_cut:
                pieces += await self._end(reader)
        except PipelineError as error:
            return pieces, count, error
        return [b"".join(pieces)] if pieces and size <= SHORT_BYTES else pieces, count, None

    async def _end(self, reader: _Reader) -> Sequence[bytes]:
        """Return the last chunks of a choice: its one answer, what was held back, and the end."""
        choice, chunks = reader.request.choice, []
        if choice.is_cut:
            reader.cancel()
        elif reader.last is not None:
            chunks.append(await self._chunk(reader, reader.last))
        if rest := choice.rest():
            chunks.append(self._writer.part(choice, rest))
        reader.is_over = True
        return [*filter(None, chunks), self._writer.end(choice)]

    async def _chunk(self, reader: _Reader, answer: Any) -> bytes:
        """Return the events of a part; b"" if nothing of it is told yet."""

        choice = reader.request.choice

        def chunk() -> bytes:
            delta = choice.take(payload_of(answer, reader.failure))
            return self._writer.part(choice, delta) if delta else b""

        return await self._call.made(chunk, is_short_answer(answer))
