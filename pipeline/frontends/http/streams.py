"""Streams over HTTP: answers in parts, as server-sent events or as lines of JSON."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec

from pipeline.errors import PipelineError, error_from_wire
from pipeline.frontends.http.routes import Header, HttpError, WebStream, error_body
from pipeline.frontends.parts import PartsReader
from pipeline.proto.pipeline_service_pb2 import Response
from pipeline.proto.slices import SHORT_BYTES

_PATH_HEADERS: tuple[Header, ...] = (
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # otherwise nginx buffers parts
)
_JSON_TYPE = "application/json"
_Q = re.compile(r"0(\.[0-9]*)?|1(\.0*)?")


Write = Callable[[Any, PipelineError | None], bytes | Awaitable[bytes]]
"""Makes the JSON of an answer, at once if it is short, or of an error.

Raises PipelineError for an answer that is too large; HttpError for another object, or for an error
with a status.
"""

WriteShort = Callable[[Any], bytes | None]
"""Makes the JSON of a short part; None: `Write` has to make it."""


class StreamForm(msgspec.Struct, frozen=True):
    """The form of a body in parts, each of which is JSON without a line break.

    `end` marks success, `heartbeat` that the server is alive; b"": the form has no such mark.
    """

    content_type: bytes
    part_head: bytes
    error_head: bytes
    tail: bytes
    end: bytes = b""
    heartbeat: bytes = b""

    def part(self, body: bytes) -> tuple[bytes, ...]:
        """Return the pieces of a part; large data is not copied."""
        return self._framed(self.part_head, body)

    def error(self, body: bytes) -> tuple[bytes, ...]:
        """Return the pieces of an error, which ends the stream."""
        return self._framed(self.error_head, body)

    def _framed(self, head: bytes, body: bytes) -> tuple[bytes, ...]:
        pieces = (head, body, self.tail)
        return pieces if len(body) > SHORT_BYTES else (b"".join(pieces),)


EVENTS = StreamForm(
    content_type=b"text/event-stream",
    part_head=b"data: ",
    error_head=b"event: error\ndata: ",
    tail=b"\n\n",
    end=b"event: end\ndata: {}\n\n",  # browsers ignore an event without data
    heartbeat=b": heartbeat\n\n",
)
LINES = StreamForm(content_type=b"application/x-ndjson", part_head=b"", error_head=b"", tail=b"\n")
_FORMS = {form.content_type.decode(): form for form in (EVENTS, LINES)}


def stream_form(accepted: Iterable[bytes]) -> StreamForm | None:
    """Return the form of the stream that Accept asks for; None: one answer in JSON.

    The client must name the form's type: ranges like `*/*` mean JSON. The type with the highest q
    counts; of equal ones the first, with ranges last.
    """
    best: StreamForm | None = None
    best_q = 0.0
    range_q = 0.0
    for value in accepted:
        for item in value.decode("latin-1").lower().split(","):
            kind, *parameters = (word.strip() for word in item.split(";"))
            q = _quality(parameters)
            if kind in ("*/*", "application/*"):
                range_q = max(range_q, q)
            elif (kind in _FORMS or kind == _JSON_TYPE) and q > best_q:
                best, best_q = _FORMS.get(kind), q
    return best if best_q >= range_q else None


def _quality(parameters: Iterable[str]) -> float:
    """Return the q of a media range; 1 if it is missing or invalid."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q" and _Q.fullmatch(value.strip()):
            return float(value)
    return 1.0


def stream_in(
    form: StreamForm,
    pieces: AsyncGenerator[bytes, None],
    begun: Callable[[Callable[[bytes], bool]], None] | None = None,
) -> WebStream:
    """Return a stream of pieces in a form."""
    return WebStream(pieces, form.content_type, _PATH_HEADERS, begun=begun)


def stream_of_error(error: PipelineError, form: StreamForm) -> WebStream:
    """Return a stream with only an error, which has status 200 outside streams."""
    return stream_in(form, _error(error, form))


async def _error(error: PipelineError, form: StreamForm) -> AsyncGenerator[bytes, None]:
    for piece in form.error(error_body(error)):
        yield piece


