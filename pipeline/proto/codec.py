"""numpy arrays to wire `Tensor`s and back: the writer and the reader of one format.

The wire is that of pipeline_service.proto. Nothing here evaluates or unpickles, and no reader
allocates by a size that a peer states: sizes are compared with the data that did arrive first.
"""

from __future__ import annotations

import io
import math
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pipeline.errors import PackageError, PayloadTypeError
from pipeline.proto.array_text import numpy_to_text, text_to_numpy
from pipeline.proto.pipeline_service_pb2 import Tensor

__all__ = [
    "ElemType",
    "decode_tensors",
    "fill_packed",
    "numpy_to_tensor",
    "numpy_to_text",
    "packed_array",
    "tensor_to_numpy",
    "text_to_numpy",
]

Array = npt.NDArray[Any]


class ElemType(IntEnum):
    """Values of `Tensor.elem_type`."""

    INT64 = 0
    FP32 = 1
    INT32 = 2
    FP64 = 3
    INT16 = 4
    FP16 = 5
    BF16 = 6
    UINT8 = 7
    INT8 = 8
    BOOL = 9
    COMPLEX64 = 10
    COMPLEX128 = 11
    STRING = 12
    BYTES = 13


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the elements of one numeric elem_type travel, and what they are here."""

    field: str
    dtype: np.dtype[Any]


_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_LAYOUTS = {
    ElemType.INT64: _Layout("int64_data", np.dtype(np.int64)),
    ElemType.FP32: _Layout("float_data", np.dtype(np.float32)),
    ElemType.INT32: _Layout("int_data", np.dtype(np.int32)),
    ElemType.FP64: _Layout("float64_data", np.dtype(np.float64)),
    ElemType.INT16: _Layout("int_data", np.dtype(np.int16)),
    ElemType.FP16: _Layout("float_data", np.dtype(np.float16)),
    ElemType.BF16: _Layout("uint32_data", _BFLOAT16),
    ElemType.UINT8: _Layout("uint32_data", np.dtype(np.uint8)),
    ElemType.INT8: _Layout("int_data", np.dtype(np.int8)),
    ElemType.BOOL: _Layout("bool_data", np.dtype(np.bool_)),
    ElemType.COMPLEX64: _Layout("complex64_data", np.dtype(np.complex64)),
    ElemType.COMPLEX128: _Layout("complex128_data", np.dtype(np.complex128)),
}
_ELEM_TYPES = {layout.dtype: elem_type for elem_type, layout in _LAYOUTS.items()}
_VARINT_DTYPES = {
    "int64_data": np.dtype(np.int64),
    "int_data": np.dtype(np.int32),
    "uint32_data": np.dtype(np.uint32),
}
# Fields whose packed wire bytes are the little-endian array itself.
_PACKED_DTYPES = {
    "float_data": np.dtype("<f4"),
    "float64_data": np.dtype("<f8"),
    "bool_data": np.dtype(np.bool_),
    "complex64_data": np.dtype("<f4"),
    "complex128_data": np.dtype("<f8"),
}
_LENGTH_DELIMITED = 2
_WIDER = {np.dtype(np.uint16): np.dtype(np.int32), np.dtype(np.uint32): np.dtype(np.int64)}
_MAX_DIMENSIONS = 64  # numpy's own limit

_NPY_MAGIC = b"\x93NUMPY"
_NPY_HEADER_LENGTHS = {1: "<H", 2: "<I", 3: "<I"}  # by major version
_NPY_MAX_HEADER = 10_000  # numpy's own limit
_NPY_DESCR = re.compile(rb"'descr'\s*:\s*'([<>|=]?[?biufcmMSUV][0-9]*(?:\[[0-9A-Za-z]+\])?)'")
_NPY_ORDER = re.compile(rb"'fortran_order'\s*:\s*(True|False)")
_NPY_SHAPE = re.compile(rb"'shape'\s*:\s*\(([0-9,\s]*)\)")


# --- wire to numpy --------------------------------------------------------------------------


def decode_tensors(tensors: Iterable[Tensor]) -> dict[str, Any]:
    """Every tensor under its name; the later of two with the same name wins.

    A tensor with a `lod` adds `"<name>.lod"`: its offsets as a 1-D int32 array. Raises
    PackageError as `tensor_to_numpy` does.
    """
    arrays: dict[str, Any] = {}
    for tensor in tensors:
        arrays[tensor.name] = tensor_to_numpy(tensor)
        if tensor.lod:
            arrays[f"{tensor.name}.lod"] = np.array(tensor.lod, np.int32)
    return arrays


def tensor_to_numpy(tensor: Tensor) -> Any:
    """The value of one tensor: a writable array of its own, or text, or bytes.

    - Numeric elem_types give an array of that dtype (BF16: ml_dtypes.bfloat16) and of `shape`.
      Without a shape, one element gives a 0-d array and any other number a 1-D array.
    - STRING gives a `str` for one element without a shape, `list[str]` for any other 1-D tensor,
      and an object array of `str` for two and more dimensions.
    - BYTES gives the array of a .npy file, or the bytes themselves when they are not one.

    Raises PackageError, with the tensor's name, for an unknown elem_type and for data that does
    not fit the elem_type or the shape.
    """
    elem_type = tensor.elem_type
    if elem_type == ElemType.STRING:
        return _strings(tensor)
    if elem_type == ElemType.BYTES:
        return _from_bytes(tensor)
    layout = _LAYOUTS.get(elem_type)  # type: ignore[call-overload]
    if layout is None:
        raise _refused(tensor, f"elem_type {elem_type} is unknown; 0 to {max(ElemType)} are known")
    return _shaped(tensor, _elements(tensor, layout), layout.field)


def packed_array(tensor: Tensor, field: str) -> Array:
    """The elements of a repeated float, double or bool field as a read-only 1-D array.

    Going through the serialised bytes costs a copy or two; iterating over the repeated field
    would make a Python object of every element, which takes 100 times as long at 1 MB.
    """
    dtype = _PACKED_DTYPES[field]
    count = len(getattr(tensor, field))
    if not count:
        return np.empty(0, dtype)
    wire = tensor.SerializeToString()
    start = _packed_start(wire, Tensor.DESCRIPTOR.fields_by_name[field].number, count * dtype.itemsize)
    if start is None:
        return np.array(getattr(tensor, field), dtype)
    return np.frombuffer(wire, dtype, count, start)


def _packed_start(wire: bytes, number: int, size: int) -> int | None:
    """Where the `size` bytes of packed field `number` (15 at most) start in a serialised Tensor.

    Only packed fields can stand before one: a Tensor's fields 1 to 8 are all of that kind, and
    a serialiser writes fields in the order of their numbers. None when it does not.
    """
    wanted = number << 3 | _LENGTH_DELIMITED
    at = 0
    while at < len(wire) and wire[at] <= wanted and wire[at] & 7 == _LENGTH_DELIMITED:
        tag = wire[at]
        length, at = _read_varint(wire, at + 1)
        if tag == wanted:
            return at if length == size else None
        at += length
    return None


def _elements(tensor: Tensor, layout: _Layout) -> Array:
    """The 1-D array of the elements, in the dtype that the elem_type stands for."""
    field, dtype = layout.field, layout.dtype
    if field in _PACKED_DTYPES:
        if dtype.kind == "c":
            return _complex(tensor, layout)
        return _narrowed_float(tensor, packed_array(tensor, field), dtype)
    repeated = getattr(tensor, field)
    data = np.fromiter(repeated, _VARINT_DTYPES[field], count=len(repeated))
    if dtype == _BFLOAT16:
        return _narrowed_int(tensor, data, np.dtype(np.uint16)).view(dtype)
    return _narrowed_int(tensor, data, dtype)


def _complex(tensor: Tensor, layout: _Layout) -> Array:
    parts = packed_array(tensor, layout.field)
    if parts.size % 2:
        raise _refused(
            tensor, f"{layout.field} holds {parts.size} numbers; a complex number takes two"
        )
    return parts.view(layout.dtype).copy()


def _narrowed_float(tensor: Tensor, data: Array, dtype: np.dtype[Any]) -> Array:
    try:
        with np.errstate(over="raise", invalid="ignore"):
            return data.astype(dtype)
    except FloatingPointError:
        raise _refused(
            tensor, f"float_data holds a number that is too large for {dtype}"
        ) from None


def _narrowed_int(tensor: Tensor, data: Array, dtype: np.dtype[Any]) -> Array:
    if data.dtype == dtype or not data.size:
        return data.astype(dtype, copy=False)
    limits = np.iinfo(dtype)
    low, high = int(data.min()), int(data.max())
    if low < limits.min or high > limits.max:
        wrong = low if low < limits.min else high
        raise _refused(tensor, f"{wrong} is not a {dtype} ({limits.min} to {limits.max})")
    return data.astype(dtype)


def _shaped(tensor: Tensor, data: Array, field: str) -> Array:
    """`data` in the tensor's shape; `field` is where it came from, for the message."""
    if not tensor.shape:
        if not data.size:
            _refuse_misplaced(tensor, field)
        return data.reshape(()) if data.size == 1 else data
    _check_shape(tensor, list(tensor.shape), data.size, field)
    try:
        return data.reshape(tensor.shape)
    except ValueError as error:
        raise _refused(tensor, f"shape {list(tensor.shape)} is impossible: {error}") from None


