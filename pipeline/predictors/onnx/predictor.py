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

from pipeline.errors import ClosedError, InitError, PredictorError
from pipeline.predictors.base import (
    TEXT,
    AcceleratedModel,
    Device,
    LoadMeter,
    MemoryUse,
    TensorSpec,
)
from pipeline.predictors.onnx import OnnxModel
from pipeline.predictors.onnx.binding import (
    DeviceMemory,
    Run,
    brief,
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
from pipeline.predictors.signature import (
    ModelSignature,
    answer_without_rows,
    has_batch,
    refuse_unknown_arguments,
)
from pipeline.proto.pipeline.blocks import wire_fields

_LOGGER = logging.getLogger(__name__)

_FATAL = 4  # onnxruntime's severity; its errors also arrive as exceptions


class OnnxPredictor:
    """One onnxruntime session as a `Predictor`.

    Calls may overlap: a session runs them in parallel and without the GIL. It computes in `memory`
    of a card; None: in the host's. `memory_usage` is the host memory that loading took.

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
        self.memory_usage: Sequence[MemoryUse] = ()
        self.signature: ModelSignature = ModelSignature(
            path.name,
            [input_spec(path.name, node, scalars) for node in nodes[0]],
            output_specs(path.name, nodes[1], model.fetch_list, scalars),
            model.fetch_list,
            options=[
                input_spec(path.name, node) for node in session.get_overridable_initializers()
            ],
        )
        self.feed_names: tuple[str, ...] = self.signature.feed_names
        self.fetch_names: tuple[str, ...] = self.signature.fetch_names
        self._takes_empty = model.takes_empty
        run = session_runner(runtime, session, self.signature, memory)
        rows = model.pad_rows
        self._run: Run | None = PaddedRunner(run, self.signature, rows) if rows else run

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
        if not self._takes_empty:
            answer = answer_without_rows(self.signature, arrays, names)
            if answer is not None:
                return answer
        try:
            values = run(names, arrays)
        except Exception as error:  # onnxruntime's exceptions share no base class but this one
            raise PredictorError(
                f"[{self.signature.model}] the model failed: {brief(error)}"
            ) from error
        return dict(zip(names, values, strict=True))

    def warm_up(self, usual_shapes: Shapes) -> bool:
        """Run once on zeros if the shapes are known; return whether that worked.

        The first run prepares memory, a card's kernels and TensorRT's engine for later runs.
        """
        return self._run is not None and warm_up(self._run, self.signature, usual_shapes)

    def close(self) -> None:
        """Release the session; it is freed when the last call in progress has ended."""
        self._run = None


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


# The run with zeros when a model is loaded ------------------------------------------------------


Shapes = Mapping[str, Sequence[int]]


def warm_up(run: Run, signature: ModelSignature, usual_shapes: Shapes) -> bool:
    """Run the model once on zeros or empty texts; return whether it ran.

    A failure is only a warning: zeros are a guess, and a model may rightly refuse values that no
    client would send (an index into an empty table, a sampling rate of 0).

    Args:
        usual_shapes: known shapes by input name: `opt_input_shape` of the Op's
            `set_dynamic_shape_info`.
    """
    shapes = warm_up_shapes(signature.inputs, usual_shapes)
    unknown = [spec.name for spec in signature.inputs if spec.name not in shapes]
    if unknown:
        _LOGGER.info(
            "[%s] no warm-up: the model does not say how large %s is; give it in "
            "opt_input_shape of set_dynamic_shape_info",
            signature.model,
            ", ".join(unknown),
        )
        return False
    if any(0 in shape for shape in shapes.values()):
        return False  # engines get empty arrays only if asked: see answer_without_rows
    try:
        run(
            signature.fetch_names,
            {
                spec.name: np.full(shapes[spec.name], "" if spec.dtype == TEXT else 0, spec.dtype)
                for spec in signature.inputs
            },
        )
    except Exception as error:  # onnxruntime's exceptions share no base class; users give shapes
        _LOGGER.warning(
            "[%s] the warm-up failed, so the first request will be slower, or fail too: on zeros "
            "of the shapes %s the model says: %s",
            signature.model,
            shapes,
            brief(error),
        )
        return False
    return True


def warm_up_shapes(
    inputs: Sequence[TensorSpec], usual_shapes: Shapes
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of one run by input name, without inputs of unknown shape.

    `usual_shapes` take precedence. In other inputs the first dynamic dimension is a batch of one; a
    named dimension has the size of that name in another input.
    """
    sizes: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    # Given shapes come first: they set the sizes of named dimensions.
    for spec in sorted(inputs, key=lambda spec: spec.name not in usual_shapes):
        shape = tuple(usual_shapes.get(spec.name, ())) or _shape(spec, sizes)
        if shape is None:
            continue
        shapes[spec.name] = shape
        for dim, size in zip(spec.shape or (), shape, strict=False):
            if isinstance(dim, str):
                sizes.setdefault(dim, size)
    return shapes


def _shape(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """Return the input's shape for a batch of one; None if a size is unknown."""
    shape = []
    has_batch = False
    for dim in spec.shape or ():  # without a shape: a scalar, according to onnxruntime
        if isinstance(dim, int):
            shape.append(dim)
        elif dim in sizes:
            shape.append(sizes[str(dim)])
        elif has_batch:
            return None
        else:
            shape.append(1)
        has_batch = has_batch or not isinstance(dim, int)
    return tuple(shape)
