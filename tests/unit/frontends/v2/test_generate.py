"""Generate's JSON: what becomes a tensor, of which shape, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from pipeline.errors import PackageError, TooLargeError
from pipeline.frontends.v2.generate import read_generate, write_generate
from pipeline.frontends.v2.interface import ModelInterface, Slot
from pipeline.proto.slices import SHORT_BYTES, Limits
from pipeline.proto.v2.codec import InferRequest, InferResponse

DECLARED = ModelInterface(
    (
        Slot("TEXT", "BYTES", (1, 1)),
        Slot("FLAG", "BOOL", (1,)),
        Slot("IDS", "INT32", (2, -1)),
        Slot("FREE", "FP32", (-1, -1)),
        Slot("ANY", "UINT8", None),
    )
)
NO_SHAPE = "The schema can not convert input '{}' to tensor with proper shape"
INVALID = "parameter '{}' has invalid type"


def read(value: Any, interface: ModelInterface = DECLARED, **limits: int) -> InferRequest:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return read_generate(body, "m", "1", interface, Limits(**limits))


def inputs_of(value: Any, interface: ModelInterface = DECLARED) -> dict[str, Any]:
    arrays = read(value, interface).inputs
    return {name: (array.dtype.name, array.tolist()) for name, array in arrays.items()}


def refused(value: Any, interface: ModelInterface = DECLARED) -> str:
    with pytest.raises(PackageError) as caught:
        read(value, interface)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("TEXT", "hello", ("object", [[b"hello"]])),
        ("TEXT", ["hello"], ("object", [[b"hello"]])),
        ("FLAG", True, ("bool", [True])),
        ("IDS", [1, 2, 3, 4], ("int32", [[1, 2], [3, 4]])),
        ("IDS", [], ("int32", [[], []])),
        ("FREE", [1, 2.5], ("float32", [[1.0, 2.5]])),
        ("FREE", 1, ("float32", [[1.0]])),
        ("ANY", [1, 2], ("uint8", [1, 2])),
    ],
)
def test_a_value_becomes_a_tensor_of_the_inputs_type_and_shape(name, value, expected):
    assert inputs_of({name: value}) == {name: expected}


def test_with_batches_the_first_size_is_theirs():
    interface = ModelInterface((Slot("IDS", "INT32", (2,)),), None, 8)
    assert inputs_of({"IDS": [1, 2, 3, 4]}, interface) == {"IDS": ("int32", [[1, 2], [3, 4]])}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("TEXT", ["a", "b"], NO_SHAPE),
        ("TEXT", [], NO_SHAPE),
        ("IDS", [1, 2, 3], NO_SHAPE),
        ("IDS", [[1, 2], [3, 4]], NO_SHAPE),
        ("TEXT", 1, "attempt to access JSON non-string as string"),
        ("TEXT", {"a": "b"}, "attempt to access JSON non-string as string"),
        ("TEXT", None, "attempt to access JSON non-string as string"),
        ("FLAG", 1, "attempt to access JSON non-boolean as boolean"),
        ("ANY", "1", "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ("ANY", 256, "which no UINT8 can be"),
        ("IDS", [1, True], "attempt to access JSON non-signed-integer as signed-integer"),
    ],
)
def test_a_value_that_does_not_match_the_input_is_refused(name, value, text):
    assert text.format(name) in refused({name: value})


def test_a_field_that_is_not_an_input_is_a_parameter():
    asked = read({"id": "7", "temperature": 0.5, "parameters": {"n": 1, "TEXT": "a"}, "x": "y"})
    assert asked.id == "7"
    assert asked.parameters == {"temperature": 0.5, "n": 1, "x": "y"}
    assert list(asked.inputs) == ["TEXT"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"other": [1]}, INVALID.format("other")),
        ({"other": {"a": 1}}, INVALID.format("other")),
        ({"parameters": 1}, "Expected JSON object for keyword: 'parameters'"),
        ({"parameters": {"a": {}}}, f"Converting keyword: 'parameters': {INVALID.format('a')}"),
        ({"id": 1}, "Unable to parse 'id': attempt to access JSON non-string as string"),
        (b'{"TEXT": "a", "TEXT": "b"}', "input 'TEXT' already exists in request"),
        (b'{"TEXT": "a", "parameters": {"TEXT": "b"}}', "input 'TEXT' already exists in request"),
        (b"[]", "the request must be a JSON object"),
        (b"{", "the request is not valid JSON"),
        (b"\xff", "the request is not valid JSON"),
        (b"[" * 10_000, "the request is not valid JSON"),
        (b'{"x": %s}' % (b"9" * 5000), "the request is not valid JSON"),
    ],
)
def test_an_invalid_form_is_refused(value, text):
    assert text in refused(value)


def test_a_body_may_be_empty():
    assert read(b"").inputs == {}


LONG = list(range(SHORT_BYTES // 4))


def test_large_bodies_are_read_as_short_ones_are():
    request = {"FREE": LONG, "parameters": {"n": 1}, "TEXT": "x" * SHORT_BYTES}
    result = read(request)
    assert result.inputs["FREE"].shape == (1, len(LONG))
    assert result.inputs["FREE"][0].tolist() == LONG
    assert result.inputs["TEXT"].tolist() == [[b"x" * SHORT_BYTES]]
    assert result.parameters == {"n": 1}


def test_large_bodies_are_refused_as_short_ones_are():
    assert refused({"FREE": [LONG]}) == NO_SHAPE.format("FREE")
    assert INVALID.format("other") in refused({"other": LONG})
    assert refused([LONG]) == "the request must be a JSON object"
    assert refused(b'{"FREE": [' + b"1," * SHORT_BYTES).startswith("the request is not valid JSON")
    with pytest.raises(TooLargeError):
        read({"ANY": 1, "TEXTS": ["a"] * 100_000}, ModelInterface(), text_elements=10)


def test_a_model_without_declarations_accepts_any_input():
    inputs = inputs_of({"a": "x", "b": [1, 2], "c": [1, 2.5], "d": True}, ModelInterface())
    assert inputs == {
        "a": ("object", [b"x"]),
        "b": ("int64", [1, 2]),
        "c": ("float64", [1.0, 2.5]),
        "d": ("bool", [True]),
    }
    assert "must be a string" in refused({"a": {"b": 1}}, ModelInterface())
    assert "must be a string" in refused({"a": ["x", 1]}, ModelInterface())


def answer(**outputs: Any) -> bytes:
    arrays = {name: np.asarray(value) for name, value in outputs.items()}
    return write_generate(InferResponse("m", "1", "7", {}, arrays), Limits())


def test_an_answer_is_flat_and_one_element_is_its_value():
    text = np.array([b"hi"], object)
    assert answer(TEXT=text, NUM=np.array([[1, 2]], np.int32), ONE=np.float32([0.5])) == (
        b'{"NUM":[1,2],"ONE":0.5,"TEXT":"hi","id":"7","model_name":"m","model_version":"1"}'
    )
    assert json.loads(answer(EMPTY=np.empty((1, 0), np.int32)))["EMPTY"] == []
    assert b'"NAN":NaN' in answer(NAN=np.float32([np.nan]))


def test_an_answer_without_an_id_has_no_id_field():
    body = write_generate(InferResponse("m", "1", "", {}, {}), Limits())
    assert json.loads(body) == {"model_name": "m", "model_version": "1"}


def test_an_output_without_a_form_in_json_is_named():
    with pytest.raises(PackageError, match="output 'H'"):
        answer(H=np.float16([1]))
