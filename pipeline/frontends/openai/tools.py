"""Checks of tools, of the choice among them, and of the answer's form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.frontends.openai.errors import ArgumentError, wrong_type

_TYPES = frozenset(("object", "array", "string", "number", "integer", "boolean", "null"))
_CHOICES = ("none", "auto", "required")


def check_tools(tools: Any, where: str) -> None:
    """Raise ArgumentError for tools without a name, or with an invalid JSON schema."""
    if not isinstance(tools, list):
        raise wrong_type(where, "a list", tools)
    for at, tool in enumerate(tools):
        place = f"{where}[{at}]"
        if not isinstance(tool, dict):
            raise wrong_type(place, "an object", tool)
        kind = _text_in(tool, "type", place)
        if kind in ("function", "custom"):
            function = tool.get(kind)
            if not isinstance(function, dict):
                raise _missing_or_wrong(f"{place}.{kind}", "an object", function)
            _text_in(function, "name", f"{place}.{kind}")
            if function.get("parameters") is not None:
                check_arguments(function["parameters"], f"{place}.{kind}.parameters")


def check_arguments(schema: Any, where: str) -> None:
    """Raise ArgumentError for an invalid schema of a tool's arguments, which are an object."""
    if not isinstance(schema, dict):
        raise wrong_type(where, "an object", schema)
    check_schema(schema, where)
    if schema.get("type", "object") != "object":
        raise _invalid_schema([where, ".type"], "'object'")


def check_choice(choice: Any, tools: Sequence[Any]) -> None:
    """Raise ArgumentError for the choice of a tool that is not in `tools`."""
    if isinstance(choice, str):
        if choice not in _CHOICES:
            there = ", ".join(_CHOICES)
            raise ArgumentError(f"tool_choice must be {there}, or an object", "tool_choice")
        return
    if not isinstance(choice, dict):
        raise wrong_type("tool_choice", "text or an object", choice)
    kind = _text_in(choice, "type", "tool_choice")
    if kind in ("function", "custom"):
        function = choice.get(kind)
        if not isinstance(function, dict):
            raise _missing_or_wrong(f"tool_choice.{kind}", "an object", function)
        name = _text_in(function, "name", f"tool_choice.{kind}")
        if not any(tool["type"] == kind and tool[kind]["name"] == name for tool in tools):
            where = f"tool_choice.{kind}.name"
            raise ArgumentError(f"{where}: there is no tool {name!r} in tools", where)


def check_format(form: Any, where: str) -> None:
    """Raise ArgumentError for a form without a type, or with an invalid JSON schema."""
    if not isinstance(form, dict):
        raise wrong_type(where, "an object", form)
    if _text_in(form, "type", where) == "json_schema":
        json_schema = form.get("json_schema")
        where = f"{where}.json_schema"
        if not isinstance(json_schema, dict):
            raise _missing_or_wrong(where, "an object", json_schema)
        _text_in(json_schema, "name", where)
        if json_schema.get("schema") is not None:
            check_schema(json_schema["schema"], f"{where}.schema")


def check_schema(schema: Any, where: str) -> None:
    """Raise ArgumentError for an invalid JSON schema, with the path of the fault.

    Schemas inside keywords are checked too; JSON's reader has bounded their depth.
    """
    _check_within(schema, [where])


def _check_within(schema: Any, path: list[str]) -> None:
    """Check the schema at a path; only an error joins the path."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise _invalid_schema(path, "an object, true or false")
    for name, value in schema.items():
        if (check := _KEYWORDS.get(name)) is not None:
            path.append(f".{name}")
            check(value, path)
            path.pop()


def _check_types(types: Any, path: list[str]) -> None:
    for name in types if isinstance(types, list) else [types]:
        if not isinstance(name, str) or name not in _TYPES:
            raise _invalid_schema(path, f"one of {', '.join(sorted(_TYPES))}")


def _check_names(names: Any, path: list[str]) -> None:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _invalid_schema(path, "a list of names")


def _check_list(values: Any, path: list[str]) -> None:
    if not isinstance(values, list):
        raise _invalid_schema(path, "a list")


def _check_schemas(schemas: Any, path: list[str]) -> None:
    if not isinstance(schemas, list):
        raise _invalid_schema(path, "a list of schemas")
    for at, schema in enumerate(schemas):
        path.append(f"[{at}]")
        _check_within(schema, path)
        path.pop()


def _check_named(schemas: Any, path: list[str]) -> None:
    if not isinstance(schemas, dict):
        raise _invalid_schema(path, "an object of schemas")
    for name, schema in schemas.items():
        path.append(f".{name}")
        _check_within(schema, path)
        path.pop()


_KEYWORDS: Mapping[str, Callable[[Any, list[str]], None]] = {
    "type": _check_types,
    "required": _check_names,
    "enum": _check_list,
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), _check_schemas),
    **dict.fromkeys(
        ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"),
        _check_named,
    ),
    **dict.fromkeys(
        ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else"),
        _check_within,
    ),
}


def _text_in(value: dict[str, Any], name: str, where: str) -> str:
    text = value.get(name)
    if not isinstance(text, str) or not text:
        raise _missing_or_wrong(f"{where}.{name}", "text", text)
    return text


def _missing_or_wrong(where: str, expected: str, value: Any) -> ArgumentError:
    if value is None:
        return ArgumentError(f"{where} is missing", where, "missing_required_parameter")
    return wrong_type(where, expected, value) if value != "" else _empty(where)


def _empty(where: str) -> ArgumentError:
    return ArgumentError(f"{where} must not be empty", where, "empty_string")


def _invalid_schema(path: Sequence[str], expected: str) -> ArgumentError:
    where = "".join(path)
    text = f"{where} is not a JSON schema: it must be {expected}"
    return ArgumentError(text, where, "invalid_json_schema")
