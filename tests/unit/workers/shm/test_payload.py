from __future__ import annotations

import collections
import pickle
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dill
import ml_dtypes
import msgspec
import numpy as np
import pytest
from garbage import collect
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from same_payload import assert_same

from pipeline.engine.run.payload import opened
from pipeline.errors import NoRoomError, OverloadedError, PayloadTypeError, TooLargeError
from pipeline.workers.shm.arena import MIN_BLOCK_BYTES, Arena, Block, RegionAllocator
from pipeline.workers.shm.payload import (
    SerializedPayload,
    SharedPayload,
    deserialize,
    serialize,
)

LARGE = 2 * MIN_BLOCK_BYTES


class Shared:
    """An arena with one region to serialize into, which a test may declare full."""

    def __init__(self, region_bytes: int = 2**22) -> None:
        self.arena = Arena(region_bytes)
        region = self.arena.new_region()
        self.region = RegionAllocator(self.arena.view(region), region)
        self.min_bytes = MIN_BLOCK_BYTES
        self.most_bytes = self.region.most_bytes
        self.refuses: Iterator[bool] = iter(())

    def alloc(self, size: int) -> Block | None:
        return None if next(self.refuses, False) else self.region.alloc(size)

    def free(self, block: Block) -> None:
        self.region.free(block)

    def serialize(self, payload: Any, min_bytes: int = MIN_BLOCK_BYTES) -> SerializedPayload:
        self.min_bytes = min_bytes
        return serialize(payload, self, self.arena)

    def give_back(self, serialized: SerializedPayload) -> None:
        for block in serialized.buffers:
            self.region.free(block)


@pytest.fixture
def shared() -> Iterator[Shared]:
    shared = Shared()
    yield shared
    collect()
    shared.arena.close()


def over_the_wire(serialized: SerializedPayload) -> SerializedPayload:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(serialized), type=SerializedPayload)


def travel(shared: Shared, payload: Any, threshold: int = MIN_BLOCK_BYTES) -> Any:
    """Seal, open, give back."""
    serialized = over_the_wire(shared.serialize(payload, threshold))
    opened = deserialize(serialized, shared.arena)
    shared.give_back(serialized)
    assert shared.region.used == 0
    return opened


FIELDS = [("at", "M8[ms]"), ("xy", ">f4", (2,)), ("name", "S3")]
RECORD = np.dtype(FIELDS)
ODD_DTYPES = st.sampled_from(
    [RECORD, np.dtype("V5"), np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.int4)]
)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9))
    if draw(st.booleans()):
        array = draw(hnp.arrays(draw(hnp.scalar_dtypes()), shape))
    else:
        dtype = draw(ODD_DTYPES)
        size = int(np.prod(shape)) * dtype.itemsize
        array = np.frombuffer(bytearray(i % 7 for i in range(size)), np.uint8).view(dtype)
        array = array.reshape(shape)
    layout = draw(st.sampled_from(["C", "F", "transposed", "strided", "backwards", "read-only"]))
    if layout == "F":
        return np.asfortranarray(array)
    if layout == "transposed":
        return array.transpose()
    if layout == "read-only":
        array.flags.writeable = False
    if array.ndim and layout in ("strided", "backwards"):
        return array[:: 2 if layout == "strided" else -1]
    return array


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
TEXTS = st.builds(
    lambda text, times: text * times,
    st.text(st.characters(exclude_categories=())) | st.binary() | st.binary().map(bytearray),
    st.integers(0, 30),
)
VALUES = st.recursive(
    SCALARS | TEXTS | arrays(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4)
    ),
    max_leaves=8,
)
PAYLOADS = st.dictionaries(st.text(max_size=3), VALUES, max_size=5) | VALUES


@example({"x": "\ud800" * LARGE}, 64)
@example([(b"x" * 100, [b"y" * 100]), {"a": np.zeros(100)}], 64)
@example({"x": np.arange(12).reshape(3, 4, order="F")}, 64)
@example([[[np.arange(12, dtype=">i4").reshape(3, 4, order="F")[:, ::2]]]], 64)
@settings(deadline=None)
@given(PAYLOADS, st.sampled_from([1, 64, 1000]))
def test_each_payload_arrives_unchanged(payload, threshold):
    shared, before = Shared(), pickle.dumps(payload)
    serialized = over_the_wire(shared.serialize(payload, threshold))
    assert pickle.dumps(payload) == before
    results = [deserialize(serialized, shared.arena) for _ in range(2)]
    for block in serialized.buffers:  # what was opened is private: it survives the block's next use
        shared.arena.read(block)[:] = b"\xff" * block.size
    assert_same(payload, results[0])
    assert_same(payload, results[1])
    shared.give_back(serialized)
    assert shared.region.used == 0
    shared.arena.close()


