"""Tensors, and bytes of text tensors, of `triton_python_backend_utils`."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

_LENGTH = struct.Struct("<I")

TRITON_STRING_TO_NUMPY: dict[str, Any] = {
    "TYPE_BOOL": bool,
    "TYPE_STRING": np.object_,
    **{f"TYPE_UINT{bits}": getattr(np, f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"TYPE_INT{bits}": getattr(np, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"TYPE_FP{bits}": getattr(np, f"float{bits}") for bits in (16, 32, 64)},
}
"""numpy's type by the data type of a configuration."""

_NUMBERS = (
    "",
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "STRING", "BF16"),
)
"""Names of data types by their numbers in a configuration."""


_STRING = _NUMBERS.index("STRING")
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_NUMBER_OF: dict[np.dtype[Any], int] = {
    **{
        np.dtype(kind): _NUMBERS.index(name.removeprefix("TYPE_"))
        for name, kind in TRITON_STRING_TO_NUMPY.items()
    },
    _BFLOAT16: _NUMBERS.index("BF16"),
}
_TEXTS = "OSU"  # kinds of arrays of text
_NO_NAME = "Tensor name cannot be an empty string."


class TritonModelException(Exception):
    """An error of a model, raised by these functions."""


class NamedTensor:
    """A tensor of a request or a response, called `name`.

    Raises:
        TypeError: `name` is not a text, or `array` not an ndarray.
        TritonModelException: `name` is empty, or no data type fits `array`.
    """

    def __init__(self, name: str, array: Any) -> None:
        if not isinstance(name, str | bytes):
            raise TypeError(f"expected a text as a tensor's name, found {type(name)}")
        if not isinstance(array, np.ndarray):
            raise TypeError(f"expected a numpy array for tensor {name!r}, found {type(array)}")
        if not name:
            raise TritonModelException(_NO_NAME)
        if array.dtype not in _NUMBER_OF and array.dtype.kind not in _TEXTS:
            raise TritonModelException("NumPy dtype is not supported.")
        self._name = name
        self._array = array

    def name(self) -> str:
        """Return the name."""
        return self._name

    def as_numpy(self) -> np.ndarray:
        """Return the array; elements of text are bytes, if it is not the model's own."""
        return self._array

    def shape(self) -> Sequence[int]:
        """Return the shape."""
        return list(self._array.shape)

    def triton_dtype(self) -> int:
        """Return the data type, by its number in a configuration; 0: there is none."""
        return numpy_to_triton_type(self._array.dtype) or 0

    def is_cpu(self) -> bool:
        """Return True: tensors are in the host's memory."""
        return True

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> NamedTensor:
        """Return a tensor of what has `__dlpack__`, on the host.

        TritonModelException: it has not, and is not a capsule; or numpy cannot read it: it is not
        in the host's memory, has a gradient, or elements of an unknown type.
        """
        if not name:
            raise TritonModelException(_NO_NAME)
        has_own = hasattr(tensor, "__dlpack__")
        if not has_own and type(tensor).__name__ != "PyCapsule":
            raise TritonModelException(
                "DLPack capsule is not valid. Make sure that the first argument of from_dlpack is "
                "a tensor's name, and the second one a DLPack capsule."
            )
        try:
            array = np.from_dlpack(tensor if has_own else _Held(tensor))
        except Exception as error:  # of the library that made the tensor
            try:
                array = _bfloat16_of(tensor.__dlpack__() if has_own else tensor)
            except Exception:
                raise TritonModelException(
                    f"numpy cannot read tensor {name!r}: {error} Pass a tensor in the host's "
                    "memory, without a gradient."
                ) from error
        return NamedTensor(name, array)

    def to_dlpack(self) -> Any:
        """Return the tensor as a DLPack capsule, which others read without a copy."""
        return self.__dlpack__()

    def __dlpack__(self, *, stream: Any = None, **more: Any) -> Any:
        array = self._array if self._array.flags.writeable else self._array.copy()
        is_bfloat16 = array.dtype == _BFLOAT16
        lent = (array.view(np.uint16) if is_bfloat16 else array).view(_Lent)
        lent.tensor = self
        capsule = lent.__dlpack__()
        if is_bfloat16:
            dl_tensor(capsule).dtype.code = _DL_BFLOAT
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # the host


