"""ONNX models of a repository: scalars, outputs of undeclared sizes, arrays without rows."""

from __future__ import annotations

import onnx
import pytest
from doubles import http
from onnx import TensorProto, helper
from onnx_doubles import FLOAT, build, value_info
from repositories import serving

CALLER = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.Tensor("x", pb_utils.get_input_tensor_by_name(request, "x").as_numpy())
        asked = pb_utils.InferenceRequest(
            model_name="sum", requested_output_names=["y"], inputs=[x]
        )
        return asked.exec()
"""
ENSEMBLE = """
platform: "ensemble"
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 2 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ %s ] }
ensemble_scheduling { step [ {
  model_name: "%s" model_version: -1
  input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } ] }
"""
BLS = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 2 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
parameters { key: "workers" value { string_value: "thread" } }
"""
SEQUENCE = """
backend: "onnxruntime"
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 2 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
sequence_batching { }
"""
ASKED = 'backend: "onnxruntime" parameters { key: "takes_empty" value { string_value: "%s" } }'


def add(folder, name, inputs, outputs, *nodes, config=""):
    (folder / name / "1").mkdir(parents=True)
    ends = [[value_info(*item) for item in side] for side in (inputs, outputs)]
    onnx.save(
        build(nodes, *ends, opsets={"": 13}, ir_version=8), folder / name / "1" / "model.onnx"
    )
    if config:
        (folder / name / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    node, row, pairs = helper.make_node, [("x", FLOAT, [3])], [("x", FLOAT, ["n", 2])]
    summed = node("ReduceSum", ["x"], ["y"], keepdims=0)
    add(
        folder,
        "scalar_in",
        [*row, ("s", FLOAT, [])],
        [("y", FLOAT, [3])],
        node("Add", ["x", "s"], ["y"]),
    )
    add(folder, "scalar_out", row, [("y", FLOAT, [])], summed)
    same_scalar = node("Einsum", ["s"], ["y"], equation="->")
    add(folder, "einsum", [("s", FLOAT, [])], [("y", FLOAT, [])], same_scalar)
    labels = node("ArgMax", ["x"], ["y"], axis=1, keepdims=0)
    add(folder, "labels", pairs, [("y", TensorProto.INT64, [1])], labels)
    add(folder, "sum", pairs, [("y", FLOAT, [])], summed)
    add(folder, "asked", pairs, [("y", FLOAT, [])], summed, config=ASKED % "true")
    add(folder, "sequence", pairs, [("y", FLOAT, [])], summed, config=SEQUENCE)
    copy = node("Identity", ["x"], ["y"])
    same = 'max_batch_size: 0 input { name: "x" data_type: TYPE_FP32 dims: [ -1, 2 ] }'
    add(folder, "same", pairs, [("y", FLOAT, ["n", 2])], copy, config=same)
    add(folder, "batched", pairs, [("y", FLOAT, ["n", 2])], copy)
    for name, dims, of in (("of_same", "-1, 2", "same"), ("of_sum", "1", "sum")):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(ENSEMBLE % (dims, of))
    (folder / "caller" / "1").mkdir(parents=True)
    (folder / "caller" / "1" / "model.py").write_text(CALLER)
    (folder / "caller" / "config.pbtxt").write_text(BLS)
    with serving(folder, mode="none") as server:
        yield server


def ask(server, model, parameters=None, **inputs):
    sent = [
        {"name": name, "datatype": "FP32", "shape": shape, "data": data}
        for name, (shape, data) in inputs.items()
    ]
    body = {"inputs": sent, "parameters": parameters or {}}
    status, _, answer = http(server, "POST", f"/v2/models/{model}/infer", body)
    if status != 200:
        return status, answer["error"]
    (output,) = answer["outputs"]
    return output["shape"], output["data"]


def test_scalars_are_dims_of_one(server):
    x = ([3], [1, 2, 3])
    assert ask(server, "scalar_in", x=x, s=([1], [5])) == ([3], [6, 7, 8])
    assert ask(server, "scalar_out", x=x) == ([1], [6])
    assert ask(server, "einsum", s=([1], [5])) == ([1], [5])
    _, _, config = http(server, "GET", "/v2/models/scalar_in/config")
    assert [item["dims"] for item in config["input"]] == [[3], [1]]


@pytest.mark.parametrize(("rows", "labels"), [([0, 1], [1]), ([0, 1, 1, 0, 0, 1], [1, 0, 1])])
def test_an_output_has_the_shape_that_the_model_gives_it(server, rows, labels):
    shape = [len(rows) // 2, 2]
    assert ask(server, "labels", x=(shape, rows)) == ([len(labels)], labels)


NOTHING = ([0, 2], [])


def test_an_empty_input_is_answered_without_the_model_if_the_shapes_allow_it(server):
    assert ask(server, "same", x=NOTHING) == ([0, 2], [])
    assert ask(server, "of_same", x=NOTHING) == ([0, 2], [])


@pytest.mark.parametrize(
    ("model", "parameters", "status", "text"),
    [
        ("batched", {}, 400, "batch-size must be >= 1"),
        ("sum", {}, 400, "takes_empty: true"),
        ("of_sum", {}, 400, "takes_empty: true"),
        ("caller", {}, None, "takes_empty: true"),
        ("sequence", {"sequence_id": 7, "sequence_start": True}, 400, "takes_empty: true"),
    ],
)
def test_an_empty_input_is_refused_otherwise(server, model, parameters, status, text):
    came, error = ask(server, model, parameters, x=NOTHING)
    assert came == (status or came)
    assert came >= 400
    assert text in error


def test_a_model_that_takes_empty_inputs_receives_them(server):
    assert ask(server, "asked", x=NOTHING) == ([1], [0])
