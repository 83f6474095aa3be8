"""Arrays of the v2 inference protocol as bytes: its datatypes, and the raw form of a tensor.

A size that a peer states is compared with the received data before memory is allocated for it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pipeline.errors import PackageError, PayloadTypeError
from pipeline.proto.lists import as_array
from pipeline.proto.pipeline.shapes import MAX_DIMENSIONS, check_empty_rows
from pipeline.proto.slices import SLICE, Limits, breathe, joined, sliced

Array = npt.NDArray[Any]

BYTES = np.dtype(object)
"""The dtype of BYTES arrays."""

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
        "BYTES": BYTES,
    }
)
"""The protocol's datatypes; BYTES elements are objects: `bytes` of any length."""

_NAMES = {dtype: name for name, dtype in DATATYPES.items()}
_LENGTH = struct.Struct("<I")  # the length before each BYTES element in raw form
_MAX_LENGTH = 2**32 - 1
MOST = 2**63 - 1
"""Maximum number of a tensor's elements, and of its bytes, in Triton."""

_NUMBERS = (np.ndarray, np.generic, int, float)
_FEW = 64  # so few elements are quicker one by one


# --- numpy to wire --------------------------------------------------------------------------


def datatype_of(dtype: np.dtype[Any]) -> str:
    """Return the protocol's name of a dtype; text and objects of any kind are BYTES.

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
    """Return the elements in the form of `raw_input_contents` and `raw_output_contents`.

    Elements of BYTES are `str`, written as UTF-8, or `bytes`. Raises PayloadTypeError for others.
    """
    return joined((raw_view(array),))


def raw_view(array: Array) -> bytes | memoryview:
    """Return the bytes of `array_to_raw`; numbers are not copied."""
    if datatype_of(array.dtype) != "BYTES":
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        return little.reshape(-1).view(np.uint8).data
    parts: list[bytes] = []
    for part in sliced(array.reshape(-1)):
        elements = map(_element_bytes, part.tolist())
        parts.append(b"".join(b for e in elements for b in (_LENGTH.pack(len(e)), e)))
    return b"".join(parts)


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


class UnfilledError(PackageError):
    """Data do not fill their shape.

    Args:
        text: the text for any tensor.
        pattern: Triton's text for a model's input; `{}` stands for the names of input and model,
            `{input}` for the first.
    """

    def __init__(self, text: str, pattern: str) -> None:
        super().__init__(text)
        self._told = pattern

    def of_input(self, name: str, model: str, request_id: str) -> PackageError:
        """Return the error for an input of a request, with Triton's text."""
        text = self._told.replace("{}", f"'{name}' for model '{model}'", 1)
        text = text.replace("{input}", f"'{name}'", 1)
        return PackageError(f"{about_request(request_id)}{text}")


def size_mismatch(what: str, expected: int, came: int) -> UnfilledError:
    """Return the error of a tensor with `came` bytes instead of `expected`."""
    return UnfilledError(
        f"{what} takes {expected} bytes, but {came} came",
        f"input byte size mismatch for input {{}}. Expected {expected}, got {came}",
    )


def count_mismatch(expected: int, came: int) -> UnfilledError:
    """Return the error of BYTES with more or fewer elements than expected."""
    if came > expected:
        pattern = (
            f"unexpected number of string elements {came} for inference input {{}}, "
            f"expecting {expected}"
        )
    else:
        pattern = f"expected {expected} string elements for inference input {{}}, got {came}"
    return UnfilledError(f"{came} elements of BYTES came, but its shape has {expected}", pattern)


def about_request(request_id: str) -> str:
    """Return the beginning of Triton's errors about a request."""
    return f"[request id: {request_id or '<id_unknown>'}] "


# --- wire to numpy --------------------------------------------------------------------------


def raw_to_array(
    datatype: str,
    shape: Sequence[int],
    raw: bytes | memoryview,
    limits: Limits | None = None,
    stays: bool = False,
) -> Array:
    """Return the array of one raw tensor; of BYTES, an object array of `bytes`.

    It is a copy, unless `stays` allows it to use the memory of `raw` and this is aligned.

    Raises PackageError for an unknown datatype and for data that do not fit the shape;
    TooLargeError for more elements of BYTES than `limits` allow.
    """
    dtype = known_dtype(datatype)
    size = size_of(shape)
    if dtype == BYTES:
        if limits is not None:
            limits.check_texts(size)
        elements = _equal_elements(raw, size)
        return object_array(elements or list(_unequal_elements(raw, size)), shape)
    if len(raw) != size * dtype.itemsize:
        raise size_mismatch(f"{datatype} of shape {list(shape)}", size * dtype.itemsize, len(raw))
    if dtype == np.bool_:  # any byte but 0 is true; numpy expects 1
        return shaped(np.frombuffer(raw, np.uint8) != 0, shape)
    flat = np.frombuffer(raw, dtype.newbyteorder("<"))
    return shaped(flat.astype(dtype, copy=not (stays and flat.flags.aligned)), shape)