class _DlType(ctypes.Structure):
    """`DLDataType` of dlpack.h."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DlTensor(ctypes.Structure):
    """The head of `DLTensor` of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", _DlType),
    )


_DL_UNSIGNED, _DL_BFLOAT = 1, 4  # codes of `DLDataType`
_capsule_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def dl_tensor(capsule: Any) -> _DlTensor:
    """Return what a DLPack capsule points at. ValueError: its tensor was taken."""
    return _DlTensor.from_address(_capsule_address(capsule, b"dltensor"))


def _bfloat16_of(capsule: Any) -> np.ndarray:
    """Return the array of a capsule with bfloat16, which numpy itself does not have.

    Raises an Exception, with the capsule unchanged: it holds something else.
    """
    kind = dl_tensor(capsule).dtype
    if (kind.code, kind.bits) != (_DL_BFLOAT, 16):
        raise BufferError("not bfloat16")
    kind.code = _DL_UNSIGNED
    try:
        return np.from_dlpack(_Held(capsule)).view(_BFLOAT16)
    except Exception:
        kind.code = _DL_BFLOAT
        raise


class _Lent(np.ndarray):
    """The array of a DLPack capsule, which keeps the tensor: Triton's suites count references."""

    tensor: NamedTensor


class _Held:
    """Owner of a DLPack capsule, which numpy takes from an owner only."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **more: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # the host


def received(name: str, value: Any) -> NamedTensor:
    """Return a tensor that came from elsewhere: elements of text are bytes."""
    tensor = NamedTensor.__new__(NamedTensor)
    tensor._name = name
    is_plain = type(value) is np.ndarray and value.dtype.kind not in _TEXTS
    tensor._array = value if is_plain else sent(np.asarray(value))
    return tensor


def sent(array: np.ndarray) -> np.ndarray:
    """Return the array of a tensor as others are to see it: elements of text are bytes."""
    return _of_bytes(array) if array.dtype.kind in _TEXTS else array


def _of_bytes(array: np.ndarray) -> np.ndarray:
    """Return an array of text whose elements are bytes."""
    elements = np.empty(array.shape, object)
    flat = elements.reshape(-1)
    for at, element in enumerate(array.reshape(-1).tolist()):
        flat[at] = element if isinstance(element, bytes) else str(element).encode()
    return elements


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """Return numpy's type of a configuration's data type. KeyError: there is none."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    """Return numpy's type of a data type's number; None: there is none."""
    name = _NUMBERS[data_type] if 0 < data_type < len(_NUMBERS) else ""
    dtype = TRITON_STRING_TO_NUMPY.get(f"TYPE_{name}")
    return np.bool_ if dtype is bool else dtype


def numpy_to_triton_type(data_type: Any) -> int | None:
    """Return the number of the data type that numpy's type is; None: there is none."""
    kind = np.dtype(data_type)
    return _STRING if kind.kind in _TEXTS else _NUMBER_OF.get(kind)


def serialize_byte_tensor(input_tensor: np.ndarray) -> Any:
    """Return the elements of a text tensor, each behind its length; () for none.

    None: it is one of numbers.
    """
    if not input_tensor.size:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    elements = _of_bytes(input_tensor).reshape(-1).tolist()
    return b"".join(_LENGTH.pack(len(element)) + element for element in elements)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> np.ndarray:
    """Return the elements of a text tensor, in one dimension. struct.error: it is cut off."""
    elements, at = [], 0
    while at < len(encoded_tensor):
        (length,) = _LENGTH.unpack_from(encoded_tensor, at)
        at += _LENGTH.size
        elements.append(bytes(encoded_tensor[at : at + length]))
        at += length
    result = np.empty(len(elements), object)
    result[:] = elements
    return result
