"""Which providers are asked for, by the keys of `local_service_conf`."""

from __future__ import annotations

import json

import pytest
from onnx_doubles import ARM, ASCEND, CUDA, HOST, ONEDNN, OPENVINO, TENSORRT

from pipeline.errors import InitError
from pipeline.predictors.base import AcceleratedModel, Device, DeviceType
from pipeline.predictors.onnx import providers as onnx_providers
from pipeline.predictors.onnx.providers import has_bfloat16, plan_providers

EVERYTHING = [TENSORRT, CUDA, OPENVINO, ONEDNN, ASCEND, ARM, HOST]


def plan(device_type, card=None, offered=EVERYTHING, **keys):
    return plan_providers(AcceleratedModel("m.onnx", **keys), Device(device_type, card), offered)


def names(a_plan):
    return [name for name, _ in a_plan.providers]


def options(a_plan):
    return a_plan.providers[0][1]


@pytest.mark.parametrize(
    ("device_type", "card", "expected", "main", "memory"),
    [
        (DeviceType.CPU, None, [HOST], None, None),
        (DeviceType.GPU, 2, [CUDA, HOST], CUDA, ("cuda", 2)),
        (DeviceType.TENSORRT, 2, [TENSORRT, CUDA, HOST], TENSORRT, ("cuda", 2)),
        (DeviceType.ARM_CPU, None, [ARM, HOST], None, None),
        (DeviceType.ASCEND310, 2, [ASCEND, HOST], ASCEND, ("cann", 2)),
        (DeviceType.ASCEND910, 2, [ASCEND, HOST], ASCEND, ("cann", 2)),
    ],
)
def test_each_device_has_its_providers_followed_by_the_cpu(
    device_type, card, expected, main, memory
):
    asked = plan(device_type, card)
    assert (names(asked), asked.main, asked.memory) == (expected, main, memory)
    on_card = [chosen["device_id"] for name, chosen in asked.providers if name != HOST and card]
    assert on_card == [2] * len(on_card)
    assert asked.warnings == ()


def test_an_arm_cpu_is_a_cpu_where_the_compute_library_is_not():
    assert names(plan(DeviceType.ARM_CPU, offered=[HOST])) == [HOST]


def test_a_device_unknown_to_onnxruntime_is_refused_with_its_key():
    with pytest.raises(InitError, match=r"device_type: 4 \(KUNLUN_XPU\) is not supported"):
        plan(DeviceType.KUNLUN_XPU, 0)


@pytest.mark.parametrize(
    ("device_type", "offered", "said"),
    [
        (DeviceType.GPU, [HOST], r"devices: GPU 1 .*only CPU.*, not CUDA.*pipeline-serving\[gpu\]"),
        (DeviceType.GPU, [TENSORRT, HOST], "not CUDAExecutionProvider: "),
        (DeviceType.TENSORRT, [CUDA, HOST], "not Tensorrt.*libnvinfer.*or set device_type: 1"),
        (DeviceType.TENSORRT, [TENSORRT, HOST], "not CUDAExecutionProvider: "),
        (DeviceType.ASCEND310, [CUDA, HOST], "Ascend card 1 .*not CANN.*onnxruntime-cann"),
    ],
)
def test_a_build_without_the_provider_is_refused_with_the_package(device_type, offered, said):
    with pytest.raises(InitError, match=said):
        plan(device_type, 1, offered)


@pytest.mark.parametrize("device_type", [DeviceType.CPU, DeviceType.ARM_CPU])
def test_use_mkldnn_asks_for_openvino_on_one_s_own_threads(device_type):
    asked = plan(device_type, use_mkldnn=True, thread_num=3)
    assert names(asked) == [OPENVINO, HOST]
    assert (asked.main, asked.memory) == (OPENVINO, None)
    assert options(asked)["device_type"] == "CPU"
    assert json.loads(options(asked)["load_config"]) == {
        "CPU": {"INFERENCE_NUM_THREADS": 3, "INFERENCE_PRECISION_HINT": "f32"}
    }


