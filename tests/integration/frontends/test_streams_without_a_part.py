"""A generator without any part: its stream ends at once and well, at every door, in every form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import grpc
import pytest
from doubles import http, server_for

from pipeline import Op, PipelineClient, RequestOp
from pipeline.proto import inference_v2_pb2 as pb

FINAL = "triton_final_response"
JSON, EVENTS, LINES = "application/json", "text/event-stream", "application/x-ndjson"
END = b"event: end\ndata: {}\n\n"
PAIRS = {"key": ["x"], "value": ["1"]}
EMPTY = {"err_no": 0, "err_msg": "", "key": [], "value": [], "tensors": []}


class Nothing(Op):
    """Streams no part."""

    def postprocess(self, input_data: Any, fetch_data: Any, *args: Any) -> Any:
        yield from ()


@pytest.fixture(scope="module", params=["embedded", "gateway"])
def edge(request: Any) -> str:
    if request.param == "gateway":
        request.getfixturevalue("gateway_binary")
    return str(request.param)


@pytest.fixture(scope="module", params=["thread", "process"])
def server(request: Any, edge: str, module_logs: None) -> Iterator[Any]:
    op = {"a": {"workers": request.param}}
    with server_for(
        Nothing("a", [RequestOp()]), op=op, edge=edge, frontends={"openai": None}
    ) as server:
        yield server


def answer_of(server: Any, path: str, body: Any, accept: str = JSON) -> tuple[int, str, bytes]:
    """(status, type, body) of an answer."""
    connection = HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    try:
        connection.request("POST", path, json.dumps(body), {"accept": accept})
        answer = connection.getresponse()
        return answer.status, answer.headers.get_content_type(), answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("path", "body", "accept", "said"),
    [
        ("/svc/prediction", PAIRS, EVENTS, END),
        ("/svc/prediction", PAIRS, LINES, b""),
        ("/api/svc", {"x": 1}, EVENTS, END),
        ("/api/svc", {"x": 1}, LINES, b""),
        ("/v2/models/svc/generate_stream", {"x": 1}, EVENTS, b""),
    ],
)
def test_a_stream_ends_at_once(server, path, body, accept, said):
    assert answer_of(server, path, body, accept) == (200, accept, said)


@pytest.mark.parametrize(
    ("path", "body", "whole"), [("/svc/prediction", PAIRS, EMPTY), ("/api/svc", {"x": 1}, {})]
)
def test_a_unary_request_gets_an_empty_answer(server, path, body, whole):
    status, kind, said = answer_of(server, path, body)
    assert (status, kind, json.loads(said)) == (200, JSON, whole)


def test_generate_wants_exactly_one_part(server):
    said = http(server, "POST", "/v2/models/svc/generate", {"x": 1})[2]
    assert "exactly 1 response" in said["error"]


@pytest.mark.parametrize("stop", [None, ["x"]])
def test_a_text_of_no_part_is_empty(server, stop):
    body = {"model": "svc", "prompt": "x", "stop": stop}
    status, _, said = http(server, "POST", "/v1/completions", body)
    assert (status, said["choices"][0]["text"]) == (200, "")
    status, kind, streamed = answer_of(server, "/v1/completions", {**body, "stream": True})
    assert (status, kind) == (200, EVENTS)
    (chunk, done) = streamed.decode().strip().split("\n\n")
    (choice,) = json.loads(chunk.removeprefix("data: "))["choices"]
    assert (choice["text"], choice["finish_reason"], done) == ("", "stop", "data: [DONE]")


def test_clients_get_no_part(server):
    for address in (f"127.0.0.1:{server.rpc_port}", f"http://127.0.0.1:{server.http_port}/svc"):
        with PipelineClient() as client:
            client.connect([address])
            assert list(client.predict_stream({"x": 1})) == []
            assert client.predict({"x": 1}).err_no == 0


@pytest.mark.parametrize("wants_final", [False, True])
def test_v2_has_a_final_response_if_requested(server, wants_final):
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="INT64", shape=[1])
    tensor.contents.int64_contents.append(1)
    message = pb.ModelInferRequest(model_name="svc", id="7", inputs=[tensor])
    message.parameters["triton_enable_empty_final_response"].bool_param = wants_final
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        infer = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelStreamInferResponse.FromString,
        )
        answers = list(infer(iter([message]), timeout=30))
    ends = [answer.infer_response for answer in answers]
    assert [answer.error_message for answer in answers] == [""] * wants_final
    assert [(end.id, len(end.outputs), end.parameters[FINAL].bool_param) for end in ends] == [
        ("7", 0, True)
    ] * wants_final
