"""ModelControl: decides which models of a repository are loaded, and when."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from pipeline.engine.models import UNLOADED, ModelState
from pipeline.errors import ConfigError, InitError, described
from pipeline.frontends.v2.control import IndexedModel, Overrides
from pipeline.frontends.v2.errors import V2Error, V2Status, internal, invalid
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.repository.backends.base import BACKENDS
from pipeline.repository.model_checks import MAX_INSTANCES, check_bounds, check_sent
from pipeline.repository.model_folders import ModelFolder, model_folders, name_of, named, names_in
from pipeline.repository.polled_model import (
    PolledModel,
    affected_by,
    check_steps,
    find_models,
    in_order,
    linked,
    only_needed_by,
    poll_model,
    without_instances,
)
from pipeline.repository.versions import ModelVersions
from pipeline.system.temp_dir import TempDir

_LOGGER = logging.getLogger(__name__)

Labels = Mapping[str, Sequence[bytes]]

_ALL = "*"
_NOTHING = Overrides()
_AT_ONCE = 4  # models that load in parallel
_NOT_EXPLICIT = "explicit model load / unload is not allowed if polling is enabled"


class ControlSettings(msgspec.Struct, frozen=True):
    """The models of a server, and the times of their loading.

    Args:
        repositories: their folders.
        mode: none: all are loaded at the start; poll: also loaded again after changes; explicit:
            `models`, and models on request.
        models: loaded at the start in mode explicit; "*": all.
        poll_s: seconds between two polls, mode poll.
        completes: missing inputs and outputs of a configuration are read from the model's file.
        is_strict: the server is ready only if all of its models are.
        exits: a model that cannot be loaded at the start ends the server.
        cards: numbers of the machine's GPUs.
        is_namespaced: several repositories may have models of the same name.
        max_instances: limit for one model.
        backend_directory: folder of Python-based backends: BACKEND/model.py.
        config_name: configs/<config_name>.pbtxt replaces config.pbtxt in models that have it.
        load_retries: how often a load that fails is tried again.
        server_name: in the server's metadata; clients may look for Triton's.
        log_file: where the log goes; "": to stdout.
    """

    repositories: tuple[Path, ...]
    mode: Literal["none", "poll", "explicit"] = "none"
    models: tuple[str, ...] = ()
    poll_s: float = 15.0
    completes: bool = True
    is_strict: bool = True
    exits: bool = True
    cards: tuple[int, ...] = ()
    server_name: str = "triton"
    log_file: str = ""
    is_namespaced: bool = False
    max_instances: int = MAX_INSTANCES
    config_name: str = ""
    load_retries: int = 0
    backend_directory: Path = BACKENDS


class ModelPoller:
    """Reads models, from the folders of the repositories or from clients' requests."""

    def __init__(self, settings: ControlSettings) -> None:
        self._settings = settings
        self._files = OverrideFiles()

    def folders(self) -> dict[str, ModelFolder]:
        """Return the folders of all models. Raises ConfigError: a repository is not a folder."""
        return model_folders(self._settings.repositories, self._settings.is_namespaced)

    def close(self) -> None:
        """Remove the files that clients have sent."""
        self._files.close()

    def look_at(
        self, wanted: Mapping[str, Overrides], failures: dict[str, V2Error]
    ) -> list[PolledModel]:
        """Return the existing models; `failures` gets the unreadable ones."""
        polled = []
        for name, overrides in wanted.items():
            try:
                check_sent(name_of(name) if self._settings.is_namespaced else name, overrides)
                if overrides.files:
                    folders = [self._files.write(name, overrides)]
                else:
                    at, is_namespaced = self._settings.repositories, self._settings.is_namespaced
                    folders = find_models(name, at, is_namespaced)
                models = [self._polled_at(name, folder, overrides) for folder in folders]
            except V2Error as error:
                _LOGGER.error("Poll failed for model directory '%s': %s", name, error)
                failures[name] = error
                continue
            except (ConfigError, OSError) as error:
                text = described(error) if isinstance(error, OSError) else str(error)
                _LOGGER.error("Poll failed for model directory '%s': %s", name, text)
                models = []
            polled += models
            if not models:
                text = f"failed to load '{name}', failed to poll from model repository"
                failures[name] = internal(text)
        return polled

    def _polled_at(self, name: str, folder: Path, overrides: Overrides) -> PolledModel:
        settings, namespace = self._settings, ""
        if settings.is_namespaced:
            name = name_of(name)
            if not overrides.files:
                namespace = str(folder.parent)
        model = poll_model(
            *(name, folder, overrides, settings.cards, settings.completes, namespace),
            settings.config_name,
        )
        check_bounds(name, model.config, settings.max_instances)
        return model


