"""Python's lists as arrays: text stays `str`, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_MOST_AXES = 64  # of an array

_MOST_PADDED_BYTES = 2**20
_TEXT = (str, bytes)
_LIST = (list, tuple)


def as_array(value: Any) -> npt.NDArray[Any]:
    """Return numpy's array of nested lists or of another value; an array of objects if it has text.

    numpy itself would pad every text to the longest one, and turn numbers among texts into text.
    Raises ValueError: the lists have different lengths.
    """
    return np.asarray(value, object if has_text(value) else None)


def has_text(value: Any, axes: int = _MOST_AXES) -> bool:
    """Return whether nested lists, or arrays in them, have text."""
    if not isinstance(value, _LIST):
        return isinstance(value, _TEXT)
    kinds = set(map(type, value))
    if any(issubclass(kind, _TEXT) for kind in kinds):
        return True
    if any(issubclass(kind, np.ndarray) for kind in kinds) and any(map(_is_text_array, value)):
        return True
    is_nested = axes > 0 and any(issubclass(kind, _LIST) for kind in kinds)
    return is_nested and any(has_text(item, axes - 1) for item in value)


def _is_text_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "US"


def concatenated(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Join arrays along axis 0; the result is of objects where padded text would be large."""
    if arrays[0].dtype.kind in "US":
        widest = max(array.itemsize for array in arrays)
        padded = widest * sum(array.size for array in arrays)
        if padded > max(_MOST_PADDED_BYTES, 2 * sum(array.nbytes for array in arrays)):
            arrays = [array.astype(object) for array in arrays]
    return np.concatenate(arrays)
