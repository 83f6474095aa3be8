"""ServedModels: the models of a repository, for others of it that ask them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pipeline.data import RequestInfo
from pipeline.engine.models import ModelEntry, ModelRegistry, ModelState
from pipeline.engine.request import RequestState, RequestTarget, ResponseSink
from pipeline.errors import InputError, NoServiceError
from pipeline.frontends.v2.errors import V2Error
from pipeline.frontends.v2.interface import ModelInterface, interface_of_config
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.proto.pipeline_service_pb2 import Request
from pipeline.proto.v2.raw import about_request

_NO_MESSAGE = Request()
_MOST_FORMS = 256  # of inputs, that are remembered of a model


class _Found(msgspec.Struct, eq=False):
    """One version of a model. `forms` has the samples of inputs that fit it, by their form."""

    entry: ModelEntry
    interface: ModelInterface
    forms: dict[Any, int] = {}


class ServedModels:
    """Models that are ready, found by name for each request; see `RepositoryModels`.

    Args:
        registry: has them.
        ports: of the server, by the names of its frontends, once they are open.
    """

    def __init__(
        self, registry: ModelRegistry, ports: Callable[[], Mapping[str, int]] = dict
    ) -> None:
        self._registry = registry
        self._ports = ports
        self._changes = -1
        self._found: dict[tuple[str, int], _Found] = {}

    @property
    def address(self) -> str:
        """The address of the server's gRPC port, for processes of its own; "": it has none."""
        port = self._ports().get("gRPC")
        return f"127.0.0.1:{port}" if port else ""

    def config(self, name: str, version: int) -> ModelConfig:
        """Return the configuration of a model that is ready. Raises NoServiceError."""
        return _config_of(self._find(name, version).entry)

    def begin(
        self,
        name: str,
        version: int,
        feeds: dict[str, Any],
        info: RequestInfo,
        traceparent: str,
        sink: ResponseSink,
    ) -> RequestState:
        """Ask a model. Raises PipelineError: it is not there, or these are not its inputs."""
        found = self._find(name, version)
        entry = found.entry
        rows = _rows(found, feeds, info)
        target = RequestTarget(
            entry.op, feeds, entry.op is not None, False, rows, traceparent, False, info
        )
        return entry.served.engine.begin(_NO_MESSAGE, None, target, sink)

    def _find(self, name: str, version: int) -> _Found:
        if self._changes != self._registry.changes:
            self._changes = self._registry.changes
            self._found.clear()
        found = self._found.get((name, version))
        if found is None:
            entry = self._entry(name, version)
            found = _Found(entry, interface_of_config(_config_of(entry)))
            self._found[name, version] = found
        return found

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


def _rows(found: _Found, feeds: dict[str, Any], info: RequestInfo) -> int:
    """Return how many samples inputs bring. Raises InputError for those that do not fit."""
    try:
        form = tuple([(name, value.dtype, value.shape) for name, value in feeds.items()])
    except AttributeError:  # no arrays, as of a pipeline's Op: it is for the model to say
        return 1
    rows = found.forms.get(form)
    if rows is None:
        name = found.entry.name
        try:
            rows = found.interface.check_inputs(name, feeds)
        except V2Error as error:
            raise InputError(f"{about_request(info.id)}{error}") from None
        if len(found.forms) >= _MOST_FORMS:
            found.forms.clear()
        found.forms[form] = rows
    return rows
