"""OpenAIRoutes: answers the paths below `/v1`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import orjson

from pipeline.engine.offload import Offload
from pipeline.engine.request import RequestTarget
from pipeline.engine.streams.combine import StreamLimits
from pipeline.errors import NoServiceError, PackageError
from pipeline.frontends.api.answers import is_short_answer, payload_of
from pipeline.frontends.api.bodies import MULTIPART, is_form, is_large
from pipeline.frontends.api.multipart import fields_of_form
from pipeline.frontends.api.pipelines import Pipelines
from pipeline.frontends.base import FrontendContext
from pipeline.frontends.http.bodies import is_json
from pipeline.frontends.http.paths import PathEndpoint, Paths
from pipeline.frontends.http.routes import (
    Endpoint,
    HttpError,
    WebRequest,
    WebResponse,
    WebStream,
    with_head,
)
from pipeline.frontends.openai.answers import Payload
from pipeline.frontends.openai.arguments import Fields
from pipeline.frontends.openai.call import TimedCall, all_of
from pipeline.frontends.openai.completions import CompletionEndpoint
from pipeline.frontends.openai.describing import described
from pipeline.frontends.openai.errors import reply_to
from pipeline.frontends.openai.media import PLAIN_FORMS, PlainForm
from pipeline.frontends.openai.messages import (
    MessageWriter,
    message_questions,
    reply_with_error,
)
from pipeline.frontends.openai.models import Form, Models, ParsedRequest, Read, is_never_large
from pipeline.frontends.openai.options import OpenAIOptions
from pipeline.frontends.openai.questions import (
    chat_questions,
    completion_questions,
)
from pipeline.frontends.openai.response_writer import ResponseWriter
from pipeline.frontends.openai.responses import KeptResponses, ResponseReader
from pipeline.frontends.openai.writers import ChatWriter, CompletionWriter
from pipeline.proto.plain_json import read_large_object, read_object
from pipeline.proto.slices import Limits, is_short


def forms(kept: KeptResponses) -> Mapping[str, Form]:
    """Return the forms by path; `kept` stores the responses."""
    return {
        "/v1/chat/completions": Form("chat", chat_questions, ChatWriter),
        "/v1/completions": Form("completion", completion_questions, CompletionWriter),
        "/v1/responses": Form(
            "chat",
            ResponseReader(kept),
            partial(ResponseWriter, kept),
            is_large=kept.is_large_before,
        ),
        "/v1/messages": Form("chat", message_questions, MessageWriter, reply_with_error),
    }


def openai(context: FrontendContext, options: OpenAIOptions) -> None:
    """Add OpenAI's API to the HTTP port. Raises ConfigError: a model's pipeline does not exist."""
    config, offload = context.config, context.offload
    pipelines = Pipelines(context.models, context.forwarding, config.sends_traces)
    models = Models(options.models, pipelines)
    context.described.append(described(models.options))
    kept = StreamLimits(config.dag.max_parts, config.limits.message_bytes)
    responses = KeptResponses(options.stored_responses)
    routes = OpenAIRoutes(models, offload, config.limits, kept, responses)
    context.error_forms.update({"/v1/": reply_to, "/v1/messages/": reply_with_error})
    context.routes.append(routes)
    context.lanes.append(routes)


openai.Options = OpenAIOptions  # type: ignore[attr-defined]


class OpenAIRoutes:
    """The paths below `/v1`: texts in each form, embeddings, models, and stored responses.

    Args:
        models: answer the requests.
        offload: reads and writes large messages; its owner stops it.
        limits: of JSON.
        kept: limits of a stream that becomes one answer.
        responses: the stored ones.
    """

    def __init__(
        self,
        models: Models,
        offload: Offload,
        limits: Limits,
        kept: StreamLimits,
        responses: KeptResponses,
    ) -> None:
        self._models = models
        self._offload = offload
        self._limits = limits
        self._completion = partial(CompletionEndpoint, models, offload, kept)
        self._responses = responses
        self._forms = forms(responses)
        self._created = int(time.time())
        endpoints: dict[str, tuple[str, PathEndpoint]] = {
            "/v1/models": ("GET", self._list),
            "/v1/models/(?P<name>.+)": ("GET", self._show),
            "/v1/responses/(?P<name>[^/]+)": ("GET, DELETE", self._kept_response),
        }
        for path, form in self._forms.items():
            endpoints[path] = ("POST", partial(self._complete, form=form))
        for path, plain in PLAIN_FORMS.items():
            endpoints[path] = ("POST", partial(self._answer, form=plain))
        self._paths = Paths("/v1", endpoints, _refuse_path)

    def endpoint(self, request: WebRequest) -> Endpoint | None:
        """Return the endpoint of a path below `/v1`; one answers unknown paths."""
        return self._paths.endpoint(request)

    # Models ---------------------------------------------------------------------------------

    async def _list(self, request: WebRequest, name: str) -> WebResponse:
        data = [self._described(model_id) for model_id in self._models.options]
        return WebResponse(body=orjson.dumps({"object": "list", "data": data}))

    async def _show(self, request: WebRequest, name: str) -> WebResponse:
        self._models.find(name)
        return WebResponse(body=orjson.dumps(self._described(name)))

    def _described(self, model_id: str) -> dict[str, Any]:
        about = {"created": self._created, "owned_by": "pipeline"}
        return {"id": model_id, "object": "model", **about}

    # Responses ------------------------------------------------------------------------------

    async def _kept_response(self, request: WebRequest, name: str) -> WebResponse:
        """Show a stored response, or delete it."""
        if request.method != "DELETE":
            return WebResponse(body=self._responses.find(name).body)
        self._responses.remove(name)
        reply = {"id": name, "object": "response", "deleted": True}
        return WebResponse(body=orjson.dumps(reply))

    # Completions ----------------------------------------------------------------------------

    def in_line(self, request: WebRequest) -> CompletionEndpoint | None:
        """Return the endpoint for a POST with one text; None: `endpoint` has it."""
        form = self._forms.get(request.path)
        if form is None or not is_json(request.headers.get(b"content-type", b"")):
            return None
        return self._completion(form, request)

    async def _complete(
        self, request: WebRequest, name: str, form: Form
    ) -> WebResponse | WebStream:
        """Answer a request in the form of an API, at once or in parts."""
        parsed, left_s = await self._read(
            request, form.kind, form.read, is_large_read=form.is_large
        )
        return await self._completion(form, request).answer(parsed, left_s)

    # Answers without streams ----------------------------------------------------------------

    async def _answer(self, request: WebRequest, name: str, form: PlainForm) -> WebResponse:
        """Answer with the answers to all questions, for example an embedding for each text."""
        parsed, left_s = await self._read(request, form.kind, form.read, form.takes_forms)
        call = TimedCall(parsed.served.engine.begin, self._offload, left_s)

        async def payload(raw: Any, target: RequestTarget) -> Payload:
            answer = await call.answer(raw, target)
            return await call.made(
                partial(payload_of, answer, call.failure), is_short_answer(answer)
            )

        payloads = await all_of(
            [partial(payload, *engine_request) for engine_request in parsed.engine_requests]
        )
        is_little = len(payloads) == 1 and is_short(payloads[0])
        return with_head(
            await call.made(partial(form.write, parsed, payloads), is_little), call.head
        )

    # Reading --------------------------------------------------------------------------------

    async def _read(
        self,
        request: WebRequest,
        kind: str,
        read: Read,
        takes_forms: bool = False,
        is_large_read: Callable[[Fields], bool] = is_never_large,
    ) -> tuple[ParsedRequest, float | None]:
        """Return a request, read and checked, and how long its client waits.

        Raises PipelineError, HttpError.
        """
        headers, limits = request.headers, self._limits
        content_type = headers.get(b"content-type", b"")
        is_expected = is_form(content_type) if takes_forms else is_json(content_type)
        if not is_expected:
            expected = MULTIPART if takes_forms else "JSON, with content-type: application/json"
            raise HttpError(415, PackageError(f"send {expected}"))
        body = await request.read()

        def fields() -> Fields:
            if takes_forms:
                return fields_of_form(body, content_type, limits)
            return read_large_object(body, limits) if is_large(body) else read_object(body)

        def parsed(fields: Fields) -> ParsedRequest:
            return self._models.parse(fields, headers, kind, read)

        timeout_s = request.timeout_s
        if is_large(body):
            return await self._offload.run(lambda: parsed(fields()), timeout_s)
        read_fields = fields()
        if is_large_read(read_fields):
            return await self._offload.run(partial(parsed, read_fields), timeout_s)
        return parsed(read_fields), timeout_s


async def _refuse_path(request: WebRequest, name: str) -> WebResponse:
    raise NoServiceError(
        f"no such path: {request.path}; there are /v1/chat/completions, /v1/completions, "
        "/v1/responses, /v1/messages, /v1/embeddings, /v1/audio/transcriptions, "
        "/v1/images/generations and /v1/models"
    )
