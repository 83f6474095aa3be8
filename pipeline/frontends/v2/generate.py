"""Generate: a model's request and its answers as flat JSON, with one member for each tensor."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import orjson

from pipeline.errors import PackageError, PayloadTypeError, TooLargeError
from pipeline.frontends.v2.interface import ModelInterface, Slot
from pipeline.proto.pipeline.json_long import LongArray, NotJsonError, UnevenError, value_of
from pipeline.proto.plain_json import check_members
from pipeline.proto.slices import SHORT_BYTES, Limits
from pipeline.proto.v2.codec import InferRequest, InferResponse, Parameters
from pipeline.proto.v2.json_data import array_to_data, data_to_array
from pipeline.proto.v2.raw import DATATYPES, Array

NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that "
    "generates various number of responses"
)
"""The error of a request that was answered with no part, or with several."""

_PARAMETERS = "parameters"
_ELEMENTS: dict[str, tuple[set[type], str]] = {
    "O": ({str}, "non-string as string"),
    "b": ({bool}, "non-boolean as boolean"),
    "i": ({int, float}, "non-signed-integer as signed-integer"),
    "u": ({int, float}, "non-unsigned-integer as unsigned-integer"),
    "f": ({int, float}, "non-number as double"),
}
"""By the kind of a dtype: types of its elements in JSON, and what Triton says of all others."""

Members = list[tuple[str, Any]]


def read_generate(
    body: bytes, model: str, version: str, interface: ModelInterface, limits: Limits
) -> InferRequest:
    """Return the request in a body: `{"IN": 1, "id": "7", "parameters": {...}}`, or nothing.

    A member with the name of a model's input, here or among the parameters, becomes its tensor: a
    value, or a list of values, in the input's shape. Other members are parameters. If the model
    declares no inputs, all members are inputs with the types of their values.

    Raises:
        PackageError: the request is invalid; in Triton's words where it has any.
    """
    members = _members(body)
    request = _MemberReader(interface, limits)
    request_id = ""
    for name, value in members:
        if name == "id":
            if type(value) is not str:
                raise PackageError(
                    "Unable to parse 'id': attempt to access JSON non-string as string"
                )
            request_id = value
        elif name == _PARAMETERS:
            request.add_parameters(value)
        else:
            request.add(name, value)
    return InferRequest(model, version, request_id, request.parameters, request.inputs)


def write_generate(response: InferResponse, limits: Limits) -> bytes:
    """Return the JSON of an answer, by name in order: a tensor of one element is its value.

    Raises PackageError, PayloadTypeError: an output has no JSON form.
    """
    fields: dict[str, Any] = {
        "model_name": response.model_name,
        "model_version": response.model_version,
        **({"id": response.id} if response.id else {}),
        **response.parameters,
    }
    for name, array in response.outputs.items():
        try:
            fields[name] = _data(array, limits)
        except (PackageError, PayloadTypeError) as error:
            raise type(error)(f"output {name!r}: {error}") from None
    return orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_SORT_KEYS)


def _data(array: Array, limits: Limits) -> Any:
    data = array_to_data(array, limits)
    if array.size != 1:
        return data
    return orjson.Fragment(orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1])


def _members(body: bytes) -> Members:
    """Return the members of a JSON object; long lists of a large object are LongArrays."""
    if not body.strip():
        return []
    try:
        if len(body) <= SHORT_BYTES:
            members = json.loads(body, object_pairs_hook=_Object)
            if type(members) is not _Object:
                raise PackageError("the request must be a JSON object")
            return members
        check_members(body)
        raws = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        return [(name, value_of(memoryview(raw))) for name, raw in raws.items()]
    except msgspec.ValidationError:
        raise PackageError("the request must be a JSON object") from None
    except (ValueError, RecursionError, msgspec.DecodeError, NotJsonError) as error:
        raise PackageError(f"the request is not valid JSON: {error}") from None


class _Object(list[tuple[str, Any]]):
    """A JSON object, in which a name may appear twice."""


class _MemberReader:
    """The inputs and parameters of a request, collected member by member."""

    def __init__(self, interface: ModelInterface, limits: Limits) -> None:
        self._slots = {slot.name: slot for slot in interface.inputs or ()}
        self._takes_all = interface.inputs is None
        self._batches = interface.batches
        self._limits = limits
        self.inputs: dict[str, Array] = {}
        self.parameters: Parameters = {}

    def add(self, name: str, value: Any) -> None:
        """Add a member."""
        slot = self._slots.get(name)
        if slot is None and not self._takes_all:
            self._add_parameter(name, value)
            return
        if name in self.inputs:
            raise PackageError(f"input '{name}' already exists in request")
        if slot is None:
            self.inputs[name] = _guessed(name, value, self._limits)
        else:
            self.inputs[name] = _fitted(slot, value, self._batches, self._limits)

    def add_parameters(self, value: Any) -> None:
        """Add the members under `parameters`."""
        if isinstance(value, dict):
            value = list(value.items())
        elif type(value) is not _Object:
            raise PackageError(f"Expected JSON object for keyword: '{_PARAMETERS}'")
        try:
            for name, parameter in value:
                if name in self._slots:
                    self.add(name, parameter)
                else:
                    self._add_parameter(name, parameter)
        except PackageError as error:
            kind = TooLargeError if isinstance(error, TooLargeError) else PackageError
            raise kind(f"Converting keyword: '{_PARAMETERS}': {error}") from None

    def _add_parameter(self, name: str, value: Any) -> None:
        if type(value) not in (bool, int, float, str):
            raise PackageError(
                f"parameter '{name}' has invalid type. It should be either 'int', 'bool', "
                "'string' or 'double'."
            )
        self.parameters[name] = value


def _fitted(slot: Slot, value: Any, batches: bool, limits: Limits) -> Array:
    """Return the tensor of a value, or of a list of values."""
    data = value if isinstance(value, list | LongArray) and type(value) is not _Object else [value]
    kinds, words = _ELEMENTS[DATATYPES[slot.datatype].kind]
    if isinstance(data, list) and not kinds.issuperset(map(type, data)):
        if any(type(element) is list for element in data):
            raise _no_proper_shape(slot.name)
        raise PackageError(f"input '{slot.name}': attempt to access JSON {words}")
    shape = _shape_of(slot, _count(data, slot.name), batches)
    return _array(slot.name, slot.datatype, shape, data, limits)


def _count(data: list[Any] | LongArray, name: str) -> int:
    if isinstance(data, list):
        return len(data)
    try:
        return sum(map(len, data.pieces()))
    except UnevenError:
        raise _no_proper_shape(name) from None


def _shape_of(slot: Slot, count: int, batches: bool) -> list[int]:
    """Return a shape with so many elements: the innermost free size takes the rest."""
    shape = slot.full_shape(batches)
    fixed = math.prod(size for size in shape if size >= 0)
    if count and (fixed == 0 or count % fixed):
        raise _no_proper_shape(slot.name)
    left = count // fixed if fixed else 0
    for at in reversed(range(len(shape))):
        if shape[at] < 0:
            shape[at], left = left, 1
    if math.prod(shape) != count:
        raise _no_proper_shape(slot.name)
    return shape


def _no_proper_shape(name: str) -> PackageError:
    return PackageError(f"The schema can not convert input '{name}' to tensor with proper shape")


def _array(
    name: str, datatype: str, shape: Sequence[int], data: list[Any] | LongArray, limits: Limits
) -> Array:
    try:
        return data_to_array(datatype, shape, data, limits)
    except PackageError as error:
        kind = TooLargeError if isinstance(error, TooLargeError) else PackageError
        raise kind(f"input '{name}': {error}") from None


_GUESSES: Mapping[frozenset[type], str] = {
    frozenset({str}): "BYTES",
    frozenset({bool}): "BOOL",
    frozenset({int}): "INT64",
    frozenset({float}): "FP64",
    frozenset({int, float}): "FP64",
}


def _guessed(name: str, value: Any, limits: Limits) -> Array:
    """Return the one-dimensional tensor of a value, by the value's type."""
    data = value if isinstance(value, list | LongArray) and type(value) is not _Object else [value]
    first = data if isinstance(data, list) else next(data.pieces(), [])
    datatype = _GUESSES.get(frozenset(map(type, first)))
    if datatype is None:
        raise PackageError(
            f"input '{name}' must be a string, a number, true or false, or a list of such of one "
            "type: the model does not say what it takes"
        )
    return _array(name, datatype, [_count(data, name)], data, limits)
