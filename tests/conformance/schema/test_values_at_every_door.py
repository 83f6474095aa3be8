"""Each value of JSON and each dtype comes to an Op as it was sent, and out again, at all doors."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from doubles import server_for
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from plain_api import plain_server
from plain_values import OBJECTS, same
from typed_doors import AS_JSON, AS_TENSORS, AS_TEXT, NAME, Door, own_tensors, v2_http

import pipeline
from pipeline import Op, PipelineServer, RequestOp, ResponseOp, Tensor
from pipeline.frontends.http.server import HttpFrontend
from pipeline.proto.v2.raw import DATATYPES

few = settings(
    max_examples=15,
    deadline=None,
    phases=[Phase.generate],  # to make a case small takes minutes at real servers
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
PLAIN = OBJECTS.filter(lambda fields: not {"do", "picture", "content_type"} & fields.keys())
FORMS = {"whole": "*/*", "events": "text/event-stream", "lines": "application/x-ndjson"}
NUMBERS = {name: dtype for name, dtype in DATATYPES.items() if name != "BYTES"}
EDGES = ("embedded", "gateway")
NO_JSON_OF_V2 = {"FP16", "BF16"}


def plain(url: str, fields: Any, accept: str = "*/*") -> Any:
    """The answer of `/api`, in whatever form it comes."""
    headers = {"content-type": "application/json", "accept": accept}
    request = urllib.request.Request(url, json.dumps(fields).encode(), headers)
    with DIRECT.open(request, timeout=60) as answer:
        body = answer.read()
    return json.loads(body.removeprefix(b"data: ").partition(b"\n")[0])


@pytest.fixture(scope="module")
def echoes(gateway_binary: Path, module_logs: None) -> Iterator[dict[str, str]]:
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HttpFrontend, "pipeline_has_lane", False)
            routes = stack.enter_context(plain_server())
        lane = stack.enter_context(plain_server())
        gateway = stack.enter_context(plain_server(edge="gateway"))
        servers = {"routes": routes, "lane": lane, "gateway": gateway}
        yield {
            name: f"http://127.0.0.1:{server.http_port}/api/plain"
            for name, server in servers.items()
        }


@pytest.mark.parametrize("accept", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("place", ["lane", "routes", "gateway"])
@given(fields=PLAIN)
@few
def test_a_value_of_json_is_returned_unchanged(echoes, place, accept, fields):
    assert same(plain(echoes[place], fields, accept), fields)


class Arrays(pipeline.Schema):
    BOOL: Annotated[np.ndarray, Tensor("", "BOOL", (-1, 2))] | None = None
    INT8: Annotated[np.ndarray, Tensor("", "INT8", (-1, 2))] | None = None
    INT16: Annotated[np.ndarray, Tensor("", "INT16", (-1, 2))] | None = None
    INT32: Annotated[np.ndarray, Tensor("", "INT32", (-1, 2))] | None = None
    INT64: Annotated[np.ndarray, Tensor("", "INT64", (-1, 2))] | None = None
    UINT8: Annotated[np.ndarray, Tensor("", "UINT8", (-1, 2))] | None = None
    UINT16: Annotated[np.ndarray, Tensor("", "UINT16", (-1, 2))] | None = None
    UINT32: Annotated[np.ndarray, Tensor("", "UINT32", (-1, 2))] | None = None
    UINT64: Annotated[np.ndarray, Tensor("", "UINT64", (-1, 2))] | None = None
    FP16: Annotated[np.ndarray, Tensor("", "FP16", (-1, 2))] | None = None
    BF16: Annotated[np.ndarray, Tensor("", "BF16", (-1, 2))] | None = None
    FP32: Annotated[np.ndarray, Tensor("", "FP32", (-1, 2))] | None = None
    FP64: Annotated[np.ndarray, Tensor("", "FP64", (-1, 2))] | None = None
    wants_arrays: bool = False


class Looks(Op):
    """Says what it was given; with `wants_arrays` it answers with that instead."""

    output_tensors = (Tensor("said", "BYTES", (1,)),)

    def preprocess(self, input_dicts: Any) -> Any:
        return input_dicts["@DAGExecutor"]

    def postprocess(self, input_dicts: Any, fetch_dict: Any) -> Any:
        wants_arrays = fetch_dict.pop("wants_arrays")
        given = {name: array for name, array in fetch_dict.items() if array is not None}
        return given if wants_arrays else {"said": shown(given)}


def shown(given: dict[str, Any]) -> str:
    return "; ".join(
        f"{name} {one.dtype.name} {one.tolist()}" for name, one in sorted(given.items())
    )


@pytest.fixture(scope="module")
def servers(gateway_binary: Path, module_logs: None) -> Iterator[dict[str, PipelineServer]]:
    with contextlib.ExitStack() as stack:
        op = Looks("looks", RequestOp(schema=Arrays))
        made = {edge: server_for(op, NAME, ResponseOp(op), edge=edge) for edge in EDGES}
        yield {edge: stack.enter_context(server) for edge, server in made.items()}


def elements(dtype: np.dtype[Any]) -> st.SearchStrategy[Any]:
    if dtype.kind == "b":
        return st.booleans()
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return st.integers(int(limits.min), int(limits.max))
    width = 16 if dtype.itemsize == 2 else dtype.itemsize * 8
    numbers = st.floats(width=width, allow_nan=False, allow_infinity=False)
    return numbers.map(lambda one: float(dtype.type(one))).filter(np.isfinite)


def arrays(dtype: np.dtype[Any]) -> st.SearchStrategy[Any]:
    rows = st.lists(st.tuples(elements(dtype), elements(dtype)), min_size=1, max_size=3)
    return rows.map(lambda result: np.array(result, dtype))


ONE_OF_EACH = st.fixed_dictionaries({name: arrays(dtype) for name, dtype in NUMBERS.items()})


@pytest.mark.parametrize("door", [*AS_TEXT, *AS_TENSORS, *AS_JSON], ids=lambda door: door.__name__)
@given(sent=ONE_OF_EACH)
@few
def test_an_array_of_each_dtype_reaches_an_op_unchanged(servers, door: Door, sent):
    if door is v2_http:
        with pytest.raises(LookupError):
            door(servers["embedded"], sent)
        sent = {name: array for name, array in sent.items() if name not in NO_JSON_OF_V2}
    if door is own_tensors:  # in which it travels as int64
        sent = {**sent, "UINT64": sent["UINT64"] >> np.uint64(1)}
    for edge in EDGES:
        assert door(servers[edge], sent) == (0, shown(sent)), edge


@pytest.mark.parametrize("edge", EDGES)
@given(sent=ONE_OF_EACH)
@few
def test_an_array_of_each_dtype_is_returned_as_lists(servers, edge, sent):
    lists = {name: array.tolist() for name, array in sent.items()}
    url = f"http://127.0.0.1:{servers[edge].http_port}/api/{NAME}"
    answer = plain(url, {**lists, "wants_arrays": True})
    back = {name: np.array(answer[name], one.dtype).tolist() for name, one in sent.items()}
    assert same(back, lists)
