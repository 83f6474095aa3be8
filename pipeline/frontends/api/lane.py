"""ApiLane: plain JSON in the lane of the HTTP frontend, from bytes to fields and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pipeline.data import ChannelData
from pipeline.engine.models import ModelEntry, ModelState
from pipeline.engine.request import RequestHandle, RequestTarget, ResponseSink
from pipeline.errors import PipelineError
from pipeline.frontends.api.answers import (
    CONTENT_TYPE,
    AnswerWriter,
    is_quick,
    is_short_answer,
    payload_of,
    written,
)
from pipeline.frontends.api.bodies import object_of
from pipeline.frontends.api.errors import reply_to
from pipeline.frontends.api.pipelines import EMPTY, Pipelines, served_by
from pipeline.frontends.http.bodies import is_json
from pipeline.frontends.http.routes import LaneReply, WebRequest, WebResponse
from pipeline.frontends.http.streams import stream_form
from pipeline.proto.plain_answer import write_object
from pipeline.proto.slices import Limits

_PATH = re.compile("/api/([^/]+)")
_READY = ModelState.READY
_LIMITS = Limits()  # of what is short, which reaches none


class ApiLane:
    """`POST /api/<name>` with JSON, as far as nothing about it is unusual.

    All else is left to ApiRoutes.

    Args:
        pipelines: who is asked.
        writer: of large answers.
    """

    def __init__(self, pipelines: Pipelines, writer: AnswerWriter) -> None:
        self._pipelines = pipelines
        self._writer = writer

    def in_line(self, request: WebRequest) -> ApiEndpoint | None:
        """Return what answers a POST; None: it is left to the routes."""
        headers = request.headers
        match = _PATH.fullmatch(request.path)
        if match is None or not is_json(headers.get(b"content-type", b"")):
            return None
        if stream_form(request.accepts) is not None:
            return None
        try:
            entry = self._pipelines.entry(match[1])
        except PipelineError:
            return None
        return ApiEndpoint(self._pipelines, self._writer, entry, request.timeout_s, headers)


class ApiEndpoint:
    """Requests to one pipeline, whose heads are the same; see `LaneEndpoint`."""

    def __init__(
        self,
        pipelines: Pipelines,
        writer: AnswerWriter,
        entry: ModelEntry,
        left_s: float | None,
        headers: Mapping[bytes, bytes],
    ) -> None:
        self._pipelines = pipelines
        self._writer = writer
        self._entry = entry
        self._is_plain = pipelines.is_plain(entry.served)
        self._left_s = left_s
        self._headers = headers
        self._type = headers.get(b"content-type", b"")

    def begin(self, body: bytes, sink: ResponseSink) -> RequestHandle:
        """Have the engine begin a request. Raises PipelineError, which `reply` is given."""
        entry, fields = self._entry, object_of(body, self._type, _LIMITS)
        served = entry.served if entry.state is _READY else served_by(entry)
        if self._is_plain:
            target = RequestTarget(payload=fields, wants_response=False)
            return served.engine.begin(EMPTY, self._left_s, target, sink)
        raw, target = self._pipelines.asked(served, fields, self._headers)
        return served.engine.begin(raw, self._left_s, target, sink)

    def reply(self, answer: Any, failure: PipelineError | None) -> LaneReply:
        """Return what is written for the answer of an engine, or for what `begin` raised."""
        try:
            if type(answer) is ChannelData:
                payload = answer.payload
                if type(payload) is dict and CONTENT_TYPE not in payload and is_quick(payload):
                    return write_object(payload)
            elif isinstance(answer, Exception):
                raise answer
            if is_short_answer(answer):
                return written(payload_of(answer, failure))
        except PipelineError as error:
            return reply_to(error)
        return self._beside(answer)

    async def _beside(self, answer: Any) -> WebResponse:
        """Have a large answer written beside the event loop."""
        try:
            return await self._writer.write(answer, self._left_s)
        except PipelineError as error:
            return reply_to(error)
