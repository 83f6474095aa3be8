"""A small model as a folder of files, as `python -m pipeline.serve` takes it."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

CONF = """
feed_var { name: "x" alias_name: "the_x" is_lod_tensor: false feed_type: 1 shape: 3 }
fetch_var { name: "y" alias_name: "the_y" is_lod_tensor: false fetch_type: 1 shape: 3 }
fetch_var { name: "z" alias_name: "the_z" is_lod_tensor: false fetch_type: 1 shape: 3 }
"""


def save_model(folder: Path, with_conf: bool = True, kind: int = TensorProto.FLOAT) -> Path:
    """y = x + x and z = x - x, for rows of three numbers."""
    folder.mkdir()
    info = helper.make_tensor_value_info
    shape = ["n", 3]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"]), helper.make_node("Sub", ["x", "x"], ["z"])],
        "toy",
        [info("x", kind, shape)],
        [info("y", kind, shape), info("z", kind, shape)],
    )
    opset = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), folder / "model.onnx")
    if with_conf:
        (folder / "serving_server_conf.prototxt").write_text(CONF)
    return folder


def save_sequence_model(folder: Path) -> Path:
    """OUTPUT = (INPUT + START) * READY and TOTAL_OUT = TOTAL_IN + INPUT; WIDTH: rows of the call.

    As Triton's tests have it for models without an accumulator of their own, and one with a state.
    """
    folder.mkdir()
    info = helper.make_tensor_value_info
    inputs = [info(name, TensorProto.INT32, ["n", 1]) for name in ("INPUT", "START", "READY")]
    inputs.append(info("CORRID", TensorProto.INT64, ["n"]))
    inputs.append(info("TOTAL_IN", TensorProto.INT32, ["n", 1]))
    outputs = [info(name, TensorProto.INT32, ["n", 1]) for name in ("OUTPUT", "TOTAL_OUT")]
    outputs += [info(name, TensorProto.INT64, ["n", 1]) for name in ("WIDTH", "ID", "TOTAL")]
    minus_one = helper.make_tensor("last", TensorProto.INT64, [1], [-1])
    nodes = [
        helper.make_node("Constant", [], ["last"], value=minus_one),
        helper.make_node("Unsqueeze", ["CORRID", "last"], ["ID"]),
        helper.make_node("Add", ["INPUT", "START"], ["marked"]),
        helper.make_node("Mul", ["marked", "READY"], ["OUTPUT"]),
        helper.make_node("Add", ["INPUT", "TOTAL_IN"], ["TOTAL_OUT"]),
        helper.make_node("Cast", ["TOTAL_OUT"], ["TOTAL"], to=TensorProto.INT64),
        helper.make_node("Shape", ["INPUT"], ["shape"]),
        helper.make_node("ReduceMax", ["shape"], ["rows"], keepdims=1),
        helper.make_node("Expand", ["rows", "shape"], ["WIDTH"]),
    ]
    graph = helper.make_graph(nodes, "sequences", inputs, outputs)
    opset = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), folder / "model.onnx")
    return folder
