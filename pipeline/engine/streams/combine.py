"""One answer made of the parts of a stream, for callers that take only one; and what they weigh."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from pipeline.engine.payload import Payload

_PART_BYTES = 256  # of a part beside what is in it
_LOOKED_AT = 64  # of the values of a long list, whose size is guessed by them
_DEEPEST = 4  # so far down is looked


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


class StreamLimits(msgspec.Struct, frozen=True):
    """Most that is kept of a request's streams, for who takes all at once."""

    parts: int
    bytes: int


class Kept(msgspec.Struct):
    """Counts the parts that are kept, and their bytes."""

    parts: int = 0
    bytes: int = 0

    def add(self, part: Any, limits: StreamLimits) -> str:
        """Count one more; return what they are too many for, "" if they are not."""
        self.parts += 1
        self.bytes += size_of(part)
        if self.parts > limits.parts:
            return f"more than dag.max_parts ({limits.parts})"
        if self.bytes > limits.bytes:
            return f"larger than max_message_bytes ({limits.bytes} bytes) in all"
        return ""


def size_of(part: Any) -> int:
    """Return about how many bytes a part has, a Payload or what is in one."""
    return _PART_BYTES + (part.byte_size if isinstance(part, Payload) else _size(part, _DEEPEST))


def _size(value: Any, deepest: int) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if deepest and isinstance(value, dict):
        return _size_of_all(value.values(), deepest - 1)
    if deepest and isinstance(value, list | tuple):
        return _size_of_all(value, deepest - 1)
    return 8


def _size_of_all(values: Collection[Any], deepest: int) -> int:
    """Return the size of all by that of the first ones."""
    seen = [_size(value, deepest) + 8 for value in islice(values, _LOOKED_AT)]
    return sum(seen) * len(values) // len(seen) if seen else 0
