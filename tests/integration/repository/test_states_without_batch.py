"""Implicit state of models that do not batch, and where the files of initial states are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from doubles import http
from onnx import TensorProto, helper
from repositories import serving

CONFIG = """
platform: "onnxruntime_onnx"
max_batch_size: %d
input { name: "INPUT" data_type: %s dims: [1] }
output { name: "OUTPUT" data_type: %s dims: [-1] }
sequence_batching { state {
  input_name: "INPUT_STATE" output_name: "OUTPUT_STATE" data_type: %s dims: [-1] %s } }
"""
ADDS = [("Add", ["INPUT", "INPUT_STATE"], ["OUTPUT_STATE"])]
GROWS = [("Concat", ["INPUT_STATE", "INPUT"], ["OUTPUT_STATE"], {"axis": 0})]
REMEMBERS = [("Identity", ["INPUT"], ["OUTPUT_STATE"])]
FROM_FILE = "initial_state { data_type: TYPE_INT32 dims: [1] data_file: 'first' name: 'first' }"
ZERO = "initial_state { data_type: TYPE_INT32 dims: [1] zero_data: true name: 'zero' }"
MODELS = {
    "default": (ADDS, "INT32", "OUTPUT_STATE", "", [3, 4], [[3], [7]]),
    "zero": (ADDS, "INT32", "OUTPUT_STATE", ZERO, [3, 4], [[3], [7]]),
    "file": (ADDS, "INT32", "OUTPUT_STATE", FROM_FILE, [3, 4], [[73], [77]]),
    "beside": (ADDS, "INT32", "OUTPUT_STATE", FROM_FILE, [3, 4], [[73], [77]]),
    "grows": (GROWS, "INT32", "OUTPUT_STATE", "", [3, 4], [[0, 3], [0, 3, 4]]),
    "text": (REMEMBERS, "STRING", "INPUT_STATE", "", ["a", "b", "c"], [[""], ["a"], ["b"]]),
    "batches": (ADDS, "INT32", "OUTPUT_STATE", FROM_FILE, [3, 4], [[73], [77]]),
}
PLACES = {"file": "initial_state", "beside": "1/initial_state", "batches": "initial_state"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("states")
    for name, (nodes, kind, shown, more, _, _) in MODELS.items():
        folder, most = repository / name, 4 * (name == "batches")
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(CONFIG % (most, *[f"TYPE_{kind}"] * 3, more))
        shape = [None, None] if most else [None]
        onnx.save(
            stateful(nodes, getattr(TensorProto, kind), shown, shape), folder / "1/model.onnx"
        )
        if name in PLACES:
            (folder / PLACES[name]).mkdir()
            (folder / PLACES[name] / "first").write_bytes(np.array([70], np.int32).tobytes())
    with serving(repository, mode="none") as running:
        yield running


def stateful(nodes, kind, shown, shape):
    """A model with a state, of which OUTPUT shows what it was or becomes."""
    made = [helper.make_node(op, given, made, **dict(*more)) for op, given, made, *more in nodes]
    made.append(helper.make_node("Identity", [shown], ["OUTPUT"]))
    ends = [
        [helper.make_tensor_value_info(name, kind, shape) for name in names]
        for names in (("INPUT", "INPUT_STATE"), ("OUTPUT", "OUTPUT_STATE"))
    ]
    graph = helper.make_graph(made, "stateful", *ends)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    return model


@pytest.mark.parametrize("name", MODELS)
def test_a_state_is_passed_from_step_to_step(server, name):
    _, kind, _, _, values, expected = MODELS[name]
    shape, messages = [1, 1] if name == "batches" else [1], []
    for place, value in enumerate(values):
        flags = {"sequence_start": place == 0, "sequence_end": place == len(values) - 1}
        datatype = "BYTES" if kind == "STRING" else kind
        x = {"name": "INPUT", "datatype": datatype, "shape": shape, "data": [value]}
        sent = {"inputs": [x], "parameters": {"sequence_id": 7, **flags}}
        status, _, answer = http(server, "POST", f"/v2/models/{name}/infer", sent)
        assert status == 200, answer
        messages.append(answer["outputs"][0]["data"])
    assert messages == expected
