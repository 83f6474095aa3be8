"""InferLane: inference requests in the lane of the HTTP frontend, from bytes to arrays and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pipeline.engine.offload import Offload
from pipeline.engine.request import RequestHandle, ResponseSink
from pipeline.errors import PipelineError
from pipeline.frontends.http.routes import (
    HandOverError,
    LaneReply,
    WebRequest,
    WebResponse,
)
from pipeline.frontends.v2 import ModelRepository, V2Error
from pipeline.frontends.v2.forms import BodyForms, InferCall, Told, UnknownFormError
from pipeline.frontends.v2.http import BINARY, HEADER_LENGTH, accepted, failure, reply_of
from pipeline.frontends.v2.repository import is_short_answer
from pipeline.proto.slices import Limits, is_short
from pipeline.proto.v2.codec import InferResponse

# A version is written in one way here, lest forms are kept for each way to write it.
_INFER = re.compile(r"/v2/models/([^/]+)(?:/versions/([1-9][0-9]{0,17}))?/infer")
_LENGTH = re.compile(rb"[1-9][0-9]{0,8}")
_MOST_MODELS = 1024  # whose forms are known


class InferLane:
    """`POST /v2/models/{m}[/versions/{v}]/infer`, as far as nothing about it is unusual.

    All else is left to InferenceRoutes.

    Args:
        models, offload, limits: as there.
    """

    def __init__(self, models: ModelRepository, offload: Offload, limits: Limits) -> None:
        self._models = models
        self._offload = offload
        self._limits = limits
        self._forms: dict[tuple[str, str], BodyForms] = {}

    def in_line(self, request: WebRequest) -> InferEndpoint | None:
        """Return what answers a POST; None: it is left to the routes."""
        match, headers = _INFER.fullmatch(request.path), request.headers
        if match is None or not self._models.has(match[1]):
            return None
        if accepted(headers.get(b"accept-encoding", b"").decode("latin-1")):
            return None
        told = headers.get(HEADER_LENGTH)
        if told is not None and _LENGTH.fullmatch(told) is None:
            return None
        forms = self._forms_of(match[1], match[2] or "")
        length = None if told is None else int(told)
        return InferEndpoint(forms, length, request.timeout_s, headers, self._offload, self._limits)

    def _forms_of(self, name: str, version: str) -> BodyForms:
        found = self._forms.get((name, version))
        if found is None:
            if len(self._forms) >= _MOST_MODELS:
                self._forms.clear()
            found = BodyForms(self._models, self._limits, name, version)
            self._forms[name, version] = found
        return found


class InferEndpoint:
    """Requests for one model, whose heads are the same."""

    def __init__(
        self,
        forms: BodyForms,
        length: int | None,
        left_s: float | None,
        headers: Mapping[bytes, bytes],
        offload: Offload,
        limits: Limits,
    ) -> None:
        self._forms = forms
        self._length = length
        self._left_s = left_s
        trace = headers.get(b"traceparent", b"").decode("latin-1")
        self._told = Told(left_s, trace, headers.items)
        self._offload = offload
        self._limits = limits

    def begin(self, body: bytes, sink: ResponseSink) -> RequestHandle:
        """Have the engine begin a request. Raises HandOverError, and what `Engine.begin` does."""
        if self._length is not None and self._length > len(body):
            raise HandOverError
        try:
            return self._forms.begin(body, self._length, self._told, sink)
        except UnknownFormError:
            raise HandOverError from None

    def reply(self, ended: Any, cause: PipelineError | None) -> LaneReply:
        """Return what is written for the answer of an engine, or for what it raised."""
        if isinstance(ended, PipelineError):
            return failure(ended)
        if isinstance(ended, Exception):
            raise ended
        call: InferCall = ended[0]
        answer = ended[1]
        written: tuple[bytes, int | None] | None = call.form.written(answer, call.id)
        if written is not None:
            body, length = written
            if length is None:
                return body
            return WebResponse(200, body, BINARY, ((HEADER_LENGTH, b"%d" % length),))
        try:
            return self._reply(call, answer)
        except (PipelineError, V2Error) as error:
            return failure(error)

    def _reply(self, call: InferCall, answer: Any) -> LaneReply:
        if not is_short_answer(answer):
            return self._beside(partial(self._made_of, call, answer))
        form = call.form
        response = form.response(call.id, form.fitted.outputs(answer))
        if not is_short(response.outputs):
            return self._beside(partial(self._written, call, response))
        form.learn(answer, response)
        return self._written(call, response)

    def _made_of(self, call: InferCall, answer: Any) -> WebResponse:
        form = call.form
        return self._written(call, form.response(call.id, form.fitted.outputs(answer)))

    def _written(self, call: InferCall, response: InferResponse) -> WebResponse:
        return reply_of(response, call.form.binary(response.outputs), "", self._limits)

    async def _beside(self, write: Callable[[], WebResponse]) -> WebResponse:
        """Have a large answer written beside the event loop."""
        try:
            reply, _ = await self._offload.run(write, self._left_s)
            return reply
        except (PipelineError, V2Error) as error:
            return failure(error)
