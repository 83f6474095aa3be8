"""Predictor of Paddle models in this process, on paddle.inference."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
import os
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from pipeline.errors import ClosedError, InitError, InputError, PredictorError, one_line
from pipeline.predictors.base import TEXT, Device, LoadMeter, MemoryUse
from pipeline.predictors.model_conf import conf_beside
from pipeline.predictors.paddle import PaddleModel
from pipeline.predictors.paddle.config import check_device, check_quantized, configure
from pipeline.predictors.paddle.interface import PaddleInterface, interface, offsets
from pipeline.predictors.paddle.program import ModelFiles, find_weights, read_program
from pipeline.predictors.signature import (
    LOD,
    ModelSignature,
    answer_without_rows,
    only_feed,
    refuse_unknown_arguments,
)

_LOGGER = logging.getLogger(__name__)

# Paddle's errors: a C++ stack, a headline, then the part for users.
_BEFORE_SUMMARY = re.compile(r".*Error Message Summary:\s*-+", re.S)
_HANDLED = frozenset(("BOOL", "UINT8", "INT8", "INT32", "INT64", "FLOAT16", "FLOAT32", "FLOAT64"))
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_PLACE_IN_PADDLE = re.compile(r"\s*\(at /\S+:\d+\)")


class PaddlePredictor:
    """A Paddle predictor, and clones of it that share its weights, as a `Predictor`.

    Only one call at a time uses a Paddle predictor. Overlapping calls each get a clone, which is
    kept for later calls. `memory_usage` is the host memory that loading took.
    """

    platform = "paddle_inference"
    holds_gil = True
    """Paddle holds the GIL for the whole run, so no other Python code of the process runs."""

    def __init__(
        self, root: Any, face: PaddleInterface, paddle: Any, takes_empty: bool = False
    ) -> None:
        self.memory_usage: Sequence[MemoryUse] = ()
        self.signature: ModelSignature = face.signature
        self.feed_names: tuple[str, ...] = face.signature.feed_names
        self.fetch_names: tuple[str, ...] = face.signature.fetch_names
        self._face = face
        self._root: Any = root
        self._paddle = paddle
        self._takes_empty = takes_empty
        self._free = [self._runner(root)]
        self._lock = threading.Lock()

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
        """Run the model once: see `Predictor.predict`.

        The feed may have "x.lod" for "x": the starts of the sequences in x, and finally its number
        of rows. The answer has "y.lod" (int32) for an output y with LoD.
        """
        if legacy:
            refuse_unknown_arguments(legacy)
        if self._root is None:
            raise ClosedError(f"[{self.signature.model}] the predictor is closed")
        names = self.signature.fetch(fetch)
        feed = self._face.by_alias(only_feed(self.signature.model, feed))
        arrays = self.signature.feed(feed, batch)
        lods = {
            name: offsets(self.signature.model, name, feed[name + LOD], len(array))
            for name, array in arrays.items()
            if name + LOD in feed and array.ndim
        }
        if not self._takes_empty:
            has_lod = bool(lods or self._face.wants_lod or self._face.row_counts)
            answer = answer_without_rows(self.signature, arrays, names, not has_lod)
            if answer is not None:
                return answer
        runner = self._take()
        try:
            return runner(arrays, lods, names)
        except InputError:
            raise
        except Exception as error:  # Paddle raises nearly every built-in exception
            text = f"[{self.signature.model}] the model failed: {brief(error)}"
            if odd := self.signature.odd_shapes(arrays):
                raise InputError(f"{text} ({odd})") from error
            raise PredictorError(text) from error
        finally:
            with self._lock:
                if self._root is not None:
                    self._free.append(runner)

    def warm_up(self) -> None:
        """Run once on zeros if the program has all shapes, because the first run is slow."""
        arrays = {}
        for spec in self.signature.inputs:
            # The first axis is the batch.
            first, *others = spec.shape or (None,)
            shape = (1 if first is None else first, *others) if spec.shape else ()
            fixed = tuple(dim for dim in shape if isinstance(dim, int))
            if spec.dtype == TEXT or len(fixed) < len(shape):
                return
            arrays[spec.name] = np.zeros(fixed, spec.dtype)
        try:
            self.predict(arrays)
        except (InputError, PredictorError) as error:
            _LOGGER.warning("warm-up with zeros: %s", error)

    def close(self) -> None:
        """Release the model; it is freed when the last call in progress has ended."""
        with self._lock:
            self._root = None
            self._free.clear()

    def _runner(self, predictor: Any) -> _Runner:
        if self._face.needs_tensors:
            return _TensorRunner(predictor, self._face, self._paddle)
        return _Runner(predictor, self._face)

    def _take(self) -> _Runner:
        with self._lock:
            if self._free:
                return self._free.pop()
            root = self._root
            if root is None:
                raise ClosedError(f"[{self.signature.model}] the predictor is closed")
            try:
                return self._runner(root.clone())
            except Exception as error:  # as above; for example, the card has no memory left
                raise PredictorError(
                    f"[{self.signature.model}] cannot be cloned for a call beside others: "
                    f"{brief(error)}"
                ) from error


class _Runner:
    """A Paddle predictor with the handles of its inputs and outputs. For one call at a time."""

    def __init__(self, predictor: Any, face: PaddleInterface) -> None:
        self._predictor = predictor
        self._inputs = {
            alias: predictor.get_input_handle(name) for alias, name in face.feeds.items()
        }
        self._outputs = {
            alias: predictor.get_output_handle(name) for alias, name in face.fetches.items()
        }
        self._counts = {
            alias: predictor.get_output_handle(name) for alias, name in face.row_counts.items()
        }
        self._have_lod: set[str] = set()

    def __call__(
        self,
        arrays: Mapping[str, np.ndarray],
        lods: Mapping[str, list[list[int]]],
        names: Sequence[str],
    ) -> dict[str, np.ndarray]:
        output = self._run(arrays, lods)
        result = {}
        for name in names:
            result[name] = output(name)
            if levels := self._outputs[name].lod():
                result[name + LOD] = np.array(levels[0], np.int32)
            elif name in self._counts:  # newer versions of Paddle have no LoD for boxes
                ends = np.cumsum(self._counts[name].copy_to_cpu())
                result[name + LOD] = np.concatenate(([0], ends)).astype(np.int32)
        # Otherwise Paddle keeps memory for every shape so far: 4.4 GB for the lines of a page.
        self._predictor.clear_intermediate_tensor()
        return result

    def _run(
        self, arrays: Mapping[str, np.ndarray], lods: Mapping[str, list[list[int]]]
    ) -> Callable[[str], np.ndarray]:
        """Run on the arrays; return a getter of outputs."""
        for name, array in arrays.items():
            handle = self._inputs[name]
            handle.copy_from_cpu(_as_fed(array))
            self._set_lod(name, handle, lods.get(name))
        self._predictor.run()
        return self._copy

    def _copy(self, name: str) -> np.ndarray:
        handle = self._outputs[name]
        kind = handle.type().name
        if kind not in _HANDLED:  # Paddle would return its memory as float32
            raise TypeError(f"output {name!r} came as {kind}, which its program does not say")
        array: np.ndarray = handle.copy_to_cpu()
        return array

    def _set_lod(self, name: str, handle: Any, lod: list[list[int]] | None) -> None:
        """Set an input's LoD, or remove that of an earlier call."""
        if lod is not None:
            self._have_lod.add(name)
            handle.set_lod(lod)
        elif name in self._have_lod:
            self._have_lod.discard(name)
            handle.set_lod([])


