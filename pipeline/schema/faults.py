"""Faults: errors of a value that does not fit its schema, with path, found and expected type."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import inspect

from pipeline.errors import (
    PackageError,
    PipelineError,
    UserCodeError,
    described,
    one_line,
    printable,
)
from pipeline.schema.kinds import alternatives, at, found_name, name_of, of_object

_LOGGER = logging.getLogger(__name__)

Step = str | int
Again = Callable[[Any], str]
"""Returns msgspec's error for a value; "" if it fits."""

INNER = "\x00"
"""Separates, in the text of an error, the path within the value from the message."""

_PLACE = re.compile(r"^(?P<said>.*?) - at `(?:(?P<key>key)` in `)?(?P<path>\$.*)`$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_ANY_KEY = "..."  # msgspec's text for any key of a dict
_LIMIT = re.compile(r"^Expected `\w+` (?P<limit>[^,]*)$")
_LENGTH = re.compile(r"^Expected `\w+` (?P<limit>.*), got (?P<found>\d+)$")
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$")
_TYPES = re.compile(r"^Expected `(?P<expected>.*?)`, got `(?P<found>.*)`$")
_MOST_KEYS = 20  # of an object that an error names


def fault(text: str, value: Any, kind: inspect.Type, again: Again) -> str:
    """Return msgspec's error in this library's words: `inputs[3].x: expected int, found str`.

    `again` checks the value with fewer keys in a dict, to find the wrong key.
    """
    reason, _, rest = text.partition(INNER)
    inner, behind, rest = rest.partition(" - at ")
    place = _PLACE.match(reason + behind + rest)
    reason = place["said"] if place else reason
    steps = _keys_found(_steps(place["path"]), text, value, again) if place else []
    for step in steps:
        value = _step_into(value, step)
    expected = _type_at(kind, steps)
    if inner:
        within = _steps("$" + inner)
        for step in within:
            value = _step_into(value, step)
        return f"{path_of([*steps, *within])}: {_types(reason, value)}"
    missing, unknown = _MISSING.match(reason), _UNKNOWN.match(reason)
    if missing or unknown:
        name = (missing or unknown)["name"]  # type: ignore[index]  # one of them matches
        where = path_of([*steps, name])
        if missing:
            return f"{where}: expected {name_of(at(expected, name))}, found nothing"
        there = found_name(_step_into(value, name))
        return f"{where}: found {there}, expected no such key: {_keys_of(expected)}"
    where = path_of(steps)
    if place and place["key"]:
        return f"{where}: a key: {_types(reason, None)}"
    return f"{where}: {_described(reason, value, expected)}"


def _described(reason: str, value: Any, kind: inspect.Type | None) -> str:
    length, limit = _LENGTH.match(reason), _LIMIT.match(reason)
    if _TYPES.match(reason):
        return _types(reason, value)
    if length:
        return f"expected {name_of(kind)} {length['limit']}, found length {length['found']}"
    if limit:
        return f"expected {name_of(kind)} {limit['limit']}, found {found_name(value)}"
    more = "" if reason.startswith(("Invalid enum", "Expected")) else f": {one_line(reason)}"
    return f"expected {name_of(kind)}, found {found_name(value)}{more}"


def _types(reason: str, value: Any) -> str:
    types = _TYPES.match(reason)
    if types is None:
        return printable(one_line(reason))
    shown = found_name(value)
    is_told = shown.split(" ")[0] == types["found"]
    return f"expected {types['expected']}, found {shown if is_told else types['found']}"


def path_of(steps: Sequence[Step]) -> str:
    """Return a path for an error: `inputs[3].x`, or `(all)` for the whole value."""
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step == _ANY_KEY:
            text += "[...]"
        elif step.isidentifier():
            text += f".{step}" if text else step
        else:
            text += f"[{json.dumps(step[: _MOST_KEYS * 3])}]"
    return text or "(all)"


def _steps(path: str) -> list[Step]:
    return [
        name or (place if place == _ANY_KEY else int(place))
        for name, place in _STEP.findall(path[1:])
    ]


def _step_into(value: Any, step: Step) -> Any:
    """Return the value at a key or index; None if it does not exist."""
    try:
        return value[step]
    except (LookupError, TypeError, AttributeError):
        if isinstance(value, set | frozenset) and isinstance(step, int):
            return next((one for place, one in enumerate(value) if place == step), None)
        return None


def _type_at(kind: inspect.Type | None, steps: Sequence[Step]) -> inspect.Type | None:
    for step in steps:
        kind = at(kind, step)
    return kind


def _keys_of(kind: inspect.Type | None) -> str:
    fields = [field for one in alternatives(kind) for field in of_object(one)] if kind else []
    names = [field.encode_name for field in fields[:_MOST_KEYS]]
    return f"the keys are {', '.join(names)}" if names else "there are no keys"


def failed(name: str, error: Exception) -> PipelineError:
    """Return the error of a schema's own code, or of a value that is nested too deeply."""
    if isinstance(error, RecursionError):
        return PackageError(f"a value is nested too deeply for schema {name}")
    _LOGGER.error("schema %s failed", name, exc_info=error)
    return UserCodeError(f"schema {name} raised {described(error)}")


# A dict's keys ------------------------------------------------------------------------------------


def _keys_found(steps: list[Step], text: str, value: Any, again: Again) -> list[Step]:
    """Return the path with the wrong keys filled in where msgspec does not name them."""
    for place, step in enumerate(steps):
        if step != _ANY_KEY:
            continue
        inner = value
        for before in steps[:place]:
            inner = _step_into(inner, before)
        if not isinstance(inner, Mapping):
            break
        keys = _halved(list(inner), text, _asking(again, value, steps[:place]), inner)
        steps = [*steps[:place], *keys, *steps[place + 1 :]]
        value = _with(value, steps[:place], {key: inner[key] for key in keys})
    return steps


def _asking(again: Again, value: Any, steps: Sequence[Step]) -> Again:
    return lambda part: again(_with(value, steps, part))


def _halved(keys: list[Any], text: str, again: Again, mapping: Mapping[Any, Any]) -> list[Any]:
    """Return the key whose value is refused, by bisection."""
    while len(keys) > 1:
        half = keys[: len(keys) // 2]
        is_there = again({key: mapping[key] for key in half}) == text
        keys = half if is_there else keys[len(half) :]
    return keys


def _with(value: Any, steps: Sequence[Step], part: Any) -> Any:
    """Return a value with another part at a path; the rest is not copied deeply."""
    if not steps:
        return part
    step, rest = steps[0], steps[1:]
    changed = _with(_step_into(value, step), rest, part)
    if isinstance(value, Mapping):
        return {**value, step: changed}
    items = list(value)
    items[int(step)] = changed
    return items
