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
