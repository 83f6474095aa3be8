"""Layers of a configuration: a file, its profiles, the environment, `--set`; later ones win."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec

from pipeline.config import registry
from pipeline.config.fields import Setting, found, settings_of
from pipeline.config.yaml import (
    MAX_DEPTH,
    ConfigSource,
    Expressions,
    KeyPath,
    Text,
    is_text,
    read_yaml,
    value_of,
)
from pipeline.errors import ConfigError

PREFIX = "PIPELINE__"
"""Prefix of environment variables that set keys: PIPELINE__OP__bow__concurrency."""

PROFILE = "PIPELINE_PROFILE"
"""The environment variable that names profiles, with commas between them."""

SET = "--set"
_BETWEEN = "__"
_PART = re.compile(r'"([^"]+)"|([^."]+)')
_PROFILE_NAME = re.compile(r"[\w-]+")


class Layers(msgspec.Struct, frozen=True, kw_only=True):
    """Profiles and values that override a configuration.

    Attributes:
        environ: the environment, for keys, profiles and expressions.
        profiles: names of profiles; they replace the environment's.
        settings: settings as in `--set`: `op.bow.concurrency=4`.
    """

    environ: Mapping[str, str] = {}
    profiles: tuple[str, ...] | None = None
    settings: tuple[str, ...] = ()


NO_LAYERS = Layers()


class _Setting(msgspec.Struct, frozen=True):
    """One value from outside of files: the parts of its key, its text, and its origin."""

    parts: tuple[str, ...]
    text: str
    origin: str


_here: list[Layers] = []


def layers_here() -> Layers:
    """Return the layers of this process: its environment, and those of `use`."""
    return _here[-1] if _here else Layers(environ=os.environ)


def use(profiles: Sequence[str] | None, settings: Sequence[str]) -> None:
    """Set the layers of all servers of this process."""
    named = None if profiles is None else tuple(profiles)
    _here[:] = [Layers(environ=os.environ, profiles=named, settings=tuple(settings))]


def read_layers(
    root: type[msgspec.Struct],
    yml_file: str | os.PathLike[str] | None,
    yml_dict: object,
    layers: Layers,
) -> tuple[ConfigSource, tuple[KeyPath, ...]]:
    """Return a configuration with its layers, and the keys that came from outside of files.

    Only files have expressions and profiles: a program that gives a dict can read the environment
    itself. `root` has the known keys. Raises ConfigError.
    """
    if yml_file is not None and yml_dict is not None:
        raise ConfigError("yml_file and yml_dict are both given; give one of them")
    if yml_file is None and yml_dict is None:
        raise ConfigError("no configuration: give yml_file or yml_dict")
    profiles, named_by = _profiles(layers)
    if yml_file is not None:
        source = reduce(merged, _files(yml_file, profiles, named_by, layers.environ))
    else:
        unused = f"{named_by}: the configuration is not a file, so it has no profiles"
        source = ConfigSource("yml_dict", yml_dict, warnings=(unused,) if profiles else ())
    given: list[KeyPath] = []
    for setting in (*_in_environment(layers.environ), *map(_flag, layers.settings)):
        if not is_text(setting.text):
            raise ConfigError(f"{setting.origin}: no text in UTF-8")
        if len(setting.parts) > MAX_DEPTH:  # as files have it
            raise ConfigError(f"{setting.origin}: nested deeper than {MAX_DEPTH} levels")
        path = _spelt(root, setting.parts, source.data)
        value, problems = value_of(setting.text, setting.origin)
        source = merged(source, _source_of(path, value, setting, problems))
        given += _leaves(path, value)
    return source, tuple(given)


def merged(base: ConfigSource, over: ConfigSource) -> ConfigSource:
    """Return a Source with merged mappings; `over` takes precedence for other values."""
    if not isinstance(over.data, Mapping | None):
        raise ConfigError(f"{over.name}: expected a mapping (key: value), found {found(over.data)}")
    if not isinstance(base.data, Mapping | None):
        return base  # the reader of the values reports the error
    merging = _Merging(base, over)
    data = merging.mappings(base.data or {}, over.data or {}, ())
    return msgspec.structs.replace(
        base,
        data=data,
        lines={},
        problems=(*base.problems, *over.problems),
        warnings=(*base.warnings, *over.warnings),
        origins=merging.origins,
        texts=merging.texts,
        secrets=frozenset(merging.secrets),
    )


def without(source: ConfigSource, paths: Collection[KeyPath]) -> ConfigSource:
    """Return a Source without the values at these paths."""
    return msgspec.structs.replace(source, data=_left(source.data, (), frozenset(paths)))


def _left(value: object, path: KeyPath, gone: frozenset[KeyPath]) -> object:
    if not isinstance(value, Mapping):
        return value
    inner = {key: (*path, key) for key in value if (*path, key) not in gone}
    return {key: _left(value[key], here, gone) for key, here in inner.items()}


class _Merging:
    """Merges two Sources, and what is known about their values."""

    def __init__(self, base: ConfigSource, over: ConfigSource) -> None:
        self.origins = _origins(base)
        self.texts = dict(base.texts)
        self.secrets = set(base.secrets)
        self._over, self._from = over, _origins(over)

    def mappings(
        self, mine: Mapping[Any, Any], theirs: Mapping[Any, Any], path: KeyPath
    ) -> dict[Any, Any]:
        both = dict(mine)
        for key, value in theirs.items():
            here, known = (*path, key), mine.get(key)
            if isinstance(value, Mapping) and isinstance(known, Mapping):
                both[key] = self.mappings(known, value, here)
            else:
                both[key] = value
                self._replace(here)
        return both

    def _replace(self, path: KeyPath) -> None:
        """Forget what was known about the value at `path` and the values in it."""
        over = self._over
        self.texts = {**_not_below(self.texts, path), **_below(over.texts, path)}
        self.secrets = set(_not_below(dict.fromkeys(self.secrets), path))
        self.secrets |= set(_below(dict.fromkeys(over.secrets), path))
        self.origins = {
            **_not_below(self.origins, path),
            **_below(self._from, path),
            path: self._over.origin(path),
        }


def _origins(source: ConfigSource) -> dict[KeyPath, str]:
    return {path: source.origin(path) for path in (*source.lines, *source.origins)}


def _below(known: Mapping[KeyPath, Any], path: KeyPath) -> dict[KeyPath, Any]:
    return {place: value for place, value in known.items() if place[: len(path)] == path}


def _not_below(known: Mapping[KeyPath, Any], path: KeyPath) -> dict[KeyPath, Any]:
    return {place: value for place, value in known.items() if place[: len(path)] != path}


# Files ----------------------------------------------------------------------------------------


def _profiles(layers: Layers) -> tuple[tuple[str, ...], str]:
    """Return the names of the profiles, and where they were given."""
    if layers.profiles is not None:
        profiles, named_by = layers.profiles, "--profile"
    else:
        words = layers.environ.get(PROFILE, "").split(",")
        profiles, named_by = tuple(word.strip() for word in words if word.strip()), PROFILE
    for name in profiles:
        if not _PROFILE_NAME.fullmatch(name):
            raise ConfigError(f"{named_by}: {name!r} cannot be a profile: letters, digits, _ and -")
    return profiles, named_by


def _files(
    file: str | os.PathLike[str],
    profiles: Sequence[str],
    named_by: str,
    environ: Mapping[str, str],
) -> Iterator[ConfigSource]:
    """Yield the file itself, and the profiles' files next to it: config.prod.yml."""
    expressions = Expressions(environ, Path(file).parent)
    yield read_yaml(file, expressions)
    for name in profiles:
        try:
            yield read_yaml(profile_file(Path(file), name), expressions)
        except ConfigError as error:
            raise ConfigError(f"{named_by}={name}: {error}") from error


