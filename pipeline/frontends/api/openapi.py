"""OpenAPI 3.1: the document with the requests and answers of `/api`."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from pipeline.engine.sequences.pairs import END, ID, START
from pipeline.frontends.api.bodies import KEYS
from pipeline.schema.kinds import REFERENCE

_LOGGER = logging.getLogger(__name__)

VERSION = "3.1.0"
STREAMS = "x-streams"
"""True for a path whose pipeline answers in parts."""

_ERROR = "Error"
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]")
_ANYTHING = {"type": "object", "additionalProperties": True}
_FILE = {"type": "string", "format": "binary"}
_PROBLEMS = {
    "400": "The request does not fit the schema, or an Op refuses it.",
    "404": "The pipeline does not exist.",
    "413": "The request is larger than this server takes.",
    "415": "The content type is not taken.",
    "500": "An Op failed.",
    "503": "The server cannot take the request now: try again later.",
    "504": "The deadline passed.",
}
_ERROR_SCHEMA = {
    "title": _ERROR,
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "title": "What",
            "type": "object",
            "required": ["code", "name", "message"],
            "properties": {
                "code": {"type": "integer", "description": "err_no of the pipeline's own form"},
                "name": {"type": "string"},
                "message": {"type": "string", "description": "what is wrong, and where"},
                "op": {"type": ["string", "null"]},
            },
        }
    },
}
_ERROR_EXAMPLE = {
    "error": {
        "code": 8000,
        "name": "RPC_PACKAGE_ERROR",
        "message": "inputs[3].x: expected float, found str 'n'",
        "op": None,
    }
}


_SEQUENCE = tuple(
    {
        "name": name,
        "in": "query",
        "description": f"{text} Or a member of the body, an object or a form.",
        "schema": {"type": kind},
    }
    for name, kind, text in (
        (ID, "string", "The sequence that the request belongs to: text, or a number."),
        (START, "boolean", "Whether it is the first of its sequence."),
        (END, "boolean", "Whether it is the last of its sequence."),
    )
)


class Typed(Protocol):
    """A schema of requests or answers, for the document."""

    @property
    def name(self) -> str:
        """Return its name for the log."""

    def json_schema(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return its JSON schema, and the schemas that it refers to by name."""


class Operation(msgspec.Struct, frozen=True):
    """A pipeline: its name, the types of requests and answers, whether it answers in parts.

    `sequences`: its requests belong to sequences.
    """

    name: str
    request: Typed | None = None
    answer: Typed | None = None
    streams: bool = False
    sequences: bool = False


class Described(NamedTuple):
    """Part of the document from another frontend: its paths, and the schemas that they use."""

    paths: Mapping[str, Any]
    components: Mapping[str, Any]


def document(
    title: str, operations: Iterable[Operation], others: Iterable[Described] = ()
) -> dict[str, Any]:
    """Return the OpenAPI document of pipelines, and of the server's other frontends."""
    more = list(others)
    components: dict[str, Any] = {_ERROR: _ERROR_SCHEMA}
    for one in more:
        components |= one.components
    paths = {f"/api/{one.name}": {"post": _post(one, components)} for one in operations}
    for one in more:
        paths |= one.paths
    return {
        "openapi": VERSION,
        "info": {"title": title, "version": "1", "description": "POST a JSON object, get one."},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": components},
    }


