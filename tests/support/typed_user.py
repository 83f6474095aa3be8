# pyright: strict
"""A user's script with types: every form of every method. Checked by test_types.py, never run."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

from pipeline import (
    AsyncPipelineClient,
    Op,
    PipelineClient,
    PipelineServer,
    ProductError,
    RequestContext,
    RequestOp,
    ResponseOp,
    Tensor,
    WebService,
)
from pipeline.client import PipelinePredictFuture
from pipeline.data import ChannelData
from pipeline.proto.messages import PipelineResponse
from pipeline.proto.pipeline_service_pb2 import Request, Response

Inputs = dict[str, dict[str, Any]]
Floats = NDArray[np.float32]


class Parse(Op):
    input_tensors = [Tensor("x", "BYTES", (1,))]  # noqa: RUF012  # as documented
    output_tensors = (Tensor("x", "FP32", (3,)),)

    def preprocess(self, input_dicts: Inputs, data_id: int, log_id: int) -> dict[str, Floats]:
        x = np.array(input_dicts["@DAGExecutor"]["x"].split(","), np.float32)
        if x.size != 3:
            raise ProductError(51, "three numbers")
        return {"x": x.reshape(1, 3)}


class Score(Op):
    weights: Floats

    def init_op(self) -> None:
        self.weights = np.ones((3, 1), np.float32)

    def preprocess(self, input_dicts: Inputs) -> tuple[dict[str, Any], bool, int | None, str]:
        return input_dicts["parse"], False, None, ""

    def process(self, feed_batch: list[dict[str, Floats]]) -> dict[str, Any]:
        return {"score": feed_batch[0]["x"] @ self.weights}

    def postprocess(self, input_dicts: Inputs, fetch_data: dict[str, Any]) -> dict[str, Any]:
        return fetch_data


class Fetch(Op):
    async def init_op(self) -> None: ...

    async def preprocess(self, input_dicts: Inputs, log_id: int) -> list[dict[str, Any]]:
        return [input_dicts["score"]]

    async def process(
        self, feed_batch: list[dict[str, Any]], typical_logid: int
    ) -> tuple[dict[str, Any], int, str]:
        return {"y": feed_batch[0]["score"]}, 0, ""

    async def postprocess(
        self, input_dicts: Inputs, fetch_data: list[dict[str, Any]], data_id: int, log_id: int
    ) -> tuple[dict[str, Any], int | None, str]:
        return {"y": fetch_data[0]["y"]}, None, ""

    def check_jumping(self, input_data: OrderedDict[int, ChannelData]) -> bool:
        return all("y" in item.parse() for item in input_data.values())

    def set_dynamic_shape_info(self) -> None:
        self.dynamic_shape_info = {"min_input_shape": {"x": [1, 3]}}


class Passes(Op):
    """Other names for the parameters, defaults, and calls of what is overridden."""

    def preprocess(self, inputs: Inputs, data_id: int = 0, log_id: int = 0) -> Any:
        return super().preprocess(inputs, data_id, log_id)

    def process(self, feed_dict: dict[str, Any]) -> Any:
        assert self.client is not None
        return self.client.predict(feed=feed_dict, fetch=["y"])

    def postprocess(self, inputs: Inputs, data: Any, log_id: int) -> dict[str, Any]:
        answer: dict[str, Any] = super().postprocess(inputs, data)[0]
        return answer

    def check_jumping(self, batch: OrderedDict[int, ChannelData]) -> bool:
        return super().check_jumping(batch) or self.concurrency_idx == 0


class Loose(Op):
    def preprocess(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {}

    @staticmethod
    def process(feed_batch: list[Any]) -> dict[str, Any]:
        return {"y": feed_batch}


class Asks(Op):
    """Every method that may ask for the context."""

    def preprocess(self, input_dicts: Inputs, *, context: RequestContext) -> dict[str, Any]:
        return {"x": context.headers.get("x-user", ""), "left": context.time_left()}

    async def process(
        self, feed_batch: list[Any], *, context: tuple[RequestContext, ...]
    ) -> dict[str, Any]:
        return {"y": [request.parameters.get("colour") for request in context]}

    def postprocess(
        self,
        input_dicts: Inputs,
        fetch_data: Any,
        data_id: int,
        log_id: int,
        context: RequestContext,
    ) -> dict[str, Any]:
        return {"y": context.is_cancelled(), "sequence": context.sequence_id}


class ReadAsking(RequestOp):
    def unpack_request_package(self, request: Request, context: RequestContext) -> dict[str, Any]:
        return {"id": context.id}


class WriteAsking(ResponseOp):
    def pack_response_package(self, channeldata: ChannelData, context: RequestContext) -> Response:
        return Response(err_no=context.priority)


class Read(RequestOp):
    def unpack_request_package(self, request: Request) -> tuple[dict[str, Any], int, None, str]:
        return {"x": request.value[0]}, request.logid, None, ""


class ReadOther(RequestOp):
    async def unpack_request_package(self, other: Request) -> dict[str, str]:
        return dict(zip(other.key, other.value, strict=True))


class Write(ResponseOp):
    def pack_response_package(self, channeldata: ChannelData) -> Response:
        response: Response = super().pack_response_package(channeldata)
        response.err_msg = response.err_msg[:200]
        return response


class Service(WebService):
    def get_pipeline_response(self, read_op: RequestOp) -> Op:
        return Parse(name="parse", input_ops=[read_op])


parse = Parse("parse", Read())
score = Score("score", parse, concurrency=2, timeout=100)
fetch = Fetch("fetch", [score])
fetch.set_jump_to_ops(fetch)
server = PipelineServer("s")
server.set_response_op(Write(fetch))
server.prepare_server(yml_dict={"rpc_port": 0})
with server, PipelineClient() as client:
    assert_type(server, PipelineServer)
    assert_type(server.rpc_port, int | None)
    client.connect(f"127.0.0.1:{server.rpc_port}")
    response = client.predict({"x": "1,2,3"})
    assert_type(response, PipelineResponse)
    assert_type(response.err_no, int)
    response.raise_for_error()
    assert_type(client.predict({"x": "1"}, asyn=True), PipelinePredictFuture)
    assert_type(client.predict({"x": "1"}, asyn=True).result(), PipelineResponse)


async def ask() -> PipelineResponse:
    async with AsyncPipelineClient() as asking:
        asking.connect(["127.0.0.1:9998"])
        return await asking.predict({"x": "1,2,3"}, timeout=1.0)
