"""Which calls the keys of local_service_conf become, and what is refused before any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from paddle_double import FakePaddle

from pipeline.errors import InitError
from pipeline.predictors.base import Device, DeviceType
from pipeline.predictors.paddle import PaddleModel
from pipeline.predictors.paddle.config import (
    check_device,
    check_quantized,
    configure,
    require_avx512,
)
from pipeline.predictors.paddle.program import ModelFiles, Program

CPU = Device(DeviceType.CPU)
GPU = Device(DeviceType.GPU, 1)
TENSORRT = Device(DeviceType.TENSORRT, 1)
XPU = Device(DeviceType.KUNLUN_XPU, 1)
ASCEND = Device(DeviceType.ASCEND910, 1)

OLD = ModelFiles(Path("m/a.pdmodel"), Path("m/a.pdiparams"))
NEW = ModelFiles(Path("m/a.json"), Path("m/a.pdiparams"))


def model(**keys):
    return PaddleModel("m/a", **{"ir_optim": None, "use_mkldnn": None} | keys)


def config_of(device=CPU, files=OLD, paddle=None, names=None, **keys):
    paddle = paddle or FakePaddle(cuda=2, xpu=2, npu=2, tensorrt=(8, 6, 1))
    check_device(paddle, "a", model(**keys), device)
    return configure(paddle.inference, files, model(**keys), device, names or {})


def names_of(config):
    return {call[0] for call in config.calls}


def refusal(device, paddle, **keys):
    with pytest.raises(InitError) as caught:
        config_of(device, paddle=paddle, **keys)
    return str(caught.value)


def test_on_the_cpu_paddle_has_its_defaults():
    config = config_of(thread_num=5)
    assert config.files == ("m/a.pdmodel", "m/a.pdiparams")
    assert config.calls == [
        ("disable_glog_info",),
        ("enable_memory_optim",),
        ("disable_gpu",),
        ("set_cpu_math_library_num_threads", 5),
    ]


def test_weights_in_a_file_each_are_named_by_their_folder():
    assert config_of(files=ModelFiles(Path("m/__model__"), None)).files == ("m",)


def test_new_programs_get_the_new_executor_which_their_optimisations_need():
    config = config_of(files=NEW)
    assert config.called("enable_new_ir") == (True,)
    assert config.called("enable_new_executor") == (True,)
    assert not names_of(config_of(files=OLD)) & {"enable_new_ir", "enable_new_executor"}


@pytest.mark.parametrize("wanted", [False, True])
def test_the_switches_are_heeded(wanted):
    config = config_of(ir_optim=wanted, use_mkldnn=wanted, mem_optim=wanted)
    assert config.called("switch_ir_optim") == (wanted,)
    assert ("enable_onednn" in names_of(config)) is wanted
    assert ("disable_onednn" in names_of(config)) is not wanted
    assert ("enable_memory_optim" in names_of(config)) is wanted


def test_the_lists_of_onednn_and_of_its_bf16_are_two():
    config = config_of(
        precision="bf16" if has_avx512() else "fp32",
        mkldnn_cache_capacity=3,
        mkldnn_op_list=["conv2d"],
        mkldnn_bf16_op_list=["fc", "mul"],
    )
    assert config.called("set_onednn_cache_capacity") == (3,)
    assert config.called("set_onednn_op") == ({"conv2d"},)
    if has_avx512():
        assert config.called("enable_onednn_bfloat16") == ()
        assert config.called("set_bfloat16_op") == ({"fc", "mul"},)


def has_avx512():
    return "avx512bw" in Path("/proc/cpuinfo").read_text().split()


def test_int8_on_the_cpu_is_for_quantized_models():
    check_quantized("a", model(precision="int8"), CPU, Program({}, {}, is_quantized=True))
    check_quantized("a", model(precision="int8"), TENSORRT, Program({}, {}))
    check_quantized("a", model(), CPU, Program({}, {}))
    with pytest.raises(InitError, match="exported quantized"):
        check_quantized("a", model(precision="int8"), CPU, Program({}, {}))


@pytest.mark.parametrize("flags", ["flags : sse4_2 avx2", None])
def test_bf16_is_refused_where_paddle_would_silently_run_in_fp32(tmp_path, flags):
    if flags:
        (tmp_path / "cpuinfo").write_text(flags)
    with pytest.raises(InitError, match="needs a processor with AVX-512"):
        require_avx512("a", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text("flags : avx512f avx512bw")
    require_avx512("a", tmp_path / "cpuinfo")


def test_int8_on_the_cpu_is_onednn_s():
    assert {"enable_onednn", "enable_onednn_int8"} <= names_of(config_of(precision="int8"))


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ({"precision": "fp16"}, "fp16 needs a card"),
        ({"precision": "fp8"}, "'fp8' is not one of fp32, fp16, bf16, int8"),
        ({"precision": "bf16", "use_mkldnn": False}, "set use_mkldnn: True"),
        ({"precision": "int8", "ir_optim": False}, "needs ir_optim: True"),
    ],
)
def test_a_precision_that_the_cpu_has_not_is_refused(keys, wanted):
    assert wanted in refusal(CPU, FakePaddle(), **keys)


def test_a_build_without_onednn_is_refused_if_it_is_configured():
    assert "built without oneDNN" in refusal(CPU, FakePaddle(heeds=False), use_mkldnn=True)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_gpu_is_selected_by_its_number_and_precision(precision):
    config = config_of(GPU, precision=precision)
    assert config.called("enable_use_gpu") == (100, 1, precision)
    assert "set_cpu_math_library_num_threads" not in names_of(config)
    assert "enable_tensorrt_engine" not in names_of(config)


def test_a_gpu_that_paddle_does_not_take_is_never_the_cpu():
    text = refusal(GPU, FakePaddle(cuda=2, heeds=False))
    assert "GPU 1 was asked for" in text
    assert "without heeding it" in text


@pytest.mark.parametrize(
    ("device", "build", "wanted"),
    [
        (GPU, {}, "the CPU build: install paddlepaddle-gpu"),
        (GPU, {"cuda": 0}, "GPU 1 was asked for, but Paddle sees none"),
        (GPU, {"cuda": 1}, "Paddle sees only 1, numbered from 0"),
        (TENSORRT, {}, "the CPU build"),
        (TENSORRT, {"cuda": 2}, "built without TensorRT"),
        (
            TENSORRT,
            {"cuda": 2, "tensorrt": (8, 6, 1), "library": False},
            "8.6.1 cannot be",
        ),
        (XPU, {}, "install paddlepaddle-xpu"),
        (XPU, {"xpu": 1}, "XPU 1 was asked for"),
        (XPU, {"xpu": 2, "heeds": False}, "KUNLUN_XPU 1 was asked for"),
        (ASCEND, {}, "paddle-custom-npu"),
        (ASCEND, {"npu": 1}, "NPU 1 was asked for"),
    ],
)
def test_a_feature_missing_in_the_build_or_the_machine_is_named(device, build, wanted):
    text = refusal(device, FakePaddle(**build))
    assert wanted in text
    assert "\n" not in text


def test_tensorrt_gets_precision_subgraphs_and_shapes_with_the_models_names():
    config = config_of(
        TENSORRT,
        names={"image": "x"},
        ir_optim=True,
        precision="int8",
        use_calib=True,
        min_subgraph_size=7,
        dynamic_shapes={
            "min_input_shape": {"image": [1, 3], "tmp": (1,)},
            "max_input_shape": {"image": [9, 3], "tmp": (9,)},
            "opt_input_shape": {"image": [4, 3], "tmp": (4,)},
        },
    )
    assert config.called("enable_use_gpu") == (100, 1, "fp32")
    assert dict(config.called("enable_tensorrt_engine")) == {
        "workspace_size": 1 << 30,
        "max_batch_size": 32,
        "min_subgraph_size": 7,
        "precision_mode": "int8",
        "use_static": False,
        "use_calib_mode": True,
    }
    assert config.called("set_trt_dynamic_shape_info") == (
        {"x": [1, 3], "tmp": [1]},
        {"x": [9, 3], "tmp": [9]},
        {"x": [4, 3], "tmp": [4]},
    )


@pytest.mark.parametrize(
    "shapes",
    [
        {"min_input_shape": {"x": [1]}},
        {
            "min_input_shape": {"x": [1]},
            "max_input_shape": {"x": [2]},
            "opt_input_shape": {"y": [1]},
        },
    ],
)
def test_dynamic_shapes_that_lack_some_are_refused(shapes):
    paddle = FakePaddle(cuda=2, tensorrt=(8, 6, 1))
    assert "set_dynamic_shape_info" in refusal(TENSORRT, paddle, dynamic_shapes=shapes)


def test_tensorrt_without_the_optimisation_that_it_is_part_of_is_refused():
    paddle = FakePaddle(cuda=2, tensorrt=(8, 6, 1))
    assert "needs ir_optim: True" in refusal(TENSORRT, paddle, ir_optim=False)


def test_int8_on_a_card_needs_tensorrt():
    assert "set device_type: 2" in refusal(GPU, FakePaddle(cuda=2), precision="int8")


def test_an_xpu_and_an_ascend_are_selected_by_their_numbers():
    config = config_of(XPU)
    assert config.called("enable_xpu") == ()
    assert config.called("set_xpu_device_id") == (1,)
    assert config_of(ASCEND, precision="fp16").called("enable_custom_device") == ("npu", 1, "fp16")
    assert "set fp32" in refusal(XPU, FakePaddle(xpu=2), precision="fp16")


def test_keys_without_effect_are_named_in_a_warning(caplog):
    config_of(GPU, use_calib=True, use_mkldnn=True, dynamic_shapes={"min_input_shape": {}})
    (record,) = caplog.records
    assert "use_calib, set_dynamic_shape_info, use_mkldnn: without effect on GPU" in record.message
    caplog.clear()
    config_of(replace(GPU, warns=False), use_calib=True)  # the first worker has said it
    config_of(CPU)
    config_of(CPU, use_mkldnn=True, mkldnn_op_list=["conv2d"])
    assert caplog.records == []
