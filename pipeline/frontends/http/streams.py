"""Streams over HTTP: answers part by part, as server-sent events or as lines of JSON."""

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
    (b"x-accel-buffering", b"no"),  # nginx would keep parts until it has many
)
_JSON_TYPE = "application/json"
_Q = re.compile(r"0(\.[0-9]*)?|1(\.0*)?")


Write = Callable[[Any, PipelineError | None], bytes | Awaitable[bytes]]
"""Makes the JSON of an answer, at once where that is short; or of the error that it tells.

Raises PipelineError for an answer that is too large, and HttpError for another object, or for an
error that has a status.
"""

WriteShort = Callable[[Any], bytes | None]
"""Makes the JSON of a part that is known to be short; None: `Write` has to look at it."""


class StreamForm(msgspec.Struct, frozen=True):
    """The form of a body that comes in parts, each of which is JSON without a line break.

    `end` says that all went well, `heartbeat` that the server is alive; b"": this form says it
    not.
    """

    content_type: bytes
    part_head: bytes
    error_head: bytes
    tail: bytes
    end: bytes = b""
    heartbeat: bytes = b""

    def part(self, body: bytes) -> tuple[bytes, ...]:
        """Return the pieces that a part is written in; what is large is not copied."""
        return self._framed(self.part_head, body)

    def error(self, body: bytes) -> tuple[bytes, ...]:
        """Return the pieces that an error is written in, which ends the stream."""
        return self._framed(self.error_head, body)

    def _framed(self, head: bytes, body: bytes) -> tuple[bytes, ...]:
        pieces = (head, body, self.tail)
        return pieces if len(body) > SHORT_BYTES else (b"".join(pieces),)


EVENTS = StreamForm(
    content_type=b"text/event-stream",
    part_head=b"data: ",
    error_head=b"event: error\ndata: ",
    tail=b"\n\n",
    end=b"event: end\ndata: {}\n\n",  # browsers are not told of an event without data
    heartbeat=b": heartbeat\n\n",
)
LINES = StreamForm(content_type=b"application/x-ndjson", part_head=b"", error_head=b"", tail=b"\n")
_FORMS = {form.content_type.decode(): form for form in (EVENTS, LINES)}


def stream_form(accepted: Iterable[bytes]) -> StreamForm | None:
    """Return the form of the stream that the values of Accept ask for; None: one answer in JSON.

    A stream is only for who names its type: ranges like `*/*` stand for JSON. Of several the one
    with the highest q is taken, and of equal ones that which is named first; ranges come last.
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
    """Return the q of a media range; 1 if it has no valid one."""
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
    """Return the stream of pieces that have a form."""
    return WebStream(pieces, form.content_type, _PATH_HEADERS, begun=begun)


def stream_of_error(error: PipelineError, form: StreamForm) -> WebStream:
    """Return the stream that an error is, which the plain door answers with status 200."""
    return stream_in(form, _error(error, form))


async def _error(error: PipelineError, form: StreamForm) -> AsyncGenerator[bytes, None]:
    for piece in form.error(error_body(error)):
        yield piece


class StreamedAnswer(PartsReader):
    """The answer that a reader is given, as a body in a form.

    A part that is short goes out as it comes, if all before it is on its way and there is room.

    Args:
        form: of the body.
        write: makes the JSON of an answer.
        write_short: makes that of a short part.
        heartbeat_s: how long nothing may be sent.
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
        self._untaken = 0  # parts that were sent, and left no room for others
        self._sent_at = 0.0  # the last piece, on the loop's clock
        self._timer: asyncio.TimerHandle | None = None

    def stream(self) -> WebStream:
        """Return it; the request has begun, and is cancelled if the caller leaves."""
        return stream_in(self._form, self._pieces(), self._take_way)

    def _take_way(self, send: Callable[[bytes], bool]) -> None:
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
        """Return the piece of parts that are all short; b"": one is not."""
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
        """Yield the body: a part counts as taken when the piece behind it is asked for."""
        form = self._form
        self._watch()
        try:
            while not self.has_ended or self.parts:
                is_there = await self.wait()
                if self._untaken:
                    yield b""  # comes back when there is room
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
                if not self._has_begun:  # it has a status of its own
                    raise
                error = error.error
            for piece in form.error(self._write_error(error)):
                yield piece
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self.cancel()

    def _watch(self) -> None:
        """Have a heartbeat sent whenever nothing was for so long."""
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
        """Write the parts that are there, which go together if they are small.

        Returns their pieces, how many parts these are, and why the next one cannot be written.
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
        """Return the pieces behind the last part: an end, an error, or the one answer and an end.

        Raises HttpError for an error that has a status.
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
