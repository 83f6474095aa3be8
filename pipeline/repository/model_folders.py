"""Folders of model repositories: which models there are, in which versions, and what changed.

<repository>/<model>/config.pbtxt, <version>/<file>, warmup/, initial_state/, configs/

With namespaces several repositories may have models of one name, each in a namespace of its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from pipeline.errors import ConfigError
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.repository.model_config import TEXT_FILE, YAML_FILE

BETWEEN = "::"


def key_of(namespace: str, name: str) -> str:
    """Return what a model is known by: its name alone where there are no namespaces."""
    return f"{namespace}{BETWEEN}{name}" if namespace else name


def name_of(key: str) -> str:
    """Return the name of a model, which has no namespace."""
    return key.rpartition(BETWEEN)[2]


def named(keys: Iterable[str], name: str) -> list[str]:
    """Return the models of a name, or the one of a key."""
    return [key for key in keys if name in (key, name_of(key))]


def links_of(namespace: str, steps: Iterable[str], keys: Collection[str]) -> Mapping[str, str]:
    """Return the keys of the models that an ensemble means by the names of its steps.

    A model of its own namespace comes first, then one whose name no other has. Of a name that is
    in several others, or in none, there is nothing.
    """
    links = {}
    for name in steps:
        own, others = key_of(namespace, name), named(keys, name)
        if own in keys:
            links[name] = own
        elif len(others) == 1:
            links[name] = others[0]
    return links


_LOGGER = logging.getLogger(__name__)

_BYTECODE = "__pycache__"
_NO_VERSIONS = ("warmup", "initial_state", "configs", _BYTECODE)
_CONFIGS = (TEXT_FILE, YAML_FILE)


_File = tuple[str, int, int]  # the path in the folder, time of the last change, bytes


class Stamp(msgspec.Struct, frozen=True):
    """The files in a model's folder, in each part, to tell what has changed.

    Bytecode that Python has written next to them is not a change.

    Args:
        config: the configuration's.
        versions: by version.
        others: all else.
    """

    config: frozenset[_File] = frozenset()
    versions: Mapping[int, frozenset[_File]] = {}
    others: frozenset[_File] = frozenset()

    def has_other_files(self, than: Stamp, version: int) -> bool:
        """Return whether a version has to be loaded again for its files, not its configuration."""
        there = than.versions.get(version, frozenset()), than.others
        return (self.versions.get(version, frozenset()), self.others) != there


class ModelFolder(msgspec.Struct, frozen=True):
    """The folder of a model, as it was looked at.

    Args:
        name: of the model.
        path: of the folder.
        versions: folders by version; the first is the lowest.
    """

    name: str
    path: Path
    versions: Mapping[int, Path]
    stamp: Stamp

    @property
    def files(self) -> list[str]:
        """Names of what is in the folder of the lowest version; empty if there is none."""
        return sorted(os.listdir(next(iter(self.versions.values())))) if self.versions else []

    def wanted(self, config: ModelConfig) -> list[int]:
        """Return the versions that the policy of a configuration wants, of those there are."""
        policy = config.version_policy
        if policy.HasField("specific"):
            for version in policy.specific.versions:
                if version not in self.versions:
                    _LOGGER.error(
                        "version %d is specified for model '%s', but the version directory is "
                        "not present",
                        version,
                        self.name,
                    )
            versions = [version for version in self.versions if version in policy.specific.versions]
        elif policy.HasField("latest"):
            there = sorted(self.versions)
            versions = there[max(0, len(there) - policy.latest.num_versions) :]
        else:
            versions = list(self.versions)
        return versions


def model_folders(
    repositories: Iterable[Path], is_namespaced: bool = False
) -> dict[str, ModelFolder]:
    """Return the models of all repositories by name, or with namespaces by key.

    Without namespaces a name that is in two repositories is ambiguous, and a model in neither.

    Raises:
        ConfigError: a repository cannot be read.
    """
    folders: dict[str, list[Path]] = {}
    for repository in repositories:
        for path in _folders(repository):
            key = key_of(str(repository) if is_namespaced else "", path.name)
            folders.setdefault(key, []).append(path)
    for name, paths in folders.items():
        if len(paths) > 1:
            _LOGGER.error(
                "failed to poll model '%s': not unique across all model repositories", name
            )
    return {name: look(paths[0]) for name, paths in folders.items() if len(paths) == 1}


def names_in(repositories: Iterable[Path]) -> list[str]:
    """Return the names of the folders in all repositories; one that is in two comes twice."""
    there = (repository for repository in repositories if repository.is_dir())
    return [path.name for repository in there for path in repository.iterdir() if path.is_dir()]


def look(folder: Path) -> ModelFolder:
    """Return what there is in the folder of a model.

    Raises:
        ConfigError: it cannot be read.
    """
    versions = dict(sorted(_versions(folder)))
    files = {path: frozenset(_files(path)) for path in (*_entries(folder), *versions.values())}
    known = {*versions.values(), *(folder / name for name in _CONFIGS)}
    nothing: frozenset[_File] = frozenset()
    stamp = Stamp(
        nothing.union(*(files.get(folder / name, nothing) for name in _CONFIGS)),
        {version: files[path] for version, path in versions.items()},
        nothing.union(*(there for path, there in files.items() if path not in known)),
    )
    return ModelFolder(folder.name, folder, versions, stamp)


def _versions(folder: Path) -> Iterable[tuple[int, Path]]:
    for path in _folders(folder):
        name = path.name
        if name in _NO_VERSIONS:
            continue
        if not (name.isascii() and name.isdigit()):
            _LOGGER.warning(
                "ignore version directory '%s' which fails to convert to integral number", name
            )
        elif name.startswith("0") and len(name) > 1:
            _LOGGER.warning(
                "ignore version directory '%s' which contains leading zeros in its directory name",
                name,
            )
        else:
            yield int(name), path


def _folders(path: Path) -> list[Path]:
    return [entry for entry in _entries(path) if entry.is_dir()]


def _entries(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError as error:
        raise ConfigError(f"failed to open directory {path}: {error.strerror}") from error


def _files(path: Path) -> Iterator[_File]:
    """Yield a file, or all files below a folder; nothing for a path that has vanished."""
    if path.name == _BYTECODE:
        return
    with contextlib.suppress(OSError):  # it went away meanwhile
        if path.is_dir():
            for entry in path.iterdir():
                yield from _files(entry)
        else:
            stat = path.stat()
            yield str(path), stat.st_mtime_ns, stat.st_size
