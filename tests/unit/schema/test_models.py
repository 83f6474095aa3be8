"""Models that speak as pydantic's do: known by their methods, since pydantic is the user's own."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from pipeline.errors import PackageError, PayloadTypeError, UserCodeError
from pipeline.schema.bound import bind


class Refusal(ValueError):
    def __init__(self, errors: list[dict[str, Any]]) -> None:
        super().__init__("refused")
        self._errors = errors

    def errors(self) -> list[dict[str, Any]]:
        return self._errors


class Model:
    """As pydantic has it: `a`, a whole number, and `b`, which may be left out."""

    model_fields: ClassVar[dict[str, Any]] = {"a": None, "b": None}

    def __init__(self, a: int, b: Any) -> None:
        self.a, self.b = a, b

    @classmethod
    def model_validate(cls, given: Any) -> Model:
        if "a" not in given:
            raise Refusal([{"type": "missing", "loc": ("a",), "msg": "Field required"}] * 2)
        if given["a"] == "broken":
            raise KeyError("broken")
        if not isinstance(given["a"], int):
            fields = {"type": "int_type", "loc": ("a", 3, "x"), "msg": "Input should be an integer"}
            raise Refusal([{**fields, "input": given["a"]}])
        return cls(given["a"], given.get("b", "b"))

    @classmethod
    def model_json_schema(cls, ref_template: str) -> dict[str, Any]:
        reference = {"$ref": ref_template.format(model="Inner")}
        return {"type": "object", "properties": {"b": reference}, "$defs": {"Inner": {}}}

    def model_dump(self) -> dict[str, Any]:
        return {"a": self.a, "b": self.b}


def test_an_op_receives_the_fields_of_the_model():
    bound = bind(Model)
    assert not bound.is_quick
    assert bound.check({"a": 1}) == {"a": 1, "b": "b"}
    assert bound.check({"a": 1, "b": np.ones(2)}) == {"a": 1, "b": [1.0, 1.0]}


def test_its_complaints_have_a_path():
    with pytest.raises(PackageError, match=r"^a: field required, found nothing \(and 1 more\)$"):
        bind(Model).check({})
    with pytest.raises(PackageError, match=r"^a\[3\]\.x: input should be an integer, found str"):
        bind(Model).check({"a": "x"})
    with pytest.raises(
        PayloadTypeError, match=r"^the answer is not a valid Model: a\[3\]\.x: input"
    ):
        bind(Model).check_answer({"a": "x"})


def test_a_model_that_fails_is_not_the_caller_s_fault():
    with pytest.raises(UserCodeError, match="schema Model raised KeyError"):
        bind(Model).check({"a": "broken"})


def test_an_answer_is_unchanged_except_for_defaults():
    inner = Model(2, "c")
    answer = bind(Model).check_answer({"a": 1, "more": inner})
    assert answer == {"a": 1, "more": {"a": 2, "b": "c"}, "b": "b"}


def test_a_json_schema_has_its_definitions_as_components():
    reference = "#/components/schemas/"
    result, components = bind(Model).json_schema()
    assert result == {"$ref": f"{reference}Model"}
    assert components == {
        "Inner": {},
        "Model": {"type": "object", "properties": {"b": {"$ref": f"{reference}Inner"}}},
    }
