"""Tensors of onnxruntime as numpy arrays, and runners of sessions: on the host, or on a card."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from pipeline.errors import InitError
from pipeline.predictors.base import TEXT, TensorSpec, listed
from pipeline.predictors.local import Run, brief
from pipeline.predictors.signature import ModelSignature

ELEMENT_TYPES = {
    np.dtype(ml_dtypes.bfloat16): 16,
    np.dtype(ml_dtypes.float8_e4m3fn): 17,
    np.dtype(ml_dtypes.float8_e4m3fnuz): 18,
    np.dtype(ml_dtypes.float8_e5m2): 19,
    np.dtype(ml_dtypes.float8_e5m2fnuz): 20,
}
"""TensorProto.DataType of the dtypes that numpy lacks: onnxruntime accepts no arrays of them."""

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")

DTYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(double)": np.dtype(np.float64),
    "tensor(string)": TEXT,
    **{f"tensor({name})": np.dtype(name) for name in (*_INTEGERS, "float16")},
    **{f"tensor({dtype.name.replace('_', '')})": dtype for dtype in ELEMENT_TYPES},
}
"""onnxruntime's name of a tensor type to numpy's dtype; object stands for text."""


class DeviceMemory(NamedTuple):
    """Memory of a card by onnxruntime's name for its kind, such as "cuda"."""

    kind: str
    card: int


_PROBABILITIES = frozenset(f"seq(map({kind},tensor(float)))" for kind in ("string", "int64"))
"""Types of a classifier's probabilities after ZipMap: one dict per row, by class."""


def input_spec(model: str, node: Any, scalars: Collection[str] = ()) -> TensorSpec:
    """Return an input, an onnxruntime NodeArg, as TensorSpec.

    Args:
        scalars: inputs of rank 0, which onnxruntime describes like an unknown rank.

    Raises InitError: it is a sequence, a map or an optional, or has elements that numpy lacks.
    """
    dtype = DTYPES.get(node.type)
    if dtype is None:
        raise InitError(f"[{model}] the input {node.name!r} {_wrong_with(node)}")
    return TensorSpec(node.name, dtype, () if node.name in scalars else tuple(node.shape) or None)


def output_specs(
    model: str, nodes: Sequence[Any], fetch_list: Sequence[str] | None, scalars: Collection[str]
) -> list[TensorSpec]:
    """Return the outputs; with `fetch_list` only outputs that can be fetched.

    Probabilities that ZipMap turned into dicts become an array with a column for each class.

    Raises InitError: an output of `fetch_list` is not an array.
    """
    specs, odd = [], []
    for node in nodes:
        if node.type in _PROBABILITIES:
            specs.append(TensorSpec(node.name, np.dtype(np.float32), (None, None)))
        elif node.type in DTYPES:
            specs.append(input_spec(model, node, scalars))
        elif not fetch_list or node.name in fetch_list:
            odd.append(node)
    if not odd:
        return specs
    mend = ""
    if specs:
        others = listed([repr(spec.name) for spec in specs])
        mend = f", or name the others in fetch_list (output of config.pbtxt): {others}"
    raise InitError(f"[{model}] the output {odd[0].name!r} {_wrong_with(odd[0])}{mend}")


def _wrong_with(node: Any) -> str:
    if node.type.startswith("tensor("):
        return f"is {node.type}, which numpy lacks: cast it in the model, to int8 for example"
    return f"is {node.type} and no tensor: export the model with tensors"


def probabilities_of(nodes: Sequence[Any]) -> Collection[str]:
    """Return the outputs that ZipMap turned into dicts."""
    return frozenset(node.name for node in nodes if node.type in _PROBABILITIES)


