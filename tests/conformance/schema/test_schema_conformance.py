"""A schema's refusals are alike at every door, of the server itself and of its gateway."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pytest
from doubles import server_for
from typed_doors import AS_JSON, AS_TENSORS, AS_TEXT, NAME, Door

import pipeline
from pipeline import Op, PipelineServer, RequestOp, ResponseOp, Tensor

EDGES = ("embedded", "gateway")
DOORS = (*AS_TEXT, *AS_TENSORS, *AS_JSON)


class Point(msgspec.Struct):
    x: float


class Ask(pipeline.Schema, forbid_unknown_fields=True):
    a: Annotated[int, msgspec.Meta(ge=0)]
    b: list[float] = msgspec.field(default_factory=list)
    p: list[Point] = msgspec.field(default_factory=list)
    rows: Annotated[np.ndarray, Tensor("rows", "FP32", (-1, 2))] | None = None


class Reply(pipeline.Schema):
    said: str


class Replies(Op):
    output_tensors = (Tensor("said", "BYTES", (1,)),)

    def preprocess(self, input_dicts: Any) -> Any:
        return input_dicts["@DAGExecutor"]

    def postprocess(self, input_dicts: Any, fetch_dict: Any) -> Any:
        if fetch_dict["a"] == 13:
            return {"said": np.ones(1)}
        return {"said": f"{fetch_dict['a']} {sum(fetch_dict['b'])}"}


@dataclass(frozen=True)
class Case:
    """Values and what is said of them: `found` as JSON, `as_text` as text, or `as_tensor`."""

    name: str
    values: dict[str, Any]
    err_no: int
    expected: str
    found: str = ""
    as_text: str = ""
    as_tensor: str = ""
    is_tensors: bool = True  # they can be


def refused(
    name: str, values: dict[str, Any], expected: str, found: str, as_text: str = "", **more: Any
) -> Case:
    return Case(name, values, 8000, f"{expected}, found ", found, as_text, **more)


NO_KEY = ", expected no such key: the keys are a, b, p, rows"
MANY = [0.5] * 20_000
CASES = (
    Case("it fits", {"a": 2, "b": [1.5, 2.5]}, 0, "2 4.0"),
    Case("it fits, large", {"a": 2, "b": MANY}, 0, "2 10000.0"),
    refused("a key is missing", {"b": [1.5]}, "a: expected int", "nothing"),
    Case("an unknown key", {"a": 1, "c": 2}, 8000, "c: found ", f"int 2{NO_KEY}",
         f"str '2'{NO_KEY}", f"array{NO_KEY}"),
    refused("too small", {"a": -1}, "a: expected int >= 0", "int -1", "str '-1'"),
    refused("text", {"a": "x"}, "a: expected int", "str 'x'"),
    refused("a fraction", {"a": 2.5}, "a: expected int", "float 2.5", "str '2.5'"),
    refused("lists in a list", {"a": 1, "b": [[1.5]]}, "b[0]: expected float", "array"),
    refused("a text in a list", {"a": 1, "b": [1.5, "x"]}, "b[1]: expected float", "str 'x'",
            is_tensors=False),
    refused("a text far down", {"a": 1, "b": [*MANY, "x"]}, "b[20000]: expected float",
            "str 'x'", is_tensors=False),
    refused("a number in an object", {"a": 1, "p": [{"x": 1}, {"x": "n"}]},
            "p[1].x: expected float", "str 'n'", is_tensors=False),
    refused("another shape", {"a": 1, "rows": [[1.0, 2.0, 3.0]]},
            "rows: expected array [any, 2]", "array [1, 3]"),
    Case("the answer", {"a": 13}, 7000, "the answer is not a valid Reply: said: expected str, ",
         "found float 1.0"),
)  # fmt: skip


@pytest.fixture(scope="module")
def servers(gateway_binary: Path, module_logs: None) -> Iterator[dict[str, PipelineServer]]:
    with contextlib.ExitStack() as stack:
        response_op = ResponseOp(Replies("tells", RequestOp(schema=Ask)), schema=Reply)
        made = {
            edge: server_for(
                response_op.get_input_ops()[0],
                NAME,
                response_op,
                edge=edge,
                errors={"details": "full"},
            )
            for edge in EDGES
        }
        yield {edge: stack.enter_context(server) for edge, server in made.items()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_each_frontend_answers_as_in_the_table_with_and_without_gateway(
    servers: dict[str, PipelineServer], door: Door, case: Case
):
    if door in AS_TENSORS and not case.is_tensors:
        with pytest.raises(LookupError):
            door(servers["embedded"], case.values)
        return
    as_text = case.as_text if door in AS_TEXT else case.as_tensor if door in AS_TENSORS else ""
    wanted = case.expected + (as_text or case.found)
    for edge in EDGES:
        err_no, text = door(servers[edge], case.values)
        assert (text, err_no or case.err_no) == (wanted, case.err_no), edge
