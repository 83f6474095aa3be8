"""Predictor of ONNX models in this process, on onnxruntime."""

from __future__ import annotations

import importlib
import logging
import mmap
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from pipeline.errors import InitError
from pipeline.predictors.base import TEXT, AcceleratedModel, Device, LoadMeter
from pipeline.predictors.local import LocalPredictor, Run
from pipeline.predictors.onnx import OnnxModel
from pipeline.predictors.onnx.binding import (
    DeviceMemory,
    input_spec,
    output_specs,
    session_runner,
    why_it_does_not_load,
)
from pipeline.predictors.onnx.providers import (
    RECORD_PLACEMENT,
    TENSORRT,
    Options,
    Plan,
    building,
    cache_options,
    check_session,
    engine_folder,
    plan_providers,
)
from pipeline.predictors.signature import ModelSignature, has_batch
from pipeline.proto.pipeline.blocks import wire_fields

_LOGGER = logging.getLogger(__name__)

_FATAL = 4  # onnxruntime's severity; its errors also arrive as exceptions


class OnnxPredictor(LocalPredictor):
    """One onnxruntime session as a `Predictor`.

    Calls may overlap: a session runs them in parallel and without the GIL. It computes in `memory`
    of a card; None: in the host's memory.

    Raises InitError: an input or a fetched output is not a tensor, or `fetch_list` has other names.
    """

    platform = "onnxruntime_onnx"

    def __init__(
        self,
        runtime: Any,
        session: Any,
        model: OnnxModel,
        memory: DeviceMemory | None = None,
    ) -> None:
        path = Path(model.model_path)
        nodes = session.get_inputs(), session.get_outputs()
        has_unsized = not all(node.shape for side in nodes for node in side)
        scalars = scalars_of(path) if has_unsized else ()
        signature = ModelSignature(
            path.name,
            [input_spec(path.name, node, scalars) for node in nodes[0]],
            output_specs(path.name, nodes[1], model.fetch_list, scalars),
            model.fetch_list,
            options=[
                input_spec(path.name, node) for node in session.get_overridable_initializers()
            ],
        )
        run = session_runner(runtime, session, signature, memory)
        rows = model.pad_rows
        super().__init__(
            signature, PaddedRunner(run, signature, rows) if rows else run, model.takes_empty
        )


def load(model: OnnxModel, device: Device, runtime: Any = None) -> OnnxPredictor:
    """Load an ONNX file and run it once.

    `ir_optim` has no effect: onnxruntime always optimises the graph.

    Raises InitError: onnxruntime is missing or refuses the file, cannot use the device, or would
    run the model elsewhere.
    """
    path = Path(model.model_path)
    if runtime is None:
        runtime = _import_runtime(path.name, device)
    plan = plan_providers(model, device, runtime.get_available_providers())
    for warning in plan.warnings:
        if device.warns:
            _LOGGER.warning("[%s] %s", path.name, warning)
    engines = None
    if plan.main == TENSORRT:
        version = str(getattr(runtime, "__version__", ""))
        engines = engine_folder(path, plan.providers[0][1], version)
    with building(engines), LoadMeter() as meter:
        session = _open(runtime, model, plan, cache_options(engines))
        predictor = OnnxPredictor(runtime, session, model, plan.memory)
        predictor.warm_up(model.dynamic_shapes.get("opt_input_shape", {}))
        predictor.memory_usage = meter.uses()
    return predictor


def _import_runtime(name: str, device: Device) -> Any:
    # From 1.31 on, onnxruntime starts a thread at import that reports its use to its maker, unless
    # this is set before. ORT_DISABLE_TELEMETRY=0 allows the reports.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        extra = "onnx" if device.is_cpu else "gpu"
        raise InitError(
            f"[{name}] ONNX models need onnxruntime, which cannot be imported ({error}): "
            f"pip install 'pipeline-serving[{extra}]'"
        ) from error


