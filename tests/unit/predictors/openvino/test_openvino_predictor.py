"""Models on OpenVINO, where it is installed: onnxruntime's answers, and what is refused."""

from __future__ import annotations

import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_doubles import CPU, FLOAT, identity, save, value_info

from pipeline.errors import ClosedError, InitError, InputError, PredictorError
from pipeline.predictors.base import Device, DeviceType, LocalModel, load_local_predictor
from pipeline.predictors.openvino import OpenVinoModel
from pipeline.predictors.openvino.predictor import _import_runtime, load

needs_openvino = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="openvino is not installed"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "toy.onnx"


@pytest.fixture
def layer(path):
    """y = softmax(x @ weights + 1), z = the largest column, for rows of 16."""
    weights = np.random.default_rng(7).standard_normal((16, 4)).astype(np.float32)
    save(
        path,
        [
            helper.make_node("Gemm", ["x", "weights", "bias"], ["raw"]),
            helper.make_node("Softmax", ["raw"], ["y"], axis=1),
            helper.make_node("ArgMax", ["raw"], ["z"], axis=1, keepdims=0),
        ],
        [value_info("x", FLOAT, ["n", 16])],
        [value_info("y", FLOAT, ["n", 4]), value_info("z", TensorProto.INT64, ["n"])],
        [
            onnx.numpy_helper.from_array(weights, "weights"),
            onnx.numpy_helper.from_array(np.ones(4, np.float32), "bias"),
        ],
    )
    return path


def rows(count):
    return np.random.default_rng(count).standard_normal((count, 16)).astype(np.float32)


def as_ir(path):
    """The model in OpenVINO's form, with its weights beside it."""
    openvino = _import_runtime(path.name)
    converted = path.with_suffix(".xml")
    openvino.save_model(openvino.Core().read_model(path), converted, compress_to_fp16=False)
    return converted


@needs_openvino
@pytest.mark.parametrize("kind", ["onnx", "ir"])
def test_answers_are_onnxruntime_s(layer, kind):
    expected = load_local_predictor(LocalModel(layer, engine="onnx"))
    model = LocalModel(layer, engine="openvino") if kind == "onnx" else LocalModel(as_ir(layer))
    if kind == "ir":
        layer.unlink()
    predictor = load_local_predictor(model)
    assert predictor.platform == "openvino"
    assert (predictor.feed_names, predictor.fetch_names) == (("x",), ("y", "z"))
    for count in (1, 8, 0, 3):
        ours, theirs = (each.predict({"x": rows(count)}) for each in (predictor, expected))
        assert list(ours) == ["y", "z"]
        for name, array in theirs.items():
            assert (ours[name].dtype, ours[name].shape) == (array.dtype, array.shape)
            np.testing.assert_allclose(ours[name], array, rtol=1e-5, atol=1e-6)


@needs_openvino
def test_a_folder_with_an_onnx_file_needs_the_engine_s_name(layer):
    folder = layer.parent
    assert load_local_predictor(LocalModel(folder)).platform == "onnxruntime_onnx"
    assert load_local_predictor(LocalModel(folder, engine="openvino")).platform == "openvino"
    as_ir(layer)
    with pytest.raises(InitError, match="exactly one model file"):
        load_local_predictor(LocalModel(folder, engine="openvino"))


@needs_openvino
def test_weights_that_are_missing_are_named(layer):
    converted = as_ir(layer)
    converted.with_suffix(".bin").unlink()
    layer.unlink()
    with pytest.raises(InitError, match=r"toy\.xml is there, but its weights .* put toy\.bin"):
        load_local_predictor(LocalModel(layer.parent))


@needs_openvino
def test_numbers_beyond_float32_are_refused_and_64_bits_are_warned_of(path, caplog):
    predictor = load(OpenVinoModel(identity(path, TensorProto.DOUBLE).model_path), CPU)
    assert "[toy.onnx] OpenVINO computes 64-bit numbers in 32 bits, without an error: x, y" in (
        caplog.text
    )
    well = np.array([[np.inf, -np.inf], [3e38, -3e38]])
    np.testing.assert_allclose(predictor.predict({"x": well})["y"], well, rtol=1e-6)
    for number in (1e39, -1e39):
        with pytest.raises(InputError, match=r"feed 'x' has numbers beyond 3\.4e\+38"):
            predictor.predict({"x": np.array([[0.0, number]])})
    predictor.predict({"x": np.zeros((0, 2))})


@needs_openvino
def test_calls_at_the_same_time_get_their_own_answers(layer):
    predictor = load(OpenVinoModel(layer, streams=2), CPU)
    feeds = [rows(count) for count in range(1, 9)]
    expected = [predictor.predict({"x": feed}) for feed in feeds]
    with ThreadPoolExecutor(len(feeds)) as threads:
        answers = list(threads.map(lambda feed: predictor.predict({"x": feed}), feeds))
    for ours, answer in zip(expected, answers, strict=True):
        np.testing.assert_array_equal(ours["y"], answer["y"])


