"""Traces of a repository's requests in Triton's file, over HTTP and gRPC."""

from __future__ import annotations

import json

import grpc
import numpy as np
import pytest
from doubles import http
from repositories import add_ensemble, add_identity, add_onnx, add_python, infer, serving

from pipeline.proto import inference_v2_pb2 as pb
from pipeline.proto.v2.codec import add_tensor

SERVICE = "/inference.GRPCInferenceService"
STAGES = {
    *("REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END"),
    *("COMPUTE_OUTPUT_START", "COMPUTE_END", "INFER_RESPONSE_COMPLETE", "REQUEST_END"),
}
OF_HTTP = {"HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"}
OF_GRPC = {"GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END"}


def settings(path, **more):
    return {"request_traces": {"file": str(path), "level": ["TIMESTAMPS"], "rate": 1, **more}}


def traces_of(path):
    """{id: (name, parent, the names of its times)}, and the tensors by id."""
    collected, tensors = {}, {}
    for entry in json.loads(path.read_bytes()):
        if "model_name" in entry:
            collected[entry["id"]] = (entry["model_name"], entry.get("parent_id"), {})
        elif "tensor" in entry:
            tensors.setdefault(entry["id"], []).append((entry["activity"], entry["tensor"]))
        else:
            for stamp in entry["timestamps"]:
                collected[entry["id"]][2][stamp["name"]] = stamp["ns"]
    return collected, tensors


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    add_identity(folder, "same", 1)
    add_ensemble(folder, "whole", of="same")
    return folder


def over_grpc(server, model):
    message = pb.ModelInferRequest(model_name=model)
    value = np.ones((1, 1), np.float32)
    add_tensor(message.inputs, message.raw_input_contents, "INPUT0", value)
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        stream = channel.stream_stream(f"{SERVICE}/ModelStreamInfer")
        assert channel.unary_unary(f"{SERVICE}/ModelInfer")(message.SerializeToString())
        assert list(stream(iter([message.SerializeToString()])))


def test_each_door_and_each_step_is_seen(repository, tmp_path):
    path = tmp_path / "traces"
    with serving(repository, mode="none", server=settings(path)) as server:
        assert infer(server, "same", [1.0])[0] == 200
        over_grpc(server, "same")
        assert infer(server, "whole", [2.0])[0] == 200
    result, _ = traces_of(path)
    assert [(name, parent) for name, parent, _ in result.values()] == [
        ("same", None), ("same", None), ("same", None), ("whole", None), ("same", 4),
    ]  # fmt: skip
    assert set(result[1][2]) == STAGES | OF_HTTP
    assert set(result[2][2]) == set(result[3][2]) == STAGES | OF_GRPC
    assert set(result[4][2]) == OF_HTTP | {
        *("REQUEST_START", "QUEUE_START", "INFER_RESPONSE_COMPLETE", "REQUEST_END"),
    }
    assert set(result[5][2]) == STAGES
    for _, _, times in result.values():
        in_order = [
            name for name in ("REQUEST_START", "COMPUTE_START", "COMPUTE_END") if name in times
        ]
        assert [times[name] for name in in_order] == sorted(times[name] for name in in_order)


HOLDS = """
dynamic_batching { preserve_ordering: true preferred_batch_size: 1 }
instance_group { count: 2 kind: KIND_CPU }
"""


@pytest.mark.parametrize("model", ["same", "keeps", "holds"])
def test_a_step_begins_and_ends_within_its_ensemble(tmp_path, model):
    folder, path = tmp_path / "models", tmp_path / "traces"
    folder.mkdir()
    more = {"same": "", "keeps": "response_cache { enable: true }", "holds": HOLDS}
    add_identity(folder, model, 1, most=8, more=more[model])
    add_ensemble(folder, "whole", of=model)
    add_ensemble(folder, "outer", of="whole")
    with serving(folder, "none", settings(path) | {"cache": {"local": {"size": 2**20}}}) as server:
        for _ in range(3):
            assert infer(server, "outer", [1.0])[0] == 200
    traces, _ = traces_of(path)
    steps = [(times, traces[parent][2]) for _, parent, times in traces.values() if parent]
    assert len(steps) == 6
    for step, whole in steps:
        starts = whole["REQUEST_START"], step["REQUEST_START"], step["QUEUE_START"]
        assert list(starts) == sorted(starts)
        assert starts[2] <= step["REQUEST_END"] <= whole["REQUEST_END"]


