"""PolledModel: a model as it was when it was looked at; ensembles, and what they are made of."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from pipeline.errors import ConfigError
from pipeline.frontends.v2.control import Overrides
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.repository.backends.base import ModelSource
from pipeline.repository.model_checks import check
from pipeline.repository.model_config import parse_json, read_model_config
from pipeline.repository.model_defaults import ENSEMBLE, fill_in
from pipeline.repository.model_folders import BETWEEN, ModelFolder, key_of, links_of, look, name_of

_LOGGER = logging.getLogger(__name__)


class PolledModel(msgspec.Struct, frozen=True):
    """A model that was looked at.

    Args:
        config: with its defaults; inputs and outputs may be missing where they are completed from
            the model's file.
        is_complete: they may not.
        namespace: its repository; "": names are unique.
        links: of an ensemble, the keys of its models by their names.
    """

    name: str
    folder: ModelFolder
    config: ModelConfig
    versions: tuple[int, ...]
    is_complete: bool
    namespace: str = ""
    links: Mapping[str, str] = {}

    @property
    def key(self) -> str:
        """Its name, or with namespaces that and its repository."""
        return key_of(self.namespace, self.name)

    @property
    def step_names(self) -> list[str]:
        """Names of the models that it is made of; empty, if it is not an ensemble."""
        if self.config.platform != ENSEMBLE:
            return []
        names = (step.model_name for step in self.config.ensemble_scheduling.step)
        return list(dict.fromkeys(names))

    @property
    def steps(self) -> list[str]:
        """Keys of the models that it is made of; the names of models that do not exist."""
        return [self.links.get(name, name) for name in self.step_names]

    def source(self, version: int) -> ModelSource:
        """Return what a backend makes the model of."""
        config = self.config
        if self.links:
            config = ModelConfig()
            config.CopyFrom(self.config)
            for step in config.ensemble_scheduling.step:
                key = self.links.get(step.model_name, "")
                step.model_namespace = key.rpartition(BETWEEN)[0]
        return ModelSource(self.name, version, self.folder.path, config, self.is_complete, self.key)

    def has_only_other_instances(
        self, loaded: PolledModel, served: ModelConfig, version: int
    ) -> bool:
        """Return whether a version differs in nothing but its instances from what is loaded.

        Args:
            loaded: the model as it was looked at then.
            served: the configuration of the version with what its files have added.
        """
        folder, before = self.folder, loaded.folder
        if folder.path != before.path or folder.stamp.has_other_files(before.stamp, version):
            return False
        mine = without_instances(self.config)
        return mine in (without_instances(loaded.config), without_instances(served))

    def is_older_than(self, folder: ModelFolder) -> bool:
        """Return whether something in the folder has changed since."""
        return folder.stamp != self.folder.stamp or folder.versions != self.folder.versions


def without_instances(config: ModelConfig) -> ModelConfig:
    """Return the part of a configuration whose change reloads the model."""
    rest = ModelConfig()
    rest.CopyFrom(config)
    rest.ClearField("instance_group")
    rest.ClearField("version_policy")
    return rest


def poll_model(
    name: str,
    folder: Path,
    overrides: Overrides | None = None,
    cards: Collection[int] = (),
    completes: bool = True,
    namespace: str = "",
    config_name: str = "",
) -> PolledModel:
    """Look at a model's folder, and read its configuration.

    Args:
        completes: what the configuration does not say of inputs and outputs is read from the
            model's file when that is loaded.
        config_name: see `read_model_config`.

    Raises:
        ConfigError: what is wrong, in Triton's words.
    """
    there = look(folder)
    config: ModelConfig | None
    if overrides is not None and overrides.config is not None:
        try:
            config = parse_json(overrides.config, "config")
        except ConfigError as error:
            raise ConfigError(f"Invalid config override: {error}") from None
    else:
        config = read_model_config(folder, config_name)
    if config is None:
        if not completes:
            file = folder / "config.pbtxt"
            raise ConfigError(
                f"failed to open text file for read {file}: No such file or directory"
            )
        config = ModelConfig()
    fill_in(config, name, there.files, cards)
    check(config, cards, with_tensors=not completes)
    if config.name != name:
        raise ConfigError(
            f"unexpected directory name '{name}' for model '{config.name}', directory name must "
            "equal model name"
        )
    files = tuple(there.wanted(config))
    return PolledModel(name, there, config, files, not completes, namespace)


def find_models(name: str, repositories: Iterable[Path], is_namespaced: bool) -> list[Path]:
    """Return the folders of models of a name: one, or with namespaces one of each repository.

    Nothing: it is in no repository, or without namespaces in several.
    """
    if is_namespaced and BETWEEN in name:  # the key of one
        return [Path(name.rpartition(BETWEEN)[0]) / name_of(name)]
    # A step of an ensemble that was sent may be called anything.
    is_name = name not in ("", "..") and Path(name).name == name
    folders = [repository / name for repository in repositories if is_name]
    models = [folder for folder in folders if folder.is_dir()]
    if len(models) == 1 or (models and is_namespaced):
        return models
    why = (
        "not unique across all model repositories"
        if models
        else "model not found in any model repository."
    )
    _LOGGER.error("failed to poll model '%s': %s", name, why)
    return []


Known = Mapping[str, PolledModel]
"""Models by key."""


def users_of(known: Known, names: Iterable[str]) -> set[str]:
    """Return the ensembles that are made of these models, at any depth."""
    users: set[str] = set()
    left = set(names)
    while left:
        left = {
            model.key
            for model in known.values()
            if left.intersection(model.steps) and model.key not in users
        }
        users |= left
    return users


def only_needed_by(known: Known, name: str, asked_for: Collection[str]) -> set[str]:
    """Return the models that a model is made of, and nobody else asked for or needs."""
    needed: set[str] = set()
    left = [name]
    while left:
        model = known.get(left.pop())
        for step in () if model is None else model.steps:
            users = users_of(known, [step]) - {name, *needed}
            if step not in asked_for and not users and step in known:
                needed.add(step)
                left.append(step)
    return needed


def in_order(known: Known, names: Iterable[str]) -> list[str]:
    """Return models, each after the models that it is made of."""
    wanted, ordered = set(names), list[str]()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name not in wanted or name in ordered or name in path:
            return
        for step in known[name].steps:
            visit(step, (*path, name))
        ordered.append(name)

    for name in sorted(wanted):
        visit(name, ())
    return ordered


def before_itself(known: Known, name: str) -> str:
    """Return which model, made of this one, this one is made of; "": there is none."""
    steps, left, seen = known[name].steps, [name], set[str]()
    while left:
        user = left.pop(0)
        if user in steps:
            return user
        seen.add(user)
        left += [key for key, model in known.items() if user in model.steps and key not in seen]
    return ""


def linked(known: Known) -> dict[str, PolledModel]:
    """Return models with what the names of their steps mean among them; see `links_of`."""
    return {
        key: msgspec.structs.replace(
            model, links=links_of(model.namespace, model.step_names, known.keys())
        )
        for key, model in known.items()
    }


def affected_by(known: Known, changed: Collection[str], then: Known) -> set[str]:
    """Return models that change, the models made of them, and the models whose links change
    `then`."""
    affected = {*changed, *users_of(known, changed), *users_of(then, changed)}
    both = known.keys() & then.keys()
    return affected | {key for key in both if known[key].steps != then[key].steps}


def check_steps(known: Known, model: PolledModel, ready: Callable[[str], Sequence[int]]) -> None:
    """Look at whether an ensemble has its models.

    Args:
        ready: returns the versions of a model that are.

    Raises:
        ConfigError: it lacks one, or is one of them; in Triton's words.
    """
    before = before_itself({**known, model.key: model}, model.key)
    if before:
        raise ConfigError(
            f"circular dependency between ensembles: {model.name} -> ... -> {before} -> "
            f"{model.name}"
        )
    for step in model.config.ensemble_scheduling.step:
        name = step.model_name
        key = model.links.get(name, name)
        depends = f"ensemble '{model.name}' depends on '{name}'"
        if key not in known:
            raise ConfigError(
                f"ensemble {model.name} contains models that are not available or ambiguous: {name}"
            )
        versions = ready(key)
        if not versions:
            raise ConfigError(f"{depends} which has no loaded version.")
        if step.model_version not in (0, -1, *versions):
            raise ConfigError(
                f"{depends} whose required version {step.model_version} is not loaded."
            )
