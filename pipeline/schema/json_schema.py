"""JSON schemas of callers: checks whether a value fits one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any

import orjson

from pipeline.errors import PackageError, shortened

_MOST_STEPS = 100_000  # a schema with references to itself may need 2**30
_QUICK = 64  # names, values or keywords per step
_DEEPEST = 100  # nested schemas and values: far below Python's own limit

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": NoneType,
    "integer": int,
    "number": (int, float),
}


def fault_in(value: Any, schema: Any) -> str:
    """Return why a JSON value does not fit a JSON schema; "" if it fits.

    The text begins with the path. It knows the keywords of draft 2020-12 that are useful for
    answers. It ignores `pattern`, `patternProperties`, `format` and `unevaluated...`, because a
    caller's regular expression can stop Python for hours. References stay within the schema.

    Raises:
        PackageError: the schema takes too long, is too deep, or has a reference to nothing.
    """
    try:
        return _Checker(schema).fault(value, schema, "", 0)
    except (TypeError, AttributeError, ArithmeticError) as error:
        raise PackageError(f"the JSON schema cannot be used: {error}") from None


class _Checker:
    """One check of a value by a schema.

    Args:
        root: the schema that references start from.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = _MOST_STEPS

    def fault(self, value: Any, schema: Any, where: str, depth: int) -> str:
        """Return why a value at a place does not fit; "" if it fits."""
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            raise PackageError("the JSON schema is too deep, or takes too long to check")
        if isinstance(schema, bool):
            return "" if schema else f"{where or 'the answer'}: nothing is allowed there"
        self._left -= len(schema) // _QUICK
        for keyword, argument in schema.items():
            if (check := _KEYWORDS.get(keyword)) is None:
                continue
            if isinstance(argument, list | dict):
                self._left -= len(argument) // _QUICK
            if fault := check(self, value, argument, schema, (where, depth + 1)):
                return fault
        return ""

    def fits(self, value: Any, schema: Any, depth: int) -> bool:
        """Return whether a value fits a schema within another."""
        return not self.fault(value, schema, "", depth)

    def referred(self, reference: Any) -> Any:
        """Return the schema of a reference."""
        target = self._root
        try:
            head, *steps = str(reference).split("/")
            if head != "#":
                raise KeyError(head)
            for step in steps:
                name = step.replace("~1", "/").replace("~0", "~")
                target = target[int(name)] if isinstance(target, list) else target[name]
        except (KeyError, IndexError, ValueError, TypeError):
            raise PackageError(f"the JSON schema has no {reference!r}") from None
        return target


_Place = tuple[str, int]
_Check = Callable[[_Checker, Any, Any, Mapping[str, Any], _Place], str]


def _type(by: _Checker, value: Any, argument: Any, schema: Any, place: _Place) -> str:
    kinds = argument if isinstance(argument, list) else [argument]
    if any(_is(value, kind) for kind in kinds):
        return ""
    actual = next(kind for kind in _TYPES if _is(value, kind))
    return _told(place, f"expected {' or '.join(map(str, kinds))}, found {actual}")


def _is(value: Any, kind: Any) -> bool:
    if isinstance(value, bool):
        return bool(kind == "boolean")
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, ()))


def _enum(by: _Checker, value: Any, argument: Any, schema: Any, place: _Place) -> str:
    if any(_same(value, allowed) for allowed in argument):
        return ""
    return _told(place, f"expected one of {shortened(orjson.dumps(argument).decode())}")


