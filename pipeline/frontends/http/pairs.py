"""Pairs: `POST /<name>/<method>` in proto3 JSON, the pipeline's own protocol."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, ClassVar

from pipeline.engine.request import Begin, RequestHandle, RequestTarget, ResponseSink, ask
from pipeline.errors import DeadlineError, OverloadedError, PipelineError, http_status_of
from pipeline.frontends.base import HeaderForwarding, no_response
from pipeline.frontends.http.routes import (
    Endpoint,
    HandOverError,
    HttpError,
    LaneReply,
    SizeLimit,
    WebRequest,
    WebResponse,
    WebStream,
    error_body,
    not_allowed,
    whole,
)
from pipeline.frontends.http.streams import StreamedAnswer, stream_form, stream_of_error
from pipeline.frontends.wire import RESPONSES, JsonWire
from pipeline.proto.pipeline.json import response_to_json
from pipeline.proto.pipeline.plain import PlainResponse, short_json
from pipeline.proto.pipeline.response import LargeResponse
from pipeline.proto.pipeline_service_pb2 import Response
from pipeline.proto.slices import SHORT_BYTES

# first parts of paths that are not names of services
_OF_OTHERS = ("", "v2", "api", "v1", "health")


class Pairs:
    """The paths of a pipeline, and the requests to its engine.

    Args:
        begin: has a request of `wire` answered with a Response.
        wire: reads and writes JSON.
        limit: of a body.
        takes_trace: `begin` receives the client's traceparent.
        forwarding: the headers for `begin`; None: no headers.
    """

    heartbeat_s: ClassVar[float] = 15.0
    """Seconds that a stream of events may be silent."""

    def __init__(
        self,
        begin: Begin,
        wire: JsonWire,
        limit: SizeLimit,
        takes_trace: bool,
        forwarding: HeaderForwarding | None,
    ) -> None:
        self.begin = begin
        self.wire = wire
        self.limit = limit
        self.takes_trace = takes_trace
        self.forwarding = forwarding

    def endpoint(self, request: WebRequest) -> Endpoint | None:
        """Return the endpoint of a path, or None. Raises HttpError for another method than POST."""
        target = self._endpoint(request)
        if target is None:
            return None
        if request.method != "POST":
            raise not_allowed(request.method, b"POST")
        return target.answer

    def in_line(self, request: WebRequest) -> PairsEndpoint | None:
        """Return the endpoint for a POST; None: another path, or a request for a stream."""
        return None if stream_form(request.accepts) is not None else self._endpoint(request)

    def _endpoint(self, request: WebRequest) -> PairsEndpoint | None:
        parts = request.path.split("/")
        if len(parts) != 3 or parts[1] in _OF_OTHERS or not parts[2]:
            return None
        return PairsEndpoint(self, parts[1], parts[2], request)


class PairsEndpoint:
    """Endpoint of a path for requests with the same head; see `LaneEndpoint`."""

    takes_large: bool = False

    def __init__(self, pairs: Pairs, name: str, method: str, request: WebRequest) -> None:
        self._pairs = pairs
        self._begin, self._read = pairs.begin, pairs.wire.read
        self._name, self._method = name, method
        self._timeout_s = request.timeout_s
        self._headers = None if pairs.forwarding is None else request.headers
        traceparent = request.headers.get(b"traceparent", b"") if pairs.takes_trace else b""
        self._trace = traceparent.decode("latin-1")
        self._target = RequestTarget(traceparent=self._trace) if traceparent else None

    def begin(self, body: bytes, sink: ResponseSink) -> RequestHandle:
        """Have the engine begin a request. Raises HandOverError, and what `Engine.begin` does."""
        try:
            request = self._read(body, self._name, self._method)
        except PipelineError:
            raise HandOverError from None
        target = self._target if self._headers is None else self._target_of(is_large=False)
        return self._begin(request, self._timeout_s, target, sink)

    def _target_of(self, is_large: bool) -> RequestTarget | None:
        """Return the target of a request, a new copy for each: its receiver may change it."""
        info = None
        if self._headers is not None and self._pairs.forwarding is not None:
            info = self._pairs.forwarding.info(self._headers.items())
        if info is None and not is_large:
            return self._target
        return RequestTarget(traceparent=self._trace, is_large=is_large, info=info)

    def reply(self, answer: Any, failure: PipelineError | None) -> LaneReply:
        """Return the reply for the engine's answer, or for an error of `begin`."""
        if type(answer) is PlainResponse:
            return answer.to_json()
        if isinstance(answer, Response):
            return response_to_json(answer)
        if isinstance(answer, OverloadedError):
            later = (b"retry-after", b"%d" % answer.retry_after_s)
            return WebResponse(http_status_of(answer), error_body(answer), headers=(later,))
        if isinstance(answer, Exception):
            raise answer
        return self._written_in_thread(answer)

    async def _written_in_thread(self, answer: Any) -> WebResponse:
        """Write a large answer in a thread. Raises HttpError for an unexpected error."""
        if not isinstance(answer, LargeResponse):
            raise HttpError(500, no_response(answer))
        return WebResponse(body=await self._pairs.wire.write_large(answer))

    async def answer(self, web: WebRequest) -> WebResponse | WebStream:
        """Answer a body of any size, with a stream if the client asks for one. Raises HttpError."""
        pairs, form = self._pairs, stream_form(web.accepts) if web.accepts else None
        left_s, names = self._timeout_s, (self._name, self._method)
        try:
            body = await web.read(pairs.limit)
            is_large = len(body) > SHORT_BYTES
            if not is_large:
                request = self._read(body, *names)
            else:
                reading = pairs.wire.read_large([body], left_s, *names)
                del body
                request, left_s = await reading
        except DeadlineError as error:
            late = error_body(error)
            return WebResponse(body=late) if form is None else stream_of_error(error, form)
        except PipelineError as error:
            raise HttpError(http_status_of(error), error) from error
        target = self._target_of(is_large)
        try:
            if form is not None:
                parts = StreamedAnswer(form, self._part, short_json, pairs.heartbeat_s)
                parts.begin(self._begin, request, left_s, target)
                return parts.stream()
            future = ask(self._begin, request, left_s, target)
        except OverloadedError as error:
            return await whole(self.reply(error, None))
        answer = await future
        return await whole(self.reply(answer, future.failure), future.head)

    def _part(self, answer: Any, failure: PipelineError | None) -> bytes | Awaitable[bytes]:
        """Return the JSON of a part, at once if it is short. Raises PipelineError, HttpError."""
        if type(answer) is PlainResponse:
            return answer.to_json()
        if isinstance(answer, RESPONSES):
            return self._pairs.wire.write(answer)
        if not isinstance(answer, LargeResponse):
            raise HttpError(500, no_response(answer))
        return self._pairs.wire.written(answer)
