"""The v2 inference protocol over HTTP: the paths below `/v2`, as Triton answers them."""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import unquote

import msgspec
import orjson

from pipeline.engine.offload import Offload
from pipeline.errors import PipelineError
from pipeline.frontends.http.routes import (
    JSON,
    TEXT,
    Endpoint,
    HttpError,
    WebRequest,
    WebResponse,
    WebStream,
)
from pipeline.frontends.v2 import ModelRepository, V2Error, V2Status
from pipeline.frontends.v2.control import overrides_of_json, with_dependents_of_json
from pipeline.frontends.v2.errors import NO_REPOSITORY_NAME, invalid
from pipeline.frontends.v2.http_inference import (
    HttpInference,
    ModelRequest,
    failed,
    failure,
)
from pipeline.frontends.v2.json_objects import json_object
from pipeline.frontends.v2.shared_regions import no_cuda, no_cuda_region, region_of_json
from pipeline.frontends.v2.trace_settings import changes_of_json, shown
from pipeline.observe.statistics import stats_json
from pipeline.proto.slices import Limits

_NAME = r"(?P<name>[^/]+)"
_VERSION = r"(?:/versions/(?P<version>[0-9]+))?"
_GET_OR_POST = ("GET", "POST")
_REGION = r"(?:/region/(?P<name>[^/]+))?"
_REPOSITORY = r"(?:/[^/]+)?"  # its name, which Triton accepts and ignores
_LIVE, _READY = r"/v2/health/live", r"/v2/health/ready"
_PLAIN = re.compile(rf"{_LIVE}|{_READY}|/v2/models/[^/]+(?:/versions/[0-9]+)?/(?:ready|infer)")
"""Paths of which Triton's refusals are plain text, though they are JSON."""

_Answer = Callable[[ModelRequest], Awaitable[WebResponse | WebStream]]


