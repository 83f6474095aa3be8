"""JSON Schema of config.yml, made from the Structs, with which editors complete and check."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from pipeline.config import registry
from pipeline.config.fields import OneOf, Rule, Setting, chosen_by, settings_of
from pipeline.config.schema import ServiceConfig

FILE = Path(__file__).with_name("config.schema.json")
"""The schema that is installed with this library; a test compares it with `config_schema`."""

_EXPRESSION = "expression"
_OPEN: dict[str, Any] = {}  # anything


def config_schema() -> dict[str, Any]:
    """Return the schema in draft 7, which editors support, without this machine's plug-ins."""
    return _Schemas().root()


def encoded(schema: Mapping[str, Any]) -> bytes:
    """Return a schema as the text of a file."""
    return msgspec.json.format(msgspec.json.encode(schema), indent=1) + b"\n"


class _Schemas:
    """The schemas of Structs, each of which is once in the file."""

    def __init__(self) -> None:
        self._definitions: dict[str, Any] = {
            _EXPRESSION: {
                "description": "${NAME}, ${NAME:-default} or ${file:PATH}.",
                "type": "string",
                "pattern": r"\$\{",
            }
        }

    def root(self) -> dict[str, Any]:
        schema = self._of_struct(ServiceConfig)
        return {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "title": "config.yml of pipeline",
            **schema,
            "definitions": dict(sorted(self._definitions.items())),
        }

    def _reference(self, struct: type[msgspec.Struct]) -> dict[str, Any]:
        """Return a reference to the schema of a Struct; the first call makes the schema."""
        name = struct.__name__
        if name not in self._definitions:
            self._definitions[name] = {}
            self._definitions[name] = self._of_struct(struct)
        return {"$ref": f"#/definitions/{name}"}

    def _of_struct(self, struct: type[msgspec.Struct]) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        for key, setting in settings_of(struct).items():
            more = f" Expected: {setting.rule.words}." if isinstance(setting.rule, Rule) else ""
            properties[key] = {"description": setting.doc + more, **self._of_setting(setting)}
            if setting.alias:
                properties[setting.alias] = {"description": f"The same as {key}.", **_OPEN}
        ignored = dict.fromkeys(getattr(struct, "ignored_keys", ()), _OPEN)  # a plug-in's
        schema: dict[str, Any] = {"type": ["object", "null"], "properties": properties | ignored}
        plugged = chosen_by(struct)
        if not plugged:
            return {**schema, "additionalProperties": False}
        # A plug-in may bring keys: other keys are errors only if no plug-in is chosen.
        ours = {key: {"enum": [*names, None]} for key, names in plugged.items()}
        return {
            **schema,
            "if": {"properties": ours},
            "then": {"propertyNames": {"enum": sorted(properties | ignored)}},
        }

    def _of_setting(self, setting: Setting) -> dict[str, Any]:
        """Return the schema of one key; null means its default."""
        default = {} if setting.default is None else {"default": setting.default}
        if setting.section is not None:
            return {**self._of_section(setting, setting.section), **default}
        if setting.chosen is not None:
            names = registry.BUILT_IN[setting.chosen.kind]
            known = {name: self._of_options(setting.chosen.kind, name) for name in names}
            return {"type": ["object", "null"], "properties": known}
        if isinstance(setting.rule, OneOf):
            words = [*registry.BUILT_IN[setting.rule.kind], *setting.rule.also]
            return {"anyOf": [{"enum": words}, {"type": ["string", "null"]}], **default}
        return {**_of_type(inspect.type_info(setting.value_type)), **default}

    def _of_section(self, setting: Setting, section: type[msgspec.Struct]) -> dict[str, Any]:
        reference = self._reference(section)
        if setting.many:
            return {"type": ["object", "null"], "additionalProperties": reference}
        if setting.listed:
            return {"anyOf": [{"type": ["array", "null"], "items": reference}, reference]}
        return {"allOf": [reference]}

    def _of_options(self, kind: registry.Kind, name: str) -> dict[str, Any]:
        struct = registry.options_of(kind, name)
        return {"type": "null"} if struct is None else {"allOf": [self._reference(struct)]}


def _of_type(info: inspect.Type) -> dict[str, Any]:
    match info:
        case inspect.LiteralType(values=values):
            return {"anyOf": [{"enum": [*values, None]}, _expression()]}
        case inspect.BoolType():
            return {"anyOf": [{"type": ["boolean", "null"]}, _expression()]}
        case inspect.IntType():
            return {"anyOf": [{"type": ["integer", "null"], **_bounds(info)}, _expression()]}
        case inspect.FloatType():
            return {"anyOf": [{"type": ["number", "null"], **_bounds(info)}, _expression()]}
        case inspect.VarTupleType(item_type=item):
            return {"type": ["array", "null"], "items": _of_type(item)}
        case inspect.DictType(value_type=value):
            return {"type": ["object", "null"], "additionalProperties": _of_type(value)}
        case inspect.StrType():
            return {"type": ["string", "null"]}
    return {}


def _expression() -> dict[str, Any]:
    return {"$ref": f"#/definitions/{_EXPRESSION}"}


def _bounds(info: inspect.IntType | inspect.FloatType) -> dict[str, Any]:
    bounds = {
        "minimum": info.ge,
        "maximum": info.le,
        "exclusiveMinimum": info.gt,
        "exclusiveMaximum": info.lt,
    }
    return {word: bound for word, bound in bounds.items() if bound is not None}
