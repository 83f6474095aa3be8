"""Tensors of the v2 inference protocol: numpy arrays to messages and back.

The raw form is what is written; both forms are read. Nothing is allocated by a size that a peer
states before it is compared with the data that did arrive.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, MutableSequence, Sequence
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pipeline.errors import PackageError, PayloadTypeError
from pipeline.proto.inference_v2_pb2 import (
    InferTensorContents,
    ModelInferRequest,
    ModelInferResponse,
)
from pipeline.proto.npy import MAX_DIMENSIONS

__all__ = [
    "DATATYPES",
    "SERVICE",
    "add_tensor",
    "array_to_raw",
    "contents_to_array",
    "datatype_of",
    "raw_to_array",
    "tensors_to_arrays",
    "with_text",
]

Array = npt.NDArray[Any]
InferTensor = ModelInferRequest.InferInputTensor | ModelInferResponse.InferOutputTensor

SERVICE = "inference.GRPCInferenceService"
"""The path of its methods: f"/{SERVICE}/ModelInfer" and so on."""

_BYTES = np.dtype(object)
DATATYPES: MappingProxyType[str, np.dtype[Any]] = MappingProxyType(
    {
        "BOOL": np.dtype(np.bool_),
        "INT8": np.dtype(np.int8),
        "INT16": np.dtype(np.int16),
        "INT32": np.dtype(np.int32),
        "INT64": np.dtype(np.int64),
        "UINT8": np.dtype(np.uint8),
        "UINT16": np.dtype(np.uint16),
        "UINT32": np.dtype(np.uint32),
        "UINT64": np.dtype(np.uint64),
        "FP16": np.dtype(np.float16),
        "BF16": np.dtype(ml_dtypes.bfloat16),
        "FP32": np.dtype(np.float32),
        "FP64": np.dtype(np.float64),
        "BYTES": _BYTES,
    }
)
"""The protocol's datatypes; BYTES elements are objects: `bytes` of any length."""

_NAMES = {dtype: name for name, dtype in DATATYPES.items()}
_CONTENTS: dict[str, tuple[str, np.dtype[Any]]] = {
    "BOOL": ("bool_contents", np.dtype(np.bool_)),
    "INT8": ("int_contents", np.dtype(np.int32)),
    "INT16": ("int_contents", np.dtype(np.int32)),
    "INT32": ("int_contents", np.dtype(np.int32)),
    "INT64": ("int64_contents", np.dtype(np.int64)),
    "UINT8": ("uint_contents", np.dtype(np.uint32)),
    "UINT16": ("uint_contents", np.dtype(np.uint32)),
    "UINT32": ("uint_contents", np.dtype(np.uint32)),
    "UINT64": ("uint64_contents", np.dtype(np.uint64)),
    "FP32": ("fp32_contents", np.dtype(np.float32)),
    "FP64": ("fp64_contents", np.dtype(np.float64)),
    "BYTES": ("bytes_contents", _BYTES),
}
_LENGTH = struct.Struct("<I")  # of one element, before it, in the raw form of BYTES
_MAX_LENGTH = 2**32 - 1


# --- numpy to wire --------------------------------------------------------------------------


def datatype_of(dtype: np.dtype[Any]) -> str:
    """The protocol's name of a dtype; text and objects of any kind are BYTES.

    Raises PayloadTypeError for a dtype that the protocol lacks, such as complex64.
    """
    if dtype.kind in "OSU":
        return "BYTES"
    try:
        return _NAMES[dtype.newbyteorder("=")]
    except KeyError:
        raise PayloadTypeError(
            f"dtype {dtype} has no datatype in the v2 protocol: convert the array first"
        ) from None


def array_to_raw(array: Array) -> bytes:
    """The elements as they stand in `raw_input_contents` and `raw_output_contents`.

    Elements of text are `str`, written as UTF-8, or `bytes`. Raises PayloadTypeError for others.
    """
    if datatype_of(array.dtype) == "BYTES":
        parts: list[bytes] = []
        for element in array.ravel().tolist():
            data = _element_bytes(element)
            parts += (_LENGTH.pack(len(data)), data)
        return b"".join(parts)
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _element_bytes(element: object) -> bytes:
    if isinstance(element, str):
        try:
            return element.encode()
        except UnicodeEncodeError as error:
            raise PayloadTypeError(f"{element[:32]!r} has no UTF-8 form: {error.reason}") from None
    if not isinstance(element, bytes):
        raise PayloadTypeError(f"an element of BYTES is str or bytes, not {type(element).__name__}")
    if len(element) > _MAX_LENGTH:
        raise PayloadTypeError(f"an element of BYTES has {len(element)} bytes, 4 GiB is too long")
    return element


def add_tensor(tensors: Any, raw_contents: MutableSequence[bytes], name: str, array: Array) -> None:
    """Append an array to the `inputs` and raw contents of a request, or `outputs` of a response.

    Raises PayloadTypeError, with the tensor's name, for what the protocol cannot carry.
    """
    try:
        raw = array_to_raw(array)
    except PayloadTypeError as error:
        raise PayloadTypeError(f"tensor {name!r}: {error}") from None
    tensors.add(name=name, datatype=datatype_of(array.dtype), shape=array.shape)
    raw_contents.append(raw)


