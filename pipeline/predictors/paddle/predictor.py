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

# Paddle's errors: a stack of C++, a headline, then what the user can use.
_BEFORE_SUMMARY = re.compile(r".*Error Message Summary:\s*-+", re.S)
_HANDLED = frozenset(("BOOL", "UINT8", "INT8", "INT32", "INT64", "FLOAT16", "FLOAT32", "FLOAT64"))
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_PLACE_IN_PADDLE = re.compile(r"\s*\(at /\S+:\d+\)")


class PaddlePredictor:
    """A Paddle predictor, and clones of it that share its weights, as a `Predictor`.

    A predictor of Paddle's is used by one call at a time; calls that overlap get a clone each,
    which stays for later calls. `memory_usage`: what loading took of the host's memory.
    """

    platform = "paddle_inference"
    holds_gil = True
    """Paddle keeps the GIL for the whole run: in a thread no other Python code runs meanwhile."""

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

        The feed may hold "x.lod" beside "x": where the sequences in x start, and at last its
        number of rows. The answer has "y.lod" (int32) beside an output y that has LoD.
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
        """Run once on zeros, where the program says all shapes: the first run is a slow one."""
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
        """Let go of the model; it is freed when the last call under way has ended."""
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
            except Exception as error:  # as above; a card may have no memory left, for example
                raise PredictorError(
                    f"[{self.signature.model}] cannot be cloned for a call beside others: "
                    f"{brief(error)}"
                ) from error


class _Runner:
    """One predictor of Paddle's with its inputs and outputs at hand. For one call at a time."""

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
            elif name in self._counts:  # newer Paddle gives no LoD of boxes
                ends = np.cumsum(self._counts[name].copy_to_cpu())
                result[name + LOD] = np.concatenate(([0], ends)).astype(np.int32)
        # Else the memory of every shape that was ever fed is kept: 4.4 GB for the lines of a page.
        self._predictor.clear_intermediate_tensor()
        return result

    def _run(
        self, arrays: Mapping[str, np.ndarray], lods: Mapping[str, list[list[int]]]
    ) -> Callable[[str], np.ndarray]:
        """Run on the arrays, and return what gives each output."""
        for name, array in arrays.items():
            handle = self._inputs[name]
            handle.copy_from_cpu(_as_fed(array))
            self._set_lod(name, handle, lods.get(name))
        self._predictor.run()
        return self._copy

    def _copy(self, name: str) -> np.ndarray:
        handle = self._outputs[name]
        kind = handle.type().name
        if kind not in _HANDLED:  # its memory would be handed out as float32
            raise TypeError(f"output {name!r} came as {kind}, which its program does not say")
        array: np.ndarray = handle.copy_to_cpu()
        return array

    def _set_lod(self, name: str, handle: Any, lod: list[list[int]] | None) -> None:
        """Set an input's LoD, or take away what an earlier call set."""
        if lod is not None:
            self._have_lod.add(name)
            handle.set_lod(lod)
        elif name in self._have_lod:
            self._have_lod.discard(name)
            handle.set_lod([])


class _TensorRunner(_Runner):
    """A runner of a model with types that Paddle's handles cannot carry, but its tensors can."""

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
    """Return what Paddle takes for a tensor: of bfloat16, its bits."""
    return array.view(np.uint16) if array.dtype == _BFLOAT16 else array


def _from_bits(array: np.ndarray, is_bfloat16: bool) -> np.ndarray:
    return array.view(_BFLOAT16) if is_bfloat16 else array


_one_mode = threading.Lock()


@contextmanager
def _dynamic_mode(paddle: Any) -> Iterator[None]:
    """Let tensors be made, also where a script has called `paddle.enable_static()`.

    The mode is the whole process's; Paddle ends the process when one is made in the other. The lock
    is held in both: what looks like the dynamic mode may be another thread's guard, which ends.
    """
    with _one_mode:
        if paddle.in_dynamic_mode():
            yield
            return
        with paddle.base.dygraph.guard():
            yield


def _as_fed(array: np.ndarray) -> Any:
    """Return what Paddle takes: text as a list; of an array not in C order it mistakes the type."""
    if array.dtype == TEXT:
        return array.reshape(-1).tolist()
    return array if array.flags.c_contiguous else array.copy()


def load(model: PaddleModel, device: Device, paddle: Any = None) -> PaddlePredictor:
    """Load a Paddle model.

    `model_path` is the program: a `.pdmodel`, `.json` or `__model__` file, with its weights, and
    perhaps `serving_server_conf.prototxt`, beside it.

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
    """Import Paddle, for the model of a name. InitError: it cannot be."""
    try:
        with preserve_process_state():
            paddle = importlib.import_module("paddle")
            importlib.import_module("paddle.inference")
    except Exception as error:  # a broken installation raises what it likes
        raise InitError(
            f"[{name}] Paddle models need paddlepaddle, which cannot be imported ({error}): "
            "pip install 'pipeline-serving[paddle]'"
        ) from error
    return paddle


@contextmanager
def _refusals(files: ModelFiles) -> Iterator[None]:
    """Raise what Paddle raises while it loads a model as InitError."""
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


# Paddle takes these for itself, also SIGTERM: a server told to stop would print a stack of C++
# and die. `paddle.disable_signal_handler` sets the default actions, not those from before.
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

    Paddle also adds a handler to the root logger and sets its level, and warns of tools that only
    its extensions need.
    """
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    # Its C++ part would otherwise write INFO lines to stderr until the first model is loaded.
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
    """Keep all handlers; Python's `signal` knows and sets only its own, on the main thread."""
    sigaction = ctypes.CDLL(None).sigaction
    kept = {number: ctypes.create_string_buffer(_MAX_ACTION_BYTES) for number in _TAKEN}
    for number, action in kept.items():
        sigaction(int(number), None, action)
    # One that comes meanwhile waits, where this is the only thread.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        for number, action in kept.items():
            sigaction(int(number), action, None)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
