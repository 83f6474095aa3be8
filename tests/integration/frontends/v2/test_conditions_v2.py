"""Goto, Answer and absent inputs at each of v2's doors, of the server itself and by the gateway."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from doubles import http, server_for
from streamed import EDGES, temporary_folder

from pipeline import Answer, Goto, Op, PipelineServer, RequestOp, Tensor
from pipeline.proto import inference_v2_pb2 as pb
from pipeline.proto.v2.codec import SERVICE, add_tensor, tensors_to_arrays

pytestmark = pytest.mark.usefixtures("grpc_is_up", "gateway_binary")

CASES = {
    "sure": "sure>cheap>out",
    "unsure": "unsure>cheap>big>out",
    "both": "both>cheap+both>cheap>big>out",
    "done": "done>cheap",
}


class Reads(RequestOp):
    input_tensors = (Tensor("x", "BYTES", (1,)),)


class Steps(Op):
    """Writes its name behind the texts that it reads; what is absent is not among them."""

    def preprocess(self, input_dicts: Any) -> Any:
        return {"x": "+".join(part["x"] for part in input_dicts.values()) + f">{self.name}"}


class Cheap(Steps):
    """Sends each request where its text says."""

    input_tensors = Reads.input_tensors

    def postprocess(self, input_dicts: Any, fetched: Any) -> Any:
        word = fetched["x"].partition(">")[0]
        paths = {"sure": "out", "unsure": "big", "nowhere": "nowhere"}
        if word in paths:
            return Goto(fetched, paths[word])
        return Answer({"x": np.array([fetched["x"]])}) if word == "done" else fetched


class Out(Steps):
    output_tensors = (Tensor("x", "BYTES", (1,)),)

    def postprocess(self, input_dicts: Any, fetched: Any) -> Any:
        return {"x": np.array([fetched["x"]])}


@pytest.fixture(scope="module", params=EDGES)
def server(request: Any, module_logs: None) -> Iterator[PipelineServer]:
    cheap = Cheap("cheap", [Reads()])
    last = Out("out", [cheap, Steps("big", [cheap])])
    with (
        temporary_folder(),
        server_for(last, edge=request.param, errors={"details": "full"}) as running,
    ):
        yield running


# The doors: each returns (text, error) of the answer to a word ----------------------------------


def infer(server: PipelineServer, word: str) -> tuple[str, str]:
    tensor = {"name": "x", "datatype": "BYTES", "shape": [1], "data": [word]}
    answer = http(server, "POST", "/v2/models/svc/infer", {"inputs": [tensor]})[2]
    return answer["outputs"][0]["data"][0] if "outputs" in answer else "", answer.get("error", "")


def generate(server: PipelineServer, word: str) -> tuple[str, str]:
    answer = http(server, "POST", "/v2/models/svc/generate", {"x": word})[2]
    return answer.get("x", ""), answer.get("error", "")


def model_infer(server: PipelineServer, word: str) -> tuple[str, str]:
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        method = channel.unary_unary(
            f"/{SERVICE}/ModelInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelInferResponse.FromString,
        )
        try:
            return _text(method(_asking(word), timeout=30)), ""
        except grpc.RpcError as error:
            return "", str(error)


def model_stream_infer(server: PipelineServer, word: str) -> tuple[str, str]:
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        method = channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelStreamInferResponse.FromString,
        )
        (answer,) = method(iter([_asking(word)]), timeout=30)
        return _text(answer.infer_response), answer.error_message


def _asking(word: str) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="svc")
    array = np.array([word.encode()], object)
    add_tensor(message.inputs, message.raw_input_contents, "x", array)
    return message


def _text(response: pb.ModelInferResponse) -> str:
    arrays = tensors_to_arrays(response.outputs, response.raw_output_contents)
    text = arrays["x"].item() if arrays else ""
    return text.decode() if isinstance(text, bytes) else text


@pytest.mark.parametrize(
    "door",
    [infer, generate, model_infer, model_stream_infer],
    ids=lambda door: door.__name__,
)
def test_each_request_has_its_own_targets(server, door: Callable[..., tuple[str, str]]):
    for word, path in CASES.items():
        assert door(server, word) == (path, "")
    text, error = door(server, "nowhere")
    assert text == ""
    assert "Goto to 'nowhere': 'nowhere' does not read it" in error
    assert door(server, "sure") == (CASES["sure"], "")