class InferenceRoutes:
    """`/v2` and every path below it.

    Args:
        models: answer the requests.
        offload: reads and writes large messages; its owner stops it.
        limits: of JSON.

    Attributes:
        inference: the part that also has a lane.
    """

    def __init__(
        self, models: ModelRepository, offload: Offload | None = None, limits: Limits | None = None
    ) -> None:
        self._models = models
        self._offload = offload or Offload(threads=0)
        self._limits = limits or Limits()
        inference = HttpInference(models.inference, self._offload, self._limits)
        self.inference: HttpInference = inference
        model = rf"/v2/models/{_NAME}{_VERSION}"
        # The first match counts: a model called "stats" needs its version in the path.
        routes: list[tuple[str, str, _Answer]] = [
            (r"/v2", "GET", self._server),
            (_LIVE, "GET", self._live),
            (_READY, "GET", self._ready),
            (r"/v2/models/stats", "GET", self._statistics),
            (rf"{model}/stats", "GET", self._statistics),
            (rf"{model}/ready", "GET", self._model_ready),
            (rf"{model}/config", "GET", self._config),
            (rf"{model}/infer", "POST", inference.infer),
            (rf"{model}/generate", "POST", inference.generate),
            (rf"{model}/generate_stream", "POST", inference.generate_stream),
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
        """Return the endpoint of a path below `/v2`; one answers unknown paths."""
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

    async def _server(self, model_request: ModelRequest) -> WebResponse:
        return _json(self._models.server_metadata())

    # KServe's clients want a body. Triton has none, and scripts of its users compare the whole of
    # what curl prints with "200": a server of a repository has none for curl.

    async def _live(self, model_request: ModelRequest) -> WebResponse:
        is_live = self._models.is_live
        return self._state(model_request, {"live": is_live}, is_live)

    async def _ready(self, model_request: ModelRequest) -> WebResponse:
        is_ready = await self._models.is_ready()
        return self._state(model_request, {"ready": is_ready}, is_ready)

    async def _model_ready(self, model_request: ModelRequest) -> WebResponse:
        if await self._models.is_model_ready(model_request.name, model_request.version):
            state = {"name": model_request.name, "ready": True}
            return self._state(model_request, state, True)
        return failed(400, "Model version not ready", content_type=TEXT)

    def _state(
        self, model_request: ModelRequest, state: dict[str, Any], is_good: bool
    ) -> WebResponse:
        status = 200 if is_good else 400
        is_curl = model_request.web.headers.get(b"user-agent", b"").startswith(b"curl/")
        if is_curl and self._models.is_repository:
            return WebResponse(status, content_type=TEXT)
        return _json(state, status)

    async def _metadata(self, model_request: ModelRequest) -> WebResponse:
        return _json(self._models.metadata(model_request.name, model_request.version))

    async def _config(self, model_request: ModelRequest) -> WebResponse:
        return _json(self._models.config(model_request.name, model_request.version))

    async def _statistics(self, model_request: ModelRequest) -> WebResponse:
        counters = await self._models.statistics(model_request.name, model_request.version)
        return WebResponse(body=stats_json(counters))

    async def _index(self, model_request: ModelRequest) -> WebResponse:
        return _json(await self._models.index(_wants_ready(await model_request.web.read())))

    async def _load(self, model_request: ModelRequest) -> WebResponse:
        body = await model_request.web.read()
        read = functools.partial(overrides_of_json, body, self._limits)
        overrides, _ = await self._offload.run(read)
        return await self._changed(self._models.load(model_request.name, overrides))

    async def _unload(self, model_request: ModelRequest) -> WebResponse:
        with_dependents = with_dependents_of_json(await model_request.web.read())
        return await self._changed(self._models.unload(model_request.name, with_dependents))

    async def _changed(self, change: Awaitable[None]) -> WebResponse:
        try:
            await change
        except V2Error as error:
            if error.kind is not V2Status.UNAVAILABLE:
                raise
            return failed(503, str(error))  # without Retry-After: it will not change
        return WebResponse(200, b"")

    async def _load_from_repository(self, model_request: ModelRequest) -> WebResponse:
        raise V2Error(V2Status.UNSUPPORTED, NO_REPOSITORY_NAME)

    # Settings ---------------------------------------------------------------------------

    async def _logging(self, model_request: ModelRequest) -> WebResponse:
        settings = self._models.log_settings
        if model_request.web.method == "POST":
            settings.change(json_object(await model_request.web.read(), "dynamic logging"))
        return _json(settings.shown())

    async def _traces(self, model_request: ModelRequest) -> WebResponse:
        body = await model_request.web.read() if model_request.web.method == "POST" else None

        def changes() -> Mapping[str, Any] | None:
            return None if body is None else changes_of_json(json_object(body, "trace"))

        return _json(shown(await self._models.trace_settings(model_request.name, changes)))

    # Shared memory ----------------------------------------------------------------------

    async def _region_status(self, model_request: ModelRequest) -> WebResponse:
        return _json(
            [
                msgspec.to_builtins(region)
                for region in self._models.regions.status(model_request.name)
            ]
        )

    async def _register_region(self, model_request: ModelRequest) -> WebResponse:
        self._models.regions.register(
            region_of_json(model_request.name, await model_request.web.read())
        )
        return WebResponse(200, b"")

    async def _unregister_region(self, model_request: ModelRequest) -> WebResponse:
        self._models.regions.unregister(model_request.name)
        return WebResponse(200, b"")

    async def _cuda_status(self, model_request: ModelRequest) -> WebResponse:
        if model_request.name:
            raise no_cuda_region(model_request.name)
        return _json([])

    async def _refuse_cuda(self, model_request: ModelRequest) -> WebResponse:
        is_new = not model_request.web.raw_path.endswith("/unregister")
        if is_new or model_request.name:
            raise no_cuda(model_request.name, is_new)
        return WebResponse(200, b"")


def _guarded(answer: _Answer, names: dict[str, str]) -> Endpoint:
    """Return `answer` with errors in the protocol's form."""

    async def endpoint(request: WebRequest) -> WebResponse | WebStream:
        model_request = ModelRequest(request, names.get("name", ""), names.get("version", ""))
        try:
            return await answer(model_request)
        except (HttpError, PipelineError, V2Error) as error:
            return failure(error)

    return endpoint


def _refusing(method: str, is_plain: bool) -> _Answer:
    """Return an endpoint that refuses other methods than `method`; "": than GET and POST."""

    async def answer(model_request: ModelRequest) -> WebResponse:
        allow = ((b"allow", (method or ", ".join(_GET_OR_POST)).encode()),)
        return failed(405, "Method Not Allowed", allow, TEXT if is_plain else JSON)

    return answer


async def _refuse_path(model_request: ModelRequest) -> WebResponse:
    return WebResponse(404, orjson.dumps({"error": "Not Found"}), TEXT)


def _json(value: Any, status: int = 200) -> WebResponse:
    return WebResponse(status, orjson.dumps(value))


def _wants_ready(body: bytes) -> bool:
    """Return `ready` of a request for the index: an empty body, or `{"ready": true}`."""
    only_ready = json_object(body, "index").get("ready", False)
    if not isinstance(only_ready, bool):
        raise invalid("Invalid value for 'ready': expected a boolean")
    return only_ready
