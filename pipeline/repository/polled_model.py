"""PolledModel: a model as its folder and its configuration were when they were looked at."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from pipeline.errors import ConfigError
from pipeline.frontends.v2.control import Overrides
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.repository.backends.base import ModelSource
from pipeline.repository.model_checks import check
from pipeline.repository.model_config import parse_json, read_model_config
from pipeline.repository.model_defaults import ENSEMBLE, fill_in
from pipeline.repository.model_folders import ModelFolder, look

_LOGGER = logging.getLogger(__name__)


class PolledModel(msgspec.Struct, frozen=True):
    """A model that was looked at.

    Args:
        config: with all that has a default; inputs and outputs may be missing where they are
            completed from the model's file.
        is_complete: they may not.
    """

    name: str
    folder: ModelFolder
    config: ModelConfig
    versions: tuple[int, ...]
    is_complete: bool

    @property
    def steps(self) -> list[str]:
        """Names of the models that it is made of; none, if it is no ensemble."""
        if self.config.platform != ENSEMBLE:
            return []
        names = (step.model_name for step in self.config.ensemble_scheduling.step)
        return list(dict.fromkeys(names))

    def source(self, version: int) -> ModelSource:
        """Return what a backend makes the model of."""
        return ModelSource(self.name, version, self.folder.path, self.config, self.is_complete)

    def has_only_other_instances(
        self, loaded: PolledModel, served: ModelConfig, version: int
    ) -> bool:
        """Return whether a version differs in nothing but its instances from what is loaded.

        Args:
            loaded: the model as it was looked at then.
            served: the configuration of the version with what its files have added.
        """
        folder, before = self.folder, loaded.folder
        if folder.path != before.path or folder.stamp.is_version_newer(before.stamp, version):
            return False
        mine = without_instances(self.config)
        return mine in (without_instances(loaded.config), without_instances(served))

    def is_older_than(self, folder: ModelFolder) -> bool:
        """Return whether something in the folder has changed since."""
        return folder.stamp != self.folder.stamp or folder.versions != self.folder.versions


def without_instances(config: ModelConfig) -> ModelConfig:
    """Return all that a model has to be loaded anew for."""
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
) -> PolledModel:
    """Look at a model's folder, and read its configuration.

    Args:
        completes: what the configuration does not say of inputs and outputs is read from the
            model's file when that is loaded.

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
        config = read_model_config(folder)
    if config is None:
        if not completes:
            raise ConfigError(f"failed to open text file for read {folder / 'config.pbtxt'}")
        config = ModelConfig()
    fill_in(config, name, there.files, cards)
    check(config, cards, with_tensors=not completes)
    if config.name != name:
        raise ConfigError(
            f"unexpected directory name '{name}' for model '{config.name}', directory name must "
            "equal model name"
        )
    return PolledModel(name, there, config, tuple(there.wanted(config)), not completes)


def find_model(name: str, repositories: Iterable[Path]) -> Path | None:
    """Return the folder of a model; None: it is in no repository, or in several."""
    # A step of an ensemble that was sent may be called anything.
    is_name = name not in ("", "..") and Path(name).name == name
    folders = [repository / name for repository in repositories if is_name]
    found = [folder for folder in folders if folder.is_dir()]
    if len(found) == 1:
        return found[0]
    why = (
        "not unique across all model repositories"
        if found
        else "model not found in any model repository."
    )
    _LOGGER.error("failed to poll model '%s': %s", name, why)
    return None
