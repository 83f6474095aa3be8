"""Models of a repository with ragged batches: ONNX, with the shapes as inputs, and Python."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from doubles import http
from onnx import TensorProto, helper
from onnx_doubles import save, value_info
from repositories import add_python, serving

CONFIG = """
backend: "onnxruntime"
max_batch_size: 8
input { name: "R" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }
output [ { name: "TWICE" data_type: TYPE_FP32 dims: -1 },
         { name: "SO_FAR" data_type: TYPE_FP32 dims: 1 } ]
batch_input {
  kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ENDS" data_type: TYPE_FP32 source_input: "R" }
batch_output { target_name: "TWICE" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "R" }
"""
# The batch is run when three are there.
OF_THREE = """
dynamic_batching { preferred_batch_size: 3 max_queue_delay_microseconds: 60000000 }
"""
SEES = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        shapes = sorted(list(request.inputs()[0].as_numpy().shape) for request in requests)
        value = np.array([[json.dumps(shapes)]], object)
        one = pb_utils.InferenceResponse([pb_utils.Tensor("SAW", value)])
        return [one for _ in requests]
"""
PYTHON = """
backend: "python"
max_batch_size: 8
input { name: "R" data_type: TYPE_FP32 dims: -1 %s }
output { name: "SAW" data_type: TYPE_STRING dims: 1 }
instance_group { count: 1 kind: KIND_CPU }
"""


def add_ragged(repository, batching):
    folder = repository / "ragged" / "1"
    folder.mkdir(parents=True)
    nodes = [
        helper.make_node("Add", ["R", "R"], ["TWICE"]),
        helper.make_node("Reshape", ["ENDS", "column"], ["SO_FAR"]),
    ]
    kind = TensorProto.FLOAT
    column = helper.make_tensor("column", TensorProto.INT64, [2], [-1, 1])
    inputs = [value_info("R", kind, ["n"]), value_info("ENDS", kind, ["b"])]
    outputs = [value_info("TWICE", kind, ["n"]), value_info("SO_FAR", kind, ["b", 1])]
    save(folder / "model.onnx", nodes, inputs, outputs, [column])
    (folder.parent / "config.pbtxt").write_text(CONFIG + batching)


def ask(server, model, values):
    shape = [1, len(values)]
    sent = {"inputs": [{"name": "R", "datatype": "FP32", "shape": shape, "data": values}]}
    status, _, answer = http(server, "POST", f"/v2/models/{model}/infer", sent)
    assert status == 200, answer
    return {item["name"]: item["data"] for item in answer["outputs"]}


def ask_all(server, model, requests):
    """The answers to requests that are sent side by side."""
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda values: ask(server, model, values), requests))


def executions(server, model):
    return http(server, "GET", f"/v2/models/{model}/stats")[2]["model_stats"][0]["execution_count"]


def test_requests_of_different_shapes_share_an_execution(tmp_path):
    add_ragged(tmp_path, OF_THREE)
    with serving(tmp_path, mode="none") as server:
        requests = [[1.0], [2.0, 3.0], [4.0, 5.0, 6.0]]
        answers = ask_all(server, "ragged", requests)
        for values, answer in zip(requests, answers, strict=True):
            assert answer["TWICE"] == [2 * value for value in values]
        ends = sorted(answer["SO_FAR"][0] for answer in answers)
        assert ends[-1] == 6, "all elements of the batch"
        assert executions(server, "ragged") == 1


def test_a_request_alone_is_a_batch_of_one(tmp_path):
    add_ragged(tmp_path, "")
    with serving(tmp_path, mode="none") as server:
        assert ask(server, "ragged", [1.0, 2.0]) == {"TWICE": [2.0, 4.0], "SO_FAR": [2.0]}


@pytest.mark.parametrize(("ragged", "shared"), [("", False), ("allow_ragged_batch: true", True)])
def test_a_python_model_gets_different_shapes_together_only_if_configured(tmp_path, ragged, shared):
    batching = OF_THREE.replace("60000000", "60000000" if shared else "100000")
    add_python(tmp_path, "sees", SEES)
    (tmp_path / "sees" / "config.pbtxt").write_text(PYTHON % ragged + batching)
    with serving(tmp_path, mode="none") as server:
        requests = [[1.0], [1.0, 2.0], [1.0, 2.0, 3.0]]
        saw = [json.loads(answer["SAW"][0]) for answer in ask_all(server, "sees", requests)]
        together = [[1, 1], [1, 2], [1, 3]]
        assert saw == ([together] * 3 if shared else [[shape] for shape in together])


def test_reshape_works_with_ragged_batches(tmp_path):
    add_ragged(tmp_path, "")
    path = tmp_path / "ragged" / "config.pbtxt"
    text = path.read_text()
    for old, new in (
        ("dims: -1 allow", "dims: [ -1, 1 ] reshape { shape: -1 } allow"),
        ("TYPE_FP32 dims: -1 }", "TYPE_FP32 dims: [ -1, 1 ] reshape { shape: -1 } }"),
    ):
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    with serving(tmp_path, mode="none") as server:
        sent = {"name": "R", "datatype": "FP32", "shape": [1, 2, 1], "data": [1.0, 2.0]}
        status, _, answer = http(server, "POST", "/v2/models/ragged/infer", {"inputs": [sent]})
        assert status == 200, answer
        twice, so_far = answer["outputs"]
        assert (twice["shape"], twice["data"]) == ([1, 2, 1], [2.0, 4.0])
        assert so_far["data"] == [2.0]


def test_sequences_of_different_shapes_share_an_execution(tmp_path):
    add_ragged(
        tmp_path,
        """instance_group { count: 1 kind: KIND_CPU }
           sequence_batching { oldest {
             preferred_batch_size: 3 max_queue_delay_microseconds: 60000000 } }""",
    )

    def first(number):
        data = [float(number)] * number
        sent = {"name": "R", "datatype": "FP32", "shape": [1, number], "data": data}
        reported = {"sequence_id": number, "sequence_start": True, "sequence_end": True}
        body = {"inputs": [sent], "parameters": reported}
        status, _, answer = http(server, "POST", "/v2/models/ragged/infer", body)
        assert status == 200, answer
        return {item["name"]: item["data"] for item in answer["outputs"]}

    with serving(tmp_path, mode="none") as server, ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(first, (1, 2, 3)))
        assert [answer["TWICE"] for answer in answers] == [[2.0], [4.0] * 2, [6.0] * 3]
        assert max(answer["SO_FAR"][0] for answer in answers) == 6, "all elements of the batch"
        assert executions(server, "ragged") == 1
