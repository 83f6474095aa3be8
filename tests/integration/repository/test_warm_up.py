"""Warm-up: samples that a model runs when it is loaded, and that may fail."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import http
from repositories import add_identity, add_onnx, add_python, control, infer, serving

from pipeline.proto.v2.raw import array_to_raw

WARM_UP = """
model_warmup { name: "sample" batch_size: %d count: %d
  inputs { key: "%s" value { data_type: TYPE_FP32 dims: %s %s } } }
"""
NOTES = """
import pathlib
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.file = pathlib.Path(args["model_repository"]) / ("seen." + args["model_instance_name"])

    def execute(self, requests):
        found = [pb_utils.get_input_tensor_by_name(r, "INPUT0").as_numpy() for r in requests]
        with self.file.open("a") as seen:
            seen.write(f"{len(requests)} {found[0].tolist()}\\n")
        if found[0].flat[0] == 7:
            raise pb_utils.TritonModelException("An Error Occurred")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", x)]) for x in found]
"""
STREAMS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            value = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            for _ in range(2):
                part = pb_utils.Tensor("OUTPUT0", value)
                sender.send(pb_utils.InferenceResponse([part]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def sample(requests=1, count=1, key="INPUT0", dims="2", data="zero_data: true"):
    return WARM_UP % (requests, count, key, dims, data)


def logged_samples(folder):
    return {path.name: path.read_text().splitlines() for path in sorted(folder.glob("seen.*"))}


def test_each_instance_runs_each_sample_before_the_model_is_ready(tmp_path):
    group = "instance_group { kind: KIND_CPU count: 2 }"
    folder = add_python(tmp_path, "m", NOTES, group + sample(3, 2))
    with serving(tmp_path, "none") as server:
        each = ["3 [[0.0, 0.0]]"] * 2
        assert logged_samples(folder) == {"seen.m_0_0": each, "seen.m_0_1": each}
        assert infer(server, "m", [1.0, 2.0]) == (200, {"OUTPUT0": [1.0, 2.0]})
        _, _, answer = http(server, "GET", "/v2/models/m/stats")
        assert answer["model_stats"][0]["inference_count"] == 1, "samples are not counted"


def test_data_of_a_file_reach_the_model(tmp_path):
    folder = add_python(tmp_path, "m", NOTES, sample(data='input_data_file: "raw"'))
    (folder / "warmup").mkdir()
    (folder / "warmup" / "raw").write_bytes(array_to_raw(np.array([3, 4, 5], np.float32)))
    with serving(tmp_path, "none"):
        assert logged_samples(folder) == {"seen.m_0": ["1 [[3.0, 4.0]]"]}


def test_a_model_that_fails_at_a_sample_is_not_loaded(tmp_path):
    folder = add_python(tmp_path, "m", NOTES, sample(data='input_data_file: "raw"'))
    (folder / "warmup").mkdir()
    (folder / "warmup" / "raw").write_bytes(array_to_raw(np.array([7, 0], np.float32)))
    with serving(tmp_path) as server:
        status, text = control(server, "m", "load")
        assert status == 400
        assert "failed to run warmup sample 'sample': " in text
        assert "An Error Occurred" in text
        assert infer(server, "m", [1.0, 2.0])[0] == 404


@pytest.mark.parametrize(
    ("warm_up", "text"),
    [
        (
            sample(dims="-1"),
            "expects all variable-size dimensions are specified for input 'INPUT0'",
        ),
        (sample(data=""), "warmup setting expects input 'INPUT0' to have input_data_type set"),
        (sample(data='input_data_file: "short"'), "expects 8 bytes, but the data provided from"),
        (sample(data='input_data_file: "none"'), "No such file"),
        (sample(data='input_data_file: "../config.pbtxt"'), "is not in the folder warmup"),
    ],
)
def test_an_invalid_sample_is_refused_with_its_reason(tmp_path, warm_up, text):
    folder = add_identity(tmp_path, "m", 1, more=warm_up)
    (folder / "warmup").mkdir()
    (folder / "warmup" / "short").write_bytes(b"1234")
    with serving(tmp_path) as server:
        status, error = control(server, "m", "load")
        assert status == 400
        assert text in error


@pytest.mark.parametrize("data", ["zero_data: true", "random_data: true"])
def test_models_of_files_run_their_samples(tmp_path, data):
    add_onnx(tmp_path, "sums", 'platform: "onnxruntime_onnx"' + sample(2, 1, "x", "3", data))
    with serving(tmp_path, "none") as server:
        assert infer(server, "sums", [1.0, 2.0, 3.0], "x")[1]["y"] == [2.0, 4.0, 6.0]


def test_a_sample_that_does_not_fit_its_model_fails(tmp_path):
    add_onnx(tmp_path, "sums", 'platform: "onnxruntime_onnx"' + sample(1, 1, "x", "5"))
    with serving(tmp_path) as server:
        status, error = control(server, "sums", "load")
        assert (status, "failed to run warmup sample 'sample': " in error) == (400, True)


def test_a_model_that_answers_in_parts_runs_its_samples(tmp_path):
    config = "model_transaction_policy { decoupled: true }" + sample()
    add_python(tmp_path, "m", STREAMS, config)
    with serving(tmp_path) as server:
        assert control(server, "m", "load")[0] == 200
