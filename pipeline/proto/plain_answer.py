"""Plain answers: an answer's fields as one JSON object.

Values that JSON lacks take its nearest form: arrays become nested lists, NaN and the infinities
null, and bytes base64.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import orjson

from pipeline.errors import PayloadTypeError, utf8_text
from pipeline.proto.plain_json import MAX_DEPTH, below
from pipeline.proto.slices import SHORT_BYTES, SLICE, Limits, breathe, weight

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY
_dumps = orjson.dumps


def write_object(payload: Mapping[Any, Any]) -> bytes:
    """Return the JSON of an answer that is not large.

    Raises:
        PayloadTypeError: a value has no form in JSON; the text has its path and type.
    """
    try:
        return _dumps(payload, _default, _OPTIONS)
    except (TypeError, ValueError):
        return msgspec.json.encode(_plain(payload, ""))


def write_large_object(payload: Mapping[Any, Any], limits: Limits) -> bytes:
    """Return what `write_object` does; other threads run between slices.

    Also raises TooLargeError, for JSON above `limits`.
    """
    pieces: list[bytes] = []
    size = 0
    for at, (name, value) in enumerate(payload.items()):
        pieces.append(b"%b%b:" % (b"," if at else b"{", _key(name)))
        for piece in _written(value, str(name)):
            breathe()
            pieces.append(piece)
            size += len(piece)
            limits.check_json(size, "answer with less, or ask for tensors over the v2 protocol")
    pieces.append(b"}" if payload else b"{}")
    return b"".join(pieces)


def _written(value: Any, path: str) -> Any:
    """Yield the JSON of a value in pieces, each of which is quick to make."""
    if isinstance(value, np.ndarray) and value.ndim and value.size > SLICE:
        rows = max(1, SLICE * len(value) // value.size)
        yield from _listed(value, rows, path)
    elif isinstance(value, list | tuple) and len(value) > SLICE:
        yield from _listed(value, SLICE, path)
    elif isinstance(value, list | tuple) and weight(value) > SHORT_BYTES:
        yield from _listed(value, 1, path)
    else:
        yield _one(value, path)


def _listed(values: Any, size: int, path: str) -> Any:
    for at in range(0, len(values), size):
        yield b"," if at else b"["
        if size == 1:
            yield from _written(values[at], f"{path}[{at}]")
        else:
            yield _one(values[at : at + size], path, at)[1:-1]
    yield b"]"


def _one(value: Any, path: str, first: int = 0) -> bytes:
    """Return the JSON of a value; `first` is the index of the first element of a slice."""
    try:
        return _dumps(value, _default, _OPTIONS)
    except (TypeError, ValueError):
        return msgspec.json.encode(_plain(value, path, first))


def _key(name: Any) -> bytes:
    return _dumps(utf8_text(str(name)))


def _default(value: Any) -> Any:
    """Convert a value of a type that orjson lacks."""
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, np.ndarray):
        return json_elements(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if isinstance(value, set | frozenset):
        return list(value)
    dump = getattr(value, "model_dump", None)  # pydantic may not be installed
    if dump is not None:
        return dump()
    raise TypeError


def json_elements(array: np.ndarray[Any, Any]) -> Any:
    """Return an array that orjson accepts, otherwise its elements."""
    if array.dtype.kind in "iufb" and array.ndim:
        native = array.dtype.newbyteorder("=")
        return np.ascontiguousarray(array, native).reshape(array.shape)
    if array.dtype.name == "bfloat16":
        return array.astype(np.float32, "C") if array.ndim else float(array)
    return array.tolist()


_AS_IS = (str, bool, int, type(None))


def _plain(value: Any, path: str, first: int = 0, depth: int = 0) -> Any:
    """Return a value of JSON's types. Raises PayloadTypeError with the path."""
    if depth > MAX_DEPTH:
        raise PayloadTypeError(f"the answer's {_shown(path)} is nested too deeply for JSON")
    if type(value) is str:
        return utf8_text(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, _AS_IS):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, Mapping):
        return {
            utf8_text(str(name)): _plain(item, below(path, name), 0, depth + 1)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [
            _plain(item, f"{path}[{first + at}]", 0, depth + 1) for at, item in enumerate(value)
        ]
    try:
        if isinstance(value, np.ndarray) and value.dtype.kind in "iufb":
            return _plain(value.tolist(), path, first, depth)
        try:
            known = _default(value)
        except TypeError:
            known = orjson.loads(_dumps(value))  # for example, a date
    except Exception as error:
        raise PayloadTypeError(
            f"the answer's {_shown(path)} is of type {type(value).__name__}, which has no form in "
            "JSON: answer with numbers, text, bytes, lists, dicts or arrays"
        ) from error
    return _plain(known, path, first, depth + 1)


def _shown(path: str) -> str:
    return path or "value"
