"""Streams over HTTP: answers part by part, as server-sent events or as lines of JSON."""

from __future__ import annotations

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


Write = Callable[[Any], bytes | Awaitable[bytes]]


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
    """Return the q of a media range; 1 where it says none that could be read."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q" and _Q.fullmatch(value.strip()):
            return float(value)
    return 1.0


def stream_of(
    reader: PartsReader,
    form: StreamForm,
    write: Write,
    heartbeat_s: float,
    write_error: Callable[[PipelineError], bytes] = error_body,
) -> WebStream:
    """Return the answer that a reader is given, as a stream.

    Args:
        reader: of a request that has begun; it is cancelled if the caller leaves.
        form: of the body.
        write: makes the JSON of an answer, at once where that is short. Raises PipelineError for
            an answer that is too large, and HttpError for another object, or for an error that
            has a status.
        heartbeat_s: how long nothing may be sent, in s.
        write_error: makes the JSON of an error.
    """
    return stream_in(form, _pieces(reader, form, write, heartbeat_s, write_error))


def stream_in(form: StreamForm, pieces: AsyncGenerator[bytes, None]) -> WebStream:
    """Return the stream of pieces that have a form."""
    return WebStream(pieces, form.content_type, _PATH_HEADERS)


def stream_of_error(error: PipelineError, form: StreamForm) -> WebStream:
    """Return the stream that an error is, which the plain door answers with status 200."""
    return stream_in(form, _error(error, form))


async def _error(error: PipelineError, form: StreamForm) -> AsyncGenerator[bytes, None]:
    for piece in form.error(error_body(error)):
        yield piece


async def _pieces(
    reader: PartsReader,
    form: StreamForm,
    write: Write,
    heartbeat_s: float,
    write_error: Callable[[PipelineError], bytes],
) -> AsyncGenerator[bytes, None]:
    """Yield the body: a part counts as taken when the piece behind it is asked for."""
    patience_s = heartbeat_s if form.heartbeat else None
    has_begun = False
    try:
        while not reader.has_ended or reader.parts:
            if not await reader.wait(patience_s):
                has_begun = True
                yield form.heartbeat
            while reader.parts:
                pieces, count, error = await _written(reader, form, write)
                for piece in pieces:
                    has_begun = True
                    yield piece
                if error is not None:
                    raise error
                reader.took_part(count)
        failure = None if has_begun else reader.failure
        head = None if failure is None else failure.head
        if head is not None and head.status is not None and _is_error(reader.last):
            error = error_from_wire(reader.last.err_no, reader.last.err_msg, failure)
            raise HttpError(head.status, error, *head.fields)
        for piece in await _last(reader.last, form, write):
            has_begun = True
            yield piece
    except (PipelineError, HttpError) as error:
        if isinstance(error, HttpError):
            if not has_begun:  # it has a status of its own
                raise
            error = error.error
        for piece in form.error(write_error(error)):
            yield piece
    finally:
        reader.cancel()


async def _written(
    reader: PartsReader, form: StreamForm, write: Write
) -> tuple[Sequence[bytes], int, PipelineError | HttpError | None]:
    """Write the parts that are there, which go together if they are small.

    Returns their pieces, how many parts these are, and why the next one cannot be written.
    """
    parts, head, tail = reader.parts, form.part_head, form.tail
    pieces: list[bytes] = []
    size = count = 0
    failure: PipelineError | HttpError | None = None
    try:
        while parts and size <= SHORT_BYTES:
            body = write(parts.popleft())
            if not isinstance(body, bytes):
                body = await body
            pieces += head, body, tail
            size += len(body)
            count += 1
    except (PipelineError, HttpError) as error:
        failure = error
    return [b"".join(pieces)] if pieces and size <= SHORT_BYTES else pieces, count, failure


async def _last(answer: Any, form: StreamForm, write: Write) -> tuple[bytes, ...]:
    """Return the pieces behind the last part: an end, an error, or the one answer and an end."""
    if answer is None:
        return (form.end,)
    body = write(answer)
    if not isinstance(body, bytes):
        body = await body
    return form.error(body) if _is_error(answer) else (*form.part(body), form.end)


def _is_error(answer: Any) -> bool:
    return isinstance(answer, Response) and answer.err_no != 0
