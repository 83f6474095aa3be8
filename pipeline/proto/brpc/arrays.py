"""Arrays in requests and answers of the general model service, by their bytes.

All arrays of one shape have the same bytes around their numbers. protobuf writes and reads these
bytes once per shape; this module inserts the numbers and cuts them out. The result is the same as
protobuf's. If only the numbers of an answer differ from an earlier answer, only they are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from pipeline.proto.brpc.general_model import LAYOUTS, BrpcElemType, value_pieces
from pipeline.proto.general_model_pb2 import ModelOutput, Request, Response, Tensor
from pipeline.proto.pipeline.blocks import field_head, read_varint, varint, varint_block
from pipeline.proto.pipeline.shapes import MAX_DIMENSIONS
from pipeline.proto.slices import SHORT_BYTES

Array = npt.NDArray[Any]
Answer = dict[str, Array] | Response
"""The arrays by alias if one model answered with arrays alone; otherwise the whole message."""

Pieces = Sequence[bytes | memoryview]
"""A field `tensor` of a Request."""

_MAX_BYTES = 2**31 - 1
_KEPT = 256  # shapes, lengths or lists of names
_MAX_KEPT_BYTES = 1024  # of a peer's bytes around numbers
_MAX_KEPT_TENSORS = 16
_VARINTS = (BrpcElemType.INT64, BrpcElemType.INT32)
_CONTENT = "tensor_content"
_NUMBERS = {field.name: field.number for field in Tensor.DESCRIPTOR.fields}
_OUTPUTS_TAG = _TENSOR_TAG = 0x0A  # field 1 of Response and of ModelOutput, each a message
_LOG_ID_TAG = bytes([Request.LOG_ID_FIELD_NUMBER << 3])
_TYPES = {_NUMBERS[name] << 3 | 2: kind for kind, (_, name) in LAYOUTS.items() if kind in (1, 3)}
_AROUND = frozenset({"elem_type", "shape", "name", "alias_name"})


# --- writing ----------------------------------------------------------------------------------


class ArrayWriter:
    """Writes the arrays of one input. Raises ValueError for `elem_type` STRING."""

    def __init__(self, name: str, alias: str, elem_type: int) -> None:
        if elem_type == BrpcElemType.STRING:
            raise ValueError("text is not an array of numbers")
        self._tensor = Tensor(name=name, alias_name=alias, elem_type=elem_type)
        self._field = LAYOUTS[elem_type][1]
        self._number = _NUMBERS[self._field]
        self._are_varints = elem_type in _VARINTS
        self._rest = lru_cache(_KEPT)(self._write_rest)
        self._around = lru_cache(_KEPT)(self._write_around)

    def pieces(self, array: Array) -> Pieces:
        """Return a field `tensor` of a Request; the array has the dtype of `elem_type`."""
        content: bytes | memoryview
        if self._are_varints:
            content = varint_block(array)
        elif array.nbytes <= SHORT_BYTES:
            content = array.tobytes()
        else:
            content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        before, after = self._around(array.shape, len(content))
        return before, content, after

    def _write_around(self, shape: tuple[int, ...], content_bytes: int) -> tuple[bytes, bytes]:
        """Return the bytes before and after the numbers of a field `tensor`."""
        rest = self._rest(shape)
        inner = field_head(self._number, content_bytes) if content_bytes else b""
        size = len(inner) + content_bytes + len(rest)
        outer = field_head(Request.TENSOR_FIELD_NUMBER, size)
        if self._field == _CONTENT:
            return outer + rest + inner, b""
        return outer + inner, rest

    def _write_rest(self, shape: tuple[int, ...]) -> bytes:
        tensor = Tensor(shape=shape)
        tensor.MergeFrom(self._tensor)
        return tensor.SerializeToString()


def request_bytes(tensors: Iterable[Pieces], fetch: Sequence[str], log_id: int) -> bytes:
    """Return a Request of tensors in pieces, for the outputs `fetch`.

    Raises ValueError: it has 2 GiB or more, which protobuf cannot read.
    """
    pieces: list[bytes | memoryview] = []
    for tensor in tensors:
        pieces += tensor
    pieces.append(_fetch_fields(tuple(fetch)))
    if log_id:
        pieces += (_LOG_ID_TAG, varint(log_id))
    message = b"".join(pieces)
    if len(message) > _MAX_BYTES:
        raise ValueError(f"{len(message)} bytes; a protobuf message must be smaller than 2 GiB")
    return message


def tensor_field(
    name: str, alias: str, value: Array, lod: Sequence[int] | Array | None = None
) -> Pieces:
    """Return a field `tensor` of a Request for any array. Raises PayloadTypeError."""
    pieces = value_pieces(name, alias, value, lod)
    return [field_head(Request.TENSOR_FIELD_NUMBER, sum(map(len, pieces))), *pieces]


@lru_cache(_KEPT)
def _fetch_fields(names: tuple[str, ...]) -> bytes:
    return Request(fetch_var_names=names).SerializeToString()


# --- reading ----------------------------------------------------------------------------------


class _Rest(NamedTuple):
    """A tensor without its numbers."""

    alias: str
    elem_type: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size: int


class _Numbers(NamedTuple):
    """One tensor in answers: `before` are the bytes between the previous numbers and its own."""

    before: bytes
    at: int
    end: int
    alias: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class _Layout(NamedTuple):
    """Places of the numbers in a model's output, whose other bytes are the same in each answer.

    `rest` follows the last numbers, until the output's end at `end`.
    """

    tensors: tuple[_Numbers, ...]
    rest: bytes
    end: int

    def read(self, data: bytes | memoryview) -> dict[str, Array] | None:
        """Return the arrays of an answer; None if it has another layout or other content."""
        arrays = {}
        read_to = 0
        for before, at, end, alias, dtype, shape in self.tensors:
            if data[read_to:at] != before:
                return None
            arrays[alias] = np.ndarray(shape, dtype, data, at).copy()
            read_to = end
        is_all = data[read_to : self.end] == self.rest and (
            self.end == len(data) or _is_plain(bytes(data[self.end :]))
        )
        return arrays if is_all else None


class AnswerReader:
    """Reads the answers of a model. Safe to use from many threads."""

    def __init__(self) -> None:
        self._layouts: dict[int, _Layout] = {}  # by the length of an answer

    def __call__(self, data: bytes | memoryview) -> Answer:
        """Return the content of a Response. Raises DecodeError: `data` are not a valid one."""
        size = len(data)
        layout = self._layouts.get(size)
        if layout is not None and (arrays := layout.read(data)) is not None:
            return arrays
        try:
            layout = _layout(data)
        except (DecodeError, IndexError):  # protobuf will say what is wrong
            layout = None
        if layout is None or (arrays := layout.read(data)) is None:
            return Response.FromString(bytes(data))
        if len(layout.tensors) <= _MAX_KEPT_TENSORS:
            if len(self._layouts) >= _KEPT:
                self._layouts = {}
            self._layouts[size] = layout
        return arrays


def _layout(data: bytes | memoryview) -> _Layout | None:
    """Return the layout of one model's answer; None if it has more than arrays."""
    if not data or data[0] != _OUTPUTS_TAG:
        return None
    at, end = _block(data, 1, len(data))
    tensors = []
    read_to = 0
    while at < end and data[at] == _TENSOR_TAG:
        at, tensor_end = _block(data, at + 1, end)
        elem_type = _TYPES.get(data[at])
        start, at = _block(data, at + 1, tensor_end)
        if elem_type is None or tensor_end - at > _MAX_KEPT_BYTES:
            return None
        rest = _read_rest(bytes(data[at:tensor_end]))
        if rest is None or rest.elem_type != elem_type:
            return None
        if rest.size * rest.dtype.itemsize != at - start:
            return None
        before = bytes(data[read_to:start])
        tensors.append(_Numbers(before, start, at, rest.alias, rest.dtype, rest.shape))
        read_to, at = at, tensor_end
    if end - at > _MAX_KEPT_BYTES or not _is_engine(bytes(data[at:end])):
        return None
    return _Layout(tuple(tensors), bytes(data[read_to:end]), end)