def test_use_mkldnn_selects_onednn_without_openvino():
    asked = plan(DeviceType.CPU, offered=[ONEDNN, HOST], use_mkldnn=True, precision="bf16")
    assert asked.providers == ((ONEDNN, {}), (HOST, {}))
    assert asked.main == ONEDNN
    assert "precision: bf16 has no effect" in asked.warnings[0]


def test_use_mkldnn_without_onednn_and_openvino_is_refused_with_advice():
    with pytest.raises(InitError, match=r"use_mkldnn: True.*onnxruntime-openvino.*use_mkldnn: F"):
        plan(DeviceType.CPU, offered=[HOST], use_mkldnn=True)


def test_lists_of_operators_for_onednn_are_warned_about():
    keys = {"mkldnn_cache_capacity": 9, "mkldnn_op_list": ["conv2d"]}
    asked = plan(DeviceType.CPU, use_mkldnn=True, **keys)
    assert [warning.split()[0] for warning in asked.warnings] == list(keys)


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
@pytest.mark.parametrize(("device_type", "card"), [(DeviceType.CPU, None), (DeviceType.GPU, 0)])
def test_a_precision_that_does_not_apply_is_a_warning(device_type, card, precision):
    (warning,) = plan(device_type, card, precision=precision).warnings
    assert f"precision: {precision} has no effect" in warning


@pytest.mark.parametrize(
    ("precision", "processor_has_it", "hint", "is_warned_about"),
    [
        ("bf16", True, "bf16", False),
        ("bf16", False, "f32", True),
        ("fp16", True, "f32", True),
        ("int8", True, "f32", True),
        ("fp32", True, "f32", False),
    ],
)
def test_openvino_gets_only_supported_hints(
    monkeypatch, precision, processor_has_it, hint, is_warned_about
):
    monkeypatch.setattr(onnx_providers, "has_bfloat16", lambda: processor_has_it)
    asked = plan(DeviceType.CPU, use_mkldnn=True, precision=precision)
    given = json.loads(options(asked)["load_config"])["CPU"]["INFERENCE_PRECISION_HINT"]
    assert (given, bool(asked.warnings)) == (hint, is_warned_about)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fpu avx512_bf16 sse", True), ("asimd bf16", True), ("fpu avx512f amx_tile", False)],
)
def test_bfloat16_is_detected_from_the_flags_of_the_processor(tmp_path, flags, expected):
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags\t: {flags}\n")
    assert has_bfloat16(tmp_path / "cpuinfo") is expected
    assert not has_bfloat16(tmp_path / "none")


@pytest.mark.parametrize(
    ("precision", "mode"), [("fp32", "allow_fp32_to_fp16"), ("fp16", "force_fp16")]
)
def test_precision_on_an_ascend_card_is_its_mode(precision, mode):
    asked = plan(DeviceType.ASCEND910, 1, precision=precision)
    assert options(asked) == {"device_id": 1, "precision_mode": mode}
    with pytest.raises(InitError, match=r"precision: int8 is not supported.*use fp32 or fp16"):
        plan(DeviceType.ASCEND910, 1, precision="int8")


def test_a_card_with_tensorrt_has_tensorrt_s_options_first():
    asked = plan(DeviceType.TENSORRT, 0, precision="fp16", min_subgraph_size=7)
    assert options(asked) == {"device_id": 0, "trt_min_subgraph_size": 7, "trt_fp16_enable": 1}
    assert not asked.needs_scales


def test_int8_without_a_table_needs_scales_in_the_model():
    assert plan(DeviceType.TENSORRT, 0, precision="int8").needs_scales


def test_cudnn_does_not_search_again_for_each_batch_size():
    assert options(plan(DeviceType.GPU, 0))["cudnn_conv_algo_search"] == "HEURISTIC"
