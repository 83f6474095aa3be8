"""ModelRepository: everything that the v2 protocol offers of a server, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from pipeline.config.schema import RequestTracesConfig
from pipeline.engine.models import ModelEntry, ModelRegistry, checks_pass
from pipeline.engine.offload import Offload
from pipeline.errors import ConfigError
from pipeline.frontends.base import HeaderForwarding
from pipeline.frontends.v2 import model_config as config
from pipeline.frontends.v2.control import Overrides, RepositoryControl
from pipeline.frontends.v2.errors import NO_LOADING, V2Error, V2Status, invalid, v2_error
from pipeline.frontends.v2.inference import Inference
from pipeline.frontends.v2.log_settings import LogSettings
from pipeline.frontends.v2.model import ConfiguredModel, ModelViews
from pipeline.frontends.v2.shared_regions import SharedRegions
from pipeline.observe.snapshot import ModelCounters, Snapshot
from pipeline.observe.statistics import StatisticsError, merge, select, version_number
from pipeline.observe.traces.traces import RequestTraces
from pipeline.proto.slices import Limits
from pipeline.proto.v2.config_json import as_json

_EXTENSIONS = (
    *("classification", "sequence", "model_repository", "schedule_policy"),
    *("model_configuration", "binary_tensor_data", "parameters"),
)
_OF_REPOSITORY = "model_repository(unload_dependents)"
_STATISTICS = "statistics"
_TRACE, _LOGGING = "trace", "logging"
_SERVER = "pipeline-serving"


class ModelRepository:
    """The models of a server for the v2 protocol; `inference` asks them.

    The methods with a model's name, and a version that may be "", raise V2Error for an unknown
    model or version.

    Args:
        registry: of the server's models.
        has_statistics: False if they are switched off.
        offload: checks large requests and answers; its owner stops it.
        forwarding: the headers that hooks and filters get; None: no headers.
        control: of the repository that models are loaded from, or None.
        regions: shared memory of callers, or None.
        limits: of text in shared memory.
        traces: select requests to trace; None: no traces.

    Raises:
        ConfigError: an Op's declared inputs do not fit the graph.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        has_statistics: bool = True,
        offload: Offload | None = None,
        forwarding: HeaderForwarding | None = None,
        control: RepositoryControl | None = None,
        regions: SharedRegions | None = None,
        limits: Limits | None = None,
        traces: RequestTraces | None = None,
    ) -> None:
        self._registry = registry
        self._control = control
        self.views: ModelViews = ModelViews(registry, control)
        self.regions: SharedRegions = regions or SharedRegions()
        self.log_settings: LogSettings = LogSettings("" if control is None else control.log_file)
        self._traces = traces or RequestTraces()
        self._has_statistics = has_statistics
        self.inference: Inference = Inference(
            self.views,
            offload or Offload(threads=0),
            forwarding,
            self.regions,
            limits or Limits(),
            self._traces,
        )

    # Descriptions -----------------------------------------------------------------------

    def server_metadata(self) -> dict[str, Any]:
        """Return name, version and extensions, in the words of ServerMetadataResponse."""
        counted = [_STATISTICS] if self._has_statistics else []
        extensions = [*_EXTENSIONS, *counted, _TRACE, _LOGGING]
        if self._control is not None:
            extensions.insert(extensions.index("model_repository") + 1, _OF_REPOSITORY)
        if self.regions.is_enabled:
            extensions.insert(extensions.index("binary_tensor_data"), "system_shared_memory")
        library = importlib.import_module(__name__.partition(".")[0])
        name = _SERVER if self._control is None else self._control.server_name
        return {"name": name, "version": library.__version__, "extensions": extensions}

    def metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """Return the metadata of one model, in the words of ModelMetadataResponse."""
        model = self.views.view(self.views.entry(name, version))
        ready = [
            version for version in self._registry.versions(name).values() if not version.is_unloaded
        ]
        versions = sorted((entry.version for entry in ready), key=int)
        if version and self._registry.is_repository:
            versions = [str(version_number(version))]
        return config.metadata_of(model.name, model.platform, model.interface, versions)

    def config(self, name: str, version: str = "") -> dict[str, Any]:
        """Return the configuration of one model, in the words of ModelConfig."""
        entry = self.views.entry(name, version)
        if entry.served.model_config is not None:  # its instances may have changed
            return as_json(entry.served.model_config)
        view = self.views.view(entry)
        assert not isinstance(view, ConfiguredModel), "it has a configuration"
        return view.config()

    @property
    def is_repository(self) -> bool:
        """Return whether its models come from a repository, as Triton's do."""
        return self._registry.is_repository

    # States -----------------------------------------------------------------------------

    @property
    def is_live(self) -> bool:
        """Return whether the server should keep running."""
        return self._control is None or self._control.is_live

    async def is_ready(self) -> bool:
        """Return whether all replicas accept requests, and this one's models pass their checks."""
        if self._control is not None and not self._control.is_ready:
            return False
        if self._control is not None and not self._registry.graphs():
            return True
        graphs = self._registry.graphs()
        states = [_all_ready(await served.snapshots()) for served in graphs]
        if not states or not all(states):
            return False
        if self._control is not None and not self._control.is_strict:
            return True
        return all(await asyncio.gather(*map(checks_pass, graphs)))

    async def is_model_ready(self, name: str, version: str = "") -> bool:
        """Return whether all replicas accept requests for this model, and it passes its own check.

        The check is that of this replica. False for an unknown model.
        """
        try:
            entry = self.views.entry(name, version)
        except V2Error:
            return False
        is_ready = _is_ready(entry, await entry.served.snapshots())
        return is_ready and await checks_pass(entry.served)

    async def index(self, only_ready: bool = False) -> list[dict[str, str]]:
        """Return all models, in the words of RepositoryIndexResponse.ModelIndex, sorted by name."""
        if self._control is not None:
            indexed = await self._control.index()
            shown = (entry for entry in indexed if entry.state == "READY" or not only_ready)
            return [msgspec.to_builtins(entry) for entry in shown]
        snapshots = {served: await served.snapshots() for served in self._registry.graphs()}
        entries = []
        for entry in sorted(self._registry.entries(), key=lambda entry: entry.name):
            is_ready = _is_ready(entry, snapshots.get(entry.served, ()))
            if is_ready or not only_ready:
                entries.append(_indexed(entry, is_ready))
        return entries

    async def statistics(self, name: str = "", version: str = "") -> list[ModelCounters]:
        """Return the counters of one model, or ("") of all, sorted by name."""
        if not self._has_statistics:
            raise V2Error(
                V2Status.UNSUPPORTED, "the statistics are switched off: statistics: False"
            )
        graphs = self._registry.graphs()
        snapshots = [snapshot for served in graphs for snapshot in await served.snapshots()]
        counters = merge(snapshot.models for snapshot in snapshots)
        try:
            return select(counters, name, version)
        except StatisticsError as error:
            raise v2_error(error) from error

    # Traces -----------------------------------------------------------------------------

    async def trace_settings(
        self, name: str, changes: Callable[[], Mapping[str, Any] | None]
    ) -> RequestTracesConfig:
        """Return the trace settings of a model, or ("") of all, after optional changes.

        `changes` is called when the model is known to exist. Raises V2Error, in Triton's words,
        before anything is changed.
        """
        if name and not await self.is_model_ready(name):
            raise invalid(f"Request for unknown model : {name}")
        changed = changes()
        if changed is not None:
            if self._traces.is_fixed:
                text = "trace settings can not be changed where a server has several replicas"
                raise V2Error(V2Status.UNSUPPORTED, text)
            try:
                self._traces.change(name, changed)
            except ConfigError as error:
                raise invalid(str(error)) from error
        return self._traces.register.sampler(name).settings

    # Loading ----------------------------------------------------------------------------

    async def load(self, name: str, overrides: Overrides) -> None:
        """Load a model of the repository; returns when it is ready. Raises V2Error."""
        await self._controlled().load(name, overrides)

    async def unload(self, name: str, with_dependents: bool = False) -> None:
        """Unload a model of the repository. Raises V2Error."""
        await self._controlled().unload(name, with_dependents)

    def _controlled(self) -> RepositoryControl:
        if self._control is None:
            raise V2Error(V2Status.UNAVAILABLE, NO_LOADING)
        return self._control


def _indexed(entry: ModelEntry, is_ready: bool) -> dict[str, str]:
    state = "READY" if is_ready else "UNAVAILABLE"
    # Some clients need the key `reason`, even if it is empty.
    reason = "" if is_ready else "the server, or a copy of it, takes no requests for it"
    if entry.is_unloaded:
        state, reason = entry.state.value, entry.reason
    return {"name": entry.name, "version": entry.version, "state": state, "reason": reason}


def _all_ready(snapshots: Sequence[Snapshot]) -> bool:
    return bool(snapshots) and all(snapshot.engine.is_ready for snapshot in snapshots)


def _is_ready(model: ModelEntry, snapshots: Sequence[Snapshot]) -> bool:
    """Return whether a model is ready in all replicas; Ops may differ."""
    if model.op is None:
        return _all_ready(snapshots)
    states = [
        state
        for snapshot in snapshots
        for state in snapshot.engine.ops
        if state.name == model.op.name
    ]
    return bool(states) and all(state.workers.up for state in states)
