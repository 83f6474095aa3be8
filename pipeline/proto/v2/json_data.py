"""A tensor's `data` in the v2 protocol's JSON: lists to numpy arrays and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import orjson

from pipeline.errors import PackageError, PayloadTypeError
from pipeline.proto.pipeline.json_long import LongArray, NotJsonError, UnevenError
from pipeline.proto.pipeline.shapes import MAX_DIMENSIONS
from pipeline.proto.slices import SLICE, Limits, sliced
from pipeline.proto.v2.raw import (
    BYTES,
    DATATYPES,
    MOST,
    Array,
    UnfilledError,
    datatype_of,
    known_dtype,
    object_array,
    shaped,
    size_of,
)

BINARY_ONLY = frozenset(("FP16", "BF16"))
_WHOLE = "whole numbers"
_TAKES: dict[str, tuple[set[type], str]] = {
    "b": ({bool}, "true or false"),
    "i": ({int, float}, _WHOLE),
    "u": ({int, float}, _WHOLE),
    "f": ({float, int}, "numbers"),
}
_EXACT = 2.0**53  # up to here a float is exactly the written integer
_FLOATS = {float}
_NUMBERS = {float, int}
_IN_JSON = (np.dtype(np.float32), np.dtype(np.float64))
_FEW = 256  # so few numbers are quicker one by one
_MOST = float(np.finfo(np.float32).max)  # the other floats are FP64, or have no JSON form
_UNEVEN = "Unable to parse 'data': Shape does not match true shape of 'data' field"
_TRITONS = {  # of each kind of numbers
    "b": "Unable to parse 'data': attempt to access JSON non-boolean as boolean",
    "i": "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
    "u": "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer",
    "f": "Unable to parse 'data': attempt to access JSON non-number as double",
}
_NO_TEXT = "Unable to parse JSON bytes array: attempt to access JSON non-string as string"
_SHOWN = 40  # characters of a value in an error's text


# --- JSON to numpy --------------------------------------------------------------------------


def data_to_array(
    datatype: str,
    shape: Sequence[int],
    data: list[Any] | LongArray,
    limits: Limits | None = None,
) -> Array:
    """Return the array of the elements of `data`, which is flat or nested lists.

    Raises PackageError, with the wrong element and the reason; TooLargeError for more text than
    `limits` allow.
    """
    dtype = known_dtype(datatype)
    size = size_of(shape)
    if size > MOST // dtype.itemsize:
        text = (
            f"element count ({size}) * data type size ({dtype.itemsize}) exceeds maximum allowed "
            f"size ({MOST})"
        )
        raise UnfilledError(text, f"byte size overflow for input {{input}}: {text}")
    is_text = dtype == BYTES
    if is_text:
        (limits or Limits()).check_texts(size)
    if isinstance(data, LongArray):
        if datatype in BINARY_ONLY:
            raise PackageError(f"{datatype} has no JSON form: send it as binary data")
        return shaped(_long(datatype, shape, size, data), shape)
    flat = _flat(data)
    if len(flat) != size:
        raise _miscounted(datatype, shape, size, len(flat))
    if datatype in BINARY_ONLY:
        raise PackageError(f"{datatype} has no JSON form: send it as binary data")
    if is_text:
        return object_array(_utf8(flat), shape)
    return shaped(_numbers(flat, datatype, dtype), shape)


def list_to_array(
    datatype: str, shape: tuple[int, ...], size: int, data: list[Any]
) -> Array | None:
    """Return the array of `size` floats; None for other data."""
    if len(data) != size or set(map(type, data)) != _FLOATS:
        return None
    dtype = DATATYPES[datatype]
    if dtype not in _IN_JSON:
        return None
    array = _floats(data, datatype, dtype)
    return array if len(shape) == 1 else array.reshape(shape)


def are_plain_floats(data: list[Any], size: int) -> bool:
    """Return whether data are a few numbers, `size` of them, finite in each float type of JSON."""
    return len(data) == size and set(map(type, data)) <= _NUMBERS and _are_small(data)


def _long(datatype: str, shape: Sequence[int], size: int, data: LongArray) -> Array:
    """Return the array of a long list; only texts exist as objects all at once."""
    dtype = known_dtype(datatype)
    parts: list[Array] = [np.empty(0, dtype)]
    count = 0
    try:
        for piece in data.flat_pieces():
            if list in set(map(type, piece)):
                raise UnevenError
            if count + len(piece) <= size:
                if dtype == BYTES:
                    parts.append(object_array(_utf8(piece, count), [len(piece)]))
                else:
                    parts.append(_numbers(piece, datatype, dtype, count))
            count += len(piece)
    except UnevenError:
        raise PackageError(
            f"{_UNEVEN}: 'data' has lists of different lengths, or lists and elements, side by side"
        ) from None
    except NotJsonError as error:
        raise PackageError(f"'data' is not valid JSON: {error}") from None
    if count != size:
        raise _miscounted(datatype, shape, size, count)
    return np.concatenate(parts)


def _miscounted(datatype: str, shape: Sequence[int], size: int, count: int) -> PackageError:
    return PackageError(
        f"{_UNEVEN}: {datatype} of shape {shape} has {size} elements, but 'data' holds {count}"
    )


def _flat(data: list[Any]) -> list[Any]:
    """Return the elements of nested lists whose lengths agree."""
    for _ in range(MAX_DIMENSIONS):
        kinds = set(map(type, data))
        if list not in kinds:
            return data
        if len(kinds) > 1:
            raise PackageError(f"{_UNEVEN}: 'data' has lists and elements side by side")
        if len(set(map(len, data))) > 1:
            raise PackageError(f"{_UNEVEN}: 'data' has lists of different lengths side by side")
        data = list(chain.from_iterable(data))
    raise PackageError(f"'data' has lists in more than {MAX_DIMENSIONS} levels")


def _utf8(flat: list[Any], start: int = 0) -> list[bytes]:
    _check_types(flat, {str}, f"{_NO_TEXT}: BYTES takes strings", start)
    return [element.encode() for element in flat]  # orjson refuses strings without a UTF-8 form


def _numbers(flat: list[Any], datatype: str, dtype: np.dtype[Any], start: int = 0) -> Array:
    types, text = _TAKES[dtype.kind]
    _check_types(flat, types, f"{_TRITONS[dtype.kind]}: {datatype} takes {text}", start)
    if not flat:
        return np.empty(0, dtype)
    if dtype.kind in "iu":
        flat = _whole(flat, datatype, start)
        limits = np.iinfo(dtype)
        for extreme in (min(flat), max(flat)):
            if not limits.min <= extreme <= limits.max:
                raise PackageError(f"'data' holds {shown(extreme)}, which no {datatype} can be")
        return np.array(flat, dtype)
    if dtype.kind == "f":
        return _floats(flat, datatype, dtype)
    return np.array(flat, dtype)


def _whole(flat: list[Any], datatype: str, start: int) -> list[int]:
    """Return the elements as integers; some clients write 1 as 1.0, which JSON allows."""
    if float not in set(map(type, flat)):
        return flat
    for index, element in enumerate(flat):
        if type(element) is float and not (element.is_integer() and abs(element) <= _EXACT):
            text = f"{_TRITONS[np.dtype(DATATYPES[datatype]).kind]}: {datatype} takes {_WHOLE}"
            raise PackageError(_wrong_type(text, start + index, element))
    return [int(element) for element in flat]


def _floats(flat: list[Any], datatype: str, dtype: np.dtype[Any]) -> Array:
    if dtype == np.float64 or _are_small(flat):
        return np.array(flat, dtype)
    wide = np.array(flat, np.float64)
    with np.errstate(over="ignore"):
        narrow = wide.astype(dtype)
    lost = np.isinf(narrow) & np.isfinite(wide)
    if lost.any():
        raise PackageError(f"'data' holds {wide[lost][0]}, which no {datatype} can be")
    return narrow


def _are_small(flat: list[Any]) -> bool:
    """Return whether a few numbers are surely finite as FP32; NaN fails both comparisons."""
    return 0 < len(flat) <= _FEW and min(flat) >= -_MOST and max(flat) <= _MOST


def _check_types(flat: list[Any], types: set[type], text: str, start: int) -> None:
    if set(map(type, flat)) <= types:
        return
    index, element = next(pair for pair in enumerate(flat) if type(pair[1]) not in types)
    raise PackageError(_wrong_type(text, start + index, element))


def _wrong_type(text: str, index: int, element: Any) -> str:
    return f"{text}, but element {index} of 'data' is {shown(element)}"


# --- numpy to JSON --------------------------------------------------------------------------


def array_to_data(array: Array, limits: Limits | None = None) -> Any:
    """Return the elements as `orjson.dumps` takes them with OPT_SERIALIZE_NUMPY, flat.

    Raises PackageError, with an alternative, for elements without a JSON form, TooLargeError for
    more JSON than `limits` allow, and PayloadTypeError for a dtype or element that the protocol
    lacks.
    """
    datatype = datatype_of(array.dtype)
    if datatype in BINARY_ONLY:
        raise PackageError(f"{datatype} has no JSON form: ask for it with 'binary_data'")
    if array.size > SLICE:
        return _in_slices(array, datatype, limits or Limits())
    return _data(array, datatype)


def _in_slices(array: Array, datatype: str, limits: Limits) -> orjson.Fragment:
    """Return the text of many elements."""
    size = 2 * array.size  # of the shortest elements
    parts: list[bytes] = []
    for part in sliced(array.reshape(-1)):
        limits.check_json(size, "ask for it with 'binary_data'")
        data = _data(part, datatype)
        parts.append(orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1])
        size += len(parts[-1]) - 2 * len(part)
    return orjson.Fragment(b"[%b]" % b",".join(parts))


def _data(array: Array, datatype: str) -> Any:
    if datatype == "BYTES":
        return [_text(element) for element in array.ravel().tolist()]
    flat = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).ravel()
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        return orjson.Fragment(json.dumps(flat.tolist(), separators=(",", ":")))
    return flat


def _text(element: object) -> str:
    if isinstance(element, str):
        return element
    if not isinstance(element, bytes):
        raise PayloadTypeError(f"an element of BYTES is str or bytes, not {type(element).__name__}")
    try:
        return element.decode()
    except UnicodeDecodeError:
        raise PackageError(
            "it has bytes that are no UTF-8, so no JSON form: ask for it with 'binary_data'"
        ) from None


def shown(value: Any) -> str:
    """Return a short text of a JSON value for an error."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, str):
        value = value[:_SHOWN] + "..." if len(value) > _SHOWN else value
    return json.dumps(value)