def profile_file(file: Path, profile: str) -> Path:
    """Return the file of a profile: config.prod.yml next to config.yml."""
    return file.with_name(f"{file.stem}.{profile}{file.suffix}")


# Outside of files ------------------------------------------------------------------------------


def _in_environment(environ: Mapping[str, str]) -> Iterator[_Setting]:
    """Yield settings of the environment, sections before the keys in them."""
    settings = []
    for name, text in environ.items():
        if name.startswith(PREFIX):
            parts = tuple(name.removeprefix(PREFIX).split(_BETWEEN))
            if not all(parts):
                raise ConfigError(
                    f"environment variable {name}: expected {PREFIX}KEY, or {PREFIX}SECTION__KEY"
                )
            settings.append(_Setting(parts, text, f"environment variable {name}"))
    yield from sorted(settings, key=lambda setting: (len(setting.parts), setting.parts))


def _flag(setting: str) -> _Setting:
    """Return the setting of `op.bow.concurrency=4`; a part with dots is in double quotes."""
    key, has_value, text = setting.partition("=")
    parts = [quoted or plain for quoted, plain in _PART.findall(key)]
    if not has_value or _PART.sub("", key) != "." * (len(parts) - 1) or not parts:
        raise ConfigError(f"{SET} {setting}: expected key=value, such as op.bow.concurrency=4")
    return _Setting(tuple(parts), text, SET)


