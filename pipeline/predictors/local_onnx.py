"""Runs ONNX models in this process, on onnxruntime."""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from pipeline.errors import ClosedError, InitError, PredictorError
from pipeline.predictors.base import Device, DeviceType, LocalModel, TensorSpec
from pipeline.predictors.signature import ModelSignature, refuse_unknown_arguments

_LOGGER = logging.getLogger(__name__)

_Run = Callable[[Sequence[str], Mapping[str, np.ndarray]], Sequence[np.ndarray]]

_DTYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(double)": np.dtype(np.float64),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(int8)": np.dtype(np.int8),
    "tensor(int16)": np.dtype(np.int16),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(uint8)": np.dtype(np.uint8),
    "tensor(uint16)": np.dtype(np.uint16),
    "tensor(uint32)": np.dtype(np.uint32),
    "tensor(uint64)": np.dtype(np.uint64),
    "tensor(bool)": np.dtype(np.bool_),
    "tensor(string)": np.dtype(object),
    "tensor(bfloat16)": np.dtype(ml_dtypes.bfloat16),
    "tensor(float8e4m3fn)": np.dtype(ml_dtypes.float8_e4m3fn),
    "tensor(float8e4m3fnuz)": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "tensor(float8e5m2)": np.dtype(ml_dtypes.float8_e5m2),
    "tensor(float8e5m2fnuz)": np.dtype(ml_dtypes.float8_e5m2fnuz),
}

# TensorProto.DataType of the dtypes that numpy lacks: onnxruntime takes no arrays of these.
_ELEMENT_TYPES = {
    np.dtype(ml_dtypes.bfloat16): 16,
    np.dtype(ml_dtypes.float8_e4m3fn): 17,
    np.dtype(ml_dtypes.float8_e4m3fnuz): 18,
    np.dtype(ml_dtypes.float8_e5m2): 19,
    np.dtype(ml_dtypes.float8_e5m2fnuz): 20,
}

_CPU_PROVIDER = "CPUExecutionProvider"
_CUDA_PROVIDER = "CUDAExecutionProvider"
_FATAL = 4  # onnxruntime's severity; its errors reach us as exceptions and need no second line
_SHOWN_CHARACTERS = 400


class OnnxPredictor:
    """One onnxruntime session as a `Predictor`.

    Calls may overlap: a session runs them side by side and without the GIL.

    Args:
        runtime: the onnxruntime module.
        session: its `InferenceSession`.
        name: what the model is called in error texts.
        fetch_list: the outputs to return by default; none: all.

    Raises:
        InitError: an input or a fetched output is no tensor, or `fetch_list` has other names.
    """

    def __init__(
        self, runtime: Any, session: Any, name: str, fetch_list: Sequence[str] | None = None
    ) -> None:
        inputs = [_spec(name, node) for node in session.get_inputs()]
        outputs = [
            _spec(name, node)
            for node in session.get_outputs()
            if node.type in _DTYPES or not fetch_list or node.name in fetch_list
        ]
        self.signature = ModelSignature(name, inputs, outputs, fetch_list)
        self.feed_names = self.signature.feed_names
        self.fetch_names = self.signature.fetch_names
        self._run: _Run | None = session.run
        if any(spec.dtype in _ELEMENT_TYPES for spec in (*inputs, *outputs)):
            self._run = _ValueRunner(runtime, session, self.signature)

    def predict(
        self,
        feed: Any,
        fetch: Sequence[str] | None = None,
        batch: bool = True,
        log_id: int = 0,
        *,
        deadline_s: float | None = None,
        **legacy: Any,
    ) -> dict[str, np.ndarray]:
        """Run the model once: see `Predictor.predict`."""
        if legacy:
            refuse_unknown_arguments(legacy)
        run = self._run
        if run is None:
            raise ClosedError(f"[{self.signature.model}] the predictor is closed")
        names = self.signature.fetch(fetch)
        arrays = self.signature.feed(feed, batch)
        try:
            values = run(names, arrays)
        except Exception as error:  # onnxruntime's exceptions share no base class but this one
            raise PredictorError(
                f"[{self.signature.model}] the model failed: {_brief(error)}"
            ) from error
        return dict(zip(names, values, strict=True))

    def close(self) -> None:
        """Let go of the session; it is freed when the last call under way has ended."""
        self._run = None


