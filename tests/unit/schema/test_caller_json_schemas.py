"""JSON schemas of callers accept the values that `jsonschema` accepts, in bounded time."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from pipeline.errors import PackageError
from pipeline.schema.json_schema import fault_in

NAMES = st.sampled_from("ab")
NUMBERS = st.integers(-3, 3) | st.sampled_from([0.5, 1.0, 2.5])
SCALARS = st.none() | st.booleans() | NUMBERS | st.sampled_from(["", "a", "ab"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=6,
)
KINDS = st.sampled_from(["object", "array", "string", "number", "integer", "boolean", "null"])
SIZES = st.integers(0, 3)


def schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": KINDS | st.lists(KINDS, min_size=1, max_size=2, unique=True),
            "enum": st.lists(VALUES, min_size=1, max_size=2),
            "const": VALUES,
            "properties": st.dictionaries(NAMES, inner, max_size=2),
            "required": st.lists(NAMES, unique=True),
            **dict.fromkeys(("additionalProperties", "items", "not", "contains", "if"), inner),
            **dict.fromkeys(("then", "else", "propertyNames"), inner),
            **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), several),
            "minContains": SIZES,
            "minimum": NUMBERS,
            "maximum": NUMBERS,
            "exclusiveMinimum": NUMBERS,
            "exclusiveMaximum": NUMBERS,
            "multipleOf": st.sampled_from([1, 2, 0.5]),
            **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), SIZES),
            **dict.fromkeys(("minProperties", "maxProperties"), SIZES),
        },
    )


SCHEMAS = st.recursive(st.booleans() | schemas(st.just(True)), schemas, max_leaves=6)


@settings(max_examples=int(os.environ.get("EXAMPLES", "100")), deadline=None)
@given(value=VALUES, schema=SCHEMAS)
def test_a_value_is_valid_where_jsonschema_accepts_it(value, schema):
    assert (fault_in(value, schema) == "") == Draft202012Validator(schema).is_valid(value)


TREE = {
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
    "$ref": "#/$defs/node",
}


@pytest.mark.parametrize(
    ("value", "schema", "fault"),
    [
        ({"a": [1, "x"]}, {"properties": {"a": {"items": {"type": "integer"}}}},
         "a[1]: expected integer, found string"),
        ({}, {"required": ["a"]}, "the key 'a' is missing"),
        ({"a": {"b": 1}}, {"properties": {"a": {"additionalProperties": False}}},
         "a: there is no key 'b'"),
        ("c", {"enum": ["a", "b"]}, 'expected one of ["a","b"]'),
        (True, {"type": ["integer", "null"]}, "expected integer or null, found boolean"),
        ({"next": {"next": 3}}, TREE, "next.next: expected object, found integer"),
        ([1, 1], {"uniqueItems": True}, "a value is there twice"),
        ("ab", {"pattern": "^c"}, ""),
    ],
)  # fmt: skip
def test_the_first_fault_has_its_path(value, schema, fault):
    assert fault_in(value, schema) == fault


TWICE = {f"a{at}": {"allOf": [{"$ref": f"#/$defs/a{at + 1}"}] * 2} for at in range(30)}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/none"},
        {"$ref": "http://127.0.0.1:1/x"},
        {"$defs": {**TWICE, "a30": True}, "$ref": "#/$defs/a0"},
        {"minimum": "a"},
        {"properties": 3},
        {"multipleOf": 0},
        {"items": {"enum": [*range(200_000)]}},
        {"items": {"required": ["a"] * 200_000}},
    ],
)
def test_schemas_that_cannot_be_checked(schema):
    values: Any = {"properties": {"a": 1}, "enum": [199_999] * 100, "required": [{"a": 1}] * 100}
    value = next(
        (values[name] for name in [*schema, *schema.get("items", ())] if name in values), 1
    )
    with pytest.raises(PackageError, match="the JSON schema"):
        fault_in(value, schema)


def deep(value: Any) -> Any:
    for _ in range(900):
        value = [value]
    return value


def test_values_that_are_deep_are_compared():
    assert fault_in(deep(1), {"const": deep(1.0)}) == ""
    with pytest.raises(PackageError, match="the JSON schema cannot be used"):
        fault_in(deep(1), {"const": deep(2)})  # whose text is too deep for a fault


def test_the_length_of_a_fault_is_bounded():
    assert len(fault_in("x", {"enum": ["a" * 100] * 1000})) < 20_000
