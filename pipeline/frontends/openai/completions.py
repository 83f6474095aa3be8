"""Completions: chats, and what goes on with prompts, in the lane of the HTTP frontend or not."""

from __future__ import annotations

from functools import partial
from typing import Any

from pipeline.answer_head import AnswerHead
from pipeline.engine.offload import Offload
from pipeline.engine.request import RequestHandle, ResponseSink, UnarySink
from pipeline.engine.streams.combine import StreamLimits, size_of
from pipeline.errors import PipelineError
from pipeline.frontends.api.answers import is_short_answer, payload_of
from pipeline.frontends.http.paths import begun
from pipeline.frontends.http.routes import (
    HandOverError,
    LaneReply,
    WebRequest,
    WebResponse,
    WebStream,
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
from pipeline.frontends.openai.models import Form, Models, Understood
from pipeline.frontends.openai.writers import Writer
from pipeline.openai import Delta
from pipeline.proto.plain_json import read_object
from pipeline.proto.slices import SHORT_BYTES

_IN_DICTS = frozenset(("audio", "functions", "logprobs"))  # arguments that are answered with dicts
_FEW = 64  # choices that are written on the event loop, if they are short


class CompletionEndpoint:
    """Requests of one kind whose heads are the same; see `LaneEndpoint`.

    Args:
        models: who is asked.
        offload: where large answers are written.
        kept: limits of a stream that becomes one answer.
        form: of the requests and of what is answered.
        request: one of them.
    """

    takes_large: bool = False

    def __init__(
        self, models: Models, offload: Offload, kept: StreamLimits, form: Form, request: WebRequest
    ) -> None:
        self._models = models
        self._offload = offload
        self._kept = kept
        self._form = form
        self._left_s = request.timeout_s
        self._headers = request.headers

    def begin(self, body: bytes, sink: ResponseSink) -> RequestHandle:
        """Have the engine begin a request for one text. Raises PipelineError, HandOverError."""
        fields = read_object(body)
        if fields.get("stream"):
            raise HandOverError
        asked = self._models.understand(fields, self._headers, *self._form[:2])
        engine = asked.served.engine
        writer, requests, by_parts = self._requests(asked)
        if len(requests) > 1 or by_parts:
            raise HandOverError
        (request,) = requests
        sink = _OneChoice(sink, writer, request)
        return engine.begin(request.raw, self._left_s, request.target, sink)

    def _requests(self, asked: Understood) -> tuple[Writer, list[ChoiceRequest], bool]:
        """Return who writes, what the engine is asked, and whether parts are read one by one.

        That is where a stop cancels the rest, and where dicts of several parts are put together.
        """
        questions = asked.questions
        writer = self._form.write(asked.model_id, questions)
        in_parts = asked.served.engine.executor.is_decoupled()
        requests = requests_of(asked.asked, asked.model.text, questions.stops, in_parts)
        by_parts = in_parts and (bool(questions.stops) or not _IN_DICTS.isdisjoint(questions.body))
        return writer, requests, by_parts

    def reply(self, ended: Any, failure: PipelineError | None) -> LaneReply:
        """Return what is written for a text that has its answer, or for an error."""
        try:
            if isinstance(ended, Exception):
                raise ended
            one, answer = ended
            if is_short_answer(answer):
                return bytes(one.body(answer, failure))
        except PipelineError as error:
            return self._form.reply_to(error)
        return self._beside(partial(one.body, answer, failure))

    async def _beside(self, write: Any) -> WebResponse:
        """Have a large answer written beside the event loop."""
        try:
            return WebResponse(body=(await self._offload.run(write, self._left_s))[0])
        except PipelineError as error:
            return self._form.reply_to(error)

    async def answer(self, asked: Understood, left_s: float | None) -> WebResponse | WebStream:
        """Answer with any number of texts, at once or part by part. Raises PipelineError."""
        writer, requests, by_parts = self._requests(asked)
        call = TimedCall(asked.served.engine.begin, self._offload, left_s)
        if asked.questions.is_stream:
            return await begun(ChoiceStream(requests, call, writer).stream())

        async def whole(request: ChoiceRequest) -> Delta:
            if by_parts:
                return await whole_of_parts(request, call, self._kept)
            return await whole_of(request, call)

        wholes = await all_of([partial(whole, request) for request in requests])
        said = [(request.choice, each) for request, each in zip(requests, wholes, strict=True)]
        is_few = len(wholes) <= _FEW and size_of(wholes) <= SHORT_BYTES // 2 and writer.is_short
        return with_head(await call.made(partial(writer.whole, said), is_few), call.head)


class _OneChoice(UnarySink):
    """Sink of the request for one text; gives the connection's sink itself and the answer."""

    __slots__ = ("_request", "_sink", "_writer")

    def __init__(self, sink: ResponseSink, writer: Writer, request: ChoiceRequest) -> None:
        self._sink = sink
        self._writer = writer
        self._request = request

    def say(self, head: AnswerHead) -> None:
        """Pass on what user code says of the answer's head."""
        self._sink.say(head)

    def fail(self, error: PipelineError) -> None:
        """Pass on the error that the answer tells."""
        self._sink.fail(error)

    def end(self, answer: Any) -> None:
        """Pass on the answer of the engine."""
        self._sink.end((self, answer))

    def body(self, answer: Any, failure: PipelineError | None) -> bytes:
        """Return the completion. Raises PipelineError."""
        choice = self._request.choice
        return self._writer.whole([(choice, choice.whole(payload_of(answer, failure)))])
