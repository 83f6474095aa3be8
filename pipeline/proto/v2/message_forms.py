"""Forms of v2 messages: as `proto.v2.forms`, for protobuf instead of JSON."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from pipeline.errors import PackageError
from pipeline.proto.inference_v2_pb2 import ModelInferRequest, ModelInferResponse
from pipeline.proto.pipeline.blocks import field_head
from pipeline.proto.slices import SHORT_BYTES, Limits, Piece, is_short
from pipeline.proto.v2.codec import (
    InferRequest,
    InferResponse,
    read_message,
    set_parameter,
)
from pipeline.proto.v2.forms import FormCodec, InputForm, Parts, UnknownFormError
from pipeline.proto.v2.raw import BYTES, Array, datatype_of, raw_view


def _tag(message: Any, field: str) -> int:
    """Return the tag byte of a field with a length."""
    number: int = message.DESCRIPTOR.fields_by_name[field].number
    return number << 3 | 2


_ID = _tag(ModelInferRequest, "id")
_RAW = _tag(ModelInferRequest, "raw_input_contents")
_OTHERS = frozenset(
    _tag(ModelInferRequest, field)
    for field in ("model_name", "model_version", "parameters", "inputs", "outputs")
)
_STAYS = 2**14  # an output of this many bytes is not copied
_ID_OF_ANSWER = ModelInferResponse.ID_FIELD_NUMBER
_RAW_OF_ANSWER = ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER


class MessageCut(NamedTuple):
    """A ModelInferRequest without the parts that differ: `key` is the rest.

    `raws` are start and end of each of its raw contents in `data`.
    """

    key: bytes
    id: str
    raws: Sequence[tuple[int, int]]
    data: bytes


def cut_message(data: bytes, is_head: bool = False) -> MessageCut | None:
    """Cut a request; None if it is damaged, or if its raw contents are not at its end.

    `is_head`: `data` end before the raw contents.
    """
    try:
        return _cut(data, is_head)
    except (IndexError, UnicodeDecodeError):
        return None


def raw_place(data: Piece) -> tuple[int, int]:
    """Return the starts of the raw contents and of the first one's data in a long request.

    (0, 0): there are none, or too many bytes precede them for one search.
    """
    at = 0
    try:
        while at < SHORT_BYTES:
            tag, start, stop = _field(data, at)
            if tag == _RAW:
                return at, start
            at = stop
    except IndexError:
        pass
    return 0, 0


def _cut(data: bytes, is_head: bool) -> MessageCut | None:
    """Cut a message at its fields. Raises IndexError: it ends within a field."""
    at, end, id_start, id_end, request_id = 0, len(data), 0, 0, ""
    while not (is_head and at == end) and data[at] != _RAW:
        tag, start, stop = _field(data, at)
        if tag == _ID:
            if id_end:
                return None
            id_start, id_end, request_id = at, stop, data[start:stop].decode()
        elif tag not in _OTHERS:
            return None
        at = stop
    key = data[:id_start] + data[id_end:at]
    raws = []
    while at < end:
        tag, start, at = _field(data, at)
        if tag != _RAW:
            return None
        raws.append((start, at))
    return MessageCut(key, request_id, raws, data) if at == end else None


def _field(data: Piece, at: int) -> tuple[int, int, int]:
    """Return (tag, start, end) of a field with a length, whose tag is one byte."""
    size, start = data[at + 1], at + 2
    if size >= 0x80:
        size &= 0x7F
        for shift in (7, 14, 21, 28):
            size |= (data[start] & 0x7F) << shift
            start += 1
            if data[start - 1] < 0x80:
                break
        else:
            raise IndexError  # longer than any field here
    return data[at], start, start + size


class MessageInputs(msgspec.Struct, frozen=True):
    """Inputs of requests of one form, all of them raw."""

    tensors: tuple[InputForm, ...]

    @classmethod
    def of(cls, cut: MessageCut, request: InferRequest) -> MessageInputs | None:
        """Return the form of `request`, whose message was cut; None if it has no form."""
        message = ModelInferRequest.FromString(cut.key)
        if len(message.inputs) != len(request.inputs) or sys.byteorder != "little":
            return None
        tensors = []
        for entry, (name, array) in zip(message.inputs, request.inputs.items(), strict=True):
            if not array.size:
                return None
            tensors.append(InputForm.of(name, entry.datatype, array))
        return cls(tuple(tensors))

    @property
    def stay(self) -> bool:
        """Return whether no data need a copy."""
        return all(tensor.dtype.kind not in "Ob" for tensor in self.tensors)

    def on(self, view: memoryview) -> dict[str, Array] | None:
        """Return arrays on the memory of the raw contents; None for other contents.

        Also None for a long array that is not aligned, which would need a copy.
        """
        if not self.stay:
            return None
        arrays: dict[str, Array] = {}
        at = 0
        try:
            for name, _, dtype, shape, size in self.tensors:
                tag, start, at = _field(view, at)
                if tag != _RAW or at - start != size * dtype.itemsize:
                    return None
                array = np.frombuffer(view, dtype, size, start).reshape(shape)
                if not array.flags.aligned:
                    if array.nbytes > SHORT_BYTES:
                        return None
                    array = array.copy()
                arrays[name] = array
        except (IndexError, ValueError):
            return None
        return arrays if at == len(view) else None

    def parts(self, cut: MessageCut) -> Parts | None:
        """Return the unread data of a message for `joined`; None if `read` has to read them."""
        if len(cut.raws) != len(self.tensors):
            return None
        pairs = zip(self.tensors, cut.raws, strict=True)
        parts = tuple([tensor.raw(cut.data, *place) for tensor, place in pairs])
        return None if None in parts else parts

    def read(self, cut: MessageCut, limits: Limits) -> dict[str, Array] | None:
        """Return the writable arrays.

        None for wrong data: `request_from_message` reports the error.
        """
        arrays: dict[str, Array] = {}
        try:
            for tensor, (start, end) in zip(self.tensors, cut.raws, strict=True):
                arrays[tensor.name] = tensor.read(cut.data, start, end, limits)
        except (ValueError, PackageError):
            return None
        return arrays


class MessageOutputs(msgspec.Struct, frozen=True):
    """Outputs of answers of one form: numbers of these dtypes and shapes, with the same parameters.

    `before` are the fields before the id, `behind` those between it and the raw contents, and
    `heads` the head of each raw content.
    """

    before: bytes
    behind: bytes
    heads: tuple[bytes, ...]
    is_long: bool = False

    @classmethod
    def of(cls, response: InferResponse, binary: Collection[str] = ()) -> MessageOutputs | None:
        """Return the form of an answer; None if it has no form. All outputs are raw."""
        if not response.outputs:
            return None
        message, heads = ModelInferResponse(), []
        for name, value in response.parameters.items():
            set_parameter(message.parameters[name], name, value)
        for name, array in response.outputs.items():
            if array.dtype == BYTES or not array.dtype.isnative or sys.byteorder != "little":
                return None
            datatype = datatype_of(array.dtype)
            message.outputs.add(name=name, datatype=datatype, shape=array.shape)
            heads.append(field_head(_RAW_OF_ANSWER, array.nbytes))
        before = ModelInferResponse(
            model_name=response.model_name, model_version=response.model_version
        )
        is_long = not is_short(response.outputs)
        return cls(before.SerializeToString(), message.SerializeToString(), tuple(heads), is_long)

    def write(self, request_id: str, values: Sequence[Any]) -> bytes | list[Piece] | None:
        """Return the message of an answer made of arrays or numpy numbers.

        A long one is a list of pieces with views of the arrays. None for a large array that is not
        contiguous.
        """
        parts: list[Piece] = [self.before]
        if request_id:
            text = request_id.encode()
            parts += (field_head(_ID_OF_ANSWER, len(text)), text)
        parts.append(self.behind)
        for head, value in zip(self.heads, values, strict=True):
            if self.is_long and value.nbytes >= _STAYS:
                if not value.flags.c_contiguous:
                    return None  # it needs a copy, which is too slow here
                parts += (head, raw_view(value))
            else:
                parts += (head, value.tobytes())
        return parts if self.is_long else b"".join(parts)

    def write_each(self, ids: Sequence[str], stacks: Sequence[Any]) -> list[bytes] | None:
        """Return what `write` returns for each answer; `stacks` are their joined arrays."""
        rows = zip(*(stack.reshape(len(ids), -1) for stack in stacks), strict=True)
        written: list[bytes] = []
        for pieces in map(self.write, ids, rows):
            if pieces is None:
                return None
            written.append(pieces if isinstance(pieces, bytes) else b"".join(pieces))
        return written


def message_codec(limits: Limits) -> FormCodec:
    """Return the codec of ModelInferRequests; only messages with raw tensors have forms."""

    def cut(body: bytes, length: int | None) -> MessageCut:
        message = cut_message(body, is_head=length is not None)
        if message is None:
            raise UnknownFormError
        return message

    def read(body: bytes, length: int | None) -> InferRequest:
        return read_message(body, limits)

    return FormCodec(cut, read, MessageInputs.of, MessageOutputs.of)
