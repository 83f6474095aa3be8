"""Unpickling in the server of what a worker process has sent: data, and nothing that acts.

A pickle may name any callable and have it called. A worker runs user code and native libraries on
what callers send; if one is taken over, its answers must not run in the server too. Workers open
anything: they run user code anyhow.
"""

from __future__ import annotations

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
import zoneinfo
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

# What pickle calls for data of the standard library and of numpy: nothing here opens, imports,
# runs or looks anything up by a name of the sender's.
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
_OURS = (
    "pipeline.dropin.names",
    "pipeline.data",
    "pipeline.errors",
    "pipeline.proto",
)
# Packages of which nothing is data: they reach out, or run what they are told.
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
    """A payload names something that the server does not build, or call."""


def allow_in_payloads(*things: Any) -> None:
    """Let the server open answers of worker processes in which these occur.

    Call it at the top of the script, before the server is prepared.

    Args:
        things: classes of the standard library or of a package, or the functions that a package's
            classes are unpickled with, as `pickletools.dis` shows them. An answer can then have
            them called with any arguments.
    """
    _allowed.update(things)
    _known.clear()


def data_of(data: bytes, buffers: Iterable[Any] = ()) -> Any:
    """Return what `pickle.loads` makes of `data`; NotDataError: that would take more than data."""
    return _Unpickler(io.BytesIO(data), buffers=buffers).load()


anything_of: Callable[..., Any] = (
    pickle.loads
)  # of what this process has pickled, or a process that may do anything


class _Unpickler(pickle.Unpickler):
    """pickle's own, in C, but for the names that it comes across."""

    def find_class(self, module: str, name: str, /) -> Any:
        found = _known.get((module, name))
        if found is None:
            found = _known[module, name] = _found(module, name)
        return found


def _found(module: str, name: str) -> Any:
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
    """`getattr`, for the one thing that pickle needs it for in data: a time zone's constructor."""
    if owner is zoneinfo.ZoneInfo and name == "_unpickle":
        return owner._unpickle  # type: ignore[attr-defined]  # it is there for pickle
    raise _refused("builtins", "getattr", "it leads to anything")


def _is_allowed(thing: Any) -> bool:
    try:
        return thing in _allowed
    except TypeError:  # it has no hash
        return False


def _objection(thing: Any) -> str:
    """Return why `thing` may be more than data; "": it is a class that is none."""
    if not isinstance(thing, type):
        return "it is no class, and might be called"
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
        return "of the standard library only plain data is"
    return ""


def _refused(module: str, name: str, why: str) -> NotDataError:
    return NotDataError(
        f"the answer has {module}.{name} in it, which the server does not open: {why}. Send plain "
        "data; or run the Op that reads it with `workers: process`, which opens anything; or, if "
        f"it only builds data, call `pipeline.allow_in_payloads({module}.{name})` at the top of "
        "the script; or set `dag.trust_workers: True`"
    )
