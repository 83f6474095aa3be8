"""What callers say beside their data reaches the hooks that ask: by HTTP, gRPC and v2 on both."""

from __future__ import annotations

import json

import grpc
import pytest
from doubles import http, post, server_for

from pipeline import Op, RequestOp, ResponseOp, Tensor
from pipeline.proto import inference_v2_pb2 as pb
from pipeline.proto.pipeline_service_pb2 import Request, Response

METHOD = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
INFER = "/inference.GRPCInferenceService/ModelInfer"


class Asking(Op):
    output_tensors = (Tensor("said", "BYTES", (1,)),)

    def preprocess(self, input_dicts, *, context):
        fields = ("id", "headers", "sequence_id", "sequence_start", "sequence_end", "priority")
        said = {name: getattr(context, name) for name in fields}
        said["parameters"] = dict(context.parameters)
        said["seconds"] = round(context.time_left() or 0, -1)
        return {"said": json.dumps(said)}


class Reading(RequestOp):
    input_tensors = (Tensor("x", "BYTES", (1,)),)


NOTHING = {
    "id": "",
    "headers": {},
    "sequence_id": 0,
    "sequence_start": False,
    "sequence_end": False,
    "priority": 0,
    "parameters": {},
    "seconds": 0,
}
PARAMETERS = {"sequence_id": 7, "sequence_end": True, "priority": 2, "colour": "red"}
SAID = NOTHING | PARAMETERS | {"id": "one", "parameters": PARAMETERS}
del SAID["colour"]


@pytest.fixture(scope="module")
def server():
    last = Asking("a", Reading())
    keys = {"dag": {"forward_headers": "x-.*"}, "timeout": 60_000}
    with server_for(last, response_op=ResponseOp(last), **keys) as running:
        yield running


def test_by_http(server):
    body = {"key": ["x"], "value": ["1"]}
    status, answer = post(
        server, body, **{"X-User": "anna", "Accept": "*/*", "Grpc-Timeout": "20S"}
    )
    assert (status, answer["err_msg"]) == (200, "")
    said = json.loads(answer["value"][0])
    assert said == NOTHING | {"headers": {"x-user": "anna"}, "seconds": 20}


def test_by_http_in_a_large_request(server):
    body = {"key": ["x"], "value": ["1" * 300_000]}
    _, answer = post(server, body, **{"X-User": "anna"})
    said = json.loads(answer["value"][0])
    assert said == NOTHING | {"headers": {"x-user": "anna"}, "seconds": 60}


def test_by_grpc(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        call = channel.unary_unary(METHOD, Request.SerializeToString, Response.FromString)
        metadata = (("x-user", "anna"), ("other", "1"))
        answer = call(Request(key=["x"], value=["1"]), timeout=20, metadata=metadata)
    said = json.loads(answer.value[0])
    assert said == NOTHING | {"headers": {"x-user": "anna"}, "seconds": 20}


@pytest.mark.parametrize("model", ["svc"])
def test_by_v2_over_http(server, model):
    x = {"name": "x", "datatype": "BYTES", "shape": [1], "data": ["1"]}
    body = {"id": "one", "parameters": PARAMETERS, "inputs": [x]}
    status, _, answer = http(server, "POST", f"/v2/models/{model}/infer", body, {"X-User": "anna"})
    assert status == 200, answer
    said = json.loads(answer["outputs"][0]["data"][0])
    assert said == SAID | {"headers": {"x-user": "anna"}, "seconds": 60}


def test_by_v2_over_grpc(server):
    message = pb.ModelInferRequest(model_name="svc", id="one")
    message.parameters["sequence_id"].int64_param = 7
    message.parameters["sequence_end"].bool_param = True
    message.parameters["priority"].uint64_param = 2
    message.parameters["colour"].string_param = "red"
    x = message.inputs.add(name="x", datatype="BYTES", shape=[1])
    x.contents.bytes_contents.append(b"1")
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        call = channel.unary_unary(
            INFER, pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString
        )
        answer = call(message, timeout=20, metadata=(("x-user", "anna"),))
    said = json.loads(answer.raw_output_contents[0][4:])
    assert said == SAID | {"headers": {"x-user": "anna"}, "seconds": 20}


def test_a_parameter_of_the_wrong_kind_is_refused_as_ever(server):
    x = {"name": "x", "datatype": "BYTES", "shape": [1], "data": ["1"]}
    body = {"parameters": {"sequence_start": "yes"}, "inputs": [x]}
    status, _, answer = http(server, "POST", "/v2/models/svc/infer", body)
    assert status == 400
    assert "parameter 'sequence_start' must be a boolean" in answer["error"]


def test_without_a_pattern_no_header_comes_along():
    last = Asking("a", Reading())
    with server_for(last) as server:
        _, answer = post(server, {"key": ["x"], "value": ["1"]}, **{"X-User": "anna"})
    assert json.loads(answer["value"][0]) == NOTHING
