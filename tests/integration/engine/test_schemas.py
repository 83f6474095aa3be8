"""Schemas before and behind real workers: streams, trips, every way in."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request

import msgspec
import numpy as np
import pytest
from doubles import answers, on_loop
from streaming import serving
from trip_servers import a_trip_may_last, groups, quick_server

import pipeline
from pipeline import AsyncPipelineClient, Op, PipelineServer, RequestOp, ResponseOp
from pipeline.proto.pipeline.plain import PlainRequest, PlainResponse
from pipeline.proto.pipeline_service_pb2 import Request

__all__ = ["a_trip_may_last"]

TYPE_ERROR = 7000


class Ask(pipeline.Schema):
    a: int
    b: list[float] = msgspec.field(default_factory=list)


class Reply(pipeline.Schema):
    said: str
    more: str = "more"


class Slow(Reply):
    def __post_init__(self) -> None:
        """Make it code of the user's, which is asked in threads."""


class Counts(Op):
    """Streams numbers."""

    def __init__(self) -> None:
        super().__init__("counts", RequestOp(schema=Ask))

    def postprocess(self, input_dicts, fetch_data):
        for number in range(input_dicts["@DAGExecutor"]["a"]):
            yield {"said": str(number) if number < 3 else np.ones(1)}


class Replies(Op):
    def preprocess(self, input_dicts):
        (fields,) = input_dicts.values()
        return fields

    def postprocess(self, input_dicts, fetch_dict):
        if fetch_dict["a"] == 13:
            return {"said": np.ones(1)}
        return {"said": f"{fetch_dict['a']} {sum(fetch_dict['b'])}"}


class Passes(Op):
    def postprocess(self, input_dicts, fetch_dict):
        return fetch_dict


@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.parametrize("schema", [Reply, Slow, None])
@on_loop
async def test_each_part_of_a_stream_is_checked(schema, workers):
    op = Counts()
    response_op = ResponseOp(op, schema=schema)
    async with serving(op, response_op, workers=workers) as streams:
        more = {} if schema is None else {"more": "more"}
        sink = streams.begin(a=2)
        assert await sink.ended() is None
        assert sink.answers == [{"said": "0", **more}, {"said": "1", **more}]
        sink = streams.begin(a=4)
        last = await sink.ended()
        assert len(sink.answers) == (4 if schema is None else 3)
        if schema is not None:
            assert last.err_no == TYPE_ERROR
            result = (
                f"the answer is not a valid {schema.__name__}: said: expected str, found float 1.0"
            )
            assert last.err_msg == result
        assert answers(await streams.combined(a=2))["said"] == "01"
        refused = await streams.combined(a="x")
        assert refused.err_msg == "a: expected int, found str 'x'"


@pytest.mark.usefixtures("a_trip_may_last")
@pytest.mark.parametrize("schema", [Reply, Slow])
@on_loop
async def test_quick_ops_are_still_one_trip(schema):
    class Reads(RequestOp):
        def unpack_request_package(self, request):
            return super().unpack_request_package(request)

    last = Passes("passes", Replies("says", Reads(schema=Ask)))
    async with quick_server(ResponseOp(last, schema=schema)) as server:
        assert groups(server) == [("says", "passes")]
        for _ in range(3):
            answer = await server.executor.handle(Request(key=["a", "b"], value=["2", "[1, 2]"]))
            assert answers(answer) == {"said": "2 3.0", "more": "more"}
            for a, code in (("x", 8000), ("13", TYPE_ERROR)):
                refused = await server.executor.handle(Request(key=["a"], value=[a]))
                assert refused.err_no == code


@on_loop
async def test_a_request_of_pairs_stays_without_protobuf():
    async with quick_server(
        ResponseOp(Replies("says", RequestOp(schema=Ask)), schema=Reply)
    ) as server:
        answer = await server.executor.handle(PlainRequest(["a"], ["2"]))
        assert type(answer) is PlainResponse
        assert dict(zip(answer.key, answer.value, strict=True)) == {"said": "2 0", "more": "more"}


def post(url, body):
    try:
        with urllib.request.urlopen(url, json.dumps(body).encode()) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return json.loads(error.read())


@on_loop
async def test_each_frontend_checks_the_schema():
    """HTTP, gRPC and v2 over HTTP, small and large."""
    server = PipelineServer("sums")
    server.set_response_op(ResponseOp(Replies("says", RequestOp(schema=Ask)), schema=Reply))
    server.prepare_server(yml_dict={"rpc_port": 0, "http_port": 0, "host": "127.0.0.1"})
    async with server:
        client = AsyncPipelineClient()
        client.connect([f"127.0.0.1:{server.rpc_port}"])
        base = f"http://127.0.0.1:{server.http_port}"

        async def pairs(**fields):
            body = {"key": [*fields], "value": [*fields.values()]}
            return await asyncio.to_thread(post, f"{base}/sums/prediction", body)

        async def v2(count=2, datatype="INT64"):
            tensors = [
                {"name": "a", "datatype": datatype, "shape": [1], "data": [2]},
                {"name": "b", "datatype": "FP32", "shape": [count], "data": [1] * count},
            ]
            url = f"{base}/v2/models/sums/infer"
            return await asyncio.to_thread(post, url, {"inputs": tensors})

        for count in (2, 30_000):
            numbers = json.dumps([1.0] * count)
            reported = {"said": f"2 {count}.0", "more": "more"}
            answer = await pairs(a="2", b=numbers)
            assert dict(zip(answer["key"], answer["value"], strict=True)) == reported
            said = await pairs(a="2", b=numbers[:-1] + ', "x"]')
            assert said["err_msg"] == f"b[{count}]: expected float, found str 'x'"
            answered = await client.predict({"a": "2", "b": numbers})
            assert dict(zip(answered.key, answered.value, strict=True)) == reported
            as_tensors = {"a": np.array([2]), "b": np.ones(count, np.float32)}
            answered = await client.predict(as_tensors, pack_tensor_format=True)
            assert dict(zip(answered.key, answered.value, strict=True)) == reported
            said = await client.predict({"a": "2", "b": np.ones((count, 1))})
            assert said.err_msg == "b[0]: expected float, found array"
            outputs = (await v2(count))["outputs"]
            assert {one["name"]: one["data"][0] for one in outputs} == reported
        assert "expected int, found float 2.0" in (await v2(datatype="FP32"))["error"]
        await client.close()
