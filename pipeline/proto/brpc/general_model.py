"""numpy values to the `Tensor` of Paddle Serving's general model service and back.

The wire is that of general_model.proto. Readers compare a size that a peer states with the
received data before they allocate memory for it.

The JSON form is that of brpc over HTTP: unlike proto3 JSON it writes 64-bit integers as numbers
and leaves out empty lists.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import orjson
from google.protobuf.message import Message

from pipeline.errors import PackageError, PayloadTypeError
from pipeline.proto.brpc.frames import FrameError
from pipeline.proto.codec import sendable
from pipeline.proto.general_model_pb2 import ModelOutput, Request, Response, Tensor
from pipeline.proto.lists import as_array
from pipeline.proto.pipeline.blocks import (
    PACKED_DTYPES,
    BlockMessage,
    Shape,
    field_head,
    hollow,
    last_bytes,
    put_numbers,
    read_numbers,
    read_packed,
    varint_block,
)
from pipeline.proto.pipeline.json import fields_of, fill, floats_of, object_of, shown
from pipeline.proto.pipeline.shapes import in_shape
from pipeline.proto.slices import SHORT_BYTES, Limits, joined

Array = npt.NDArray[Any]


class BrpcElemType(IntEnum):
    """Values of `Tensor.elem_type`, and of feed_type and fetch_type in a model's configuration.

    The numbers are Paddle Serving's. Its C++ server accepts INT64, FP32, INT32, FP16, UINT8, INT8
    and STRING; only this library's servers and clients accept the others.
    """

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
    STRING = 20


_CONTENT = "tensor_content"
_LONG = frozenset(
    field.number for field in Tensor.DESCRIPTOR.fields if field.name.endswith(("_data", _CONTENT))
)
_VARINTS = ("int64_data", "int_data", "uint32_data")
_LARGE_BYTES = SHORT_BYTES
_REQUEST_SHAPE = Shape(frozenset(), {Request.TENSOR_FIELD_NUMBER: Shape(_LONG)})
_TEXT = np.dtype(object)
LAYOUTS: dict[int, tuple[np.dtype[Any], str]] = {
    BrpcElemType.INT64: (np.dtype(np.int64), "int64_data"),
    BrpcElemType.FP32: (np.dtype(np.float32), "float_data"),
    BrpcElemType.INT32: (np.dtype(np.int32), "int_data"),
    BrpcElemType.FP64: (np.dtype(np.float64), "float64_data"),
    BrpcElemType.INT16: (np.dtype(np.int16), _CONTENT),
    BrpcElemType.FP16: (np.dtype(np.float16), _CONTENT),
    BrpcElemType.BF16: (np.dtype(ml_dtypes.bfloat16), _CONTENT),
    BrpcElemType.UINT8: (np.dtype(np.uint8), _CONTENT),
    BrpcElemType.INT8: (np.dtype(np.int8), _CONTENT),
    BrpcElemType.BOOL: (np.dtype(np.bool_), "bool_data"),
    BrpcElemType.COMPLEX64: (np.dtype(np.complex64), "complex64_data"),
    BrpcElemType.COMPLEX128: (np.dtype(np.complex128), "complex128_data"),
    BrpcElemType.STRING: (_TEXT, "data"),
}
_ELEM_TYPES = {dtype: elem_type for elem_type, (dtype, _) in LAYOUTS.items()}


def dtype_of(elem_type: int) -> np.dtype[Any]:
    """Return the dtype of an elem_type's arrays; object is text. Raises ValueError: unknown."""
    try:
        return LAYOUTS[elem_type][0]
    except KeyError:
        known = ", ".join(f"{known.value} {known.name}" for known in BrpcElemType)
        raise ValueError(f"elem_type {elem_type} is unknown: there is {known}") from None


def elem_type_of(dtype: np.dtype[Any]) -> BrpcElemType:
    """Return the elem_type of arrays of `dtype`. Raises ValueError: there is no such elem_type."""
    try:
        return BrpcElemType(_ELEM_TYPES[dtype])
    except KeyError:
        raise ValueError(f"dtype {dtype} has no place in the general model service") from None


# --- numpy to wire ----------------------------------------------------------------------------


