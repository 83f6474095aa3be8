"""Requests and responses as proto3 JSON: read strictly, so that nothing is lost silently.

It accepts what Go's protojson accepts, so that the gateway and the server's own frontend agree.
There are three exceptions. A field may occur twice. An integer of 2^53 or more with a point or an
exponent is refused: orjson returns it as a double, which may be another number. Base64 may have
line breaks anywhere, not only where the length remains a multiple of four.
`google.protobuf.json_format` is ten times as slow, and accepts half of a broken base64 text, "1_0"
for 10 and "1e39" for an infinite float32.
"""

from __future__ import annotations

import base64
import binascii
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from pipeline.errors import PackageError
from pipeline.proto.pipeline.blocks import PACKED_DTYPES, read_packed, write_packed
from pipeline.proto.pipeline.json_long import (
    LongArray,
    NotJsonError,
    UnevenError,
    check_utf8,
    elements_of,
    first_other,
    members_of,
    struct_of,
    value_of,
)
from pipeline.proto.pipeline.response import (
    LargeResponse,
    LargeTensor,
    base64_pieces,
    number_pieces,
)
from pipeline.proto.pipeline_service_pb2 import Request, Response, Tensor
from pipeline.proto.slices import SHORT_BYTES, Limits, breathe, sliced

_INEXACT = 2.0**53  # the first double that stands for more than one integer
_FLOAT32_END = 2.0**128 - 2.0**103  # the first number that rounds to no finite float32
_SPECIAL_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_FROM_URL_SAFE = str.maketrans("-_+/", "+/!!")  # both alphabets are allowed, not a mixture
_MAX_SHOWN = 40  # characters
_NOT_SHOWN = re.compile(r'[\x00-\x1f"\\\x7f]')  # in the name of a field


@dataclass(frozen=True, slots=True, eq=False)
class FieldKind:
    """A type of fields.

    Attributes:
        expected: its form in JSON, for errors.
        plain: the Python types that protobuf accepts unchanged, apart from their range.
        read: converts a value of JSON for protobuf; ValueError: the value is not of this kind.
        is_checked: whether protobuf itself refuses all other types with TypeError.
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
    """A field of a message that is not a message itself; `name` is the original one."""

    name: str
    kind: FieldKind
    is_repeated: bool


def fields_of(message: type[Message]) -> dict[str, JsonField]:
    """Return a message's plain fields, by their original and their camelCase names."""
    fields = {}
    for field in message.DESCRIPTOR.fields:
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            known = JsonField(field.name, _KINDS[field.type], field.is_repeated)
            fields[field.name] = fields[field.json_name] = known
    return fields


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
    """Return the error for unknown fields without data; the gateway has the same (nodata.go)."""
    is_shown = len(spelling) <= _MAX_SHOWN and not _NOT_SHOWN.search(spelling)
    shown_as = f'the field "{spelling}"' if is_shown else "other fields"
    return PackageError(
        f"the request has {shown_as} and none of key, value and tensors; expected pairs, like "
        '{"key": ["x"], "value": ["0.1"]}, or tensors; POST /api/<name> takes plain JSON, '
        'like {"x": 0.1}'
    )


# Readers ------------------------------------------------------------------------------------


def _number(value: Any) -> int | float:
    """Return a number, or the number that a string consists of."""
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
            return float(value)  # also for "-0", which orjson reads as an integer
        raise ValueError

    return read


