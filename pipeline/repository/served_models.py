"""ServedModels: the models of a repository, for calls from other models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from pipeline.data import RequestInfo
from pipeline.engine.models import ModelEntry, ModelRegistry, ModelState, checks_pass
from pipeline.engine.request import (
    Members,
    RequestState,
    RequestTarget,
    ResponseSink,
    TraceCollector,
)
from pipeline.errors import InputError, NoServiceError, PipelineError
from pipeline.frontends.v2.errors import V2Error
from pipeline.frontends.v2.interface import ModelInterface, interface_of_config
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.proto.pipeline_service_pb2 import Request

_NO_MESSAGE = Request()
_MOST_FORMS = 256  # of inputs, remembered for each model


class _FoundModel(msgspec.Struct, eq=False):
    """One version of a model. `forms` has the number of samples, by form of checked inputs."""

    entry: ModelEntry
    interface: ModelInterface
    forms: dict[Any, int] = {}


class ServedModels:
    """Ready models, looked up by name for each request; see `ServerModels`.

    Args:
        registry: of the models.
    """

    def __init__(self, registry: ModelRegistry) -> None:
        self._registry = registry
        self._changes = -1
        self._found: dict[tuple[str, int], _FoundModel] = {}

    def config(self, name: str, version: int) -> ModelConfig:
        """Return the configuration of a ready model. Raises NoServiceError."""
        return _config_of(self._find(name, version).entry)

    def labels(self, name: str, version: int) -> Mapping[str, Sequence[bytes]]:
        """Return the classes' names of a ready model, by output. Raises NoServiceError."""
        return self._find(name, version).entry.served.labels

    def check_outputs(self, name: str, version: int, wanted: Sequence[str]) -> None:
        """Raise V2Error for unknown outputs of a model, PipelineError for an unknown model."""
        self._find(name, version).interface.check_outputs(name, wanted)

    async def is_ready(self, name: str, version: int) -> bool:
        """Return whether a model is ready, also by its own check."""
        try:
            entry = self._entry(name, version)
        except NoServiceError:
            return False
        return await checks_pass(entry.served)

    def begin(
        self,
        name: str,
        version: int,
        feeds: dict[str, Any],
        info: RequestInfo,
        traceparent: str,
        sink: ResponseSink,
        timeout_s: float | None = None,
        *,
        collector: TraceCollector | None = None,
        convoy: Members | None = None,
        ready_ns: int = 0,
    ) -> RequestState:
        """Call a model, with a time limit; see `ServerModels.begin`.

        Raises PipelineError: the model does not exist, or the inputs do not fit.
        """
        model = self._find(name, version)
        entry = model.entry
        rows = (
            _rows(model, feeds, info)
            if convoy is None
            else _joined_rows(model, feeds, info, convoy)
        )
        target = RequestTarget(
            *(entry.op, feeds, entry.op is not None, False, rows, traceparent, False, info),
            convoy=convoy,
            ready_ns=ready_ns,
        )
        begin = entry.begin
        if collector is not None:
            begin = collector.asks(entry, info.id, feeds)
        return cast(RequestState, begin(_NO_MESSAGE, timeout_s, target, sink))

    def convoy_size(self, name: str, version: int, rows: int) -> int:
        """Return how many requests of so many samples a model accepts as one; 0: none."""
        try:
            return self._find(name, version).entry.served.engine.executor.convoys.size(rows)
        except PipelineError:
            return 0

    def _find(self, name: str, version: int) -> _FoundModel:
        if self._changes != self._registry.changes:
            self._changes = self._registry.changes
            self._found.clear()
        model = self._found.get((name, version))
        if model is None:
            entry = self._entry(name, version)
            model = _FoundModel(entry, interface_of_config(_config_of(entry)))
            self._found[name, version] = model
        return model

    def _entry(self, name: str, version: int) -> ModelEntry:
        unknown = f"Request for unknown model: '{name}'"
        versions = self._registry.versions(name)
        if not versions:
            raise NoServiceError(f"{unknown} is not found")
        entry = versions.get(str(version)) if version > 0 else self._registry.latest(name)
        if entry is None and version > 0:
            raise NoServiceError(f"{unknown} version {version} is not found")
        if entry is None:
            raise NoServiceError(f"{unknown} has no available versions")
        if entry.state is not ModelState.READY:
            raise NoServiceError(f"{unknown} version {entry.version} is not at ready state")
        return entry


def _config_of(entry: ModelEntry) -> ModelConfig:
    config = entry.served.model_config
    assert config is not None, "each model of a repository has one"
    return config


def _joined_rows(
    model: _FoundModel, feeds: dict[str, Any], info: RequestInfo, convoy: Members
) -> int:
    """Return the number of samples of all members. Raises InputError: they do not fit."""
    most = max(convoy.rows)
    _rows(model, {name: value[:most] for name, value in feeds.items()}, info)
    return sum(convoy.rows)


def _rows(model: _FoundModel, feeds: dict[str, Any], info: RequestInfo) -> int:
    """Return the number of samples in inputs. Raises InputError: they do not fit."""
    try:
        form = tuple([(name, value.dtype, value.shape) for name, value in feeds.items()])
    except AttributeError:  # not arrays, for example from a pipeline's Op: the model checks them
        return 1
    rows = model.forms.get(form)
    if rows is None:
        name = model.entry.name
        try:
            rows = model.interface.check_inputs(name, feeds)
        except V2Error as error:
            raise InputError(error.about(info.id)) from None
        if len(model.forms) >= _MOST_FORMS:
            model.forms.clear()
        model.forms[form] = rows
    return rows