def value_to_tensor(
    name: str, alias: str, value: Array | Sequence[str], lod: Sequence[int] | Array | None = None
) -> Tensor:
    tensor = Tensor()
    put_value(tensor, name, alias, value, lod)
    return tensor


def put_value(
    tensor: Tensor,
    name: str,
    alias: str,
    value: Array | Sequence[str],
    lod: Sequence[int] | Array | None = None,
) -> None:
    """Fill an empty tensor with an array of any shape, or with a list of str (1-D).

    In place, because adding a message to another one copies it. Arrays of objects hold str;
    uint16, uint32 and, where its values fit, uint64 are sent as a wider signed integer. `lod` holds
    level-of-detail offsets.

    Raises:
        PayloadTypeError: this format cannot carry the value; the text names `alias`.
    """
    try:
        _pack(tensor, value)
        if lod is not None:
            tensor.lod.extend(as_array(lod).ravel().tolist())
        tensor.name = name
        tensor.alias_name = alias
    except (TypeError, ValueError, OverflowError) as error:
        raise PayloadTypeError(f"tensor {alias!r}: {error}") from error


def _pack(tensor: Tensor, value: Array | Sequence[str]) -> None:
    if isinstance(value, str | bytes) or not isinstance(value, np.ndarray | Sequence):
        raise TypeError(f"a {type(value).__name__} cannot be sent; give an array or a list of str")
    array = value if isinstance(value, np.ndarray) else np.array(value, dtype=object)
    tensor.shape.extend(array.shape)
    if array.dtype.kind in "OU":
        strings = array.ravel().tolist()
        for element in strings:
            if not isinstance(element, str):
                kind = type(element).__name__
                raise TypeError(f"an array of objects must hold str only, not {kind}")
        tensor.elem_type = BrpcElemType.STRING
        tensor.data.extend(strings)
        return
    array = _sendable(array)
    tensor.elem_type = _ELEM_TYPES[array.dtype]
    field = LAYOUTS[tensor.elem_type][1]
    if field == _CONTENT:
        tensor.tensor_content = array.tobytes()
    else:
        put_numbers(tensor, field, array)


def _sendable(array: Array) -> Array:
    """Return the array in a dtype that has an elem_type here. Raises TypeError, ValueError."""
    array = sendable(array)
    return array.astype(np.int32) if array.dtype == np.uint16 else array  # 6 is bfloat16 here


def value_pieces(
    name: str, alias: str, value: Array | Sequence[str], lod: Sequence[int] | Array | None = None
) -> list[bytes | memoryview]:
    """Return the bytes of `value_to_tensor`, in pieces; a large array is not copied."""
    if not isinstance(value, np.ndarray) or value.dtype.kind in "OU" or value.nbytes < _LARGE_BYTES:
        return [value_to_tensor(name, alias, value, lod).SerializeToString()]
    try:
        array = _sendable(value)
    except (TypeError, ValueError) as error:
        raise PayloadTypeError(f"tensor {alias!r}: {error}") from error
    rest = value_to_tensor(name, alias, np.empty(0, array.dtype), lod)
    rest.shape[:] = value.shape
    field = LAYOUTS[_ELEM_TYPES[array.dtype]][1]
    content: bytes | memoryview
    if field in _VARINTS:
        content = varint_block(array)
    else:
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    head = field_head(Tensor.DESCRIPTOR.fields_by_name[field].number, len(content))
    written = rest.SerializeToString()
    return [written, head, content] if field == _CONTENT else [head, content, written]


def response_bytes(engine: str, log_id: int, tensors: Iterable[list[bytes | memoryview]]) -> bytes:
    """Return a Response of one model; each tensor in the pieces of `value_pieces`."""
    pieces: list[bytes | memoryview] = []
    for tensor in tensors:
        pieces += (field_head(ModelOutput.TENSOR_FIELD_NUMBER, sum(map(len, tensor))), *tensor)
    pieces.append(ModelOutput(engine_name=engine).SerializeToString())
    head = field_head(Response.OUTPUTS_FIELD_NUMBER, sum(map(len, pieces)))
    return joined((head, *pieces, Response(log_id=log_id).SerializeToString()))


def large_request(message: bytes, limits: Limits) -> BlockMessage:
    """Return a Request whose long fields stay in `message`. Raises DecodeError, TooLargeError."""
    return hollow(message, Request, _REQUEST_SHAPE, limits)


