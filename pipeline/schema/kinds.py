"""Types as msgspec.inspect reads them: their names and inner types; plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, cast

import msgspec
import numpy as np
from msgspec import inspect

from pipeline.errors import one_line, printable

REFERENCE = "#/components/schemas/"
"""The path of the JSON schemas of types in a document."""

_NAMES: dict[type, str] = {
    inspect.AnyType: "anything",
    inspect.NoneType: "null",
    inspect.BoolType: "bool",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "str",
    inspect.BytesType: "bytes",
    inspect.DictType: "object",
    inspect.StructType: "object",
    inspect.TypedDictType: "object",
    inspect.DataclassType: "object",
}
_OBJECTS = (inspect.StructType, inspect.TypedDictType, inspect.DataclassType)
_LISTS = (
    inspect.ListType,
    inspect.SetType,
    inspect.FrozenSetType,
    inspect.VarTupleType,
    inspect.TupleType,
    inspect.NamedTupleType,
)
_SHOWN = 40  # characters of a value in an error
_FLAT = frozenset({np.ndarray, str, bytes, int, float, bool, NoneType})


def of_object(kind: inspect.Type) -> tuple[inspect.Field, ...]:
    """Return the fields of an object's type; () for another type."""
    return tuple(kind.fields) if isinstance(kind, _OBJECTS) else ()


def alternatives(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    """Return the types of a union, or the type alone."""
    if isinstance(kind, inspect.Metadata):
        return alternatives(kind.type)
    if isinstance(kind, inspect.UnionType):
        return tuple(one for member in kind.types for one in alternatives(member))
    return (kind,)


def is_array(kind: inspect.Type) -> bool:
    """Return whether a type is a numpy array."""
    custom = isinstance(kind, inspect.CustomType)
    return custom and issubclass(_class_of(kind), np.ndarray)


def _class_of(kind: Any) -> type:
    origin = getattr(kind.cls, "__origin__", kind.cls)
    return cast(type, origin)


def is_list(kind: inspect.Type) -> bool:
    """Return whether JSON has a type as a list."""
    return isinstance(kind, _LISTS)


def is_nested(kind: inspect.Type) -> bool:
    """Return whether JSON has a type as a list or an object."""
    return is_list(kind) or is_array(kind) or isinstance(kind, (inspect.DictType, *_OBJECTS))


def within(kind: inspect.Type) -> Iterator[inspect.Type]:
    """Yield a type and all its inner types, each once."""
    waiting, seen = [kind], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += _directly_within(one)


def _directly_within(kind: inspect.Type) -> list[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        return [kind.type]
    if isinstance(kind, inspect.UnionType):
        return list(kind.types)
    if isinstance(kind, inspect.DictType):
        return [kind.value_type]
    if isinstance(kind, inspect.TupleType):
        return list(kind.item_types)
    item = getattr(kind, "item_type", None)
    return [item] if item is not None else [field.type for field in getattr(kind, "fields", ())]


def at(kind: inspect.Type | None, step: str | int) -> inspect.Type | None:
    """Return the type at a key or index of a value; None if it is unknown."""
    for one in alternatives(kind) if kind is not None else ():
        if isinstance(one, inspect.DictType):
            return one.value_type
        if isinstance(step, str):
            types = [field.type for field in of_object(one) if field.encode_name == step]
        elif isinstance(one, inspect.TupleType):
            types = list(one.item_types[step : step + 1])
        else:
            types = [one.item_type] if hasattr(one, "item_type") else []
        if types:
            return types[0]
    return None


def name_of(kind: inspect.Type | None) -> str:
    """Return the name of a type for callers."""
    if kind is None:
        return "something else"
    return " | ".join(dict.fromkeys(map(_name_of, alternatives(kind))))


def _name_of(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.LiteralType):
        return " | ".join(repr(value) for value in kind.values)
    if isinstance(kind, inspect.EnumType):
        return " | ".join(repr(member.value) for member in kind.cls)
    if is_list(kind) or is_array(kind):
        return "array"
    return _NAMES.get(type(kind)) or type(kind).__name__.removesuffix("Type").lower()


def found_name(value: object) -> str:
    """Return the type of a found value for callers, with the value if it is short."""
    if value is None:
        return "null"
    if isinstance(value, Mapping | msgspec.Struct) or dataclasses.is_dataclass(value):
        return "object"
    if isinstance(value, bytes | bytearray):
        return f"bytes ({len(value)})"
    if isinstance(value, str | bool | int | float):
        shown = one_line(printable(repr(value[:_SHOWN] if isinstance(value, str) else value)))
        return f"{type(value).__name__} {shown[: _SHOWN + 4]}"
    is_sequence = isinstance(value, np.ndarray | Sequence | set | frozenset)
    return "array" if is_sequence else type(value).__name__


# Plain values -----------------------------------------------------------------------------------


def without_objects(value: Any) -> Any:
    """Replace Structs, dataclasses and models by dicts; without any, return the value itself."""
    if type(value) in _FLAT:
        return value
    if isinstance(value, msgspec.Struct):
        fields = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        values = {key: getattr(value, name) for name, key in fields}
        set_ones = {key: one for key, one in values.items() if one is not msgspec.UNSET}
        return without_objects(set_ones)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: without_objects(getattr(value, name)) for name in names}
    dump = getattr(type(value), "model_dump", None)
    if dump is not None:
        return without_objects(dump(value))
    return _changed(value, without_objects)


def plain(value: Any, keeps_arrays: bool) -> Any:
    """Replace numpy's numbers and arrays by Python's; without any, return the value itself."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value if keeps_arrays else value.tolist()
    return _changed(value, lambda one: plain(one, keeps_arrays))


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a dict or list with changed values; itself if no value changes."""
    if isinstance(value, dict):
        changed = {key: change(one) for key, one in value.items()}
        is_same = all(changed[key] is one for key, one in value.items())
        return value if is_same else changed
    if isinstance(value, list | tuple):
        items = [change(one) for one in value]
        is_same = all(new is old for new, old in zip(items, value, strict=True))
        return value if is_same else items
    return value
