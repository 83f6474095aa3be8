"""An overloaded Op says when to ask again, and every door passes it to the caller."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from doubles import http, server_for

from pipeline import Op, RequestOp, ResponseOp
from pipeline.errors import OverloadedError
from pipeline.proto import inference_v2_pb2 as pb

V2 = {"inputs": [{"name": "x", "shape": [1], "datatype": "INT64", "data": [1]}]}
BODIES = {
    "/api/svc": {"x": 1},
    "/v1/completions": {"model": "svc", "prompt": "x"},
    "/v2/models/svc/infer": V2,
}


class Full(Op):
    """Takes nothing, at the stage that it is made for."""

    stage = "preprocess"

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        self._refuse("preprocess")
        (fields,) = input_dicts.values()
        return fields, False, None, ""

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        self._refuse("process")
        return feed_batch, None, ""

    def _refuse(self, stage: str) -> None:
        if stage == self.stage:
            raise OverloadedError("too much to do", retry_after_s=7)


class FullBehind(Full):
    stage = "process"


class Packs(ResponseOp):
    """Makes a message of each answer, which has no place for a time."""

    def pack_response_package(self, channeldata: Any) -> Any:
        return super().pack_response_package(channeldata)


def serving(last_op: Op, edge: str, response_op: ResponseOp | None = None, **config: Any) -> Any:
    config = {"edge": edge, "frontends": {"openai": None}, **config}
    return server_for(last_op, response_op=response_op, **config)


@pytest.fixture(params=["thread", "process"])
def workers(request: Any) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["embedded", "gateway"])
def edge(request: Any) -> str:
    if request.param == "gateway":
        request.getfixturevalue("gateway_binary")
    return str(request.param)


def status_at(path: str) -> int:
    """The status of overload, which OpenAI's clients know as 429."""
    return 429 if path.startswith("/v1") else 503


def replies_of(server: Any) -> Iterator[tuple[str, int, str | None]]:
    """(path, status, Retry-After) of a request at each path of the HTTP port."""
    for path, body in BODIES.items():
        status, headers, _ = http(server, "POST", path, body)
        yield path, status, headers.get("retry-after")


@pytest.mark.parametrize("kind", [Full, FullBehind])
def test_http_has_retry_after(kind, workers, edge):
    with serving(kind("a", [RequestOp()]), edge, op={"a": {"workers": workers}}) as server:
        assert list(replies_of(server)) == [(path, status_at(path), "7") for path in BODIES]


def test_grpc_has_a_retry_pushback(workers, edge):
    with serving(Full("a", [RequestOp()]), edge, op={"a": {"workers": workers}}) as server:
        tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="INT64", shape=[1])
        tensor.contents.int64_contents.append(1)
        message = pb.ModelInferRequest(model_name="svc", inputs=[tensor]).SerializeToString()
        with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            with pytest.raises(grpc.RpcError) as refused:
                infer(message, timeout=30)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert ("grpc-retry-pushback-ms", "7000") in refused.value.trailing_metadata()


def test_a_message_of_the_users_own_has_no_place_for_a_time(edge):
    op = Full("a", [RequestOp()])
    with serving(op, edge, Packs([op])) as server:
        assert list(replies_of(server)) == [(path, status_at(path), "1") for path in BODIES]
