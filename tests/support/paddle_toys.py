"""Small Paddle models for the tests: `python paddle_toys.py new|old FOLDER` writes them.

"old" is the format of `.pdmodel` files, which Paddle writes with FLAGS_enable_pir_api=0.

A program of its own, because exporting changes Paddle's modes for the whole process, and because
Paddle reads the networks' source from a real file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import paddle


class Arithmetic(paddle.nn.Layer):
    """sum = a + b and difference = a - b, for rows of three."""

    def __init__(self):
        super().__init__()
        self.zero = paddle.nn.Linear(3, 3)
        self.zero.weight.set_value(paddle.zeros([3, 3]))
        self.zero.bias.set_value(paddle.zeros([3]))

    def forward(self, a, b):
        return a + b + self.zero(a), a - b


class Table(paddle.nn.Layer):
    """Fails at run time when an index is out of range."""

    def __init__(self):
        super().__init__()
        self.rows = paddle.nn.Embedding(3, 1)
        self.rows.weight.set_value(paddle.to_tensor([[10.0], [20.0], [30.0]]))

    def forward(self, index):
        return self.rows(index)


class Convolution(paddle.nn.Layer):
    """Pictures of any size, as models for text detection take them."""

    def __init__(self):
        super().__init__()
        self.layer = paddle.nn.Conv2D(3, 4, 3, padding=1)

    def forward(self, x):
        return paddle.nn.functional.relu(self.layer(x))


class Boxes(paddle.nn.Layer):
    """The boxes of all samples, and how many each sample has."""

    def __init__(self):
        super().__init__()
        self.one = paddle.nn.Linear(1, 1)  # a model without weights has no file of them

    def forward(self, boxes, scores):
        found, counts, *_ = select_boxes(boxes, scores)
        return found * 1.0, counts, self.one(scores[:, :, :1])


def select_boxes(boxes, scores):
    return paddle.vision.ops.matrix_nms(boxes, scores, 0.3, 0.0, 10, 5, background_label=-1)


class PlusOne(paddle.nn.Layer):
    """One type in, the same out."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype
        self.one = paddle.nn.Linear(1, 1)

    def forward(self, x):
        y = self.one(paddle.ones([1, 1], "float32")) * 0 + 1
        return paddle.cast(paddle.cast(x, "float32") + y, self.dtype)


def save(folder, name, network, *inputs):
    network.eval()
    specs = [paddle.static.InputSpec(shape, dtype, each) for each, shape, dtype in inputs]
    paddle.jit.save(network, str(folder / name), input_spec=specs)


def write_new(folder):
    rows = [None, 3]
    save(folder, "arithmetic", Arithmetic(), ("a", rows, "float32"), ("b", rows, "float32"))
    save(folder, "table", Table(), ("index", [None], "int64"))
    save(folder, "convolution", Convolution(), ("x", [None, 3, None, None], "float32"))
    handled = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64", "bool")
    for dtype in (*handled, "int16", "bfloat16"):
        save(folder, dtype, PlusOne(dtype), ("x", [None, 2], dtype))
    boxes = ("boxes", [None, 3, 4], "float32")
    save(folder, "boxes", Boxes(), boxes, ("scores", [None, 2, 3], "float32"))


def write_old(folder):
    """Sums of sequences in a `.pdmodel`, and the same with one file for each weight."""
    paddle.enable_static()
    words = paddle.static.data("words", [None, 2], "float32", lod_level=1)
    sums = paddle.static.nn.sequence_lod.sequence_pool(words, "sum")
    doubled = paddle.scale(words, 2.0)
    ones = paddle.nn.initializer.Constant(1.0)
    total = paddle.static.nn.fc(sums, 1, weight_attr=paddle.ParamAttr("w", initializer=ones))
    boxes = paddle.static.data("boxes", [None, 3, 4], "float32")
    scores = paddle.static.data("scores", [None, 2, 3], "float32")
    found, counts, *_ = select_boxes(boxes, scores)
    weighed = paddle.static.nn.fc(scores, 1, num_flatten_dims=2)
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    outputs = [sums, doubled, total]
    target = str(folder / "inference")
    paddle.static.save_inference_model(target, [words], outputs, executor)
    outputs = [paddle.scale(found, 1.0), counts, weighed]
    target = str(folder / "boxes_old")
    paddle.static.save_inference_model(target, [boxes, scores], outputs, executor)


if __name__ == "__main__":
    {"new": write_new, "old": write_old}[sys.argv[1]](Path(sys.argv[2]))
