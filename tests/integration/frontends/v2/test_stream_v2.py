"""`ModelStreamInfer` of models that answer in parts, of the server itself and by the gateway."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from doubles import http, wait_until
from streamed import repeating, seen

from pipeline import PipelineServer
from pipeline.proto import inference_v2_pb2 as pb
from pipeline.proto.v2.codec import SERVICE, add_tensor, tensors_to_arrays

__all__ = ["repeating", "seen"]
pytestmark = pytest.mark.usefixtures("grpc_is_up", "gateway_binary")

PATIENCE_S = 30
FINAL = "triton_final_response"
REFUSAL = "doesn't support models with decoupled transaction policy"


@pytest.fixture(scope="module")
def server(repeating: PipelineServer) -> PipelineServer:
    return repeating


def asking(
    *values: int, model: str = "repeat", request_id: str = "", how: str = "", **parameters: bool
) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=model, id=request_id)
    add_tensor(message.inputs, message.raw_input_contents, "IN", np.array(values, np.int32))
    asked = np.array([how.encode()], object)
    add_tensor(message.inputs, message.raw_input_contents, "ASKED", asked)
    for name, value in parameters.items():
        message.parameters[name].bool_param = value
    return message


class Stream:
    """A caller's stream; `say` sends a message, `close` says that nothing follows."""

    def __init__(self, server: PipelineServer, **metadata: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}", options)
        self._said: queue.Queue[Any] = queue.Queue()
        method = self.channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelStreamInferResponse.FromString,
        )
        self.answers = method(
            iter(self._said.get, None), timeout=PATIENCE_S, metadata=tuple(metadata.items())
        )

    def say(self, *messages: pb.ModelInferRequest) -> None:
        for message in messages:
            self._said.put(message)

    def close(self) -> None:
        self._said.put(None)

    def rest(self) -> list[tuple[Any, ...]]:
        self.close()
        return [shown(answer) for answer in self.answers]

    def next(self, count: int = 1) -> list[tuple[Any, ...]]:
        return [shown(next(self.answers)) for _ in range(count)]


def shown(answer: pb.ModelStreamInferResponse) -> tuple[Any, ...]:
    """(id, OUT, whether it is the final one) of an answer; of an error (id, text, final)."""
    response = answer.infer_response
    is_final = response.parameters[FINAL].bool_param
    if answer.error_message:
        return response.id, answer.error_message, is_final
    arrays = tensors_to_arrays(response.outputs, response.raw_output_contents)
    return response.id, arrays["OUT"].tolist() if arrays else None, is_final


@pytest.fixture
def stream(server: PipelineServer) -> Iterator[Stream]:
    opened = Stream(server)
    yield opened
    opened.close()
    opened.answers.cancel()
    opened.channel.close()


@pytest.mark.parametrize("model", ["repeat", "svc"])
def test_each_part_is_an_answer_that_is_not_final(stream, model):
    stream.say(asking(5, 6, 7, model=model, request_id="a"))
    assert stream.rest() == [("a", [5], False), ("a", [6], False), ("a", [7], False)]


def test_a_final_empty_answer_is_sent_on_request(stream):
    wanting = {"triton_enable_empty_final_response": True}
    stream.say(asking(5, request_id="a", **wanting), asking(request_id="b", **wanting))
    stream.close()
    *answers, last = list(stream.answers)
    result = sorted(map(shown, [*answers, last]), key=str)
    assert result == sorted([("a", [5], False), ("a", None, True), ("b", None, True)], key=str)
    assert last.infer_response.model_name == "repeat"
    assert last.infer_response.model_version == ""


def test_a_request_without_parts_is_not_answered(stream):
    stream.say(asking())
    assert stream.rest() == []


def test_a_model_that_answers_once_has_one_final_answer(stream):
    stream.say(asking(5, model="twice", request_id="a", triton_enable_empty_final_response=True))
    assert stream.rest() == [("a", [10], True)]


def test_requests_of_one_stream_run_concurrently(stream, seen):
    stream.say(asking(1, 2, how="hold", request_id="slow"))
    assert stream.next() == [("slow", [1], False)]
    stream.say(asking(3, 4, request_id="quick"), asking(5, model="twice", request_id="one"))
    result = stream.next(3)
    assert [item for item in result if item[0] == "quick"] == [
        ("quick", [3], False),
        ("quick", [4], False),
    ]
    assert ("one", [10], True) in result
    seen.go.set()
    assert stream.rest() == [("slow", [2], False)]


def test_many_requests_keep_their_parts_in_order(stream):
    values = list(range(40))
    stream.say(*[asking(*values, request_id=f"{number}") for number in range(20)])
    result = stream.rest()
    for number in range(20):
        assert [out for each, [out], _ in result if each == f"{number}"] == values


