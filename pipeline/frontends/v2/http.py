"""The v2 inference protocol over HTTP: the paths below `/v2`, as Triton answers them."""

from __future__ import annotations

import contextlib
import functools
import re
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
import orjson

from pipeline.engine.offload import Offload
from pipeline.errors import PackageError, PipelineError, TooLargeError
from pipeline.frontends.http.routes import (
    JSON,
    TEXT,
    Endpoint,
    HttpError,
    WebRequest,
    WebResponse,
    WebStream,
)
from pipeline.frontends.v2 import ModelRepository, V2Error, V2Status, v2_error
from pipeline.frontends.v2.control import overrides_of_json, with_dependents_of_json
from pipeline.frontends.v2.generate import NOT_ONE, read_generate, write_generate
from pipeline.frontends.v2.json_objects import json_object
from pipeline.frontends.v2.region_requests import no_cuda, no_cuda_region, region_of_json
from pipeline.frontends.v2.trace_settings import changes_of_json, shown
from pipeline.frontends.v2.unsupported import NO_REPOSITORY_NAME
from pipeline.observe.statistics import stats_json
from pipeline.proto.slices import SHORT_BYTES, SLICE_BYTES, Limits, breathe, is_short
from pipeline.proto.v2.codec import InferResponse
from pipeline.proto.v2.json import binary_names, read_request, write_response

HEADER_LENGTH = b"inference-header-content-length"
"""The header that says how long the JSON is which a body begins with."""

BINARY = b"application/octet-stream"
"""The type of a body that has bytes behind its JSON."""

EVENTS = b"text/event-stream; charset=utf-8"
"""The type of the answers to generate_stream."""

_NAME = r"(?P<name>[^/]+)"
_VERSION = r"(?:/versions/(?P<version>[0-9]+))?"
_GET_OR_POST = ("GET", "POST")
_REGION = r"(?:/region/(?P<name>[^/]+))?"
_REPOSITORY = r"(?:/[^/]+)?"  # its name, which Triton takes and passes over
_LIVE, _READY = r"/v2/health/live", r"/v2/health/ready"
_PLAIN = re.compile(rf"{_LIVE}|{_READY}|/v2/models/[^/]+(?:/versions/[0-9]+)?/(?:ready|infer)")
"""Paths of which Triton's refusals are plain text, though they are JSON."""

_LEVEL = 1  # of zlib: tensors gain little by more
_WINDOW_BITS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}


class _Asked(NamedTuple):
    """A request, with the model's name and version in its path."""

    web: WebRequest
    name: str
    version: str


_Answer = Callable[[_Asked], Awaitable[WebResponse | WebStream]]


