"""Triton's dynamic batcher by the doors of v2: priority, timeout, a full queue, and the counts."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.request import urlopen

import grpc
import numpy as np
import pytest
from doubles import http, server_for, wait_until

from pipeline import Op, RequestOp, Tensor
from pipeline.proto import inference_v2_pb2 as pb

INFER = "/inference.GRPCInferenceService/ModelInfer"
SECTION = {
    "priority_levels": 2,
    "default_priority_level": 2,
    "default_queue_policy": {
        "allow_timeout_override": True,
        "default_timeout_microseconds": 60_000_000,
        "max_queue_size": 3,
    },
    "priority_queue_policy": {"level": 1, "max_queue_size": 9},
}


class GateOp(Op):
    """Runs when it is let, and notes in which order."""

    input_tensors = (Tensor("x", "INT64", (1,)),)
    output_tensors = (Tensor("x", "INT64", (1,)),)
    max_batch_size = 1

    def init_op(self):
        self.seen, self.open = [], threading.Semaphore(0)

    def process(self, feed_batch):
        self.seen.append(int(feed_batch[0]["x"][0, 0]))
        self.open.acquire(timeout=30)
        return {"x": feed_batch[0]["x"]}


@pytest.fixture
def gate():
    op = GateOp("gate", RequestOp(), dynamic_batching=SECTION)
    with server_for(op) as server:
        yield server, op, ThreadPoolExecutor(16)
        for _ in range(16):
            op.open.release()


def by_http(server, value, **parameters):
    x = {"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [value]}
    body = {"inputs": [x], "parameters": parameters}
    status, _, answer = http(server, "POST", "/v2/models/gate/infer", body)
    return status, answer.get("error", "")


def by_grpc(server, value, **parameters):
    ModelInferRequest = pb.ModelInferRequest(model_name="gate", id="mine")
    for name, number in parameters.items():
        ModelInferRequest.parameters[name].int64_param = number
    x = ModelInferRequest.inputs.add(name="x", datatype="INT64", shape=[1, 1])
    x.contents.int64_contents.append(value)
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        call = channel.unary_unary(
            INFER, pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString
        )
        try:
            call(ModelInferRequest, timeout=30)
        except grpc.RpcError as error:
            return error.code().name, error.details()
        return 200, ""


def queued(server):
    _, _, page = http(server, "GET", "/status.json")
    return sum(op["queued"] for op in page["ops"])


@pytest.mark.parametrize("ask", [by_http, by_grpc])
def test_priorities_timeouts_and_full_queues(gate, ask):
    server, op, pool = gate
    asked = [pool.submit(ask, server, 0)]
    wait_until(lambda: op.seen == [0])
    for value, level in enumerate((2, 0, 1, 1), 1):
        asked.append(pool.submit(ask, server, value, priority=level))
        wait_until(lambda value=value: queued(server) == value)
    late = ask(server, 5, timeout=1000)
    assert late == ({by_http: 503, by_grpc: "UNAVAILABLE"}[ask], "Request timeout expired")
    asked.append(pool.submit(ask, server, 6))
    wait_until(lambda: queued(server) == 5)
    id = {by_http: "<id_unknown>", by_grpc: "mine"}[ask]
    assert ask(server, 7) == (late[0], f"[request id: {id}] Exceeds maximum queue size")
    for _ in range(6):
        op.open.release()
    assert [item.result(30) for item in asked] == [(200, "")] * 6
    assert op.seen == [0, 3, 4, 1, 2, 6]

    _, _, reported = http(server, "GET", "/v2/models/gate/stats")
    counted = reported["model_stats"][0]
    stats = counted["inference_stats"]
    assert (stats["success"]["count"], stats["fail"]["count"]) == (6, 1), "a full queue is not"
    assert counted["execution_count"] == 6
    with urlopen(f"http://127.0.0.1:{server.http_port}/metrics", timeout=30) as answer:
        metrics = answer.read().decode()
    failure = 'nv_inference_request_failure{model="gate",reason="REJECTED",version="1"} 1'
    assert failure in metrics


def test_the_configuration_of_the_model_has_it_as_triton_does(gate):
    server, _, _ = gate
    _, _, reported = http(server, "GET", "/v2/models/gate/config")
    policy = {
        "timeout_action": "REJECT",
        "default_timeout_microseconds": 60_000_000,
        "allow_timeout_override": True,
        "max_queue_size": 3,
    }
    plain = dict(policy, default_timeout_microseconds=0, allow_timeout_override=False)
    assert reported["dynamic_batching"] == {
        "preferred_batch_size": [1],
        "max_queue_delay_microseconds": 0,
        "preserve_ordering": False,
        "priority_levels": 2,
        "default_priority_level": 2,
        "default_queue_policy": policy,
        "priority_queue_policy": {"1": dict(plain, max_queue_size=9)},
    }
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelConfig",
            pb.ModelConfigRequest.SerializeToString,
            pb.ModelConfigResponse.FromString,
        )
        batching = call(pb.ModelConfigRequest(name="gate"), timeout=30).config.dynamic_batching
    assert batching.default_queue_policy.max_queue_size == 3
    assert batching.priority_queue_policy[1].max_queue_size == 9


class StoriesOp(Op):
    """Streams, in batches that are cut as preferred."""

    def process(self, feed_batch):
        for number in range(2):
            yield {"rows": np.full((len(feed_batch), 1), len(feed_batch) + number)}


def test_an_op_that_streams_has_it_too():
    op = StoriesOp("stories", RequestOp(), dynamic_batching={})
    with server_for(op) as server:
        request = {"key": ["x"], "value": ["1"]}
        status, _, answer = http(server, "POST", "/svc/prediction", request)
        assert status == 200, answer
