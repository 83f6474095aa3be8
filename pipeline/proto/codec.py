"""numpy values to wire `Tensor`s and back: the writer and the reader of one format.

The wire is that of pipeline_service.proto. Nothing here evaluates or unpickles. Readers compare a
size that a peer states with the received data before they allocate memory for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pipeline.errors import PackageError, PayloadTypeError
from pipeline.proto.lists import as_array
from pipeline.proto.pipeline.array_text import numpy_to_text, text_to_numpy
from pipeline.proto.pipeline.blocks import (
    PACKED_DTYPES,
    BlockMessage,
    check_decoded,
    last_bytes,
    put_numbers,
    read_numbers,
)
from pipeline.proto.pipeline.shapes import (
    MAGIC,
    array_to_npy,
    check_shape,
    in_shape,
    npy_to_array,
    refuse_misplaced,
)
from pipeline.proto.pipeline_service_pb2 import Tensor
from pipeline.proto.slices import sliced

__all__ = [
    "ElemType",
    "decode_tensors",
    "numeric_layout",
    "numpy_to_tensor",
    "numpy_to_text",
    "tensor_to_numpy",
    "text_to_numpy",
]

Array = npt.NDArray[Any]
AnyTensor = Tensor | BlockMessage


class ElemType(IntEnum):
    """Values of `Tensor.elem_type`.

    Paddle Serving calls 6 BF16, but its clients send arrays of uint16 as 6 and its servers read
    them so, since numpy has no bfloat16. This library sends bfloat16 as 14, which Paddle does not
    use.
    """

    INT64 = 0
    FP32 = 1
    INT32 = 2
    FP64 = 3
    INT16 = 4
    FP16 = 5
    UINT16 = 6
    UINT8 = 7
    INT8 = 8
    BOOL = 9
    COMPLEX64 = 10
    COMPLEX128 = 11
    STRING = 12
    BYTES = 13
    BF16 = 14


_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_LAYOUTS: dict[int, tuple[str, np.dtype[Any]]] = {  # field of the elements, their dtype here
    ElemType.INT64: ("int64_data", np.dtype(np.int64)),
    ElemType.FP32: ("float_data", np.dtype(np.float32)),
    ElemType.INT32: ("int_data", np.dtype(np.int32)),
    ElemType.FP64: ("float64_data", np.dtype(np.float64)),
    ElemType.INT16: ("int_data", np.dtype(np.int16)),
    ElemType.FP16: ("float_data", np.dtype(np.float16)),
    ElemType.UINT16: ("uint32_data", np.dtype(np.uint16)),
    ElemType.UINT8: ("uint32_data", np.dtype(np.uint8)),
    ElemType.INT8: ("int_data", np.dtype(np.int8)),
    ElemType.BOOL: ("bool_data", np.dtype(np.bool_)),
    ElemType.COMPLEX64: ("complex64_data", np.dtype(np.complex64)),
    ElemType.COMPLEX128: ("complex128_data", np.dtype(np.complex128)),
    ElemType.BF16: ("byte_data", _BFLOAT16),
}
_ELEM_TYPES = {dtype: elem_type for elem_type, (_, dtype) in _LAYOUTS.items()}
_VARINT_DTYPES: dict[str, np.dtype[Any]] = {
    "int64_data": np.dtype(np.int64),
    "int_data": np.dtype(np.int32),
    "uint32_data": np.dtype(np.uint32),
}


# --- wire to numpy --------------------------------------------------------------------------


def decode_tensors(tensors: Iterable[AnyTensor]) -> dict[str, Any]:
    """Return every tensor's value under its name; of two with one name, the later one counts.

    A tensor with a `lod` adds `"<name>.lod"`: its offsets as a 1-D int32 array. Raises
    PackageError as `tensor_to_numpy` does.
    """
    values: dict[str, Any] = {}
    for tensor in tensors:
        values[tensor.name] = tensor_to_numpy(tensor)
        if tensor.lod:
            values[f"{tensor.name}.lod"] = np.fromiter(tensor.lod, np.int32, count=len(tensor.lod))
    return values


def decode_request(tensors: Sequence[AnyTensor]) -> dict[str, Any]:
    """Return a request's tensors as `decode_tensors` does, but a single text as a `str`.

    The predecessor's servers read a STRING tensor of shape [1], which its clients send, so.
    """
    values = decode_tensors(tensors)
    for tensor in tensors:
        value = values[tensor.name]
        if tensor.elem_type == ElemType.STRING and type(value) is list and len(value) == 1:
            values[tensor.name] = value[0]
    return values


def tensor_to_numpy(tensor: AnyTensor) -> Any:
    """Return the value of one tensor: a new writable array, text, or bytes.

    - Numeric elem_types give an array of that dtype (BF16: ml_dtypes.bfloat16) and of `shape`.
      Without a shape, one element gives a 0-d array and any other number a 1-D array.
    - STRING gives a `str` for one element without a shape, `list[str]` for any other 1-D tensor,
      and an object array of `str` for two and more dimensions.
    - BYTES gives the array of a .npy file, or the bytes themselves when they are not one; those of
      a BlockMessage may be a view.

    Raises PackageError, with the tensor's name and the numbers, for an unknown elem_type and for
    data that does not fit the elem_type or the shape.
    """
    elem_type = tensor.elem_type
    try:
        if elem_type == ElemType.STRING:
            return _strings(tensor)
        if elem_type == ElemType.BYTES:
            return _array_or_bytes(tensor)
        if elem_type not in _LAYOUTS:
            raise ValueError(f"elem_type {elem_type} is unknown (0 to {max(ElemType)} are known)")
        field, dtype = _LAYOUTS[elem_type]
        return in_shape(tensor, _elements(tensor, field, dtype), field)
    except ValueError as error:
        raise PackageError(f"tensor {tensor.name!r}: {error}") from None


def _elements(tensor: AnyTensor, field: str, dtype: np.dtype[Any]) -> Array:
    """Return the elements as a 1-D array. Raises ValueError: they are not of `dtype`."""
    if field in PACKED_DTYPES:
        return read_numbers(tensor, field, dtype)
    if dtype == _BFLOAT16:
        data = last_bytes(tensor, field)
        if len(data) % dtype.itemsize:
            raise ValueError(f"byte_data holds {len(data)} bytes, an odd number")
        return np.frombuffer(data, "<u2").astype(np.uint16).view(dtype)
    wide = _VARINT_DTYPES[field]
    if isinstance(tensor, BlockMessage) and (parts := tensor.varints(field, wide)) is not None:
        return _from_varints(tensor, parts, tensor.count(field), dtype)
    repeated = getattr(tensor, field)
    return _narrowed(np.fromiter(repeated, wide, count=len(repeated)), dtype)


def _from_varints(
    tensor: BlockMessage, parts: Iterator[Array], size: int, dtype: np.dtype[Any]
) -> Array:
    """Return the integers of a long field; it is converted in slices to save memory."""
    check_decoded(f"tensor {tensor.name!r}", size * dtype.itemsize, tensor.limits)
    numbers = np.empty(size, dtype)
    at = 0
    for part in parts:
        numbers[at : at + part.size] = _narrowed(part, dtype)
        at += part.size
    return numbers


def _narrowed(numbers: Array, dtype: np.dtype[Any]) -> Array:
    if numbers.dtype == dtype or not numbers.size:
        return numbers.astype(dtype, copy=False)
    limits = np.iinfo(dtype)
    low, high = int(numbers.min()), int(numbers.max())
    if low < limits.min or high > limits.max:
        wrong = low if low < limits.min else high
        raise ValueError(f"{wrong} does not fit {dtype} ({limits.min} to {limits.max})")
    return numbers.astype(dtype)


def _strings(tensor: AnyTensor) -> Any:
    strings: list[str] = []
    for part in sliced(tensor.str_data):
        strings += part
    if len(tensor.shape) > 1:
        # Not a "<U" array: that pads each element to the longest, so a peer could make it huge.
        return in_shape(tensor, np.array(strings, dtype=object), "str_data")
    check_shape(tensor, len(strings), "str_data")
    return strings[0] if not tensor.shape and len(strings) == 1 else strings


def _array_or_bytes(tensor: AnyTensor) -> Any:
    data = last_bytes(tensor, "byte_data")
    if not data:
        refuse_misplaced(tensor, "byte_data")
    if data[: len(MAGIC)] != MAGIC:
        return data
    try:
        return npy_to_array(data)
    except ValueError as error:
        raise ValueError(f"byte_data is not an accepted .npy file: {error}") from None


# --- numpy to wire --------------------------------------------------------------------------


def numpy_to_tensor(
    name: str, value: Any, lod: Sequence[int] | Array | None = None, as_bytes: bool = False
) -> Tensor:
    """Return the tensor `name` of one value; `tensor_to_numpy` gives the value back.

    `value` is an array, a numpy scalar or Python number (0-d), `str` or a list of them (STRING),
    bytes (BYTES, unchanged) or a nested list of numbers. uint32 and, where its values fit, uint64
    are sent as int64. `lod` holds level-of-detail offsets. `as_bytes` sends an array of numbers as
    a .npy file: the quickest form for integers. It keeps every dtype but bfloat16, which is sent
    typed. The reader returns bytes that begin like a .npy file as its array.

    Raises PayloadTypeError, with the tensor's name, for a value that the wire cannot carry.
    """
    try:
        tensor = _pack(name, value, as_bytes)
        if lod is not None:
            tensor.lod.extend(as_array(lod).ravel().tolist())
    except (TypeError, ValueError, OverflowError) as error:
        raise PayloadTypeError(f"tensor {name!r}: {error}") from error
    return tensor


def _pack(name: str, value: Any, as_bytes: bool) -> Tensor:
    if isinstance(value, bytes | bytearray | memoryview):
        return Tensor(name=name, elem_type=ElemType.BYTES, byte_data=bytes(value))
    if isinstance(value, str):
        return Tensor(name=name, elem_type=ElemType.STRING, str_data=[value])
    array = _as_array(value)
    if array.dtype.kind in "UO":
        return _pack_strings(name, array)
    if array.dtype.kind == "S" or (as_bytes and array.dtype != _BFLOAT16):
        return Tensor(name=name, elem_type=ElemType.BYTES, byte_data=array_to_npy(array))
    return _pack_numbers(name, array)


def _as_array(value: Any) -> Array:
    if isinstance(value, np.ndarray | np.generic | bool | int | float | complex):
        return np.asarray(value)
    if not isinstance(value, list | tuple):
        raise TypeError(f"a {type(value).__name__} cannot be sent; give an array, number or text")
    array = as_array(value)
    if array.dtype.hasobject and array.size and isinstance(array.flat[0], bytes):
        raise TypeError("a list of bytes cannot be sent; send each under a name of its own")
    return array


def _pack_strings(name: str, array: Array) -> Tensor:
    strings = array.ravel().tolist()
    for element in strings:
        if not isinstance(element, str):
            raise TypeError(
                "an array or list of objects can be sent when all of them are str, "
                f"but one is a {type(element).__name__}"
            )
    return Tensor(name=name, elem_type=ElemType.STRING, str_data=strings, shape=array.shape)


def numeric_layout(array: Array) -> tuple[Array, int, str]:
    """Return an array of numbers in a dtype of the wire, its elem_type, and the field it fills.

    Raises TypeError and ValueError for an array without an elem_type.
    """
    array = sendable(array)
    elem_type = _ELEM_TYPES[array.dtype]
    if elem_type == ElemType.BF16:
        array = array.view(np.uint16).astype("<u2")
    return array, elem_type, _LAYOUTS[elem_type][0]


def _pack_numbers(name: str, array: Array) -> Tensor:
    array, elem_type, field = numeric_layout(array)
    tensor = Tensor(name=name, elem_type=elem_type, shape=array.shape)
    if elem_type == ElemType.BF16:
        tensor.byte_data = array.tobytes()
    else:
        put_numbers(tensor, field, array)
    return tensor


def sendable(array: Array) -> Array:
    """Return `array` in native byte order, in a dtype that has an elem_type.

    Raises TypeError and ValueError for an array without an elem_type.
    """
    dtype = array.dtype.newbyteorder("=")
    if dtype == np.uint64:
        if array.size and int(array.max()) > np.iinfo(np.int64).max:
            raise ValueError(f"uint64 travels as int64, which {int(array.max())} does not fit")
        dtype = np.dtype(np.int64)
    if dtype == np.uint32:
        dtype = np.dtype(np.int64)
    if dtype not in _ELEM_TYPES:
        raise TypeError(f"dtype {array.dtype} has no place on the wire; convert the array first")
    return array.astype(dtype, copy=False)
