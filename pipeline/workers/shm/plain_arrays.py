"""Small arrays, which most models are fed and answer, on their way without a pickle."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from pipeline.workers.shm.pickling import NAMED_BY_TEXT

PlainArray = tuple[str | None, str, tuple[int, ...], bytes]
"""(name, None: it is the payload; dtype as `dtype.str`; shape; data in C order)"""

_MOST = 32  # arrays of one payload
_DTYPES = 256  # that are remembered; texts have many


def plain_arrays(payload: Any, threshold: int) -> list[PlainArray] | None:
    """Return the arrays of a payload that is one, or a dict of some.

    None: it is something else, or one of them has `threshold` bytes or more.
    """
    if type(payload) is np.ndarray:
        plain = _plain(None, payload, threshold)
        return None if plain is None else [plain]
    if type(payload) is not dict or not 0 < len(payload) <= _MOST:
        return None
    found = []
    for name, array in payload.items():
        if type(array) is not np.ndarray or type(name) is not str:
            return None
        plain = _plain(name, array, threshold)
        if plain is None:
            return None
        found.append(plain)
    return found


def _plain(name: str | None, array: np.ndarray[Any, Any], threshold: int) -> PlainArray | None:
    dtype = array.dtype
    if array.nbytes >= threshold or dtype.char not in NAMED_BY_TEXT or not dtype.itemsize:
        return None
    if not array.flags.c_contiguous:
        return None
    return name, dtype.str, array.shape, array.tobytes()


def payload_of_arrays(arrays: list[PlainArray], copy: bool) -> Any:
    """Return the payload. ValueError: there are no such arrays; TypeError: too few bytes.

    Args:
        copy: whether arrays may be written to.
    """
    name, kind, shape, data = arrays[0]
    if name is None:
        array: np.ndarray[Any, Any] = np.ndarray(shape, _dtype(kind), data)
        return array.copy() if copy else array
    if copy:
        return {
            name: np.ndarray(shape, _dtype(kind), data).copy() for name, kind, shape, data in arrays
        }
    return {name: np.ndarray(shape, _dtype(kind), data) for name, kind, shape, data in arrays}


@functools.lru_cache(_DTYPES)
def _dtype(text: str) -> np.dtype[Any]:
    """Return the dtype of this name; no other than `plain_arrays` tells."""
    dtype: np.dtype[Any] = np.dtype(text)
    if dtype.str != text or dtype.char not in NAMED_BY_TEXT:
        raise ValueError(f"an array of {text!r} cannot be built on memory")
    return dtype
