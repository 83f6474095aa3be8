"""The mark of a last response: of decoupled models, and through ensembles."""

from __future__ import annotations

import grpc
import numpy as np
import pytest
from doubles import http
from repositories import add_pipeline, add_python, serving

from pipeline.proto import inference_v2_pb2 as pb
from pipeline.proto.v2.codec import add_tensor

FINAL, WANTS_EMPTY = "triton_final_response", "triton_enable_empty_final_response"
WORDS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender, number = request.get_response_sender(), request.inputs()[0].as_numpy().flat[0]
            for place in range(int(number)):
                array = np.full((1, 1), place + 1, np.float32)
                response = pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])
                sender.send(response, flags=IS_LAST * (place + 1 == number))
            if not (IS_LAST and number):
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

IS_LAST = %d
"""
TWICE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        arrays = [request.inputs()[0].as_numpy() * 2 for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each)]) for each in arrays]
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"
IN_THREADS = 'parameters { key: "workers" value { string_value: "thread" } }'
LAST = {
    "at_once": [(1, False), (2, False), (3, True)],
    "in_threads": [(1, False), (2, False), (3, True)],
    "then_twice": [(2, False), (4, False), (6, True)],
    "then_parts": [(1, False), (1, False), (2, False), (1, False), (2, False), (3, True)],
}
APART = {
    "apart": [(1, False), (2, False), (3, False)],
    "apart_twice": [(2, False), (4, False), (6, False)],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("final")
    add_python(repository, "at_once", WORDS % 1, DECOUPLED)
    add_python(repository, "in_threads", WORDS % 1, DECOUPLED + IN_THREADS)
    add_python(repository, "apart", WORDS % 0, DECOUPLED)
    add_python(repository, "twice", TWICE)
    to, of = {"INPUT0": "INPUT0"}, {"INPUT0": "made"}
    for name, first, then in (
        ("then_twice", "at_once", "twice"),
        ("then_parts", "at_once", "at_once"),
        ("apart_twice", "apart", "twice"),
    ):
        steps = [(first, to, {"OUTPUT0": "made"}), (then, of, {"OUTPUT0": "OUTPUT0"})]
        add_pipeline(repository, name, 8, steps, "INPUT0", "OUTPUT0")
    with serving(repository, mode="none") as running:
        yield running


def responses_to(server, model, number, **parameters):
    """(value or None, whether it is the last) of each response to a request."""
    message = pb.ModelInferRequest(model_name=model)
    array = np.full((1, 1), number, np.float32)
    add_tensor(message.inputs, message.raw_input_contents, "INPUT0", array)
    for name, value in parameters.items():
        message.parameters[name].bool_param = value
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        result = map(
            pb.ModelStreamInferResponse.FromString, call(iter([message.SerializeToString()]))
        )
        return [shown(item.infer_response) for item in result]


def shown(response):
    data = response.raw_output_contents
    value = int(np.frombuffer(data[0], "f4")[0]) if data else None
    return value, response.parameters[FINAL].bool_param


@pytest.mark.parametrize("model", LAST)
@pytest.mark.parametrize("wants_empty", [False, True])
def test_a_last_response_with_data_is_marked_as_final(server, model, wants_empty):
    assert responses_to(server, model, 3, **{WANTS_EMPTY: wants_empty}) == LAST[model]


@pytest.mark.parametrize("model", APART)
def test_a_separate_final_response_is_sent_on_request(server, model):
    assert responses_to(server, model, 3) == APART[model]
    assert responses_to(server, model, 3, **{WANTS_EMPTY: True}) == [*APART[model], (None, True)]
    assert responses_to(server, model, 0) == []


@pytest.mark.parametrize("model", ["at_once", "in_threads", "then_twice", "apart"])
def test_statistics_count_the_sent_responses(server, model):
    before = counted(server, model)
    responses_to(server, model, 2)
    after = counted(server, model)
    moved = {key: np.subtract(each, before.get(key, 0)).tolist() for key, each in after.items()}
    end = {2: [0, 1]} if model == "apart" else {}
    expected = {0: [1, 0], 1: [1, 0], **end}
    assert {key: each for key, each in moved.items() if any(each)} == expected


def counted(server, model):
    """(given, empty) by the number of a response."""
    result = http(server, "GET", f"/v2/models/{model}/stats")[2]["model_stats"][0]["response_stats"]
    return {
        int(number): (each["success"]["count"], each["empty_response"]["count"])
        for number, each in result.items()
    }