@settings(deadline=None)
@given(PAYLOADS)
def test_a_payload_that_is_only_looked_at_is_the_same_too(payload):
    shared = Shared()
    serialized = shared.serialize(payload, 1)
    assert_same(payload, deserialize(serialized, shared.arena, copy=False), is_private=False)
    shared.arena.close()


@pytest.mark.parametrize(
    "large",
    [
        pytest.param(b"x" * LARGE, id="bytes"),
        pytest.param(bytearray(LARGE), id="bytearray"),
        pytest.param("\N{GREEK SMALL LETTER PI}" * LARGE, id="str"),
        pytest.param(np.arange(LARGE), id="array"),
        pytest.param(np.zeros((LARGE, 2, 3), "u1").transpose(2, 1, 0)[:, :, ::2], id="strided"),
        pytest.param(np.zeros(LARGE, ml_dtypes.bfloat16), id="bfloat16"),
        pytest.param(np.zeros(LARGE, RECORD), id="record"),
        pytest.param(np.zeros(LARGE, np.dtype(FIELDS, align=True)), id="record with gaps"),
    ],
)
@pytest.mark.parametrize(
    "around",
    [
        lambda x: x,
        lambda x: {"x": x},
        lambda x: {"a": 1, "x": ["short", x]},
        lambda x: {"x": ("short", x)},
        lambda x: {"x": {"y": x, "z": None}},
        lambda x: [x],
    ],
    ids=["alone", "value", "in list", "in tuple", "in dict", "list"],
)
def test_large_data_is_sent_in_shared_memory(shared, around, large):
    payload = around(large)
    serialized = shared.serialize(payload)
    assert len(serialized.data) < 1000
    assert len(serialized.buffers) == 1
    assert_same(payload, deserialize(serialized, shared.arena))


def test_an_array_far_down_travels_in_shared_memory(shared):
    payload = {"x": [[{"y": np.arange(LARGE)}]]}
    serialized = shared.serialize(payload)
    assert len(serialized.data) < 1000
    result = deserialize(serialized, shared.arena)
    assert_same(payload, result)
    result["x"][0][0]["y"][:] = 0


def test_a_short_payload_is_a_plain_pickle(shared):
    payload = {"a": "text", "b": b"bytes", "c": [1, 2.5], "d": None}
    assert shared.serialize(payload) == SerializedPayload(pickle.dumps(payload, 5))


@pytest.mark.parametrize(
    "payload",
    [
        {"numbers": list(range(LARGE))},
        [[1, "x" * LARGE]],
        {str(key): key for key in range(LARGE)},
        {"large": np.arange(LARGE), "keys": {"a": ["x" * 100] * LARGE}},
    ],
    ids=["numbers", "text among numbers", "keys", "beside an array"],
)
def test_every_message_is_short(shared, payload):
    serialized = shared.serialize(payload)
    assert len(msgspec.msgpack.encode(serialized)) < 2 * MIN_BLOCK_BYTES
    for copy in (True, False):
        result = deserialize(over_the_wire(serialized), shared.arena, copy)
        assert_same(payload, result, is_private=copy)
    shared.give_back(serialized)
    assert shared.region.used == 0


@pytest.mark.parametrize("room", range(5))
def test_a_payload_without_room_is_refused_and_leaves_no_memory(shared, room):
    shared.refuses = iter([False] * room + [True])
    payload = {"a": np.arange(LARGE), "b": b"x" * LARGE, "c": "x" * LARGE, "d": [[np.ones(LARGE)]]}
    payload["e"] = list(range(LARGE))
    with pytest.raises(NoRoomError, match=r"\d+ bytes have no room now .*dag\.shared_memory_mib"):
        shared.serialize(payload)
    assert shared.region.used == 0


@pytest.mark.parametrize(
    "payload",
    [
        {"x": np.zeros(2**22 - 4095, np.uint8)},
        {"x": np.zeros(2**21), "y": b"y" * 2**21},
        {f"x{i}": np.zeros(2**18 - 4000, np.uint8) for i in range(17)},
        [list(range(10**6, 2 * 10**6))],
    ],
    ids=["array", "two", "many", "pickle"],
)
def test_a_payload_that_never_has_room_is_refused_for_good(shared, payload):
    with pytest.raises(TooLargeError, match=r"\d+ bytes do not fit.*dag\.shared_memory_mib"):
        shared.serialize(payload)
    assert shared.region.used == 0
    largest = np.zeros(shared.most_bytes, np.uint8)
    shared.give_back(shared.serialize({"x": largest}))


def test_a_short_view_stays_in_the_message(shared):
    shared.refuses = iter([True])
    payload = {"x": memoryview(b"abc"), "y": (memoryview(b""), 1)}
    result = deserialize(over_the_wire(shared.serialize(payload)), shared.arena)
    assert result == {"x": b"abc", "y": (b"", 1)}