class _TensorRunner(_Runner):
    """A runner of a model with types that only Paddle's tensors carry, not its handles."""

    def __init__(self, predictor: Any, face: PaddleInterface, paddle: Any) -> None:
        super().__init__(predictor, face)
        self._paddle = paddle
        self._model = face.signature.model
        aliases = {name: alias for alias, name in face.feeds.items()}
        self._feeds = [aliases[name] for name in predictor.get_input_names()]
        places = {name: at for at, name in enumerate(predictor.get_output_names())}
        self._places = {alias: places[name] for alias, name in face.fetches.items()}

    def _run(
        self, arrays: Mapping[str, np.ndarray], lods: Mapping[str, list[list[int]]]
    ) -> Callable[[str], np.ndarray]:
        if lods:
            names = ", ".join(name + LOD for name in lods)
            raise InputError(
                f"[{self._model}] {names}: Paddle takes no offsets beside bfloat16, int16 and "
                "complex numbers"
            )
        with _dynamic_mode(self._paddle):
            tensors = [self._paddle.Tensor(_as_bits(arrays[alias])) for alias in self._feeds]
            tensors_out = self._predictor.run(tensors)
            outputs = [
                _from_bits(tensor.numpy(), tensor.dtype == self._paddle.bfloat16)
                for tensor in tensors_out
            ]
        return lambda name: outputs[self._places[name]]


def _as_bits(array: np.ndarray) -> np.ndarray:
    """Return an array for a Paddle tensor: for bfloat16, its bits."""
    return array.view(np.uint16) if array.dtype == _BFLOAT16 else array


def _from_bits(array: np.ndarray, is_bfloat16: bool) -> np.ndarray:
    return array.view(_BFLOAT16) if is_bfloat16 else array


