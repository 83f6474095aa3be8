"""One answer made of the parts of a stream, for callers that take only one. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def combined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one dict with the keys of all parts.

    Text and bytes are appended, as lists are; arrays are concatenated along axis 0, those without
    axes stacked; of anything else, and where parts do not fit together, the last one counts.
    """
    values: dict[str, list[Any]] = {}
    for part in parts:
        for name, value in part.items():
            values.setdefault(name, []).append(value)
    return {name: _joined(found) for name, found in values.items()}


def _joined(values: list[Any]) -> Any:
    first = values[0]
    if len(values) == 1:
        return first
    if isinstance(first, str) and _are(values, str):
        return "".join(values)
    if isinstance(first, bytes | bytearray) and _are(values, bytes | bytearray):
        return b"".join(values)
    if isinstance(first, list) and _are(values, list):
        return [element for value in values for element in value]
    if isinstance(first, np.ndarray | np.generic) and _fit(values):
        return np.concatenate([np.atleast_1d(value) for value in values])
    return values[-1]


def _are(values: Sequence[Any], kind: Any) -> bool:
    return all(isinstance(value, kind) for value in values)


def _fit(values: Sequence[Any]) -> bool:
    if not _are(values, np.ndarray | np.generic):
        return False
    return len({np.atleast_1d(value).shape[1:] for value in values}) == 1


def size_of(part: Any) -> int:
    """Return about how many bytes a part has."""
    if not isinstance(part, dict):
        return 0
    return sum(_size(value) for value in part.values()) + 64


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, list | tuple):
        return sum(map(_size, value)) + 8 * len(value)
    return 8