def test_tensors_are_seen_on_both_sides(repository, tmp_path):
    path = tmp_path / "traces"
    said = settings(path, level=["TENSORS"])
    with serving(repository, mode="none", server=said) as server:
        assert infer(server, "whole", [2.5])[0] == 200
    _, tensors = traces_of(path)
    assert [[(what, each["data"]) for what, each in tensors[number]] for number in (1, 2)] == [
        [("TENSOR_QUEUE_INPUT", "2.5"), ("TENSOR_BACKEND_OUTPUT", "2.5")]
    ] * 2


UNBATCHED = """
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]
output [
  { name: "y" data_type: TYPE_FP32 dims: [ -1, 3 ] },
  { name: "z" data_type: TYPE_FP32 dims: [ -1, 3 ] }
]
"""
HALF = """
platform: "ensemble"
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]
output [ { name: "out" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]
ensemble_scheduling { step [ {
  model_name: "sums" model_version: -1
  input_map { key: "x" value: "x" } output_map { key: "z" value: "out" } } ] }
"""


def test_only_requested_outputs_are_seen(repository, tmp_path):
    add_onnx(repository, "sums", UNBATCHED)
    (repository / "half" / "1").mkdir(parents=True)
    (repository / "half" / "config.pbtxt").write_text(HALF)
    path = tmp_path / "traces"
    x = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
    with serving(repository, mode="none", server=settings(path, level=["TENSORS"])) as server:
        one = {"inputs": [x], "outputs": [{"name": "y"}]}
        for model, body in (("sums", one), ("half", {"inputs": [x]})):
            assert http(server, "POST", f"/v2/models/{model}/infer", body)[0] == 200
    _, tensors = traces_of(path)
    names = [
        tensor["name"] for seen in tensors.values() for what, tensor in seen if "OUTPUT" in what
    ]
    assert names == ["y", "out", "z"]


def test_settings_change_the_traced_requests_and_the_file(repository, tmp_path):
    path = tmp_path / "traces"
    with serving(repository, mode="none", server=settings(path, level=[])) as server:
        infer(server, "same", [1.0])
        where = "/v2/models/same/trace/setting"
        status, _, now = http(server, "POST", where, {"trace_level": ["TIMESTAMPS"]})
        assert (status, now["trace_level"], now["trace_rate"]) == (200, ["TIMESTAMPS"], "1")
        infer(server, "same", [1.0])
        infer(server, "whole", [1.0])  # has the settings of all
        with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
            change = pb.TraceSettingRequest(model_name="same")
            change.settings["log_frequency"].value.append("2")
            answer = channel.unary_unary(f"{SERVICE}/TraceSetting")(change.SerializeToString())
            shown = pb.TraceSettingResponse.FromString(answer).settings
            assert list(shown["log_frequency"].value) == ["2"]
        for _ in range(3):
            infer(server, "same", [1.0])
    assert [name for name, _, _ in traces_of(path)[0].values()] == ["same"]
    counts = [len(traces_of(tmp_path / f"traces.{number}")[0]) for number in (0, 1)]
    assert counts == [2, 1]


ASKS = """
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb.InferenceRequest(
                model_name="same",
                requested_output_names=["OUTPUT0"],
                inputs=[pb.Tensor("INPUT0", request.inputs()[0].as_numpy())],
            ).exec()
            for request in requests
        ]
"""


def test_the_call_of_a_python_model_is_a_child_of_its_request(repository, tmp_path):
    add_python(repository, "asks", ASKS)
    path = tmp_path / "traces"
    with serving(repository, mode="none", server=settings(path)) as server:
        assert infer(server, "asks", [1.0])[0] == 200
    result, _ = traces_of(path)
    assert [(name, parent) for name, parent, _ in result.values()] == [("asks", None), ("same", 1)]


def test_an_invalid_setting_is_refused_after_an_unknown_model(repository, tmp_path):
    with serving(repository, mode="none", server=settings(tmp_path / "t")) as server:
        refused = {
            "/v2/trace/setting": (501, "trace file location can not be updated"),
            "/v2/models/nope/trace/setting": (400, "Request for unknown model : nope"),
        }
        for path, (code, text) in refused.items():
            status, _, said = http(server, "POST", path, {"trace_file": "/etc/other"})
            assert (status, said["error"][: len(text)]) == (code, text)
        status, _, said = http(server, "POST", "/v2/trace/setting", {"trace_rate": "0"})
        assert (status, said["error"]) == (
            400, "Attempting to set invalid trace setting :sample rate must be non-zero",
        )  # fmt: skip
        assert http(server, "DELETE", "/v2/trace/setting")[0] == 405
