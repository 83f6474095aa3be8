"""Predictors, which Ops call to run models, and the engines that run model files."""

from __future__ import annotations

import enum
import importlib
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace

from pipeline.config import registry
from pipeline.errors import ConfigError, InitError

Dim = int | str | None
"""One dimension of a tensor: fixed (int), dynamic with a name (str), or dynamic (None)."""

TEXT = np.dtype(object)
"""The dtype of text tensors."""

_Own = TypeVar("_Own", bound=Struct)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model. `dtype` is TEXT for text; `shape` None: any rank."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[Dim, ...] | None


class Predictor(Protocol):
    """A model that can be run: here or on another machine. Safe to call from many threads."""

    @property
    def feed_names(self) -> tuple[str, ...]:
        """Return the inputs, in the model's order."""

    @property
    def fetch_names(self) -> tuple[str, ...]:
        """Return the outputs that `predict` returns by default."""

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
        """Run the model once.

        Args:
            feed: a dict of input names to ndarrays, or to lists of str for text inputs; or a list
                with one such dict. The first dimension is the batch. Unknown names are ignored.
            fetch: names of the outputs to return, in this order; `fetch_names` if empty.
            batch: False if the arrays lack the batch dimension and are one sample.
            log_id: the caller's id of the request; remote predictors pass it on.
            deadline_s: seconds to wait for the answer. Remote predictors give up then; local ones
                finish a run that has begun.
            legacy: `logid` and `need_variant_tag=False` of older scripts; no effect.

        Raises:
            InputError: a name, dtype or shape does not fit the model.
            PayloadTypeError: a value is neither ndarray nor list of str.
            PredictorError: the model failed on this input.
            ClosedError: the predictor was closed.
        """

    def close(self) -> None:
        """Release the model. May be called twice; calls of `predict` in progress finish."""


class DeviceType(enum.IntEnum):
    """`local_service_conf.device_type`, by the predecessor's numbers."""

    BY_CARDS = -1
    CPU = 0
    GPU = 1
    TENSORRT = 2
    ARM_CPU = 3
    KUNLUN_XPU = 4
    ASCEND310 = 5
    ASCEND910 = 6


_HOST_DEVICES = (DeviceType.CPU, DeviceType.ARM_CPU)


@dataclass(frozen=True, slots=True)
class Device:
    """The device of one predictor. `card` is None for the host's CPU; `type` is never `BY_CARDS`.

    `warns` is False for all workers of an Op but the first, to log a warning only once.
    """

    type: DeviceType
    card: int | None = None
    warns: bool = field(default=True, compare=False)

    @property
    def is_cpu(self) -> bool:
        return self.type in _HOST_DEVICES


class LocalModel(Struct, frozen=True):
    """A model for a local predictor.

    Each engine has its own Struct, the `Options` of its `PredictorEngine`. It is derived from this
    one; its fields are keys of `local_service_conf`, annotated as in a configuration.

    Args:
        model_path: a model file, or a folder with exactly one.
        engine: name of the engine; None: by the file's suffix.
        fetch_list: the outputs to return by default; all if empty.
        devices: card numbers with commas between them; empty for the CPU.
        dynamic_shapes: the Op's `set_dynamic_shape_info`: "min_input_shape", "max_input_shape"
            and "opt_input_shape" each hold a dict of input names to shapes.
        options: keys of the engine, until the engine is known.
    """

    model_path: str | Path
    engine: str | None = None
    fetch_list: Sequence[str] | None = None
    thread_num: int = 2
    device_type: int = DeviceType.BY_CARDS
    devices: str = ""
    dynamic_shapes: Mapping[str, Mapping[str, Sequence[int]]] = {}
    options: Mapping[str, object] = {}

    def device(self, worker_index: int = 0) -> Device:
        """Return the device of one worker; workers take the cards of `devices` in turn.

        Raises InitError: `device_type` is unknown, or needs a card and `devices` names none.
        """
        cards = self._cards()
        try:
            wanted = DeviceType(self.device_type)
        except ValueError as error:
            known = ", ".join(f"{kind.value} {kind.name}" for kind in DeviceType)
            raise InitError(f"device_type: {self.device_type} is not one of {known}") from error
        if wanted is DeviceType.BY_CARDS:
            wanted = DeviceType.GPU if cards else DeviceType.CPU
        if wanted in _HOST_DEVICES:
            return Device(wanted, warns=not worker_index)
        if not cards:
            raise InitError(
                f"device_type: {self.device_type} ({wanted.name}) needs a card: "
                "name one in devices, for example devices: '0'"
            )
        return Device(wanted, cards[worker_index % len(cards)], warns=not worker_index)

    def _cards(self) -> list[int]:
        try:
            return [int(card) for card in self.devices.split(",")] if self.devices.strip() else []
        except ValueError as error:
            raise InitError(
                f"devices: {self.devices!r} is not a comma list of card numbers like '0,1'"
            ) from error