class _ValueRunner:
    """Runs models that have tensors of dtypes which numpy itself lacks, such as bfloat16."""

    def __init__(self, runtime: Any, session: Any, signature: ModelSignature) -> None:
        if any(spec.dtype == np.dtype(object) for spec in signature.inputs):
            raise InitError(
                f"[{signature.model}] onnxruntime cannot be fed text by a model that also has "
                "bfloat16 or float8 tensors: export the model with float32 there"
            )
        self._make = runtime.OrtValue
        self._session = session
        self._dtypes = {spec.name: spec.dtype for spec in signature.outputs}

    def __call__(
        self, names: Sequence[str], arrays: Mapping[str, np.ndarray]
    ) -> Sequence[np.ndarray]:
        # A value of onnxruntime borrows the array's memory and reads it as one C-ordered block.
        kept = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        feed = {name: self._value(array) for name, array in kept.items()}
        values = self._session.run_with_ort_values(list(names), feed)
        return [
            _copied(value, self._dtypes[name]) for name, value in zip(names, values, strict=True)
        ]

    def _value(self, array: np.ndarray) -> Any:
        element_type = _ELEMENT_TYPES.get(array.dtype)
        if element_type is None:
            return self._make.ortvalue_from_numpy(array)
        return self._make.ortvalue_from_numpy_with_onnx_type(array, element_type)


def _copied(value: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """The array of an OrtValue; those that `numpy()` cannot make are copied from its memory."""
    if dtype not in _ELEMENT_TYPES:
        array: np.ndarray = value.numpy()
        return array
    if value.device_name() != "cpu":  # its address would mean nothing to this process
        raise RuntimeError(f"a {dtype} output lies on {value.device_name()}")
    size = value.tensor_size_in_bytes()
    raw = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(bytearray(raw), dtype).reshape(value.shape())


def load(model: LocalModel, device: Device, runtime: Any = None) -> OnnxPredictor:
    """Load an ONNX file.

    Args:
        model: `model_path` is the file.
        device: the CPU, or an NVIDIA card.
        runtime: the onnxruntime module; None: it is imported.

    Raises:
        InitError: onnxruntime is missing or refuses the file, or cannot use the device.
    """
    path = Path(model.model_path)
    if not device.is_cpu and device.type is not DeviceType.GPU:
        raise InitError(
            f"[{path.name}] device_type: {device.type.value} ({device.type.name}) is not "
            "supported for ONNX models: use 0 (CPU) or 1 (GPU)"
        )
    if runtime is None:
        runtime = _import_runtime(path.name, device)
    if model.precision != "fp32":
        _LOGGER.warning(
            "[%s] precision: %s has no effect, an ONNX file has its precision in itself",
            path.name,
            model.precision,
        )
    session = _open(runtime, path, model.thread_num, device)
    return OnnxPredictor(runtime, session, path.name, model.fetch_list)


def _import_runtime(name: str, device: Device) -> Any:
    # From 1.31 on, onnxruntime reports its use to its maker, from a thread that it starts when
    # imported, unless this is set before. Set ORT_DISABLE_TELEMETRY=0 to let it.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        extra = "onnx" if device.is_cpu else "gpu"
        raise InitError(
            f"[{name}] ONNX models need onnxruntime, which cannot be imported ({error}): "
            f"pip install 'pipeline-serving[{extra}]'"
        ) from error


def _open(runtime: Any, path: Path, thread_num: int, device: Device) -> Any:
    """A session on exactly the device that was asked for."""
    providers: list[Any] = [_CPU_PROVIDER]
    if not device.is_cpu:
        providers.insert(0, (_CUDA_PROVIDER, {"device_id": device.card}))
        _require_cuda(path.name, device, runtime.get_available_providers())
    try:
        # The fallback would move a session to the CPU without a word when the card fails.
        session = runtime.InferenceSession(
            str(path), _options(runtime, thread_num), providers=providers, enable_fallback=0
        )
    except Exception as error:  # onnxruntime's exceptions share no base class but this one
        raise InitError(f"model_config: cannot load {path}: {_brief(error)}") from error
    if not device.is_cpu:
        _require_cuda(path.name, device, session.get_providers())
    return session


def _require_cuda(name: str, device: Device, providers: Sequence[str]) -> None:
    """Refuse to run on the CPU what was meant for a card."""
    if _CUDA_PROVIDER not in providers:
        raise InitError(
            f"[{name}] devices: GPU {device.card} was asked for, but onnxruntime offers only "
            f"{', '.join(providers)}: install 'pipeline-serving[gpu]' (without the plain "
            "onnxruntime beside it) and CUDA, or set device_type: 0 and devices: ''"
        )


def _options(runtime: Any, thread_num: int) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = thread_num
    options.inter_op_num_threads = 1
    # Threads that spin while they wait take the cores from the other Ops' workers.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.log_severity_level = _FATAL
    return options


def _spec(model: str, node: Any) -> TensorSpec:
    """An onnxruntime NodeArg as TensorSpec."""
    dtype = _DTYPES.get(node.type)
    if dtype is None:
        raise InitError(
            f"[{model}] {node.name!r} is {node.type}, which cannot be fed or fetched as an array: "
            "export the model with tensors only, or leave the output out of fetch_list"
        )
    # onnxruntime says [] for a scalar and for an unknown rank alike: let both pass.
    return TensorSpec(node.name, dtype, tuple(node.shape) or None)


def _brief(error: Exception) -> str:
    """One line that is short enough for an answer and a log."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
