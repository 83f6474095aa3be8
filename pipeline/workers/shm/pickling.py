"""pickle as payloads need it: arrays in a way of our own, and dill for what pickle refuses."""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
import types
from collections import ChainMap
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

PROTOCOL = 5
Order = Literal["C", "F"]

# The array types that `dtype.str` tells all about, and that are quicker so: numbers, times, texts.
_NAMED_BY_TEXT = frozenset("?bhilqBHILQefdgFDGmMSU")


def told(dtype: np.dtype[Any]) -> Any:
    """Return what `np.dtype` cheaply makes `dtype` of again; None: only numpy can pickle it."""
    if not dtype.itemsize:
        return None
    if dtype.char in _NAMED_BY_TEXT:
        return dtype.str
    return dtype if dtype.kind == "V" and not dtype.hasobject else None


def _reduced(array: np.ndarray[Any, Any]) -> tuple[Any, ...] | str:
    """Return how an array is pickled that was not taken out.

    numpy's own way keeps those that are not contiguous in the stream, makes their byte order the
    machine's, and builds some that cannot be written to.
    """
    dtype = told(array.dtype)
    if dtype is None:
        return array.__reduce_ex__(PROTOCOL)
    order: Order = "F" if array.flags.fnc else "C"
    if not (array.flags.forc and array.flags.writeable):
        array = array.copy(order)
    raw = array.reshape(-1, order=order).view(np.uint8).data
    return _built, (array.shape, dtype, pickle.PickleBuffer(raw), order)


def _built(shape: tuple[int, ...], dtype: Any, raw: Any, order: Order) -> np.ndarray[Any, Any]:
    """Return the array of `_reduced`, right on `raw`, which is its own."""
    return array_on(raw, dtype, shape, order)


def array_on(raw: Any, dtype: Any, shape: tuple[int, ...], order: str) -> np.ndarray[Any, Any]:
    """Return an array on another process's memory; objects there would be addresses."""
    if (kind := np.dtype(dtype)).hasobject:
        raise pickle.UnpicklingError(f"an array of {kind} cannot be built on memory")
    return np.ndarray(shape, kind, raw, 0, None, order)  # type: ignore[arg-type]  # "C" or "F"


_TABLE = ChainMap[Any, Any]({np.ndarray: _reduced}, copyreg.dispatch_table)


def dumps(content: Any, stays: Callable[[pickle.PickleBuffer], bool]) -> bytes:
    """Pickle `content`; `stays` says of each buffer in it whether it stays in the stream."""
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, PROTOCOL, buffer_callback=stays)
    pickler.dispatch_table = _TABLE
    pickler.dump(content)
    return stream.getvalue()


def is_picklable(value: Any) -> bool:
    """Return whether pickle takes `value`."""
    try:
        pickle.dumps(value, PROTOCOL, buffer_callback=lambda buffer: None)
    except Exception:  # whatever it is, dill will meet it too and tell the user
        return False
    return True


class _Dilled:
    """Stands in a pickle for something that dill has pickled."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return _undilled, (self._data,)


def dilled(value: Any) -> _Dilled:
    """Return what pickle takes for `value`, and unpickles to it. Raises what dill raises."""
    import dill

    class Pickler(dill.Pickler):  # type: ignore[misc]  # no type information
        """dill, but by name what a name leads to: the other process has the same modules.

        dill alone would send classes and functions of `__main__` by value, and what arrives would
        be no instance of the class that the receiver knows.
        """

        def reducer_override(self, obj: Any) -> Any:
            return obj.__qualname__ if _has_a_name(obj) else NotImplemented

    stream = io.BytesIO()
    Pickler(stream, PROTOCOL).dump(value)
    return _Dilled(stream.getvalue())


def _undilled(data: bytes) -> Any:
    import dill

    return dill.loads(data)


def _has_a_name(thing: Any) -> bool:
    """Return whether `thing` is a class or function that its module has under its name."""
    if not isinstance(thing, type | types.FunctionType):
        return False
    found: Any = sys.modules.get(thing.__module__)
    for name in thing.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is thing
