"""ApiRoutes: the paths of plain JSON, below `/api` and beside it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pipeline.engine.offload import Offload
from pipeline.engine.request import ask
from pipeline.errors import NoServiceError, PipelineError, TooLargeError, http_status_of
from pipeline.frontends.api.answers import AnswerWriter
from pipeline.frontends.api.bodies import fields_of, is_large, sequence_in
from pipeline.frontends.api.errors import error_body, failure_of, reply_to
from pipeline.frontends.api.pipelines import Asked, Pipelines, takes_sequences
from pipeline.frontends.http.bodies import is_json
from pipeline.frontends.http.paths import Answer, Paths, begun
from pipeline.frontends.http.routes import Endpoint, HttpError, WebRequest, WebResponse, WebStream
from pipeline.frontends.http.streams import StreamForm, stream_form, stream_of
from pipeline.frontends.parts import PartsReader
from pipeline.proto.slices import Limits

_HEARTBEAT_S = 15.0  # that a stream of events may be silent


class ApiRoutes:
    """`/api/<name>` and what describes it.

    Args:
        pipelines: who is asked.
        offload: where large requests and answers are read and written; its owner stops it.
        limits: of JSON.
        more: other paths of this frontend, see `Paths`.
    """

    def __init__(
        self,
        pipelines: Pipelines,
        offload: Offload,
        limits: Limits,
        more: Mapping[str, tuple[str, Answer]] | None = None,
    ) -> None:
        self._pipelines = pipelines
        self._offload = offload
        self._limits = limits
        self._writer = AnswerWriter(offload, limits)
        endpoints = {r"/api/(?P<name>[^/]+)": ("POST", self._infer), **(more or {})}
        self._paths = Paths("/api", endpoints, self._refuse_path, reply_to)

    def endpoint(self, request: WebRequest) -> Endpoint | None:
        """Return the endpoint that answers it: one for each path below `/api`, known or not."""
        return self._paths.endpoint(request)

    async def _refuse_path(self, request: WebRequest, name: str) -> WebResponse:
        there = ", ".join(f"/api/{each}" for each in self._pipelines.names())
        raise NoServiceError(f"no such path: {request.path}; POST {there}")

    # Inference ------------------------------------------------------------------------------

    async def _infer(self, request: WebRequest, name: str) -> WebResponse | WebStream:
        """Answer with the last Op's fields, at once or part by part."""
        served = self._pipelines.find(name)  # 404 without reading
        form = stream_form([request.headers.get(b"accept", b"")])
        asked, left_s = await self._asked(request, name)
        if form is not None:
            return await self._streamed(served.engine.begin, asked, left_s, form)
        answer = ask(served.engine.begin, asked[0], left_s, asked[1])
        found = await answer
        return await self._writer.write(found, left_s, answer.head, answer.failure)

    async def _asked(self, request: WebRequest, name: str) -> tuple[Asked, float | None]:
        """Return what the engine takes, and how long the caller waits for it."""
        body, left_s = await request.read(), request.timeout_s
        read = partial(self._read, request, name, body)
        if not is_large(body):
            return read(), left_s
        try:
            return await self._offload.run(read, left_s)
        except TooLargeError as error:
            raise HttpError(http_status_of(error), error) from error

    def _read(self, request: WebRequest, name: str, body: bytes) -> Asked:
        served = self._pipelines.find(name)
        schema = served.graph.request_op.pipeline_schema
        fields = fields_of(body, request.headers, request.query, self._limits, schema)
        is_text = not is_json(request.headers.get(b"content-type", b""))
        if request.query and takes_sequences(served):
            fields = {**sequence_in(request.query), **fields}
        return self._pipelines.asked(served, fields, request.headers, is_text)

    async def _streamed(
        self, begin: Any, asked: Asked, left_s: float | None, form: StreamForm
    ) -> WebStream:
        """Answer part by part; the first is awaited, to tell its status."""
        reader = PartsReader()
        reader.begin(begin, asked[0], left_s, asked[1])
        write = partial(self._written_part, reader)
        stream = stream_of(reader, form, write, _HEARTBEAT_S, error_body)
        return await begun(stream)

    async def _written_part(self, reader: PartsReader, answer: Any) -> bytes:
        """Return the JSON of a part. Raises HttpError for an error, which has a status here."""
        try:
            return await self._writer.write_part(answer, reader.failure)
        except PipelineError as error:
            found = failure_of(error)
            raise HttpError(found.status, error, *found.headers) from error
