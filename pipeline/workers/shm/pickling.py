"""Pickling between the server and its worker processes.

Arrays have our own form, and dill takes what pickle refuses. The server unpickles a worker's data
only to plain data, because a pickle may name any callable and have it called. A worker runs user
code and native libraries on clients' data; if it is taken over, its answers must not run in the
server. Workers open anything, because they run user code anyway.
"""

from __future__ import annotations

import copyreg
import ctypes
import enum
import importlib
import io
import logging
import operator
import pickle
import socket
import subprocess
import sys
import threading
import types
import zoneinfo
from collections import ChainMap
from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np

from pipeline.system.pickling import reduced_code

PROTOCOL = 5
Order = Literal["C", "F"]

# The dtypes that `dtype.str` describes completely, and faster: numbers, times, texts.
NAMED_BY_TEXT = frozenset("?bhilqBHILQefdgFDGmMSU")


def cheap_dtype(dtype: np.dtype[Any]) -> Any:
    """Return a cheap argument of `np.dtype` that makes `dtype`; None: only numpy can pickle it."""
    if not dtype.itemsize:
        return None
    if dtype.char in NAMED_BY_TEXT:
        return dtype.str
    return dtype if dtype.kind == "V" and not dtype.hasobject else None


def _reduced(array: np.ndarray[Any, Any]) -> tuple[Any, ...] | str:
    """Return how pickle stores an array that was not taken out.

    numpy's own form keeps non-contiguous arrays in the stream, changes their byte order to the
    machine's, and builds some that cannot be written to.
    """
    dtype = cheap_dtype(array.dtype)
    if dtype is None:
        return array.__reduce_ex__(PROTOCOL)
    order: Order = "F" if array.flags.fnc else "C"
    if not (array.flags.forc and array.flags.writeable):
        array = array.copy(order)
    raw = array.reshape(-1, order=order).view(np.uint8).data
    return _built, (array.shape, dtype, pickle.PickleBuffer(raw), order)


def _built(shape: tuple[int, ...], dtype: Any, raw: Any, order: Order) -> np.ndarray[Any, Any]:
    """Return the array of `_reduced`, directly on `raw`, which belongs to it."""
    return array_on(raw, dtype, shape, order)


def array_on(raw: Any, dtype: Any, shape: tuple[int, ...], order: str) -> np.ndarray[Any, Any]:
    """Return an array on another process's memory; objects there would be addresses."""
    if (kind := np.dtype(dtype)).hasobject:
        raise pickle.UnpicklingError(f"an array of {kind} cannot be built on memory")
    return np.ndarray(shape, kind, raw, 0, None, order)  # type: ignore[arg-type]  # "C" or "F"


_TABLE = ChainMap[Any, Any]({np.ndarray: _reduced}, copyreg.dispatch_table)


def dumps(content: Any, stays: Callable[[pickle.PickleBuffer], bool]) -> bytes:
    """Pickle `content`; `stays` decides for each buffer whether it stays in the stream."""
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, PROTOCOL, buffer_callback=stays)
    pickler.dispatch_table = _TABLE
    pickler.dump(content)
    return stream.getvalue()


def is_picklable(value: Any) -> bool:
    """Return whether pickle accepts `value`."""
    try:
        pickle.dumps(value, PROTOCOL, buffer_callback=lambda buffer: None)
    except Exception:  # dill will raise again, with an error for the user
        return False
    return True


