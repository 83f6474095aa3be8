"""Response: an answer or an error; large messages are read and written without copies."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import orjson
from google.protobuf.message import DecodeError

from pipeline.data import ChannelData
from pipeline.errors import (
    ErrorCode,
    PackageError,
    PayloadTypeError,
    TooLargeError,
    shortened,
    utf8_text,
)
from pipeline.proto import codec, slices
from pipeline.proto.codec import numeric_layout, numpy_to_tensor
from pipeline.proto.pipeline.blocks import (
    PACKED_DTYPES,
    BlockMessage,
    Shape,
    field_head,
    hollow,
    varint_block,
)
from pipeline.proto.pipeline_service_pb2 import Request, Response, Tensor
from pipeline.proto.slices import (
    SHORT_BYTES,
    SLICE_BYTES,
    Limits,
    Piece,
    breathe,
    joined,
    sliced,
    weight,
)

_FEW = 64  # keys or tensors that are checked one by one
_NUMBER_BYTES = 8  # limit of the average in protobuf or JSON
_DATA = {
    field.name: field.number for field in Tensor.DESCRIPTOR.fields if field.name.endswith("_data")
}
_NUMBER_FIELDS = [name for name in _DATA if name != "str_data"]
TENSOR_SHAPE = Shape(frozenset(_DATA[name] for name in _NUMBER_FIELDS))
_REQUEST_SHAPE = Shape(frozenset(), {Request.TENSORS_FIELD_NUMBER: TENSOR_SHAPE})
_LINE_BYTES = 57 * 1024  # a multiple of 3: base64 has no padding within


def read_request(message: Piece, limits: Limits) -> BlockMessage:
    """Return the Request in `message`, for the library's RequestOp.

    Raises PackageError, and TooLargeError for more text than `limits` allow.
    """
    try:
        request = hollow(message, Request, _REQUEST_SHAPE, limits)
    except DecodeError as error:
        raise PackageError(f"not a Request: {error}") from None
    texts = len(request.key) + len(request.value)
    limits.check_texts(texts + sum(len(tensor.str_data) for tensor in request.tensors))
    return request


class LargeTensor:
    """A tensor of an answer whose elements are not copied.

    Args:
        rest: the tensor without its elements.
        field: the field of the elements.
        data: an array, or bytes.
    """

    __slots__ = ("data", "field", "rest")

    def __init__(self, rest: Tensor, field: str, data: Any) -> None:
        self.rest: Tensor = rest
        self.field: str = field
        self.data: Any = data

    def numbers(self) -> Any:
        """Return the elements of an array as its field holds them, in one dimension."""
        flat = self.data.reshape(-1)
        dtype = PACKED_DTYPES.get(self.field)
        if dtype is None:
            return flat
        if flat.dtype.kind == "c":
            flat = np.ascontiguousarray(flat).view(dtype)
        return np.ascontiguousarray(flat, dtype)

    def wire(self) -> list[Any]:
        """Return the pieces of the message in protobuf's order."""
        content: Any = self.data
        if isinstance(content, np.ndarray):
            numbers = self.numbers()
            is_packed = self.field in PACKED_DTYPES
            content = numbers.view(np.uint8).data if is_packed else varint_block(numbers)
        head = field_head(_DATA[self.field], len(content))
        return [head, content, self.rest.SerializeToString()]


def tensors_of(payload: Mapping[str, Any], tensor_of: Callable[..., Any]) -> Iterator[Any]:
    """Yield `tensor_of(name, value, lod)` of each value of an answer."""
    for key, value in payload.items():
        if key.endswith(".lod") and key.removesuffix(".lod") in payload:
            continue
        breathe()
        yield tensor_of(str(key), value, payload.get(f"{key}.lod"))