def session_runner(
    runtime: Any, session: Any, signature: ModelSignature, memory: DeviceMemory | None = None
) -> Run:
    """Return a thread-safe runner of `session` for a model with this signature.

    Args:
        memory: the memory in which the session computes; None: the host's memory.

    Raises InitError: onnxruntime's Python interface does not accept such inputs.
    """
    dicts = probabilities_of(session.get_outputs())
    if dicts:
        return ProbabilitiesRunner(session.run, dicts)
    dtypes = {spec.dtype for spec in (*signature.inputs, *signature.outputs)}
    if dtypes & ELEMENT_TYPES.keys():
        return ValueRunner(runtime, session, signature)
    if memory is not None and TEXT not in dtypes:  # cards cannot hold text
        return BoundRunner(session, memory)
    run: Run = session.run
    return run


class BoundRunner:
    """A runner on a card: each array is copied to it once, each output back once.

    `session.run` would copy an output twice: to its own memory, and from there to an array. Outputs
    are bound by device only, so their shapes may differ between runs. Each call has its own
    binding, so calls may overlap.
    """

    def __init__(self, session: Any, memory: DeviceMemory) -> None:
        self._session = session
        self._memory = memory

    def __call__(
        self, names: Sequence[str], arrays: Mapping[str, np.ndarray]
    ) -> Sequence[np.ndarray]:
        binding = self._session.io_binding()
        for name, array in arrays.items():
            binding.bind_cpu_input(name, _one_block(array))
        outputs = dict.fromkeys(names)  # a repeated name is bound once
        for name in outputs:
            binding.bind_output(name, self._memory.kind, self._memory.card)
        self._session.run_with_iobinding(binding)
        values = dict(zip(outputs, binding.copy_outputs_to_cpu(), strict=True))
        return [values[name] for name in names]


class ProbabilitiesRunner:
    """A runner that turns `dicts`, outputs with a dict per row, into arrays with a column per key.

    The columns are in onnxruntime's order of the keys, which is sorted.
    """

    def __init__(self, run: Run, dicts: Collection[str]) -> None:
        self._run = run
        self._dicts = dicts

    def __call__(
        self, names: Sequence[str], arrays: Mapping[str, np.ndarray]
    ) -> Sequence[np.ndarray]:
        values: Sequence[Any] = self._run(names, arrays)
        return [
            _columns(value) if name in self._dicts else value
            for name, value in zip(names, values, strict=True)
        ]


def _columns(rows: Sequence[Mapping[Any, float]]) -> np.ndarray:
    if not rows:
        return np.empty((0, 0), np.float32)  # without rows the classes are unknown
    return np.array([[row[key] for key in sorted(rows[0])] for row in rows], np.float32)


class ValueRunner:
    """A runner of models with tensors of dtypes that numpy lacks, such as bfloat16."""

    def __init__(self, runtime: Any, session: Any, signature: ModelSignature) -> None:
        if any(spec.dtype == TEXT for spec in signature.inputs):
            raise InitError(
                f"[{signature.model}] onnxruntime cannot be fed text by a model that also has "
                "bfloat16 or float8 tensors: export the model with float32 there"
            )
        self._make = runtime.OrtValue
        if not hasattr(self._make, "ortvalue_from_numpy_with_onnx_type"):
            raise InitError(
                f"[{signature.model}] this onnxruntime cannot be fed bfloat16 or float8 tensors: "
                "upgrade it, or export the model with float32 there"
            )
        self._session = session
        self._dtypes = {spec.name: spec.dtype for spec in signature.outputs}

    def __call__(
        self, names: Sequence[str], arrays: Mapping[str, np.ndarray]
    ) -> Sequence[np.ndarray]:
        # onnxruntime's value uses the array's memory: the array must live until the run has ended.
        kept = {name: _one_block(array) for name, array in arrays.items()}
        feed = {name: self._value(array) for name, array in kept.items()}
        values = self._session.run_with_ort_values(list(names), feed)
        return [
            _copied(value, self._dtypes[name]) for name, value in zip(names, values, strict=True)
        ]

    def _value(self, array: np.ndarray) -> Any:
        element_type = ELEMENT_TYPES.get(array.dtype)
        if element_type is None:
            return self._make.ortvalue_from_numpy(array)
        return self._make.ortvalue_from_numpy_with_onnx_type(array, element_type)


