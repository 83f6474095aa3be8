"""Tensors of requests in shared memory, by HTTP and gRPC."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

import grpc
import numpy as np
import pytest
from doubles import http
from repositories import add_identity, serving

from pipeline.proto import inference_v2_pb2 as pb

SERVICE = "/inference.GRPCInferenceService"
VALUES = np.arange(8, dtype=np.float32)
ALLOWED = {"client_shared_memory": {"allow": True}}


@pytest.fixture
def memory():
    """A file where callers have shared memory: the values, and as much room behind them."""
    path = Path("/dev/shm") / f"test_{uuid.uuid4().hex}"
    path.write_bytes(VALUES.tobytes() + bytes(VALUES.nbytes))
    yield path
    path.unlink(missing_ok=True)


@contextlib.contextmanager
def registered(tmp_path, memory, **settings):
    add_identity(tmp_path, "same", 1)
    with serving(tmp_path, mode="none", server={**ALLOWED, **settings}) as server:
        fields = {"key": f"/{memory.name}", "byte_size": 2 * VALUES.nbytes}
        path = "/v2/systemsharedmemory/region/mine/register"
        assert http(server, "POST", path, fields)[0] == 200
        yield server


def place(offset, size=VALUES.nbytes, region="mine"):
    return {
        "shared_memory_region": region,
        "shared_memory_offset": offset,
        "shared_memory_byte_size": size,
    }


def infer_body(inside, outside=None):
    wanted = {"name": "OUTPUT0"} | ({} if outside is None else {"parameters": outside})
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 8], "parameters": inside}
    return {"inputs": [tensor], "outputs": [wanted]}


def written(memory):
    return memory.read_bytes()[VALUES.nbytes :]


def test_inputs_are_read_and_outputs_written_in_place(tmp_path, memory):
    with registered(tmp_path, memory) as server:
        request = infer_body(place(0), place(VALUES.nbytes))
        for _ in range(3):  # the forms of requests are remembered
            status, _, answer = http(server, "POST", "/v2/models/same/infer", request)
            shown = [{"name": "OUTPUT0", "datatype": "FP32", "shape": [1, 8]}]
            assert (status, answer["outputs"]) == (200, shown)
            assert written(memory) == VALUES.tobytes()
            memory.write_bytes(VALUES.tobytes() + bytes(VALUES.nbytes))
        _, _, answer = http(server, "POST", "/v2/models/same/infer", infer_body(place(0)))
        assert answer["outputs"][0]["data"] == VALUES.tolist()
        _, _, regions = http(server, "GET", "/v2/systemsharedmemory/status")
        size = 2 * VALUES.nbytes
        reported = {"name": "mine", "key": f"/{memory.name}", "offset": 0, "byte_size": size}
        assert regions == [reported]
        assert http(server, "POST", "/v2/systemsharedmemory/unregister")[0] == 200
        status, _, answer = http(server, "POST", "/v2/models/same/infer", request)
        assert status == 404
        assert "Unable to find shared memory region: 'mine'" in answer["error"]


def test_the_same_by_messages(tmp_path, memory):
    with (
        registered(tmp_path, memory) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel,
    ):
        request = pb.ModelInferRequest(model_name="same")
        tensor = request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 8])
        output = request.outputs.add(name="OUTPUT0")
        for each, offset in ((tensor, 0), (output, VALUES.nbytes)):
            each.parameters["shared_memory_region"].string_param = "mine"
            each.parameters["shared_memory_offset"].int64_param = offset
            each.parameters["shared_memory_byte_size"].int64_param = VALUES.nbytes
        call = channel.unary_unary(f"{SERVICE}/ModelInfer")
        answer = pb.ModelInferResponse.FromString(call(request.SerializeToString()))
        assert (answer.outputs[0].name, list(answer.outputs[0].shape)) == ("OUTPUT0", [1, 8])
        assert list(answer.raw_output_contents) == [b""]
        assert written(memory) == VALUES.tobytes()
        status = channel.unary_unary(f"{SERVICE}/SystemSharedMemoryStatus")
        regions = pb.SystemSharedMemoryStatusResponse.FromString(status(b"")).regions
        assert regions["mine"].key == f"/{memory.name}"
        stream = channel.stream_stream(f"{SERVICE}/ModelStreamInfer")
        memory.write_bytes(VALUES.tobytes() + bytes(VALUES.nbytes))
        (answer,) = stream(iter([request.SerializeToString()]))
        assert pb.ModelStreamInferResponse.FromString(answer).error_message == ""
        assert written(memory) == VALUES.tobytes()


@pytest.mark.parametrize(
    ("request_", "status", "text"),
    [
        (infer_body(place(0, 16)), 400, "Expected 32, got 16"),
        (infer_body(place(64)), 400, "Invalid offset for shared memory region: 'mine'"),
        (infer_body(place(60)), 400, "Invalid offset + byte size for shared memory region: 'mine'"),
        (infer_body(place(2**64 - 1)), 400, "Invalid offset"),
        (infer_body(place(0, region="hers")), 404, "Unable to find shared memory region: 'hers'"),
        (
            infer_body(place(0), place(32, 16)),
            500,
            "should be at least 32 bytes to hold the results",
        ),
        (infer_body(place(0), place(60)), 400, "Invalid offset + byte size"),
        (infer_body({"shared_memory_offset": 5}), 400, "no field is set"),
    ],
)
def test_an_invalid_region_is_refused(tmp_path, memory, request_, status, text):
    with registered(tmp_path, memory) as server:
        result, _, answer = http(server, "POST", "/v2/models/same/infer", request_)
        assert (result, text in answer["error"]) == (status, True), answer
        assert written(memory) == bytes(VALUES.nbytes)


def test_a_file_that_was_cut_short_is_an_error_of_the_request(tmp_path, memory):
    with registered(tmp_path, memory) as server:
        memory.write_bytes(b"short")
        for request in (infer_body(place(0)), infer_body(place(0), place(VALUES.nbytes))):
            status, _, answer = http(server, "POST", "/v2/models/same/infer", request)
            assert (status, answer["error"][-21:]) == (400, "memory region: 'mine'")
        assert memory.read_bytes() == b"short"


def test_more_than_a_message_may_have_is_not_read(tmp_path, memory):
    most = 2**20
    os.truncate(memory, most + 4)  # takes no more memory than before
    add_identity(tmp_path, "same", 1)
    with serving(tmp_path, mode="none", server={**ALLOWED, "max_message_bytes": most}) as server:
        fields = {"key": memory.name, "byte_size": most + 4}
        path = "/v2/systemsharedmemory/region/mine/register"
        assert http(server, "POST", path, fields)[0] == 200
        for size, wanted in ((most, 200), (most + 4, 413)):
            request = infer_body(place(0, size), place(0, most))
            request["inputs"][0]["shape"] = [1, size // 4]
            status, _, answer = http(server, "POST", "/v2/models/same/infer", request)
            assert status == wanted, answer
        assert "more than max_message_bytes (1048576)" in answer["error"]


@pytest.mark.parametrize("allow", [None, False])
def test_it_is_off_at_an_open_address(tmp_path, allow):
    add_identity(tmp_path, "same", 1)
    settings = {"client_shared_memory": {"allow": allow}, "host": "::"}
    with serving(tmp_path, mode="none", server=settings) as server:
        path = "/v2/systemsharedmemory/region/mine/register"
        status, _, answer = http(server, "POST", path, {"key": "x", "byte_size": 8})
        assert (status, "--allow-client-shm=true" in answer["error"]) == (501, True)
        status, _, answer = http(server, "POST", "/v2/models/same/infer", infer_body(place(0)))
        assert (status, "--allow-client-shm=true" in answer["error"]) == (501, True)


def test_gpu_memory_is_not_supported(tmp_path, memory):
    with registered(tmp_path, memory) as server:
        assert http(server, "GET", "/v2/cudasharedmemory/status")[2] == []
        path = "/v2/cudasharedmemory/region/mine/register"
        status, _, answer = http(server, "POST", path, {})
        assert (status, "GPUs not supported" in answer["error"]) == (400, True)
