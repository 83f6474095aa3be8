"""Rows of a configuration: every key, its value, and where the value came from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from typing import Any

import msgspec

from pipeline.config import registry
from pipeline.config.fields import Setting, settings_of
from pipeline.config.reader import as_meant
from pipeline.config.sections import default_host
from pipeline.config.yaml import ConfigSource, KeyPath
from pipeline.errors import ConfigError

DEFAULT = "default"
MASK = "***"
"""Replaces secret values."""


class ConfigRow(msgspec.Struct, frozen=True):
    """One key. A section has the value None, and its keys have rows after it."""

    path: KeyPath
    value: object
    origin: str
    is_section: bool = False

    @property
    def is_default(self) -> bool:
        return self.origin == DEFAULT


def rows_of(source: ConfigSource, root: type[msgspec.Struct]) -> Iterator[ConfigRow]:
    """Yield a row for each key of a configuration, also for keys that the file lacks."""
    yield from _of_struct(source, root, source.data, ())


def without_defaults(rows: Iterator[ConfigRow]) -> list[ConfigRow]:
    """Return the rows with given values, and the sections of these rows."""
    listed = list(rows)
    paths = {row.path for row in listed if not row.is_default and not row.is_section}
    above = {path[:length] for path in paths for length in range(1, len(path))}
    return [row for row in listed if row.path in paths or row.path in above]


def _of_struct(
    source: ConfigSource, struct: type[msgspec.Struct], data: object, path: KeyPath
) -> Iterator[ConfigRow]:
    given: Mapping[Any, Any] = data if isinstance(data, Mapping) else {}
    settings = settings_of(struct)
    for key, setting in settings.items():
        spelt = setting.alias if setting.alias in given and key not in given else key
        yield from _of_setting(source, setting, given.get(spelt), (*path, spelt))
    for key in given:
        if key not in settings and key not in {known.alias for known in settings.values()}:
            here = (*path, key)  # of a plug-in, or unknown
            yield ConfigRow(
                here, _masked(source, given[key], here, _SECRET_KEYS), source.origin(here)
            )


def _of_setting(
    source: ConfigSource, setting: Setting, value: object, path: KeyPath
) -> Iterator[ConfigRow]:
    if setting.listed or (setting.section is None and setting.chosen is None):
        yield _leaf(source, setting, value, path)
        return
    origin = DEFAULT if value is None else source.origin(path)
    yield ConfigRow(path, None, origin, is_section=True)
    if setting.section is not None and not setting.many:
        yield from _of_struct(source, setting.section, value, path)
        return
    for name, inner in value.items() if isinstance(value, Mapping) else ():
        here = (*path, name)
        yield ConfigRow(here, None, source.origin(here), is_section=True)
        yield from _of_struct(source, _struct_of(setting, name), inner, here)


def _struct_of(setting: Setting, name: object) -> type[msgspec.Struct]:
    if setting.section is not None:
        return setting.section
    assert setting.chosen is not None
    try:
        return registry.options_of(setting.chosen.kind, str(name)) or msgspec.Struct
    except ConfigError:  # the reader of the values reports it
        return msgspec.Struct


def _leaf(source: ConfigSource, setting: Setting, value: object, path: KeyPath) -> ConfigRow:
    meant = as_meant(source, setting, value, path)
    if meant is None:
        default = default_host() if path == ("host",) else setting.default
        return ConfigRow(path, default, DEFAULT)
    if setting.is_secret and meant:
        return ConfigRow(path, MASK, source.origin(path))
    inner = settings_of(setting.section) if setting.section is not None else {}
    secret = _SECRET_KEYS | {key for key, field in inner.items() if field.is_secret}
    return ConfigRow(path, _masked(source, meant, path, secret), source.origin(path))


def _masked(source: ConfigSource, value: object, path: KeyPath, secret: Set[str]) -> object:
    """Return a value without its secrets, which its origin or its key marks."""
    if isinstance(value, Mapping):
        return {
            key: MASK if key in secret else _masked(source, inner, (*path, key), secret)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_masked(source, inner, (*path, at), secret) for at, inner in enumerate(value)]
    if source.is_secret(path) or path[-1] in _SECRET_KEYS:
        return MASK
    return _PASSWORD.sub(MASK, value) if isinstance(value, str) else value


_PASSWORD = re.compile(r"(?<=://).*(?=@)", re.DOTALL)
"""User and password in a URL; a password that is not escaped may contain any character."""

_SECRET_KEYS = frozenset(("api_key", "password", "secret", "token"))
"""Secret keys of implementations whose Struct is not here."""