def _check_shape(tensor: Tensor, shape: Sequence[int], count: int, source: str) -> None:
    """Refuse a shape that `count` elements, found in `source`, do not fill exactly."""
    if len(shape) > _MAX_DIMENSIONS:
        raise _refused(
            tensor, f"shape has {len(shape)} dimensions; {_MAX_DIMENSIONS} are the most"
        )
    if min(shape, default=0) < 0:
        raise _refused(tensor, f"shape {list(shape)} has a negative dimension")
    needed = math.prod(shape)
    if needed != count:
        if not count:
            _refuse_misplaced(tensor, source)
        raise _refused(
            tensor, f"shape {list(shape)} needs {needed} elements, but {source} holds {count}"
        )


def _refuse_misplaced(tensor: Tensor, field: str) -> None:
    """Refuse a tensor whose data is in another field than its elem_type says.

    A client that forgets elem_type means 0, INT64, and would get an empty array unnoticed.
    """
    for descriptor, value in tensor.ListFields():
        if descriptor.name.endswith("_data") and descriptor.name != field:
            raise _refused(
                tensor,
                f"elem_type {tensor.elem_type} is read from {field}, which is empty, but "
                f"{descriptor.name} holds {len(value)}",
            )


def _strings(tensor: Tensor) -> Any:
    strings = list(tensor.str_data)
    if not tensor.shape:
        if not strings:
            _refuse_misplaced(tensor, "str_data")
        return strings[0] if len(strings) == 1 else strings
    if len(tensor.shape) == 1:
        _check_shape(tensor, tensor.shape, len(strings), "str_data")
        return strings
    # Not a "<U" array: that pads every element to the longest, so a peer could make it huge.
    return _shaped(tensor, np.array(strings, dtype=object), "str_data")