class _Dilled:
    """Replaces an object in a pickle that dill has pickled."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return _undilled, (self._data,)


def dilled(value: Any) -> _Dilled:
    """Return an object that pickle accepts and that unpickles to `value`; dill may raise."""
    import dill

    class Pickler(dill.Pickler):  # type: ignore[misc]  # no type information
        """dill, but objects with a name are stored by name: the other process has the same modules.

        dill alone would store classes and functions of `__main__` by value, and the result would
        not be an instance of the class that the receiver knows.
        """

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, types.CodeType):
                return reduced_code(obj)
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
    module: Any = sys.modules.get(thing.__module__)
    for name in thing.__qualname__.split("."):
        module = getattr(module, name, None)
    return module is thing


# Pickles of other processes ---------------------------------------------------------------

# Callables that pickle needs for data of the standard library and of numpy: none of them opens,
# imports, runs or looks up anything that the sender chooses.
_DATA: dict[str, str] = {
    "array": "array _array_reconstructor",
    "builtins": "bool bytearray bytes complex dict float frozenset int list object range set slice"
    " str tuple Ellipsis NotImplemented",
    "collections": "ChainMap Counter OrderedDict UserDict UserList UserString defaultdict deque",
    "copyreg": "_reconstructor",
    "datetime": "date datetime time timedelta timezone",
    "decimal": "Decimal",
    "fractions": "Fraction",
    "ipaddress": "IPv4Address IPv4Interface IPv4Network IPv6Address IPv6Interface IPv6Network",
    "pathlib": "Path PosixPath PurePath PurePosixPath PureWindowsPath",
    "re": "_compile",
    "time": "struct_time",
    "types": "SimpleNamespace",
    "uuid": "UUID",
    "zoneinfo": "ZoneInfo",
    "numpy": "dtype matrix ndarray record recarray",
    "numpy.ma": "MaskedArray",
    "numpy.ma.core": "MaskedArray _mareconstruct",
    "numpy.rec": "record recarray",
    **{
        f"numpy.{core}.{module}": names
        for core in ("core", "_core")
        for module, names in {
            "_internal": "_convert_to_stringdtype_kwargs",
            "multiarray": "_reconstruct scalar",
            "numeric": "_frombuffer",
            "records": "record recarray",
        }.items()
    },
    "pipeline.workers.shm.pickling": "_built",
}
_MOVED = {"pathlib._local": "pathlib"}  # by Python 3.13 alone
_OURS = (
    "pipeline.dropin.names",
    "pipeline.data",
    "pipeline.errors",
    "pipeline.proto",
)
# Packages without plain data: they access the network, or run what they are given.
_TOOLS = {"dill", "grpc", "httptools", "multiprocess", "psutil", "uvicorn", "uvloop", "yaml"}
_ACTING: tuple[type, ...] = (
    type,
    io.IOBase,
    logging.Handler,
    ctypes.CDLL,
    socket.socket,
    subprocess.Popen,
    threading.Thread,
)
_allowed: set[Any] = set()
_known: dict[tuple[str, str], Any] = {}


class NotDataError(pickle.UnpicklingError):
    """A payload names something that the server does not build or call."""


def allow_in_payloads(*things: Any) -> None:
    """Let the server open answers of worker processes that contain these.

    Call it at the top of the script, before the server is prepared.

    Args:
        things: classes of the standard library or of a package, or the functions with which a
            package's classes are unpickled, as `pickletools.dis` shows them. An answer can then
                call
            them with any arguments.
    """
    _allowed.update(things)
    _known.clear()


def data_of(data: bytes, buffers: Iterable[Any] = ()) -> Any:
    """Return the result of `pickle.loads` for `data`; NotDataError: it is not plain data."""
    return _Unpickler(io.BytesIO(data), buffers=buffers).load()


anything_of: Callable[..., Any] = (
    pickle.loads
)  # for pickles of this process, or of a process that may do anything


class _Unpickler(pickle.Unpickler):
    """pickle's own, in C, with a check of the names."""

    def find_class(self, module: str, name: str, /) -> Any:
        known = _known.get((module, name))
        if known is None:
            known = _known[module, name] = _resolved(module, name)
        return known


def _resolved(module: str, name: str) -> Any:
    module = _MOVED.get(module, module)
    if (module, name) == ("builtins", "getattr"):
        return _attribute
    if name in _DATA.get(module, "").split():
        return operator.attrgetter(name)(importlib.import_module(module))
    if module not in sys.modules:
        raise _refused(module, name, f"the server has not imported {module}")
    thing = operator.attrgetter(name)(sys.modules[module])
    if (why := _objection(thing)) and not _is_allowed(thing):
        raise _refused(module, name, why)
    return thing


def _attribute(owner: Any, name: str, /) -> Any:
    """Replace `getattr` for the only use in plain data: a time zone's constructor."""
    if owner is zoneinfo.ZoneInfo and name == "_unpickle":
        return owner._unpickle  # type: ignore[attr-defined]  # it is there for pickle
    raise _refused("builtins", "getattr", "it leads to anything")


def _is_allowed(thing: Any) -> bool:
    try:
        return thing in _allowed
    except TypeError:  # it has no hash
        return False


def _objection(thing: Any) -> str:
    """Return why `thing` may be more than plain data; "": it is a harmless class."""
    if not isinstance(thing, type):
        return "it is not a class, and might be called"
    home: str = thing.__module__
    package = home.partition(".")[0]
    if issubclass(thing, _ACTING) or package in _TOOLS:
        return "such an object is more than data"
    is_pythons = package in sys.stdlib_module_names
    if issubclass(thing, enum.Enum) or (is_pythons and issubclass(thing, BaseException)):
        return ""
    if package == "numpy":
        return "" if issubclass(thing, np.generic | np.dtype) else "it is more than an array"
    if package == "pipeline":
        is_data = any(home == ours or home.startswith(f"{ours}.") for ours in _OURS)
        return "" if is_data else "it is a part of the server"
    if is_pythons:
        return "only plain data of the standard library is allowed"
    return ""


def _refused(module: str, name: str, why: str) -> NotDataError:
    return NotDataError(
        f"the answer contains {module}.{name}, which the server does not open: {why}. Send plain "
        "data; or run the Op that reads it with `workers: process`, which opens anything; or, if "
        f"it only builds data, call `pipeline.allow_in_payloads({module}.{name})` at the top of "
        "the script; or set `dag.trust_workers: True`"
    )
