"""The ways to run a session: bindings are tried on the CPU, which onnxruntime allows."""

from __future__ import annotations

import types

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from doubles import side_by_side
from onnx import TensorProto, helper
from onnx_doubles import FLOAT, FakeSession, build, value_info

from pipeline.errors import InitError
from pipeline.predictors.base import TensorSpec
from pipeline.predictors.onnx.binding import BoundRunner, DeviceMemory, ValueRunner, session_runner
from pipeline.predictors.signature import ModelSignature

HERE = DeviceMemory("cpu", 0)  # the memory that a binding can have on a machine without a card
TEXT, FLOAT32, BFLOAT16 = object, np.float32, ml_dtypes.bfloat16


def session_of(model):
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )


def shifted():
    """y = x + shift and z = x, for rows of two."""
    return session_of(
        build(
            [
                helper.make_node("Add", ["x", "shift"], ["y"]),
                helper.make_node("Identity", ["x"], ["z"]),
            ],
            [value_info("x", FLOAT, ["n", 2]), value_info("shift", FLOAT, [])],
            [value_info("y", FLOAT, ["n", 2]), value_info("z", FLOAT, ["n", 2])],
        )
    )


def rows(count, value=0.0):
    return np.full((count, 2), value, np.float32)


def scalar(value):
    return np.array(value, np.float32)


def test_outputs_have_the_order_of_their_names_at_any_size():
    run = BoundRunner(shifted(), HERE)
    for count in (1, 3, 0, 2):
        z, y = run(["z", "y"], {"x": rows(count, 1), "shift": scalar(2)})
        assert z.tolist() == rows(count, 1).tolist()
        assert y.tolist() == rows(count, 3).tolist()


def test_an_output_may_be_requested_twice():
    first, z, second = BoundRunner(shifted(), HERE)(
        ["y", "z", "y"], {"x": rows(1), "shift": scalar(2)}
    )
    assert first.tolist() == second.tolist() == [[2, 2]]
    assert z.tolist() == [[0, 0]]


def test_arrays_may_be_strided_and_read_only():
    run = BoundRunner(shifted(), HERE)
    x = np.arange(12, dtype=np.float32).reshape(2, 6).T[::2]
    x.flags.writeable = False
    (y,) = run(["y"], {"x": x, "shift": scalar(1)})
    assert y.tolist() == (x + 1).tolist()


def test_results_do_not_change_when_the_model_runs_again():
    run = BoundRunner(shifted(), HERE)
    (first,) = run(["y"], {"x": rows(2, 1), "shift": scalar(0)})
    run(["y"], {"x": rows(2, 5), "shift": scalar(0)})
    assert first.tolist() == rows(2, 1).tolist()
    first += 1  # it is the caller's own


def test_threads_bind_side_by_side():
    run = BoundRunner(shifted(), HERE)
    wrong = []

    def call(number):
        for count in range(50):
            (y,) = run(["y"], {"x": rows(count % 4, number), "shift": scalar(number)})
            if y.tolist() != rows(count % 4, 2 * number).tolist():
                wrong.append((number, y))

    side_by_side(call, 4)
    assert wrong == []


def test_inputs_are_bound_from_the_host_and_outputs_to_the_card():
    session = FakeSession({}, [], None, {"x": "tensor(float)", "shift": "tensor(float)"})
    (x,) = BoundRunner(session, DeviceMemory("cuda", 3))(["x"], {"x": rows(1), "shift": scalar(1)})
    (binding,) = session.bindings
    assert list(binding.inputs) == ["x", "shift"]
    assert binding.inputs["shift"].shape == ()
    assert binding.outputs == [("x", "cuda", 3)]
    assert x.tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("memory", "input_dtype", "output_dtype", "kind"),
    [
        (None, FLOAT32, FLOAT32, None),
        (None, TEXT, TEXT, None),
        (DeviceMemory("cuda", 0), FLOAT32, FLOAT32, BoundRunner),
        (DeviceMemory("cuda", 0), TEXT, FLOAT32, None),
        (DeviceMemory("cuda", 0), FLOAT32, TEXT, None),
        (DeviceMemory("cuda", 0), BFLOAT16, FLOAT32, ValueRunner),
        (None, FLOAT32, BFLOAT16, ValueRunner),
    ],
)
def test_a_gpu_or_an_unusual_dtype_selects_another_runner(memory, input_dtype, output_dtype, kind):
    session = FakeSession({}, [], None, {})
    signature = ModelSignature(
        "toy.onnx",
        [TensorSpec("x", np.dtype(input_dtype), ("n",))],
        [TensorSpec("y", np.dtype(output_dtype), ("n",))],
    )
    run = session_runner(onnxruntime, session, signature, memory)
    assert run == session.run if kind is None else isinstance(run, kind)


def test_an_onnxruntime_that_takes_no_bfloat16_is_refused_at_start():
    runtime = types.SimpleNamespace(OrtValue=object)
    signature = ModelSignature(
        "toy.onnx",
        [TensorSpec("x", np.dtype(BFLOAT16), ("n",))],
        [TensorSpec("y", np.dtype(FLOAT32), ("n",))],
    )
    with pytest.raises(InitError, match=r"toy\.onnx\] this onnxruntime cannot be fed bfloat16"):
        ValueRunner(runtime, FakeSession({}, [], None, {}), signature)


def test_a_scalar_next_to_bfloat16_remains_a_scalar():
    session = session_of(
        build(
            [
                helper.make_node("Cast", ["h"], ["f"], to=FLOAT),
                helper.make_node("Add", ["f", "shift"], ["y"]),
                helper.make_node("Shape", ["shift"], ["rank"]),
            ],
            [value_info("h", TensorProto.BFLOAT16, ["n"]), value_info("shift", FLOAT, [])],
            [value_info("y", FLOAT, ["n"]), value_info("rank", TensorProto.INT64, [0])],
        )
    )
    signature = ModelSignature(
        "toy.onnx",
        [TensorSpec("h", np.dtype(BFLOAT16), ("n",)), TensorSpec("shift", np.dtype(FLOAT32), None)],
        [TensorSpec("y", np.dtype(FLOAT32), ("n",)), TensorSpec("rank", np.dtype(np.int64), (0,))],
    )
    feed = {"h": np.array([1, 2], BFLOAT16), "shift": scalar(1)}
    y, rank = ValueRunner(onnxruntime, session, signature)(["y", "rank"], feed)
    assert (y.tolist(), rank.shape) == ([2, 3], (0,))