# --- wire to numpy --------------------------------------------------------------------------


def tensors_to_arrays(
    tensors: Sequence[InferTensor], raw_contents: Sequence[bytes]
) -> dict[str, Array]:
    """The arrays of all tensors of a request or response, by name; they can be written to.

    Raises PackageError, with the tensor's name and the numbers, for an unknown datatype, for
    data that does not fit the shape, and where only some of the tensors are raw.
    """
    if raw_contents and len(raw_contents) != len(tensors):
        raise PackageError(f"{len(tensors)} tensors, but {len(raw_contents)} raw contents")
    arrays: dict[str, Array] = {}
    for index, tensor in enumerate(tensors):
        try:
            if not raw_contents:
                array = contents_to_array(tensor.datatype, tensor.shape, tensor.contents)
            elif tensor.contents.ListFields():  # MLServer sends empty ones beside raw data
                raise PackageError("it has contents, but the message's tensors are raw")
            else:
                array = raw_to_array(tensor.datatype, tensor.shape, raw_contents[index])
        except PackageError as error:
            raise PackageError(f"tensor {tensor.name!r}: {error}") from None
        arrays[tensor.name] = array
    return arrays


def raw_to_array(datatype: str, shape: Sequence[int], raw: bytes) -> Array:
    """The array of one raw tensor, a copy; of BYTES, an object array of `bytes`.

    Raises PackageError for an unknown datatype and for data that does not fit the shape.
    """
    dtype = _known(datatype)
    if dtype == _BYTES:
        return _objects(list(_elements(raw, _size(shape))), shape)
    size = _size(shape)
    if len(raw) != size * dtype.itemsize:
        raise PackageError(
            f"{datatype} of shape {list(shape)} takes {size * dtype.itemsize} bytes, "
            f"but {len(raw)} came"
        )
    if dtype == np.bool_:  # any byte but 0 is true, and numpy trusts that it is 1
        return _shaped(np.frombuffer(raw, np.uint8) != 0, shape)
    flat = np.frombuffer(raw, dtype.newbyteorder("<"))
    return _shaped(flat.astype(dtype), shape)


def _elements(raw: bytes, count: int) -> Iterable[bytes]:
    """The `count` elements of BYTES in their raw form."""
    at = 0
    for index in range(count):
        start = at + _LENGTH.size
        if start > len(raw):
            raise PackageError(f"BYTES ends after {index} of {count} elements")
        at = start + _LENGTH.unpack_from(raw, at)[0]
        if at > len(raw):
            raise PackageError(f"element {index} of BYTES needs {at - len(raw)} bytes more")
        yield raw[start:at]
    if at != len(raw):
        raise PackageError(f"{len(raw) - at} bytes follow the last element of BYTES")


def contents_to_array(datatype: str, shape: Sequence[int], contents: InferTensorContents) -> Array:
    """The array of one tensor that is not raw; of BYTES, an object array of `bytes`.

    Raises PackageError for FP16 and BF16, which have no field, for an unknown datatype, and for
    data that does not fit the datatype or the shape.
    """
    dtype = _known(datatype)
    if datatype not in _CONTENTS:
        raise PackageError(f"{datatype} has no contents: it travels raw only")
    field, field_dtype = _CONTENTS[datatype]
    elements = getattr(contents, field)
    size = _size(shape)
    if len(elements) != size:
        raise PackageError(
            f"{datatype} of shape {list(shape)} has {size} elements, "
            f"but {field} holds {len(elements)}"
        )
    if dtype == _BYTES:
        return _objects(list(elements), shape)
    wide = np.fromiter(elements, field_dtype, count=size)
    flat = wide.astype(dtype, copy=False)
    if flat is not wide and not np.array_equal(flat, wide):
        raise PackageError(f"{field} holds {wide.min()} to {wide.max()}, too much for {datatype}")
    return _shaped(flat, shape)


def with_text(array: Array) -> Array:
    """The array; of BYTES, one in which each element that is UTF-8 has become a `str`.

    Decided for each element, so that a sample's type does not depend on the rest of its batch.
    """
    if array.dtype != _BYTES:
        return array
    return _objects([_text(element) for element in array.ravel().tolist()], array.shape)


def _text(element: bytes) -> str | bytes:
    try:
        return element.decode()
    except UnicodeDecodeError:
        return element


def _known(datatype: str) -> np.dtype[Any]:
    dtype = DATATYPES.get(datatype)
    if dtype is None:
        raise PackageError(f"datatype {datatype!r} is none of {', '.join(DATATYPES)}")
    return dtype


def _size(shape: Sequence[int]) -> int:
    if len(shape) > MAX_DIMENSIONS:
        raise PackageError(f"{len(shape)} dimensions are more than {MAX_DIMENSIONS}")
    if any(size < 0 for size in shape):
        raise PackageError(f"shape {list(shape)} has a negative dimension")
    return math.prod(shape)


def _shaped(flat: Array, shape: Sequence[int]) -> Array:
    try:
        return flat.reshape(tuple(shape))
    except ValueError as error:
        raise PackageError(f"no array has the shape {list(shape)}: {error}") from None


def _objects(elements: Sequence[str | bytes], shape: Sequence[int]) -> Array:
    flat = np.empty(len(elements), object)
    flat[:] = elements
    return _shaped(flat, shape)
