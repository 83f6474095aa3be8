"""A classifier of JPEGs for several servers: decode, resize, a small ONNX model."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

SIDE, CLASSES = 64, 10
_CHANNELS = (3, 16, 32)


def decoded(jpeg: bytes) -> npt.NDArray[np.float32]:
    """Return a picture, decoded at half its size, as the model takes it: float32 (1, 3, 64, 64)."""
    image = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_REDUCED_COLOR_2)
    small = cv2.resize(image, (SIDE, SIDE))
    return np.ascontiguousarray(small.transpose(2, 0, 1)[np.newaxis], np.float32) / 255


def best(scores: npt.NDArray[Any]) -> dict[str, Any]:
    """Return the answer for one picture's scores."""
    label = int(scores.argmax())
    return {"label": label, "score": round(float(scores[label]), 4)}


class Model:
    """The model in a session of one thread: a server's threads or processes fill the cores."""

    def __init__(self, path: Path) -> None:
        cv2.setNumThreads(1)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(path, options)

    def run(self, images: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        """Return the scores of a batch of pictures."""
        (scores,) = self._session.run(None, {"x": images})
        result: npt.NDArray[Any] = scores
        return result


def picture() -> bytes:
    """Return a JPEG of 224 x 224 pixels, 12 KB: a smooth scene with grain."""
    across, down = np.meshgrid(np.linspace(0, 6, 224), np.linspace(0, 4, 224))
    scene = np.stack([np.sin(across), np.cos(down), np.sin(across * down)], -1) * 100 + 128
    grain = np.random.default_rng(0).normal(0, 2, scene.shape)
    jpeg = cv2.imencode(".jpg", np.clip(scene + grain, 0, 255).astype(np.uint8))[1]
    content: bytes = jpeg.tobytes()
    return content


def write_model(path: Path) -> None:
    """Write the model: two convolutions with stride, the mean of each channel, softmax."""
    random = np.random.default_rng(0)
    nodes, weights, before = [], [], "x"
    for number, (inputs, outputs) in enumerate(itertools.pairwise(_CHANNELS)):
        kernel = random.standard_normal((outputs, inputs, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"w{number}"))
        shape = {"strides": [2, 2], "pads": [1, 1, 1, 1]}
        nodes.append(helper.make_node("Conv", [before, f"w{number}"], [f"c{number}"], **shape))
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"r{number}"]))
        before = f"r{number}"
    last = random.standard_normal((_CHANNELS[-1], CLASSES)).astype(np.float32) / 8
    weights.append(numpy_helper.from_array(last, "last"))
    nodes.append(helper.make_node("GlobalAveragePool", [before], ["mean"]))
    nodes.append(helper.make_node("Flatten", ["mean"], ["flat"]))
    nodes.append(helper.make_node("MatMul", ["flat", "last"], ["logits"]))
    nodes.append(helper.make_node("Softmax", ["logits"], ["scores"]))
    sides = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, SIDE, SIDE]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", CLASSES]),
    ]
    graph = helper.make_graph(nodes, "pictures", sides[:1], sides[1:], weights)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