def _block(data: bytes | memoryview, at: int, limit: int) -> tuple[int, int]:
    """Return the start and end of the content of a field whose length is at `at`."""
    size = data[at]
    if size < 0x80:
        at += 1
    else:
        size, at = read_varint(data, at)
    if at + size > limit:
        raise DecodeError("a field is longer than its message")
    return at, at + size


def _is_plain(data: bytes) -> bool:
    """Return whether the rest of an answer holds no model's output and no error."""
    try:
        response = Response.FromString(data)
    except DecodeError:
        return False
    return not response.outputs and not response.err_no


@lru_cache(_KEPT)
def _read_rest(data: bytes) -> _Rest | None:
    """Return a tensor without numbers; None if it has fields that `_Rest` lacks."""
    tensor = Tensor.FromString(data)
    shape = tuple(tensor.shape)
    is_known = all(field.name in _AROUND for field, _ in tensor.ListFields())
    is_shape = 0 < len(shape) <= MAX_DIMENSIONS and min(shape) > 0
    if not (is_known and is_shape and tensor.alias_name) or tensor.elem_type not in LAYOUTS:
        return None
    dtype = LAYOUTS[tensor.elem_type][0]
    return _Rest(tensor.alias_name, tensor.elem_type, dtype, shape, math.prod(shape))


@lru_cache(_KEPT)
def _is_engine(data: bytes) -> bool:
    """Return whether the rest of a model's output holds no tensors."""
    return not ModelOutput.FromString(data).tensor