TakesEmpty = Annotated[
    bool, "Run the model on arrays without elements too; some models crash on them."
]
Precision = Annotated[
    Literal["fp32", "fp16", "int8", "bf16"], "Precision of the model: fp32, fp16, int8 or bf16."
]


class AcceleratedModel(LocalModel, frozen=True):
    """A model of Paddle or ONNX, with the keys of Paddle Serving that both of them read.

    The engine chooses if `use_mkldnn` is None.
    """

    mem_optim: Annotated[bool, "Let the engine reuse memory."] = True
    takes_empty: TakesEmpty = False
    precision: Precision = "fp32"
    use_calib: Annotated[bool, "Calibrate TensorRT's int8."] = False
    use_mkldnn: Annotated[
        bool | None,
        "Paddle: use oneDNN on the CPU; absent: Paddle's default, on. ONNX: use OpenVINO.",
    ] = None
    mkldnn_cache_capacity: Annotated[
        int, Meta(ge=0), "Number of shapes that oneDNN caches; 0: its default."
    ] = 0
    mkldnn_op_list: Annotated[
        tuple[str, ...] | None, "Operators that oneDNN runs; absent: all."
    ] = None
    mkldnn_bf16_op_list: Annotated[
        tuple[str, ...] | None, "Operators that oneDNN runs in bf16; absent: all."
    ] = None
    min_subgraph_size: Annotated[
        int, Meta(ge=1), "Minimum number of operators in a TensorRT subgraph."
    ] = 3


@dataclass(frozen=True, slots=True)
class PredictorEngine:
    """An engine for model files; the registry has them as `engines`.

    A file is a model if it has one of `names` or `suffixes`. With `companion` it also needs a file
    with the same stem and that suffix next to it.

    Args:
        module: module with `load(model: Options, device: Device) -> Predictor`; it is imported
            when a model is loaded.
        holds_gil: whether a running model holds the GIL.
        before_fork: function "module:function" that imports the engine's packages in the process
            that forks workers; "": each worker imports them.
        if_named: suffixes of models that it runs only if `engine` names it, because they are
            another engine's.
    """

    module: str
    suffixes: tuple[str, ...]
    companion: str = ""
    names: tuple[str, ...] = ()
    Options: type[LocalModel] = LocalModel
    holds_gil: bool = False
    before_fork: str = ""
    if_named: tuple[str, ...] = ()

    def runs(self, file: Path, is_named: bool = False) -> bool:
        """Return whether `file` is a model of this engine."""
        if not file.is_file():
            return False
        if file.name in self.names or (is_named and file.suffix in self.if_named):
            return True
        has_companion = not self.companion or file.with_suffix(self.companion).is_file()
        return file.suffix in self.suffixes and has_companion

    def load(self, model: LocalModel, device: Device) -> Predictor:
        """Load a model. Raises InitError: the engine refuses the model or the device."""
        module = importlib.import_module(self.module)
        predictor: Predictor = module.load(as_own_struct(model, self.Options), device)
        return predictor


def as_own_struct(model: Any, own: type[_Own]) -> _Own:
    """Return a model as the Struct of its engine or client, without unknown `options`."""
    given = {**msgspec.structs.asdict(model), **model.options, "options": {}}
    return own(**{name: given[name] for name in own.__struct_fields__ if name in given})


def known_engines(named: str | None = None) -> Mapping[str, PredictorEngine]:
    """Return the named engine by its name; all engines, also of plug-ins, if none is named.

    Raises ConfigError: the plug-in of an engine is broken.
    """
    names = registry.names("engines")
    chosen = (named,) if named in names else names
    engines = {name: registry.find("engines", name) for name in chosen}
    for name, engine in engines.items():
        if not isinstance(engine, PredictorEngine):
            raise ConfigError(f"engines: {name!r} is no PredictorEngine, but {engine!r}")
    return engines


def load_local_predictor(
    model: LocalModel,
    worker_index: int = 0,
    engines: Mapping[str, PredictorEngine] | None = None,
) -> Predictor:
    """Load a model onto the device of the worker `worker_index`.

    Args:
        engines: the engines to choose from; None: all.

    Raises:
        InitError: the file, an engine for it or the device does not exist, or the engine refuses
            the model.
        ConfigError: the plug-in of an engine is broken.
    """
    device = model.device(worker_index)
    if engines is None:
        engines = known_engines(model.engine)
    name, file = _find(model, engines)
    return engines[name].load(replace(model, model_path=file, engine=name), device)


def engine_of(model: LocalModel) -> PredictorEngine:
    """Return the engine of a model. Raises InitError or ConfigError as `load_local_predictor`."""
    engines = known_engines(model.engine)
    return engines[_find(model, engines)[0]]


