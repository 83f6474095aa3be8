"""What the server opens of what its workers send: data, and nothing that acts."""

from __future__ import annotations

import array
import collections
import ctypes
import datetime
import decimal
import enum
import fractions
import http
import ipaddress
import os
import pathlib
import pickle
import re
import socket
import subprocess
import sys
import threading
import types
import uuid
import zoneinfo
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from pipeline import allow_in_payloads
from pipeline.data import ChannelData
from pipeline.errors import PayloadTypeError, PipelineError
from pipeline.gateway.ingress import Gateway
from pipeline.proto.pipeline_service_pb2 import Request
from pipeline.workers.shm import pickling
from pipeline.workers.shm.arena import Arena, RegionAllocator
from pipeline.workers.shm.payload import SerializedPayload, deserialize, serialize
from pipeline.workers.shm.pickling import NotDataError, data_of, dilled, dumps
from pipeline.workers.shm.server_memory import ServerMemory


@dataclass
class Picture:
    name: str
    pixels: Any = None

    class Inner:
        """Found by a name with a dot."""


class Point(NamedTuple):
    x: int
    y: int


class Colour(enum.Enum):
    RED = 1


class Slotted:
    __slots__ = ("a",)


class FailedError(Exception):
    pass


def a_function() -> None:
    """Of the user's own, that a payload might have called."""