# --- wire to numpy ----------------------------------------------------------------------------


def tensor_to_array(tensor: Tensor | BlockMessage) -> Array:
    """Return a new array of the tensor's elements in its shape; text as objects, each a str.

    Without a shape one element gives a 0-d array and any other number a 1-D array.

    Raises:
        FrameError: an unknown elem_type, or data that do not fit it or the shape; the text names
            the tensor.
    """
    try:
        if tensor.elem_type not in LAYOUTS:
            raise ValueError(f"elem_type {tensor.elem_type} is unknown")
        dtype, field = LAYOUTS[tensor.elem_type]
        return in_shape(tensor, _elements(tensor, dtype, field), field)
    except ValueError as error:
        raise FrameError(f"tensor {tensor.alias_name or tensor.name!r}: {error}") from None


def lod_of(tensor: Tensor | BlockMessage) -> Array | None:
    """Return the tensor's level-of-detail offsets as a 1-D int32 array; None without offsets."""
    return np.array(tensor.lod, dtype=np.int32) if tensor.lod else None


def _elements(tensor: Tensor | BlockMessage, dtype: np.dtype[Any], field: str) -> Array:
    """Return the elements as a 1-D array. Raises ValueError: the last element is cut short."""
    if field in PACKED_DTYPES:
        return read_numbers(tensor, field, dtype)
    if field == _CONTENT:
        content = last_bytes(tensor, field)
        if len(content) % dtype.itemsize:
            size = len(content)
            raise ValueError(f"{field} holds {size} bytes, not a whole number of {dtype} elements")
        return np.frombuffer(content, dtype).copy()
    if isinstance(tensor, BlockMessage) and (parts := tensor.varints(field, dtype)) is not None:
        return np.concatenate(list(parts))
    repeated = getattr(tensor, field)
    # Not a "<U" array: that pads each element to the longest, so a peer could make it huge.
    if dtype == _TEXT:
        return np.array(repeated, dtype)
    return np.fromiter(repeated, dtype, count=len(repeated))


_REQUEST_FIELDS = fields_of(Request)
_TENSOR_FIELDS = fields_of(Tensor)
_ALWAYS = ("elem_type", "name", "alias_name")  # of a tensor, also where they are 0 or ""


def request_from_json(body: bytes) -> Request:
    """Read a request.

    Raises:
        PackageError: it is no JSON, or a value is not of its field's type.
    """
    fields = object_of(body)
    request = Request()
    fill(request, fields, _REQUEST_FIELDS, "")
    tensors = fields.get("tensor") or []
    if type(tensors) is not list:
        raise PackageError(f"tensor must be an array, not {shown(tensors)}")
    for at, tensor in enumerate(tensors):
        if type(tensor) is not dict:
            raise PackageError(f"tensor[{at}] must be an object, not {shown(tensor)}")
        fill(request.tensor.add(), tensor, _TENSOR_FIELDS, f"tensor[{at}].")
    return request


def request_to_json(request: Request) -> bytes:
    """Write a request."""
    return _dumped(
        {
            "tensor": [_tensor(tensor) for tensor in request.tensor],
            "fetch_var_names": request.fetch_var_names[:],
            "log_id": request.log_id,
        }
    )


def response_to_json(response: Response) -> bytes:
    """Write an answer."""
    outputs = [
        {
            "tensor": [_tensor(tensor) for tensor in output.tensor],
            "engine_name": output.engine_name,
        }
        for output in response.outputs
    ]
    return _dumped(
        {
            "outputs": outputs,
            "log_id": response.log_id,
            "err_no": response.err_no,
            "err_msg": response.err_msg,
        }
    )


def _dumped(fields: dict[str, Any]) -> bytes:
    return orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)


def _tensor(tensor: Tensor) -> dict[str, Any]:
    values = {field.name: _value(tensor, field.name) for field, _ in tensor.ListFields()}
    return {**{name: getattr(tensor, name) for name in _ALWAYS}, **values}


def _value(message: Message, field: str) -> Any:
    if field in PACKED_DTYPES:
        return floats_of(read_packed(message, field))
    if field == _CONTENT:
        return base64.b64encode(getattr(message, field)).decode("ascii")
    value = getattr(message, field)
    return value[:] if _TENSOR_FIELDS[field].is_repeated else value