def _exactly(expected: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is expected:
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


_REQUEST = "the request"
_REQUEST_FIELDS = fields_of(Request)
_TENSOR_FIELDS = fields_of(Tensor)
_RESPONSE_FIELDS = fields_of(Response)
_REQUEST_STRUCT = struct_of([*_REQUEST_FIELDS, "tensors"])
_TENSOR_STRUCT = struct_of([*_TENSOR_FIELDS])
_KNOWN_STRUCT = struct_of([*_REQUEST_FIELDS, "tensors"], forbids_others=True)
_DATA_FIELDS = frozenset({"key", "value", "tensors"})
_FLOAT_FIELDS = frozenset(PACKED_DTYPES) - {"bool_data"}


# --- JSON to message ------------------------------------------------------------------------


def request_from_json(body: bytes, name: str, method: str) -> Request:
    """Return the request that was posted to `/{name}/{method}`.

    `name` and `method` take precedence over those of the body. An empty body is an empty request.
    Unknown fields are ignored, and `null` is a field's default. Field names may be the original or
    the lowerCamelCase ones. The last of two occurrences of a field counts.

    Raises:
        PackageError: the body is not valid JSON; or a value is not of its field's type: the text
            has the path and the expected type; or all data are in unknown fields, as in plain JSON.
            A number beyond the range of a double, such as 1e999, is not valid in any field.
    """
    if not body:
        return Request(name=name, method=method)
    fields = object_of(body)
    request = Request()
    fill(request, fields, _REQUEST_FIELDS, "")
    request.name = name
    request.method = method
    tensors = fields.get("tensors")
    if tensors is not None:
        _add_tensors(request, tensors)
    elif "key" not in fields and "value" not in fields and "tensors" not in fields:
        for spelling in fields:
            if spelling not in _REQUEST_FIELDS:
                raise no_data_error(spelling)
    return request


def response_from_json(body: bytes) -> Response:
    """Return the response that a server wrote. Raises PackageError: the answer is not valid."""
    try:
        return _response_of(object_of(body))
    except PackageError as error:
        reason = str(error).removeprefix(_REQUEST)
        raise PackageError(f"the answer{reason}") from None


def _response_of(fields: dict[str, Any]) -> Response:
    response = Response()
    fill(response, fields, _RESPONSE_FIELDS, "")
    if fields.get("tensors") is not None:
        _add_tensors(response, fields["tensors"])
    return response


def object_of(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a request. Raises PackageError: it is not an object."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise PackageError(f"{_REQUEST} is not JSON: {error}") from None
    if type(fields) is not dict:
        raise PackageError(f"{_REQUEST} must be a JSON object, not {shown(fields)}")
    return fields


def large_request_from_json(bodies: list[bytes], name: str, method: str, limits: Limits) -> Request:
    """Read the request in the only item of `bodies`, which is too large to be read at once.

    It is removed from the list, so that its memory can be freed.

    Numbers beyond the range of a double are not noticed in unknown fields. Also raises
    TooLargeError, for more strings than `limits` allow.
    """
    body = bodies.pop()
    try:
        check_utf8(body)
        members = members_of(body, _REQUEST_STRUCT)
    except TypeError:
        start = orjson.loads(body) if len(body) <= SHORT_BYTES else body[:1]
        what = "an array" if body.lstrip()[:1] == b"[" else shown(start)
        raise PackageError(f"{_REQUEST} must be a JSON object, not {what}") from None
    except NotJsonError as error:
        raise _not_json(error) from None
    unknown = None if _DATA_FIELDS & members.keys() else first_other(body, _KNOWN_STRUCT)
    del body
    tensors = members.pop("tensors", None)
    request = Request()
    fill(request, _values(members), _REQUEST_FIELDS, "", limits)
    request.name = name
    request.method = method
    del members
    if unknown is not None:
        raise no_data_error(unknown)
    if tensors is not None:
        _add_large_tensors(request, tensors, limits)
    texts = len(request.key) + len(request.value) + sum(len(t.str_data) for t in request.tensors)
    limits.check_texts(texts)
    return request


def _values(members: dict[str, memoryview]) -> dict[str, Any]:
    try:
        return {spelling: value_of(text) for spelling, text in members.items()}
    except NotJsonError as error:
        raise _not_json(error) from None


def _not_json(error: NotJsonError) -> PackageError:
    return PackageError(f"{_REQUEST} is not JSON: {error}")


def _add_large_tensors(request: Request, text: memoryview, limits: Limits) -> None:
    if bytes(text[:1]) != b"[":
        value = value_of(text)
        if value is not None:
            raise _misfit("tensors", "an array", value)
        return
    try:
        elements = elements_of(text, _TENSOR_STRUCT, "tensors")
    except TypeError as error:
        found_at = re.search(r"\$\[(\d+)\]", str(error))
        place = f"tensors[{found_at[1] if found_at else 0}]"
        raise PackageError(
            f"{_REQUEST} does not fit its message: {place} must be an object: {error}"
        ) from None
    for at, members in enumerate(elements):
        tensor = request.tensors.add()
        fill(tensor, _values(members), _TENSOR_FIELDS, f"tensors[{at}].", limits)
        breathe()


def _add_tensors(request: Request | Response, tensors: Any) -> None:
    if type(tensors) is not list:
        raise _misfit("tensors", "an array", tensors)
    for at, fields in enumerate(tensors):
        if type(fields) is not dict:
            raise _misfit(f"tensors[{at}]", "an object", fields)
        fill(request.tensors.add(), fields, _TENSOR_FIELDS, f"tensors[{at}].")


def fill(
    message: Message,
    fields: dict[str, Any],
    known: dict[str, JsonField],
    path: str,
    limits: Limits | None = None,
) -> None:
    """Set the fields of an empty message; `path` is its path in the request.

    `limits` are required where a field may be a LongArray.
    """
    for spelling, value in fields.items():
        field = known.get(spelling)
        if field is None:
            continue
        if value is None:
            message.ClearField(field.name)
        elif field.is_repeated:
            if limits is not None and type(value) is LongArray:
                _set_long(message, field, value, path, limits)
            else:
                _set_list(message, field, value, path)
        else:
            kind = field.kind
            try:
                plain = value if type(value) in kind.plain else kind.read(value)
                setattr(message, field.name, plain)
            except ValueError:
                raise _misfit(path + field.name, kind.expected, value) from None


def _set_list(message: Message, field: JsonField, values: Any, path: str, start: int = 0) -> None:
    """Set a repeated field from values, the first of which is element `start` of the list."""
    if type(values) is not list:
        raise _misfit(path + field.name, "an array", values)
    kind, plain = field.kind, values
    if str in kind.plain and None in values:  # the predecessor's gateway reads null as this
        plain = values = ["" if item is None else item for item in values]
    try:
        if not kind.is_checked and not kind.plain.issuperset(map(type, values)):
            plain = [item if type(item) in kind.plain else kind.read(item) for item in values]
        if field.name in _FLOAT_FIELDS:
            _set_floats(message, field.name, plain)
        else:
            getattr(message, field.name)[:] = plain
    except (TypeError, ValueError, FloatingPointError):
        at = next(at for at, item in enumerate(values) if not kind.takes(item))
        raise _misfit(f"{path}{field.name}[{start + at}]", kind.expected, values[at]) from None


def _set_long(
    message: Message, field: JsonField, values: LongArray, path: str, limits: Limits
) -> None:
    message.ClearField(field.name)
    numbers: list[np.ndarray[Any, Any]] = []
    at = 0
    try:
        for piece in values.pieces():
            if str in field.kind.plain and set(map(type, piece)) == {str}:
                getattr(message, field.name).extend(piece)
            elif field.name in _FLOAT_FIELDS:
                numbers.append(_plain(field, piece, at, path))
            else:
                getattr(message, field.name).extend(_plain(field, piece, at, path))
            at += len(piece)
            if str in field.kind.plain:
                limits.check_texts(at)
    except UnevenError:
        place = f"{path}{field.name}[{values.index_of_container()}]"
        raise _misfit(place, field.kind.expected, []) from None
    except NotJsonError as error:
        raise _not_json(error) from None
    if numbers:
        write_packed(message, field.name, np.concatenate(numbers))


def _plain(field: JsonField, values: list[Any], start: int, path: str) -> Any:
    """Return a piece of a list for the message; `start` is the index of its first element."""
    part = Tensor() if field.name in _TENSOR_FIELDS else Request()
    _set_list(part, field, values, path, start)
    is_float = field.name in _FLOAT_FIELDS
    return read_packed(part, field.name) if is_float else getattr(part, field.name)


def _set_floats(message: Message, field: str, values: list[Any]) -> None:
    """Set many numbers through numpy. Raises FloatingPointError: a number is out of range."""
    message.ClearField(field)
    with np.errstate(over="raise"):
        write_packed(message, field, np.array(values, np.float64))


def _misfit(place: str, expected: str, value: Any) -> PackageError:
    actual = "an array" if type(value) is LongArray else shown(value)
    return PackageError(
        f"{_REQUEST} does not fit its message: {place} must be {expected}, not {actual}"
    )


# --- message to JSON ------------------------------------------------------------------------


def request_to_json(request: Request) -> bytes:
    """Return the JSON object of a request without name and method, which are in the path."""
    return orjson.dumps(
        {
            "key": request.key[:],
            "value": request.value[:],
            "logid": f"{request.logid}",
            "clientip": request.clientip,
            "tensors": [_tensor_to_json(tensor) for tensor in request.tensors],
        },
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


def response_to_json(response: Response) -> bytes:
    """Return the JSON object of a response: all fields, by their original names."""
    tensors = response.tensors
    return orjson.dumps(
        {
            "err_no": response.err_no,
            "err_msg": response.err_msg,
            "key": response.key[:],
            "value": response.value[:],
            "tensors": [_tensor_to_json(tensor) for tensor in tensors] if tensors else [],
        },
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


def large_response_to_json(response: LargeResponse, limits: Limits) -> bytes:
    """Return the JSON of an answer that is too large to be written at once.

    Raises TooLargeError for more JSON than `limits` allow.
    """
    head = response.head
    fields = {
        "err_no": head.err_no,
        "err_msg": head.err_msg,
        "key": _fragment(_strings(head.key), limits),
        "value": _fragment(_strings(head.value), limits),
        "tensors": [_large_tensor_to_json(tensor, limits) for tensor in response.tensors],
    }
    text = orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)
    limits.check_json(len(text), _ASK_GRPC)
    return text


_ASK_GRPC = "ask over gRPC"


def _fragment(pieces: Iterable[bytes], limits: Limits) -> orjson.Fragment:
    """Return a JSON list of elements."""
    parts: list[bytes] = []
    size = 0
    for piece in pieces:
        parts.append(piece)
        size += len(piece)
        limits.check_json(size, _ASK_GRPC)
    return orjson.Fragment(b"[%b]" % b",".join(filter(None, parts)))


def _strings(values: Sequence[str]) -> Iterator[bytes]:
    for part in sliced(values):
        yield orjson.dumps(part)[1:-1]


def _large_tensor_to_json(tensor: Tensor | LargeTensor, limits: Limits) -> dict[str, Any]:
    if not isinstance(tensor, LargeTensor):
        return _tensor_to_json(tensor)
    fields = _tensor_to_json(tensor.rest)
    if tensor.field == "byte_data":
        limits.check_json(len(tensor.data) * 4 // 3, _ASK_GRPC)
        text = b"".join(base64_pieces(tensor.data))
        return {**fields, "byte_data": orjson.Fragment(b'"%b"' % text)}
    flat = tensor.numbers()
    limits.check_json(2 * flat.size, _ASK_GRPC)
    pieces = number_pieces(flat, _JSON_OF.get(tensor.field, floats_of))
    return {**fields, tensor.field: _fragment(pieces, limits)}


_JSON_OF: dict[str, Callable[[Any], Any]] = {
    "int64_data": lambda numbers: list(map(str, numbers.tolist()))
}


def _tensor_to_json(tensor: Tensor) -> dict[str, Any]:
    return {field: write(tensor) for field, write in _TENSOR_WRITERS}


def floats_of(numbers: np.ndarray[Any, Any]) -> Any:
    """Return the numbers in a form that orjson prints as JSON."""
    finite = np.isfinite(numbers)
    if finite.all():
        return numbers  # orjson prints float32 with its shortest digits
    printed: list[Any] = orjson.loads(orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY))
    for at in np.flatnonzero(~finite).tolist():
        number = numbers[at]
        printed[at] = "NaN" if np.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    return printed


def _tensor_writer(field: str) -> Callable[[Tensor], Any]:
    get = operator.attrgetter(field)
    if field in _FLOAT_FIELDS:
        return lambda tensor: floats_of(read_packed(tensor, field)) if get(tensor) else []
    if field == "int64_data":  # proto3 JSON has text: many readers of JSON have only doubles
        return lambda tensor: list(map(str, tensor.int64_data))
    if field == "byte_data":
        return lambda tensor: base64.b64encode(tensor.byte_data).decode("ascii")
    return (lambda tensor: get(tensor)[:]) if _TENSOR_FIELDS[field].is_repeated else get


_TENSOR_WRITERS = tuple(
    (field.name, _tensor_writer(field.name)) for field in Tensor.DESCRIPTOR.fields
)
