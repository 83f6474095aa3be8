"""Execution providers: the providers that `local_service_conf` asks for, and those of a session."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import mmap
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import InitError
from pipeline.predictors.base import AcceleratedModel, Device, DeviceType
from pipeline.predictors.onnx.binding import DeviceMemory

_LOGGER = logging.getLogger(__name__)

Options = dict[str, str | int]

_PRECISION_FLAGS = {
    "fp32": {},
    "fp16": {"trt_fp16_enable": 1},
    "bf16": {"trt_bf16_enable": 1},
    "int8": {"trt_int8_enable": 1},
}
_PROFILES = ("min_input_shape", "opt_input_shape", "max_input_shape")
# Names of tables by `onnxruntime.quantization` and TensorRT; whether it is TensorRT's format.
_TABLES = {"calibration.flatbuffers": 0, "calibration.cache": 1}
_LOCK_FILE = "building.lock"
# A tensor's place of data in protobuf: the key, and the value's length.
_WEIGHTS_FILE = re.compile(rb"\n\x08location\x12([\x01-\x7f])")


def tensorrt_options(model: AcceleratedModel, card: int) -> Options:
    """Return the provider's options, without the cache's.

    Raises InitError: the precision is unknown to TensorRT, `use_calib` has no table, or the shapes
    of `set_dynamic_shape_info` contradict each other.
    """
    path = Path(model.model_path)
    flags = _PRECISION_FLAGS.get(model.precision)
    if flags is None:
        raise InitError(
            f"[{path.name}] precision: {model.precision} is not one of TensorRT's: "
            f"{', '.join(_PRECISION_FLAGS)}"
        )
    return {
        "device_id": card,
        "trt_min_subgraph_size": model.min_subgraph_size,
        **flags,
        **_calibration(model, path),
        **_profiles(path.name, model.dynamic_shapes),
    }


def _calibration(model: AcceleratedModel, path: Path) -> Options:
    if not model.use_calib or model.precision != "int8":
        return {}
    for name, is_native in _TABLES.items():
        table = path.resolve().parent / name
        if table.is_file():
            return {
                "trt_int8_calibration_table_name": str(table),
                "trt_int8_use_native_calibration_table": is_native,
            }
    raise InitError(
        f"[{path.name}] use_calib: True needs a table of the activations' ranges beside the model "
        f"({' or '.join(_TABLES)}), as onnxruntime.quantization writes it: onnxruntime does not "
        "calibrate while it serves"
    )


def _profiles(name: str, shapes: Mapping[str, Mapping[str, Sequence[int]]]) -> Options:
    """Return minimum, usual and maximum shape of each input in TensorRT's notation."""
    if not any(shapes.values()):
        return {}
    lowest, usual, highest = (shapes.get(profile, {}) for profile in _PROFILES)
    for tensor in sorted({*lowest, *usual, *highest}):
        if not tensor or set(tensor) & set(":,"):
            raise InitError(
                f"[{name}] set_dynamic_shape_info: {tensor!r} cannot be written in TensorRT's "
                "notation of shapes"
            )
        given = [tuple(profile.get(tensor, ())) for profile in (lowest, usual, highest)]
        if not _are_ordered(given):
            stated = ", ".join(
                f"{key}: {shape}" for key, shape in zip(_PROFILES, given, strict=True)
            )
            raise InitError(
                f"[{name}] set_dynamic_shape_info: {tensor!r} must have a shape in each of min, "
                "opt and max, of one rank and with 0 < min <= opt <= max on each axis, but has "
                f"{stated}"
            )
    return {
        f"trt_profile_{key}_shapes": ",".join(
            f"{tensor}:{'x'.join(map(str, shape))}" for tensor, shape in profile.items()
        )
        for key, profile in (("min", lowest), ("opt", usual), ("max", highest))
    }


def _are_ordered(shapes: Sequence[tuple[int, ...]]) -> bool:
    lowest, usual, highest = shapes
    if not lowest or not len(lowest) == len(usual) == len(highest):
        return False
    return all(
        0 < least <= middle <= most
        for least, middle, most in zip(lowest, usual, highest, strict=True)
    )


