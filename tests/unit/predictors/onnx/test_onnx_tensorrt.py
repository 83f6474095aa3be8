"""TensorRT's options by our keys, and the folder that keeps its engines."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx_doubles import CUDA, FLOAT, HOST, TENSORRT, FakeRuntime, build, value_info

from pipeline.errors import InitError
from pipeline.predictors.base import Device, DeviceType
from pipeline.predictors.onnx import OnnxModel
from pipeline.predictors.onnx.predictor import load
from pipeline.predictors.onnx.providers import building, engine_folder, tensorrt_options


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pipeline-serving" / "tensorrt"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "models" / "toy.onnx"
    path.parent.mkdir()
    path.write_bytes(b"a model")
    return path


def shapes(lowest, usual, highest):
    return {"min_input_shape": lowest, "opt_input_shape": usual, "max_input_shape": highest}


def options(**keys):
    return tensorrt_options(OnnxModel("toy.onnx", **keys), 3)


@pytest.mark.parametrize(
    ("precision", "flags"),
    [
        ("fp32", {}),
        ("fp16", {"trt_fp16_enable": 1}),
        ("bf16", {"trt_bf16_enable": 1}),
        ("int8", {"trt_int8_enable": 1}),
    ],
)
def test_a_precision_is_tensorrt_s_flag(precision, flags):
    assert options(precision=precision) == {"device_id": 3, "trt_min_subgraph_size": 3, **flags}


def test_an_unknown_precision_is_refused():
    with pytest.raises(InitError, match=r"toy\.onnx\] precision: fp8 is not one of TensorRT's"):
        options(precision="fp8")


def test_shapes_are_written_in_tensorrt_s_notation():
    given_shapes = shapes(
        {"x": [1, 3, 32, 32], "mask": [1]},
        {"x": [4, 3, 64, 64], "mask": [4]},
        {"x": [8, 3, 96, 96], "mask": [8]},
    )
    chosen = options(dynamic_shapes=given_shapes)
    assert chosen["trt_profile_min_shapes"] == "x:1x3x32x32,mask:1"
    assert chosen["trt_profile_opt_shapes"] == "x:4x3x64x64,mask:4"
    assert chosen["trt_profile_max_shapes"] == "x:8x3x96x96,mask:8"


@pytest.mark.parametrize("none", [{}, shapes({}, {}, {})])
def test_without_shapes_there_is_no_profile(none):
    assert not [name for name in options(dynamic_shapes=none) if "profile" in name]


@pytest.mark.parametrize(
    "bad",
    [
        {"min_input_shape": {"x": [1]}},
        shapes({"x": [1]}, {"x": [2]}, {"y": [3]}),
        shapes({"x": [1]}, {"x": [1, 2]}, {"x": [2]}),
        shapes({"x": [3]}, {"x": [2]}, {"x": [4]}),
        shapes({"x": [1]}, {"x": [5]}, {"x": [4]}),
        shapes({"x": [0]}, {"x": [2]}, {"x": [4]}),
        shapes({"x": []}, {"x": []}, {"x": []}),
    ],
    ids=["no max", "other names", "rank", "min > opt", "opt > max", "zero", "empty"],
)
def test_shapes_that_contradict_each_other_are_refused_at_start(bad):
    with pytest.raises(InitError, match=r"toy\.onnx\] set_dynamic_shape_info: '[xy]' must have"):
        options(dynamic_shapes=bad)


@pytest.mark.parametrize("name", ["input:0", "a,b"])
def test_a_name_that_tensorrt_s_notation_cannot_hold_is_refused(name):
    shape = {name: [1]}
    with pytest.raises(InitError, match="cannot be written in TensorRT's notation"):
        options(dynamic_shapes=shapes(shape, shape, shape))


def read_profile(text):
    """What onnxruntime reads out of a profile."""
    pairs = [part.split(":") for part in text.split(",")]
    return {name: [int(size) for size in shape.split("x")] for name, shape in pairs}


tensor_names = st.text(st.characters(exclude_characters=":,", codec="utf-8"), min_size=1)
tensor_shapes = st.lists(st.integers(1, 2**31), min_size=1, max_size=6)


@given(st.dictionaries(tensor_names, tensor_shapes, min_size=1, max_size=4))
def test_a_profile_has_the_configured_shapes(given_shapes):
    chosen = options(dynamic_shapes=shapes(given_shapes, given_shapes, given_shapes))
    assert read_profile(chosen["trt_profile_opt_shapes"]) == given_shapes


@pytest.mark.parametrize(
    ("table", "is_native"), [("calibration.flatbuffers", 0), ("calibration.cache", 1)]
)
def test_use_calib_reads_the_table_next_to_the_model(path, table, is_native):
    (path.parent / table).touch()
    chosen = tensorrt_options(OnnxModel(path, precision="int8", use_calib=True), 0)
    assert chosen["trt_int8_calibration_table_name"] == str(path.parent / table)
    assert chosen["trt_int8_use_native_calibration_table"] == is_native


def test_use_calib_without_a_table_is_refused(path):
    with pytest.raises(InitError, match=r"use_calib: True needs.*calibration\.flatbuffers"):
        tensorrt_options(OnnxModel(path, precision="int8", use_calib=True), 0)


def test_use_calib_is_for_int8_alone(path):
    chosen = tensorrt_options(OnnxModel(path, precision="fp16", use_calib=True), 0)
    assert not [name for name in chosen if "calibration" in name]


def test_engines_have_a_folder_that_is_the_user_s_alone(path, cache):
    folder = engine_folder(path, {"a": 1}, "1.20")
    assert folder.parent == cache
    assert folder.name.startswith("toy-")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert engine_folder(path, {"a": 1}, "1.20") == folder


def test_without_xdg_the_cache_is_in_the_home_folder(path, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = engine_folder(path, {}, "")
    assert folder.is_relative_to(tmp_path / "home" / ".cache")


def test_another_model_under_the_same_name_has_another_folder(path):
    """onnxruntime would take the old engine, and with it the old weights."""
    before = engine_folder(path, {"a": 1}, "1.20")
    path.write_bytes(b"A model")
    assert engine_folder(path, {"a": 1}, "1.20") != before


@pytest.mark.parametrize(("keys", "version"), [({"a": 2}, "1.20"), ({"a": 1}, "1.21")])
def test_other_options_and_another_onnxruntime_have_another_folder(path, keys, version):
    assert engine_folder(path, keys, version) != engine_folder(path, {"a": 1}, "1.20")


def test_external_weights_belong_to_the_key_of_the_cache(path):
    model = build(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [value_info("x", FLOAT, ["n", 2])],
        [value_info("y", FLOAT, ["n", 2])],
        [numpy_helper.from_array(np.ones((500, 2), np.float32), "w")],
    )
    onnx.save(model, path, save_as_external_data=True, location="w.data", size_threshold=0)
    weights = path.parent / "w.data"
    before = engine_folder(path, {}, "")
    (path.parent / "other.data").write_bytes(b"not of this model")
    assert engine_folder(path, {}, "") == before
    later = weights.stat().st_mtime_ns + 10**9
    os.utime(weights, ns=(later, later))
    assert engine_folder(path, {}, "") != before


def test_engines_that_cannot_be_cached_are_a_warning(path, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert engine_folder(path, {}, "") is None
    assert "toy.onnx] TensorRT's engines cannot be kept" in caplog.text
    assert "XDG_CACHE_HOME" in caplog.text


def is_locked(folder):
    with (folder / "building.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_one_process_builds_at_a_time_and_unlocks_after_a_failure(path):
    folder = engine_folder(path, {}, "")
    with contextlib.suppress(RuntimeError), building(folder):
        assert is_locked(folder)
        raise RuntimeError("a model that does not load")
    assert not is_locked(folder)


def test_without_a_folder_there_is_no_lock():
    with building(None):
        pass


class WatchfulRuntime(FakeRuntime):
    """Notes whether the engines' folder is locked when a session is made, and when it runs."""

    def __init__(self):
        super().__init__([TENSORRT, CUDA, HOST])
        self.locked = []

    def InferenceSession(self, path, options, **made_with):
        session = super().InferenceSession(path, options, **made_with)
        folder = Path(session.providers[0][1]["trt_engine_cache_path"])
        self.locked.append(is_locked(folder))
        session.run_with_iobinding = lambda binding: self.run(binding, folder)
        return session

    def run(self, binding, folder):
        binding.has_run = True
        self.locked.append(is_locked(folder))


def test_a_model_keeps_its_engines_and_builds_them_alone(path, cache):
    runtime = WatchfulRuntime()
    predictor = load(OnnxModel(path, precision="fp16"), Device(DeviceType.TENSORRT, 1), runtime)
    (tensorrt, chosen), (cuda, _), (host, _) = runtime.session.providers
    assert (tensorrt, cuda, host) == (TENSORRT, CUDA, HOST)
    assert chosen["trt_engine_cache_enable"] == 1
    assert Path(chosen["trt_engine_cache_path"]).parent == cache
    predictor.predict({"x": np.ones(1, np.float32)})
    assert runtime.locked == [True, True, False]  # made, warmed up; then requests


def test_a_model_without_cached_engines_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))
    runtime = FakeRuntime([TENSORRT, CUDA, HOST])
    load(OnnxModel(path), Device(DeviceType.TENSORRT, 1), runtime)
    assert "trt_engine_cache_path" not in runtime.session.providers[0][1]
