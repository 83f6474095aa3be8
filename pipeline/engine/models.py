"""ModelRegistry: the models of a server by name and version, each with an engine behind it."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Literal, Protocol

from pipeline.config.schema import ServiceConfig
from pipeline.engine.engine import Engine
from pipeline.engine.graph import Graph
from pipeline.engine.request import Begin, RequestState, RequestTarget, ResponseSink
from pipeline.errors import ClosedError, ConfigError, InputError, described
from pipeline.op import Op
from pipeline.proto.inference_v2_pb2 import ModelConfig

FIRST_VERSION = "1"
UNLOADED = "unloaded"
"""The reason of a model that was unloaded, as Triton calls it."""

OutputChecks = frozenset[Literal["shape", "type"]]
"""Properties of a model's outputs that must be as declared."""

ALL_CHECKS: OutputChecks = frozenset({"shape", "type"})


class ModelState(enum.Enum):
    """State of a model, with the names of Triton's repository."""

    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    READY = "READY"  # in the registry; its engine knows whether its workers are healthy
    UNLOADING = "UNLOADING"


LEGAL_STEPS: Mapping[ModelState, tuple[ModelState, ...]] = {
    ModelState.UNAVAILABLE: (ModelState.LOADING,),
    ModelState.LOADING: (ModelState.READY, ModelState.UNAVAILABLE),
    ModelState.READY: (ModelState.UNLOADING,),
    ModelState.UNLOADING: (ModelState.UNAVAILABLE,),
}
"""The states that may follow each state."""


class IllegalStepError(Exception):
    """A step that is not in LEGAL_STEPS, for example to load a model twice."""


ModelNames = tuple[str | None, Sequence[str | None]]
"""Names of a graph and of its Ops as models; None: clients cannot ask for it."""


def key_of_model(names: ModelNames) -> str:
    """Return the registry's key of the one model in a repository's graph."""
    name, ops = names
    return ops[0] or "" if name is None else name


class ServedGraph(Protocol):
    """A graph with its engine: the unit that is loaded and unloaded."""

    @property
    def graph(self) -> Graph: ...
    @property
    def config(self) -> ServiceConfig: ...
    @property
    def names(self) -> ModelNames:
        """The names of the whole graph and of its Ops, as models."""

    @property
    def version(self) -> str:
        """The version of its models."""

    @property
    def model_config(self) -> ModelConfig | None:
        """The configuration of its model, if it is a repository's."""

    @property
    def labels(self) -> Mapping[str, Sequence[bytes]]:
        """The class names of its model's outputs, by output."""

    @property
    def output_checks(self) -> OutputChecks:
        """The properties of its model's outputs that must be as in its configuration."""

    @property
    def engine(self) -> Engine:
        """The engine; made before the graph is loaded."""

    def snapshots(self) -> Awaitable[Sequence[Any]]:
        """Return the `Snapshot` of every process that serves it."""

    def record(self, seconds: float) -> Awaitable[Sequence[bytes]]:
        """Return what happens in every process in the next `seconds`; see `dashboard.recent`."""

    async def load(self) -> None:
        """Initialise the Ops and start the engine. InitError says what failed."""

    async def unload(self, grace_s: float) -> None:
        """Let the engine finish its requests, for at most `grace_s`, and end its workers."""


class ModelEntry:
    """One model: a whole graph, or (`op`) one Op of it alone."""

    __slots__ = ("name", "op", "reason", "served", "state", "version")

    def __init__(self, name: str, served: ServedGraph, op: Op | None = None) -> None:
        self.name: str = name
        self.version: str = served.version
        self.served: ServedGraph = served
        self.op: Op | None = op
        self.state: ModelState = ModelState.UNAVAILABLE
        self.reason: str = "not loaded"

    @property
    def ops(self) -> Sequence[Op] | None:
        """Return the Ops of its graph; None: it is a single Op."""
        return self.served.graph.ops if self.op is None else None

    @property
    def begin(self) -> Begin:
        """Return the entry for its requests."""
        return self.served.engine.begin

    @property
    def is_unloaded(self) -> bool:
        """Return whether it was unloaded, or is about to be."""
        return self.state is ModelState.UNLOADING or self.reason == UNLOADED

    def advance(self, state: ModelState, reason: str = "") -> None:
        """Change to `state` for a `reason`. Raises IllegalStepError."""
        if state not in LEGAL_STEPS[self.state]:
            raise IllegalStepError(f"model {self.name!r} is {self.state.value}, not {state.value}")
        self.state, self.reason = state, reason


def entries_of(served: ServedGraph) -> list[ModelEntry]:
    """Return new entries for a graph and its Ops, in order, if they have names."""
    name, op_names = served.names
    named = zip((name, *op_names), (None, *served.graph.ops), strict=True)
    return [ModelEntry(name, served, op) for name, op in named if name is not None]


async def checks_pass(served: ServedGraph) -> bool:
    """Return whether the models of all Ops of a graph say that they are ready."""
    for node in served.engine.executor.nodes.values():
        if not await node.workers.check_models():
            return False
    return True