def _open(runtime: Any, model: AcceleratedModel, plan: Plan, more_options: Options) -> Any:
    """Open a session with exactly the planned providers; `more_options` are for the first one."""
    path = Path(model.model_path)
    if plan.memory is not None and plan.memory.kind == "cuda" and hasattr(runtime, "preload_dlls"):
        runtime.preload_dlls()  # CUDA and cuDNN from pip, which older versions do not search
    (first, options), *others = plan.providers
    try:
        # The fallback would silently move a session to the CPU when the card fails.
        session = runtime.InferenceSession(
            str(path),
            _options(runtime, model, plan),
            providers=[(first, {**options, **more_options}), *others],
            enable_fallback=0,
        )
    except Exception as error:  # onnxruntime's exceptions share no base class but this one
        where = f" on {plan.asked}" if plan.asked else ""
        raise InitError(
            f"model_config: cannot load {path}{where}: {why_it_does_not_load(path, error)}"
        ) from error
    check_session(plan, session)
    return session


def _options(runtime: Any, model: AcceleratedModel, plan: Plan) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = model.thread_num
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = options.enable_cpu_mem_arena = model.mem_optim
    # Threads that spin while they wait take cores from other Ops' workers.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    if plan.main is not None:
        options.add_session_config_entry(RECORD_PLACEMENT, "1")
    options.log_severity_level = _FATAL
    return options


# Fields of the messages in onnx.proto.
_MODEL_GRAPH = 7
_GRAPH_TENSORS = (11, 12)  # its inputs and outputs
_INFO_NAME, _INFO_TYPE = 1, 2
_TYPE_TENSOR = 1
_TENSOR_SHAPE = 2


def scalars_of(path: Path) -> Collection[str]:
    """Return the names of inputs and outputs of rank 0; empty for a file of another format.

    onnxruntime reports the same empty shape for them and for tensors of unknown rank.
    """
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            memoryview(data) as view,
        ):
            return frozenset(_scalars(view))
    except (OSError, ValueError, BufferError, DecodeError):
        return frozenset()


def _scalars(model: memoryview) -> Iterator[str]:
    for graph in _within(model, _MODEL_GRAPH):
        for info in _within(graph, *_GRAPH_TENSORS):
            shapes = [
                bytes(shape)
                for kind in _within(info, _INFO_TYPE)
                for tensor in _within(kind, _TYPE_TENSOR)
                for shape in _within(tensor, _TENSOR_SHAPE)
            ]
            if shapes == [b""]:
                yield from (bytes(name).decode() for name in _within(info, _INFO_NAME))


def _within(message: memoryview, *numbers: int) -> Iterator[memoryview]:
    """Yield the content of the fields of these numbers."""
    for number, _, _, at, end in wire_fields(message):
        if number in numbers:
            yield message[at:end]


class PaddedRunner:
    """A runner that pads each batch with zeros to `rows`, or a multiple of it.

    onnxruntime prepares a convolution on CUDA again whenever the shape of its input changes: a
    ResNet-50 with alternating batches of 8 and 7 rows takes 60 ms instead of 3. Outputs are cut to
    the rows of the input.
    """

    def __init__(self, run: Run, signature: ModelSignature, rows: int) -> None:
        self._run = run
        self._rows = rows
        self._batched_inputs = {spec.name for spec in signature.inputs if has_batch(spec)}
        self._batched_outputs = {spec.name for spec in signature.outputs if has_batch(spec)}

    def __call__(
        self, names: Sequence[str], arrays: Mapping[str, np.ndarray]
    ) -> Sequence[np.ndarray]:
        counts = {len(array) for name, array in arrays.items() if name in self._batched_inputs}
        if len(counts) != 1:  # no batch dimension, or an ambiguous one
            return self._run(names, arrays)
        (count,) = counts
        lacking = -count % self._rows
        if not lacking:
            return self._run(names, arrays)
        padded = {
            name: _filled(array, lacking) if name in self._batched_inputs else array
            for name, array in arrays.items()
        }
        outputs = self._run(names, padded)
        return [
            output[:count] if name in self._batched_outputs and len(output) > count else output
            for name, output in zip(names, outputs, strict=True)
        ]


def _filled(array: np.ndarray, lacking: int) -> np.ndarray:
    """Return an array with `lacking` additional rows of zeros or empty texts."""
    more = np.full((lacking, *array.shape[1:]), "" if array.dtype == TEXT else 0, array.dtype)
    return np.concatenate([array, more])
