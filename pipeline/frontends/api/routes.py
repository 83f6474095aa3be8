"""ApiRoutes: the paths of plain JSON, below `/api` and beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from pipeline.engine.models import ModelEntry, ModelState, ServedGraph
from pipeline.engine.offload import Offload
from pipeline.engine.request import RequestHandle, RequestTarget, ResponseSink, ask
from pipeline.errors import NoServiceError, PipelineError
from pipeline.frontends.api.answers import (
    is_short_answer,
    large_media,
    large_part,
    payload_of,
    quick_object,
    written,
    written_large,
)
from pipeline.frontends.api.bodies import (
    fields_of,
    is_form,
    is_large,
    key_of,
    object_of,
    sequence_in,
)
from pipeline.frontends.api.errors import error_body, failure_of, reply_to
from pipeline.frontends.api.multipart import without_views
from pipeline.frontends.api.pipelines import (
    EMPTY,
    EngineRequest,
    Pipelines,
    served_by,
    takes_sequences,
)
from pipeline.frontends.api.sockets import SocketRequests
from pipeline.frontends.http.bodies import is_json
from pipeline.frontends.http.paths import PathEndpoint, Paths
from pipeline.frontends.http.routes import (
    Body,
    Endpoint,
    HandOverError,
    HttpError,
    LaneReply,
    WebRequest,
    WebResponse,
    WebStream,
    WebUpgrade,
    shown,
    whole,
)
from pipeline.frontends.http.streams import StreamedAnswer, stream_form
from pipeline.frontends.http.websocket import MOST_BYTES, accepted
from pipeline.proto.plain_answer import write_object
from pipeline.proto.slices import Limits

_HEARTBEAT_S = 15.0  # a stream of events that is silent for longer sends a heartbeat
_PATH = r"/api/(?P<name>[^/]+)"
_READY = ModelState.READY
_LIMITS = Limits()  # for short bodies, which cannot reach a limit


class ApiRoutes:
    """`/api/<name>` and its description.

    Args:
        pipelines: answer the requests.
        offload: reads and writes large messages; its owner stops it.
        limits: of JSON.
        more: other paths of this frontend, see `Paths`.
    """

    def __init__(
        self,
        pipelines: Pipelines,
        offload: Offload,
        limits: Limits,
        more: Mapping[str, tuple[str, PathEndpoint]] | None = None,
    ) -> None:
        self.pipelines = pipelines
        self.offload = offload
        self.limits = limits
        self._paths = Paths(
            "/api",
            {
                _PATH: ("POST", self._infer),
                f"{_PATH}/ws": ("GET", self._open_socket),
                **(more or {}),
            },
            self._refuse_path,
        )
        self._posted = re.compile(_PATH)

    def endpoint(self, request: WebRequest) -> Endpoint | None:
        """Return the endpoint of a path below `/api`; one answers unknown paths."""
        return self._paths.endpoint(request)

    def in_line(self, request: WebRequest) -> ApiEndpoint | None:
        """Return the endpoint for a POST of JSON, or of one value, with one answer.

        None: `endpoint` has it.
        """
        match, kind = (
            self._posted.fullmatch(request.path),
            request.headers.get(b"content-type", b""),
        )
        if match is None or not (is_json(kind) or key_of(kind)):
            return None
        if stream_form(request.accepts) is not None:
            return None
        try:
            return ApiEndpoint(self, self.pipelines.entry(match["name"]), request)
        except PipelineError:
            return None

    async def _infer(self, request: WebRequest, name: str) -> WebResponse | WebStream:
        """Answer with the last Op's fields, at once or in parts."""
        entry = self.pipelines.entry(name)  # 404 before the body is read
        served_by(entry)
        return await ApiEndpoint(self, entry, request).answer(request)

    async def _open_socket(self, request: WebRequest, name: str) -> WebUpgrade:
        """Answer requests in messages of a WebSocket."""
        entry = self.pipelines.entry(name)
        served_by(entry)
        head = accepted(request.headers)
        requests = SocketRequests(ApiEndpoint(self, entry, request), request.query)
        return WebUpgrade(head, requests.run, min(self.limits.message_bytes, MOST_BYTES))

    async def _refuse_path(self, request: WebRequest, name: str) -> WebResponse:
        there = ", ".join(f"/api/{known}" for known in self.pipelines.names())
        raise NoServiceError(f"no such path: {request.path}; POST {there}")