def _const(by: _Checker, value: Any, argument: Any, schema: Any, place: _Place) -> str:
    if _same(value, argument):
        return ""
    return _told(place, f"expected {shortened(orjson.dumps(argument).decode())}")


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are equal in JSON, where 1 is not true."""
    pairs = [(one, other)]
    while pairs:  # in a loop: values may be deeper than Python's stack
        one, other = pairs.pop()
        if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            pairs += zip(one, other, strict=True)
        elif isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
            pairs += ((one[key], other[key]) for key in one)
        elif (
            isinstance(one, bool) != isinstance(other, bool)
            or isinstance(one, list | dict)
            or one != other
        ):
            return False
    return True


def _properties(by: _Checker, value: Any, argument: Any, schema: Any, place: _Place) -> str:
    if isinstance(value, dict):
        for name, inner in argument.items():
            if name in value and (fault := by.fault(value[name], inner, *_at(place, name))):
                return fault
    return ""


def _additional(by: _Checker, value: Any, argument: Any, schema: Any, place: _Place) -> str:
    if isinstance(value, dict) and "patternProperties" not in schema:
        for name in value.keys() - schema.get("properties", {}).keys():
            if argument is False:
                return _told(place, f"there is no key {name!r}")
            if fault := by.fault(value[name], argument, *_at(place, name)):
                return fault
    return ""


def _names(by: _Checker, value: Any, argument: Any, schema: Any, place: _Place) -> str:
    if isinstance(value, dict):
        for name in value:
            if fault := by.fault(name, argument, *_at(place, name)):
                return fault
    return ""


def _required(by: _Checker, value: Any, argument: Any, schema: Any, place: _Place) -> str:
    if isinstance(value, dict):
        for name in argument:
            if name not in value:
                return _told(place, f"the key {name!r} is missing")
    return ""


def _items(by: _Checker, value: Any, argument: Any, schema: Any, place: _Place) -> str:
    if isinstance(value, list):
        first = len(schema.get("prefixItems", ()))
        for at, item in enumerate(value[first:], first):
            if fault := by.fault(item, argument, *_at(place, at)):
                return fault
    return ""


def _prefix(by: _Checker, value: Any, argument: Any, schema: Any, place: _Place) -> str:
    if isinstance(value, list):
        for at, (item, inner) in enumerate(zip(value, argument, strict=False)):
            if fault := by.fault(item, inner, *_at(place, at)):
                return fault
    return ""


def _contains(by: _Checker, value: Any, argument: Any, schema: Any, place: _Place) -> str:
    if not isinstance(value, list):
        return ""
    count = sum(by.fits(item, argument, place[1]) for item in value)
    least, most = schema.get("minContains", 1), schema.get("maxContains", len(value))
    return "" if least <= count <= most else _told(place, "it does not contain what it has to")


def _unique(by: _Checker, value: Any, argument: Any, schema: Any, place: _Place) -> str:
    if argument is True and isinstance(value, list):
        distinct = {orjson.dumps(item, option=orjson.OPT_SORT_KEYS) for item in value}
        return "" if len(distinct) == len(value) else _told(place, "a value is there twice")
    return ""


def _all(by: _Checker, value: Any, argument: Any, schema: Any, place: _Place) -> str:
    faults = (by.fault(value, inner, *place) for inner in argument)
    return next(filter(None, faults), "")


def _any(by: _Checker, value: Any, argument: Any, schema: Any, place: _Place) -> str:
    if any(by.fits(value, inner, place[1]) for inner in argument):
        return ""
    return _told(place, "it fits no schema of anyOf")


def _one(by: _Checker, value: Any, argument: Any, schema: Any, place: _Place) -> str:
    count = sum(by.fits(value, inner, place[1]) for inner in argument)
    return "" if count == 1 else _told(place, f"it fits {count} schemas of oneOf")


def _not(by: _Checker, value: Any, argument: Any, schema: Any, place: _Place) -> str:
    return _told(place, "it fits what it must not") if by.fits(value, argument, place[1]) else ""


def _if(by: _Checker, value: Any, argument: Any, schema: Any, place: _Place) -> str:
    branch = "then" if by.fits(value, argument, place[1]) else "else"
    return by.fault(value, schema.get(branch, True), *place)


def _reference(by: _Checker, value: Any, argument: Any, schema: Any, place: _Place) -> str:
    return by.fault(value, by.referred(argument), *place)


def _multiple(by: _Checker, value: Any, argument: Any, schema: Any, place: _Place) -> str:
    if not _is(value, "number") or value % argument == 0 or (value / argument) % 1 == 0:
        return ""
    return _told(place, f"expected a multiple of {argument}")


def _bound(kind: str, words: str, holds: Callable[[Any, Any], bool]) -> _Check:
    """Return the check of a keyword that limits a number or a length."""

    def check(by: _Checker, value: Any, argument: Any, schema: Any, place: _Place) -> str:
        if not _is(value, kind) or holds(value if kind == "number" else len(value), argument):
            return ""
        return _told(place, f"expected {words} {argument}")

    return check


def _at(place: _Place, step: str | int) -> _Place:
    where, depth = place
    if isinstance(step, int):
        return f"{where}[{step}]", depth
    return f"{where}.{step}" if where else step, depth


def _told(place: _Place, what: str) -> str:
    return f"{place[0]}: {what}" if place[0] else what


_KEYWORDS: Mapping[str, _Check] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "properties": _properties,
    "additionalProperties": _additional,
    "propertyNames": _names,
    "required": _required,
    "items": _items,
    "prefixItems": _prefix,
    "contains": _contains,
    "uniqueItems": _unique,
    "allOf": _all,
    "anyOf": _any,
    "oneOf": _one,
    "not": _not,
    "if": _if,
    "$ref": _reference,
    "multipleOf": _multiple,
    "minimum": _bound("number", "at least", lambda value, bound: value >= bound),
    "maximum": _bound("number", "at most", lambda value, bound: value <= bound),
    "exclusiveMinimum": _bound("number", "more than", lambda value, bound: value > bound),
    "exclusiveMaximum": _bound("number", "less than", lambda value, bound: value < bound),
    "minLength": _bound("string", "text of at least", lambda size, bound: size >= bound),
    "maxLength": _bound("string", "text of at most", lambda size, bound: size <= bound),
    "minItems": _bound("array", "a list of at least", lambda size, bound: size >= bound),
    "maxItems": _bound("array", "a list of at most", lambda size, bound: size <= bound),
    "minProperties": _bound("object", "keys: at least", lambda size, bound: size >= bound),
    "maxProperties": _bound("object", "keys: at most", lambda size, bound: size <= bound),
}
