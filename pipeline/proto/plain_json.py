"""Plain JSON: a request's fields as one object, with values as JSON has them.

The values are those of `json.loads`, including integers of any size. `plain_answer` writes
answers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import msgspec
import orjson

from pipeline.errors import PackageError, TooLargeError
from pipeline.proto.pipeline.json_long import LongArray
from pipeline.proto.slices import MAX_TENSORS, Limits, breathe

MAX_DEPTH = 100
"""Limit of nested lists and objects."""

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_NOT_SHAPE = bytes(set(range(256)) - set(b"[]{}:"))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_MAX_EXPLAINED_BYTES = 2**20  # of a body that is read again for the place of its error
_PIECE_BYTES = 128 * 1024  # of JSON that is read without a pause
_EXAMPLE = '{"x": [0.1, 0.2]}'

_decode = msgspec.json.Decoder().decode
_raw_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_raw_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


def read_object(body: bytes, what: str = "the request") -> dict[str, Any]:
    """Return the fields of a JSON object of at most SHORT_BYTES; `what` names it in errors.

    Raises:
        PackageError: it is not valid JSON or not an object, a key occurs twice, it is nested too
            deeply, or a number is out of range. The text says where, and what to do.
    """
    if len(body) <= MAX_DEPTH:  # most are too short to be too deep
        try:
            fields = _decode(body)
        except (msgspec.MsgspecError, ValueError):
            _explain(body, what)
        if type(fields) is dict and body.count(b":") == len(fields):  # no key occurs twice
            return fields
    return _object(read_value(body, what), what)


def read_large_object(body: bytes, limits: Limits, what: str = "the request") -> dict[str, Any]:
    """Return what `read_object` does; other threads run between slices.

    Also raises TooLargeError, for more strings than `limits` allow.
    """
    return _object(read_large_value(body, limits, what), what)


def read_value(body: bytes, what: str) -> Any:
    """Return any value of JSON, as `read_object` does."""
    nested = body.count(b"[") + body.count(b"{")
    if nested > MAX_DEPTH and _is_too_deep(_shape_of(body)):
        raise _too_deep(what)
    try:
        value = _decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        _explain(body, what)
    colons = body.count(b":")
    if not _has_all(value, colons) and _shape_of(body).count(b":") != _keys_in(value):
        _explain(body, what)
    return value


def read_large_value(body: bytes, limits: Limits, what: str) -> Any:
    """Return any value of JSON, as `read_large_object` does."""
    if len(body) > limits.json_bytes:
        raise TooLargeError(
            f"{what} is larger than max_json_bytes ({limits.json_bytes} bytes): send less at once"
        )
    limits.check_texts(body.count(b'"') // 2)
    view = memoryview(body.strip())
    if bytes(view[:1]) not in (b"{", b"["):
        return read_value(body, what)
    try:
        shape = _large_shape(view)
        limits.check_objects(shape.count(b"[") + shape.count(b"{"), what)
        if _is_too_deep(shape):
            raise _too_deep(what)
        value = _read(view)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        _explain(body, what)
    colons = shape.count(b":")
    if not _has_all(value, colons) and colons != _keys_in(value):
        _explain(body, what)
    return value


def _has_all(value: Any, colons: int) -> bool:
    """Return whether a value has as many keys as colons at first sight, as most have."""
    return not colons or (type(value) is dict and colons == len(value))


def _object(value: Any, what: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise PackageError(f"{what} must be a JSON object like {_EXAMPLE}, not {_kind(value)}")
    return value


def _read(view: memoryview) -> Any:
    """Return the value of a text; other threads run between its pieces."""
    kind = bytes(view[:1])
    if len(view) <= _PIECE_BYTES or kind not in (b"{", b"["):
        return _decode(view)
    if kind == b"{" or bytes(view[1:64]).lstrip()[:1] not in (b"[", b"{"):
        try:
            return _flat(view)
        except msgspec.DecodeError:  # there are lists or objects in it
            pass
    if kind == b"[":
        return [_read(element) for element in _breathing(_raw_elements(view))]
    members = _raw_members(view)
    return dict(zip(members, map(_read, _breathing(members.values())), strict=True))


def _breathing(raw: Iterable[Any]) -> Iterator[memoryview]:
    """Yield texts to read; other threads run after each piece."""
    behind = _PIECE_BYTES
    for element in raw:
        text = memoryview(element)
        behind += len(text)
        if behind > _PIECE_BYTES:
            breathe()
            behind = 0
        yield text


def _flat(view: memoryview) -> Any:
    """Return a list or object without lists and objects in it.

    Raises msgspec.DecodeError: it has some, or it is not valid JSON.
    """
    is_list = bytes(view[:1]) == b"["
    if bytes(view[-1:]) != (b"]" if is_list else b"}"):
        raise msgspec.DecodeError("the end is another one")
    elements: list[Any] = []
    members: dict[str, Any] = {}
    for window in LongArray(view).windows():
        if is_list:
            elements += _decode(b"[%b]" % window)
        else:
            members.update(_decode(b"{%b}" % window))
    return elements if is_list else members


def _shape_of(text: bytes) -> bytes:
    """Return the brackets and colons of a text that are outside of strings."""
    return _STRING.sub(b"", text).translate(None, _NOT_SHAPE)


def _large_shape(view: memoryview) -> bytes:
    windows = b"".join(_shape_of(window) for window in LongArray(view).windows())
    return bytes(view[:1]) + windows + bytes(view[-1:])


def check_members(body: bytes) -> None:
    """Raise TooLargeError if a request's objects have too many members.

    It only counts them. The reader refuses invalid JSON.
    """
    if body.count(b":") <= MAX_TENSORS:  # as nearly always
        return
    text = memoryview(body.strip())
    if bytes(text[:1]) == b"{" and _large_shape(text).count(b":") > MAX_TENSORS:
        raise TooLargeError(f"the request has more than {MAX_TENSORS} members")


def _is_too_deep(shape: bytes) -> bool:
    """Return whether brackets are nested deeper than MAX_DEPTH."""
    brackets = shape.translate(_ONE_KIND, b":")
    for _ in range(MAX_DEPTH):
        breathe()
        fewer = brackets.replace(b"[]", b"")  # removes the innermost level
        if len(fewer) == len(brackets):  # none is left, or the parser will refuse the JSON
            return fewer.count(b"[") > MAX_DEPTH
        brackets = fewer
    return bool(brackets)


def _too_deep(what: str) -> PackageError:
    text = f"{what} is nested too deeply: {MAX_DEPTH} lists and objects may stand in each other"
    return PackageError(text)


def _keys_in(value: Any) -> int:
    """Count the keys of all objects in a value."""
    if type(value) is dict:
        return len(value) + sum(
            _keys_in(item) for item in value.values() if type(item) in (dict, list)
        )
    if type(value) is not list:
        return 0
    return sum(_keys_in(item) for item in value if type(item) in (dict, list))


# --- what is wrong with it --------------------------------------------------------------------


class _TwiceError(Exception):
    """A key occurs twice in an object."""


def _explain(body: bytes, what: str) -> NoReturn:
    """Raise the PackageError for a text that is not valid or has a key twice."""
    if not body.strip():
        raise PackageError(f"{what} is empty: send a JSON object like {_EXAMPLE}")
    if len(body) > _MAX_EXPLAINED_BYTES:
        raise PackageError(f"{what} is not JSON, or has a key twice or a number that is too large")
    try:
        text = body.decode()
        value = json.loads(text, object_pairs_hook=_once, parse_int=_whole, parse_constant=_mark)
    except UnicodeDecodeError as error:
        raise PackageError(f"{what} is not UTF-8: {error.reason} at byte {error.start}") from None
    except _TwiceError as error:
        raise PackageError(
            f"{what} has the key {error} twice in one object: send it once"
        ) from None
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{what} is not JSON: {error}") from None
    place, number = _odd_number(value, "") or ("", "")
    if number:
        raise PackageError(
            f"{what}'s {place or 'value'} is {number}, which JSON cannot hold: send null, or a "
            "number within the range of a double; whole ones may have 4300 digits"
        )
    try:  # for example, a lone surrogate
        orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise PackageError(f"{what} is not JSON: {error}") from None
    raise PackageError(f"{what} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen: set[str] = set()
        raise _TwiceError(next(repr(k) for k, _ in pairs if k in seen or seen.add(k)))  # type: ignore[func-returns-value]
    return fields


class _Odd(str):
    """The text of a number that is out of range."""


def _mark(text: str) -> Any:
    return _Odd(text)


def _whole(text: str) -> Any:
    return 0 if len(text) < 4000 else _Odd(f"a number of {len(text)} digits")


def _odd_number(value: Any, path: str) -> tuple[str, str] | None:
    """Return the path and the text of a number that is out of range."""
    if type(value) is _Odd:
        return path, str(value)
    if type(value) is float and math.isinf(value):
        return path, "a number beyond the range of a double"
    items: Any = ()
    if type(value) is dict:
        items = ((below(path, name), item) for name, item in value.items())
    elif type(value) is list:
        items = ((f"{path}[{at}]", item) for at, item in enumerate(value))
    return next(filter(None, (_odd_number(item, where) for where, item in items)), None)


def below(path: str, name: object) -> str:
    """Return the path of the member `name` of the object at `path`."""
    return f"{path}.{name}" if path else str(name)


def _kind(value: object) -> str:
    """Return the type of a JSON value in words."""
    kinds = {list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