def _find(model: LocalModel, engines: Mapping[str, PredictorEngine]) -> tuple[str, Path]:
    """Return the engine's name and the model file."""
    if model.engine is not None and model.engine not in engines:
        raise InitError(f"engine: {model.engine!r} is not there; there is {_known(engines)}")
    path = Path(model.model_path)
    if not path.exists():
        raise InitError(f"model_config: {path} does not exist (looked from {Path.cwd()})")
    if model.engine is not None and path.is_file():
        return model.engine, path  # the user named the engine: the file may have any name
    files = [path] if path.is_file() else sorted(entry for entry in path.iterdir())
    is_named = model.engine is not None
    allowed = engines if model.engine is None else {model.engine: engines[model.engine]}
    matches = [
        (name, file)
        for name, engine in allowed.items()
        for file in files
        if engine.runs(file, is_named)
    ]
    if not matches:
        _refuse_without_companion(path, files, allowed)
    if len(matches) != 1:
        raise InitError(
            f"model_config: {path} must be, or hold, exactly one model file of "
            f"{_known(allowed)}; found "
            f"{listed([file.name for file in files]) or 'no file at all'}"
        )
    return matches[0]


def _refuse_without_companion(
    path: Path, files: Sequence[Path], engines: Mapping[str, PredictorEngine]
) -> None:
    """Raise InitError if there is a model without its companion file."""
    for engine in engines.values():
        for file in files:
            companion = file.with_suffix(engine.companion)
            if engine.companion and file.is_file() and file.suffix in engine.suffixes:
                raise InitError(
                    f"model_config: {path}: {file.name} is there, but its weights are not: put "
                    f"{companion.name} beside it (if the model has none, name the file and its "
                    "engine)"
                )


def _known(engines: Mapping[str, PredictorEngine]) -> str:
    return ", ".join(f"{name} ({' '.join(e.suffixes + e.names)})" for name, e in engines.items())


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return `a, b and 3 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


# Log lines about a loaded model
# --------------------------------------------------------------------


class MemoryUse(msgspec.Struct, frozen=True, array_like=True):
    """`kind` is Triton's: "CPU", "CPU_PINNED" or "GPU"; `id` the card's number."""

    kind: str
    id: int
    byte_size: int


class TensorMetadata(msgspec.Struct, frozen=True, array_like=True):
    """`dtype` is numpy's name, "" for text; `shape` has -1 for any size; None means any rank."""

    name: str
    dtype: str
    shape: list[int] | None


class ModelMetadata(msgspec.Struct, frozen=True, array_like=True):
    """One model: its engine, inputs and outputs, and the memory that its loading took."""

    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    memory: list[MemoryUse] = []


def metadata_of(predictor: Any) -> ModelMetadata | None:
    """Return a predictor's metadata; None without a signature, which remote ones may lack."""
    signature = getattr(predictor, "signature", None)  # a script may set `Op.client` to any object
    if signature is None:
        return None
    outputs = [spec for spec in signature.outputs if spec.name in signature.fetch_names]
    return ModelMetadata(
        platform=str(getattr(predictor, "platform", "")),
        inputs=[_tensor_metadata(spec) for spec in signature.inputs],
        outputs=[_tensor_metadata(spec) for spec in outputs],
        memory=list(getattr(predictor, "memory_usage", ())),
    )


def _tensor_metadata(spec: TensorSpec) -> TensorMetadata:
    dtype = "" if spec.dtype == TEXT else np.dtype(spec.dtype).name
    shape = None
    if spec.shape is not None:
        shape = [size if isinstance(size, int) else -1 for size in spec.shape]
    return TensorMetadata(spec.name, dtype, shape)


class LoadMeter:
    """Measures how much this process grows during a load in its `with` block.

    It cannot tell apart the memory of parallel loads in one process.
    """

    _lock = threading.Lock()
    _begun = 0
    _running = 0

    def __enter__(self) -> LoadMeter:
        with LoadMeter._lock:
            LoadMeter._begun += 1
            LoadMeter._running += 1
            self._number = LoadMeter._begun
            self._is_alone = LoadMeter._running == 1
        self._before = _resident_bytes()
        return self

    def uses(self) -> Sequence[MemoryUse]:
        """Return the memory taken so far; empty if it is unknown or not positive."""
        grown = _resident_bytes() - self._before
        with LoadMeter._lock:
            is_alone = self._is_alone and LoadMeter._begun == self._number
        return [MemoryUse("CPU", 0, grown)] if is_alone and grown > 0 else []

    def __exit__(self, *_: object) -> None:
        with LoadMeter._lock:
            LoadMeter._running -= 1


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # not on Linux
        return 0
