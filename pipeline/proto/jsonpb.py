"""Requests and responses as proto3 JSON: `json_format`'s rules at a fraction of its cost.

What is plain (the right Python types in the right places) goes straight into the message's
constructor; whatever is not is left to `google.protobuf.json_format`, whose verdict counts.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import orjson
from google.protobuf import json_format
from google.protobuf.message import Message

from pipeline.errors import PackageError
from pipeline.proto.packed import PACKED_DTYPES, read_packed, write_packed
from pipeline.proto.pipeline_service_pb2 import Request, Response, Tensor

_MAX_REASON = 400  # characters of json_format's text, which can quote a whole field
_SPECIAL_FLOATS = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}
_FLOAT_FIELDS = frozenset(PACKED_DTYPES) - {"bool_data"}

_M = TypeVar("_M", bound=Message)


# --- JSON to message ------------------------------------------------------------------------


def request_from_json(body: bytes, name: str, method: str) -> Request:
    """The request that was posted to `/{name}/{method}`.

    `name` and `method` stand above those of the body. An empty body is an empty request;
    unknown fields are ignored, `null` is a field's default, field names may be the original or
    the lowerCamelCase ones. Raises PackageError with the field's path for malformed JSON and for
    values of the wrong type.
    """
    if not body:
        return Request(name=name, method=method)
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise PackageError(f"the request is not JSON: {error}") from None
    if type(fields) is not dict:
        raise PackageError(f"the request must be a JSON object, not {_json_type(fields)}")
    tensors = fields.pop("tensors", None)
    request = _plain_request(fields, name, method)
    if request is None:
        request = _parsed(fields, Request(), "")
        request.name = name
        request.method = method
    if tensors is not None:
        _add_tensors(request, tensors)
    return request


_PLAIN_REQUEST_TYPES = {
    "key": list,
    "value": list,
    "name": str,
    "method": str,
    "logid": int,
    "clientip": str,
}


def _plain_request(fields: dict[str, Any], name: str, method: str) -> Request | None:
    """The request when every field is a known one and of its very JSON type, else None."""
    wanted = _PLAIN_REQUEST_TYPES.get
    for field, value in fields.items():
        if type(value) is not wanted(field):
            return None
    get = fields.get
    try:
        return Request(
            key=get("key"),
            value=get("value"),
            name=name,
            method=method,
            logid=get("logid"),
            clientip=get("clientip"),
        )
    except (TypeError, ValueError):  # an element that is no str, or a number out of range
        return None


def _add_tensors(request: Request, tensors: Any) -> None:
    if type(tensors) is not list:
        raise _misfit(f"tensors must be an array, not {_json_type(tensors)}")
    for at, fields in enumerate(tensors):
        path = f"tensors[{at}]"
        if type(fields) is not dict:
            raise _misfit(f"{path} must be an object, not {_json_type(fields)}")
        _fill_tensor(request.tensors.add(), fields, path)


def _parsed(fields: Any, message: _M, path: str) -> _M:
    """`message` with the fields that json_format reads; `path` leads to it from the request."""
    try:
        return json_format.ParseDict(fields, message, ignore_unknown_fields=True)
    except json_format.ParseError as error:
        reason = str(error)
        if len(reason) > _MAX_REASON:
            reason = f"{reason[:_MAX_REASON]}..."
        raise _misfit(f"{path}: {reason}" if path else reason) from None
    except RecursionError:  # the reason quotes the value
        raise _misfit(f"{path or 'a field'} is nested too deeply") from None


def _misfit(why: str) -> PackageError:
    return PackageError(f"the request does not fit its message: {why}")


def _json_type(value: object) -> str:
    names = {list: "an array", dict: "an object", str: "a string", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), "a number")


# - tensors: the numbers of a large one must not become Python objects one by one -


def _fill_tensor(tensor: Tensor, fields: dict[str, Any], path: str) -> None:
    """Set the fields of an empty tensor; `path` leads to it from the request."""
    known = [(_TENSOR_FIELDS[name], fields[name]) for name in fields if name in _TENSOR_FIELDS]
    rest = {
        field: value
        for field, value in known
        if value is not None and not _set_plain(tensor, field, value)
    }
    if len(dict(known)) < len(known):  # a field under both its names: json_format knows the rule
        tensor.Clear()
        rest = fields
    if rest:
        _parsed(rest, tensor, path)


def _set_plain(tensor: Tensor, field: str, value: Any) -> bool:
    """Set a field from a value of the very types that it wants; False when it is not that."""
    try:
        if type(value) is list:
            return _extend_plain(tensor, field, value)
        if type(value) is not _SCALAR_TYPES.get(field):
            return False
        setattr(tensor, field, value)
    except (TypeError, ValueError, FloatingPointError):  # a number out of range
        tensor.ClearField(field)
        return False
    return True


def _extend_plain(tensor: Tensor, field: str, value: list[Any]) -> bool:
    types = set(map(type, value))
    if field in _FLOAT_FIELDS:
        return _extend_floats(tensor, field, value, types)
    if field not in _ELEMENT_TYPES or not types <= {_ELEMENT_TYPES[field]}:
        return False
    getattr(tensor, field).extend(value)
    return True


def _extend_floats(tensor: Tensor, field: str, value: list[Any], types: set[type]) -> bool:
    if str in types:
        value = [_SPECIAL_FLOATS.get(item, item) if type(item) is str else item for item in value]
        types = set(map(type, value))
    if not types <= {int, float}:
        return False
    with np.errstate(over="raise"):  # a number too large for a float32
        write_packed(tensor, field, np.array(value, np.float64))
    return True


_TENSOR_FIELDS: dict[str, str] = {
    spelling: field.name
    for field in Tensor.DESCRIPTOR.fields
    for spelling in (field.name, field.json_name)
}
_SCALAR_TYPES: dict[str, type] = {"elem_type": int, "name": str}
_ELEMENT_TYPES: dict[str, type] = {
    "int64_data": int,
    "int_data": int,
    "uint32_data": int,
    "shape": int,
    "lod": int,
    "bool_data": bool,
    "str_data": str,
}


# --- message to JSON ------------------------------------------------------------------------


def response_to_json(response: Response) -> bytes:
    """The JSON object of a response: original field names in their order, defaults included."""
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


def _tensor_to_json(tensor: Tensor) -> dict[str, Any]:
    return {field: write(tensor) for field, write in _TENSOR_WRITERS}


def _float_writer(field: str) -> Callable[[Tensor], Any]:
    def write(tensor: Tensor) -> Any:
        if not getattr(tensor, field):
            return []
        numbers = read_packed(tensor, field)
        if bool(np.isfinite(numbers).all()):
            return numbers  # orjson prints a float32 with its own shortest digits
        return _with_special_floats(numbers)

    return write


def _with_special_floats(numbers: np.ndarray[Any, Any]) -> list[Any]:
    """The numbers as a list with the strings that JSON has for NaN and the infinities."""
    printed: list[Any] = orjson.loads(orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY))
    for at in np.flatnonzero(~np.isfinite(numbers)).tolist():
        number = numbers[at]
        printed[at] = "NaN" if np.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    return printed


def _plain_writer(field: str) -> Callable[[Tensor], Any]:
    return lambda tensor: getattr(tensor, field)


def _list_writer(field: str) -> Callable[[Tensor], Any]:
    return lambda tensor: getattr(tensor, field)[:]


def _tensor_writer(field: str) -> Callable[[Tensor], Any]:
    if field in _FLOAT_FIELDS:
        return _float_writer(field)
    if field == "int64_data":  # JSON numbers are doubles to many readers: proto3 JSON says text
        return lambda tensor: list(map(str, tensor.int64_data))
    if field == "byte_data":
        return lambda tensor: base64.b64encode(tensor.byte_data).decode("ascii")
    if field in _ELEMENT_TYPES:
        return _list_writer(field)
    return _plain_writer(field)


_TENSOR_WRITERS = tuple(
    (field.name, _tensor_writer(field.name)) for field in Tensor.DESCRIPTOR.fields
)
