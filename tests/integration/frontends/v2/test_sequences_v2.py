"""Sequences by the doors of v2: pipelined on a gRPC stream, and Triton's words over HTTP."""

from __future__ import annotations

import http.client as http_client
import json

import grpc
import numpy as np
import pytest
from doubles import http, server_for, wait_until

from pipeline import Op, RequestOp, Tensor
from pipeline.proto import inference_v2_pb2 as pb

STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


class SumOp(Op):
    input_tensors = (Tensor("x", "INT64", (1,)),)
    output_tensors = (Tensor("sum", "INT64", (1,)),)
    max_batch_size = 4

    def init_op(self):
        self.sums = {}

    def process(self, feed_batch, *, context):
        reported = []
        for each, (value,) in zip(context, feed_batch[0]["x"], strict=True):
            step = each.sequence
            self.sums[step.id] = int(value) + (0 if step.start else self.sums[step.id])
            reported.append([self.sums[step.id]])
        return {"sum": np.array(reported)}


@pytest.fixture(scope="module", params=["thread", "process"])
def server(request):
    op = SumOp("sum", RequestOp(), sequence="oldest")
    keys = {"concurrency": 2, "batch_size": 4, "workers": request.param}
    with server_for(op, op={"sum": keys}) as running:
        yield running


def message(id, step, last, value):
    ModelInferRequest = pb.ModelInferRequest(model_name="sum", id=f"{id}/{step}")
    if isinstance(id, int):
        ModelInferRequest.parameters["sequence_id"].int64_param = id
    else:
        ModelInferRequest.parameters["sequence_id"].string_param = id
    ModelInferRequest.parameters["sequence_start"].bool_param = step == 0
    ModelInferRequest.parameters["sequence_end"].bool_param = step == last
    x = ModelInferRequest.inputs.add(name="x", datatype="INT64", shape=[1, 1])
    x.contents.int64_contents.append(value)
    return ModelInferRequest


def test_pipelined_requests_of_one_stream_are_answered_in_order(server):
    ids = [3, 2**62, "a", "b", "c"]
    messages = [message(id, step, 5, step) for step in range(6) for id in ids]
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        call = channel.stream_stream(
            STREAM, pb.ModelInferRequest.SerializeToString, pb.ModelStreamInferResponse.FromString
        )
        answers = list(call(iter(messages), timeout=30))
    assert [answer.error_message for answer in answers] == [""] * 30
    sums = {
        answer.infer_response.id: int.from_bytes(
            answer.infer_response.raw_output_contents[0], "little"
        )
        for answer in answers
    }
    assert sums == {f"{id}/{step}": sum(range(step + 1)) for step in range(6) for id in ids}


@pytest.mark.parametrize(
    ("parameters", "samples", "text"),
    [
        ({}, 1, "must specify a non-zero or non-empty correlation ID"),
        ({"sequence_id": 7}, 1, "must specify the START flag on the first request of the sequence"),
        (
            {"sequence_id": 7, "sequence_start": True},
            2,
            "must specify batch-size 1 due to requirements of sequence batcher",
        ),
    ],
)
def test_an_invalid_step_of_a_sequence_is_400(server, parameters, samples, text):
    x = {"name": "x", "datatype": "INT64", "shape": [samples, 1], "data": [1] * samples}
    body, before = {"parameters": parameters, "inputs": [x]}, failures(server)
    status, _, answer = http(server, "POST", "/v2/models/sum/infer", body)
    assert status == 400
    assert answer["error"].endswith(text)
    assert failures(server) == before, "it never came in"


def failures(server):
    stats = http(server, "GET", "/v2/models/sum/stats")[2]["model_stats"][0]["inference_stats"]
    return stats["fail"]["count"]


def talk(server, messages):
    """Send all messages on one stream, then read its answers; return them by their ids."""
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        call = channel.stream_stream(
            STREAM, pb.ModelInferRequest.SerializeToString, pb.ModelStreamInferResponse.FromString
        )
        answers = list(call(iter(messages), timeout=30))
    assert {answer.error_message for answer in answers} == {""}
    return {
        answer.infer_response.id: int.from_bytes(
            answer.infer_response.raw_output_contents[0], "little"
        )
        for answer in answers
    }


def test_requests_after_many_that_wait_for_slots_are_read():
    op = SumOp("sum", RequestOp(), sequence={"strategy": "direct", "max_idle_ms": 10**6})
    first = [message(7, 0, 1, 1)]
    waiting = [message(f"w{number}", 0, 0, number) for number in range(200)]
    with server_for(op) as server:
        sums = talk(server, [*first, *waiting, message(7, 1, 1, 2)])
    assert sums == {"7/0": 1, "7/1": 3, **{f"w{number}/0": number for number in range(200)}}


