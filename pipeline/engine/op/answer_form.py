"""Answers as bytes for a response cache, and the keys of requests; never pickled.

Both take dicts of arrays, texts, bytes, numbers, lists and dicts of these. The bytes of an answer
are: the size of a head (4 bytes, big-endian), the head (msgpack: a row for each value), and the
data of the arrays, one after the other.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import ml_dtypes
import msgspec
import numpy as np

from pipeline.engine.run.payload import Payload, opened
from pipeline.proto.slices import SLICE_BYTES, breathe

_KEY_BYTES = 16
_SIZE_BYTES = 4
_MOST_DEPTH = 32  # of lists in lists
_PLAIN, _ARRAY, _OBJECTS = range(3)  # kinds of a row
_SCALARS = frozenset({str, bytes, int, float, bool, type(None)})
_ELEMENTS = frozenset({str, bytes})
_DATA = frozenset("biufcSUMm")  # kinds of dtypes without references
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

_encode: Callable[[object], bytes] = msgspec.msgpack.Encoder().encode
_decode: Callable[[Any], Any] = msgspec.msgpack.Decoder(list[tuple[Any, ...]]).decode

_Row = tuple[Any, ...]
_NOTHING: Mapping[str, Any] = {}


class NoFormError(Exception):
    """A value cannot be written as bytes: an object of a user's class, an error, a route."""


def key_of(
    model: bytes,
    inputs: Mapping[str, Any],
    outputs: Iterable[str],
    parameters: Mapping[str, Any] = _NOTHING,
) -> bytes:
    """Return the key of a request, 16 bytes; the order of the inputs does not matter.

    Args:
        model: its name, its version and everything else that makes its answers differ from others.
        inputs: by name, with their types and shapes; a Payload stands for its content.
        outputs: the outputs that the request asks for.
        parameters: other data of the request that reaches the model.

    Raises:
        NoFormError: an input cannot be written as bytes.
    """
    given: dict[str, Any] = {}
    for name, part in inputs.items():
        value = opened(part, copy=False)
        if isinstance(value, dict):
            given |= {f"{name}\0{inner}": member for inner, member in value.items()}
        else:
            given[name] = value
    rows, pieces = _parted({name: given[name] for name in sorted(given)})
    parts = [model, sorted(outputs), rows, *([sorted(parameters.items())] if parameters else ())]
    digest = hashlib.blake2b(_encode(parts), digest_size=_KEY_BYTES)
    for piece in _slices(pieces):
        digest.update(piece)
    return digest.digest()


def packed(answer: Any) -> bytes:
    """Return an answer's bytes; a Payload stands for its content. Raises NoFormError."""
    payload = opened(answer, copy=False)
    if type(payload) is not dict:
        raise NoFormError(f"{type(payload).__name__} is not a plain answer")
    rows, pieces = _parted(payload)
    head = _encode(rows)
    return b"".join([len(head).to_bytes(_SIZE_BYTES, "big"), head, *_slices(pieces)])


def unpacked(value: bytes) -> dict[str, Any]:
    """Return an answer, which owns its arrays. Raises ValueError: the bytes are not an answer."""
    size = int.from_bytes(value[:_SIZE_BYTES], "big")
    at = _SIZE_BYTES + size
    answer: dict[str, Any] = {}
    try:
        for name, kind, *description in _decode(value[_SIZE_BYTES:at]):
            if kind == _ARRAY:
                dtype, shape = _dtype(description[0]), tuple(description[1])
                count = math.prod(shape)
                flat = np.frombuffer(value, dtype, count, at)  # raises if the size is too large
                answer[name] = flat.reshape(shape).copy()
                at += flat.nbytes
                breathe()
            elif kind == _OBJECTS:
                array = np.empty(len(description[1]), object)
                array[:] = description[1]
                answer[name] = array.reshape(description[0])
            else:
                (answer[name],) = description
    except (TypeError, msgspec.MsgspecError, MemoryError) as error:
        raise ValueError(f"no answer's bytes: {error}") from error
    if at != len(value):
        raise ValueError(f"no answer's bytes: {len(value)} of them, expected {at}")
    return answer


def _parted(values: Mapping[str, Any]) -> tuple[list[_Row], list[np.ndarray[Any, Any]]]:
    """Return rows that describe the values, and the arrays whose data follow the rows."""
    rows: list[_Row] = []
    arrays: list[np.ndarray[Any, Any]] = []
    for name, value in values.items():
        if type(name) is not str:
            raise NoFormError(f"a name that is {type(name).__name__}")
        if not isinstance(value, np.ndarray):
            _check_plain(value, _MOST_DEPTH)
            rows.append((name, _PLAIN, value))
        elif value.dtype == object:
            items = value.ravel().tolist()
            if not _ELEMENTS.issuperset(map(type, items)):
                raise NoFormError(f"{name} is an array of objects")
            rows.append((name, _OBJECTS, value.shape, items))
        elif value.dtype.itemsize and (value.dtype.kind in _DATA or value.dtype == _BFLOAT16):
            dtype = value.dtype.name if value.dtype == _BFLOAT16 else value.dtype.str
            rows.append((name, _ARRAY, dtype, value.shape))
            arrays.append(value)
        else:
            raise NoFormError(f"{name} is an array of {value.dtype}")
    return rows, arrays


def _check_plain(value: Any, depth: int) -> None:
    kind = type(value)
    if kind in _SCALARS:
        if kind is int and not -(2**63) <= value < 2**63:
            raise NoFormError("an int of more than 64 bits")
        return
    if not depth or kind not in (list, dict):
        raise NoFormError(f"{kind.__name__} is not plain data")
    if kind is dict and not all(type(key) is str for key in value):
        raise NoFormError("a dict whose keys are not text")
    for item in value.values() if kind is dict else value:
        _check_plain(item, depth - 1)


def _slices(arrays: Iterable[np.ndarray[Any, Any]]) -> Iterator[bytes | memoryview]:
    """Yield the data of arrays in slices; other threads run before each."""
    for array in arrays:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for at in range(0, len(flat), SLICE_BYTES):
            breathe()
            yield flat[at : at + SLICE_BYTES].data


def _dtype(name: str) -> np.dtype[Any]:
    dtype = _BFLOAT16 if name == _BFLOAT16.name else np.dtype(name)
    if dtype.hasobject:
        raise ValueError("an array of objects")
    return dtype


def has_form(outcome: Any) -> bool:
    """Return whether an outcome can probably be written as bytes, by its type."""
    return type(outcome) is dict or isinstance(outcome, Payload)
