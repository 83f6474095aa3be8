"""Examples of values that fit a JSON schema: forms are filled with them, documents show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.schema.kinds import REFERENCE

_DEEPEST = 8  # levels of what refers to itself
_MOST_ITEMS = 4

Schemas = Mapping[str, Any]


def example_of(schema: Mapping[str, Any], components: Schemas, depth: int = 0) -> Any:
    """Return a value that fits: the schema's own example or default, else a small one."""
    reference = schema.get("$ref")
    if reference is not None:
        found = components.get(str(reference).removeprefix(REFERENCE), {})
        if "default" in schema:
            return schema["default"]
        return example_of(found, components, depth + 1) if depth < _DEEPEST else {}
    if schema.get("examples"):
        return schema["examples"][0]
    for key in ("example", "default", "const"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            kinds = [one for one in schema[key] if one.get("type") != "null"] or schema[key]
            return example_of(kinds[0], components, depth + 1)
    return _of_type(schema, components, depth)


def _of_type(schema: Mapping[str, Any], components: Schemas, depth: int) -> Any:
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "object" or "properties" in schema:
        return _object(schema, components, depth)
    if kind == "array":
        return _array(schema, components, depth)
    if kind in ("integer", "number"):
        return _number(schema, kind)
    if kind == "boolean":
        return True
    if kind == "null":
        return None
    return _text(schema) if kind == "string" else 1


def _object(schema: Mapping[str, Any], components: Schemas, depth: int) -> dict[str, Any]:
    """Return an object of what is required, and of what has an example; of all, if nothing is."""
    properties: Mapping[str, Any] = schema.get("properties", {})
    required = set(schema.get("required", ()))
    shown = {
        name: one
        for name, one in properties.items()
        if name in required or "examples" in one or (not required and depth < 1)
    }
    return {name: example_of(one, components, depth + 1) for name, one in shown.items()}


def _array(schema: Mapping[str, Any], components: Schemas, depth: int) -> list[Any]:
    items = [example_of(one, components, depth + 1) for one in schema.get("prefixItems", ())]
    if items or depth >= _DEEPEST or schema.get("maxItems") == 0:
        return items
    item = schema.get("items")
    one = example_of(item, components, depth + 1) if isinstance(item, Mapping) else 1
    return [one] * min(max(schema.get("minItems", 1), 1), _MOST_ITEMS)


def _number(schema: Mapping[str, Any], kind: str) -> int | float:
    least, most = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    number = 1 if kind == "integer" else 0.5
    if least is not None and number < least:
        number = least
    if above is not None and number <= above:
        number = above + 1
    if most is not None and number > most:
        number = most
    if below is not None and number >= below:
        number = below - 1
    return number


def _text(schema: Mapping[str, Any]) -> str:
    if "contentEncoding" in schema:
        return "aGVsbG8="
    of_format = {
        "date-time": "2026-01-31T12:00:00Z",
        "date": "2026-01-31",
        "time": "12:00:00",
        "uuid": "123e4567-e89b-12d3-a456-426614174000",
        "email": "somebody@example.org",
        "uri": "https://example.org",
    }
    text: str = of_format.get(schema.get("format", ""), "text")
    least: int = schema.get("minLength", 0)
    text += "x" * (least - len(text))
    most: int = schema.get("maxLength", len(text))
    return text[:most]
