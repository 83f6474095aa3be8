"""The OpenAPI document: paths, types, examples that fit, names that do not clash."""

from __future__ import annotations

import enum
from typing import Annotated, Any, TypedDict

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from msgspec import field

import pipeline
from pipeline import Tensor
from pipeline.frontends.api.openapi import STREAMS, Described, Operation, document, example_of
from pipeline.schema.bound import bind

REFERENCE = "#/components/schemas/"


class Point(msgspec.Struct):
    x: float
    y: float = 0.0


class Colour(enum.Enum):
    red = "red"
    blue = "blue"


class Ask(pipeline.Schema):
    """Words to be looked at."""

    words: Annotated[str, msgspec.Meta(description="a sentence", examples=["a fine film"])]
    colour: Colour
    top: Annotated[int, msgspec.Meta(ge=3, le=10)] = 3
    points: list[Point] = field(default_factory=list)
    picture: bytes = b""
    rows: Annotated[np.ndarray, Tensor("rows", "FP32", (-1, 2))] = field(
        default_factory=lambda: np.zeros((0, 2))
    )
    pixels: npt.NDArray[np.uint8] | None = None
    tree: Ask | None = None


class Label(TypedDict):
    label: str
    prob: float


def type_named(name: str) -> Any:
    """Another type of the same name."""
    return type(name, (msgspec.Struct,), {"__annotations__": {"z": int}})


def post_of(found: dict[str, Any], name: str) -> dict[str, Any]:
    return found["paths"][f"/api/{name}"]["post"]


def request_of(post: dict[str, Any]) -> dict[str, Any]:
    return post["requestBody"]["content"]["application/json"]


def answer_of(post: dict[str, Any]) -> dict[str, Any]:
    return post["responses"]["200"]["content"]["application/json"]


def test_a_pipeline_is_a_path_with_its_types():
    result = document("shop", [Operation("look", bind(Ask), bind(Label))])
    post = post_of(result, "look")
    assert post["description"] == "Words to be looked at."
    assert request_of(post)["schema"] == {"$ref": f"{REFERENCE}Ask"}
    assert answer_of(post)["schema"] == {"$ref": f"{REFERENCE}Label"}
    components = result["components"]["schemas"]
    assert {"Ask", "Point", "Colour", "Label", "Error"} == set(components)
    fields = components["Ask"]["properties"]
    assert fields["picture"]["contentEncoding"] == "base64"
    row = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    assert fields["rows"]["items"] == row
    assert fields["rows"]["description"] == "FP32 [any, 2]"
    assert components["Ask"]["required"] == ["words", "colour"]


def test_a_schema_with_bytes_accepts_a_form_or_a_plain_body():
    class Seen(pipeline.Schema):
        image: bytes
        top: int = 1

    result = document("shop", [Operation("look", bind(Ask)), Operation("see", bind(Seen))])
    form = post_of(result, "look")["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["properties"]["picture"] == {"type": "string", "format": "binary"}
    assert form["required"] == ["words", "colour"]
    assert "image/*" not in post_of(result, "look")["requestBody"]["content"]
    assert "image/*" in post_of(result, "see")["requestBody"]["content"]


def test_without_types_a_pipeline_takes_any_object():
    post = post_of(document("shop", [Operation("any")]), "any")
    assert request_of(post)["schema"] == {"type": "object", "additionalProperties": True}
    assert request_of(post)["example"] == {}
    assert set(post["responses"]) >= {"200", "400", "404", "415", "500", "503", "504"}
    refused = post["responses"]["400"]["content"]["application/json"]
    assert refused["schema"] == {"$ref": f"{REFERENCE}Error"}
    assert set(refused["example"]["error"]) == {"code", "name", "message", "op"}


@pytest.mark.parametrize("streams", [False, True])
def test_the_forms_of_a_stream_are_documented(streams):
    post = post_of(document("shop", [Operation("s", streams=streams)]), "s")
    assert post[STREAMS] is streams
    forms = set(post["responses"]["200"]["content"])
    more = {"text/event-stream", "application/x-ndjson"} if streams else set()
    assert forms == {"application/json"} | more


@pytest.mark.parametrize("kind", [Ask, Label, Point])
def test_an_example_fits_its_type(kind):
    bound = bind(kind)
    schema, components = bound.json_schema()
    example = example_of(schema, components)
    assert bound.check(example)
    assert example
    if kind is Ask:
        assert example["words"] == "a fine film"


def test_types_of_one_name_do_not_take_each_others_place():
    ones = [Operation("a", bind(Point)), Operation("b", bind(type_named("Point")), bind(Point))]
    result = document("shop", [*ones, Operation("b", bind(type_named("Point")))])
    components = result["components"]["schemas"]
    assert set(components["Point"]["properties"]) == {"x", "y"}
    assert set(components["b_Point"]["properties"]) == {"z"}
    post = post_of(result, "b")
    assert request_of(post)["schema"] == {"$ref": f"{REFERENCE}b_Point"}
    assert set(components) == {"Point", "b_Point", "Error"}


def test_a_type_that_cannot_be_described_is_any_object():
    class Broken:
        name = "Broken"
        is_quick = True

        def check(self, fields, is_text=False):
            return fields

        def check_answer(self, fields):
            return fields

        def json_schema(self):
            raise RuntimeError("no luck")

    post = post_of(document("shop", [Operation("x", Broken())]), "x")
    assert request_of(post)["schema"]["type"] == "object"


SCHEMAS = [
    ({"type": "string", "minLength": 9}, "textxxxxx"),
    ({"type": "string", "maxLength": 2}, "te"),
    ({"type": "string", "format": "date"}, "2026-01-31"),
    ({"type": "integer", "maximum": -4}, -4),
    ({"type": "integer", "exclusiveMinimum": 4}, 5),
    ({"type": "number", "exclusiveMaximum": 0}, -1),
    ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, [True, True]),
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}]}, [1, None]),
    ({"type": "array", "maxItems": 0}, []),
    ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, 1),
    ({"enum": ["b", "a"]}, "b"),
    ({"const": 3}, 3),
    ({"type": "object"}, {}),
    ({}, 1),
]


@pytest.mark.parametrize(("schema", "example"), SCHEMAS, ids=str)
def test_an_example_follows_its_schema(schema, example):
    assert example_of(schema, {}) == example


def test_an_example_of_a_recursive_schema_is_finite():
    schema = {"$ref": f"{REFERENCE}A"}
    components = {"A": {"type": "object", "required": ["a"], "properties": {"a": schema}}}
    text = str(example_of(schema, components))
    assert text.startswith("{'a': {'a': ")
    assert text.endswith("}" * 5)


def test_paths_of_other_frontends_are_included_without_name_clashes():
    there = {"type": "object", "title": "of another"}
    described = Described({"/v9/x": {"get": {}}}, {"Ask": there})
    result = document("title", [Operation("says", bind(Ask))], [described])
    assert {*result["paths"]} == {"/api/says", "/v9/x"}
    schemas = result["components"]["schemas"]
    assert schemas["Ask"] == there
    body = result["paths"]["/api/says"]["post"]["requestBody"]["content"]["application/json"]
    assert schemas[body["schema"]["$ref"].removeprefix(REFERENCE)]["title"] == "Ask"
    assert body["schema"]["$ref"] != REFERENCE + "Ask"