class ApiEndpoint:
    """Endpoint of one pipeline for requests with the same head; see `LaneEndpoint`."""

    def __init__(self, api: ApiRoutes, entry: ModelEntry, request: WebRequest) -> None:
        self._api = api
        self._entry = entry
        self._is_plain = api.pipelines.is_plain(entry.served)
        self.left_s: float | None = request.timeout_s
        self.limits: Limits = api.limits
        self.offload: Offload = api.offload
        self._headers = request.headers
        self._type = request.headers.get(b"content-type", b"")
        self._key = key_of(self._type)
        self._is_form = is_form(self._type)
        self.takes_large: bool = bool(self._key)

    def begin(self, body: Any, sink: ResponseSink) -> RequestHandle:
        """Have the engine begin a request. Raises PipelineError, which `reply` answers."""
        entry, key = self._entry, self._key
        if key and type(body) is memoryview and not self._stays(body):
            raise HandOverError
        fields = {key: body} if key else object_of(body, self._type, _LIMITS)
        served = entry.served if entry.state is _READY else served_by(entry)
        if self._is_plain:
            target = RequestTarget(
                payload=fields, wants_response=False, is_text=bool(key), takes_views=True
            )
            return served.engine.begin(EMPTY, self.left_s, target, sink)
        raw, target = self._asked(served, fields, bool(key))
        return served.engine.begin(raw, self.left_s, target, sink)

    def reply(self, answer: Any, failure: PipelineError | None) -> LaneReply:
        """Return the reply for the engine's answer, or for an error of `begin`."""
        try:
            if (body := quick_object(answer)) is not None:
                return body
            if isinstance(answer, Exception):
                raise answer
            if is_short_answer(answer):
                return written(payload_of(answer, failure))
            if (media := large_media(answer)) is not None:
                return media
        except Exception as error:
            return reply_to(shown(error))
        return self._written_in_thread(answer)

    async def _written_in_thread(self, answer: Any) -> WebResponse:
        """Write a large answer in a thread."""
        write = partial(written_large, answer, self._api.limits)
        try:
            reply, _ = await self._api.offload.run(write, self.left_s)
        except Exception as error:
            return reply_to(shown(error))
        return await whole(reply)

    async def answer(self, request: WebRequest) -> WebResponse | WebStream:
        """Answer a body of any type and size. Raises PipelineError, HttpError."""
        form = stream_form([self._headers.get(b"accept", b"")])
        body, left_s = await request.received(), self.left_s
        read = partial(self._read, body, request.query)
        if is_large(body) and not (self._key and self._stays(body)):
            (served, engine_request), left_s = await self._api.offload.run(read, left_s)
        else:
            served, engine_request = read()
        del body, read  # the request has its own copy, or a view
        raw, target = engine_request
        if form is None:
            future = ask(served.engine.begin, raw, left_s, target)
            answer = await future
            return await whole(self.reply(answer, future.failure), future.head)
        parts = StreamedAnswer(form, self.part, quick_object, _HEARTBEAT_S, error_body)
        parts.begin(served.engine.begin, raw, left_s, target)
        return parts.stream()

    def _stays(self, body: Body) -> bool:
        """Return whether the engine gets a body's value, or its files, without a copy."""
        served = self._api.pipelines.find(self._entry.name)
        return (
            type(body) is memoryview
            and (self._is_form or bool(self._key))
            and served.graph.request_op.pipeline_schema is None
            and not served.config.filters
            and self._api.pipelines.is_own(served)
            and served.engine.executor.reads_views
        )

    def asked(self, fields: dict[str, Any], is_text: bool) -> tuple[ServedGraph, EngineRequest]:
        """Return the pipeline and its engine's input for fields. Raises PipelineError."""
        served = self._api.pipelines.find(self._entry.name)
        return served, self._api.pipelines.asked(served, fields, self._headers, is_text)

    def _read(self, body: Body, query: str) -> tuple[ServedGraph, EngineRequest]:
        """Return the pipeline and its engine's input for a body."""
        served = self._api.pipelines.find(self._entry.name)
        schema = served.graph.request_op.pipeline_schema
        is_copied = type(body) is memoryview and not self._stays(body)
        if is_copied and not self._is_form:
            body = bytes(body)
        fields = fields_of(body, self._headers, query, self._api.limits, schema)
        if is_copied and self._is_form:
            fields = {name: without_views(value) for name, value in fields.items()}
        if query and takes_sequences(served):
            fields = {**sequence_in(query), **fields}
        return served, self._asked(served, fields, not is_json(self._type))

    def _asked(self, served: ServedGraph, fields: dict[str, Any], is_text: bool) -> EngineRequest:
        """Return the engine's input of a request whose answer `reply` writes."""
        make_request = self._api.pipelines.asked
        return make_request(served, fields, self._headers, is_text, takes_views=True)

    async def part(self, answer: Any, failure: PipelineError | None) -> bytes:
        """Return the JSON of a part. Raises HttpError for an error, with its status."""
        try:
            if is_short_answer(answer):
                return write_object(payload_of(answer, failure))
            write = partial(large_part, answer, self._api.limits)
            return (await self._api.offload.run(write))[0]
        except PipelineError as error:
            cause = failure_of(error)
            raise HttpError(cause.status, error, *cause.headers) from error