def _equal_elements(raw: bytes | memoryview, count: int) -> list[bytes] | None:
    """Return the elements if they have one length; numpy takes a tenth of the time."""
    if count < _FEW or len(raw) % count or len(raw) < count * (_LENGTH.size + 1):
        return None
    (length,) = _LENGTH.unpack_from(raw, 0)
    if (_LENGTH.size + length) * count != len(raw):
        return None
    parts = np.frombuffer(raw, [("length", "<u4"), ("data", f"V{length}")])
    if not (parts["length"] == length).all():
        return None
    elements: list[bytes] = []
    for part in sliced(parts["data"]):
        elements += part.tolist()
    return elements


def _unequal_elements(raw: bytes | memoryview, count: int) -> Iterable[bytes]:
    at = 0
    for index in range(count):
        if index % SLICE == 0:
            breathe()
        start = at + _LENGTH.size
        if at == len(raw):
            raise count_mismatch(count, index)
        if start > len(raw):
            raise PackageError(f"BYTES ends within the length of element {index} of {count}")
        at = start + _LENGTH.unpack_from(raw, at)[0]
        if at > len(raw):
            raise PackageError(f"element {index} of BYTES needs {at - len(raw)} bytes more")
        yield bytes(raw[start:at])
    if at != len(raw):
        raise count_mismatch(count, count + 1)


def with_text(array: Array) -> Array:
    """Return the array; in a BYTES array, each element that is UTF-8 becomes a `str`.

    Each element is decided alone, so that a sample's type does not depend on its batch.
    """
    if array.dtype != BYTES:
        return array
    return object_array([_text(element) for element in array.ravel().tolist()], array.shape)


def _text(element: bytes) -> str | bytes:
    try:
        return element.decode()
    except UnicodeDecodeError:
        return element


def known_dtype(datatype: str) -> np.dtype[Any]:
    """Return the dtype of a datatype's arrays. Raises PackageError for an unknown name."""
    dtype = DATATYPES.get(datatype)
    if dtype is None:
        raise PackageError(f"datatype {datatype!r} is not one of {', '.join(DATATYPES)}")
    return dtype


def size_of(shape: Sequence[int]) -> int:
    """Count the elements of a shape. Raises PackageError for one that no array can have."""
    if len(shape) > MAX_DIMENSIONS:
        raise PackageError(f"{len(shape)} dimensions are more than {MAX_DIMENSIONS}")
    if any(size < 0 for size in shape):
        raise PackageError(f"shape {list(shape)} has a negative dimension")
    size = math.prod(shape)
    if size > MOST:
        text = f"shape {_shown(shape)} causes total element count to exceed maximum size of {MOST}"
        raise UnfilledError(text, f"invalid shape for input {{input}}: {text}")
    if not size:
        try:
            check_empty_rows(shape)
        except ValueError as error:
            raise PackageError(str(error)) from None
    return size


def _shown(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def shaped(flat: Array, shape: Sequence[int]) -> Array:
    """Return the elements in a shape. Raises PackageError: no array can have it."""
    try:
        return flat.reshape(tuple(shape))
    except ValueError as error:
        raise PackageError(f"no array has the shape {list(shape)}: {error}") from None


def object_array(elements: Sequence[str | bytes], shape: Sequence[int]) -> Array:
    """Return a BYTES array of these objects."""
    flat = np.empty(len(elements), object)
    flat[:] = elements
    return shaped(flat, shape)


def array_of(value: object) -> Array:
    """Return one value of an Op's answer as an array with at least one dimension; text as objects.

    Raises TypeError, ValueError, PayloadTypeError: the protocol has no form for it.
    """
    if isinstance(value, _NUMBERS):
        array = np.asarray(value)
    elif isinstance(value, str | bytes):
        return object_array([value], (1,))
    elif isinstance(value, bytearray | memoryview):
        return object_array([bytes(value)], (1,))
    elif isinstance(value, list | tuple):
        array = as_array(value)
    else:
        raise TypeError(
            f"a {type(value).__name__} is neither array, number, text nor a list of them"
        )
    if array.dtype.kind in "USO":
        array = _text_array(array)
    datatype_of(array.dtype)
    return array if array.ndim else array.reshape(1)


def _text_array(array: Array) -> Array:
    elements = array.astype(object)
    for element in elements.ravel():
        if not isinstance(element, str | bytes):
            raise TypeError(
                f"a {type(element).__name__} among its elements is neither number nor text"
            )
    return elements


def in_datatype(array: Array, datatype: str) -> Array:
    """Return an array in a datatype. Raises PayloadTypeError: it cannot hold the values."""
    actual = datatype_of(array.dtype)
    if actual == datatype:
        return array
    dtype = DATATYPES[datatype]
    if not array.size:
        return np.empty(array.shape, dtype)
    is_text = "BYTES" in (actual, datatype)
    if is_text or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise PayloadTypeError(f"it is {actual}, but {datatype} is declared")
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(cast, array):
        raise PayloadTypeError(f"it has numbers that {datatype}, which is declared, cannot hold")
    return cast
