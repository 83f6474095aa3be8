"""Reads a Paddle program file without Paddle: its variables, and the files of its weights.

`paddle.inference` reports neither shapes nor dtypes of a model's inputs, and ends the process for
some files that are not programs.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np
import orjson
from google.protobuf.message import DecodeError

from pipeline.errors import InitError
from pipeline.predictors.base import Dim, listed
from pipeline.proto import paddle_program_pb2 as pb

_TEXTS = 26
_QUANTIZE = "quantize"  # also "dequantize", "fake_quantize" and similar Ops
_FETCH = "fetch"
_SELECT_BOXES = frozenset({"multiclass_nms3", "matrix_nms"})
_KEEP_ROWS = frozenset({"scale", "assign", "cast", "share_data"})
_COUNTS_AT = 2  # index among the outputs of the former, in a `.json` program
# FEED_MINIBATCH, FETCH_LIST and RAW: persistable variables that no file contains.
_NOT_SAVED = {9, 10, 17}

_TYPES = (
    (0, "t_bool", np.bool_),
    (1, "t_i16", np.int16),
    (2, "t_i32", np.int32),
    (3, "t_i64", np.int64),
    (4, "t_f16", np.float16),
    (5, "t_f32", np.float32),
    (6, "t_f64", np.float64),
    (20, "t_ui8", np.uint8),
    (21, "t_i8", np.int8),
    (22, "t_bf16", ml_dtypes.bfloat16),
    (23, "t_c64", np.complex64),
    (24, "t_c128", np.complex128),
)
"""Paddle's VarType.Type, the name in `.json` programs without its dialect, numpy's dtype."""

NUMBERS: Mapping[int, np.dtype[Any]] = {number: np.dtype(kind) for number, _, kind in _TYPES}
"""The dtypes of numbers by VarType.Type."""

_DTYPES = {**NUMBERS, _TEXTS: np.dtype(object)}
_JSON_DTYPES = {name: np.dtype(kind) for _, name, kind in _TYPES}


class ProgramVar(NamedTuple):
    """A variable as the program declares it. `dtype` is None for a type that numpy lacks."""

    dtype: np.dtype[Any] | None
    shape: tuple[Dim, ...]
    has_lod: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """The variables of a program by name, and the number of elements of each of its weights.

    A `.json` program names only its inputs and outputs. `is_quantized`: some operators convert to
    or from int8; this is also Paddle's criterion. `row_counts` maps an output with the boxes of all
    samples to the output with the number of boxes per sample.
    """

    vars: Mapping[str, ProgramVar]
    weights: Mapping[str, int]
    is_quantized: bool = False
    row_counts: Mapping[str, str] = field(default_factory=dict)


def read_program(path: Path) -> Program:
    """Read a `.pdmodel`, `__model__` or `.json` file.

    Raises InitError: the file cannot be read or is not a Paddle program.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InitError(f"model_config: cannot read {path}: {error}") from error
    try:
        return _from_json(content) if path.suffix == ".json" else _from_protobuf(content)
    except (ValueError, DecodeError, LookupError, TypeError, AttributeError) as error:
        content_size = f"its {len(content)} bytes" if content else "the file is empty, it"
        raise InitError(
            f"model_config: {path} is no Paddle program: {content_size} cannot be read as one. "
            "It is damaged, encrypted (which is not supported) or of another kind"
        ) from error


def _from_protobuf(content: bytes) -> Program:
    program = pb.ProgramDesc.FromString(content)
    block = program.blocks[0]
    if not block.ops or not all(op.type for op in block.ops):
        raise ValueError("no operators")
    named = {var.name: var for var in block.vars}
    return Program(
        {name: _protobuf_var(var) for name, var in named.items()},
        {
            name: math.prod(var.type.lod_tensor.tensor.dims)
            for name, var in named.items()
            if var.persistable and var.type.type not in _NOT_SAVED
        },
        any(_QUANTIZE in op.type for op in block.ops),
        _row_counts(map(_protobuf_step, block.ops)),
    )