@pytest.mark.parametrize(
    "payload",
    [
        {"x" * 2**20: np.ones(2)},
        {f"x{i}": np.ones(2000) for i in range(30)},
        {"x" * 2**14: np.ones(2**14), "y": np.ones(2)},
    ],
    ids=["name", "many", "name of large"],
)
def test_names_and_short_arrays_are_not_large_together_in_a_message(shared, payload):
    serialized = over_the_wire(shared.serialize(payload))
    assert len(msgspec.msgpack.encode(serialized)) < MIN_BLOCK_BYTES
    assert_same(payload, deserialize(serialized, shared.arena))
    shared.give_back(serialized)
    assert shared.region.used == 0


@pytest.mark.parametrize("count", [4, LARGE])
def test_an_array_may_be_written_to_and_owns_its_memory(shared, count):
    source = np.arange(count)
    source.flags.writeable = False
    serialized = shared.serialize({"x": source, "y": [source]})
    first, second = deserialize(serialized, shared.arena), deserialize(serialized, shared.arena)
    for array in (first["x"], first["y"][0]):
        assert array.flags.owndata
        array[:] = -1
    assert_same({"x": np.arange(count), "y": [np.arange(count)]}, second)


@pytest.mark.parametrize("count", [4, LARGE])
def test_without_copying_an_array_is_a_read_only_view(shared, count):
    serialized = shared.serialize({"x": np.arange(count), "y": [[np.arange(count)]]})
    result = deserialize(serialized, shared.arena, copy=False)
    assert not result["x"].flags.writeable
    memory = np.frombuffer(shared.arena.view(0), np.uint8)
    assert np.shares_memory(result["x"], memory) == (count == LARGE)
    assert np.shares_memory(result["y"][0][0], memory) == (count == LARGE)
    if count == LARGE:
        assert not result["y"][0][0].flags.writeable


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a", None, {1: 2}], dtype=object),
        np.array([(1, "x")], dtype=[("a", int), ("b", object)]),
        np.rec.array([(1, 2.0)], dtype=[("a", int), ("b", float)]),
        np.array([""] * 3),
        np.zeros(3, "V0"),
    ],
    ids=["objects", "record of objects", "recarray", "empty texts", "empty voids"],
)
def test_exotic_arrays_are_left_to_numpy(shared, array):
    result = travel(shared, {"x": array}, threshold=1)["x"]
    assert type(result) is type(array)
    assert result.dtype == array.dtype
    assert result.tolist() == array.tolist()


def test_a_masked_array_keeps_its_mask(shared):
    array = np.ma.masked_array(np.arange(LARGE), np.arange(LARGE) % 2 == 0)
    result = travel(shared, {"x": array})["x"]
    assert np.array_equal(result.mask, array.mask)
    assert result.sum() == array.sum()


class Name(str):
    __slots__ = ()


def test_subclasses_keep_their_class(shared):
    payload = {"a": Name("x" * LARGE), "b": collections.OrderedDict(x=b"x" * LARGE)}
    result = travel(shared, payload)
    assert type(result["a"]) is Name
    assert type(result["b"]) is collections.OrderedDict
    assert result == payload


def test_a_payload_may_hold_itself(shared):
    payload: dict[str, Any] = {"x": b"x" * LARGE, "inner": []}
    payload["inner"].append(payload["inner"])
    result = travel(shared, payload)
    assert result["x"] == payload["x"]
    assert result["inner"][0] is result["inner"][0][0]


@dataclass
class Picture:
    pixels: np.ndarray[Any, Any]
    name: str


def test_objects_of_the_users_classes_arrive(shared):
    serialized = shared.serialize(Picture(np.arange(LARGE), "cat"))
    assert len(serialized.data) < 1000
    result = deserialize(serialized, shared.arena)
    assert type(result) is Picture
    assert_same(vars(result), {"pixels": np.arange(LARGE), "name": "cat"})


# What pickle refuses ------------------------------------------------------------------------


class Unpicklable:
    def __reduce__(self) -> Any:
        raise RuntimeError("I stay here")


class Interrupts:
    def __reduce__(self) -> Any:
        raise KeyboardInterrupt


def test_a_lambda_is_sent_next_to_large_data(shared):
    serialized = shared.serialize({"f": lambda x: x + 1, "large": np.arange(LARGE)})
    assert len(serialized.buffers) == 1
    result = deserialize(serialized, shared.arena)
    assert list(result) == ["f", "large"]
    assert result["f"](1) == 2
    assert_same(result["large"], np.arange(LARGE))


def test_a_lambda_alone_arrives(shared):
    assert travel(shared, lambda: 5)() == 5


