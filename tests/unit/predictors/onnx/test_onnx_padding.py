"""Batches that are filled up, so that a card always sees one shape."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper
from onnx_doubles import FLOAT, build, value_info

from pipeline.predictors.base import Device, DeviceType, TensorSpec
from pipeline.predictors.onnx import OnnxModel
from pipeline.predictors.onnx.predictor import PaddedRunner, load
from pipeline.predictors.signature import ModelSignature

F32 = np.dtype(np.float32)


def padded(ran, inputs, outputs, rows=4):
    """A runner that notes what its model is fed, and answers each output's own rows."""

    def run(names, arrays):
        ran.append({name: array.shape for name, array in arrays.items()})
        return [arrays[inputs[0].name] for _ in names]

    return PaddedRunner(run, ModelSignature("m", inputs, outputs), rows)


def test_runs_have_one_size_and_answers_the_rows_that_were_fed():
    ran = []
    run = padded(ran, [TensorSpec("x", F32, ("n", 2))], [TensorSpec("y", F32, (None, 2))])
    for count in (1, 3, 4, 5, 8, 0):
        x = np.arange(count * 2, dtype=np.float32).reshape(count, 2)
        (y,) = run(["y"], {"x": x})
        assert y.tolist() == x.tolist()
    assert [fed["x"][0] for fed in ran] == [4, 4, 4, 8, 8, 0]


def test_tensors_without_a_batch_are_not_padded():
    ran = []
    inputs = [TensorSpec("x", F32, ("n",)), TensorSpec("scale", F32, (3,))]
    run = padded(ran, inputs, [TensorSpec("y", F32, (4,))])
    (y,) = run(["y"], {"x": np.ones(3, np.float32), "scale": np.ones(3, np.float32)})
    assert ran == [{"x": (4,), "scale": (3,)}]
    assert len(y) == 4  # it is fixed: no row of a batch


def test_inputs_of_several_sizes_are_fed_unchanged():
    ran = []
    inputs = [TensorSpec("x", F32, ("n",)), TensorSpec("boxes", F32, ("m",))]
    run = padded(ran, inputs, [TensorSpec("y", F32, ("n",))])
    run(["y"], {"x": np.ones(3, np.float32), "boxes": np.ones(2, np.float32)})
    assert ran == [{"x": (3,), "boxes": (2,)}]


def test_text_is_filled_up_with_empty_texts():
    fed = []

    def run(names, arrays):
        fed.append(arrays["t"].tolist())
        return [arrays["t"]]

    text = np.dtype(object)
    specs = [TensorSpec("t", text, ("n",))], [TensorSpec("u", text, ("n",))]
    runner = PaddedRunner(run, ModelSignature("m", *specs), 2)
    (u,) = runner(["u"], {"t": np.array(["a"], object)})
    assert (fed, u.tolist()) == ([["a", ""]], ["a"])


def test_a_loaded_model_answers_as_without_it(tmp_path):
    path = tmp_path / "sum.onnx"
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    model = build(nodes, [value_info("x", FLOAT, ["n", 2])], [value_info("y", FLOAT, ["n", 2])])
    onnx.save(model, str(path))
    predictor = load(OnnxModel(path, pad_rows=8), Device(DeviceType.CPU))
    x = np.ones((3, 2), np.float32)
    assert predictor.predict({"x": x})["y"].tolist() == (x + x).tolist()
