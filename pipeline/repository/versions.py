"""ModelVersions: the versions of each model, with their states, loading and ending."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

import msgspec

from pipeline.engine.models import UNLOADED, ModelRegistry, ModelState
from pipeline.errors import ConfigError, InitError, PipelineError, described
from pipeline.repository.backends.base import ModelSource
from pipeline.repository.model_maker import GraphMaker
from pipeline.repository.polled_model import PolledModel
from pipeline.runtime.loaded_graph import LoadedGraph

_LOGGER = logging.getLogger(__name__)


class VersionState(msgspec.Struct, eq=False):
    """State of one version of a model; `served` serves it, as read in `model`, if it is loaded."""

    state: ModelState = ModelState.UNAVAILABLE
    reason: str = ""
    served: LoadedGraph | None = None
    model: PolledModel | None = None


class ModelVersions:
    """The versions of all models that were ever loaded, on the event loop.

    Args:
        registry: gets ready versions.
        maker: loads versions.
        retries: how often a load that fails is tried again.
    """

    def __init__(self, registry: ModelRegistry, maker: GraphMaker, retries: int = 0) -> None:
        self._registry = registry
        self._maker = maker
        self._tries = 1 + retries
        self._states: dict[str, dict[int, VersionState]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def of(self, name: str) -> Mapping[int, VersionState]:
        """Return the versions of a model with their states; empty: it was never loaded."""
        return self._states.get(name, {})

    def names(self) -> list[str]:
        """Return the names of all models that were ever loaded."""
        return list(self._states)

    def ready(self, name: str) -> list[int]:
        return [
            version for version, state in self.of(name).items() if state.state is ModelState.READY
        ]

    async def load(self, model: PolledModel) -> None:
        """Load the configured versions of a model, and end its previous ones.

        All are loaded or none; in that case the previous versions stay.

        Raises:
            ConfigError: a version cannot be loaded, in Triton's words.
        """
        states = self._states.setdefault(model.key, {})
        if not model.versions:
            raise ConfigError(
                "at least one version must be available under the version policy of model "
                f"'{model.name}'"
            )
        versions = await self._changed(model, states)
        fresh = {
            version: VersionState(ModelState.LOADING, model=model)
            for version in model.versions
            if version not in versions
        }
        for version, state in fresh.items():
            if states.get(version, state).state is not ModelState.READY:
                states[version] = state  # it serves no version, so its state may be shown
        for version in fresh:
            _LOGGER.info("loading: %s:%d", model.name, version)
        await asyncio.gather(
            *(self._load(model.source(version), state) for version, state in fresh.items())
        )
        failed = [
            f"version {version} is at {state.state.value} state: {state.reason};"
            for version, state in fresh.items()
            if state.served is None
        ]
        if failed:
            for state in fresh.values():
                self._end(state, UNLOADED)
            _LOGGER.info("failed to load '%s'", model.name)
            raise ConfigError("".join(failed))
        for version, state in fresh.items():
            self._show(version, state, states)
        for version in [known for known in states if known not in model.versions]:
            self._end(states[version], UNLOADED)
        _LOGGER.info("successfully loaded '%s'", model.name)

    async def _changed(
        self, model: PolledModel, states: Mapping[int, VersionState]
    ) -> Collection[int]:
        """Change versions that only differ in their instances; return these.

        Raises:
            ConfigError: a version cannot have the instances; it serves as before.
        """
        versions = []
        for version in model.versions:
            state = states.get(version)
            if state is None or state.served is None or state.model is None:
                continue
            served = state.served.model_config
            if served is None or not model.has_only_other_instances(state.model, served, version):
                continue
            try:
                if await self._maker.change(state.served, model.source(version)):
                    state.model = model
                    versions.append(version)
            except PipelineError as error:
                text = str(error).partition("\n")[0]
                raise ConfigError(f"version {version}: Internal: {text};") from error
        if versions:
            self._registry.changes += 1
        return versions

    async def _load(self, source: ModelSource, state: VersionState) -> None:
        for _ in range(self._tries):
            await self._try_to_load(source, state)
            if state.served is not None:
                return
        state.state = ModelState.UNAVAILABLE

    async def _try_to_load(self, source: ModelSource, state: VersionState) -> None:
        try:
            state.served = await self._maker.make(source)
        except PipelineError as error:
            text, _, trace = str(error).partition("\n")  # followed by the traceback of a worker
            text = text.removeprefix(f"Op {source.name!r} failed to start: ")
            if trace:
                _LOGGER.error("model '%s': %s", source.name, error)
            kind = "Internal" if isinstance(error, InitError) else "Invalid argument"
            state.reason = f"{kind}: {text}"
        except Exception as error:  # in a backend, maybe of a plug-in
            _LOGGER.exception("model '%s'", source.name)
            state.reason = f"Internal: {described(error)}"
        else:
            return
        _LOGGER.error(
            "failed to load '%s' version %d: %s", source.name, source.version, state.reason
        )

    def _show(self, version: int, state: VersionState, states: dict[int, VersionState]) -> None:
        """Direct requests to a loaded version."""
        before = states.get(version)
        states[version] = state
        state.state, state.reason = ModelState.READY, ""
        assert state.served is not None  # it was loaded
        self._registry.put(state.served)
        if before is not None and before is not state:
            self._end(before, UNLOADED)

    def unload(self, name: str, reason: str = UNLOADED) -> None:
        """End all versions of a model; they finish their requests in the background."""
        for state in self.of(name).values():
            self._end(state, reason)

    def _end(self, state: VersionState, reason: str) -> None:
        served, state.served = state.served, None
        if served is None:
            return
        if reason:
            state.state = ModelState.UNLOADING
        task = asyncio.ensure_future(self._finish(served, state, reason))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _finish(self, served: LoadedGraph, state: VersionState, reason: str) -> None:
        entries = [
            entry for entry in self._registry.members(served) if entry.state is ModelState.READY
        ]
        for entry in entries:
            entry.advance(ModelState.UNLOADING)
        self._registry.changes += 1
        try:
            await self._maker.end(served)
        except Exception:  # after any error the server continues
            _LOGGER.exception("a model did not end well")
        finally:
            self._registry.take(served)
        if reason and state.state is ModelState.UNLOADING:
            state.state, state.reason = ModelState.UNAVAILABLE, reason

    async def close(self) -> None:
        """End all versions, and wait for the ones that are already ending."""
        for name in self._states:
            self.unload(name)
        while self._ending:
            await asyncio.wait(self._ending)
