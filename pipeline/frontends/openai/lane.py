"""OpenAILane: completions in the lane of the HTTP frontend, from bytes to a text and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.answer_head import AnswerHead
from pipeline.engine.offload import Offload
from pipeline.engine.request import RequestHandle, ResponseSink, UnarySink
from pipeline.errors import PipelineError
from pipeline.frontends.api.answers import is_short_answer, payload_of
from pipeline.frontends.http.bodies import is_json
from pipeline.frontends.http.routes import HandOverError, LaneReply, WebRequest, WebResponse
from pipeline.frontends.openai.answers import Choice, Writer
from pipeline.frontends.openai.errors import reply_to
from pipeline.frontends.openai.models import Models
from pipeline.proto.plain_json import read_object

_KINDS: Mapping[str, str] = {"/v1/chat/completions": "chat", "/v1/completions": "completion"}


class OpenAILane:
    """Chats and completions with one text, at once; all else is left to OpenAIRoutes.

    Args:
        models: who is asked.
        offload: where large answers are written; its owner stops it.
    """

    def __init__(self, models: Models, offload: Offload) -> None:
        self._models = models
        self._offload = offload

    def in_line(self, request: WebRequest) -> CompletionEndpoint | None:
        """Return what answers a POST; None: it is left to the routes."""
        headers = request.headers
        kind = _KINDS.get(request.path)
        if kind is None or not is_json(headers.get(b"content-type", b"")):
            return None
        return CompletionEndpoint(self._models, self._offload, kind, request.timeout_s, headers)


class CompletionEndpoint:
    """Requests of one kind whose heads are the same; see `LaneEndpoint`."""

    def __init__(
        self,
        models: Models,
        offload: Offload,
        kind: str,
        left_s: float | None,
        headers: Mapping[bytes, bytes],
    ) -> None:
        self._models = models
        self._offload = offload
        self._kind = kind
        self._left_s = left_s
        self._headers = headers

    def begin(self, body: bytes, sink: ResponseSink) -> RequestHandle:
        """Have the engine begin a request. Raises PipelineError, which `reply` is given."""
        fields = read_object(body)
        if fields.get("stream"):
            raise HandOverError
        model_id, model, served, questions, asked = self._models.understand(
            fields, self._headers, self._kind
        )
        engine, stops = served.engine, questions.stops
        in_parts = engine.executor.is_decoupled()
        if len(asked) > 1 or (stops and in_parts):
            raise HandOverError
        ((raw, target),) = asked
        writer = Writer(model_id, self._kind == "chat")
        choice = Choice(0, model.text, stops, in_parts)
        return engine.begin(raw, self._left_s, target, _Completion(sink, writer, choice))

    def reply(self, answer: Any, failure: PipelineError | None) -> LaneReply:
        """Return what is written for a completion that has its answer, or for an error."""
        try:
            if isinstance(answer, Exception):
                raise answer
            if is_short_answer(answer.answer):
                return bytes(answer.body())
        except PipelineError as error:
            return reply_to(error)
        return self._beside(answer)

    async def _beside(self, completion: _Completion) -> WebResponse:
        """Have a large answer written beside the event loop."""
        try:
            body, _ = await self._offload.run(completion.body, self._left_s)
        except PipelineError as error:
            return reply_to(error)
        return WebResponse(body=body)


class _Completion(UnarySink):
    """Sink of the request for one text, which it hands to another sink as itself.

    Args:
        sink: of the connection.
        writer: of the text.
        choice: the text.
    """

    __slots__ = ("_choice", "_failure", "_sink", "_writer", "answer")

    def __init__(self, sink: ResponseSink, writer: Writer, choice: Choice) -> None:
        self._sink = sink
        self._writer = writer
        self._choice = choice
        self.answer: Any = None
        self._failure: PipelineError | None = None

    def say(self, head: AnswerHead) -> None:
        """Pass on what user code says of the answer's head."""
        self._sink.say(head)

    def fail(self, error: PipelineError) -> None:
        """Take the error that the answer tells."""
        self._failure = error
        self._sink.fail(error)

    def end(self, answer: Any) -> None:
        """Take the answer of the engine."""
        self.answer = answer
        self._sink.end(self)

    def body(self) -> bytes:
        """Return the completion. Raises PipelineError."""
        text = self._choice.take(payload_of(self.answer, self._failure)) + self._choice.rest()
        return self._writer.whole([(self._choice, text)])
