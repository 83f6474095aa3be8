"""ServedModels: the models of a repository, for others of it that ask them."""

from __future__ import annotations

from typing import Any

from pipeline.data import RequestInfo
from pipeline.engine.models import ModelEntry, ModelRegistry, ModelState
from pipeline.engine.request import RequestState, RequestTarget, ResponseSink
from pipeline.errors import NoServiceError
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.proto.pipeline_service_pb2 import Request

_EMPTY = Request()
_LATEST = -1


class ServedModels:
    """Models that are ready, found by name for each request; see `RepositoryModels`.

    Args:
        registry: has them.
    """

    def __init__(self, registry: ModelRegistry) -> None:
        self._registry = registry

    def begin(
        self,
        name: str,
        version: int,
        feeds: dict[str, Any],
        info: RequestInfo,
        traceparent: str,
        sink: ResponseSink,
    ) -> RequestState:
        """Ask a model; see `ServerModels`."""
        entry = self._entry(name, version)
        config = entry.served.model_config
        rows = 1
        if config is not None and config.max_batch_size > 0 and feeds:
            rows = len(next(iter(feeds.values())))
        target = RequestTarget(
            entry.op,
            feeds,
            entry.op is not None,
            wants_response=False,
            rows=rows,
            traceparent=traceparent,
            info=info,
        )
        return entry.served.engine.begin(_EMPTY, None, target, sink)

    def config(self, name: str, version: int) -> ModelConfig:
        """Return the configuration of a model that is ready. Raises NoServiceError."""
        config = self._entry(name, version).served.model_config
        assert config is not None  # it is one of a repository
        return config

    def _entry(self, name: str, version: int) -> ModelEntry:
        if version in (0, _LATEST):
            entry = self._registry.latest(name)
        else:
            entry = self._registry.versions(name).get(str(version))
        if entry is None or entry.state is not ModelState.READY:
            which = "" if version in (0, _LATEST) else f" version {version}"
            why = "is not at ready state" if entry is not None else "is not found"
            raise NoServiceError(f"Request for unknown model: '{name}'{which} {why}")
        return entry