class Calls:
    """Unpickled, it is whatever `function` returns for `arguments`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._reduced = (function, arguments)

    def __reduce__(self) -> Any:
        return self._reduced


@pytest.fixture(autouse=True)
def no_function_allowed():
    yield
    pickling._allowed.clear()
    pickling._known.clear()


DATA = [
    {"a": [1, 2.5, None, True, 2**80, 1j, "text", b"bytes", bytearray(b"x"), (1,), {1}]},
    [frozenset({1}), range(3), slice(1, 2), ..., NotImplemented, object],
    [collections.OrderedDict(a=1), collections.Counter("aab"), collections.deque([1], 3)],
    collections.defaultdict(list, a=[1]),
    [datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), datetime.date(1, 2, 3)],
    [datetime.timedelta(1), datetime.time(1), zoneinfo.ZoneInfo("UTC")],
    [decimal.Decimal("1.5"), fractions.Fraction(1, 3), uuid.UUID(int=5)],
    [ipaddress.ip_address("::1"), ipaddress.ip_network("10.0.0.0/8"), pathlib.Path("a/b")],
    [array.array("d", [1.5]), types.SimpleNamespace(a=1), re.compile("a+")],
    [np.float32(1.5), np.datetime64(5, "s"), np.float32, np.dtype("f4"), np.dtype([("a", "i4")])],
    [ml_dtypes.bfloat16(1.5), http.HTTPStatus.OK, Colour.RED],
    [Point(1, 2), Picture("cat"), Picture, Picture.Inner],
    [ChannelData(1, payload={"a": 1}), PipelineError("no")],
    Request(key=["a"], value=["b"]),
]


@pytest.mark.parametrize("data", DATA, ids=[str(number) for number in range(len(DATA))])
def test_data_is_opened_as_pickle_opens_it(data):
    result = data_of(pickle.dumps(data, 5))
    assert repr(result) == repr(data)
    assert type(result) is type(data)


def test_a_path_of_a_worker_on_python_3_13_is_opened():
    pickled = b"cpathlib._local\nPurePosixPath\n(Va\ntR."
    assert data_of(pickled) == pathlib.PurePosixPath("a")


def test_objects_of_users_classes_are_opened():
    slotted = Slotted()
    slotted.a = 5
    assert data_of(pickle.dumps(slotted, 5)).a == 5
    for error in (ValueError("x"), FailedError("x"), KeyError(1)):
        data = data_of(pickle.dumps(error, 5))
        assert type(data) is type(error)
        assert data.args == error.args


ARRAYS = [
    np.arange(6.0).reshape(2, 3).T,
    np.arange(12)[::2],
    np.array([{"x": 1}, None], object),
    np.ones(3, ml_dtypes.bfloat16),
    np.zeros(2, [("a", "<i4"), ("b", "f4", (2,))]),
    np.ma.array([1, 2], mask=[0, 1]),
    np.rec.array([(1, "a")], dtype=[("n", int), ("s", "U1")]),
    np.array(["a", "grün"], "U5"),
]


@pytest.mark.parametrize("given", ARRAYS, ids=[str(number) for number in range(len(ARRAYS))])
def test_arrays_in_numpys_and_our_form_are_opened(given):
    buffers: list[pickle.PickleBuffer] = []
    for data in (
        pickle.dumps({"x": [given]}, 5),
        dumps({"x": [given]}, lambda buffer: True),
        dumps({"x": [given]}, lambda buffer: bool(buffers.append(buffer))),
    ):
        result = data_of(data, buffers=iter(buffers))["x"][0]
        assert type(result) is type(given)
        assert result.dtype == given.dtype
        assert repr(result) == repr(given)


ACTS = [
    (os.system, ("touch {}",), "posix.system"),
    (eval, ("open('{}', 'w')",), "builtins.eval"),
    (exec, ("open('{}', 'w')",), "builtins.exec"),
    (open, ("{}", "w"), "open"),
    (getattr, ("", "join"), "builtins.getattr"),
    (subprocess.Popen, (["touch", "{}"],), "subprocess.Popen"),
    (np.memmap, ("{}", "u1", "w+", 0, (1,)), "numpy.memmap"),
    (ctypes.CDLL, ("{}",), "ctypes.CDLL"),
    (socket.socket, (), "socket.socket"),
    (threading.Thread, (), "threading.Thread"),
    (type, ("X", (), {}), "builtins.type"),
    (Gateway, (None,), "Gateway"),
    (a_function, (), "a_function"),
    (np.load, ("{}",), "load"),
]


def formatted(argument: Any, path: pathlib.Path) -> Any:
    if isinstance(argument, list):
        return [formatted(item, path) for item in argument]
    return argument.format(path) if isinstance(argument, str) else argument


@pytest.mark.parametrize(("function", "arguments", "name"), ACTS, ids=[act[2] for act in ACTS])
def test_a_pickle_that_calls_a_function_is_refused_and_named(tmp_path, function, arguments, name):
    target = tmp_path / "touched"
    reported = [formatted(argument, target) for argument in arguments]
    with pytest.raises(NotDataError, match=re.escape(name) + r".*allow_in_payloads"):
        data_of(pickle.dumps([1, Calls(function, *reported)], 5))
    assert not target.exists()


def reference(module: str, name: str) -> bytes:
    """Return a pickle that refers to this name."""
    texts = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name))
    return b"\x80\x05" + texts + b"\x93."


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (__name__, "os.system"),
        (__name__, "subprocess.Popen"),
        ("pipeline.workers.shm.pickling", "subprocess.Popen"),
        (__name__, "Picture.__init__"),
        ("builtins", "object.__reduce__"),
        ("collections", "_sys.exit"),
    ],
)
def test_a_callable_is_refused_by_each_of_its_names(module, name):
    with pytest.raises(NotDataError):
        data_of(reference(module, name))
    with pytest.raises(NotDataError):  # as older protocols write it
        data_of(f"c{module}\n{name}\n.".encode())


def test_a_payload_imports_no_module(tmp_path, monkeypatch):
    (tmp_path / "sly.py").write_text("raise SystemExit('imported')\nclass Data: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NotDataError, match="the server has not imported sly"):
        data_of(reference("sly", "Data"))
    assert "sly" not in sys.modules


def test_a_dill_pickle_is_refused():
    with pytest.raises(NotDataError, match="_undilled"):
        data_of(pickle.dumps({"f": dilled(lambda: 5)}, 5))


def test_our_form_of_arrays_builds_no_objects_from_bytes():
    reported = ((1,), np.dtype("O"), b"\x10" + bytes(7), "C")
    with pytest.raises(pickle.UnpicklingError, match="object"):
        data_of(pickle.dumps(Calls(pickling._built, *reported), 5))
    arena = Arena(2**20)
    out_of_band = ({"x": None}, [], [], True)
    out_of_band[1].append((out_of_band[0], "x", "O", (1,), "C", reported[2]))
    with pytest.raises(PayloadTypeError, match="object"):
        deserialize(SerializedPayload(pickle.dumps(out_of_band, 5), [], True), arena)
    arena.close()


def test_a_function_that_the_script_allows_is_opened():
    data = pickle.dumps(Calls(a_function), 5)
    with pytest.raises(NotDataError):
        data_of(data)
    allow_in_payloads(a_function, np.memmap)
    assert data_of(data) is None
    with pytest.raises(NotDataError):
        data_of(pickle.dumps(Calls(os.getpid), 5))


# In the server's memory -------------------------------------------------------------------------


def test_a_workers_payload_is_restricted_and_its_error_names_the_op():
    arena = Arena(2**20)
    memory, region = ServerMemory(arena), arena.new_region()
    worker = RegionAllocator(arena.view(region), region)
    serialized = serialize({"x": [Calls(os.getpid)], "large": np.zeros(2**15)}, worker, arena)
    with pytest.raises(PayloadTypeError, match=r"^\[cut\] the answer contains posix\.getpid"):
        memory.payload(serialized, "cut").open()
    with pytest.raises(PayloadTypeError, match=r"^the answer contains"):
        memory.payload(serialized).open(copy=False)
    own = memory.serialize({"x": [Calls(os.getpid)]})
    assert own.open() == {"x": [os.getpid()]}, "nobody else has had it"
    trusting = ServerMemory(arena, trusts_workers=True)
    assert trusting.payload(serialized, "cut").open()["x"] == [os.getpid()]
    del own
    arena.close()