def test_a_step_parsed_in_a_thread_is_not_overtaken(server):
    messages = [message("large", step, 9, step) for step in range(10)]
    messages[0].inputs[0].parameters["padding"].string_param = "x" * 200_000
    messages[4].parameters["padding"].string_param = "x" * 200_000
    sums = talk(server, messages)
    assert sums == {f"large/{step}": sum(range(step + 1)) for step in range(10)}


def body(id, timeout=0, **flags):
    parameters = {"sequence_id": id, **flags, **({"timeout": timeout} if timeout else {})}
    x = {"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [1]}
    return {"parameters": parameters, "inputs": [x]}


@pytest.fixture(scope="module")
def one_slot_server():
    op = SumOp("sum", RequestOp(), sequence={"strategy": "direct", "max_idle_ms": 60_000})
    with server_for(op, stop_grace_period=50) as running:
        assert ask(running, "held", sequence_start=True)[0] == 200
        yield running


def ask(server, id, **said):
    status, _, answer = http(server, "POST", "/v2/models/sum/infer", body(id, **said))
    return status, answer


def test_a_timeout_in_the_backlog_is_unavailable_and_does_not_affect_other_slots(one_slot_server):
    status, answer = ask(one_slot_server, "late", timeout=1000, sequence_start=True)
    assert (status, answer["error"]) == (
        503,
        "timeout of the corresponding sequence has been expired",
    )
    assert ask(one_slot_server, "held", timeout=1)[0] == 200
    assert ask(one_slot_server, "late")[0] == 400, "it is not known any more"


def test_a_number_of_64_bits_is_one_sequence_at_both_doors(server):
    assert ask(server, 2**64 - 5, sequence_start=True)[0] == 200
    asked = message(-5, 1, 9, 4)
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelInferResponse.FromString,
        )
        answer = infer(asked, timeout=30)
    assert int.from_bytes(answer.raw_output_contents[0], "little") == 5
    status, answer = ask(server, 2**64 - 6)
    assert (status, "for sequence 18446744073709551610 to model" in answer["error"]) == (400, True)


def test_the_others_of_a_cancelled_sequence_are_cancelled(one_slot_server):
    with grpc.insecure_channel(f"127.0.0.1:{one_slot_server.rpc_port}") as channel:
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelInferResponse.FromString,
        )
        first = infer.future(message("left", 0, 9, 1))
        state = one_slot_server.executor.state
        wait_until(lambda: state().ops[0].queued == 1)
        second = infer.future(message("left", 1, 9, 1))
        wait_until(lambda: state().ops[0].queued == 2)
        first.cancel()
        assert second.exception().code() is grpc.StatusCode.CANCELLED
    assert state().ops[0].sequences.backlog == 0


class Countdown(Op):
    """Answers "x" - 1, "x" - 2, ..., 0."""

    input_tensors = (Tensor("x", "INT32", (1,)),)
    output_tensors = (Tensor("left", "INT32", (1,)),)
    max_batch_size = 4

    def process(self, feed_batch, *, context):
        for each, (x,) in zip(context, feed_batch[0]["x"], strict=True):
            each.state["left"] = (int(x) if each.sequence.start else each.state["left"]) - 1
        left = np.array([[item.state["left"]] for item in context], np.int32)
        return {"left": left, "done": left[:, 0] == 0}


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_iterative_sequences_need_no_ids_and_each_step_counts(workers):
    op = Countdown("count", RequestOp(), sequence="oldest")
    keys = {"batching": "iterative", "batch_size": 2, "workers": workers}
    with server_for(op, op={"count": keys}) as server:
        for count in (3, 2, 4):
            assert lefts(server, count) == list(range(count))[::-1]
        wait_until(lambda: counts(server)["inference_count"] == 9)
        stats = counts(server)
    assert stats["execution_count"] == stats["inference_stats"]["success"]["count"] == 9


def lefts(server, count):
    connection = http_client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    body = json.dumps({"x": [count]})
    connection.request("POST", "/v2/models/count/generate_stream", body)
    events = connection.getresponse().read().decode().split()[1::2]
    connection.close()
    return [json.loads(event)["left"] for event in events]


def counts(server):
    return http(server, "GET", "/v2/models/count/stats")[2]["model_stats"][0]