def test_an_error_in_the_middle_follows_the_parts_and_the_stream_continues(stream):
    stream.say(asking(1, 2, 3, how="fail", request_id="a"))
    first, second, error = stream.next(3)
    assert (first, second) == (("a", [1], False), ("a", [2], False))
    assert (error[0], error[2]) == ("a", True)
    assert "broken in the middle" in error[1]
    stream.say(asking(9, request_id="b"))
    assert stream.rest() == [("b", [9], False)]


def test_an_error_is_the_status_of_a_stream_whose_client_requests_it(server):
    stream = Stream(server, triton_grpc_error="true")
    stream.say(asking(5, model="unknown", request_id="a"))
    with pytest.raises(grpc.RpcError, match="unknown model: 'unknown'") as caught:
        stream.next()
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    stream.close()
    stream.channel.close()


def test_an_invalid_request_is_answered_and_the_stream_continues(stream):
    unknown = asking(1, model="nope", request_id="a")
    incomplete = pb.ModelInferRequest(model_name="repeat", id="b")
    stream.say(unknown)
    assert stream.next() == [("a", "Request for unknown model: 'nope' is not found", True)]
    stream.say(incomplete)
    ((request_id, text, is_final),) = stream.next()
    assert (request_id, is_final) == ("b", True)
    assert "expected 2 inputs but got 0 inputs" in text
    stream.say(asking(9))
    assert stream.rest() == [("", [9], False)]


def test_a_stream_that_is_cancelled_has_its_generators_closed(stream, seen):
    stream.say(asking(1, 2, how="endless"))
    stream.next(3)
    stream.answers.cancel()
    assert seen.closed.wait(PATIENCE_S)


def test_a_closed_connection_closes_the_generator(stream, seen):
    stream.say(asking(1, 2, how="endless"))
    stream.next(3)
    stream.channel.close()
    assert seen.closed.wait(PATIENCE_S)


def test_a_half_closed_stream_gets_all_parts(stream, seen):
    stream.say(asking(1, 2, how="hold"))
    stream.next()
    stream.close()
    seen.go.set()
    assert stream.rest() == [("", [2], False)]


def test_a_client_that_does_not_read_pauses_the_generator(stream, seen):
    stream.say(asking(1, how="endless", request_id="x" * 60_000))
    stream.next()
    before = seen.made_at_rest()
    assert before < 1000
    assert len(stream.next(before)) == before  # the stream continues


def test_the_unary_method_is_refused(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer", pb.ModelInferRequest.SerializeToString)
        for model in ("repeat", "svc", "repeat"):
            with pytest.raises(grpc.RpcError) as caught:
                call(asking(1, model=model), timeout=PATIENCE_S)
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
            assert caught.value.details() == f"ModelInfer RPC {REFUSAL}"
        call(asking(1, model="twice"), timeout=PATIENCE_S)


def test_the_unary_path_is_refused(server):
    inputs = [
        {"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]},
        {"name": "ASKED", "datatype": "BYTES", "shape": [1], "data": [""]},
    ]
    for model in ("repeat", "svc", "repeat"):
        status, _, answer = http(server, "POST", f"/v2/models/{model}/infer", {"inputs": inputs})
        assert (status, answer) == (501, {"error": f"HTTP end point {REFUSAL}"})
    assert http(server, "POST", "/v2/models/twice/infer", {"inputs": inputs})[0] == 200


@pytest.mark.parametrize(("model", "policy"), [("repeat", True), ("svc", True), ("twice", False)])
def test_the_configuration_declares_decoupled_models(server, model, policy):
    config = http(server, "GET", f"/v2/models/{model}/config")[2]
    assert config["model_transaction_policy"] == {"decoupled": policy}


def test_a_request_counts_once_for_any_number_of_answers(server):
    def counts() -> tuple[int, int, int, dict[str, int]]:
        (stats,) = http(server, "GET", "/v2/models/repeat/stats")[2]["model_stats"]
        successes = {
            index: each["success"]["count"] for index, each in stats["response_stats"].items()
        }
        return (
            stats["inference_stats"]["success"]["count"],
            stats["inference_count"],
            stats["execution_count"],
            successes,
        )

    asked = Stream(server)
    before = counts()
    asked.say(asking(1, 2, 3))
    assert len(asked.rest()) == 3
    asked.channel.close()
    wait_until(lambda: counts() != before)
    after = counts()
    assert [b - a for a, b in zip(before[:3], after[:3], strict=True)] == [1, 1, 1]
    for index in "012":
        assert after[3][index] - before[3].get(index, 0) == 1
