"""Asked versus got: the session's providers, and where the nodes of the model run."""

from __future__ import annotations

import onnxruntime
import pytest
from onnx_doubles import (
    CUDA,
    FLOAT,
    HOST,
    OPENVINO,
    TENSORRT,
    FakeRuntime,
    FakeSession,
    identity,
)

from pipeline.errors import InitError
from pipeline.predictors.base import Device, DeviceType
from pipeline.predictors.onnx import OnnxModel
from pipeline.predictors.onnx.predictor import load
from pipeline.predictors.onnx.providers import (
    RECORD_PLACEMENT,
    Plan,
    check_session,
    plan_providers,
)

GPU = Device(DeviceType.GPU, 0)


def check(landed, placement, device_type=DeviceType.GPU, card=0, **keys):
    device = Device(device_type, card)
    offered = [TENSORRT, CUDA, OPENVINO, HOST]
    plan = plan_providers(OnnxModel("m.onnx", **keys), device, offered)
    check_session(plan, FakeSession({}, landed, placement, {}))


def test_a_session_on_another_provider_is_refused():
    with pytest.raises(InitError, match=r"could not set up CUDA\w+ and would run on CPU.*device_t"):
        check([HOST], None)
    with pytest.raises(InitError, match=r"could not set up Tensorrt.*or set device_type: 1"):
        check([CUDA, HOST], None, DeviceType.TENSORRT)


@pytest.mark.parametrize("device_type", [DeviceType.GPU, DeviceType.TENSORRT])
def test_a_model_of_which_no_node_runs_where_it_should_is_refused(device_type):
    landed = [TENSORRT, CUDA, HOST]
    with pytest.raises(InitError, match=r"no node of the model runs there: CPU\w+ runs 2 nodes"):
        check(landed, {HOST: ["Conv", "Relu"]}, device_type)


def test_tensorrt_that_leaves_all_to_cuda_is_refused():
    with pytest.raises(InitError, match=r"no node .*CUDA.*or min_subgraph_size is too large"):
        check([TENSORRT, CUDA, HOST], {CUDA: ["Conv"]}, DeviceType.TENSORRT)


def test_openvino_that_leaves_all_to_the_cpu_is_refused():
    with pytest.raises(InitError, match=r"use_mkldnn: True.*no node of the model runs there"):
        check([OPENVINO, HOST], {HOST: ["Unique"]}, DeviceType.CPU, None, use_mkldnn=True)


@pytest.mark.parametrize(
    ("on_cpu", "level"), [(["Shape"], "INFO"), (["Shape", "TopK", "NonZero"], "WARNING")]
)
def test_nodes_on_the_cpu_are_logged_and_half_of_them_is_a_warning(caplog, on_cpu, level):
    caplog.set_level("INFO")
    check([CUDA, HOST], {CUDA: ["Conv", "Conv", "Relu"], HOST: on_cpu})
    (record,) = caplog.records
    assert record.levelname == level
    assert "CUDAExecutionProvider runs 3 nodes (Conv, Relu)" in record.message
    assert f"CPUExecutionProvider runs {len(on_cpu)} node" in record.message
    assert "(Shape" in record.message


def test_of_many_kinds_of_nodes_the_most_frequent_are_named(caplog):
    caplog.set_level("INFO")
    kinds = [f"Rare{number}" for number in range(20)] + ["Conv", "Conv"]
    check([CUDA, HOST], {CUDA: kinds})
    assert "runs 22 nodes (Conv, Rare0, " in caplog.text
    assert ", ...)" in caplog.text


def test_a_model_that_was_computed_when_it_was_loaded_may_run_anywhere():
    check([CUDA, HOST], {})


def test_an_older_onnxruntime_without_placement_is_accepted(caplog):
    check([CUDA, HOST], None)
    assert caplog.text == ""


def test_int8_by_tensorrt_needs_a_quantised_model_or_a_table():
    landed = [TENSORRT, CUDA, HOST]
    with pytest.raises(InitError, match=r"precision: int8 needs.*use_calib: True"):
        check(landed, {TENSORRT: ["Conv"]}, DeviceType.TENSORRT, precision="int8")
    quantised = {TENSORRT: ["DequantizeLinear", "Conv"]}
    check(landed, quantised, DeviceType.TENSORRT, precision="int8")


def test_a_session_for_a_gpu_records_its_placement():
    runtime = FakeRuntime([CUDA, HOST], placement={CUDA: ["Relu"]})
    load(OnnxModel("m.onnx"), GPU, runtime)
    assert runtime.session.options.entries[RECORD_PLACEMENT] == "1"
    with pytest.raises(InitError, match="no node of the model runs there"):
        load(OnnxModel("m.onnx"), GPU, FakeRuntime([CUDA, HOST], placement={HOST: ["Relu"]}))


@pytest.mark.skipif(
    not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"),
    reason="onnxruntime before 1.24 does not tell",
)
def test_the_placement_of_the_real_onnxruntime_is_parsed(tmp_path, caplog):
    model = identity(tmp_path / "m.onnx", FLOAT)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(RECORD_PLACEMENT, "1")
    session = onnxruntime.InferenceSession(str(model.model_path), options, providers=[HOST])
    check_session(Plan("m.onnx", "the CPU", main=HOST), session)
    assert "the CPU: CPUExecutionProvider runs 1 node (Identity)" in caplog.text
