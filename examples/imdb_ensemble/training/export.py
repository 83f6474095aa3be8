"""Write a trained network as ONNX: `words` int64 (batch, 256) -> `prediction` float32 (batch, 2).

Weights are stored as float16 and computed with as float32, which halves the files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper
from tokenizer import PAD_ID, SEQUENCE_LENGTH
from training.networks import LABELS, Parameters

OPSET = 13  # old enough for every onnxruntime of the last years
IR_VERSION = 7


def export_bag_of_words(parameters: Parameters, path: Path) -> None:
    """Write `networks.BagOfWords` with these parameters."""
    constants = {
        "pad": np.array(PAD_ID, np.int64),
        "at_least": np.array(1.0, np.float32),
        "over_words": np.array([1], np.int64),
    }
    nodes = [
        *_embed(),
        helper.make_node("ReduceSum", ["embedded", "over_words"], ["total"], keepdims=0),
        helper.make_node("Equal", ["words", "pad"], ["is_pad"]),
        helper.make_node("Not", ["is_pad"], ["is_word"]),
        helper.make_node("Cast", ["is_word"], ["ones"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["ones", "over_words"], ["count"], keepdims=1),
        helper.make_node("Max", ["count", "at_least"], ["length"]),
        helper.make_node("Sqrt", ["length"], ["root_length"]),
        helper.make_node("Div", ["total", "root_length"], ["features"]),
        *_dense(),
    ]
    _save("bow", nodes, {**_half(parameters), **constants}, path)


def export_convolution(parameters: Parameters, path: Path) -> None:
    """Write `networks.Convolution` with these parameters."""
    embedding, filters = parameters["embedding"], parameters["filters"]
    kernel = filters.reshape(-1, embedding.shape[1], filters.shape[1]).transpose(2, 1, 0)
    nodes = [
        *_embed(),
        helper.make_node("Transpose", ["embedded"], ["channels_first"], perm=[0, 2, 1]),
        _widen("filters"),
        _widen("filters_bias"),
        helper.make_node("Conv", ["channels_first", "filters", "filters_bias"], ["answers"]),
        helper.make_node("Relu", ["answers"], ["positive"]),
        helper.make_node("ReduceMax", ["positive"], ["features"], axes=[2], keepdims=0),
        *_dense(),
    ]
    _save("cnn", nodes, _half({**parameters, "filters": kernel}), path)


def _embed() -> list[NodeProto]:
    """Look the words up first and widen what was found: not the whole table, at each load."""
    return [
        helper.make_node("Gather", ["embedding_half", "words"], ["embedded_half"]),
        helper.make_node("Cast", ["embedded_half"], ["embedded"], to=TensorProto.FLOAT),
    ]


def _dense() -> list[NodeProto]:
    return [
        _widen("dense"),
        _widen("dense_bias"),
        helper.make_node("Gemm", ["features", "dense", "dense_bias"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["prediction"], axis=1),
    ]


def _widen(name: str) -> NodeProto:
    return helper.make_node("Cast", [f"{name}_half"], [name], to=TensorProto.FLOAT)


def _half(parameters: Parameters) -> dict[str, np.ndarray]:
    return {f"{name}_half": value.astype(np.float16) for name, value in parameters.items()}


def _save(name: str, nodes: list[NodeProto], constants: dict[str, np.ndarray], path: Path) -> None:
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("words", TensorProto.INT64, ["batch", SEQUENCE_LENGTH])],
        [helper.make_tensor_value_info("prediction", TensorProto.FLOAT, ["batch", LABELS])],
        [numpy_helper.from_array(value, key) for key, value in constants.items()],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="imdb_ensemble/train.py",
    )
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString(deterministic=True))