_one_mode = threading.Lock()


@contextmanager
def _dynamic_mode(paddle: Any) -> Iterator[None]:
    """Allow tensors to be made, also after a script has called `paddle.enable_static()`.

    The mode is global, and Paddle ends the process if a tensor is made in static mode. The lock is
    needed in both modes: a dynamic mode may come from another thread's guard, which will end.
    """
    with _one_mode:
        if paddle.in_dynamic_mode():
            yield
            return
        with paddle.base.dygraph.guard():
            yield


def _as_fed(array: np.ndarray) -> Any:
    """Return a value for Paddle: text as a list; arrays in C order, or it misreads their type."""
    if array.dtype == TEXT:
        return array.reshape(-1).tolist()
    return array if array.flags.c_contiguous else array.copy()


def load(model: PaddleModel, device: Device, paddle: Any = None) -> PaddlePredictor:
    """Load a Paddle model.

    `model_path` is the program: a `.pdmodel`, `.json` or `__model__` file. Its weights, and an
    optional `serving_server_conf.prototxt`, are in the same folder.

    Raises InitError: Paddle is missing or refuses the files, or cannot use the device.
    """
    path = Path(model.model_path)
    program = read_program(path)
    files = find_weights(path, program)
    conf = conf_beside(path)
    if paddle is None:
        paddle = import_paddle(path.name)
    check_device(paddle, path.name, model, device)
    check_quantized(path.name, model, device, program)
    feeds = {var.alias: var.name for var in conf.feeds} if conf else {}
    with _refusals(files), LoadMeter() as meter:
        config = configure(paddle.inference, files, model, device, feeds)
        root = paddle.inference.create_predictor(config)
        inputs, outputs = root.get_input_names(), root.get_output_names()
        face = interface(path.name, program, inputs, outputs, conf, model.fetch_list)
        predictor = PaddlePredictor(root, face, paddle, model.takes_empty)
        predictor.memory_usage = meter.uses()
    if not face.wants_lod:
        predictor.warm_up()
    return predictor


def import_paddle(name: str = "") -> Any:
    """Import Paddle; `name` is the model's. Raises InitError: the import fails."""
    try:
        with preserve_process_state():
            paddle = importlib.import_module("paddle")
            importlib.import_module("paddle.inference")
    except Exception as error:  # a broken installation may raise anything
        raise InitError(
            f"[{name}] Paddle models need paddlepaddle, which cannot be imported ({error}): "
            "pip install 'pipeline-serving[paddle]'"
        ) from error
    return paddle


@contextmanager
def _refusals(files: ModelFiles) -> Iterator[None]:
    """Convert Paddle's errors while it loads a model to InitError."""
    try:
        yield
    except InitError:
        raise
    except Exception as error:  # Paddle raises nearly every built-in exception
        weights = "the weights beside it" if files.weights is None else files.weights.name
        raise InitError(
            f"model_config: cannot load {files.program} with {weights}: {brief(error)}"
        ) from error


def brief(error: Exception) -> str:
    """Return one line of Paddle's error that is short enough for an answer and a log."""
    text = _BEFORE_SUMMARY.sub("", str(error))
    return one_line(_PLACE_IN_PADDLE.sub("", text)) or type(error).__name__


# The process around an import of Paddle ---------------------------------------------------------


# Paddle handles these signals itself, also SIGTERM: a server that has to stop would print a C++
# stack and die. `paddle.disable_signal_handler` sets the default actions, not the earlier ones.
_TAKEN = (
    signal.SIGSEGV,
    signal.SIGILL,
    signal.SIGFPE,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGTERM,
)
_MAX_ACTION_BYTES = 512  # struct sigaction has 152 on Linux


@contextlib.contextmanager
def preserve_process_state() -> Iterator[None]:
    """Keep signal handlers, the root logger and the filters of warnings unchanged.

    Paddle also adds a handler to the root logger, sets its level, and warns about tools that only
    its extensions need.
    """
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    # Otherwise its C++ part writes INFO lines to stderr until the first model is loaded.
    os.environ.setdefault("GLOG_minloglevel", "2")
    try:
        with _signals_kept(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for handler in set(root.handlers) - set(handlers):
            root.removeHandler(handler)
        root.setLevel(level)


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep all handlers, also handlers that Python's `signal` cannot read or set."""
    sigaction = ctypes.CDLL(None).sigaction
    kept = {number: ctypes.create_string_buffer(_MAX_ACTION_BYTES) for number in _TAKEN}
    for number, action in kept.items():
        sigaction(int(number), None, action)
    # A signal in the meantime waits if this is the only thread.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        for number, action in kept.items():
            sigaction(int(number), action, None)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