def _source_of(
    path: KeyPath, value: object, setting: _Setting, problems: tuple[str, ...]
) -> ConfigSource:
    data: Any = value
    for key in reversed(path):
        data = {key: data}
    above = {path[:length]: setting.origin for length in range(1, len(path) + 1)}
    texts = {path: Text(setting.text)}
    return ConfigSource(setting.origin, data, problems=problems, origins=above, texts=texts)


def _leaves(path: KeyPath, value: object) -> Iterator[KeyPath]:
    """Yield the keys of values that are not mappings."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves((*path, key), inner)
    else:
        yield path


def _spelt(root: type[msgspec.Struct], parts: Sequence[str], data: object) -> KeyPath:
    """Return a key in the spelling of files: known keys from any case, names as in `data`."""
    path: list[str] = []
    struct: type[msgspec.Struct] | None = root
    setting: Setting | None = None  # of a mapping by names, whose name comes next
    for part in parts:
        if setting is not None:
            word = _name_in(data, part, setting)
            struct, setting = _struct_of(setting, word), None
        elif struct is not None:
            word, known = _key_in(struct, part)
            is_named = known is not None and (known.many or known.chosen is not None)
            setting = known if is_named else None
            struct = None if known is None or is_named or known.listed else known.section
        else:
            word = part
        path.append(word)
        data = data.get(word) if isinstance(data, Mapping) else None
    return tuple(path)


def _key_in(struct: type[msgspec.Struct], word: str) -> tuple[str, Setting | None]:
    settings = settings_of(struct)
    for spelt in (word, word.lower()):
        if spelt in settings:
            return spelt, settings[spelt]
    return (word.lower() if word.isupper() else word), None  # of a plug-in, or unknown


def _name_in(data: object, word: str, setting: Setting) -> str:
    """Return the name of a mapping's member, which may have another case there."""
    names = [name for name in data if isinstance(name, str)] if isinstance(data, Mapping) else []
    alike = [name for name in names if name.lower() == word.lower()]
    if not alike and setting.chosen is not None:
        return registry.known_as(setting.chosen.kind, word) or word
    return word if word in names or len(alike) != 1 else alike[0]


def _struct_of(setting: Setting, name: str) -> type[msgspec.Struct] | None:
    """Return the Struct of the member `name` of a mapping by names."""
    if setting.chosen is None:
        return setting.section
    try:
        return registry.options_of(setting.chosen.kind, name)
    except ConfigError:  # what reads the values says so
        return None
