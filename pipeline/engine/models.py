"""ModelRegistry: the models of a server by name and version, each with an engine behind it."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

from pipeline.config.schema import ServiceConfig
from pipeline.engine.engine import Engine
from pipeline.engine.graph import Graph
from pipeline.engine.request import Begin, RequestState, RequestTarget, ResponseSink
from pipeline.errors import ClosedError, ConfigError, described
from pipeline.op import Op

FIRST_VERSION = "1"
UNLOADED = "unloaded"
"""The reason, in Triton's word, for which a model is not available that was unloaded."""


class ModelState(enum.Enum):
    """State of a model, in the words of Triton's repository."""

    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    READY = "READY"  # as far as its registry goes; its engine knows whether its workers are well
    UNLOADING = "UNLOADING"


LEGAL_STEPS: Mapping[ModelState, tuple[ModelState, ...]] = {
    ModelState.UNAVAILABLE: (ModelState.LOADING,),
    ModelState.LOADING: (ModelState.READY, ModelState.UNAVAILABLE),
    ModelState.READY: (ModelState.UNLOADING,),
    ModelState.UNLOADING: (ModelState.UNAVAILABLE,),
}
"""States that may follow each."""


class IllegalStepError(Exception):
    """A step that is not in LEGAL_STEPS: a model that is loaded twice, say."""


class Served(Protocol):
    """A graph with the engine that serves it: what is loaded and unloaded as a whole."""

    @property
    def graph(self) -> Graph: ...
    @property
    def config(self) -> ServiceConfig: ...
    @property
    def names(self) -> tuple[str, Sequence[str]]:
        """The names of the whole graph and of its Ops, as models."""

    @property
    def engine(self) -> Engine:
        """The engine; made before the graph is loaded."""

    def snapshots(self) -> Awaitable[Sequence[Any]]:
        """Ask every process that serves it for its `Snapshot`."""

    async def load(self) -> None:
        """Initialise the Ops and start the engine. InitError says what failed."""

    async def unload(self, grace_s: float) -> None:
        """Let the engine finish what it has, for so long, and end its workers."""


class ModelEntry:
    """One model: a whole graph, or (`op`) one Op of it alone."""

    __slots__ = ("name", "op", "reason", "served", "state", "version")

    def __init__(self, name: str, served: Served, op: Op | None = None) -> None:
        self.name: str = name
        self.version: str = FIRST_VERSION
        self.served: Served = served
        self.op: Op | None = op
        self.state: ModelState = ModelState.UNAVAILABLE
        self.reason: str = "not loaded"

    @property
    def is_unloaded(self) -> bool:
        """True if it was unloaded, or is about to be."""
        return self.state is ModelState.UNLOADING or self.reason == UNLOADED

    def advance(self, state: ModelState, reason: str = "") -> None:
        """Go on to `state`, which `reason` explains. Raises IllegalStepError."""
        if state not in LEGAL_STEPS[self.state]:
            raise IllegalStepError(f"model {self.name!r} is {self.state.value}, not {state.value}")
        self.state, self.reason = state, reason


class ModelRegistry:
    """The models of a server, in the order in which they were added; lives on its event loop.

    A graph is as many models as it has Ops, and one for itself; they go through their states
    together.
    """

    def __init__(self) -> None:
        self._models: dict[str, dict[str, ModelEntry]] = {}  # by name and version
        self._graphs: dict[str, Served] = {}  # without those that were unloaded

    # Entries --------------------------------------------------------------------------------

    def add(self, served: Served) -> None:
        """Add a graph and its Ops, to be loaded. Raises ConfigError for a name that is taken."""
        name, op_names = served.names
        ops = zip(op_names, served.graph.ops, strict=True)
        added = [ModelEntry(name, served), *(ModelEntry(each, served, op) for each, op in ops)]
        for entry in added:
            if entry.name in self._models:
                raise ConfigError(f"there is a model {entry.name!r} already: choose another name")
        self._models |= {entry.name: {entry.version: entry} for entry in added}
        self._graphs[name] = served

    def entries(self) -> list[ModelEntry]:
        """Return all models."""
        return [entry for versions in self._models.values() for entry in versions.values()]

    def versions(self, name: str) -> Mapping[str, ModelEntry]:
        """Return the versions of a model; empty if there is none of this name."""
        return self._models.get(name, {})

    def members(self, served: Served) -> list[ModelEntry]:
        """Return the models that a graph is: itself, and its Ops in order."""
        return [entry for entry in self.entries() if entry.served is served]

    def graphs(self) -> list[Served]:
        """Return all graphs but those that are unloaded, or about to be."""
        entries = [self._models[name][FIRST_VERSION] for name in self._graphs]
        return [entry.served for entry in entries if not entry.is_unloaded]

    @property
    def is_ready(self) -> bool:
        """True if the engines of all graphs take requests."""
        graphs = self.graphs()
        return bool(graphs) and all(served.engine.is_ready for served in graphs)

    # Life -----------------------------------------------------------------------------------

    async def load(self, name: str) -> None:
        """Load a graph that was added; what its `load` raises is the reason that it is not."""
        served = self._models[name][FIRST_VERSION].served
        self._advance(served, ModelState.LOADING)
        self._graphs[name] = served
        try:
            await served.load()
        except BaseException as error:
            self._advance(served, ModelState.UNAVAILABLE, described(error))
            raise
        self._advance(served, ModelState.READY)

    async def unload(self, name: str, grace_s: float) -> None:
        """Take no more requests for a graph, let it finish those that it has, and forget it."""
        served = self._models[name][FIRST_VERSION].served
        self._advance(served, ModelState.UNLOADING)
        try:
            await served.unload(grace_s)
        finally:
            self._advance(served, ModelState.UNAVAILABLE, UNLOADED)
            del self._graphs[name]

    async def close(self, grace_s: float) -> None:
        """Let all graphs finish what they have, and end them, loaded or not."""
        await asyncio.gather(*(served.unload(grace_s) for served in self._graphs.values()))

    def _advance(self, served: Served, state: ModelState, reason: str = "") -> None:
        for entry in self.members(served):
            entry.advance(state, reason)

    # Requests -------------------------------------------------------------------------------

    @property
    def begin(self) -> Begin:
        """The entry for requests of the pipeline protocol: with one graph, its engine's own."""
        engines = [served.engine for served in self._graphs.values()]
        return engines[0].begin if len(engines) == 1 else self._begin

    def _begin(
        self, raw: Any, timeout_s: float | None, target: RequestTarget | None, sink: ResponseSink
    ) -> RequestState:
        """Give a request to the graph that it names; the first refuses what names none."""
        served = self._graphs.get(raw.name) or next(iter(self._graphs.values()), None)
        if served is None:
            raise ClosedError("no model is loaded.")
        return served.engine.begin(raw, timeout_s, target, sink)
