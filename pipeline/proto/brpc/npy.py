"""Arrays as .npy files in memory, written with numpy and read without trusting the header."""

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

Array = npt.NDArray[Any]

MAGIC = b"\x93NUMPY"
MAX_DIMENSIONS = 64  # numpy's own limit

MAX_EMPTY_ROWS = 2**20
"""Most rows of an array without elements: no bytes are sent for them, and as lists each has some.
"""

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
    """Return the writable array of a .npy file of a plain dtype (neither objects nor records).

    numpy's own reader allocates by the shape that the header states before it looks for the
    data, and evaluates the header as a Python literal; this one does neither.
    Raises ValueError when `data`, which begins with MAGIC, is anything else.
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
    return array.copy().reshape(shape, order=order)


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
