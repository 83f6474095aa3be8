"""Combines the parts of a stream into one answer, and computes their sizes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any, cast

import msgspec
import numpy as np

from pipeline.engine.run.payload import Payload
from pipeline.proto.lists import concatenated

_PART_BYTES = 256  # of a part, in addition to its content
_MOST_QUICK = 64  # values of a part that are counted one by one
_DEEPEST = 6  # levels of nesting that are counted
_MOST_AT_ONCE = 1_000_000  # values of a level that are counted: one list may appear in many places
_NUMBERS = frozenset({int, float, bool, type(None)})
_TEXT = (str, bytes, bytearray)
_TEXTS = frozenset(_TEXT)
_ARRAY = (np.ndarray, np.generic, memoryview)
_LISTS = frozenset({list, tuple})
_DICTS = frozenset({dict})
_PLAIN = _NUMBERS | _TEXTS | _LISTS | _DICTS
_HOLDER = (dict, list, tuple, np.ndarray)


def combined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one dict with the keys of all parts.

    Text, bytes and lists are appended; arrays are concatenated along axis 0, arrays without axes
    stacked. For other values, and if parts do not fit together, the last one counts.
    """
    names = parts[0].keys() if parts else ()
    if all(part.keys() == names for part in parts):  # the common case
        return {name: _joined([part[name] for part in parts]) for name in names}
    values: dict[str, list[Any]] = {}
    for part in parts:
        for name, value in part.items():
            values.setdefault(name, []).append(value)
    return {name: _joined(parts) for name, parts in values.items()}


def _joined(values: list[Any]) -> Any:
    first = values[0]
    if len(values) == 1:
        return first
    if isinstance(first, str):
        try:
            return "".join(values)
        except TypeError:  # some are not text
            return values[-1]
    if isinstance(first, bytes | bytearray) and _are(values, bytes | bytearray):
        return b"".join(values)
    if isinstance(first, list) and _are(values, list):
        return [element for value in values for element in value]
    if isinstance(first, np.ndarray | np.generic) and _fit(values):
        return concatenated([np.atleast_1d(value) for value in values])
    return values[-1]


def _are(values: Sequence[Any], kind: Any) -> bool:
    return all(isinstance(value, kind) for value in values)


def _fit(values: Sequence[Any]) -> bool:
    if not _are(values, np.ndarray | np.generic):
        return False
    return len({np.atleast_1d(value).shape[1:] for value in values}) == 1


class StreamLimits(msgspec.Struct, frozen=True):
    """Limits of the parts of a request that are kept until all have come."""

    parts: int
    bytes: int


class PartCounter(msgspec.Struct):
    """Counts the kept parts and their bytes."""

    parts: int = 0
    bytes: int = 0

    def add(self, part: Any, limits: StreamLimits) -> str:
        """Count a part; return the exceeded limit as text, "" if there is none."""
        return self.add_all(1, size_of(part), limits)

    def add_all(self, parts: int, size: int, limits: StreamLimits) -> str:
        """Count so many parts, of so many bytes; return the same."""
        self.parts += parts
        self.bytes += size
        if self.parts > limits.parts:
            return f"more than dag.max_parts ({limits.parts})"
        if self.bytes > limits.bytes:
            return f"larger than max_message_bytes ({limits.bytes} bytes) in all"
        return ""


def size_of(part: Any) -> int:
    """Return about how many bytes a part has; it may be a Payload, or contain one."""
    if type(part) is dict and len(part) < _MOST_QUICK:  # text and arrays are the common case
        size = _PART_BYTES + 8
        for value in part.values():
            kind = type(value)
            if kind is str or kind is bytes:
                size += len(value) + 8
            elif kind is np.ndarray and not value.dtype.hasobject:
                size += value.nbytes + 8
            else:
                return _PART_BYTES + _held(part)
        return size
    return _PART_BYTES + (part.byte_size if isinstance(part, Payload) else _held(part))


def _held(value: Any) -> int:
    """Return the bytes of all texts and arrays in a value, and 8 for each other value.

    Goes level by level, so that C loops over the lists.
    """
    bytes_held, level = 0, [value]
    for _ in range(_DEEPEST):
        bytes_held += 8 * len(level)
        kinds = set(map(type, level))
        if kinds <= _NUMBERS:
            break
        if kinds <= _TEXTS:
            return bytes_held + sum(map(len, level))
        inner = level
        if kinds <= _DICTS:
            inner = list(map(dict.values, level))
        elif not kinds <= _LISTS:
            bytes_held += sum(map(len, [text for text in level if isinstance(text, _TEXT)]))
            if not kinds <= _PLAIN:
                bytes_held += sum(array.nbytes for array in level if isinstance(array, _ARRAY))
            inner = [_values_of(holder) for holder in level if isinstance(holder, _HOLDER)]
        size = sum(map(len, inner))
        if size > _MOST_AT_ONCE:
            return bytes_held + 8 * size
        level = list(chain.from_iterable(inner))
    return bytes_held


def _values_of(holder: Any) -> Collection[Any]:
    """Return the content of a list, dict or array of objects."""
    if isinstance(holder, dict):
        return holder.values()
    if isinstance(holder, np.ndarray):
        return holder.ravel().tolist() if holder.dtype.hasobject else ()
    return cast("Collection[Any]", holder)
