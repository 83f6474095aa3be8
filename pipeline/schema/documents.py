"""JSON schemas of a schema's types, for OpenAPI 3.1."""

from __future__ import annotations

import typing
from typing import Annotated, Any, get_args, get_origin

import msgspec
import numpy as np
from msgspec import inspect

from pipeline.data import ANY, Tensor
from pipeline.proto.v2.raw import DATATYPES
from pipeline.schema.arrays import dtype_of, is_array_type
from pipeline.schema.kinds import within
from pipeline.schema.models import REFERENCE

_KINDS = {"b": "boolean", "i": "integer", "u": "integer", "f": "number"}


def components_of(schema: Any, kind: inspect.Type) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the JSON schema of a type, and those that it refers to, by name."""
    (found,), components = msgspec.json.schema_components(
        [schema], schema_hook=_array_schema, ref_template=REFERENCE + "{name}"
    )
    components = _without_false(components)
    for one in within(kind):
        described = components.get(getattr(getattr(one, "cls", None), "__name__", ""))
        if described is not None and hasattr(one, "fields"):
            _say_tensors(one, described)
    return _without_false(found), components


def _without_false(value: Any) -> Any:
    """Return a schema without `items: false` of tuples, whose length says the same: tools trip."""
    if isinstance(value, dict):
        kept = {key: one for key, one in value.items() if not (key == "items" and one is False)}
        return {key: _without_false(one) for key, one in kept.items()}
    return [_without_false(one) for one in value] if isinstance(value, list) else value


def _array_schema(kind: Any) -> dict[str, Any]:
    if not is_array_type(kind):
        raise NotImplementedError(f"{kind} is no type of a schema")
    return {"type": "array", "items": _items(dtype_of(kind)), "description": "nested lists"}


def _items(dtype: np.dtype[Any] | None) -> dict[str, Any]:
    if dtype is None:
        return {}
    return {"type": [_KINDS.get(dtype.kind, "string"), "array"]}


def _say_tensors(kind: Any, described: dict[str, Any]) -> None:
    """Say the dtype and the shape of the arrays that a Tensor describes."""
    hints = typing.get_type_hints(kind.cls, include_extras=True)
    for field in kind.fields:
        tensor = _tensor_in(hints.get(field.name))
        if tensor is not None:
            described["properties"][field.encode_name] |= tensor_schema(tensor)


def _tensor_in(hint: Any) -> Tensor | None:
    if get_origin(hint) in (typing.Required, typing.NotRequired):
        hint = get_args(hint)[0]
    if get_origin(hint) is not Annotated or not is_array_type(get_args(hint)[0]):
        return None
    return next((one for one in get_args(hint)[1:] if isinstance(one, Tensor)), None)


def tensor_schema(tensor: Tensor) -> dict[str, Any]:
    """Return the JSON schema of an array: nested lists."""
    kind = DATATYPES[tensor.datatype].kind
    found: dict[str, Any] = {"type": _KINDS.get(kind, "number" if kind == "V" else "string")}
    for size in reversed(tensor.shape):
        limits = {} if size == ANY else {"minItems": size, "maxItems": size}
        found = {"type": "array", "items": found, **limits}
    sizes = ", ".join("any" if size == ANY else str(size) for size in tensor.shape)
    return {**found, "description": f"{tensor.datatype} [{sizes}]"}