def _one_block(array: np.ndarray) -> np.ndarray:
    """Return the array in C order, which onnxruntime requires; a scalar keeps its rank of zero."""
    return np.asarray(array, order="C")


def _copied(value: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """Return the array of an OrtValue, copied from memory where `numpy()` cannot convert it."""
    if dtype not in ELEMENT_TYPES:
        array: np.ndarray = value.numpy()
        return array
    if value.device_name() != "cpu":  # its address is not in this process's memory
        raise RuntimeError(f"a {dtype} output lies on {value.device_name()}")
    size = value.tensor_size_in_bytes()
    raw = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(bytearray(raw), dtype).reshape(value.shape())


# Errors of onnxruntime --------------------------------------------------------------------------


_LFS_POINTER = b"version https://git-lfs"

_NO_MODEL = (
    "it is not an ONNX file, or is cut short or damaged: compare its size with the original's, and "
    "copy or export it again"
)
_TOO_NEW = "upgrade onnxruntime, or export the model for an older one"
_NO_WEIGHTS = (
    "is missing, which has weights of the model: copy it beside the model file, under the name "
    "that it was exported with"
)
_DEVICE = "see that its number in devices is right, its driver fits, and it has memory left"

_CAUSES = (
    (r"INVALID_PROTOBUF|No graph was found|does not have a graph", _NO_MODEL),
    (
        r"Unsupported model IR version: (\d+), max supported IR version: (\d+)",
        f"its ir_version is {{0}}, and this onnxruntime reads up to {{1}}: {_TOO_NEW}",
    ),
    (
        r"pset (\d+) is under development.*?till opset (\d+)",
        f"its opset is {{0}}, and this onnxruntime knows up to {{1}}: {_TOO_NEW}",
    ),
    (
        r"No Op registered for (\S+) with domain_version of (\d+)",
        "opset {1}, as this onnxruntime knows it, has no operator {0}: upgrade onnxruntime, "
        "or export the model without it",
    ),
    (
        r"Fatal error: (\S+?)\(-?\d+\) is not a registered function/op",
        "this onnxruntime has no operator {0}: export the model without it",
    ),
    (
        r"Could not find an implementation for (\S+?)\(",
        "onnxruntime has no {0} for the types that the model gives it on this device: export "
        "it with other types, such as float32",
    ),
    (r"xternal data path does not exist: \"(.+?)\"", f"{{0}} {_NO_WEIGHTS}"),
    (r"No such file or directory \[(.+?)\]", f"{{0}} {_NO_WEIGHTS}"),
    (r"GetFileLength for (.+?) failed", f"{{0}} {_NO_WEIGHTS}"),
    (
        r"External initializer: (\S+) .*(?:out of bounds|can not be read in full)",
        "the file beside it that has the weights of {0} is cut short: copy it again",
    ),
    (
        r"install TensorRT libraries",
        "TensorRT cannot be loaded: install it with the CUDA that this onnxruntime was built "
        "for, and have libnvinfer in LD_LIBRARY_PATH",
    ),
    (r"CUDA failure \d+: (.+?) ;", f"the card cannot be used ({{0}}): {_DEVICE}"),
    (r"Invalid device ID: (\d+)", f"there is no card {{0}}: {_DEVICE}"),
)


def why_it_does_not_load(path: Path, error: Exception) -> str:
    """Return the cause and the remedy of a failed load; onnxruntime's text if they are unknown."""
    if _is_lfs_pointer(path):
        return "it is a pointer of Git LFS, not the model itself: run `git lfs pull`"
    text = " ".join(str(error).split())
    for pattern, cause in _CAUSES:
        if match := re.search(pattern, text):
            return f"{cause.format(*match.groups())} (onnxruntime: {brief(error)})"
    return brief(error)


def _is_lfs_pointer(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_LFS_POINTER)) == _LFS_POINTER
    except OSError:
        return False