def engine_folder(path: Path, options: Options, runtime_version: str) -> Path | None:
    """Return the folder for this model's engines with these options; None if it cannot be used.

    onnxruntime names an engine by the graph's names and shapes, not by its weights. After a
    retraining it would run the old engine, so the folder's name has a digest of the file.
    """
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        name = f"{path.stem}-{_digest(path, options, runtime_version)}"
        folder = home / "pipeline-serving" / "tensorrt" / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{folder} is another user's, and an engine is code")
        (folder / _LOCK_FILE).touch()
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # no home folder; an empty file cannot be mapped
        _LOGGER.warning(
            "[%s] TensorRT's engines cannot be kept (%s), so each start builds them again, which "
            "takes minutes: set XDG_CACHE_HOME to a folder of your own that can be written",
            path.name,
            error,
        )
        return None
    return folder


def _digest(path: Path, options: Options, runtime_version: str) -> str:
    digest = hashlib.sha256(repr((sorted(options.items()), runtime_version)).encode())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        digest.update(content)
        starts = [(match.end(), match[1][0]) for match in _WEIGHTS_FILE.finditer(content)]
        names = {os.fsdecode(content[start : start + length]) for start, length in starts}
    for name in sorted(names):
        weights = path.resolve().parent / name
        if weights.is_file():  # may be too large to be read at each start
            facts = weights.stat()
            digest.update(f"{name} {facts.st_size} {facts.st_mtime_ns}".encode())
    return digest.hexdigest()[:24]


def cache_options(folder: Path | None) -> Options:
    """Return the provider's options to keep engines in `folder`."""
    if folder is None:
        return {}
    return {"trt_engine_cache_enable": 1, "trt_engine_cache_path": str(folder)}


@contextlib.contextmanager
def building(folder: Path | None) -> Iterator[None]:
    """Let one process at a time build the engines in `folder`; the others then read them.

    onnxruntime writes an engine file in place, so two builders would damage it.
    """
    if folder is None:
        yield
        return
    with (folder / _LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed or the process ends
        yield


RECORD_PLACEMENT = "session.record_ep_graph_assignment_info"
"""The session entry with which onnxruntime keeps where each node runs (from 1.24 on)."""

_QUANTISED = {"QuantizeLinear", "DequantizeLinear"}
_MAX_SHOWN_TYPES = 8

_Placements = dict[str, Counter[str]]  # a provider to the types of the nodes that it runs

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
ONEDNN = "DnnlExecutionProvider"
ARM = "ACLExecutionProvider"
ASCEND = "CANNExecutionProvider"

_NVIDIA_BUILD = "install 'pipeline-serving[gpu]' (without the plain onnxruntime beside it)"
_GPU_BUILD = f"{_NVIDIA_BUILD} and CUDA"
_TENSORRT_BUILD = f"{_NVIDIA_BUILD}, CUDA, and TensorRT with libnvinfer in LD_LIBRARY_PATH"
_ASCEND_BUILD = (
    "install onnxruntime-cann (without the plain onnxruntime beside it) and the CANN toolkit"
)
_ONEDNN_BUILD = "install onnxruntime-openvino in place of onnxruntime"
_ARM_BUILD = "install an onnxruntime with Arm Compute Library"

_USE_CPU = "set device_type: 0 and devices: ''"
_USE_CUDA = "set device_type: 1"
_USE_PLAIN = "set use_mkldnn: False: the plain onnxruntime has kernels of its own that do the same"

# Otherwise each new shape of an input, such as a new batch size, starts a search through all of
# cuDNN's algorithms.
_CUDA_OPTIONS: Options = {"cudnn_conv_algo_search": "HEURISTIC"}
# fp32 as in Paddle on these cards: operators without a 32-bit form run in 16 bits.
_ASCEND_PRECISIONS = {"fp32": "allow_fp32_to_fp16", "fp16": "force_fp16"}
_CPU_INFO = Path("/proc/cpuinfo")
_BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}


@dataclass(frozen=True, slots=True)
class Plan:
    """A request to onnxruntime: providers, their options, and the texts if they are missing.

    Args:
        model: the model's name, for texts.
        asked: the key and its meaning, for texts: "devices: GPU 3".
        build: the package to install if this build of onnxruntime lacks it.
        otherwise: the setting that does not need it.
        providers: providers with their options, in order of precedence.
        main: the provider that has to run nodes of the model; None: any provider.
        memory: the memory in which it computes; None: the host's memory.
        needs_scales: whether the model itself has to be quantised.
        warnings: settings that have no effect.
    """

    model: str
    asked: str = ""
    build: str = ""
    otherwise: str = ""
    providers: tuple[tuple[str, Options], ...] = ((CPU, {}),)
    main: str | None = None
    memory: DeviceMemory | None = None
    needs_scales: bool = False
    warnings: tuple[str, ...] = ()

    def missing_from(self, offered: Collection[str]) -> list[str]:
        """Return the planned providers that are not offered; the CPU always is."""
        return [name for name, _ in self.providers if name != CPU and name not in offered]