def _protobuf_step(op: pb.OpDesc) -> _Step:
    taken = {var.parameter: list(var.arguments) for var in op.inputs}
    given = {var.parameter: list(var.arguments) for var in op.outputs}
    if op.type == _FETCH:
        return _Step(op.type, taken["X"][0], taken["X"][0])
    counts = given.get("NmsRoisNum") or given.get("RoisNum")
    return _Step(op.type, _first(taken.get("X")), _first(given.get("Out")), _first(counts))


def _protobuf_var(var: pb.VarDesc) -> ProgramVar:
    lod_tensor = var.type.lod_tensor
    kind = _TEXTS if var.type.type == _TEXTS else lod_tensor.tensor.data_type
    dims = _dims(lod_tensor.tensor.dims)
    return ProgramVar(_DTYPES.get(kind), dims, lod_tensor.lod_level > 0)


def _from_json(content: bytes) -> Program:
    document = orjson.loads(content)
    if document["base_code"]["magic"] != "pir":
        raise ValueError("not a program")
    operators = document["program"]["regions"][0]["blocks"][0]["ops"]
    return Program(
        dict(_json_vars(operators)),
        dict(_json_weights(operators)),
        any(_QUANTIZE in operator["#"] for operator in operators),
        _row_counts(map(_json_step, operators)),
    )


def _json_step(operator: Mapping[str, Any]) -> _Step:
    kind = _bare(operator["#"])
    if kind == "p":  # a weight
        return _Step(kind)
    taken = [entry["%"] for entry in operator.get("I", ())]
    given = [entry["%"] for entry in operator["O"]]
    if kind == _FETCH:
        attributes = {entry["N"]: entry["AT"]["D"] for entry in operator["A"]}
        return _Step(kind, _first(taken), attributes["name"])
    counts = given[_COUNTS_AT] if len(given) > _COUNTS_AT else None
    return _Step(kind, _first(taken), _first(given), counts)


class _Step(NamedTuple):
    """An operator: its first input and its first output; variables are names or numbers.

    `counts` is the output with the number of boxes per sample, if the operator selects boxes.
    `gives` of a fetch is the output's name.
    """

    kind: str
    takes: Hashable = None
    gives: Hashable = None
    counts: Hashable = None


def _row_counts(steps: Iterable[_Step]) -> dict[str, str]:
    made_of: dict[Hashable, Hashable] = {}  # variables with the rows of another one, to that one
    counts: dict[Hashable, Hashable] = {}  # boxes to the number per sample
    fetched: dict[Hashable, str] = {}
    try:
        for step in steps:
            source = made_of.get(step.takes, step.takes)
            if step.kind in _SELECT_BOXES:
                counts[step.gives] = step.counts
            elif step.kind in _KEEP_ROWS:
                made_of[step.gives] = source
            elif step.kind == _FETCH:
                fetched[source] = str(step.gives)
    except (LookupError, TypeError):  # a new form of an operator: nothing is known
        return {}
    return {
        fetched[boxes]: fetched[count]
        for boxes, count in counts.items()
        if boxes in fetched and count in fetched
    }


def _first(values: Sequence[Hashable] | None) -> Hashable:
    return values[0] if values else None


def _json_vars(operators: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, ProgramVar]]:
    """Yield the inputs and outputs; numbers replace the dialects of operators and types."""
    for operator in operators:
        if _bare(operator["#"]) in ("data", "feed", "fetch"):
            attributes = {entry["N"]: entry["AT"]["D"] for entry in operator["A"]}
            kind, dims = _json_tensor(operator)
            yield attributes["name"], ProgramVar(_JSON_DTYPES.get(kind), _dims(dims))


