"""Makes a `paddle.inference.Config` from the keys of `local_service_conf`.

It first checks for missing features of the installed Paddle: Paddle itself would either silently
continue on the CPU or end the process.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import InitError
from pipeline.predictors.base import Device, DeviceType
from pipeline.predictors.paddle import PaddleModel
from pipeline.predictors.paddle.program import ModelFiles, Program

_LOGGER = logging.getLogger(__name__)

_PRECISIONS = {"fp32": "Float32", "fp16": "Half", "bf16": "Bfloat16", "int8": "Int8"}
_ASCEND = (DeviceType.ASCEND310, DeviceType.ASCEND910)
_ASCEND_PLUGIN = "npu"

_FIRST_GPU_MEMORY_MB = 100  # the pool grows
_TENSORRT_WORKSPACE_BYTES = 1 << 30
_TENSORRT_BATCH = 32
_SHAPE_KEYS = ("min_input_shape", "max_input_shape", "opt_input_shape")


def check_device(paddle: Any, name: str, model: PaddleModel, device: Device) -> None:
    """Check that the installed Paddle supports the device and the model's settings there.

    Raises InitError: the text says what is missing and what to set.
    """
    if device.type in (DeviceType.GPU, DeviceType.TENSORRT):
        _check_gpu(paddle, name, device)
    elif device.type is DeviceType.KUNLUN_XPU:
        _check_xpu(paddle, name, device)
    elif device.type in _ASCEND:
        _check_ascend(paddle, name, device)
    if device.type is DeviceType.TENSORRT:
        _check_tensorrt(paddle, name, model)
    _check_precision(name, model, device)


def _check_gpu(paddle: Any, name: str, device: Device) -> None:
    if not (paddle.is_compiled_with_cuda() or paddle.is_compiled_with_rocm()):
        raise InitError(
            f"[{name}] devices: GPU {device.card} was asked for, but the installed paddlepaddle "
            f"{paddle.__version__} is the CPU build: install paddlepaddle-gpu instead of it, or "
            "set device_type: 0 and devices: ''"
        )
    _check_card(name, "GPU", device, paddle.device.cuda.device_count())


def _check_xpu(paddle: Any, name: str, device: Device) -> None:
    if not paddle.is_compiled_with_xpu():
        raise _missing_build(paddle, name, device, "paddlepaddle-xpu")
    _check_card(name, "XPU", device, paddle.device.xpu.device_count())


def _check_ascend(paddle: Any, name: str, device: Device) -> None:
    if _ASCEND_PLUGIN not in (paddle.device.get_all_custom_device_type() or ()):
        raise _missing_build(paddle, name, device, "the plugin paddle-custom-npu beside it")
    cards = paddle.device.get_available_custom_device() or ()
    _check_card(name, "NPU", device, sum(c.partition(":")[0] == _ASCEND_PLUGIN for c in cards))


def _missing_build(paddle: Any, name: str, device: Device, package: str) -> InitError:
    return InitError(
        f"[{name}] device_type: {device.type.value} ({device.type.name}) was asked for, but the "
        f"installed paddlepaddle {paddle.__version__} cannot use such cards: install {package}, "
        "or set device_type: 0 and devices: ''"
    )


def _check_card(name: str, kind: str, device: Device, count: int) -> None:
    card = -1 if device.card is None else device.card
    if not 0 <= card < count:
        there = f"only {count}, numbered from 0" if count else "none"
        raise InitError(
            f"[{name}] devices: {kind} {device.card} was asked for, but Paddle sees {there}: "
            "name others in devices, look at the driver and at variables such as "
            "CUDA_VISIBLE_DEVICES, or set device_type: 0 and devices: ''"
        )


def _check_tensorrt(paddle: Any, name: str, model: PaddleModel) -> None:
    built_with = paddle.inference.get_trt_compile_version()
    if not any(built_with):
        raise InitError(
            f"[{name}] device_type: 2 (TENSORRT) was asked for, but the installed paddlepaddle "
            f"{paddle.__version__} was built without TensorRT: install a build with it, or set "
            "device_type: 1"
        )
    if not any(paddle.inference.get_trt_runtime_version()):
        raise InitError(
            f"[{name}] device_type: 2 (TENSORRT) was asked for, but the library of TensorRT "
            f"{'.'.join(map(str, built_with))} cannot be loaded: install it "
            "where LD_LIBRARY_PATH names it, or set device_type: 1"
        )
    if model.ir_optim is False:
        raise InitError(
            f"[{name}] device_type: 2 (TENSORRT) needs ir_optim: True, without which Paddle "
            "leaves TensorRT out"
        )


def _check_precision(name: str, model: PaddleModel, device: Device) -> None:
    wanted = model.precision
    if wanted not in _PRECISIONS:
        raise InitError(f"[{name}] precision: {wanted!r} is not one of {', '.join(_PRECISIONS)}")
    if device.is_cpu and wanted == "fp16":
        raise InitError(
            f"[{name}] precision: fp16 needs a card, Paddle has none of it on the CPU: set "
            "fp32, or bf16 where the processor has AVX-512"
        )
    if wanted == "int8" and not device.is_cpu and device.type is not DeviceType.TENSORRT:
        raise InitError(
            f"[{name}] precision: int8 on a card needs TensorRT: set device_type: 2, or fp16"
        )
    if wanted != "fp32" and device.type is DeviceType.KUNLUN_XPU:
        raise InitError(f"[{name}] precision: {wanted} is not supported on an XPU: set fp32")
    if device.is_cpu and model.use_mkldnn is False and wanted != "fp32":
        raise InitError(
            f"[{name}] precision: {wanted} on the CPU is oneDNN's: set use_mkldnn: True"
        )
    if device.is_cpu and model.ir_optim is False and wanted != "fp32":
        raise InitError(
            f"[{name}] precision: {wanted} on the CPU needs ir_optim: True, without which "
            "Paddle leaves it out"
        )


def check_quantized(name: str, model: PaddleModel, device: Device, program: Program) -> None:
    """Check that a model for int8 on the CPU is quantized.

    Raises InitError: it is not, so Paddle would silently run it in fp32.
    """
    if model.precision == "int8" and device.is_cpu and not program.is_quantized:
        raise InitError(
            f"[{name}] precision: int8 on the CPU is for models that were exported quantized, and "
            "this one was not: set fp32, or quantize it with PaddleSlim"
        )


def configure(
    inference: Any,
    files: ModelFiles,
    model: PaddleModel,
    device: Device,
    names: Mapping[str, str],
) -> Any:
    """Return a `Config` for a device that `check_device` accepted.

    `names` has the model's name of each alias, for the dynamic shapes.

    Raises InitError: Paddle ignored a setting.
    """
    paths = [files.program, files.weights] if files.weights else [files.program.parent]
    config = inference.Config(*map(str, paths))
    config.disable_glog_info()
    if model.ir_optim is not None:
        config.switch_ir_optim(model.ir_optim)
    if model.mem_optim:
        config.enable_memory_optim()
    if files.program.suffix == ".json":
        # Only the new executor finds the passes of these programs.
        config.enable_new_ir(True)
        config.enable_new_executor(True)
    if device.is_cpu:
        _use_cpu(config, files.program.name, model)
    else:
        _use_card(inference, config, files.program.name, model, device)
    if device.type is DeviceType.TENSORRT:
        _use_tensorrt(inference, config, files.program.name, model, names)
    _warn_of_no_effect(files.program.name, model, device)
    return config


def _use_cpu(config: Any, name: str, model: PaddleModel) -> None:
    config.disable_gpu()
    config.set_cpu_math_library_num_threads(model.thread_num)
    if model.use_mkldnn is False:
        _onednn(config, "disable_{}")()
        return
    if model.use_mkldnn or model.precision != "fp32":
        _onednn(config, "enable_{}")()
        if not _onednn(config, "{}_enabled")():
            raise InitError(
                f"[{name}] use_mkldnn: the installed Paddle was built without oneDNN: set "
                "use_mkldnn: False and precision: fp32"
            )
    if model.mkldnn_cache_capacity:
        _onednn(config, "set_{}_cache_capacity")(model.mkldnn_cache_capacity)
    if model.mkldnn_op_list:
        _onednn(config, "set_{}_op")(set(model.mkldnn_op_list))
    if model.precision == "bf16":
        require_avx512(name)
        _onednn(config, "enable_{}_bfloat16")()
        if model.mkldnn_bf16_op_list:
            config.set_bfloat16_op(set(model.mkldnn_bf16_op_list))
    elif model.precision == "int8":
        _onednn(config, "enable_{}_int8")()


def _onednn(config: Any, form: str) -> Any:
    """Return a method whose name has oneDNN, or, up to Paddle 3.0, the former name MKL-DNN."""
    method = getattr(config, form.format("onednn"), None)
    return method or getattr(config, form.format("mkldnn"))


def require_avx512(name: str, cpu: Path = Path("/proc/cpuinfo")) -> None:
    """Raise InitError if the processor lacks AVX-512: Paddle would run in fp32 with a log line."""
    if not cpu.is_file() or "avx512bw" not in cpu.read_text(errors="replace").split():
        raise InitError(
            f"[{name}] precision: bf16 needs a processor with AVX-512, this one has none: set fp32"
        )


def _use_card(inference: Any, config: Any, name: str, model: PaddleModel, device: Device) -> None:
    precision = getattr(inference.PrecisionType, _PRECISIONS[model.precision])
    if device.type is DeviceType.KUNLUN_XPU:
        config.enable_xpu()
        config.set_xpu_device_id(device.card)
        got = config.use_xpu() and config.xpu_device_id()
    elif device.type in _ASCEND:
        config.enable_custom_device(_ASCEND_PLUGIN, device.card, precision)
        got = device.card  # Paddle cannot report it; `_check_ascend` checked it
    else:
        # Only TensorRT has int8, with its own setting of precision: see below.
        if device.type is DeviceType.TENSORRT:
            precision = inference.PrecisionType.Float32
        config.enable_use_gpu(_FIRST_GPU_MEMORY_MB, device.card, precision)
        got = config.use_gpu() and config.gpu_device_id()
    if got is False or got != device.card:
        raise InitError(
            f"[{name}] devices: {device.type.name} {device.card} was asked for, but Paddle took "
            "it without heeding it: look at its driver, or set device_type: 0 and devices: ''"
        )


def _use_tensorrt(
    inference: Any, config: Any, name: str, model: PaddleModel, names: Mapping[str, str]
) -> None:
    config.enable_tensorrt_engine(
        workspace_size=_TENSORRT_WORKSPACE_BYTES,
        max_batch_size=_TENSORRT_BATCH,
        min_subgraph_size=model.min_subgraph_size,
        precision_mode=getattr(inference.PrecisionType, _PRECISIONS[model.precision]),
        use_static=False,
        use_calib_mode=model.use_calib,
    )
    if model.dynamic_shapes:
        config.set_trt_dynamic_shape_info(*_shapes(name, model.dynamic_shapes, names))
    if not config.tensorrt_engine_enabled():
        raise InitError(
            f"[{name}] device_type: 2 (TENSORRT): Paddle took it without heeding it: set "
            "device_type: 1"
        )


def _shapes(
    name: str, given: Mapping[str, Mapping[str, Sequence[int]]], names: Mapping[str, str]
) -> list[dict[str, list[int]]]:
    """Return minimum, maximum and optimal shapes by the model's names."""
    shapes = [
        {names.get(name, name): list(shape) for name, shape in given.get(key, {}).items()}
        for key in _SHAPE_KEYS
    ]
    if not all(shapes) or len({frozenset(names) for names in shapes}) != 1:
        raise InitError(
            f"[{name}] set_dynamic_shape_info: dynamic_shape_info needs {', '.join(_SHAPE_KEYS)}, "
            f"each with a shape for the same names; it has {', '.join(given)}"
        )
    return shapes


def _warn_of_no_effect(name: str, model: PaddleModel, device: Device) -> None:
    is_tensorrt = device.type is DeviceType.TENSORRT
    no_onednn = not device.is_cpu or model.use_mkldnn is False
    idle = {
        "use_calib": model.use_calib and not (is_tensorrt and model.precision == "int8"),
        "set_dynamic_shape_info": bool(model.dynamic_shapes) and not is_tensorrt,
        "use_mkldnn": bool(model.use_mkldnn) and not device.is_cpu,
        "mkldnn_cache_capacity": bool(model.mkldnn_cache_capacity) and no_onednn,
        "mkldnn_op_list": bool(model.mkldnn_op_list) and no_onednn,
        "mkldnn_bf16_op_list": bool(model.mkldnn_bf16_op_list)
        and (no_onednn or model.precision != "bf16"),
    }
    without = [key for key, is_idle in idle.items() if is_idle]
    if without and device.warns:
        _LOGGER.warning(
            "[%s] %s: without effect on %s at precision %s",
            name,
            ", ".join(without),
            device.type.name,
            model.precision,
        )
