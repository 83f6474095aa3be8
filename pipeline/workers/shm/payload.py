"""Payloads serialized for our own processes: pickled, with large values in shared memory.

Only here does the library pickle. It opens only what this server, or a child that it forked, has
serialized and sent over the socket pair between the two.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Protocol

import msgspec
import numpy as np

from pipeline.engine.run.payload import ALIGNMENT, Payload
from pipeline.errors import (
    NoRoomError,
    OverloadedError,
    PayloadTypeError,
    PipelineError,
    TooLargeError,
)
from pipeline.workers.shm.arena import Block
from pipeline.workers.shm.pickling import (
    NAMED_BY_TEXT,
    PROTOCOL,
    NotDataError,
    Order,
    array_on,
    cheap_dtype,
    dilled,
    dumps,
    is_picklable,
)

Loads = Callable[..., Any]
"""`pickle.loads`, or a function that does the same for some pickles only."""

_NUMBERS = frozenset({int, float, bool})
_SCALARS = _NUMBERS | {type(None)}
_SHORT_LIST = 64  # items that are checked faster one by one than by our own Pickler
_RAW = {kind.__name__: kind for kind in (bytes, bytearray, str)}
_ONLY_KEY = "payload"  # of the dict that replaces a payload that is not a dict
# (holder, key, dtype or kind of text, shape or None, order, data or None if it is in a block):
# holder[key] is None in the pickle, and is set when it is opened.
_OutOfBand = tuple[Any, Any, Any, tuple[int, ...] | None, str, bytes | None]


class SerializedPayload(msgspec.Struct, array_like=True, gc=False):
    """A payload in its wire form.

    `data` is pickled: the payload itself or, if `is_out_of_band`, the payload with holes and the
    values for them. `buffers` hold large values: first the values that the pickle refers to, then
    the values for the holes, in order, and last the pickle, if it is large: then `data` is empty. A
    payload of a few arrays is not pickled: `arrays` describes them, and `buffers` hold the large
    ones in order.
    """

    data: bytes
    buffers: list[Block] = []
    is_out_of_band: bool = False
    arrays: list[PlainArray] | None = None


class BlockReader(Protocol):
    """Reads blocks; an Arena is one."""

    def read(self, block: Block) -> memoryview: ...


class PayloadMemory(Protocol):
    """Memory for the large values of `serialize`; `RegionAllocator` is one.

    Attributes:
        min_bytes: shorter values stay in the message.
        most_bytes: size of all blocks together, when it is empty.
    """

    @property
    def min_bytes(self) -> int: ...

    @property
    def most_bytes(self) -> int: ...

    def alloc(self, size: int) -> Block | None: ...

    def free(self, block: Block) -> None: ...


Find = Callable[[np.ndarray[Any, Any]], Block | None]
"""Returns the block of a contiguous array that lies in shared memory; None: it has to be copied."""


def serialize(
    payload: Any,
    memory: PayloadMemory,
    arena: BlockReader,
    find: Find | None = None,
) -> SerializedPayload:
    """Pickle `payload`; values of `memory.min_bytes` or more go into blocks of `memory`.

    Arrays that `find` knows a block of are not copied: the caller keeps these arrays. Arrays go
    into blocks anywhere in the payload; bytes, bytearrays and strings only as values of the
    payload, or one level deeper in a dict, list or tuple. A memoryview there arrives as bytes.
    So does a large pickle. The payload is not changed. An object that it contains twice may arrive
    as two.

    Raises:
        PayloadTypeError: a value cannot be pickled, not even by dill.
        TooLargeError: it is larger than `memory`.
        NoRoomError: `memory` has no room for it now.
        OverloadedError: there is no memory left. After any error, nothing is left in `memory`.
    """
    try:
        return _serialize(payload, memory, arena, memory.min_bytes, find)
    except _FullError as error:
        raise error.kind(str(error)) from error
    except MemoryError as error:
        raise OverloadedError(
            f"there is not enough memory to send {type(payload).__name__} to another process"
            f"{f': {error}' if error.args else ''}"
        ) from error


class _FullError(MemoryError):
    """`needed` bytes of a payload have no room in memory that holds `most`."""

    def __init__(self, needed: int, most: int) -> None:
        is_final = needed > most
        self.kind: type[PipelineError] = TooLargeError if is_final else NoRoomError
        has_no_room = (
            "do not fit into shared memory" if is_final else "have no room now in shared memory"
        )
        super().__init__(
            f"{needed} bytes {has_no_room}, which holds {most} bytes for each process: raise "
            "dag.shared_memory_mib"
        )


def _serialize(
    payload: Any, memory: PayloadMemory, arena: BlockReader, threshold: int, find: Find | None
) -> SerializedPayload:
    try:
        arrays = plain_arrays(payload, threshold)
        if arrays is not None:
            return SerializedPayload(b"", arrays=arrays)
        if type(payload) is dict and _is_plain(payload, threshold):
            data = pickle.dumps(payload, PROTOCOL)
            return _Serializer(memory, arena, threshold).with_pickle(data)
        return _Serializer(memory, arena, threshold, find).serialize(payload)
    except MemoryError:
        raise
    except Exception:  # pickle, and the methods of users' classes, may raise anything
        return _serialize_odd(payload, memory, arena, threshold)


def _is_plain(payload: dict[Any, Any], threshold: int) -> bool:
    """Return whether there are only numbers, short lists of them and short texts."""
    for value in payload.values():
        kind = type(value)
        if kind is str or kind is bytes:
            if len(value) >= threshold:
                return False
        elif kind is list:
            if len(value) > _SHORT_LIST or not _NUMBERS.issuperset(map(type, value)):
                return False
        elif kind not in _SCALARS:
            return False
    return True


class _Serializer:
    """Serializes one payload.

    Arrays and large texts are taken out before the rest is pickled, because pickle cannot keep
    texts out of its stream, and is slower for a small array. Deeper arrays are left to pickle,
    which offers their memory to `_keeps_in_band`.
    """

    def __init__(
        self,
        memory: PayloadMemory,
        arena: BlockReader,
        threshold: int,
        find: Find | None = None,
    ) -> None:
        self._find = find
        self._memory = memory
        self._arena = arena
        self._threshold = threshold
        self._taken = 0  # bytes of `memory`
        self._blocks_of_pickle: list[Block] = []
        self._blocks_out_of_band: list[Block] = []
        self._out_of_band: list[_OutOfBand] = []
        self._is_rest_plain = True  # nothing in it needs our own Pickler
        self._tuples: list[tuple[Any, Any]] = []  # holder and key of lists that replace tuples

    def serialize(self, payload: Any) -> SerializedPayload:
        try:
            return self._serialize(payload)
        except BaseException:
            for block in (*self._blocks_of_pickle, *self._blocks_out_of_band):
                self._memory.free(block)
            raise

    def _serialize(self, payload: Any) -> SerializedPayload:
        is_dict = type(payload) is dict
        if (named := _named_arrays(payload, self._threshold)) is not None:
            arrays = [
                (name, array.dtype.str, array.shape, self._data_of(array, "C"))
                for name, array in named
            ]
            return SerializedPayload(b"", self._blocks_out_of_band, arrays=arrays)
        rest = self._without_large(payload if is_dict else {_ONLY_KEY: payload}, goes_deeper=True)
        if not self._out_of_band:
            return self.with_pickle(self._pickle(payload))
        data = self._pickle((rest, self._out_of_band, self._tuples, is_dict))
        return self.with_pickle(data, is_out_of_band=True)

    def with_pickle(self, data: bytes, is_out_of_band: bool = False) -> SerializedPayload:
        """Return the wire form of a pickle, and of the blocks for it."""
        buffers = self._blocks_of_pickle + self._blocks_out_of_band
        if len(data) >= self._threshold:
            self._room(len(data), buffers)[:] = data
            data = b""
        return SerializedPayload(data, buffers, is_out_of_band)

    def _pickle(self, content: Any) -> bytes:
        if self._is_rest_plain:
            return pickle.dumps(content, PROTOCOL)
        return dumps(content, self._keeps_in_band)

    def _without_large(self, whole: Any, goes_deeper: bool = False) -> Any:
        """Return `whole`, a container, or a copy with None for the values that were taken out."""
        is_dict = type(whole) is dict
        copy = whole.copy() if is_dict else list(whole)
        is_changed = False
        for key, value in whole.items() if is_dict else enumerate(whole):
            kind = type(value)
            if kind in _SCALARS:
                continue
            if kind is np.ndarray:
                is_taken = self._take_array_out(copy, key, value)
            elif kind is memoryview:
                self._take_view_out(copy, key, value)
                is_taken = True
            elif kind is str or kind is bytes or kind is bytearray:
                is_taken = len(value) >= self._threshold
                if is_taken:
                    self._take_text_out(copy, key, value)
            elif goes_deeper and _may_hold_large(value):
                copy[key] = inner = self._without_large(value)
                is_changed |= inner is not value
                if type(inner) is not kind:
                    self._tuples.append((copy, key))
                continue
            else:
                self._is_rest_plain = is_taken = False
            if is_taken:
                copy[key] = None
                is_changed = True
        return copy if is_changed else whole

    def _take_array_out(self, holder: Any, key: Any, array: np.ndarray[Any, Any]) -> bool:
        dtype = cheap_dtype(array.dtype)
        if dtype is None:
            self._is_rest_plain = False
            return False
        order: Order = "F" if array.flags.fnc else "C"
        data = self._data_of(array, order)
        self._out_of_band.append((holder, key, dtype, array.shape, order, data))
        return True

    def _data_of(self, array: np.ndarray[Any, Any], order: Order) -> bytes | None:
        """Return the bytes of an array; None: they are in a block."""
        if array.nbytes < self._threshold:
            return array.tobytes(order)
        self._put_array(array, order)
        return None

    def _put_array(self, array: np.ndarray[Any, Any], order: Order) -> None:
        """Put `array` into a block: copied once, for any strides."""
        if self._find is not None and array.flags.forc:
            block = self._find(array)
            if block is not None:
                self._blocks_out_of_band.append(block)
                return
        view = self._room(array.nbytes, self._blocks_out_of_band)
        np.copyto(np.ndarray(array.shape, array.dtype, view, order=order), array)

    def _take_view_out(self, holder: Any, key: Any, view: memoryview) -> None:
        """Let the bytes of a received body arrive as `bytes`, without a copy here."""
        data = self._data_of(np.frombuffer(view, np.uint8), "C")
        self._out_of_band.append((holder, key, "bytes", None, "", data))

    def _take_text_out(self, holder: Any, key: Any, text: str | bytes | bytearray) -> None:
        raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        self._room(len(raw), self._blocks_out_of_band)[:] = raw
        self._out_of_band.append((holder, key, type(text).__name__, None, "", None))

    def _keeps_in_band(self, buffer: pickle.PickleBuffer) -> bool:
        """Return whether memory that pickle found stays in its stream."""
        with buffer.raw() as raw:
            if raw.nbytes < self._threshold:
                return True
            self._room(raw.nbytes, self._blocks_of_pickle)[:] = raw
        return False

    def _room(self, size: int, blocks: list[Block]) -> memoryview:
        block = self._memory.alloc(size)
        if block is None:
            raise _FullError(self._taken + size, self._memory.most_bytes)
        self._taken += size + -size % ALIGNMENT
        blocks.append(block)
        return self._arena.read(block)


def _may_hold_large(value: Any) -> bool:
    """Return whether there may be arrays and texts in `value`.

    A list that begins with a number is taken for a list of numbers. If this guess is wrong, large
    texts in it stay in the pickle.
    """
    kind = type(value)
    if kind is list or kind is tuple:
        return bool(value) and type(value[0]) not in _NUMBERS
    return kind is dict


def deserialize(
    serialized: SerializedPayload,
    arena: BlockReader,
    copy: bool = True,
    loads: Loads = pickle.loads,
    bytes_as_views: bool = False,
) -> Any:
    """Return the payload: a new one with each call, which shares nothing with any other.

    Args:
        serialized: by `serialize`, in this process or in another one of this server.
        arena: the same as for `serialize`.
        copy: whether arrays are copies that may be written to and kept. If False, arrays that were
            taken out or are large are read-only, and valid while the blocks are.
        loads: unpickles.
        bytes_as_views: whether large bytes may be read-only views, valid while the blocks are.

    Raises:
        PayloadTypeError: an object in it cannot be built again in this process.
    """
    try:
        if serialized.arrays is not None:
            views = map(arena.read, serialized.buffers)
            return payload_of_arrays(serialized.arrays, copy, views)
        if serialized.is_out_of_band:
            return _filled(serialized, arena, copy, loads, bytes_as_views)
        if serialized.buffers:
            views = map(arena.read, serialized.buffers)
            return loads(_pickle_of(serialized, arena), buffers=_for_pickle(views, copy))
        return loads(serialized.data)
    except MemoryError:
        raise
    except NotDataError as error:
        raise PayloadTypeError(str(error)) from error
    except Exception as error:  # of users' classes, when they are built
        raise PayloadTypeError(
            "a payload was pickled in one process and cannot be unpickled in another: "
            f"{type(error).__name__}: {error}. Objects of your own classes must survive "
            "pickle.loads(pickle.dumps(x)); plain data (dict, list, array, bytes) always does"
        ) from error


def _pickle_of(serialized: SerializedPayload, arena: BlockReader) -> bytes | memoryview:
    return serialized.data or arena.read(serialized.buffers[-1])


def _filled(
    serialized: SerializedPayload, arena: BlockReader, copy: bool, loads: Loads, as_views: bool
) -> Any:
    """Unpickle, and put back the values that were taken out."""
    views = map(arena.read, serialized.buffers)
    pickled = _pickle_of(serialized, arena)
    rest, out_of_band, tuples, is_dict = loads(pickled, buffers=_for_pickle(views, copy))
    for holder, key, kind, shape, order, data in out_of_band:
        raw = next(views) if data is None else data
        if as_views and kind == "bytes":
            holder[key] = memoryview(raw).toreadonly()
            continue
        if shape is None:
            holder[key] = str(raw, "utf-8", "surrogatepass") if kind == "str" else _RAW[kind](raw)
            continue
        array = array_on(raw, kind, shape, order)
        if copy:
            array = array.copy("K")
        else:
            array.flags.writeable = False
        holder[key] = array
    for holder, key in tuples:
        holder[key] = tuple(holder[key])
    return rest if is_dict else rest[_ONLY_KEY]


def _for_pickle(views: Iterator[memoryview], copy: bool) -> Iterator[bytearray | memoryview]:
    """Return as many of `views` as pickle asks for; it builds arrays directly on them."""
    return map(bytearray if copy else memoryview.toreadonly, views)


class SharedPayload(Payload):
    """The server's handle of a serialized payload, which replaces it in the graph.

    It keeps the blocks alive: when the last reference to it, and to everything opened without a
    copy, is gone, `release` is called with the blocks, once, in any thread. Without blocks it is
    not called.

    Args:
        serialized: the payload.
        arena: has its blocks.
        release: gets the blocks; must not raise.
        loads: unpickles here.
        maker: the Op that made it, for errors.
        kept: arrays that own some of the blocks: these are not released.
    """

    __slots__ = ("_arena", "_hold", "_kept", "_loads", "_maker", "serialized")

    def __init__(
        self,
        serialized: SerializedPayload,
        arena: BlockReader,
        release: Callable[[list[Block]], object],
        loads: Loads = pickle.loads,
        maker: str = "",
        kept: Mapping[Block, np.ndarray[Any, Any]] = {},
    ) -> None:
        self._loads = loads
        self._maker = maker
        self.serialized: SerializedPayload = serialized
        self._arena = arena
        self._kept = kept
        # Most payloads hold no blocks, and need no finaliser.
        blocks = serialized.buffers
        if kept:
            blocks = [block for block in blocks if block not in kept]
        self._hold = BlockLease(blocks, release) if blocks else None

    def open(self, copy: bool = True, bytes_as_views: bool = False) -> Any:
        """Return the payload, a new one with each call: as `deserialize` does, which may raise."""
        serialized, arena = self.serialized, self._arena
        if (bytes_as_views or not copy) and serialized.buffers:
            arena = _HeldBlocks(arena, (self._hold, self._kept))
        try:
            return deserialize(serialized, arena, copy, self._loads, bytes_as_views)
        except PayloadTypeError as error:
            text = f"[{self._maker}] {error}" if self._maker else str(error)
            raise PayloadTypeError(text) from error

    @property
    def byte_size(self) -> int:
        serialized = self.serialized
        arrays = sum(len(data) for _, _, _, data in serialized.arrays or () if data is not None)
        return len(serialized.data) + arrays + sum(block.size for block in serialized.buffers)


class BlockLease:
    """Gives blocks back when nothing needs them any more."""

    __slots__ = ("_blocks", "_release")

    def __init__(self, blocks: list[Block], release: Callable[[list[Block]], object]) -> None:
        self._blocks = blocks
        self._release = release

    def __del__(self) -> None:
        self._release(self._blocks)


class MemoryHold:
    """Object behind an array, which keeps its memory in use as long as the array lives.

    Args:
        view: the memory.
        lease: is kept with it.
    """

    __slots__ = ("__array_interface__", "_lease", "_memory")

    def __init__(self, view: memoryview, lease: object) -> None:
        self._memory = np.frombuffer(view, np.uint8)  # also prevents that it is unmapped
        self._lease = lease
        self.__array_interface__: dict[str, Any] = self._memory.__array_interface__


class _HeldBlocks:
    """Reader of blocks that stay in use as long as a view of them lives."""

    def __init__(self, arena: BlockReader, lease: object) -> None:
        self._arena = arena
        self._lease = lease

    def read(self, block: Block) -> memoryview:
        return np.asarray(MemoryHold(self._arena.read(block), self._lease)).data


def _serialize_odd(
    payload: Any, memory: PayloadMemory, arena: BlockReader, threshold: int
) -> SerializedPayload:
    """Serialize a payload that pickle refused: dill serializes the values that pickle refuses."""
    if type(payload) is dict:
        passable: Any = {
            key: value if is_picklable(value) else _with_dill(value, f"payload[{key!r}]")
            for key, value in payload.items()
        }
    else:
        passable = _with_dill(payload, "the payload")
    try:
        return _Serializer(memory, arena, threshold).serialize(passable)
    except MemoryError:
        raise
    except Exception as error:  # a key, or a class that behaves differently each time
        raise _refused("the payload", payload, error) from error


def _with_dill(value: Any, name: str) -> Any:
    try:
        return dilled(value)
    except MemoryError:
        raise
    except Exception as error:  # dill may also raise anything
        raise _refused(name, value, error) from error


def _refused(name: str, value: Any, error: Exception) -> PayloadTypeError:
    return PayloadTypeError(
        f"{name} ({type(value).__qualname__}) cannot be sent to another process: {error}. Send "
        "plain data instead (dict, list, array, bytes, str), or run the Op that returns it and its "
        "readers with `workers: thread`"
    )


PlainArray = tuple[str | None, str, tuple[int, ...], bytes | None]
"""(name, None: it is the payload; dtype as `dtype.str`; shape; data, None: they are in a block)"""

_NONE: Iterator[memoryview] = iter(())
_MOST = 32  # arrays of one payload
_DTYPES = 256  # that are remembered; texts have many


def plain_arrays(payload: Any, threshold: int) -> list[PlainArray] | None:
    """Return the arrays of a payload that is an array, or a dict of arrays.

    None: it is something else, or names and arrays together have `threshold` bytes or more.
    """
    if type(payload) is np.ndarray:
        plain = _plain(None, payload, threshold)
        return None if plain is None else [plain]
    if type(payload) is not dict or not 0 < len(payload) <= _MOST:
        return None
    described = []
    size = 0
    for name, array in payload.items():
        if type(array) is not np.ndarray or type(name) is not str:
            return None
        plain = _plain(name, array, threshold)
        size += len(name) + array.nbytes
        if plain is None or size >= threshold:
            return None
        described.append(plain)
    return described


def _plain(name: str | None, array: np.ndarray[Any, Any], threshold: int) -> PlainArray | None:
    if array.nbytes >= threshold or not _is_plain_array(array):
        return None
    return name, array.dtype.str, array.shape, array.tobytes()


def _is_plain_array(array: np.ndarray[Any, Any]) -> bool:
    dtype = array.dtype
    return dtype.char in NAMED_BY_TEXT and bool(dtype.itemsize) and array.flags.c_contiguous


def _named_arrays(
    payload: Any, threshold: int
) -> Collection[tuple[str | None, np.ndarray[Any, Any]]] | None:
    """Return the arrays of such a payload, of any size.

    None: it is something else, or what stays in the message has `threshold` bytes or more.
    """
    if type(payload) is np.ndarray:
        return [(None, payload)] if _is_plain_array(payload) else None
    if type(payload) is not dict or not 0 < len(payload) <= _MOST:
        return None
    size = 0
    for name, array in payload.items():
        if type(array) is not np.ndarray or type(name) is not str or not _is_plain_array(array):
            return None
        size += len(name) + (array.nbytes if array.nbytes < threshold else 0)
        if size >= threshold:
            return None
    return payload.items()


def payload_of_arrays(
    arrays: list[PlainArray], copy: bool, views: Iterator[memoryview] = _NONE
) -> Any:
    """Return the payload. ValueError: there are no such arrays; TypeError: too few bytes.

    Args:
        copy: whether arrays may be written to.
        views: the arrays that are in blocks.
    """
    if arrays[0][0] is None:
        return _array_of(arrays[0], copy, views)
    return {described[0]: _array_of(described, copy, views) for described in arrays}


def _array_of(
    described: PlainArray, copy: bool, views: Iterator[memoryview]
) -> np.ndarray[Any, Any]:
    _, kind, shape, data = described
    raw = next(views).toreadonly() if data is None else data
    array: np.ndarray[Any, Any] = np.ndarray(shape, _dtype(kind), raw)
    return array.copy() if copy else array


@functools.lru_cache(_DTYPES)
def _dtype(text: str) -> np.dtype[Any]:
    """Return the dtype of this name; only names that `plain_arrays` writes are accepted."""
    dtype: np.dtype[Any] = np.dtype(text)
    if dtype.str != text or dtype.char not in NAMED_BY_TEXT:
        raise ValueError(f"an array of {text!r} cannot be built on memory")
    return dtype
