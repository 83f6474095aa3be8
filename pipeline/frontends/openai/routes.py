"""OpenAIRoutes: the paths below `/v1`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple

import orjson

from pipeline.engine.models import Served
from pipeline.engine.offload import Offload
from pipeline.engine.request import RequestTarget, ask
from pipeline.errors import ConfigError, NoServiceError, PackageError, PipelineError, TooLargeError
from pipeline.frontends.api.answers import is_short_answer, payload_of
from pipeline.frontends.api.bodies import is_json, is_large
from pipeline.frontends.api.pipelines import Asked, Pipelines
from pipeline.frontends.base import FrontendContext
from pipeline.frontends.http.paths import Answer, Paths
from pipeline.frontends.http.routes import Endpoint, HttpError, WebRequest, WebResponse, WebStream
from pipeline.frontends.http.streams import StreamForm, stream_of
from pipeline.frontends.openai.answers import Payload, Writer, embeddings
from pipeline.frontends.openai.errors import ArgumentError, error_body, reply_to, status_for
from pipeline.frontends.openai.options import ModelOptions, OpenAIOptions
from pipeline.frontends.openai.questions import (
    Fields,
    Questions,
    chat_questions,
    completion_questions,
    embedding_questions,
)
from pipeline.frontends.parts import PartsReader
from pipeline.proto.plain_json import read_large_object, read_object
from pipeline.proto.slices import Limits

_HEARTBEAT_S = 15.0  # that a stream may be silent
_AT_ONCE = 64  # texts of one request that are worked on
_DONE = b"data: [DONE]\n\n"
_FORM = StreamForm(
    content_type=b"text/event-stream",
    part_head=b"data: ",
    error_head=b"data: ",
    tail=b"\n\n",
    heartbeat=b": heartbeat\n\n",
)

Read = Callable[[Fields, ModelOptions], Questions]


class _Asked(NamedTuple):
    """A request that was read: whom it asks, what, and how long its caller waits for it."""

    model_id: str
    model: ModelOptions
    served: Served
    questions: Questions
    asked: Sequence[Asked]
    left_s: float | None


def openai(context: FrontendContext, options: OpenAIOptions) -> None:
    """Add OpenAI's API to the HTTP port. Raises ConfigError: a model's pipeline is not there."""
    config = context.config
    pipelines = Pipelines(context.models, context.forwarding, config.opentelemetry)
    there = pipelines.names()
    for model_id, model in options.models.items():
        name = _pipeline_of(model_id, model, there)
        if name not in there:
            raise ConfigError(
                f"frontends.openai.models.{model_id}: there is no pipeline {name!r}, "
                f"but {', '.join(there)}: say which under `pipeline`"
            )
    models = options.models or {name: ModelOptions() for name in there}
    context.routes.append(OpenAIRoutes(models, pipelines, context.offload, config.limits))


openai.Options = OpenAIOptions  # type: ignore[attr-defined]


class OpenAIRoutes:
    """`/v1/chat/completions`, `/v1/completions`, `/v1/embeddings` and `/v1/models`.

    Args:
        models: by their ids.
        pipelines: who is asked.
        offload: where large requests and answers are read and written; its owner stops it.
        limits: of JSON.
    """

    def __init__(
        self,
        models: Mapping[str, ModelOptions],
        pipelines: Pipelines,
        offload: Offload,
        limits: Limits,
    ) -> None:
        self._models = models
        self._pipelines = pipelines
        self._offload = offload
        self._limits = limits
        self._created = int(time.time())
        endpoints: dict[str, tuple[str, Answer]] = {
            "/v1/models": ("GET", self._list),
            "/v1/models/(?P<name>.+)": ("GET", self._show),
            "/v1/chat/completions": ("POST", partial(self._complete, is_chat=True)),
            "/v1/completions": ("POST", partial(self._complete, is_chat=False)),
            "/v1/embeddings": ("POST", self._embed),
        }
        self._paths = Paths("/v1", endpoints, _refuse_path, reply_to)

    def endpoint(self, request: WebRequest) -> Endpoint | None:
        """Return the endpoint that answers it: one for each path below `/v1`, known or not."""
        return self._paths.endpoint(request)

    # Models ---------------------------------------------------------------------------------

    async def _list(self, request: WebRequest, name: str) -> WebResponse:
        data = [self._described(model_id) for model_id in self._models]
        return WebResponse(body=orjson.dumps({"object": "list", "data": data}))

    async def _show(self, request: WebRequest, name: str) -> WebResponse:
        self._find(name)
        return WebResponse(body=orjson.dumps(self._described(name)))

    def _described(self, model_id: str) -> dict[str, Any]:
        about = {"created": self._created, "owned_by": "pipeline"}
        return {"id": model_id, "object": "model", **about}

    def _find(self, model_id: object, kind: str = "") -> ModelOptions:
        """Return a model. Raises ArgumentError: it is not there, or answers nothing of a kind."""
        if not isinstance(model_id, str) or not model_id:
            raise ArgumentError("model must be the id of a model, as text", "model")
        there = ", ".join(self._models)
        model = self._models.get(model_id)
        if model is None:
            text = f"there is no model {model_id!r} here, but {there}"
            raise ArgumentError(text, "model", "model_not_found", 404)
        kinds = (model.kind,) if model.kind != "text" else ("chat", "completion")
        if kind and kind not in kinds:
            text = f"the model {model_id!r} answers {' and '.join(kinds)}, not {kind}"
            raise ArgumentError(text, "model", "model_not_supported")
        return model

    # Completions ----------------------------------------------------------------------------

    async def _complete(
        self, request: WebRequest, name: str, is_chat: bool
    ) -> WebResponse | WebStream:
        """Answer a chat, or go on with prompts; at once or part by part."""
        read = chat_questions if is_chat else completion_questions
        asked = await self._read(request, "chat" if is_chat else "completion", read)
        questions = asked.questions
        has_usage = questions.is_stream and questions.has_usage
        writer = Writer(asked.model_id, asked.model, is_chat, has_usage)
        if questions.is_stream:
            return await self._streamed(asked, writer)
        payloads, is_short = await self._payloads(asked)
        body = await self._made(partial(writer.whole, payloads), is_short, asked.left_s)
        return WebResponse(body=body)

    async def _streamed(self, asked: _Asked, writer: Writer) -> WebStream:
        """Answer part by part; the first is awaited, to tell its status."""
        raw, target = asked.asked[0]
        reader = PartsReader()
        reader.begin(asked.served.engine.begin, raw, asked.left_s, target)
        has_failed = False

        async def write(answer: Any) -> bytes:
            try:
                return await self._made(
                    lambda: writer.chunk(payload_of(answer)), is_short_answer(answer)
                )
            except PipelineError as error:
                raise HttpError(status_for(error), error) from error

        def write_error(error: PipelineError) -> bytes:
            nonlocal has_failed
            has_failed = True
            return error_body(error)

        stream = stream_of(reader, _FORM, write, _HEARTBEAT_S, write_error)

        async def pieces(first: bytes) -> AsyncGenerator[bytes, None]:
            async with aclosing(stream.pieces):
                if first:
                    yield first
                async for piece in stream.pieces:
                    if piece:
                        yield piece
            if not has_failed:
                ends = [b"".join(_FORM.part(each)) for each in writer.last_chunks()]
                yield b"".join([*ends, _DONE])

        try:
            first = await anext(stream.pieces, b"")
        except BaseException:
            reader.cancel()
            raise
        return WebStream(pieces(first), stream.content_type, stream.headers)

    # Embeddings -----------------------------------------------------------------------------

    async def _embed(self, request: WebRequest, name: str) -> WebResponse:
        """Answer with a vector for each text."""
        asked = await self._read(request, "embedding", embedding_questions)
        payloads, is_short = await self._payloads(asked)
        in_base64 = asked.questions.in_base64
        make = partial(embeddings, payloads, asked.model_id, asked.model, in_base64)
        return WebResponse(body=await self._made(make, is_short, asked.left_s))

    # What they have in common ---------------------------------------------------------------

    async def _read(self, request: WebRequest, kind: str, read: Read) -> _Asked:
        """Return what a request asks. Raises PackageError, HttpError."""
        if not is_json(request.headers.get(b"content-type", b"")):
            raise HttpError(415, PackageError("send JSON, with content-type: application/json"))
        body = await request.read()
        if not is_large(body):
            return self._understood(request, read_object(body), kind, read)

        def understood() -> _Asked:
            return self._understood(request, read_large_object(body, self._limits), kind, read)

        try:
            asked, left_s = await self._offload.run(understood, request.timeout_s)
        except TooLargeError as error:
            raise HttpError(413, error) from error
        return asked._replace(left_s=left_s)

    def _understood(self, request: WebRequest, fields: Fields, kind: str, read: Read) -> _Asked:
        model_id = fields.get("model")
        model = self._find(model_id, kind)
        name = _pipeline_of(str(model_id), model, self._pipelines.names())
        served, questions = self._pipelines.find(name), read(fields, model)
        asked = [self._pipelines.asked(served, each, request.headers) for each in questions.fields]
        return _Asked(str(model_id), model, served, questions, asked, request.timeout_s)

    async def _payloads(self, read: _Asked) -> tuple[Sequence[Payload], bool]:
        """Return what the pipeline answers each text with, and whether it is little.

        The first error ends the others. Raises PipelineError.
        """
        turn, is_short = asyncio.Semaphore(_AT_ONCE), len(read.asked) == 1
        begin, left_s = read.served.engine.begin, read.left_s

        async def payload(raw: Any, target: RequestTarget) -> Payload:
            nonlocal is_short
            async with turn:
                answer = await ask(begin, raw, left_s, target)
            if is_short_answer(answer):
                return payload_of(answer)
            is_short = False
            found, _ = await self._offload.run(partial(payload_of, answer), left_s)
            return found

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(payload(*each)) for each in read.asked]
        except* (PipelineError, HttpError) as errors:
            raise _first(errors) from None
        return [task.result() for task in tasks], is_short

    async def _made(
        self, make: Callable[[], bytes], is_short: bool, left_s: float | None = None
    ) -> bytes:
        """Return JSON, which is made on the event loop if it is short."""
        if is_short:
            return make()
        body, _ = await self._offload.run(make, left_s)
        return body


def _pipeline_of(model_id: str, model: ModelOptions, there: Sequence[str]) -> str:
    """Return the name of the pipeline that a model stands for."""
    if model.pipeline is not None:
        return model.pipeline
    return there[0] if len(there) == 1 else model_id


def _first(errors: BaseExceptionGroup[Any]) -> BaseException:
    """Return the first error of a group, however deep it is."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _refuse_path(request: WebRequest, name: str) -> WebResponse:
    raise NoServiceError(
        f"no such path: {request.path}; there are /v1/chat/completions, /v1/completions, "
        "/v1/embeddings and /v1/models"
    )
