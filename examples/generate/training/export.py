"""Writes one step of the network as ONNX: each request brings its word and its state.

    word int64 (batch,), state float32 (batch, width)
    -> scores float32 (batch, vocabulary), next_state float32 (batch, width)

Weights are stored as float16 and computed with as float32, which halves the file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper
from training.network import Parameters

OPSET = 13  # old enough for every onnxruntime of the last years
IR_VERSION = 7


def export_step(parameters: Parameters, path: Path) -> None:
    """Write `network.lesson`'s step with these parameters."""
    vocabulary, width = parameters["embedding"].shape
    node = helper.make_node
    nodes: list[NodeProto] = [
        *(node("Cast", [f"{name}_half"], [name], to=TensorProto.FLOAT) for name in parameters),
        node("Gather", ["embedding", "word"], ["input"]),
        node("Gemm", ["input", "from_input", "input_bias"], ["by_input"]),
        node("Gemm", ["state", "from_state", "state_bias"], ["by_state"]),
        node("Split", ["by_input", "thirds"], ["input_reset", "input_keep", "new"], axis=1),
        node("Split", ["by_state", "thirds"], ["state_reset", "state_keep", "held"], axis=1),
        node("Add", ["input_reset", "state_reset"], ["resetting"]),
        node("Sigmoid", ["resetting"], ["reset"]),
        node("Add", ["input_keep", "state_keep"], ["keeping"]),
        node("Sigmoid", ["keeping"], ["keep"]),
        node("Mul", ["reset", "held"], ["remembered"]),
        node("Add", ["new", "remembered"], ["mixed"]),
        node("Tanh", ["mixed"], ["fresh"]),
        node("Sub", ["state", "fresh"], ["difference"]),
        node("Mul", ["keep", "difference"], ["kept"]),
        node("Add", ["fresh", "kept"], ["next_state"]),
        node("Gemm", ["next_state", "embedding", "score_bias"], ["scores"], transB=1),
    ]
    constants = [
        *(
            numpy_helper.from_array(v.astype(np.float16), f"{k}_half")
            for k, v in parameters.items()
        ),
        numpy_helper.from_array(np.full(3, width, np.int64), "thirds"),
    ]
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "step",
        [
            helper.make_tensor_value_info("word", TensorProto.INT64, ["batch"]),
            helper.make_tensor_value_info("state", floats, ["batch", width]),
        ],
        [
            helper.make_tensor_value_info("scores", floats, ["batch", vocabulary]),
            helper.make_tensor_value_info("next_state", floats, ["batch", width]),
        ],
        constants,
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="generate/train.py",
    )
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString(deterministic=True))
