"""ONNX models that the checks make for themselves: their weights are drawn, by a fixed seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

RESNET_50 = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Its stages: width, and blocks."""
TINY = ((8, 1), (16, 1))
"""The same for a rehearsal."""

_CLASSES = 1000
_GROWTH = 4  # from a block's width to its output
_OPSET = 17


class Network:
    """An ONNX graph that grows layer by layer."""

    def __init__(self, seed: int = 50) -> None:
        from onnx import helper, numpy_helper

        self._helper: Any = helper
        self._as_tensor: Any = numpy_helper.from_array
        self._random = np.random.default_rng(seed)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        name = f"{kind.lower()}{len(self._nodes)}"
        self._nodes.append(self._helper.make_node(kind, [*inputs], [name], **attributes))
        return name

    def weight(self, values: np.ndarray) -> str:
        """Add a constant; return its name."""
        name = f"w{len(self._weights)}"
        self._weights.append(self._as_tensor(values, name))
        return name

    def drawn(self, *shape: int) -> str:
        """Add weights whose outputs are about as large as their inputs."""
        fan_in = int(np.prod(shape[1:]))
        values = self._random.standard_normal(shape, np.float32) * np.sqrt(2 / fan_in)
        return self.weight(values.astype(np.float32))

    def convolution(self, data: str, ins: int, outs: int, size: int, stride: int = 1) -> str:
        """Add a convolution with a bias, which keeps the picture's size but for its stride."""
        pads = [size // 2] * 4
        bias = self.weight(np.zeros(outs, np.float32))
        kernel = self.drawn(outs, ins, size, size)
        return self.node("Conv", data, kernel, bias, strides=[stride] * 2, pads=pads)

    def save(self, path: Path, ins: list[Any], outs: list[Any]) -> None:
        """Write the model."""
        import onnx

        graph = self._helper.make_graph(self._nodes, "network", ins, outs, self._weights)
        opset = [self._helper.make_opsetid("", _OPSET)]
        model = self._helper.make_model(graph, opset_imports=opset, ir_version=8)
        onnx.save(model, str(path))


def write_small(path: Path) -> None:
    """Write two layers: pictures "x" (n, 3, 8, 8) to "y" (n, 5)."""
    from onnx import TensorProto
    from onnx.helper import make_tensor_value_info as value

    net = Network()
    hidden = net.node("Relu", net.convolution("x", 3, 4, 3))
    flat = net.node("Flatten", hidden)
    y = net.node("Gemm", flat, net.drawn(5, 4 * 64), transB=1)
    net.save(
        path,
        [value("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [value(y, TensorProto.FLOAT, ["n", 5])],
    )


def write_resnet(path: Path, stages: Sequence[tuple[int, int]] = RESNET_50) -> None:
    """Write a ResNet on uint8 pictures "image" (n, h, w, 3): normalised there, 1000 scores."""
    from onnx import TensorProto
    from onnx.helper import make_tensor_value_info as value

    net = Network()
    data = net.node("Cast", "image", to=TensorProto.FLOAT)
    data = net.node("Transpose", data, perm=[0, 3, 1, 2])
    data = net.node("Sub", data, net.weight(np.full((1, 3, 1, 1), 117.0, np.float32)))
    data = net.node("Div", data, net.weight(np.full((1, 3, 1, 1), 58.0, np.float32)))
    data = net.node("Relu", net.convolution(data, 3, 64, 7, 2))
    data = net.node("MaxPool", data, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    ins = 64
    for stage, (width, blocks) in enumerate(stages):
        for block in range(blocks):
            data = _bottleneck(net, data, ins, width, 2 if stage and not block else 1)
            ins = width * _GROWTH
    data = net.node("Flatten", net.node("GlobalAveragePool", data))
    scores = net.node("Gemm", data, net.drawn(_CLASSES, ins), transB=1)
    net.save(
        path,
        [value("image", TensorProto.UINT8, ["n", "h", "w", 3])],
        [value(scores, TensorProto.FLOAT, ["n", _CLASSES])],
    )


def _bottleneck(net: Network, data: str, ins: int, width: int, stride: int) -> str:
    """Add three convolutions and the way past them."""
    outs = width * _GROWTH
    inner = net.node("Relu", net.convolution(data, ins, width, 1))
    inner = net.node("Relu", net.convolution(inner, width, width, 3, stride))
    inner = net.convolution(inner, width, outs, 1)
    past = data if ins == outs and stride == 1 else net.convolution(data, ins, outs, 1, stride)
    half = net.weight(np.float32(0.5))  # without batch normalisation the sums would grow
    return net.node("Relu", net.node("Mul", net.node("Add", inner, past), half))