def test_code_does_not_take_dills_form(shared, monkeypatch):
    """It reads `co_lnotab`, which code objects of Python 3.15 lack."""
    forms = {**dill.Pickler.dispatch, types.CodeType: pytest.fail}
    monkeypatch.setattr(dill.Pickler, "dispatch", forms)
    assert travel(shared, lambda: 5)() == 5


def test_a_local_class_arrives(shared):
    class Local:
        def hello(self) -> str:
            return "hello"

    assert travel(shared, {"x": [Local()]})["x"][0].hello() == "hello"


def test_an_object_next_to_a_lambda_keeps_its_class(shared):
    picture, function = travel(shared, {"x": (Picture(np.zeros(1), "a"), lambda: Picture)})["x"]
    assert type(picture) is Picture
    assert function() is Picture


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        ({"a": 1, "frames": (i for i in range(3))}, r"payload\['frames'\] \(generator\)"),
        ((i for i in range(3)), r"the payload \(generator\)"),
        ({"a": [Unpicklable()]}, r"payload\['a'\] \(list\).*I stay here"),
        ({Unpicklable(): 1}, r"the payload \(dict\).*I stay here"),
    ],
    ids=["value", "alone", "further down", "key"],
)
def test_a_value_that_cannot_be_sent_is_named(shared, payload, told):
    with pytest.raises(PayloadTypeError, match=told + ".*workers: thread"):
        shared.serialize(payload)


@pytest.mark.parametrize("culprit", [Unpicklable(), Interrupts()], ids=["error", "interrupt"])
def test_a_failed_serialization_leaves_no_memory(shared, culprit):
    payload = {"a": np.arange(LARGE), "b": b"x" * LARGE, "c": [[np.arange(LARGE), culprit]]}
    error = PayloadTypeError if isinstance(culprit, Unpicklable) else KeyboardInterrupt
    with pytest.raises(error):
        shared.serialize(payload)
    assert shared.region.used == 0


class NeedsTwo(Exception):
    """As many exceptions of users are: pickled, but with too few arguments to be built again."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one)


def test_a_value_that_cannot_be_unpickled_is_an_error(shared):
    serialized = shared.serialize({"error": NeedsTwo(1, 2)})
    with pytest.raises(PayloadTypeError, match=r"cannot be unpickled.*two"):
        deserialize(serialized, shared.arena)


# Between processes --------------------------------------------------------------------------


# SharedPayload ----------------------------------------------------------------------------------


def test_a_payload_releases_its_blocks_once_with_its_last_reference(shared):
    released: list[Block] = []
    serialized = shared.serialize({"x": b"x" * LARGE, "y": np.arange(LARGE)})
    payload: SharedPayload | None = SharedPayload(serialized, shared.arena, released.extend)
    another = payload
    del payload
    assert released == []
    assert another.open() == {"x": b"x" * LARGE, "y": pytest.approx(np.arange(LARGE))}
    del another
    assert released == serialized.buffers
    shared.give_back(serialized)
    assert shared.region.used == 0


def test_a_payload_may_be_released_in_any_thread(shared):
    released: list[tuple[int, list[Block]]] = []
    serialized = shared.serialize({"x": b"x" * LARGE})
    holders = [
        [
            SharedPayload(
                serialized,
                shared.arena,
                lambda blocks: released.append((threading.get_ident(), blocks)),
            )
        ]
    ]
    thread = threading.Thread(target=holders.clear)
    thread.start()
    ident = thread.ident
    thread.join()
    assert released == [(ident, serialized.buffers)]


def test_a_payload_without_blocks_releases_nothing(shared):
    released: list[list[Block]] = []
    payload = SharedPayload(shared.serialize({"x": "short"}), shared.arena, released.append)
    assert payload.open() == {"x": "short"}
    del payload
    assert released == []


def test_every_opening_is_private(shared):
    payload = SharedPayload(shared.serialize({"x": np.zeros(LARGE), "y": []}), shared.arena, len)
    first = payload.open()
    first["x"][:] = 1
    first["y"].append(1)
    assert_same(payload.open(), {"x": np.zeros(LARGE), "y": []})


def test_opened_passes_plain_values_and_returns_errors(shared):
    payload = {"x": 1}
    assert opened(payload) is payload
    assert opened(SharedPayload(shared.serialize(payload), shared.arena, len)) == payload
    broken = SharedPayload(shared.serialize({"error": NeedsTwo(1, 2)}), shared.arena, len)
    assert isinstance(opened(broken), PayloadTypeError)


class EatsMemory:
    def __reduce__(self):
        raise MemoryError


def test_without_memory_the_caller_gets_an_overload_error(shared):
    with pytest.raises(OverloadedError, match="not enough memory to send dict"):
        shared.serialize({"big": np.zeros(LARGE), "x": EatsMemory()})
    assert shared.region.used == 0
