"""Trace settings of v2: changes from JSON and messages, and the shown settings.

Source: Triton's `docs/protocol/extension_trace.md` and its servers, which have these texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.config.schema import RequestTracesConfig
from pipeline.frontends.v2.errors import V2Error, V2Status, invalid

_LEVEL, _FILE = "trace_level", "trace_file"
_NUMBERS = {
    "trace_rate": ("rate", 0, 2**32 - 1),
    "trace_count": ("count", -1, 2**31 - 1),
    "log_frequency": ("log_frequency", 0, 2**32 - 1),
}
_LEVELS = ("TIMESTAMPS", "TENSORS")
_OFF = "OFF"
_NO_FILE = "trace file location can not be updated through network protocol"
_NUMBER = re.compile(r"\s*([+-]?[0-9]+)")
_INT32 = range(-(2**31), 2**31)


def shown(settings: RequestTracesConfig) -> dict[str, list[str] | str]:
    """Return all settings, by their names in the protocol."""
    numbers = {name: str(getattr(settings, field)) for name, (field, _, _) in _NUMBERS.items()}
    level: list[str] = [*settings.level] or [_OFF]
    return {_LEVEL: level, **numbers, _FILE: settings.file, "trace_mode": "triton"}


def changes_of_json(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that an object asks for: null clears a setting. Raises V2Error."""
    values: dict[str, Sequence[str]] = {}
    for name, value in members.items():
        if value is None:
            values[name] = ()
        elif name == _LEVEL:
            if not isinstance(value, list):
                raise invalid("attempt to access JSON non-array as array")
            if value:
                values[name] = [_text(item) for item in value]
        elif name in _NUMBERS:
            values[name] = [_text(value)]
        else:
            values[name] = [""]
    return changes_of(values)


def changes_of(settings: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the changes in the settings of a message: a setting without a value is cleared.

    They are by the names of RequestTracesConfig; None clears. Unknown ones are ignored. Raises
    V2Error, in Triton's words.
    """
    if _FILE in settings:
        raise V2Error(V2Status.UNSUPPORTED, _NO_FILE)
    changes: dict[str, Any] = {}
    if _LEVEL in settings:
        level = _level(settings[_LEVEL])
        if not settings[_LEVEL] or level is not None:
            changes["level"] = level
    for name, (field, least, most) in _NUMBERS.items():
        values = settings.get(name)
        if values is None:
            continue
        if len(values) > 1:
            raise invalid(f"expect only 1 value for '{name}'")
        changes[field] = _number(name, values[0], least, most) if values else None
    return changes


def _level(names: Sequence[str]) -> tuple[str, ...] | None:
    """Return the levels among names; None: no name is a level."""
    if _OFF in names:
        if len(names) > 1:
            raise invalid("Expect only one trace level 'OFF' is specified")
        return ()
    return tuple(level for level in _LEVELS if level in names) or None


def _number(name: str, text: str, least: int, most: int) -> int:
    match = _NUMBER.match(text)
    if match is None:
        raise invalid(f"Unable to parse '{name}', got: {text}")
    value = int(match[1])
    if value not in _INT32:
        bounds = f"[ {least}, {most} ]"
        raise invalid(f"Unable to parse '{name}', value is out of range {bounds}, got: {text}")
    if value < least < 0:
        raise invalid(f"Unable to parse '{name}'. Expecting value >= {least}, got: {text}")
    return value % (most + 1) if least == 0 else value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise invalid("attempt to access JSON non-string as string")
    return value
