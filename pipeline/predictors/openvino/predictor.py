"""Predictor of models in this process, on OpenVINO."""

from __future__ import annotations

import importlib
import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from pipeline.errors import InitError, InputError
from pipeline.predictors.base import Device, LoadMeter, TensorSpec
from pipeline.predictors.local import LocalPredictor, brief
from pipeline.predictors.openvino import OpenVinoModel
from pipeline.predictors.signature import ModelSignature

_LOGGER = logging.getLogger(__name__)

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_DTYPES: Mapping[str, np.dtype[Any]] = {
    **{f"f{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    **{f"i{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    "boolean": np.dtype(np.bool_),
    "bf16": _BFLOAT16,
}
"""OpenVINO's name of an element type to numpy's dtype."""

_PRECISIONS = {"fp32": "f32", "bf16": "bf16"}
_LONG = (np.dtype(np.int64), np.dtype(np.uint64))
_WIDE = (*_LONG, np.dtype(np.float64))
_INT32 = np.iinfo(np.int32)
_FLOAT32 = np.finfo(np.float32)
_PLACE_IN_OPENVINO = re.compile(r"(?:Exception from|Check '.*?' failed at) \S+:\d+:?\s*", re.S)


class OpenVinoPredictor(LocalPredictor):
    """A compiled model as a `Predictor`.

    Each call has an infer request of its own, because a request serves one call at a time and
    keeps the arrays of its last call.

    Raises InitError: an input or output has elements that numpy lacks, or text, or `fetch_list` has
    other names.
    """

    platform = "openvino"

    def __init__(self, compiled: Any, model: OpenVinoModel) -> None:
        name = Path(model.model_path).name
        inputs = [_spec(name, port) for port in compiled.inputs]
        outputs = [_spec(name, port) for port in compiled.outputs]
        signature = ModelSignature(name, inputs, outputs, model.fetch_list)
        super().__init__(signature, _Runner(compiled, signature), model.takes_empty)
        wide = [spec.name for spec in (*inputs, *outputs) if spec.dtype in _WIDE]
        if wide:
            _LOGGER.warning(
                "[%s] OpenVINO computes 64-bit numbers in 32 bits, without an error: %s",
                name,
                ", ".join(wide),
            )


class _Runner:
    """A runner of a compiled model."""

    def __init__(self, compiled: Any, signature: ModelSignature) -> None:
        self._model = signature.model
        self._make_request: Callable[[], Any] = compiled.create_infer_request
        self._places = {spec.name: place for place, spec in enumerate(signature.inputs)}
        self._outputs = {
            spec.name: (place, spec.dtype) for place, spec in enumerate(signature.outputs)
        }
        self._free: list[Any] = []

    def __call__(
        self, names: Sequence[str], arrays: Mapping[str, np.ndarray]
    ) -> Sequence[np.ndarray]:
        feed = {self._places[name]: self._bits(name, array) for name, array in arrays.items()}
        try:
            request = self._free.pop()
        except IndexError:
            request = self._make_request()
        try:
            results = request.infer(feed, share_outputs=True)
        except Exception as error:  # OpenVINO's exceptions share no base class but this one
            raise RuntimeError(_reason(error)) from error
        answer = [
            np.array(results[place]).view(dtype)  # a copy: the request keeps its memory
            for place, dtype in map(self._outputs.__getitem__, names)
        ]
        self._free.append(request)
        return answer

    def _bits(self, name: str, array: np.ndarray) -> np.ndarray:
        """Return the array in a dtype that OpenVINO copies without a loss.

        Raises InputError: an integer has more than 32 bits, or a float64 is not in float32's range.
        """
        if array.dtype == _BFLOAT16:
            return array.view(np.float16)  # OpenVINO's arrays of bfloat16 are called so
        is_long = array.dtype in _LONG and array.size
        if is_long and (array.max() > _INT32.max or array.min() < _INT32.min):
            raise InputError(
                f"[{self._model}] feed {name!r} has integers of more than 32 bits, which OpenVINO "
                "cuts without an error: use smaller numbers or another engine"
            )
        if array.dtype == np.float64:
            is_large = np.isfinite(array) & (np.abs(array) > _FLOAT32.max)
            if is_large.any():
                raise InputError(
                    f"[{self._model}] feed {name!r} has numbers beyond {_FLOAT32.max:.3g}, which "
                    "OpenVINO makes infinite: use smaller numbers or another engine"
                )
        return array


def load(model: OpenVinoModel, device: Device) -> OpenVinoPredictor:
    """Load a model of OpenVINO or ONNX and run it once.

    Raises InitError: OpenVINO is missing or refuses the file, or lacks the device or precision.
    """
    path = Path(model.model_path)
    if not device.is_cpu:
        raise InitError(
            f"[{path.name}] engine: openvino runs on the CPU: set device_type: 0 and devices: ''"
        )
    precision = _PRECISIONS.get(model.precision)
    if precision is None:
        raise InitError(
            f"[{path.name}] precision: {model.precision} is not supported by OpenVINO on the CPU: "
            "use fp32 or bf16, or a model that is quantised"
        )
    openvino = _import_runtime(path.name)
    settings = {
        "INFERENCE_NUM_THREADS": model.thread_num * model.streams,
        "NUM_STREAMS": model.streams,
        "INFERENCE_PRECISION_HINT": precision,  # otherwise bfloat16 wherever the CPU has it
        "ENABLE_CPU_PINNING": False,  # workers of other Ops need the cores too
    }
    with LoadMeter() as meter:
        try:
            compiled = openvino.Core().compile_model(str(path), "CPU", settings)
        except Exception as error:  # OpenVINO's exceptions share no base class but this one
            raise InitError(f"model_config: cannot load {path}: {_reason(error)}") from error
        _check_precision(path.name, compiled, precision)
        predictor = OpenVinoPredictor(compiled, model)
        predictor.warm_up(model.dynamic_shapes.get("opt_input_shape", {}))
        predictor.memory_usage = meter.uses()
    return predictor


def _import_runtime(name: str) -> Any:
    # At its import this package would fork the process, to report the use to OpenVINO's maker.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        return importlib.import_module("openvino")
    except ImportError as error:
        raise InitError(
            f"[{name}] engine: openvino needs the package openvino, which cannot be imported "
            f"({error}): pip install 'pipeline-serving[openvino-runtime]'"
        ) from error


def _check_precision(name: str, compiled: Any, precision: str) -> None:
    used = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if used != precision:
        raise InitError(
            f"[{name}] precision: this CPU has no instructions for {precision}, OpenVINO would "
            f"use {used}: set precision: fp32"
        )


def _spec(model: str, port: Any) -> TensorSpec:
    kind, name = port.element_type.get_type_name(), _name(port)
    dtype = _DTYPES.get(kind)
    if dtype is None:
        raise InitError(f"[{model}] {name!r} is {kind}, which engine: openvino does not support")
    shape = port.partial_shape
    if shape.rank.is_dynamic:
        return TensorSpec(name, dtype, None)
    return TensorSpec(
        name, dtype, tuple(dim.get_length() if dim.is_static else None for dim in shape)
    )


def _name(port: Any) -> str:
    """Return a tensor's name in the model; a tensor may have several, or none."""
    node = str(port.node.get_friendly_name())
    name = node.removesuffix("/sink_port_0")  # that of the output, behind the last operator
    if name in port.names or not port.names:
        return name
    return str(min(port.names))


def _reason(error: Exception) -> str:
    """Return an error's text without the places in OpenVINO's sources."""
    return _PLACE_IN_OPENVINO.sub("", brief(error)).strip() or brief(error)
