"""Large messages on a running server: who reads and writes them, and what is refused."""

from __future__ import annotations

import gzip
import json
import threading
import urllib.error
import urllib.request
import weakref
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from doubles import wait_until

from pipeline import Op, PipelineServer, RequestOp, ResponseOp
from pipeline.engine.offload import Offload
from pipeline.engine.pack_jobs import Packer, Unpacker
from pipeline.engine.run.payload import MemoryDomain
from pipeline.errors import DeadlineError
from pipeline.frontends.http import bodies
from pipeline.frontends.v2 import http_inference as http_v2
from pipeline.proto import codec, inference_v2_pb2
from pipeline.proto.inflate import inflated
from pipeline.proto.pipeline import json as jsonpb
from pipeline.proto.pipeline import response
from pipeline.proto.pipeline_service_pb2 import Request, Response
from pipeline.proto.v2.codec import SERVICE

INFERENCE = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
JSON_LIMIT, TEXT_LIMIT = 200_000, 5000


class Give(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (asked,) = input_dicts.values()
        if "count" in asked:
            return {"x": np.arange(int(asked["count"])) % 7}
        return {name: value for name, value in asked.items() if name != "drop"} or {"y": "ok"}


@pytest.fixture(scope="module")
def server():
    made = PipelineServer("svc")
    made.set_response_op(ResponseOp(Give("give", RequestOp())))
    limits = {"max_json_bytes": JSON_LIMIT, "max_text_elements": TEXT_LIMIT}
    made.prepare_server(yml_dict={"rpc_port": 0, "http_port": 0, "host": "127.0.0.1", **limits})
    with made:
        yield made


class Kinds(Op):
    """Answers with what its inputs are, and with what they weigh."""

    def preprocess(self, input_dicts, data_id, log_id):
        (asked,) = input_dicts.values()
        asked["x"] += 1
        size = sum(len(value) for value in asked.values())
        return {"kinds": " ".join(type(value).__name__ for value in asked.values()), "n": str(size)}


@pytest.mark.parametrize("is_thread_op", [True, False])
def test_ops_get_their_own_bytes_and_arrays(is_thread_op):
    made = PipelineServer("svc")
    made.set_response_op(ResponseOp(Kinds("kinds", RequestOp())))
    dag = {"is_thread_op": is_thread_op}
    made.prepare_server(yml_dict={"rpc_port": 0, "host": "127.0.0.1", "dag": dag})
    values = {"x": np.arange(2**15, dtype=np.float32), "raw": bytes(2**17), "short": b"s"}
    tensors = [codec.numpy_to_tensor(name, value) for name, value in values.items()]
    with made, grpc.insecure_channel(f"127.0.0.1:{made.rpc_port}") as channel:
        ask = channel.unary_unary(INFERENCE, Request.SerializeToString, Response.FromString)
        for _ in range(2):
            answer = ask(Request(name="svc", tensors=tensors), timeout=60, wait_for_ready=True)
            reported = dict(zip(answer.key, answer.value, strict=True))
            assert reported == {"kinds": "ndarray bytes bytes", "n": str(2**15 + 2**17 + 1)}


def test_a_body_passed_to_an_op_as_bytes_is_released(monkeypatch):
    placed, begun, goes_on = [], threading.Event(), threading.Event()
    place = MemoryDomain.place

    def noting(self, size, aligned_at=0):
        result = place(self, size, aligned_at)
        placed.append(weakref.ref(result))
        return result

    class Waits(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            begun.set()
            assert goes_on.wait(60)
            return {"n": str(len(input_dicts["@DAGExecutor"]["image"]))}

    monkeypatch.setattr(MemoryDomain, "place", noting)
    made = PipelineServer("svc")
    made.set_response_op(ResponseOp(Waits("waits", RequestOp())))
    made.prepare_server(yml_dict={"http_port": 0, "host": "127.0.0.1"})
    with made, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(post, made, bytes(2**21), "/api/svc", content_type="image/png")
        try:
            assert begun.wait(60)
            wait_until(lambda: [item() is None for item in placed] == [True])
        finally:
            goes_on.set()
        assert asked.result() == (200, b'{"n":"2097152"}')


def post(server, body, path="/svc/p", **headers):
    url = f"http://127.0.0.1:{server.http_port}{path}"
    asked = urllib.request.Request(url, body, {k.replace("_", "-"): v for k, v in headers.items()})
    try:
        with urllib.request.urlopen(asked, timeout=60) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def numbers(count):
    tensor = {"name": "drop", "elem_type": 1, "shape": [count], "float_data": [0.5] * count}
    return json.dumps({"tensors": [tensor]}).encode()


@pytest.fixture
def threads(monkeypatch):
    """The names of the threads in which large things are read, unpacked, packed and written."""
    seen = []

    def watch(place, name):
        function = getattr(place, name)

        def watched(*args, **kwargs):
            seen.append((name, threading.current_thread().name))
            return function(*args, **kwargs)

        monkeypatch.setattr(place, name, watched)

    watch(jsonpb, "large_request_from_json")
    watch(jsonpb, "large_response_to_json")
    watch(http_v2, "read_request")
    watch(http_v2, "write_response")
    watch(Unpacker, "_unpack_large")
    watch(Packer, "_pack_large")
    watch(response.LargeResponse, "to_wire")
    return seen


def check_outside_the_loop(seen, *names):
    """Each of them was called, and never by the thread of the event loop."""
    loops = [thread.name for thread in threading.enumerate() if "loop" in thread.name.lower()]
    assert set(names) <= {name for name, _ in seen}
    assert not {thread for _, thread in seen} & {*loops, "MainThread"}, seen


def test_large_json_is_parsed_and_unpacked_outside_the_loop(server, threads):
    status, answer = post(server, numbers(20_000))
    assert (status, json.loads(answer)["err_no"]) == (200, 0)
    check_outside_the_loop(threads, "large_request_from_json", "_unpack_large")


def test_a_large_answer_is_packed_and_written_outside_the_loop(server, threads):
    body = json.dumps({"key": ["count"], "value": ["30000"]}).encode()
    status, answer = post(server, body)
    text = json.loads(answer)["value"][0]
    with np.printoptions(threshold=10**6):
        assert (status, text) == (200, repr(np.arange(30000) % 7))
    check_outside_the_loop(threads, "_pack_large", "large_response_to_json")


def test_large_messages_over_grpc_are_returned_unchanged(server, threads):
    array = np.random.default_rng(0).random((300, 200)).astype("f4")
    message = Request(tensors=[codec.numpy_to_tensor("a", array)]).SerializeToString()
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        answer = Response.FromString(channel.unary_unary(INFERENCE)(message, timeout=60))
    assert (answer.err_no, list(answer.key)) == (0, [])  # as text it would be too long
    np.testing.assert_array_equal(codec.decode_tensors(answer.tensors)["a"], array)
    check_outside_the_loop(threads, "_unpack_large", "_pack_large", "to_wire")


def test_large_v2_requests_are_read_and_written_outside_the_loop(server, threads):
    array = np.random.default_rng(0).random(50_000).astype("f4")
    entry = {"name": "a", "datatype": "FP32", "shape": [array.size]}
    fields = {
        "inputs": [{**entry, "parameters": {"binary_data_size": array.nbytes}}],
        "parameters": {"binary_data_output": True},
    }
    head = json.dumps(fields).encode()
    reported = {"Inference_Header_Content_Length": str(len(head))}
    status, answer = post(server, head + array.tobytes(), "/v2/models/svc/infer", **reported)
    assert (status, answer[-array.nbytes :]) == (200, array.tobytes())
    check_outside_the_loop(threads, "read_request", "write_response")


def test_json_above_its_limit_is_refused_by_the_keys_name(server):
    for headers, body in (
        ({}, b" " * (JSON_LIMIT + 1)),
        ({"Content_Encoding": "gzip"}, gzip.compress(b" " * (JSON_LIMIT + 1), mtime=0)),
    ):
        status, answer = post(server, body, **headers)
        assert (status, json.loads(answer)["err_no"]) == (413, 8000)
        assert f"max_json_bytes ({JSON_LIMIT} bytes)" in json.loads(answer)["err_msg"]
    status, answer = post(server, b" " * (JSON_LIMIT + 1), "/v2/models/svc/infer")
    assert status == 400  # as Triton
    assert json.loads(answer) == {
        "error": f"request JSON size of {JSON_LIMIT + 1} bytes exceeds the maximum allowed input "
        f"size of {JSON_LIMIT} bytes. Use --http-max-input-size to increase the limit. In "
        "config.yml it is max_json_bytes."
    }


@pytest.mark.parametrize(
    ("path", "refusal"),
    [
        ("/svc/p", 413),
        ("/api/svc", 413),
        ("/v2/models/svc/infer", 400),
        ("/v2/models/svc/generate", 400),
    ],
)
def test_packed_json_is_not_unpacked_beyond_its_limit(server, monkeypatch, path, refusal):
    limits = []

    def unpacked(body, window_bits, limit):
        limits.append(limit)
        return inflated(body, window_bits, limit)

    monkeypatch.setattr(bodies, "inflated", unpacked)
    packed = gzip.compress(b" " * (JSON_LIMIT + 1), mtime=0)
    headers = {"Content_Encoding": "gzip", "Content_Type": "application/json"}
    status, answer = post(server, packed, path, **headers)
    assert (status, b"max_json_bytes" in answer) == (refusal, True)
    assert limits
    assert max(limits) <= JSON_LIMIT


def test_packed_tensors_are_not_json(server):
    array = np.zeros(JSON_LIMIT, "i1")
    fields = {
        "inputs": [
            {
                "name": "a",
                "datatype": "INT8",
                "shape": [array.size],
                "parameters": {"binary_data_size": array.nbytes},
            }
        ],
        "parameters": {"binary_data_output": True},
    }
    head = json.dumps(fields).encode()
    packed = gzip.compress(head + array.tobytes(), mtime=0)
    headers = {"Content_Encoding": "gzip", "Inference_Header_Content_Length": str(len(head))}
    status, _ = post(server, packed, "/v2/models/svc/infer", **headers)
    assert status == 200


def test_more_text_than_allowed_is_refused_by_the_keys_name(server):
    texts = ["a" * 12] * (TEXT_LIMIT + 1)
    status, answer = post(server, json.dumps({"key": texts}).encode())
    assert (status, "max_text_elements" in json.loads(answer)["err_msg"]) == (413, True)
    message = Request(key=texts).SerializeToString()
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        infer = channel.unary_unary(INFERENCE)
        with pytest.raises(grpc.RpcError) as caught:
            infer(message, timeout=60)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        ModelInferRequest = inference_v2_pb2.ModelInferRequest(model_name="svc")
        ModelInferRequest.inputs.add(name="x", datatype="BYTES", shape=[TEXT_LIMIT + 1])
        ModelInferRequest.raw_input_contents.append(b"\1\0\0\0A" * (TEXT_LIMIT + 1))
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(f"/{SERVICE}/ModelInfer")(
                ModelInferRequest.SerializeToString(), timeout=60
            )
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "max_text_elements" in caught.value.details()


def test_an_answer_above_the_limit_of_text_is_an_error_with_the_limit(server):
    body = json.dumps({"key": ["count"], "value": ["200000"]}).encode()
    status, answer = post(server, body)
    fields = json.loads(answer)
    assert (status, fields["err_no"]) == (200, 8000)
    assert f"max_json_bytes ({JSON_LIMIT} bytes): ask for tensors" in fields["err_msg"]


def test_large_gzip_is_unpacked_in_whole(server):
    status, answer = post(server, gzip.compress(numbers(20_000)), Content_Encoding="gzip")
    assert (status, json.loads(answer)["err_no"]) == (200, 0)
    cut = gzip.compress(numbers(20_000))[:-20]
    status, answer = post(server, cut, Content_Encoding="gzip")
    assert (status, "cut short" in json.loads(answer)["err_msg"]) == (400, True)


def test_a_deadline_holds_while_the_message_is_read(server, monkeypatch):
    read, released = jsonpb.large_request_from_json, threading.Event()

    def slow(*args):
        released.wait(20)
        return read(*args)

    monkeypatch.setattr(jsonpb, "large_request_from_json", slow)
    status, answer = post(server, numbers(20_000), Grpc_Timeout="10m")
    released.set()
    assert (status, json.loads(answer)["err_no"]) == (200, 6000)


def test_a_deadline_while_a_body_is_joined_is_a_timeout(server, monkeypatch):
    async def late(self, work, timeout_s=None):
        raise DeadlineError("too late")

    monkeypatch.setattr(Offload, "run", late)
    status, answer = post(server, b"{" + b" " * 150_000 + b"}")
    assert (status, json.loads(answer)["err_no"]) == (200, 6000)


def test_a_request_op_of_ones_own_gets_a_message_of_protobuf():
    kinds = []

    class Reads(RequestOp):
        def unpack_request_package(self, request):
            kinds.append(type(request))
            return super().unpack_request_package(request)

    own = PipelineServer("own")
    own.set_response_op(ResponseOp(Give("give", Reads())))
    own.prepare_server(yml_dict={"rpc_port": 0, "host": "127.0.0.1"})
    with own, grpc.insecure_channel(f"127.0.0.1:{own.rpc_port}") as channel:
        tensor = codec.numpy_to_tensor("drop", np.zeros(30_000, "f4"))
        infer = channel.unary_unary(INFERENCE)
        infer(Request(tensors=[tensor]).SerializeToString(), timeout=60)
    assert kinds == [Request]