@needs_openvino
def test_an_answer_is_the_caller_s_own_and_the_feed_stays(layer):
    predictor = load(OpenVinoModel(layer), CPU)
    feed = rows(2)
    feed.flags.writeable = False
    first = predictor.predict({"x": feed})["y"]
    kept = first.copy()
    predictor.predict({"x": rows(2) + 5})
    np.testing.assert_array_equal(first, kept)
    first[:] = 0
    np.testing.assert_array_equal(feed, rows(2))


@needs_openvino
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (TensorProto.FLOAT16, np.float16),
        (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
        (TensorProto.BOOL, np.bool_),
        (TensorProto.INT8, np.int8),
        (TensorProto.UINT8, np.uint8),
        (TensorProto.INT64, np.int64),
        (TensorProto.UINT64, np.uint64),
    ],
)
def test_each_dtype_comes_back(path, kind, dtype):
    predictor = load(OpenVinoModel(identity(path, kind).model_path), CPU)
    x = np.array([[0, 1], [3, 100]]).astype(dtype)
    answer = predictor.predict({"x": x})["y"]
    assert answer.dtype == dtype
    assert answer.astype(float).tolist() == x.astype(float).tolist()


@needs_openvino
@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (TensorProto.INT64, 2**31),
        (TensorProto.INT64, -(2**31) - 1),
        (TensorProto.UINT64, 2**31),
    ],
)
def test_integers_that_openvino_would_cut_are_refused(path, kind, number):
    predictor = load(OpenVinoModel(identity(path, kind).model_path), CPU)
    dtype = np.int64 if kind == TensorProto.INT64 else np.uint64
    with pytest.raises(InputError, match=r"\[toy\.onnx\] feed 'x' has integers of more than 32"):
        predictor.predict({"x": np.array([[number, 0]], dtype)})


@needs_openvino
@pytest.mark.parametrize("kind", [TensorProto.STRING, TensorProto.FLOAT8E4M3FN])
def test_text_and_floats_of_8_bits_are_refused_at_the_start(path, kind):
    with pytest.raises(InitError, match=r"\[toy\.onnx\] 'x' is (string|f8e4m3), which engine: op"):
        load(OpenVinoModel(identity(path, kind).model_path), CPU)


@needs_openvino
def test_a_missing_input_is_refused_and_not_that_of_the_last_call(layer):
    predictor = load(OpenVinoModel(layer), CPU)
    predictor.predict({"x": rows(1)})
    with pytest.raises(InputError, match="invalid arg list"):
        predictor.predict({})


@needs_openvino
def test_a_model_that_fails_is_an_error_in_one_line_and_the_next_run_works(path):
    save(
        path,
        [helper.make_node("Add", ["a", "b"], ["y"])],
        [value_info("a", FLOAT, ["n", "m"]), value_info("b", FLOAT, ["n", "m"])],
        [value_info("y", FLOAT, ["n", "m"])],
    )
    predictor = load(OpenVinoModel(path), CPU)
    a = np.ones((2, 3), np.float32)
    with pytest.raises(PredictorError, match=r"\[toy\.onnx\] the model failed: ") as caught:
        predictor.predict({"a": a, "b": np.ones((4, 5), np.float32)})
    assert "\n" not in str(caught.value)
    assert ".cpp:" not in str(caught.value)
    assert predictor.predict({"a": a, "b": a})["y"].tolist() == (a + a).tolist()


@needs_openvino
def test_an_operator_that_openvino_lacks_is_named(path):
    save(
        path,
        [helper.make_node("Nope", ["x"], ["y"], domain="a.b")],
        [value_info("x", FLOAT, ["n"])],
        [value_info("y", FLOAT, ["n"])],
    )
    with pytest.raises(InitError, match=r"cannot load .*toy\.onnx: .*a\.b\.Nope"):
        load(OpenVinoModel(path), CPU)


@needs_openvino
def test_a_closed_predictor_raises(layer):
    predictor = load(OpenVinoModel(layer), CPU)
    predictor.close()
    with pytest.raises(ClosedError):
        predictor.predict({"x": rows(1)})


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_a_precision_of_cards_is_refused(layer, precision):
    with pytest.raises(InitError, match=f"precision: {precision} is not supported by OpenVINO"):
        load(OpenVinoModel(layer, precision=precision), CPU)


def test_a_card_is_refused(layer):
    with pytest.raises(InitError, match="engine: openvino runs on the CPU: set device_type: 0"):
        load(OpenVinoModel(layer), Device(DeviceType.GPU, 0))


def test_without_openvino_the_error_names_the_package(layer, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(InitError, match=r"pip install 'pipeline-serving\[openvino-runtime\]'"):
        load(OpenVinoModel(layer), CPU)