def _from_bytes(tensor: Tensor) -> Any:
    data = tensor.byte_data
    if not data:
        _refuse_misplaced(tensor, "byte_data")
    if not data.startswith(_NPY_MAGIC):
        return data
    try:
        return _npy_to_numpy(data)
    except (ValueError, TypeError, struct.error) as error:
        raise _refused(tensor, f"byte_data is not a .npy file that is taken here: {error}") from None


def _npy_to_numpy(data: bytes) -> Array:
    """Read a .npy file of a plain dtype (no objects, no records).

    Written here because numpy's reader allocates by the shape in the header before it looks for
    the data, and evaluates the header as a Python literal. Raises ValueError or struct.error.
    """
    length_format = _NPY_HEADER_LENGTHS.get(data[len(_NPY_MAGIC)])
    if length_format is None:
        raise ValueError(f"format version {data[len(_NPY_MAGIC)]} is unknown")
    start = len(_NPY_MAGIC) + 2
    (length,) = struct.unpack_from(length_format, data, start)
    start += struct.calcsize(length_format)
    if length > _NPY_MAX_HEADER:
        raise ValueError(f"its header has {length} bytes; {_NPY_MAX_HEADER} are the most")
    dtype, shape, order = _npy_header(data[start : start + length])
    body = memoryview(data)[start + length :]
    if not dtype.itemsize or math.prod(shape) * dtype.itemsize != len(body):
        raise ValueError(
            f"shape {shape} of {dtype} needs {math.prod(shape) * dtype.itemsize} bytes, but "
            f"{len(body)} follow the header"
        )
    array = np.frombuffer(body, dtype) if len(body) else np.empty(0, dtype)
    return array.copy().reshape(shape, order=order)


def _npy_header(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], Any]:
    descr, order, shape = (
        pattern.search(header) for pattern in (_NPY_DESCR, _NPY_ORDER, _NPY_SHAPE)
    )
    if descr is None or order is None or shape is None:
        raise ValueError("its header does not name a plain dtype, an order and a shape")
    sizes = [part for part in shape[1].split(b",") if part.strip()]
    if len(sizes) > _MAX_DIMENSIONS:
        raise ValueError(f"its shape has {len(sizes)} dimensions; {_MAX_DIMENSIONS} are the most")
    dtype = np.dtype(descr[1].decode("ascii"))
    return dtype, tuple(int(size) for size in sizes), "F" if order[1] == b"True" else "C"


def _refused(tensor: Tensor, why: str) -> PackageError:
    return PackageError(f"tensor {tensor.name!r}: {why}")


# --- numpy to wire --------------------------------------------------------------------------


