"""Values of each type of protobuf field as they stand in proto3 JSON, read strictly.

The verdict is that of Go's protojson, with two exceptions. An integer of 2^53 or more that is
written with a point or an exponent is refused: orjson hands it on as a double, of which nobody
knows whether it is what was written. Base64 may be broken into lines anywhere, not only where the
length happens to remain a multiple of four.
"""

from __future__ import annotations

import binascii
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from pipeline.errors import PackageError

_INEXACT = 2.0**53  # the first double that stands for more than one integer
_FLOAT32_END = 2.0**128 - 2.0**103  # the first number that no float32 is the nearest to
_SPECIAL_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_FROM_URL_SAFE = str.maketrans("-_+/", "+/!!")  # one alphabet or the other
_MAX_SHOWN = 40  # characters
_NOT_SHOWN = re.compile(r'[\x00-\x1f"\\\x7f]')  # in the name of a field


@dataclass(frozen=True, slots=True, eq=False)
class FieldKind:
    """A type of fields.

    Attributes:
        expected: what stands in JSON for it, to tell who sent something else.
        plain: the types of values that protobuf takes as they are, but for their range.
        read: what protobuf takes for a value of JSON; ValueError: the value is none of this kind.
        is_checked: protobuf itself refuses all other types, with TypeError.
    """

    expected: str
    plain: frozenset[type]
    read: Callable[[Any], Any]
    is_checked: bool = False

    def takes(self, value: Any) -> bool:
        """Return whether a value of JSON is of this kind."""
        try:
            self.read(value)
        except ValueError:
            return False
        return True


@dataclass(frozen=True, slots=True, eq=False)
class JsonField:
    """A field of a message that is no message itself; `name` is the original one."""

    name: str
    kind: FieldKind
    is_repeated: bool


def fields_of(message: type[Message]) -> dict[str, JsonField]:
    """Return a message's plain fields, by their original and their camelCase names."""
    found = {}
    for field in message.DESCRIPTOR.fields:
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            known = JsonField(field.name, _KINDS[field.type], field.is_repeated)
            found[field.name] = found[field.json_name] = known
    return found


def shown(value: Any) -> str:
    """Return a line of text that shows a value of JSON."""
    if type(value) is list:
        return "an array"
    if type(value) is dict:
        return "an object"
    if type(value) is str and len(value) > _MAX_SHOWN:
        return f"a string of {len(value)} characters"
    return orjson.dumps(value).decode()


def no_data_error(spelling: str) -> PackageError:
    """Return what is told who sent fields of their own; gateways say the same (nodata.go)."""
    is_shown = len(spelling) <= _MAX_SHOWN and not _NOT_SHOWN.search(spelling)
    found = f'the field "{spelling}"' if is_shown else "other fields"
    return PackageError(
        f"the request has {found} and none of key, value and tensors; expected pairs, like "
        '{"key": ["x"], "value": ["0.1"]}, or tensors; POST /api/<name> takes plain JSON, '
        'like {"x": 0.1}'
    )


# Readers ------------------------------------------------------------------------------------


def _number(value: Any) -> int | float:
    """Return a number; also one in a string with nothing else in it."""
    if type(value) is str and value == value.strip():
        value = orjson.loads(value)
    if type(value) is int or type(value) is float:
        return value
    raise ValueError


def _integers(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        number = value if type(value) is int else _number(value)
        if type(number) is float and number.is_integer() and abs(number) < _INEXACT:
            number = int(number)
        if type(number) is int and low <= number <= high:
            return number
        raise ValueError

    return read


def _floats(end: float) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if type(value) is str and value in _SPECIAL_FLOATS:
            return _SPECIAL_FLOATS[value]
        if -end < _number(value) < end:
            return float(value)  # of "-0" too, which orjson takes for an integer
        raise ValueError

    return read


def _exactly(wanted: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is wanted:
            return value
        raise ValueError

    return read


def _bytes(value: Any) -> bytes:
    if type(value) is not str:
        raise ValueError
    text = value
    if "\n" in text or "\r" in text:  # many tools write base64 in lines
        text = text.replace("\r", "").replace("\n", "")
    if "-" in text or "_" in text:
        text = text.translate(_FROM_URL_SAFE)
    digits = text.rstrip("=")
    padded = digits + "=" * (-len(digits) % 4)
    if text not in (digits, padded):
        raise ValueError
    return binascii.a2b_base64(padded, strict_mode=True)


_INTEGER, _FLOAT = frozenset({int}), frozenset({int, float})
_OR_SPECIAL = 'or "NaN", "Infinity", "-Infinity"'
_KINDS = {
    FieldDescriptor.TYPE_INT32: FieldKind(
        "an integer of 32 bits", _INTEGER, _integers(-(2**31), 2**31 - 1)
    ),
    FieldDescriptor.TYPE_UINT32: FieldKind(
        "an integer of 32 bits without a sign", _INTEGER, _integers(0, 2**32 - 1)
    ),
    FieldDescriptor.TYPE_INT64: FieldKind(
        "an integer of 64 bits, from 2^53 on without point and exponent",
        _INTEGER,
        _integers(-(2**63), 2**63 - 1),
    ),
    FieldDescriptor.TYPE_UINT64: FieldKind(
        "an integer of 64 bits without a sign, from 2^53 on without point and exponent",
        _INTEGER,
        _integers(0, 2**64 - 1),
    ),
    FieldDescriptor.TYPE_FLOAT: FieldKind(
        f"a number in the range of float32 {_OR_SPECIAL}", _FLOAT, _floats(_FLOAT32_END)
    ),
    FieldDescriptor.TYPE_DOUBLE: FieldKind(f"a number {_OR_SPECIAL}", _FLOAT, _floats(math.inf)),
    FieldDescriptor.TYPE_BOOL: FieldKind("true or false", frozenset({bool}), _exactly(bool)),
    FieldDescriptor.TYPE_STRING: FieldKind(
        "a string", frozenset({str}), _exactly(str), is_checked=True
    ),
    FieldDescriptor.TYPE_BYTES: FieldKind("a string of base64", frozenset(), _bytes),
}