class ModelControl:
    """The models of a server's repositories; on the event loop. See `frontends.v2.control`.

    Ensembles are loaded after their models, and end when one of these ends.

    Args:
        settings: of the repositories.
        versions: loads and ends versions.
        on_readiness: gets `is_ready` after each change, before who asked for it has an answer: an
            engine tells that it is ready before its model is.
    """

    def __init__(
        self,
        settings: ControlSettings,
        versions: ModelVersions,
        on_readiness: Callable[[bool], None],
    ) -> None:
        self._settings = settings
        self._versions = versions
        self._on_readiness = on_readiness
        self._known: dict[str, PolledModel] = {}
        self._asked_for: set[str] = set()  # requested by name, not as a part of others
        self._changing: set[str] = set()
        self._made_of: dict[str, list[tuple[str, ModelConfig, Labels]]] = {}
        self._changed = asyncio.Condition()
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._poller = ModelPoller(settings)
        self._polling: asyncio.Task[None] | None = None
        self._is_started = False
        self.server_name: str = settings.server_name
        self.log_file: str = settings.log_file
        self.is_explicit: bool = settings.mode == "explicit"
        self.is_strict: bool = settings.is_strict
        self.is_live: bool = True

    # Life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the initial models.

        Raises:
            ConfigError: a repository is not a folder, or names of models are ambiguous.
            InitError: a model could not be loaded, and the server is configured to end then.
        """
        settings = self._settings
        try:
            is_good = await self._load_first()
        except ConfigError as error:
            if settings.exits:
                raise
            _LOGGER.error("error: creating server: %s", error)
            self.is_live = False
            return
        if not is_good and settings.exits:  # never report readiness before the end
            raise InitError("creating server: Internal - failed to load all models")
        self._is_started = True
        if settings.mode == "poll" and settings.poll_s > 0:
            self._polling = asyncio.ensure_future(self._poll_again())

    async def _load_first(self) -> bool:
        """Load the initial models; return whether all could be loaded."""
        settings = self._settings
        for repository in settings.repositories:
            if not repository.is_dir():
                raise ConfigError(f"repository path is not a valid directory: {repository}")
        if _ALL in settings.models and len(settings.models) > 1:
            raise ConfigError(
                "Wildcard model name '*' must be the ONLY startup model if specified at all."
            )
        if settings.mode != "explicit" or _ALL in settings.models:
            return await self._poll()
        return not await self._bring(dict.fromkeys(settings.models, Overrides()))

    async def catch_up(self) -> None:
        """Do nothing: there is no other replica."""

    async def stop(self) -> None:
        """End all models, when their requests have ended or the grace period is over."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
        await self._versions.close()
        await asyncio.to_thread(self._poller.close)

    async def _poll_again(self) -> None:
        while True:
            await asyncio.sleep(self._settings.poll_s)
            try:
                await self._poll()
            except ConfigError as error:  # a repository that is missing for a moment
                _LOGGER.error("failed to poll model repository: %s", error)

    async def _poll(self) -> bool:
        """Read all repositories, load new or changed models, end removed ones.

        Returns whether every model could be loaded.
        """
        folders = await asyncio.to_thread(self._poller.folders)
        gone = self._known.keys() - folders.keys()
        wanted = {
            name: Overrides()
            for name, folder in folders.items()
            if name not in self._known
            or self._known[name].is_older_than(folder)
            or not self._versions.ready(name)
        }
        for name in gone:
            await self._drop({name})
        return not await self._bring(wanted)

    # Callers' requests ----------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Return whether all models but unloaded ones are ready; not strict: the start is over."""
        if not (self._is_started and self.is_strict):
            return self._is_started
        of_each = [self._versions.of(name) for name in self._known]
        states = [state for versions in of_each for state in versions.values()]
        return all(of_each) and all(
            state.state is ModelState.READY or state.reason == UNLOADED
            for state in states
            if state.state is not ModelState.UNLOADING
        )

    def has(self, name: str, version: int | None = None) -> bool:
        """Return whether a model, or a version of it, was ever loaded or failed to load."""
        if version is None and named(self._known, name):
            return True
        states = [self._versions.of(key) for key in self._named(name)]
        return any(versions if version is None else version in versions for versions in states)

    async def load(self, name: str, overrides: Overrides, is_inner: bool = False) -> None:
        """Load a model with its parts, or load it again. Raises V2Error."""
        self._check_explicit()
        if not name.strip():
            raise invalid("Model name cannot be empty. Please enter a valid name to deploy.")
        if "/" in name or "\\" in name or name.strip() in (".", ".."):
            text = f"failed to load '{name}', model name must not contain path traversal characters"
            raise invalid(text)
        failures = await self._bring({name: overrides}, is_inner)
        for failed in named(failures, name):
            raise failures[failed]

    async def unload(self, name: str, with_dependents: bool = False) -> None:
        """Unload a model, with its dependents also the models that only it used. Raises V2Error."""
        self._check_explicit()
        names = set(named(self._known, name))
        if with_dependents:
            for key in tuple(names):
                names |= only_needed_by(self._known, key, self._asked_for)
        if names:
            await self._drop(names)

    async def index(self) -> list[IndexedModel]:
        """Return all models of the repositories, loaded or not."""
        names = await asyncio.to_thread(names_in, self._settings.repositories)
        entries = []
        for name, count in sorted(Counter(names).items()):
            if count > 1 and not self._settings.is_namespaced:
                reason = "model appears in two or more repositories"
                entries.append(IndexedModel(name, "", "UNAVAILABLE", reason))
                continue
            keys = self._named(name)
            entries += [
                IndexedModel(name, str(version), state.state.value, state.reason)
                for key in keys
                for version, state in sorted(self._versions.of(key).items())
            ]
            entries += [IndexedModel(name)] * (count - len(keys))
        return entries

    def _named(self, name: str) -> list[str]:
        """Return the keys of the models of a name that were ever loaded."""
        if not self._settings.is_namespaced:
            return [name] if self._versions.of(name) else []
        return sorted(named(self._versions.names(), name))

    def _check_explicit(self) -> None:
        if self._settings.mode != "explicit":
            raise V2Error(V2Status.UNAVAILABLE, _NOT_EXPLICIT)

    # Coming and going -----------------------------------------------------------------------

    async def _bring(
        self, wanted: Mapping[str, Overrides], is_inner: bool = False
    ) -> dict[str, V2Error]:
        """Load models with their parts; return the reasons of failures."""
        failures: dict[str, V2Error] = {}
        polled = await self._polled(wanted, failures)
        affected = affected_by(self._known, polled, self._linked({**self._known, **polled}))
        async with self._alone_with(affected):
            before = dict(self._known)
            self._known = self._linked({**self._known, **polled})
            polled = {key: self._known[key] for key in polled}
            for name in wanted.keys() - failures.keys():
                self._asked_for.update(named(self._known, name))
            singles = [model for model in polled.values() if not model.steps]
            await asyncio.gather(
                *(self._load_in_turn(model, failures, is_inner) for model in singles)
            )
            for name in in_order(self._known, polled):
                if polled[name].steps:
                    await self._load(polled[name], failures)
            for name in failures.keys() & polled.keys() & before.keys():
                if self._versions.ready(name):
                    # the change continues, and the next poll tries again
                    self._known[name] = before[name]
            for name in in_order(self._known, affected - polled.keys()):
                await self._look_again(self._known[name])
        return failures

    def _linked(self, known: Mapping[str, PolledModel]) -> dict[str, PolledModel]:
        return linked(known) if self._settings.is_namespaced else dict(known)

    async def _polled(
        self, wanted: Mapping[str, Overrides], failures: dict[str, V2Error]
    ) -> dict[str, PolledModel]:
        """Read models, and then one after another the models that they consist of."""
        polled: dict[str, PolledModel] = {}
        left, seen = dict(wanted), set(wanted)
        while left:
            models = await asyncio.to_thread(self._poller.look_at, left, failures)
            left = {}
            for model in models:
                polled[model.key] = model
                steps = [step for step in model.step_names if step not in seen]
                seen.update(steps)
                left |= dict.fromkeys(steps, Overrides())
        return {
            key: model
            for key, model in polled.items()
            if wanted.get(model.name, _NOTHING) != _NOTHING or self._is_new(model)
        }

    def _is_new(self, model: PolledModel) -> bool:
        known = self._known.get(model.key)
        if known is None or not self._versions.ready(model.key):
            return True
        is_elsewhere = known.folder.path != model.folder.path
        return is_elsewhere or known.is_older_than(model.folder)

    async def _load_in_turn(
        self, model: PolledModel, failures: dict[str, V2Error], is_inner: bool
    ) -> None:
        """Load one of several models; the number of parallel loads is limited, except for parts."""
        async with nullcontext() if is_inner else self._turns:
            await self._load(model, failures)

    async def _load(self, model: PolledModel, failures: dict[str, V2Error]) -> None:
        """Load a model that was read, if possible."""
        try:
            check_steps(self._known, model, self._versions.ready)
            await self._versions.load(model)
            self._made_of[model.key] = self._parts_of(model)
        except ConfigError as error:
            _LOGGER.error("failed to load model '%s': %s", model.name, error)
            text = f"load failed for model '{model.name}': {error}\n"
            failures[model.key] = invalid(text)

    async def _look_again(self, model: PolledModel) -> None:
        """End an ensemble that lacks a model now; load it again if its models are complete or
        differ.
        """
        try:
            check_steps(self._known, model, self._versions.ready)
        except ConfigError as error:
            _LOGGER.error("%s", error)
            self._versions.unload(model.key)
            return
        is_ready = bool(self._versions.ready(model.key))
        if not is_ready or self._made_of.get(model.key) != self._parts_of(model):
            failures: dict[str, V2Error] = {}
            await self._load(model, failures)
            if failures and is_ready:
                self._versions.unload(model.key, str(failures[model.key]))

    def _parts_of(self, model: PolledModel) -> list[tuple[str, ModelConfig, Labels]]:
        """Return the models of an ensemble, with their current configurations and labels."""
        return [
            (step, without_instances(state.served.model_config), state.served.labels)
            for step in model.steps
            for state in self._versions.of(step).values()
            if state.served is not None and state.served.model_config is not None
        ]

    async def _drop(self, names: Collection[str]) -> None:
        left = {key: model for key, model in self._known.items() if key not in names}
        affected = affected_by(self._known, names, self._linked(left))
        async with self._alone_with(affected):
            for name in names:
                self._known.pop(name, None)
                self._asked_for.discard(name)
                self._versions.unload(name)
            self._known = self._linked(self._known)
            for name in affected - set(names):
                await self._look_again(self._known[name])

    @asynccontextmanager
    async def _alone_with(self, names: set[str]) -> AsyncGenerator[None, None]:
        """Lock these models: wait for other changes of them, and exclude further ones."""
        async with self._changed:
            await self._changed.wait_for(lambda: not names & self._changing)
            self._changing |= names
        try:
            yield
        finally:
            async with self._changed:
                self._changing -= names
                self._changed.notify_all()
            self._on_readiness(self.is_ready)


class OverrideFiles:
    """Folders of models from requests, outside the repositories; `close` removes them."""

    def __init__(self) -> None:
        self._root = TempDir("models that were sent")
        self._number = 0

    def write(self, name: str, overrides: Overrides) -> Path:
        """Write the files of a model, and return their folder, which has the model's name.

        Raises:
            ConfigError: the configuration is missing.
            OSError: two paths conflict.
        """
        if overrides.config is None:
            raise ConfigError(f"failed to load '{name}', override files need a config beside them")
        self._number += 1
        folder = self._root.make() / str(self._number) / name
        for path, content in overrides.files.items():
            place = PurePosixPath(path.lstrip("/"))  # `check_sent` has checked it
            file = folder.joinpath(*place.parts)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        return folder

    def close(self) -> None:
        self._root.remove()
