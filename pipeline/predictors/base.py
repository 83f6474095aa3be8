"""The predictor seam: what an Op calls to run a model, and which engine runs which model file."""

from __future__ import annotations

import enum
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from pipeline.errors import InitError

Dim = int | str | None
"""One dimension of a tensor: fixed (int), dynamic with a name (str), or dynamic (None)."""

TEXT = np.dtype(object)
"""The dtype of tensors of text."""

_SHOWN_FILES = 8


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
        """The inputs, in the model's order."""

    @property
    def fetch_names(self) -> tuple[str, ...]:
        """What `predict` returns when it is not told otherwise."""

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
            feed: a dict of input name to ndarray, or to list of str for a text input; or a list
                that holds one such dict. The first dimension is the batch. Names that the model
                does not have are ignored.
            fetch: names of the outputs to return, in this order; none: `fetch_names`.
            batch: False if the arrays lack the batch dimension and are one sample.
            log_id: the caller's id of the request; remote predictors pass it on.
            deadline_s: seconds that the answer is waited for. Remote predictors give up then;
                local ones finish a run that has begun.
            legacy: `logid` and `need_variant_tag=False`, accepted from older scripts.

        Raises:
            InputError: a name, dtype or shape is not the model's.
            PayloadTypeError: a value is neither ndarray nor list of str.
            PredictorError: the model failed on this input.
            ClosedError: the predictor was closed.
        """

    def close(self) -> None:
        """Let go of the model. May be called twice; calls of `predict` under way finish."""


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
    """Where one predictor runs. `card` is None for the host's processor; never `BY_CARDS`.

    `warns` is False for all workers of an Op but the first, which would say the same again.
    """

    type: DeviceType
    card: int | None = None
    warns: bool = field(default=True, compare=False)

    @property
    def is_cpu(self) -> bool:
        return self.type in _HOST_DEVICES


@dataclass(frozen=True, slots=True)
class LocalModel:
    """What a local predictor is made from; the fields are keys of `local_service_conf`.

    `model_path` is a model file, or a folder that holds exactly one. No `engine`: the file's
    suffix decides. `devices` is a comma list of card numbers, empty for the CPU.
    `ir_optim` and `use_mkldnn` are the engine's own choice where they are None.
    `dynamic_shapes` has what the Op's `set_dynamic_shape_info` says: under "min_input_shape",
    "max_input_shape" and "opt_input_shape" a dict of input name to shape each.
    """

    model_path: str | Path
    engine: str | None = None
    fetch_list: Sequence[str] | None = None
    thread_num: int = 2
    device_type: int = DeviceType.BY_CARDS
    devices: str = ""
    precision: str = "fp32"
    ir_optim: bool | None = None
    mem_optim: bool = True
    use_calib: bool = False
    use_mkldnn: bool | None = None
    mkldnn_cache_capacity: int = 0
    mkldnn_op_list: Sequence[str] | None = None
    mkldnn_bf16_op_list: Sequence[str] | None = None
    min_subgraph_size: int = 3
    dynamic_shapes: Mapping[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)

    def device(self, worker_index: int = 0) -> Device:
        """The device of one worker: the cards of `devices` are given out in turn.

        Raises:
            InitError: `device_type` is none of ours, or needs a card and `devices` has none.
        """
        cards = self._cards()
        try:
            wanted = DeviceType(self.device_type)
        except ValueError as error:
            known = ", ".join(f"{kind.value} {kind.name}" for kind in DeviceType)
            raise InitError(f"device_type: {self.device_type} is none of {known}") from error
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


@dataclass(frozen=True, slots=True)
class PredictorEngine:
    """A way to run model files. `module` has `load(model: LocalModel, device: Device)`.

    A file is a model if it has one of `names`, or one of `suffixes`; with `companion`, only if a
    file of the same stem and that suffix lies beside it.
    """

    module: str
    suffixes: tuple[str, ...]
    companion: str = ""
    names: tuple[str, ...] = ()

    def runs(self, file: Path) -> bool:
        """Whether `file` is a model of this engine."""
        if not file.is_file():
            return False
        if file.name in self.names:
            return True
        has_companion = not self.companion or file.with_suffix(self.companion).is_file()
        return file.suffix in self.suffixes and has_companion


ENGINES: Mapping[str, PredictorEngine] = MappingProxyType(
    {
        "onnx": PredictorEngine("pipeline.predictors.onnx.predictor", (".onnx",)),
        "paddle": PredictorEngine(
            "pipeline.predictors.paddle.predictor",
            (".pdmodel", ".json"),
            companion=".pdiparams",
            names=("__model__",),  # its weights may be a file for each variable
        ),
    }
)
"""`local_service_conf.engine` to the module that runs it: a new engine is a file and a line."""


def load_local_predictor(
    model: LocalModel, worker_index: int = 0, engines: Mapping[str, PredictorEngine] = ENGINES
) -> Predictor:
    """Load a model onto the device that `worker_index` is given.

    Raises:
        InitError: no such file, no engine for it, no such device, or the engine refuses it.
    """
    device = model.device(worker_index)
    name, file = _find(model, engines)
    module = importlib.import_module(engines[name].module)
    predictor: Predictor = module.load(replace(model, model_path=file, engine=name), device)
    return predictor


def _find(model: LocalModel, engines: Mapping[str, PredictorEngine]) -> tuple[str, Path]:
    """The engine's name and the model file."""
    if model.engine is not None and model.engine not in engines:
        raise InitError(f"engine: {model.engine!r} is not there; there is {_known(engines)}")
    path = Path(model.model_path)
    if not path.exists():
        raise InitError(f"model_config: {path} does not exist (looked from {Path.cwd()})")
    if model.engine is not None and path.is_file():
        return model.engine, path  # named by the user: the file may be called anything
    files = [path] if path.is_file() else sorted(entry for entry in path.iterdir())
    allowed = engines if model.engine is None else {model.engine: engines[model.engine]}
    matches = [
        (name, file) for name, engine in allowed.items() for file in files if engine.runs(file)
    ]
    if not matches:
        _refuse_without_companion(path, files, allowed)
    if len(matches) != 1:
        raise InitError(
            f"model_config: {path} must be, or hold, exactly one model file of "
            f"{_known(allowed)}; found {_listed(files)}"
        )
    return matches[0]


def _refuse_without_companion(
    path: Path, files: Sequence[Path], engines: Mapping[str, PredictorEngine]
) -> None:
    """Raise InitError if there is a model, but not the file that belongs beside it."""
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


def _listed(files: Sequence[Path]) -> str:
    names = ", ".join(file.name for file in files[:_SHOWN_FILES]) or "no file at all"
    more = len(files) - _SHOWN_FILES
    return f"{names} and {more} more" if more > 0 else names
