"""Arrays in schemas: from nested lists, of a dtype, of a Tensor's shape."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Annotated, Any, get_args, get_origin

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import inspect

from pipeline.data import ANY, Tensor
from pipeline.proto.lists import as_array
from pipeline.proto.v2.raw import DATATYPES
from pipeline.schema.faults import INNER
from pipeline.schema.kinds import REFERENCE, found_name, within

Array = npt.NDArray[Any]
Rule = Callable[[Any], Any]
"""Converts a value to the form for the Op; its ValueError has the path after INNER."""

_NUMBERS = "biuf"
_BEYOND_INT64 = 2.0**63
_ARRAY_TYPES: Any = (np.ndarray,)


def is_array_type(kind: Any) -> bool:
    """Return whether an annotation is a numpy array of any dtype."""
    return (get_origin(kind) or kind) in _ARRAY_TYPES


def dtype_of(kind: Any) -> np.dtype[Any] | None:
    """Return the dtype in `NDArray[np.float32]`; None for a bare `np.ndarray`."""
    arguments = get_args(kind)
    scalar = get_args(arguments[1]) if len(arguments) > 1 else ()
    is_one = scalar and isinstance(scalar[0], type) and scalar[0] is not np.generic
    return np.dtype(scalar[0]) if is_one else None


def made_array(kind: Any, value: Any) -> Any:
    """Convert a value to an array: `dec_hook` of msgspec.

    Raises ValueError with the path in the value after INNER.
    """
    dtype = _wanted(kind)
    if isinstance(value, list | tuple):
        value = _of_lists(value)
    if not isinstance(value, np.ndarray):
        raise ValueError(f"Expected `array`, got `{found_name(value).split(' ')[0]}`{INNER}")
    return value if dtype is None else as_dtype(value, dtype)


@lru_cache(256)
def _wanted(kind: Any) -> np.dtype[Any] | None:
    """Return the dtype of an array type. Raises NotImplementedError: it is another type."""
    if not is_array_type(kind):
        raise NotImplementedError(f"{kind} is not supported in a schema")
    return dtype_of(kind)


def _of_lists(value: Any) -> Array:
    try:
        array = as_array(value)
    except (ValueError, OverflowError):  # ragged lists
        array = np.empty(1, object)
    if array.dtype == np.float64 and array.size and array.max() >= _BEYOND_INT64:
        array = _unsigned(value, array)
    if array.dtype.kind in _NUMBERS or (
        array.size and isinstance(array.flat[0], str) and not _odd(value, str, array.shape)
    ):
        return array
    wanted = str if isinstance(_first(value), str) else float
    raise ValueError(_odd(value, wanted, _shape(value)) or f"Expected `number`, got `int`{INNER}")


def _unsigned(value: Any, array: Array) -> Array:
    """Return integers without loss: numpy makes floats of them if some have 64 bits."""
    if not _are_whole(value) or array.min() < 0:  # numpy 1 would make -1 the largest number
        return array
    try:
        return np.asarray(value, np.uint64)
    except OverflowError:
        return array


def _are_whole(value: Any) -> bool:
    return all(map(_are_whole, value)) if isinstance(value, list | tuple) else type(value) is int


def _first(value: Any) -> Any:
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return value


def _shape(value: Any) -> tuple[int, ...]:
    shape = []
    while isinstance(value, list | tuple):
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return tuple(shape)


def _odd(value: Any, wanted: type, shape: tuple[int, ...], path: str = INNER) -> str:
    """Return the fault of nested lists, and its path; "" without one."""
    if shape and isinstance(value, list | tuple):
        if len(value) != shape[0]:
            lengths = shape[0], len(value)
            return "Expected `array of length {}`, got `array of length {}`".format(*lengths) + path
        inner = (_odd(one, wanted, shape[1:], f"{path}[{n}]") for n, one in enumerate(value))
        return next(filter(None, inner), "")
    fits = not shape and isinstance(value, str if wanted is str else int | float)
    if fits and not (isinstance(value, int) and value.bit_length() > 63):
        return ""
    name = "array" if shape else "str" if wanted is str else "number"
    what = "int of 64 bits" if fits else name
    return f"Expected `{what}`, got `{found_name(value).split(' ')[0]}`{path}"


def as_dtype(array: Array, dtype: np.dtype[Any]) -> Array:
    """Convert an array to a dtype. Raises ValueError: more than precision would be lost."""
    if array.dtype == dtype:
        return array
    refusal = f"Expected `array of {dtype.name}`, got `array of {array.dtype.name}`{INNER}"
    if array.dtype.kind == "O" or dtype.kind == "O":
        if (array.dtype.kind in "OSU") != (dtype.kind in "OSU"):
            raise ValueError(refusal)
        return array
    are_whole = array.dtype.kind in "iu" and dtype.kind in "iu"
    if array.size and not are_whole and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ValueError(refusal)
    if array.size and are_whole:
        limits, least, most = np.iinfo(dtype), int(array.min()), int(array.max())
        if least < limits.min or most > limits.max:
            odd = least if least < limits.min else most
            raise ValueError(f"Expected `array of {dtype.name}`, got `array with {odd}`{INNER}")
    try:
        with np.errstate(over="raise"):
            return array.astype(dtype)
    except FloatingPointError:
        raise ValueError(
            f"Expected `array of {dtype.name}`, got `array with larger numbers`{INNER}"
        ) from None


# Tensors in annotations ---------------------------------------------------------------------------


def rule_of(kind: Any, memo: dict[Any, Rule] | None = None) -> Rule | None:
    """Return the rule that applies the Tensors within a type; None without Tensors."""
    memo = {} if memo is None else memo
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        tensor = next((one for one in arguments[1:] if isinstance(one, Tensor)), None)
        if tensor is not None and is_array_type(arguments[0]):
            return partial(_tensor_rule, tensor)
        return rule_of(arguments[0], memo)
    if origin in (typing.Required, typing.NotRequired):
        return rule_of(arguments[0], memo)
    if origin in (typing.Union, types.UnionType):
        rules = [rule for one in arguments if (rule := rule_of(one, memo)) is not None]
        return partial(_optional_rule, rules[0]) if rules else None
    if origin is list:
        rule = rule_of(arguments[0], memo)
        return partial(_list_rule, rule) if rule else None
    if origin is dict:
        rule = rule_of(arguments[1], memo)
        return partial(_dict_rule, rule) if rule else None
    return _rule_of_class(kind, memo) if isinstance(kind, type) else None


def _rule_of_class(kind: type, memo: dict[Any, Rule]) -> Rule | None:
    is_object = (
        issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind) or hints_of_dict(kind)
    )
    if not is_object:
        return None
    if kind in memo:  # the type may contain itself
        return memo[kind]
    memo[kind] = rule = _ObjectRule({})
    hints = typing.get_type_hints(kind, include_extras=True)
    rules = {name: rule_of(hint, memo) for name, hint in hints.items()}
    rule.rules |= {name: one for name, one in rules.items() if one is not None}
    return rule if rule.rules else None


def hints_of_dict(kind: Any) -> bool:
    """Return whether a class is a TypedDict."""
    return isinstance(kind, type) and issubclass(kind, dict) and hasattr(kind, "__total__")


def _tensor_rule(tensor: Tensor, value: Any) -> Any:
    array = as_dtype(value, DATATYPES[tensor.datatype])
    if array.shape != tensor.shape and not _fits(array.shape, tensor.shape):
        wanted = _dims(tensor.shape)
        raise ValueError(f"Expected `array {wanted}`, got `array {_dims(array.shape)}`{INNER}")
    return array


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Return whether an array has the wanted sizes; ANY fits any size."""
    sizes = zip(shape, wanted, strict=False)
    return len(shape) == len(wanted) and all(want in (ANY, size) for size, want in sizes)