def _json_weights(operators: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    for operator in operators:
        if operator["#"] == "p":
            yield operator["A"][3], math.prod(_json_tensor({"O": [operator["O"]]})[1])


def _json_tensor(operator: Mapping[str, Any]) -> tuple[str, list[int]]:
    """Return dtype name and dims of an operator's first output."""
    dtype, dims = operator["O"][0]["TT"]["D"][:2]
    return _bare(dtype["#"]), dims


def _bare(name: str) -> str:
    return name.rpartition(".")[2]


def _dims(dims: Iterable[int]) -> tuple[Dim, ...]:
    return tuple(None if dim < 0 else dim for dim in dims)


# The files of weights ---------------------------------------------------------------------------


_COMBINED = ("__params__", "fluid_params", "params")  # all weights of a `__model__`
_MAX_DESCRIPTION_BYTES = 4096


class ModelFiles(NamedTuple):
    """`weights` is None if each weight has a file with its name in the program's folder.

    A model without weights need not have the file.
    """

    program: Path
    weights: Path | None


def find_weights(program_file: Path, program: Program) -> ModelFiles:
    """Return the files for Paddle to load.

    Raises InitError: the weights are missing or belong to another program, for which Paddle would
    end the process.
    """
    for name in (f"{program_file.stem}.pdiparams", *_COMBINED):
        weights = program_file.parent / name
        if weights.is_file():
            _check_combined(weights, program.weights)
            return ModelFiles(program_file, weights)
    if not program.weights:
        return ModelFiles(program_file, program_file.with_suffix(".pdiparams"))
    if program_file.name != "__model__":
        raise InitError(
            f"model_config: {program_file} has no weights: put "
            f"{program_file.stem}.pdiparams beside it"
        )
    _check_separate(program_file.parent, program.weights)
    return ModelFiles(program_file, None)


def _check_combined(path: Path, weights: Mapping[str, int]) -> None:
    """Compare the sizes of the file's tensors with those of the program, in any order.

    The program leaves a size below 0 open.
    """
    sizes = tensor_sizes(path)
    if sizes is None or min(weights.values(), default=0) < 0:
        return
    if sorted(sizes) != sorted(weights.values()):
        raise InitError(
            f"model_config: {path} holds the weights of another model: {len(sizes)} tensors of "
            f"{sum(sizes)} elements, where the program beside it has {len(weights)} of "
            f"{sum(weights.values())}. Export both again, together"
        )


def _check_separate(folder: Path, weights: Mapping[str, int]) -> None:
    missing = [name for name in weights if not (folder / name).is_file()]
    if missing:
        raise InitError(
            f"model_config: {folder} has a file for each weight, or all in __params__, but these "
            f"are missing: {listed(missing)}"
        )
    for name, size in weights.items():
        _check_combined(folder / name, {name: size})


def tensor_sizes(path: Path) -> list[int] | None:
    """Return the number of elements of each tensor in a file of weights; None for new types.

    The format, as `load_combine` of Paddle reads it, is for each tensor: u32 version, u64 count of
    LoD levels, each u64 bytes and that many; u32 version, i32 length of a TensorDesc, the
    TensorDesc, the elements. All little-endian. Raises InitError: the file ends within a tensor,
    which Paddle does not always detect, or is not a file of weights.
    """
    try:
        with path.open("rb") as file:
            end = os.fstat(file.fileno()).st_size
            sizes = []
            while file.tell() < end:
                sizes.append(_skip_tensor(file))
            if file.tell() > end:
                raise ValueError("ends within a tensor")
            return sizes
    except LookupError:
        return None
    except (OSError, struct.error, DecodeError, ValueError, OverflowError) as error:
        raise InitError(
            f"model_config: {path} is not a complete file of Paddle weights: it is "
            "damaged, cut off or encrypted (which is not supported)"
        ) from error


def _skip_tensor(file: BinaryIO) -> int:
    """Move to the end of a tensor; return its number of elements."""
    _, levels = _unpack("<IQ", file)
    if levels:
        raise ValueError("weights have no LoD")
    _, length = _unpack("<Ii", file)
    if not 0 < length <= _MAX_DESCRIPTION_BYTES:
        raise ValueError("not a tensor's description")
    description = pb.TensorDesc.FromString(file.read(length))
    size = math.prod(description.dims)
    if size < 0:
        raise ValueError("a weight has a size")
    file.seek(size * NUMBERS[description.data_type].itemsize, os.SEEK_CUR)
    return size


def _unpack(form: str, file: BinaryIO) -> tuple[int, int]:
    first, second = struct.unpack(form, file.read(struct.calcsize(form)))
    return first, second