def _post(operation: Operation, components: dict[str, Any]) -> dict[str, Any]:
    name = operation.name
    request, summary = _schema_of(operation.request, name, components)
    answer, schema = _schema_of(operation.answer, name, components)
    answered: dict[str, Any] = {
        "application/json": {"schema": answer, "example": example_of(answer, components)}
    }
    if operation.streams:
        text = {"type": "string", "description": "each part is an object as of application/json"}
        answered |= {
            "text/event-stream": {"schema": text},
            "application/x-ndjson": {"schema": text},
        }
    content: dict[str, Any] = {
        "application/json": {"schema": request, "example": example_of(request, components)},
        **_other_bodies(request, components),
    }
    body = {"required": True, "content": content}
    problem = {"schema": {"$ref": REFERENCE + _ERROR}, "example": _ERROR_EXAMPLE}
    problems = {
        status: {"description": text, "content": {"application/json": problem}}
        for status, text in _PROBLEMS.items()
    }
    return {
        "operationId": "ask_" + _NO_NAME.sub("_", name),
        "summary": f"Ask the pipeline {name}",
        **({"description": summary} if summary else {}),
        "tags": [name],
        STREAMS: operation.streams,
        **({"parameters": list(_SEQUENCE)} if operation.sequences else {}),
        "requestBody": body,
        "responses": {
            "200": {"description": schema or "The answer of the last Op.", "content": answered},
            **problems,
        },
    }


def _other_bodies(schema: Mapping[str, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    """Return the alternatives to JSON if a key is bytes: a form, or only the bytes."""
    whole = components.get(str(schema.get("$ref", "")).removeprefix(REFERENCE), schema)
    properties: Mapping[str, Any] = whole.get("properties", {})
    files = [name for name, one in properties.items() if one.get("contentEncoding") == "base64"]
    if not files:
        return {}
    parts = {name: _FILE if name in files else one for name, one in properties.items()}
    form = {"type": "object", "properties": parts, "required": whole.get("required", [])}
    alone = {
        f"{family}/*": {"schema": _FILE}
        for family, key in KEYS.items()
        if key in files and {*form["required"]} <= {key}
    }
    return {"multipart/form-data": {"schema": form}, **alone}


def _schema_of(
    bound: Typed | None, pipeline: str, components: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    """Return a type's JSON schema and its description; its components join the others."""
    if bound is None:
        return dict(_ANYTHING), ""
    try:
        schema, more = bound.json_schema()
    except Exception:  # a user's type: the rest of the document is still valid
        _LOGGER.exception("schema %s cannot be described", bound.name)
        return dict(_ANYTHING), ""
    names = _names(components, more, pipeline)
    components |= {names[name]: _renamed(one, names) for name, one in more.items()}
    renamed = _renamed(schema, names)
    described = components.get(str(renamed.get("$ref", "")).removeprefix(REFERENCE), renamed)
    return renamed, str(described.get("description", ""))


def _names(components: Mapping[str, Any], more: Mapping[str, Any], pipeline: str) -> dict[str, str]:
    """Return names for more components; a name of another component is changed."""
    names = {name: _NO_NAME.sub("_", name) for name in more}
    before, number = _NO_NAME.sub("_", pipeline), 1
    for name, new in list(names.items()):
        while components.get(names[name], more[name]) not in (
            more[name],
            _renamed(more[name], names),
        ):
            number += 1
            names[name] = f"{before}_{new}" if number == 2 else f"{before}_{new}_{number}"
    return names


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Return a JSON schema with renamed references."""
    if isinstance(value, Mapping):
        reference = value.get("$ref")
        if isinstance(reference, str) and reference.startswith(REFERENCE):
            name = reference.removeprefix(REFERENCE)
            value = {**value, "$ref": REFERENCE + names.get(name, name)}
        return {key: _renamed(one, names) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_renamed(one, names) for one in value]
    return value


# Examples of values -----------------------------------------------------------------------------


_DEEPEST = 8  # levels of a schema that refers to itself
_MOST_ITEMS = 4

Schemas = Mapping[str, Any]


def example_of(schema: Mapping[str, Any], components: Schemas, depth: int = 0) -> Any:
    """Return a value that fits: the schema's example or default, otherwise a small value."""
    reference = schema.get("$ref")
    if reference is not None:
        component = components.get(str(reference).removeprefix(REFERENCE), {})
        if "default" in schema:
            return schema["default"]
        return example_of(component, components, depth + 1) if depth < _DEEPEST else {}
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
    """Return an object of the members that are required or have an example; else of all."""
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
