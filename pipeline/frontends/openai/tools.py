"""Checks of tools, of how they are chosen, and of the form that an answer is to have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.frontends.openai.errors import ArgumentError, wrong_type

_TYPES = frozenset(("object", "array", "string", "number", "integer", "boolean", "null"))
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_NESTED = (
    "items",
    "additionalProperties",
    "not",
    "contains",
    "propertyNames",
    "if",
    "then",
    "else",
)
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_CHOICES = ("none", "auto", "required")


def check_tools(tools: Any, where: str) -> None:
    """Raise ArgumentError for tools without a name, or whose arguments have no JSON schema."""
    if not isinstance(tools, list):
        raise wrong_type(where, "a list", tools)
    for at, tool in enumerate(tools):
        place = f"{where}[{at}]"
        if not isinstance(tool, dict):
            raise wrong_type(place, "an object", tool)
        kind = _text_in(tool, "type", place)
        if kind in ("function", "custom"):
            said = tool.get(kind)
            if not isinstance(said, dict):
                raise _missing_or_wrong(f"{place}.{kind}", "an object", said)
            _text_in(said, "name", f"{place}.{kind}")
            if said.get("parameters") is not None:
                check_arguments(said["parameters"], f"{place}.{kind}.parameters")


def check_arguments(schema: Any, where: str) -> None:
    """Raise ArgumentError for the schema of a tool's arguments, which are an object."""
    if not isinstance(schema, dict):
        raise wrong_type(where, "an object", schema)
    check_schema(schema, where)
    if schema.get("type", "object") != "object":
        raise _no_schema(f"{where}.type", "'object'")


def check_choice(choice: Any, tools: Sequence[Any]) -> None:
    """Raise ArgumentError for the choice of a tool that is not there."""
    if isinstance(choice, str):
        if choice not in _CHOICES:
            there = ", ".join(_CHOICES)
            raise ArgumentError(f"tool_choice must be {there}, or an object", "tool_choice")
        return
    if not isinstance(choice, dict):
        raise wrong_type("tool_choice", "text or an object", choice)
    kind = _text_in(choice, "type", "tool_choice")
    if kind in ("function", "custom"):
        said = choice.get(kind)
        if not isinstance(said, dict):
            raise _missing_or_wrong(f"tool_choice.{kind}", "an object", said)
        name = _text_in(said, "name", f"tool_choice.{kind}")
        if not any(tool["type"] == kind and tool[kind]["name"] == name for tool in tools):
            where = f"tool_choice.{kind}.name"
            raise ArgumentError(f"{where}: there is no tool {name!r} in tools", where)


def check_format(form: Any, where: str) -> None:
    """Raise ArgumentError for a form without a type, or whose JSON schema is none."""
    if not isinstance(form, dict):
        raise wrong_type(where, "an object", form)
    if _text_in(form, "type", where) == "json_schema":
        said = form.get("json_schema")
        where = f"{where}.json_schema"
        if not isinstance(said, dict):
            raise _missing_or_wrong(where, "an object", said)
        _text_in(said, "name", where)
        if said.get("schema") is not None:
            check_schema(said["schema"], f"{where}.schema")


def check_schema(schema: Any, where: str) -> None:
    """Raise ArgumentError for what cannot be a JSON schema, with the path of what is wrong.

    The keywords that have schemas in them are followed; their depth is that of JSON's reader.
    """
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise _no_schema(where, "an object, true or false")
    kinds = schema.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if not isinstance(kind, str) or kind not in _TYPES:
            raise _no_schema(f"{where}.type", f"one of {', '.join(sorted(_TYPES))}")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
        raise _no_schema(f"{where}.required", "a list of names")
    if not isinstance(schema.get("enum", []), list):
        raise _no_schema(f"{where}.enum", "a list")
    for name in _NAMED:
        if not isinstance(those := schema.get(name, {}), dict):
            raise _no_schema(f"{where}.{name}", "an object of schemas")
        for key, each in those.items():
            check_schema(each, f"{where}.{name}.{key}")
    for name in _LISTED:
        if not isinstance(those := schema.get(name, []), list):
            raise _no_schema(f"{where}.{name}", "a list of schemas")
        for at, each in enumerate(those):
            check_schema(each, f"{where}.{name}[{at}]")
    for name in _NESTED:
        if name in schema:
            check_schema(schema[name], f"{where}.{name}")


def _text_in(value: dict[str, Any], name: str, where: str) -> str:
    found = value.get(name)
    if not isinstance(found, str) or not found:
        raise _missing_or_wrong(f"{where}.{name}", "text", found)
    return found


def _missing_or_wrong(where: str, expected: str, value: Any) -> ArgumentError:
    if value is None:
        return ArgumentError(f"{where} is missing", where, "missing_required_parameter")
    return wrong_type(where, expected, value) if value != "" else _empty(where)


def _empty(where: str) -> ArgumentError:
    return ArgumentError(f"{where} must not be empty", where, "empty_string")


def _no_schema(where: str, expected: str) -> ArgumentError:
    text = f"{where} is no JSON schema: it must be {expected}"
    return ArgumentError(text, where, "invalid_json_schema")