def large_tensor(name: str, value: Any, lod: Any) -> Tensor | LargeTensor:
    """Return a tensor, a large one without a copy. Raises PayloadTypeError."""
    is_array = isinstance(value, np.ndarray) and value.dtype.kind not in "OSU"
    if not is_array and not isinstance(value, bytes | bytearray | memoryview):
        return numpy_to_tensor(name, value, lod=lod)
    if weight(value) <= SHORT_BYTES:
        return numpy_to_tensor(name, value, lod=lod)
    if not is_array:
        rest = numpy_to_tensor(name, b"", lod=lod)
        return LargeTensor(rest, "byte_data", value)
    try:
        array, _, field = numeric_layout(value)
    except (TypeError, ValueError) as error:
        raise PayloadTypeError(f"tensor {name!r}: {error}") from error
    rest = numpy_to_tensor(name, np.empty(0, value.dtype), lod=lod)
    rest.shape[:] = value.shape
    if field == "byte_data":  # bfloat16
        return LargeTensor(rest, field, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return LargeTensor(rest, field, array)


class LargeResponse:
    """A Response in parts; its type tells the writer that the work is long.

    Args:
        head: the Response, without `tensors` if these are given.
    """

    __slots__ = ("_tensors", "head")

    def __init__(self, head: Response, tensors: list[Tensor | LargeTensor] | None = None) -> None:
        self.head: Response = head
        self._tensors = tensors

    @property
    def message(self) -> Response:
        """Return a copy as a Response."""
        return self.head if self._tensors is None else Response.FromString(self.to_wire())

    @property
    def tensors(self) -> list[Tensor | LargeTensor]:
        """Return the tensors, large ones or messages."""
        return list(self.head.tensors) if self._tensors is None else self._tensors

    def to_wire(self) -> bytes:
        """Return the message as protobuf writes it."""
        return joined(self.pieces())

    def pieces(self) -> list[Piece]:
        """Return the message as protobuf writes it, in pieces, without a copy of the elements."""
        pieces = self._head_pieces()
        for tensor in self._tensors or ():
            breathe()
            parts = (
                tensor.wire() if isinstance(tensor, LargeTensor) else [tensor.SerializeToString()]
            )
            pieces.append(field_head(Response.TENSORS_FIELD_NUMBER, sum(map(len, parts))))
            pieces += parts
        return pieces

    def _head_pieces(self) -> list[Any]:
        """Return the head with long texts in slices: protobuf would stop other threads."""
        head = self.head
        if self._tensors is None or len(head.value) > _FEW:
            return [head.SerializeToString()]
        texts = list(head.value)
        if sum(map(len, texts)) <= SHORT_BYTES:
            return [head.SerializeToString()]
        pieces: list[Any] = [
            Response(err_no=head.err_no, err_msg=head.err_msg, key=head.key).SerializeToString()
        ]
        while texts:
            parts = [part.encode() for part in sliced(texts.pop(0), SLICE_BYTES)]
            pieces.append(field_head(Response.VALUE_FIELD_NUMBER, sum(map(len, parts))))
            pieces += parts
        return pieces


def is_short(response: Response) -> bool:
    """Return whether a Response can be written on the event loop."""
    values, tensors = response.value, response.tensors
    if len(values) > _FEW or len(response.key) > _FEW or len(tensors) > _FEW:
        return False
    size = len(response.err_msg) + sum(map(len, values))
    for tensor in tensors:
        strings = tensor.str_data
        if len(strings) > _FEW:
            return False
        size += sum(map(len, strings))
        size += sum(len(getattr(tensor, name)) for name in _NUMBER_FIELDS) * _NUMBER_BYTES
    return size <= SHORT_BYTES


# --- JSON -------------------------------------------------------------------------------------


def base64_pieces(data: bytes) -> Iterator[bytes]:
    """Yield the base64 of bytes, in slices."""
    return map(base64.b64encode, sliced(data, _LINE_BYTES))


def number_pieces(array: Any, dumps: Any) -> Iterator[bytes]:
    """Yield the JSON of a flat array's elements, without brackets, in slices."""
    for part in sliced(array):
        numbers = np.ascontiguousarray(part)  # orjson refuses others
        yield orjson.dumps(dumps(numbers), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]


_ARRAYS = frozenset({np.ndarray})
_NUMBERS = (int, float, np.bool_, np.integer, np.floating)
_TEXT_LIMIT = 1000  # most elements that become text on the event loop


def pack_error(channeldata: ChannelData) -> Response:
    """Return the Response for an error."""
    code, text = channeldata.prod_error_code, channeldata.prod_error_info
    if code is None:
        code, text = channeldata.error_code, channeldata.error_info
    if not -(2**31) <= code < 2**31:  # such a code must not make the answer fail
        code, text = ErrorCode.PRODUCT_ERROR, f"[{code}] {text}"
    return Response(err_no=code, err_msg=utf8_text(shortened(text)))


def is_cheap(payload: Mapping[str, Any], as_text: bool) -> bool:
    """Return whether packing is quick enough for the event loop: no value is large."""
    if not slices.is_short(payload):
        return False
    return not as_text or all(map(_is_short, payload.values()))


def pack(payload: Mapping[str, Any], as_text: bool, as_tensors: bool) -> Response:
    """Return the Response for an answer, or for an error if the wire lacks a value's type."""
    response = Response()
    try:
        if as_text:
            _pack_text(payload, response)
        if as_tensors:
            response.tensors.extend(tensors_of(payload, codec.numpy_to_tensor))
    except PayloadTypeError as error:
        response.err_no = int(error.code)
        response.err_msg = str(error)
    return response


def pack_large(
    payload: Mapping[str, Any], as_text: bool, as_tensors: bool, limits: Limits
) -> Response | LargeResponse:
    """Return the Response for a large answer; tensors are not copied.

    Of text and tensors, it has only the tensors if the text would be too long.
    """
    head = Response()
    tensors: list[Any] = []
    try:
        if as_text:
            try:
                _pack_text(payload, head, limits)
            except TooLargeError:
                if not as_tensors:
                    raise
                head.Clear()
        if as_tensors:
            tensors = list(tensors_of(payload, large_tensor))
    except PayloadTypeError as error:
        head.err_no = int(error.code)
        head.err_msg = str(error)
        return head
    return LargeResponse(head, tensors)


def _pack_text(
    payload: Mapping[str, Any], response: Response, limits: Limits | None = None
) -> None:
    """Fill the texts: all values but numbers are str, or all are arrays and lists of str."""
    values = payload.values()
    if _are_arrays(payload):
        texts = [codec.numpy_to_text(value, limits) for value in values]
    elif _are_arrays({name: value for name, value in payload.items() if not is_number(value)}):
        texts = [
            number_text(value) if is_number(value) else codec.numpy_to_text(value, limits)
            for value in values
        ]
    else:
        texts = [
            number_text(value) if is_number(value) else _checked_str(value) for value in values
        ]
    response.key.extend(map(str, payload))
    response.value.extend(texts)


def _are_arrays(payload: Mapping[str, Any]) -> bool:
    """Return whether all values are arrays, or lists of str."""
    if _ARRAYS.issuperset(map(type, payload.values())):  # as nearly always
        return True
    return ChannelData.check_npdata(payload)[0] == ErrorCode.OK


def is_number(value: object) -> bool:
    """Return whether a value is a number or bool of Python or numpy."""
    return isinstance(value, _NUMBERS)


def number_text(value: Any) -> str:
    """Return the text of a number: as numpy prints a scalar, in the fewest digits of its type.

    Raises PayloadTypeError: it has more digits than Python writes.
    """
    try:
        return str(value)
    except ValueError as error:
        raise PayloadTypeError(f"a number of the answer has no text: {error}") from None


def _checked_str(value: object) -> str:
    if not isinstance(value, str):
        raise PayloadTypeError(
            f"@DAGExecutor fetch var type must be str({type(value)}). Answer with str and numbers, "
            "or with ndarrays, lists of str and numbers, or ask for tensors (set_pack_format)."
        )
    return value


def _is_short(value: object) -> bool:
    if type(value) is str or is_number(value):
        return True
    if isinstance(value, np.ndarray):
        return value.size <= _TEXT_LIMIT
    return isinstance(value, list) and len(value) <= _TEXT_LIMIT
