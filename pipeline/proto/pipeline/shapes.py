"""Shapes that peers state, checked before memory is allocated for them; .npy files."""

from __future__ import annotations

import io
import itertools
import math
import re
import struct
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pipeline.proto import general_model_pb2, pipeline_service_pb2
from pipeline.proto.pipeline.blocks import BlockMessage, own
from pipeline.proto.slices import breathe

Array = npt.NDArray[Any]

MAGIC = b"\x93NUMPY"
MAX_DIMENSIONS = 64  # numpy's own limit

MAX_EMPTY_ROWS = 2**20
"""Most rows of an array without elements: a peer sends no bytes for them, but as lists they need
memory."""

_LENGTH_FORMATS = {1: "<H", 2: "<I", 3: "<I"}  # of the header's length, by major version
_MAX_HEADER_BYTES = 10_000  # numpy's own limit
_DESCR = re.compile(rb"'descr'\s*:\s*'([<>|=]?[?biufcmMSUV][0-9]*(?:\[[0-9A-Za-z]+\])?)'")
_FORTRAN_ORDER = re.compile(rb"'fortran_order'\s*:\s*(True|False)")
_SHAPE = re.compile(rb"'shape'\s*:\s*\(([0-9,\s]*)\)")


def array_to_npy(array: Array) -> bytes:
    """Return the .npy file of an array. Raises ValueError for an array of objects."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def check_empty_rows(shape: Sequence[int]) -> None:
    """Raise ValueError where a shape without elements has very many rows of them."""
    rows = math.prod(itertools.takewhile(bool, shape))
    if rows > MAX_EMPTY_ROWS:
        raise ValueError(f"shape {list(shape)} has {rows} rows without elements")


def npy_to_array(data: bytes | memoryview) -> Array:
    """Return the array of a .npy file of a plain dtype (neither objects nor records).

    It is writable, and uses the memory of `data` if that is writable, see `own`.

    numpy's own reader allocates memory for the stated shape before it reads the data, and
    evaluates the header as a Python literal; this reader does neither. `data` begin with MAGIC.
    Raises ValueError: the file is damaged or of another dtype.
    """
    header, start = _split_header(data)
    dtype, shape, order = _parse_header(header)
    body = memoryview(data)[start:]
    needed = math.prod(shape) * dtype.itemsize
    if not dtype.itemsize or needed != len(body):
        raise ValueError(
            f"shape {shape} of {dtype} needs {needed} bytes, but {len(body)} follow the header"
        )
    if not needed:
        check_empty_rows(shape)
    array = np.frombuffer(body, dtype) if needed else np.empty(0, dtype)
    return own(array).reshape(shape, order=order)


def _split_header(data: bytes | memoryview) -> tuple[bytes, int]:
    """Return the header's text, and where the elements start."""
    version = data[len(MAGIC)] if len(data) > len(MAGIC) else None
    if version not in _LENGTH_FORMATS:
        raise ValueError(f"version {version} of the format is unknown")
    length_format = _LENGTH_FORMATS[version]
    start = len(MAGIC) + 2
    try:
        (length,) = struct.unpack_from(length_format, data, start)
    except struct.error:
        raise ValueError(f"it ends after {len(data)} bytes, inside its header") from None
    if length > _MAX_HEADER_BYTES:
        raise ValueError(f"its header has {length} bytes; {_MAX_HEADER_BYTES} are the most")
    start += struct.calcsize(length_format)
    return bytes(data[start : start + length]), start + length


def _parse_header(
    header: bytes,
) -> tuple[np.dtype[Any], tuple[int, ...], Literal["C", "F"]]:
    descr = _DESCR.search(header)
    fortran_order = _FORTRAN_ORDER.search(header)
    shape = _SHAPE.search(header)
    if descr is None or fortran_order is None or shape is None:
        raise ValueError("its header does not give a plain dtype, an order and a shape")
    sizes = [int(part) for part in shape[1].split(b",") if part.strip()]
    if len(sizes) > MAX_DIMENSIONS:
        raise ValueError(f"its shape has {len(sizes)} dimensions; {MAX_DIMENSIONS} are the most")
    try:
        dtype = np.dtype(descr[1].decode("ascii"))
    except TypeError:
        raise ValueError(f"its dtype {descr[1]!r} is unknown") from None
    return dtype, tuple(sizes), "F" if fortran_order[1] == b"True" else "C"


_REST = -1  # of a dimension: derived from the number of elements, as in numpy

ShapedTensor = pipeline_service_pb2.Tensor | general_model_pb2.Tensor | BlockMessage


def in_shape(tensor: ShapedTensor, elements: Array, field: str) -> Array:
    """Return `elements`, which came from `field` of `tensor`, in the tensor's shape.

    Without a shape one element is a 0-d array and any other number a 1-D array.
    Raises ValueError where the elements do not fill the shape exactly.
    """
    check_shape(tensor, elements.size, field)
    shape = tensor.shape
    if not shape:
        return elements.reshape(()) if elements.size == 1 else elements
    try:
        return elements.reshape(shape)
    except ValueError as error:
        raise ValueError(f"no array has the shape {list(shape)}: {error}") from None


def check_shape(tensor: ShapedTensor, count: int, field: str) -> None:
    """Raise ValueError for a shape that the `count` elements of `field` do not fill exactly."""
    shape = tensor.shape
    if not shape:
        if not count:
            refuse_misplaced(tensor, field)
        return
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"{len(shape)} dimensions are more than {MAX_DIMENSIONS}")
    others = [size for size in shape if size != _REST]
    if others and min(others) < 0:
        raise ValueError(f"shape {list(shape)} has a negative dimension")
    needed = math.prod(others)
    if len(others) < len(shape):
        if count and len(others) == len(shape) - 1 and needed and count % needed == 0:
            return
        if not count:
            refuse_misplaced(tensor, field)
        raise ValueError(
            f"shape {list(shape)} leaves one dimension to be derived from the elements, but "
            f"{field} "
            f"holds {count}"
        )
    if needed == count:
        if not needed:
            check_empty_rows(shape)
        return
    if not count:
        refuse_misplaced(tensor, field)
    raise ValueError(f"shape {list(shape)} needs {needed} elements, but {field} holds {count}")


def block_dims(skeleton: bytes) -> tuple[int, ...] | None:
    """Return the shape of nested lists from brackets and commas; None if lengths differ."""
    depth = len(skeleton) - len(skeleton.lstrip(b"["))
    if not 0 < depth <= MAX_DIMENSIONS:
        return None
    block = skeleton[depth - 1 : skeleton.find(b"]") + 1]
    dims = [block.count(b",") + 1]
    for level in range(1, depth):
        end = skeleton.find(b"]" * (level + 1)) + level
        count, left = divmod(end - (depth - level) + 1, len(block) + 1)
        if left or count < 1:
            return None
        dims.insert(0, count)
        if math.prod(dims) > len(skeleton):  # otherwise numpy would build it, of any size
            return None
        breathe()
        block = b"[" + ((block + b",") * count)[:-1] + b"]"
    if math.prod(dims) != skeleton.count(b",") + 1:
        return None
    return tuple(dims) if block == skeleton else None


def refuse_misplaced(tensor: ShapedTensor, field: str) -> None:
    """Raise ValueError for a tensor without data in `field` that has data in another field.

    A peer that omits elem_type sends 0 (INT64), and would otherwise get an empty array.
    """
    for descriptor, value in tensor.ListFields():
        if descriptor.name.endswith(("data", "_content")):
            raise ValueError(
                f"elem_type {tensor.elem_type} is read from {field}, "
                f"which is empty; {descriptor.name} holds {len(value)}"
            )
