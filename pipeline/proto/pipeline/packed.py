"""Arrays in and out of a Tensor's repeated float, double and bool fields by their wire bytes.

For the `Tensor` of pipeline_service.proto and that of general_model.proto: their fields 1 to 8
are the same.
Protobuf packs such a field as one block of little-endian elements, which is the array itself.
Measured at 250,000 float32: 0.07 ms to read and 0.15 ms to write, where iterating takes 7.6 ms
and `extend` 7.8 ms. Integer fields are varints, which numpy packs no faster than protobuf does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from pipeline.proto.pipeline.blocks import BlockMessage, read_varint, varint
from pipeline.proto.pipeline_service_pb2 import Tensor

Array = npt.NDArray[Any]

PACKED_DTYPES: dict[str, np.dtype[Any]] = {
    "float_data": np.dtype("<f4"),
    "float64_data": np.dtype("<f8"),
    "bool_data": np.dtype(np.bool_),
    "complex64_data": np.dtype("<f4"),
    "complex128_data": np.dtype("<f8"),
}
_FEW = 64  # elements: up to so many are quicker one by one
# The one-byte tag before each field's block: its number, and the wire type "length-delimited".
_LENGTH_DELIMITED = 2
_TAGS = {
    field: Tensor.DESCRIPTOR.fields_by_name[field].number << 3 | _LENGTH_DELIMITED
    for field in PACKED_DTYPES
}


def put_numbers(tensor: Message, field: str, data: Array) -> None:
    """Append the elements of `data` to the field of numbers in which its dtype travels."""
    if data.dtype.kind == "c":
        data = np.ascontiguousarray(data).view(PACKED_DTYPES[field])
    if field in PACKED_DTYPES:
        write_packed(tensor, field, data)
    else:
        getattr(tensor, field).extend(data.ravel().tolist())


def write_packed(tensor: Message, field: str, data: Array) -> None:
    """Append the elements of `data`, cast to the field's dtype, to a field of PACKED_DTYPES."""
    if data.size <= _FEW:
        getattr(tensor, field).extend(
            data.astype(PACKED_DTYPES[field], copy=False).ravel().tolist()
        )
        return
    elements = np.ascontiguousarray(data, PACKED_DTYPES[field])
    head = bytes((_TAGS[field],)) + varint(elements.nbytes)
    tensor.MergeFromString(b"".join((head, elements.reshape(-1).view(np.uint8).data)))


def read_packed(tensor: Message | BlockMessage, field: str) -> Array:
    """Return a field of PACKED_DTYPES as a 1-D array that is not to be written to."""
    dtype = PACKED_DTYPES[field]
    if isinstance(tensor, BlockMessage) and (found := tensor.packed(field, dtype)) is not None:
        return found
    repeated = getattr(tensor, field)
    if len(repeated) > _FEW:
        wire = tensor.SerializeToString()
        start = _block_start(wire, _TAGS[field], len(repeated) * dtype.itemsize)
        if start is not None:
            return np.frombuffer(wire, dtype, len(repeated), start)
    return np.fromiter(repeated, dtype, len(repeated))


def read_numbers(tensor: Message | BlockMessage, field: str, dtype: np.dtype[Any]) -> Array:
    """Return a field of PACKED_DTYPES as a new 1-D array of a float, complex or bool dtype.

    Raises ValueError for half a complex number, and for one that is too large for `dtype`.
    """
    numbers = read_packed(tensor, field)
    if numbers.dtype == dtype:
        return numbers.copy()
    if dtype.kind == "c":
        if numbers.size % 2:
            raise ValueError(f"{field} holds {numbers.size} numbers; they come in pairs")
        return numbers.view(dtype).copy()
    try:
        with np.errstate(over="raise", invalid="ignore"):
            return numbers.astype(dtype)
    except FloatingPointError:
        raise ValueError(f"a number in {field} is too large for {dtype}") from None


def _block_start(wire: bytes, wanted: int, size: int) -> int | None:
    """Return the position of the `size` bytes behind the tag `wanted` in a serialised Tensor.

    A serialiser writes fields in the order of their numbers, and a Tensor's fields 1 to 8 are all
    packed: so only such blocks stand before the one we look for. None when that does not hold.
    """
    at = 0
    while at < len(wire) and wire[at] <= wanted and wire[at] & 7 == _LENGTH_DELIMITED:
        tag = wire[at]
        length, at = read_varint(wire, at + 1)
        if tag == wanted:
            return at if length == size else None
        at += length
    return None