class ModelRegistry:
    """The models of a server, in the order in which they were added; lives on its event loop.

    A graph is one model itself, and one for each of its Ops; they change their states together.

    Args:
        is_repository: its graphs come and go, and each is one version of a model. Requests of the
            pipeline protocol are not possible then.
    """

    def __init__(self, is_repository: bool = False) -> None:
        self.is_repository: bool = is_repository
        self.changes: int = 0
        """The number of changes: models that came or left."""
        self._models: dict[str, dict[str, ModelEntry]] = {}  # by name and version
        self._members: dict[ServedGraph, list[ModelEntry]] = {}  # without unloaded graphs

    # Entries --------------------------------------------------------------------------------

    def add(self, served: ServedGraph) -> None:
        """Add a graph and its Ops, to be loaded. Raises ConfigError for a name that is taken."""
        added = entries_of(served)
        for entry in added:
            if entry.name in self._models:
                raise ConfigError(f"there is a model {entry.name!r} already: choose another name")
        self._put(served, added)

    def put(self, served: ServedGraph) -> ServedGraph | None:
        """Put a loaded graph in the place of the graph with the same name and version.

        Returns the old graph, which gets no more requests; None: there was none.
        """
        added = entries_of(served)
        before = self._models.get(added[0].name, {}).get(added[0].version)
        for entry in added:
            entry.advance(ModelState.LOADING)
            entry.advance(ModelState.READY)
        if before is not None:
            self._members.pop(before.served, None)
        self._put(served, added)
        return None if before is None else before.served

    def take(self, served: ServedGraph) -> None:
        """Remove a graph, if it is there: it gets no more requests, and is not shown."""
        for entry in self._members.pop(served, ()):
            versions = self._models[entry.name]
            if versions.get(entry.version) is entry:
                del versions[entry.version]
                self.changes += 1
            if not versions:
                del self._models[entry.name]

    def _put(self, served: ServedGraph, added: list[ModelEntry]) -> None:
        self._members[served] = added
        self.changes += 1
        for entry in added:
            self._models.setdefault(entry.name, {})[entry.version] = entry

    def entries(self) -> list[ModelEntry]:
        """Return all models."""
        return [entry for versions in self._models.values() for entry in versions.values()]

    def versions(self, name: str) -> Mapping[str, ModelEntry]:
        """Return the versions of a model; empty if there is no model of this name.

        Raises:
            InputError: several repositories have one.
        """
        versions = self._models.get(name)
        if versions is not None or not self.is_repository:
            return versions or {}
        keys = [
            key
            for key, versions in self._models.items()
            if key.endswith(f"::{name}")
            and not all(version.is_unloaded for version in versions.values())
        ]
        if len(keys) > 1:
            raise InputError(
                f"Request for unknown model: There are {len(keys)} identifiers of model '{name}' "
                "in global map, model namespace must be provided to resolve ambiguity."
            )
        return self._models[keys[0]] if keys else {}

    def latest(self, name: str) -> ModelEntry | None:
        """Return the highest version of a model that is ready; None: there is none."""
        ready = [
            version for version in self.versions(name).values() if version.state is ModelState.READY
        ]
        return max(ready, key=lambda entry: int(entry.version), default=None)

    def members(self, served: ServedGraph) -> list[ModelEntry]:
        """Return the models in a graph: itself, and its Ops in order."""
        return [entry for entry in self.entries() if entry.served is served]

    def graphs(self) -> list[ServedGraph]:
        """Return all graphs that are not unloaded, or about to be."""
        return [served for served, (first, *_) in self._members.items() if not first.is_unloaded]

    @property
    def is_ready(self) -> bool:
        """Return whether the engines of all graphs take requests."""
        graphs = self.graphs()
        return bool(graphs) and all(served.engine.is_ready for served in graphs)

    # Life -----------------------------------------------------------------------------------

    async def load(self, name: str) -> None:
        """Load a graph that was added; if `load` raises, the error is the reason of its state."""
        served = self._models[name][FIRST_VERSION].served
        self._advance(served, ModelState.LOADING)
        self._members[served] = self.members(served)
        try:
            await served.load()
        except BaseException as error:
            self._advance(served, ModelState.UNAVAILABLE, described(error))
            raise
        self._advance(served, ModelState.READY)

    async def unload(self, name: str, grace_s: float) -> None:
        """Stop a graph's requests, let it finish the accepted ones, and forget it."""
        served = self._models[name][FIRST_VERSION].served
        self._advance(served, ModelState.UNLOADING)
        try:
            await served.unload(grace_s)
        finally:
            self._advance(served, ModelState.UNAVAILABLE, UNLOADED)
            del self._members[served]

    async def close(self, grace_s: float) -> None:
        """Let all graphs finish their requests, and end them, loaded or not."""
        await asyncio.gather(*(served.unload(grace_s) for served in self._members))

    def _advance(self, served: ServedGraph, state: ModelState, reason: str = "") -> None:
        self.changes += 1
        for entry in self.members(served):
            entry.advance(state, reason)

    # Requests -------------------------------------------------------------------------------

    @property
    def begin(self) -> Begin:
        """Return the entry for pipeline requests: with one graph, its engine's own."""
        engines = [served.engine for served in self._members]
        return engines[0].begin if len(engines) == 1 else self._begin

    def _begin(
        self, raw: Any, timeout_s: float | None, target: RequestTarget | None, sink: ResponseSink
    ) -> RequestState:
        """Give a request to the graph that it names, or to the first graph."""
        entry = self._models.get(raw.name, {}).get(FIRST_VERSION)
        if entry is not None and entry.op is None and entry.served in self._members:
            return entry.served.engine.begin(raw, timeout_s, target, sink)
        first = next(iter(self._members), None)
        if first is None:
            raise ClosedError("no model is loaded.")
        return first.engine.begin(raw, timeout_s, target, sink)