def plan_providers(model: AcceleratedModel, device: Device, offered: Sequence[str]) -> Plan:
    """Return the plan for an onnxruntime that offers these providers.

    Raises InitError: onnxruntime, or this build of it, does not support the device, or a key asks
    for an unsupported feature.
    """
    if device.card is None:
        plan = _on_host(model, device, offered)
    else:
        planner = _ON_CARDS.get(device.type)
        if planner is None:
            raise InitError(
                f"[{_name(model)}] device_type: {device.type.value} ({device.type.name}) is not "
                "supported for ONNX models: use 0 (CPU), 1 (GPU), 2 (TensorRT), 5 or 6 (Ascend), "
                "or a Paddle model"
            )
        plan = planner(model, device.card)
    if missing := plan.missing_from(offered):
        raise InitError(
            f"[{plan.model}] {plan.asked} was asked for, but this build of onnxruntime offers only "
            f"{', '.join(offered)}, not {', '.join(missing)}: {plan.build}, "
            f"or {plan.otherwise}"
        )
    return plan


def _on_host(model: AcceleratedModel, device: Device, offered: Collection[str]) -> Plan:
    if model.use_mkldnn:
        return _on_onednn(model, offered)
    name, warnings = _name(model), _precision_warnings(model)
    if device.type is DeviceType.ARM_CPU and ARM in offered:
        asked = "device_type: 3 (ARM CPU)"
        providers: tuple[tuple[str, Options], ...] = ((ARM, {}), (CPU, {}))
        return Plan(name, asked, _ARM_BUILD, _USE_CPU, providers, warnings=warnings)
    return Plan(name, warnings=warnings)


def _on_onednn(model: AcceleratedModel, offered: Collection[str]) -> Plan:
    """Plan oneDNN's kernels: those in OpenVINO, which pip installs, or in a build made for them."""
    unused = [
        f"{key} has no effect on ONNX models"
        for key in ("mkldnn_cache_capacity", "mkldnn_op_list", "mkldnn_bf16_op_list")
        if getattr(model, key)
    ]
    options: Options = {}
    provider = ONEDNN if ONEDNN in offered and OPENVINO not in offered else OPENVINO
    takes_bfloat16 = provider == OPENVINO and model.precision == "bf16" and has_bfloat16()
    if provider == OPENVINO:
        options = _openvino_options(model.thread_num, "bf16" if takes_bfloat16 else "f32")
    return Plan(
        _name(model),
        "use_mkldnn: True (oneDNN)",
        _ONEDNN_BUILD,
        _USE_PLAIN,
        ((provider, options), (CPU, {})),
        main=provider,
        warnings=(*unused, *(() if takes_bfloat16 else _precision_warnings(model))),
    )


def _openvino_options(thread_num: int, precision: str) -> Options:
    # OpenVINO silently computes in another type if the CPU lacks fp16 or bfloat16.
    settings = {"INFERENCE_NUM_THREADS": thread_num, "INFERENCE_PRECISION_HINT": precision}
    return {"device_type": "CPU", "load_config": json.dumps({"CPU": settings})}


def has_bfloat16(cpu_info: Path = _CPU_INFO) -> bool:
    """Return whether the processor has bfloat16 instructions."""
    try:
        return not _BFLOAT16_FLAGS.isdisjoint(cpu_info.read_text().split())
    except OSError:
        return False


def _on_gpu(model: AcceleratedModel, card: int) -> Plan:
    return Plan(
        _name(model),
        f"devices: GPU {card}",
        _GPU_BUILD,
        _USE_CPU,
        (_cuda(card), (CPU, {})),
        main=CUDA,
        memory=DeviceMemory("cuda", card),
        warnings=_precision_warnings(model),
    )