class StreamedAnswer(PartsReader):
    """An answer in parts, as a body in a form.

    A short part is sent at once if every part before it is sent and there is room.

    Args:
        form: of the body.
        write: makes the JSON of an answer.
        write_short: makes the JSON of a short part.
        heartbeat_s: maximum silence before a heartbeat.
        write_error: makes the JSON of an error.
    """

    def __init__(
        self,
        form: StreamForm,
        write: Write,
        write_short: WriteShort,
        heartbeat_s: float,
        write_error: Callable[[PipelineError], bytes] = error_body,
    ) -> None:
        super().__init__()
        self._form = form
        self._write = write
        self._write_short = write_short
        self._heartbeat_s = heartbeat_s
        self._write_error = write_error
        self._send: Callable[[bytes], bool] | None = None
        self._has_begun = False
        self._untaken = 0  # parts that were sent and filled the connection's buffer
        self._sent_at = 0.0  # time of the last piece, on the loop's clock
        self._timer: asyncio.TimerHandle | None = None

    def stream(self) -> WebStream:
        """Return the stream of the begun request; it is cancelled if the client disconnects."""
        return stream_in(self._form, self._pieces(), self._set_send)

    def _set_send(self, send: Callable[[bytes], bool]) -> None:
        self._send = send

    def add(self, answers: Sequence[Any]) -> None:
        send, waiter, request = self._send, self._waiter, self._request
        if send is None or waiter is None or waiter.done() or not (piece := self._short(answers)):
            super().add(answers)
            return
        self._sent_at = self._loop.time()
        if send(piece) and request is not None:
            request.took_part(len(answers))
        else:
            self._untaken = len(answers)
            self._wake()

    def _short(self, answers: Sequence[Any]) -> bytes:
        """Return the piece of parts that are all short; b"": one is not short."""
        form, write, piece = self._form, self._write_short, b""
        try:
            for answer in answers:
                body = write(answer)
                if body is None:
                    return b""
                piece += form.part_head + body + form.tail
        except PipelineError:  # `write` also raises it
            return b""
        return piece

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the body; a part counts as taken when the next piece is asked for."""
        form = self._form
        self._watch()
        try:
            while not self.has_ended or self.parts:
                is_there = await self.wait()
                if self._untaken:
                    yield b""  # continues when there is room
                    self.took_part(self._untaken)
                    self._untaken = 0
                elif not is_there:
                    self._has_begun = True
                    yield form.heartbeat
                while self.parts:
                    pieces, count, error = await self._written()
                    for piece in pieces:
                        self._has_begun = True
                        yield piece
                    if error is not None:
                        raise error
                    self._sent_at = self._loop.time()
                    self.took_part(count)
            for piece in await self._last():
                self._has_begun = True
                yield piece
        except (PipelineError, HttpError) as error:
            if isinstance(error, HttpError):
                if not self._has_begun:  # the error has its own status
                    raise
                error = error.error
            for piece in form.error(self._write_error(error)):
                yield piece
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self.cancel()

    def _watch(self) -> None:
        """Have a heartbeat sent if nothing was sent for `heartbeat_s`."""
        self._loop = asyncio.get_running_loop()
        self._sent_at = self._loop.time()
        if self._form.heartbeat:
            self._timer = self._loop.call_later(self._heartbeat_s, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        if now >= self._sent_at + self._heartbeat_s:
            self._sent_at = now
            self._wake()
        self._timer = self._loop.call_at(self._sent_at + self._heartbeat_s, self._look)

    async def _written(
        self,
    ) -> tuple[Sequence[bytes], int, PipelineError | HttpError | None]:
        """Write the waiting parts; join small ones.

        Returns the pieces, the number of parts in them, and why the next part cannot be written.
        """
        parts, head, tail = self.parts, self._form.part_head, self._form.tail
        pieces: list[bytes] = []
        size = count = 0
        failure: PipelineError | HttpError | None = None
        try:
            while parts and size <= SHORT_BYTES:
                body = self._write(parts.popleft(), self.failure)
                if not isinstance(body, bytes):
                    body = await body
                pieces += head, body, tail
                size += len(body)
                count += 1
        except (PipelineError, HttpError) as error:
            failure = error
        return [b"".join(pieces)] if pieces and size <= SHORT_BYTES else pieces, count, failure

    async def _last(self) -> tuple[bytes, ...]:
        """Return the pieces after the last part: an end, an error, or the only answer and an end.

        Raises HttpError for an error with a status.
        """
        answer, form, failure = self.last, self._form, self.failure
        if answer is None:
            return (form.end,)
        is_error = isinstance(answer, Response) and answer.err_no != 0
        head = None if failure is None or self._has_begun else failure.head
        if head is not None and head.status is not None and is_error:
            error = error_from_wire(answer.err_no, answer.err_msg, failure)
            raise HttpError(head.status, error, *head.fields)
        body = self._write(answer, self.failure)
        if not isinstance(body, bytes):
            body = await body
        return form.error(body) if is_error else (*form.part(body), form.end)