def _dims(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join("any" if size == ANY else str(size) for size in shape) + "]"


def _optional_rule(rule: Rule, value: Any) -> Any:
    return rule(value) if isinstance(value, _RULED) else value


def _list_rule(rule: Rule, value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [_within(rule, one, f"[{n}]") for n, one in enumerate(value)]


def _dict_rule(rule: Rule, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _within(rule, one, f".{key}") for key, one in value.items()}


class _ObjectRule:
    """Rules of an object's fields; it changes the object, which this library made."""

    def __init__(self, rules: dict[str, Rule]) -> None:
        self.rules = rules

    def __call__(self, value: Any) -> Any:
        for name, rule in self.rules.items():
            if isinstance(value, dict):
                if name in value:
                    value[name] = _within(rule, value[name], f".{name}")
            elif hasattr(value, name):
                given = getattr(value, name)
                checked = _within(rule, given, f".{name}")
                if checked is given:
                    continue
                if isinstance(value, msgspec.Struct):
                    msgspec.structs.force_setattr(value, name, checked)
                else:
                    object.__setattr__(value, name, checked)
        return value


def _within(rule: Rule, value: Any, step: str) -> Any:
    """Apply a rule to the value at a step; prefix the path of its ValueError with the step."""
    try:
        return rule(value)
    except ValueError as error:
        reason, _, inner = str(error).partition(INNER)
        raise ValueError(f"{reason}{INNER}{step}{inner}") from None


_RULED: Any = (np.ndarray, list, dict, msgspec.Struct)


# JSON schemas of types --------------------------------------------------------------------------


_KINDS = {"b": "boolean", "i": "integer", "u": "integer", "f": "number"}


def components_of(schema: Any, kind: inspect.Type) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the JSON schema of a type, and the schemas of types that it refers to, by name."""
    (root,), components = msgspec.json.schema_components(
        [schema], schema_hook=_array_schema, ref_template=REFERENCE + "{name}"
    )
    components = _without_false(components)
    for one in within(kind):
        described = components.get(getattr(getattr(one, "cls", None), "__name__", ""))
        if described is not None and hasattr(one, "fields"):
            _say_tensors(one, described)
    return _without_false(root), components


def _without_false(value: Any) -> Any:
    """Remove the `items: false` of tuples, which some tools refuse; the length implies it."""
    if isinstance(value, dict):
        kept = {key: one for key, one in value.items() if not (key == "items" and one is False)}
        return {key: _without_false(one) for key, one in kept.items()}
    return [_without_false(one) for one in value] if isinstance(value, list) else value


def _array_schema(kind: Any) -> dict[str, Any]:
    if not is_array_type(kind):
        raise NotImplementedError(f"{kind} is not supported in a schema")
    return {"type": "array", "items": _items(dtype_of(kind)), "description": "nested lists"}


def _items(dtype: np.dtype[Any] | None) -> dict[str, Any]:
    if dtype is None:
        return {}
    return {"type": [_KINDS.get(dtype.kind, "string"), "array"]}


def _say_tensors(kind: Any, described: dict[str, Any]) -> None:
    """Add dtype and shape to the schemas of arrays with a Tensor."""
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
    """Return the JSON schema of an array, as nested lists."""
    kind = DATATYPES[tensor.datatype].kind
    schema: dict[str, Any] = {"type": _KINDS.get(kind, "number" if kind == "V" else "string")}
    for size in reversed(tensor.shape):
        limits = {} if size == ANY else {"minItems": size, "maxItems": size}
        schema = {"type": "array", "items": schema, **limits}
    sizes = ", ".join("any" if size == ANY else str(size) for size in tensor.shape)
    return {**schema, "description": f"{tensor.datatype} [{sizes}]"}