def _on_tensorrt(model: AcceleratedModel, card: int) -> Plan:
    """Plan TensorRT, and CUDA for the operators that it lacks."""
    return Plan(
        _name(model),
        f"device_type: 2 (TensorRT on GPU {card})",
        _TENSORRT_BUILD,
        _USE_CUDA,
        ((TENSORRT, tensorrt_options(model, card)), _cuda(card), (CPU, {})),
        main=TENSORRT,
        memory=DeviceMemory("cuda", card),
        needs_scales=model.precision == "int8" and not model.use_calib,
    )


def _on_ascend(model: AcceleratedModel, card: int) -> Plan:
    mode = _ASCEND_PRECISIONS.get(model.precision)
    if mode is None:
        raise InitError(
            f"[{_name(model)}] precision: {model.precision} is not supported for ONNX models on "
            f"Ascend cards: use {' or '.join(_ASCEND_PRECISIONS)}"
        )
    return Plan(
        _name(model),
        f"devices: Ascend card {card}",
        _ASCEND_BUILD,
        _USE_CPU,
        ((ASCEND, {"device_id": card, "precision_mode": mode}), (CPU, {})),
        main=ASCEND,
        memory=DeviceMemory("cann", card),
    )


_ON_CARDS: dict[DeviceType, Callable[[AcceleratedModel, int], Plan]] = {
    DeviceType.GPU: _on_gpu,
    DeviceType.TENSORRT: _on_tensorrt,
    DeviceType.ASCEND310: _on_ascend,
    DeviceType.ASCEND910: _on_ascend,
}


def _cuda(card: int) -> tuple[str, Options]:
    return CUDA, {"device_id": card, **_CUDA_OPTIONS}


def _name(model: AcceleratedModel) -> str:
    return Path(model.model_path).name


def _precision_warnings(model: AcceleratedModel) -> tuple[str, ...]:
    if model.precision == "fp32":
        return ()
    return (
        f"precision: {model.precision} has no effect, an ONNX file has its precision in itself",
    )


# The plan and the session ---------------------------------------------------------------------


def check_session(plan: Plan, session: Any) -> None:
    """Check that the session has the planned providers, and that nodes of the model run there.

    Raises InitError: a provider is missing, or no node runs there.
    """
    got = session.get_providers()
    if missing := plan.missing_from(got):
        raise InitError(
            f"[{plan.model}] {plan.asked} was asked for, but onnxruntime could not set up "
            f"{', '.join(missing)} and would run on {', '.join(got)}: see that its "
            "libraries, and a card's number and driver, are right (onnxruntime's lines on stderr "
            f"name what is missing), or {plan.otherwise}"
        )
    if plan.main is None or not hasattr(session, "get_provider_graph_assignment_info"):
        return  # onnxruntime before 1.24 does not report where a node runs
    placements = _placements(session)
    if not placements:
        return  # the graph is constant: it was computed when the model was loaded
    if plan.main not in placements:
        too_small = ", or min_subgraph_size is too large" if plan.main == TENSORRT else ""
        raise InitError(
            f"[{plan.model}] {plan.asked} was asked for, but no node of the model runs there: "
            f"{_described(placements)}. Its operators or their types are not supported "
            f"there{too_small}"
        )
    if plan.needs_scales and not any(_QUANTISED & types.keys() for types in placements.values()):
        raise InitError(
            f"[{plan.model}] precision: int8 needs a model with QuantizeLinear nodes, or "
            "use_calib: True and a calibration table beside the model"
        )
    # A few nodes on the CPU are normal, for shapes; half of the nodes is not.
    on_cpu = placements.get(CPU, Counter()).total()
    everywhere = sum(types.total() for types in placements.values())
    level = logging.WARNING if on_cpu * 2 >= everywhere else logging.INFO
    _LOGGER.log(level, "[%s] %s: %s", plan.model, plan.asked, _described(placements))


def _placements(session: Any) -> _Placements:
    placements: _Placements = {}
    for subgraph in session.get_provider_graph_assignment_info():
        types = placements.setdefault(subgraph.ep_name, Counter())
        types.update(node.op_type for node in subgraph.get_nodes())
    return placements


def _described(placements: _Placements) -> str:
    parts = []
    for provider, types in placements.items():
        shown = ", ".join(name for name, _ in types.most_common(_MAX_SHOWN_TYPES))
        more = ", ..." if len(types) > _MAX_SHOWN_TYPES else ""
        nodes = "1 node" if types.total() == 1 else f"{types.total()} nodes"
        parts.append(f"{provider} runs {nodes} ({shown}{more})")
    return "; ".join(parts)