class InferenceRoutes:
    """`/v2` and all that is below it.

    Args:
        models: who is asked.
        offload: where large requests and answers are read and written; its owner stops it.
        limits: of JSON.
    """

    def __init__(
        self, models: ModelRepository, offload: Offload | None = None, limits: Limits | None = None
    ) -> None:
        self._models = models
        self._offload = offload or Offload(threads=0)
        self._limits = limits or Limits()
        model = rf"/v2/models/{_NAME}{_VERSION}"
        # The first that matches: a model called "stats" can be asked for with its version.
        routes: list[tuple[str, str, _Answer]] = [
            (r"/v2", "GET", self._server),
            (_LIVE, "GET", self._live),
            (_READY, "GET", self._ready),
            (r"/v2/models/stats", "GET", self._statistics),
            (rf"{model}/stats", "GET", self._statistics),
            (rf"{model}/ready", "GET", self._model_ready),
            (rf"{model}/config", "GET", self._config),
            (rf"{model}/infer", "POST", self._infer),
            (rf"{model}/generate", "POST", self._generate),
            (rf"{model}/generate_stream", "POST", self._generate_stream),
            (model, "GET", self._metadata),
            (r"/v2/logging", "", self._logging),
            (r"/v2/trace/setting", "", self._traces),
            (rf"{model}/trace/setting", "", self._traces),
            (rf"/v2/systemsharedmemory{_REGION}/status", "GET", self._region_status),
            (rf"/v2/systemsharedmemory{_REGION}/register", "POST", self._register_region),
            (rf"/v2/systemsharedmemory{_REGION}/unregister", "POST", self._unregister_region),
            (rf"/v2/cudasharedmemory{_REGION}/status", "GET", self._cuda_status),
            (rf"/v2/cudasharedmemory{_REGION}/(?:un)?register", "POST", self._refuse_cuda),
            (rf"/v2/repository{_REPOSITORY}/index", "POST", self._index),
            (rf"/v2/repository/models/{_NAME}/load", "POST", self._load),
            (rf"/v2/repository/models/{_NAME}/unload", "POST", self._unload),
            (
                rf"/v2/repository{_REPOSITORY}/models/{_NAME}/(?:load|unload)",
                "POST",
                self._load_from_repository,
            ),
        ]
        self._routes = [(re.compile(path), method, answer) for path, method, answer in routes]

    def endpoint(self, request: WebRequest) -> Endpoint | None:
        """Return the endpoint that answers it: one for each path below `/v2`, known or not."""
        path = request.raw_path
        if path != "/v2" and not path.startswith("/v2/"):
            return None
        for pattern, method, answer in self._routes:
            match = pattern.fullmatch(path)
            if match is not None:
                names = {key: unquote(value or "") for key, value in match.groupdict().items()}
                if request.method != method and (method or request.method not in _GET_OR_POST):
                    answer = _refusing(method, _PLAIN.fullmatch(path) is not None)
                return _guarded(answer, names)
        return _guarded(_refuse_path, {})

    # Descriptions and states ------------------------------------------------------------

    async def _server(self, asked: _Asked) -> WebResponse:
        return _json(self._models.server_metadata())

    # KServe's clients want a body. Triton has none, and scripts of its users compare the whole of
    # what curl prints with "200": a server of a repository is asked by these.

    async def _live(self, asked: _Asked) -> WebResponse:
        is_live = self._models.is_live
        return self._state({"live": is_live}, is_live)

    async def _ready(self, asked: _Asked) -> WebResponse:
        is_ready = await self._models.is_ready()
        return self._state({"ready": is_ready}, is_ready)

    async def _model_ready(self, asked: _Asked) -> WebResponse:
        if await self._models.is_model_ready(asked.name, asked.version):
            return self._state({"name": asked.name, "ready": True}, True)
        return _failed(400, "Model version not ready", content_type=TEXT)

    def _state(self, said: dict[str, Any], is_good: bool) -> WebResponse:
        status = 200 if is_good else 400
        if self._models.is_repository:
            return WebResponse(status, content_type=TEXT)
        return _json(said, status)

    async def _metadata(self, asked: _Asked) -> WebResponse:
        return _json(self._models.metadata(asked.name, asked.version))

    async def _config(self, asked: _Asked) -> WebResponse:
        return _json(self._models.config(asked.name, asked.version))

    async def _statistics(self, asked: _Asked) -> WebResponse:
        counters = await self._models.statistics(asked.name, asked.version)
        return WebResponse(body=stats_json(counters))

    async def _index(self, asked: _Asked) -> WebResponse:
        return _json(await self._models.index(_wants_ready(await asked.web.read())))

    async def _load(self, asked: _Asked) -> WebResponse:
        body = await asked.web.read()
        read = functools.partial(overrides_of_json, body, self._limits)
        overrides, _ = await self._offload.run(read)
        return await self._changed(self._models.load(asked.name, overrides))

    async def _unload(self, asked: _Asked) -> WebResponse:
        with_dependents = with_dependents_of_json(await asked.web.read())
        return await self._changed(self._models.unload(asked.name, with_dependents))

    async def _changed(self, change: Awaitable[None]) -> WebResponse:
        try:
            await change
        except V2Error as error:
            if error.kind is not V2Status.UNAVAILABLE:
                raise
            return _failed(503, str(error))  # and no Retry-After: it stays so
        return WebResponse(200, b"")

    async def _load_from_repository(self, asked: _Asked) -> WebResponse:
        raise V2Error(V2Status.UNSUPPORTED, NO_REPOSITORY_NAME)

    # Settings ---------------------------------------------------------------------------

    async def _logging(self, asked: _Asked) -> WebResponse:
        settings = self._models.log_settings
        if asked.web.method == "POST":
            settings.change(json_object(await asked.web.read(), "dynamic logging"))
        return _json(settings.shown())

    async def _traces(self, asked: _Asked) -> WebResponse:
        body = await asked.web.read() if asked.web.method == "POST" else None

        def changes() -> Mapping[str, Any] | None:
            return None if body is None else changes_of_json(json_object(body, "trace"))

        return _json(shown(await self._models.trace_settings(asked.name, changes)))

    # Shared memory ----------------------------------------------------------------------

    async def _region_status(self, asked: _Asked) -> WebResponse:
        return _json(
            [msgspec.to_builtins(each) for each in self._models.regions.status(asked.name)]
        )

    async def _register_region(self, asked: _Asked) -> WebResponse:
        self._models.regions.register(region_of_json(asked.name, await asked.web.read()))
        return WebResponse(200, b"")

    async def _unregister_region(self, asked: _Asked) -> WebResponse:
        self._models.regions.unregister(asked.name)
        return WebResponse(200, b"")

    async def _cuda_status(self, asked: _Asked) -> WebResponse:
        if asked.name:
            raise no_cuda_region(asked.name)
        return _json([])

    async def _refuse_cuda(self, asked: _Asked) -> WebResponse:
        is_new = not asked.web.raw_path.endswith("/unregister")
        if is_new or asked.name:
            raise no_cuda(asked.name, is_new)
        return WebResponse(200, b"")

    # Inference --------------------------------------------------------------------------

    async def _infer(self, asked: _Asked) -> WebResponse:
        web = asked.web
        try:
            # 404 and 501 without reading
            self._models.check_unary(asked.name, asked.version, "HTTP end point")
            raw_inputs = self._models.raw_inputs(asked.name, asked.version)
            body = await web.read()
            length, left_s = _header_length(web, len(body)), web.timeout_s
        except (HttpError, PipelineError, V2Error) as error:
            return failure(error, TEXT)  # in Triton it comes before a handler has begun
        json_bytes = len(body) if length is None else min(length, len(body))
        if json_bytes > self._limits.json_bytes:
            text = f"the request's JSON is larger than max_json_bytes ({self._limits.json_bytes}"
            raise TooLargeError(f"{text} bytes): send tensors as binary data")
        read = functools.partial(
            read_request,
            body,
            length,
            model_name=asked.name,
            model_version=asked.version,
            raw_inputs=raw_inputs,
            limits=self._limits,
        )
        if len(body) <= SHORT_BYTES:
            request = read()
        else:
            request, left_s = await self._offload.run(read, left_s)
        del body, read
        traceparent = web.headers.get(b"traceparent", b"").decode("latin-1")
        response = await self._models.infer(request, left_s, traceparent, web.headers.items)
        binary = binary_names(request, response.outputs)
        encoding = accepted(web.headers.get(b"accept-encoding", b"").decode("latin-1"))
        if is_short(response.outputs):
            return reply_of(response, binary, encoding, self._limits)
        write = functools.partial(reply_of, response, binary, encoding, self._limits)
        return (await self._offload.run(write, left_s))[0]

    # Generate ---------------------------------------------------------------------------

    async def _generate(self, asked: _Asked) -> WebResponse:
        async with contextlib.aclosing(await self._generated(asked)) as found:
            body = await anext(found, None)
            if body is None or await anext(found, None) is not None:
                return _failed(200, NOT_ONE)  # Triton's status: the model has not failed
        return WebResponse(200, body)

    async def _generate_stream(self, asked: _Asked) -> WebStream:
        """Answer with server-sent events; the first answer is awaited, to tell its status."""
        found = await self._generated(asked)
        try:
            first = await anext(found, None)
        except (PipelineError, V2Error) as error:
            told = failure(error)
            return WebStream(_one(told.body), EVENTS, told.headers, told.status)
        return WebStream(_events(first, found), EVENTS)

    async def _generated(self, asked: _Asked) -> AsyncGenerator[bytes, None]:
        """Return the answers to a request, as they come. Raises for one that does not fit."""
        web = asked.web
        interface = self._models.interface(asked.name, asked.version)  # 404 without reading
        body, left_s = await web.read(), web.timeout_s
        if len(body) > (most := self._limits.json_bytes):
            raise TooLargeError(
                f"request JSON size of {len(body)} bytes exceeds the maximum allowed input size of "
                f"{most} bytes (max_json_bytes)"
            )
        read = functools.partial(
            read_generate, body, asked.name, asked.version, interface, self._limits
        )
        if len(body) <= SHORT_BYTES:
            request = read()
        else:
            request, left_s = await self._offload.run(read, left_s)
        self._models.fit(request)
        traceparent = web.headers.get(b"traceparent", b"").decode("latin-1")
        return self._bodies(self._models.answers(request, left_s, traceparent, web.headers.items))

    async def _bodies(
        self, answers: AsyncGenerator[tuple[InferResponse, bool], None]
    ) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(answers):
            is_first = True
            async for response, _ in answers:
                if isinstance(response.error, V2Error):
                    if is_first:  # there is a status yet to tell it
                        raise response.error
                    yield failure(response.error).body
                    continue
                is_first = False
                write = functools.partial(write_generate, response, self._limits)
                if is_short(response.outputs):
                    yield write()
                else:
                    yield (await self._offload.run(write))[0]


