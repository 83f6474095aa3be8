"""PlainPosts: `POST /<name>/<method>` in the lane."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pipeline.engine.request import Begin, RequestHandle, RequestTarget, ResponseSink
from pipeline.errors import OverloadedError, PackageError, PipelineError, http_status_of
from pipeline.frontends.base import HeaderForwarding, seconds_of
from pipeline.frontends.http.routes import (
    HandOverError,
    Headers,
    LaneReply,
    WebResponse,
    error_body,
)
from pipeline.frontends.http.streams import stream_form
from pipeline.proto.pipeline import json as jsonpb
from pipeline.proto.pipeline.plain import PlainResponse, plain_request_from_json
from pipeline.proto.pipeline_service_pb2 import Response

Read = Callable[[bytes, str, str], Any]


class PlainPosts:
    """The lane of the pipeline's own requests.

    Args:
        begin: has a request answered.
        max_bytes: of a body.
        is_plain: `begin` takes a PlainRequest where a Request stands.
        takes_trace: it is told the caller's traceparent.
        forwarding: the headers that it is told; None: none.
        write_others: makes the bytes of answers that are large, or none of ours.
    """

    def __init__(
        self,
        begin: Begin,
        max_bytes: int,
        is_plain: bool,
        takes_trace: bool,
        forwarding: HeaderForwarding | None,
        write_others: Callable[[Any], Awaitable[bytes]],
    ) -> None:
        self.begin = begin
        self.read: Read = plain_request_from_json if is_plain else jsonpb.request_from_json
        self.forwarding = forwarding
        self.write_others = write_others
        self._max_bytes = max_bytes
        self._takes_trace = takes_trace

    def endpoint(self, path: str, headers: Headers) -> _Endpoint | None:
        """Return what answers a path, if its headers are right too."""
        parts = path.split("/")
        if len(parts) != 3 or parts[1] in ("v2", "api", "v1", "health"):
            return None
        if b"accept" in headers and stream_form([headers[b"accept"]]) is not None:
            return None
        if int(headers[b"content-length"]) > self._max_bytes:
            return None
        trace = headers.get(b"traceparent", b"").decode("latin-1") if self._takes_trace else ""
        timeout_s = None
        if (given := headers.get(b"grpc-timeout")) is not None:
            try:
                timeout_s = seconds_of(given.decode("latin-1"), "Grpc-Timeout")
            except PackageError:
                return None
        said = None if self.forwarding is None else headers
        return _Endpoint(self, parts[1], parts[2], timeout_s, trace, said)


class _Endpoint:
    """A path with what a head says beside it; see `LaneEndpoint`."""

    def __init__(
        self,
        posts: PlainPosts,
        name: str,
        method: str,
        timeout_s: float | None,
        trace: str,
        said: Headers | None,
    ) -> None:
        self._posts = posts
        self._begin, self._read = posts.begin, posts.read
        self._name, self._method = name, method
        self._timeout_s = timeout_s
        self._target = RequestTarget(traceparent=trace) if trace else None
        self._said = said

    def begin(self, body: bytes, sink: ResponseSink) -> RequestHandle:
        try:
            request = self._read(body, self._name, self._method)
        except PipelineError:
            raise HandOverError from None
        target = self._target if self._said is None else self._told(self._said)
        return self._begin(request, self._timeout_s, target, sink)

    def _told(self, said: Headers) -> RequestTarget | None:
        """Return what is told of each request anew, since who is told may change it."""
        assert self._posts.forwarding is not None
        info = self._posts.forwarding.info(said.items())
        if info is None:
            return self._target
        trace = "" if self._target is None else self._target.traceparent
        return RequestTarget(traceparent=trace, info=info)

    def reply(self, answer: Any, failure: PipelineError | None) -> LaneReply:
        if type(answer) is PlainResponse:
            return answer.to_json()
        if isinstance(answer, Response):
            return jsonpb.response_to_json(answer)
        if isinstance(answer, OverloadedError):
            later = (b"retry-after", b"%d" % answer.retry_after_s)
            return WebResponse(http_status_of(answer), error_body(answer), headers=(later,))
        if isinstance(answer, Exception):
            raise answer
        return self._other(answer)

    async def _other(self, answer: Any) -> WebResponse:
        return WebResponse(body=await self._posts.write_others(answer))
