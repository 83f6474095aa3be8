"""The context of a request reaches the hooks that ask for it: by HTTP, gRPC and v2 on both."""

from __future__ import annotations

import json
import re
import urllib.request

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


def asking_server(**keys):
    last = Asking("a", Reading())
    keys = {"dag": {"forward_headers": "x-u.*"}, "timeout": 60_000, **keys}
    return server_for(last, response_op=ResponseOp(last), **keys)


@pytest.fixture(scope="module")
def server():
    with asking_server() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(gateway_binary):
    """A server whose ports are our gateway's, which asks it over their link."""
    with asking_server(edge="gateway") as running:
        yield running


@pytest.fixture(scope="module", params=["server", "gateway"])
def door(request):
    return request.getfixturevalue(request.param)


def test_by_http(server):
    body = {"key": ["x"], "value": ["1"]}
    status, answer = post(
        server, body, **{"X-User": "anna", "Accept": "*/*", "Grpc-Timeout": "20S"}
    )
    assert (status, answer["err_msg"]) == (200, "")
    document = json.loads(answer["value"][0])
    assert document == NOTHING | {"headers": {"x-user": "anna"}, "seconds": 20}


def test_by_http_in_a_large_request(door):
    body = {"key": ["x"], "value": ["1" * 300_000]}
    _, answer = post(door, body, **{"X-User": "anna"})
    document = json.loads(answer["value"][0])
    assert document == NOTHING | {"headers": {"x-user": "anna"}, "seconds": 60}


@pytest.mark.parametrize(("size", "handed_over"), [(1, 0), (20_000, 1)])
def test_headers_pass_the_link_of_a_gateway_or_its_http_port_if_they_are_long(
    gateway, size, handed_over
):
    body = {"key": ["x"], "value": ["1"]}
    fields = {"X-User": "anna", "X-User-B": "1" * size, "Cookie": "secret", "Grpc-Timeout": "20S"}
    before = handed_over_requests(gateway)
    status, answer = post(gateway, body, **fields)
    assert (status, answer["err_msg"]) == (200, "")
    reported = {"x-user": "anna", "x-user-b": "1" * size}
    assert json.loads(answer["value"][0]) == NOTHING | {"headers": reported, "seconds": 20}
    assert handed_over_requests(gateway) - before == handed_over


def handed_over_requests(gateway):
    """Requests whose headers its link did not take."""
    with urllib.request.urlopen(f"http://127.0.0.1:{gateway.http_port}/metrics") as metrics:
        counted = re.findall(rb'handed_over_total{reason="metadata"} (\d+)', metrics.read())
    return sum(map(int, counted))


def test_by_grpc(door):
    with grpc.insecure_channel(f"127.0.0.1:{door.rpc_port}") as channel:
        call = channel.unary_unary(METHOD, Request.SerializeToString, Response.FromString)
        metadata = (("x-user", "anna"), ("other", "1"))
        answer = call(Request(key=["x"], value=["1"]), timeout=20, metadata=metadata)
    document = json.loads(answer.value[0])
    assert document == NOTHING | {"headers": {"x-user": "anna"}, "seconds": 20}


def test_by_v2_over_http(door):
    x = {"name": "x", "datatype": "BYTES", "shape": [1], "data": ["1"]}
    body = {"id": "one", "parameters": PARAMETERS, "inputs": [x]}
    status, _, answer = http(door, "POST", "/v2/models/svc/infer", body, {"X-User": "anna"})
    assert status == 200, answer
    document = json.loads(answer["outputs"][0]["data"][0])
    assert document == SAID | {"headers": {"x-user": "anna"}, "seconds": 60}


def test_by_v2_over_grpc(door):
    message = pb.ModelInferRequest(model_name="svc", id="one")
    message.parameters["sequence_id"].int64_param = 7
    message.parameters["sequence_end"].bool_param = True
    message.parameters["priority"].uint64_param = 2
    message.parameters["colour"].string_param = "red"
    x = message.inputs.add(name="x", datatype="BYTES", shape=[1])
    x.contents.bytes_contents.append(b"1")
    with grpc.insecure_channel(f"127.0.0.1:{door.rpc_port}") as channel:
        call = channel.unary_unary(
            INFER, pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString
        )
        answer = call(message, timeout=20, metadata=(("x-user", "anna"),))
    document = json.loads(answer.raw_output_contents[0][4:])
    assert document == SAID | {"headers": {"x-user": "anna"}, "seconds": 20}


def test_a_parameter_of_the_wrong_type_is_refused(server):
    x = {"name": "x", "datatype": "BYTES", "shape": [1], "data": ["1"]}
    body = {"parameters": {"sequence_start": "yes"}, "inputs": [x]}
    status, _, answer = http(server, "POST", "/v2/models/svc/infer", body)
    assert status == 400
    assert "parameter 'sequence_start' must be a boolean" in answer["error"]


def test_without_a_pattern_no_header_is_forwarded():
    last = Asking("a", Reading())
    with server_for(last) as server:
        _, answer = post(server, {"key": ["x"], "value": ["1"]}, **{"X-User": "anna"})
    assert json.loads(answer["value"][0]) == NOTHING