def numpy_to_tensor(
    name: str, value: Any, lod: Sequence[int] | Array | None = None, as_bytes: bool = False
) -> Tensor:
    """The tensor `name` of one value; `tensor_to_numpy` gives the value back.

    `value` is an array, a numpy scalar or Python number (0-d), `str` or a list of them (STRING),
    bytes (BYTES as they are) or a nested list of numbers. uint16, uint32 and, where it fits,
    uint64 travel as a wider signed integer. `lod` holds level-of-detail offsets. `as_bytes`
    sends a numeric array as a .npy file, which keeps every dtype except bfloat16 (sent typed)
    and is the quickest form for integers; raw bytes that begin like a .npy file arrive as its
    array.

    Raises PayloadTypeError, with the tensor's name, for what this wire cannot carry.
    """
    try:
        tensor = _pack(name, value, as_bytes)
        if lod is not None:
            tensor.lod.extend(np.asarray(lod).ravel().tolist())
    except (TypeError, ValueError, OverflowError) as error:
        raise PayloadTypeError(f"tensor {name!r}: {error}") from error
    return tensor


def fill_packed(tensor: Tensor, field: str, data: Array) -> None:
    """Append an array to a repeated float, double or bool field by its packed wire bytes.

    `data` must have the field's element type; `extend` takes 80 times as long at 1 MB.
    """
    payload = data.astype(_PACKED_DTYPES[field], copy=False).tobytes()
    number = Tensor.DESCRIPTOR.fields_by_name[field].number
    head = bytes((number << 3 | _LENGTH_DELIMITED,)) + _varint(len(payload))
    tensor.MergeFromString(head + payload)


def _pack(name: str, value: Any, as_bytes: bool) -> Tensor:
    if isinstance(value, bytes | bytearray | memoryview):
        return Tensor(name=name, elem_type=ElemType.BYTES, byte_data=bytes(value))
    if isinstance(value, str):
        return Tensor(name=name, elem_type=ElemType.STRING, str_data=[value])
    array = _as_array(value)
    if array.dtype.kind in "UO":
        return _pack_strings(name, array)
    if array.dtype.kind == "S" or (as_bytes and array.dtype != _BFLOAT16):
        return Tensor(name=name, elem_type=ElemType.BYTES, byte_data=_npy_bytes(array))
    return _pack_numbers(name, array)


def _as_array(value: Any) -> Array:
    if isinstance(value, np.ndarray | np.generic | bool | int | float | complex):
        return np.asarray(value)
    if not isinstance(value, list | tuple):
        raise TypeError(f"a {type(value).__name__} cannot be sent; give an array, number or text")
    array = np.array(value)
    if array.dtype.kind == "U":  # numpy turns the numbers of a mixed list into text
        return np.array(value, dtype=object)
    return array


def _pack_strings(name: str, array: Array) -> Tensor:
    strings = array.ravel().tolist()
    for element in strings:
        if not isinstance(element, str):
            raise TypeError(
                f"an array of objects can be sent when all are str, but one is a "
                f"{type(element).__name__}"
            )
    return Tensor(name=name, elem_type=ElemType.STRING, str_data=strings, shape=array.shape)


def _pack_numbers(name: str, array: Array) -> Tensor:
    array = _sendable(array)
    elem_type = _ELEM_TYPES[array.dtype]
    field = _LAYOUTS[elem_type].field
    if field not in _PACKED_DTYPES:
        bits = array.view(np.uint16) if array.dtype == _BFLOAT16 else array
        elements = {field: bits.ravel().tolist()}
        return Tensor(name=name, elem_type=elem_type, shape=array.shape, **elements)
    tensor = Tensor(name=name, elem_type=elem_type, shape=array.shape)
    if array.dtype.kind == "c":
        array = np.ascontiguousarray(array).view(_PACKED_DTYPES[field])
    fill_packed(tensor, field, array)
    return tensor


def _sendable(array: Array) -> Array:
    """`array` in native byte order and in a dtype that has an elem_type."""
    dtype = array.dtype.newbyteorder("=")
    if dtype in _WIDER:
        dtype = _WIDER[dtype]
    elif dtype == np.uint64:
        if array.size and int(array.max()) > np.iinfo(np.int64).max:
            raise ValueError(f"uint64 travels as int64, and {int(array.max())} does not fit")
        dtype = np.dtype(np.int64)
    if dtype not in _ELEM_TYPES:
        raise TypeError(f"dtype {array.dtype} has no place on the wire; convert the array first")
    return array.astype(dtype, copy=False)


def _npy_bytes(array: Array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


# --- varints --------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(wire: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where the next byte is."""
    number = shift = 0
    while wire[at] & 0x80:
        number |= (wire[at] & 0x7F) << shift
        shift += 7
        at += 1
    return number | wire[at] << shift, at + 1
