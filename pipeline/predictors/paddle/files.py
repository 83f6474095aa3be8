"""The files of a Paddle model: which hold the weights, and whether these are the program's."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from google.protobuf.message import DecodeError

from pipeline.errors import InitError
from pipeline.predictors.base import listed
from pipeline.predictors.paddle.program import NUMBERS, Program
from pipeline.proto import paddle_program_pb2 as pb

_COMBINED = ("__params__", "fluid_params", "params")  # all weights of a `__model__`
_MAX_DESCRIPTION_BYTES = 4096


class ModelFiles(NamedTuple):
    """`weights` None: one file for each weight, by its name, in the program's folder.

    Of a model that has no weights, the file need not be there.
    """

    program: Path
    weights: Path | None


def find_weights(program_file: Path, program: Program) -> ModelFiles:
    """Return the files that Paddle is to load.

    Raises InitError: there are no weights beside the program, or they are not this program's:
    Paddle dies of those, and takes the process with it.
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

    A size below 0 is one that the program leaves open.
    """
    found = tensor_sizes(path)
    if found is None or min(weights.values(), default=0) < 0:
        return
    if sorted(found) != sorted(weights.values()):
        raise InitError(
            f"model_config: {path} holds the weights of another model: {len(found)} tensors of "
            f"{sum(found)} elements, where the program beside it has {len(weights)} of "
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
    """Return the number of elements of each tensor in a file of weights; None: of new types.

    The format, as `load_combine` of Paddle reads it, is for each tensor: u32 version, u64 count of
    LoD levels, each u64 bytes and that many; u32 version, i32 length of a TensorDesc, the
    TensorDesc, the elements. All little-endian. Raises InitError: the file ends within a tensor,
    which Paddle does not always notice, or is none of weights.
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
            f"model_config: {path} is no file of Paddle weights, or not a whole one: it is "
            "damaged, cut off or encrypted (which is not supported)"
        ) from error


def _skip_tensor(file: BinaryIO) -> int:
    """Move to the end of a tensor and say how many elements it has."""
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