async def _one(body: bytes) -> AsyncGenerator[bytes, None]:
    yield b"data: %b\n\n" % body


async def _events(
    first: bytes | None, found: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """Yield an event for each answer; an error behind some is one, too, and the last."""
    async with contextlib.aclosing(found):
        if first is not None:
            yield b"data: %b\n\n" % first
        try:
            async for body in found:
                yield b"data: %b\n\n" % body
        except (PipelineError, V2Error) as error:
            yield b"data: %b\n\n" % failure(error).body


def _guarded(answer: _Answer, names: dict[str, str]) -> Endpoint:
    """Return `answer` in whose replies errors have the protocol's form."""

    async def endpoint(request: WebRequest) -> WebResponse | WebStream:
        asked = _Asked(request, names.get("name", ""), names.get("version", ""))
        try:
            return await answer(asked)
        except (HttpError, PipelineError, V2Error) as error:
            return failure(error)

    return endpoint


def failure(error: HttpError | PipelineError | V2Error, content_type: bytes = JSON) -> WebResponse:
    """Return the answer to a request that ended in an error."""
    if isinstance(error, HttpError):  # of reading the body
        status = 501 if error.status == 415 else error.status  # as Triton says it
        return _failed(status, str(error), error.headers, content_type)
    told = v2_error(error)
    after_s = told.retry_after_s
    headers = () if after_s is None else ((b"retry-after", b"%d" % after_s),)
    return _failed(told.kind.http_status, str(told), headers, content_type)


def _refusing(method: str, is_plain: bool) -> _Answer:
    """Answers requests by other methods than `method`; "": than GET and POST."""

    async def answer(asked: _Asked) -> WebResponse:
        allow = ((b"allow", (method or ", ".join(_GET_OR_POST)).encode()),)
        return _failed(405, "Method Not Allowed", allow, TEXT if is_plain else JSON)

    return answer


async def _refuse_path(asked: _Asked) -> WebResponse:
    return WebResponse(404, orjson.dumps({"error": "Not Found"}), TEXT)


def _json(value: Any, status: int = 200) -> WebResponse:
    return WebResponse(status, orjson.dumps(value))


def _failed(
    status: int,
    text: str,
    headers: tuple[tuple[bytes, bytes], ...] = (),
    content_type: bytes = JSON,
) -> WebResponse:
    return WebResponse(status, orjson.dumps({"error": text}), content_type, headers)


def _wants_ready(body: bytes) -> bool:
    """Return `ready` of a request for the index, which is empty or has `{"ready": true}`."""
    if not body.strip():
        return False
    if len(body) > SHORT_BYTES:
        text = f"the index request has {len(body)} bytes, and {SHORT_BYTES} are allowed"
        raise TooLargeError(text)
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise PackageError(f"the request is no JSON: {error}") from error
    only_ready = fields.get("ready", False) if isinstance(fields, dict) else None
    if not isinstance(only_ready, bool):
        raise PackageError('the request must be a JSON object; its "ready" is true or false')
    return only_ready


def _header_length(web: WebRequest, body_length: int) -> int | None:
    """Return the length of the JSON that the body begins with, if the request says it."""
    header = web.headers.get(HEADER_LENGTH)
    if header is None:
        return None
    text = header.decode("latin-1").strip()
    if not re.fullmatch("-?[0-9]{1,18}", text):
        raise PackageError(f"Inference-Header-Content-Length {text!r} is no number of bytes")
    if not 0 <= int(text) <= body_length:
        raise PackageError(
            f"inference header size should be in range (0, {body_length}), got: {text}"
        )
    return int(text)


def accepted(header: str) -> str:
    """Return the encoding that a caller takes its answer in; "": as it is."""
    weights: dict[str, float] = {}
    for entry in header.lower().split(","):
        name, _, weight = entry.partition(";")
        weights[name.strip()] = _weight(weight)
    found = max(_WINDOW_BITS, key=lambda name: weights.get(name, weights.get("*", 0.0)))
    return found if weights.get(found, weights.get("*", 0.0)) > 0 else ""


def _weight(text: str) -> float:
    """Return 0.5 for `q=0.5`; 1 where there is none."""
    match = re.fullmatch(r"\s*q=([01](?:\.[0-9]{0,3})?)\s*", text)
    return float(match[1]) if match else 1.0


def reply_of(
    response: InferResponse, binary: set[str], encoding: str, limits: Limits
) -> WebResponse:
    """Return the answer to an inference request. Raises PackageError, PayloadTypeError."""
    body, length = write_response(response, binary, limits)
    headers, content_type = [], b"application/json"
    if length is not None:
        content_type = BINARY
        headers.append((HEADER_LENGTH, b"%d" % length))
    if encoding:
        body = _compress(body, encoding)
        headers.append((b"content-encoding", encoding.encode()))
    return WebResponse(200, body, content_type, tuple(headers))


def _compress(body: bytes, encoding: str) -> bytes:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS[encoding])
    view, pieces = memoryview(body), []
    for at in range(0, len(body), SLICE_BYTES):
        pieces.append(packer.compress(view[at : at + SLICE_BYTES]))
        breathe()
    return b"".join((*pieces, packer.flush()))
