"""Answers to chats and completions, in the lane of the HTTP frontend and outside it."""

from __future__ import annotations

from functools import partial
from typing import Any

from pipeline.answer_head import AnswerHead
from pipeline.engine.offload import Offload
from pipeline.engine.request import RequestHandle, ResponseSink, UnarySink
from pipeline.engine.streams.combine import StreamLimits, size_of
from pipeline.errors import PipelineError
from pipeline.frontends.api.answers import is_short_answer, payload_of
from pipeline.frontends.http.routes import (
    HandOverError,
    LaneReply,
    WebRequest,
    WebResponse,
    WebStream,
    shown,
    with_head,
)
from pipeline.frontends.openai.call import TimedCall, all_of
from pipeline.frontends.openai.choices import (
    ChoiceRequest,
    ChoiceStream,
    requests_of,
    whole_of,
    whole_of_parts,
)
from pipeline.frontends.openai.models import Form, Models, ParsedRequest
from pipeline.frontends.openai.writers import Writer
from pipeline.openai import Delta
from pipeline.proto.plain_json import read_object
from pipeline.proto.slices import SHORT_BYTES

_IN_DICTS = frozenset(("audio", "functions", "logprobs"))  # arguments that are answered with dicts
_FEW = 64  # choices that are written on the event loop, if they are short


class CompletionEndpoint:
    """Endpoint of requests with the same path and headers; see `LaneEndpoint`.

    Args:
        models: answer the requests.
        offload: writes large answers.
        kept: limits of a stream that becomes one answer.
        form: of requests and answers.
        request: the first of these requests.
    """

    takes_large: bool = False

    def __init__(
        self,
        models: Models,
        offload: Offload,
        limits: StreamLimits,
        form: Form,
        request: WebRequest,
    ) -> None:
        self._models = models
        self._offload = offload
        self._limits = limits
        self._form = form
        self._left_s = request.timeout_s
        self._headers = request.headers

    def begin(self, body: bytes, sink: ResponseSink) -> RequestHandle:
        """Have the engine begin a request for one text. Raises PipelineError, HandOverError."""
        fields = read_object(body)
        if fields.get("stream") or self._form.is_large(fields):
            raise HandOverError
        parsed = self._models.parse(fields, self._headers, *self._form[:2])
        engine = parsed.served.engine
        writer, requests, by_parts = self._requests(parsed)
        if len(requests) > 1 or by_parts:
            raise HandOverError
        (request,) = requests
        sink = _OneChoice(sink, writer, request)
        return engine.begin(request.raw, self._left_s, request.target, sink)

    def _requests(self, parsed: ParsedRequest) -> tuple[Writer, list[ChoiceRequest], bool]:
        """Return the writer, the requests to the engine, and whether parts are read one by one.

        Parts are read one by one if a stop may cancel the rest, or if parts have dicts to join.
        """
        questions = parsed.questions
        writer = self._form.write(parsed.model_id, questions)
        in_parts = parsed.served.engine.executor.is_decoupled()
        requests = requests_of(parsed.engine_requests, parsed.model.text, questions.stops, in_parts)
        by_parts = in_parts and (bool(questions.stops) or not _IN_DICTS.isdisjoint(questions.body))
        return writer, requests, by_parts

    def reply(self, ended: Any, failure: PipelineError | None) -> LaneReply:
        """Return the reply for the engine's answer, or for an error."""
        try:
            if isinstance(ended, Exception):
                raise ended
            sink, answer = ended
            if is_short_answer(answer) and sink.is_short:
                return bytes(sink.body(answer, failure))
        except Exception as error:
            return self._form.reply_to(shown(error))
        return self._written_in_thread(partial(sink.body, answer, failure))

    async def _written_in_thread(self, write: Any) -> WebResponse:
        """Have a large answer written beside the event loop."""
        try:
            return WebResponse(body=(await self._offload.run(write, self._left_s))[0])
        except Exception as error:
            return self._form.reply_to(shown(error))

    async def answer(self, parsed: ParsedRequest, left_s: float | None) -> WebResponse | WebStream:
        """Answer with any number of texts, at once or in parts. Raises PipelineError."""
        writer, requests, by_parts = self._requests(parsed)
        call = TimedCall(parsed.served.engine.begin, self._offload, left_s)
        if parsed.questions.is_stream:
            return ChoiceStream(requests, call, writer).stream()

        async def whole(request: ChoiceRequest) -> Delta:
            if by_parts:
                return await whole_of_parts(request, call, self._limits)
            return await whole_of(request, call)

        wholes = await all_of([partial(whole, request) for request in requests])
        choices = [(request.choice, delta) for request, delta in zip(requests, wholes, strict=True)]
        is_few = len(wholes) <= _FEW and size_of(wholes) <= SHORT_BYTES // 2 and writer.is_short
        return with_head(await call.made(partial(writer.whole, choices), is_few), call.head)


class _OneChoice(UnarySink):
    """Sink of the request for one text; hands itself and the answer to the connection's sink."""

    __slots__ = ("_request", "_sink", "_writer")

    def __init__(self, sink: ResponseSink, writer: Writer, request: ChoiceRequest) -> None:
        self._sink = sink
        self._writer = writer
        self._request = request

    def take_head(self, head: AnswerHead) -> None:
        """Pass on the head that user code set for the answer."""
        self._sink.take_head(head)

    def fail(self, error: PipelineError) -> None:
        """Pass on the error that the answer reports."""
        self._sink.fail(error)

    def end(self, answer: Any) -> None:
        """Pass on the answer of the engine."""
        self._sink.end((self, answer))

    @property
    def is_short(self) -> bool:
        """Return whether the completion takes no longer than the answer."""
        return self._writer.is_short

    def body(self, answer: Any, failure: PipelineError | None) -> bytes:
        """Return the completion. Raises PipelineError."""
        choice = self._request.choice
        return self._writer.whole([(choice, choice.whole(payload_of(answer, failure)))])
