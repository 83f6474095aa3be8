"""Forms of v2 bodies: the common part of bodies that differ only in their ids and data.

A client often repeats the same request. The codec of `proto.v2.json` parses the JSON of one
request; the result holds for all requests whose JSON is the same byte for byte except the id and
the lists of data, so their JSON is not parsed again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
import orjson

from pipeline.errors import PackageError
from pipeline.proto.slices import SLICE, Limits
from pipeline.proto.v2.codec import InferRequest, InferResponse
from pipeline.proto.v2.json import output_fields, read_request, response_fields
from pipeline.proto.v2.json_data import (
    BINARY_ONLY,
    are_plain_floats,
    data_to_array,
    list_to_array,
)
from pipeline.proto.v2.raw import (
    BYTES,
    Array,
    datatype_of,
    known_dtype,
    raw_to_array,
    raw_view,
)

_BOOL = np.dtype(np.bool_)
_IDS = (b'{"id":"', b'{"id": "')  # as Triton's clients and Python's json write it
_PLAIN_ID = re.compile(rb"[ !#-\[\]-~]*")  # characters without escapes
_DATA = b'"data":'
_MOST_INPUTS = 16
_MOST_FORMS = 256  # that are remembered
_MOST_KEY_BYTES = 2048  # of a form's key
_MOST_SEEN = 1024
_MOST_LAYOUTS = 16  # forms of answers to requests of one form
_STAYS = 2**14  # an output of this many bytes is not copied
_MARK = b"\0"  # never occurs in JSON
_NUMPY = orjson.OPT_SERIALIZE_NUMPY


class UnknownFormError(Exception):
    """The request has no form; the general reader has to read it."""


class Cut(NamedTuple):
    """A body's JSON without the parts that differ: `key` is the rest, `lists` are the lists' texts.

    `id` is None if the JSON does not begin with an id, which then is a part of `key`. `body` has
    the binary data from `end` on.
    """

    key: bytes
    id: str | None
    lists: Sequence[bytes]
    body: bytes
    end: int


def cut_json(body: bytes, length: int | None) -> Cut | None:
    """Cut a request; `length` is that of its JSON, None if the whole body is JSON.

    Returns None if the id or a list is not plain. The cut is a guess that `InputsForm.of` verifies
    once for each key. Lists of data are cut only if the whole body is JSON.
    """
    name, text = None, body if length is None else body[:length]
    end = len(text)
    if _MARK in text:
        return None
    for start in _IDS:
        if text.startswith(start):
            stop = text.find(b'"', len(start))
            plain = text[len(start) : stop]
            if stop < 0 or _PLAIN_ID.fullmatch(plain) is None:
                return None
            # No JSON object begins with the quote that remains.
            name, text = plain.decode("ascii"), text[stop:]
            break
    if length is not None:
        return Cut(text, name, (), body, end)
    cut = _cut_lists(text)
    return None if cut is None else Cut(cut[0], name, cut[1], body, end)


def _cut_lists(text: bytes) -> tuple[bytes, Sequence[bytes]] | None:
    """Return the rest, and the texts of the lists of data.

    None if data are not a flat list of numbers.
    """
    pieces: list[bytes] = []
    lists: list[bytes] = []
    at = 0
    while (place := text.find(_DATA, at)) >= 0:
        begin = place + len(_DATA)
        begin += text.startswith(b" ", begin)
        end = text.find(b"]", begin) + 1
        if not end or not text.startswith(b"[", begin) or len(lists) == _MOST_INPUTS:
            return None
        pieces.append(text[at:begin])
        lists.append(text[begin:end])
        at = end
    pieces.append(text[at:])
    return _MARK.join(pieces), lists


Parts = tuple[Any, ...]
"""Data of a request that is joined with others: numbers or bytes for each tensor."""


class InputForm(NamedTuple):
    name: str
    datatype: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, name: str, datatype: str, array: Array) -> InputForm:
        """Return the form of the input with this array."""
        return cls(name, datatype, known_dtype(datatype), array.shape, array.size)

    def read(self, body: bytes, start: int, end: int, limits: Limits) -> Array:
        """Return the bytes from `start` to `end` as a writable array.

        Raises ValueError or PackageError: they are not such an array.
        """
        dtype, size, shape = self.dtype, self.size, self.shape
        if dtype is BYTES or dtype is _BOOL:
            return raw_to_array(self.datatype, shape, memoryview(body)[start:end], limits)
        if end - start != size * dtype.itemsize:
            raise ValueError
        flat = np.frombuffer(body, dtype, size, start).copy()
        return flat if len(shape) == 1 else flat.reshape(shape)

    def listed(self, text: bytes) -> list[Any] | None:
        """Return a list's plain floats; None for others. Raises ValueError: not JSON."""
        data: list[Any] = orjson.loads(text)
        return data if self.dtype.kind == "f" and are_plain_floats(data, self.size) else None

    def raw(self, body: bytes, start: int, end: int) -> bytes | None:
        """Return the bytes from `start` to `end`; None if their number is wrong."""
        dtype = self.dtype
        if dtype is BYTES or dtype is _BOOL or end - start != self.size * dtype.itemsize:
            return None
        return body[start:end]

    def joined(self, parts: Sequence[Any]) -> Array:
        """Return one array of several requests' parts, each from `listed` or `raw`."""
        if type(parts[0]) is bytes:
            flat = np.frombuffer(bytearray().join(parts), self.dtype)
        else:
            flat = np.array(parts, self.dtype)
        return flat.reshape(-1, *self.shape[1:])


def joined(tensors: Sequence[InputForm], parts: Sequence[Parts]) -> dict[str, Array]:
    """Return the joined arrays of several requests."""
    columns = zip(tensors, zip(*parts, strict=True), strict=True)
    return {tensor.name: tensor.joined(column) for tensor, column in columns}


class InputsForm(msgspec.Struct, frozen=True):
    """Inputs of requests of one form.

    `ends` are the ends of each input's bytes after the JSON; () if the data are lists in it.
    """

    tensors: tuple[InputForm, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, cut: Cut, request: InferRequest) -> InputsForm | None:
        """Return the form of `request`, whose JSON was cut; None if it has no form."""
        if not request.inputs or sys.byteorder != "little":
            return None
        fields = _probed(cut)
        if fields is None or len(cut.lists) not in (0, len(request.inputs)):
            return None
        tensors: list[InputForm] = []
        ends: list[int] = []
        for entry, array in zip(fields["inputs"], request.inputs.values(), strict=True):
            size = entry.get("parameters", {}).get("binary_data_size")
            if cut.lists and (size is not None or entry.get("data") != [len(tensors)]):
                return None
            if not array.size or not (cut.lists or size):
                return None
            tensors.append(InputForm.of(entry["name"], entry["datatype"], array))
            if not cut.lists:
                ends.append(size + (ends[-1] if ends else 0))
        return cls(tuple(tensors), tuple(ends))

    @property
    def stay(self) -> bool:
        """Return whether no data need a copy if the JSON ends at an aligned byte."""
        starts = (0, *self.ends[:-1])
        return bool(self.ends) and all(
            tensor.dtype.kind not in "Ob"
            and start % tensor.dtype.itemsize == 0
            and end - start == tensor.size * tensor.dtype.itemsize
            for tensor, start, end in zip(self.tensors, starts, self.ends, strict=True)
        )

    def on(self, view: memoryview) -> dict[str, Array] | None:
        """Return arrays on the memory of the bytes after the JSON; None if there are too few.

        Only for a form whose data can `stay`.
        """
        if len(view) != self.ends[-1]:
            return None
        starts = (0, *self.ends)
        return {
            tensor.name: np.frombuffer(view, tensor.dtype, tensor.size, start).reshape(tensor.shape)
            for tensor, start in zip(self.tensors, starts, strict=False)
        }

    def parts(self, cut: Cut) -> Parts | None:
        """Return the unread data of a body for `joined`; None if `read` has to read them."""
        try:
            if not self.ends:
                parts: Parts = tuple(map(InputForm.listed, self.tensors, cut.lists))
            elif len(cut.body) - cut.end != self.ends[-1]:
                return None
            else:
                ends = [cut.end + end for end in self.ends]
                bodies = [cut.body] * len(ends)
                parts = tuple(map(InputForm.raw, self.tensors, bodies, [cut.end, *ends], ends))
        except ValueError:
            return None
        return None if None in parts else parts

    def read(self, cut: Cut, limits: Limits) -> dict[str, Array] | None:
        """Return the writable arrays of a body.

        None for wrong data: `read_request` reports the error.
        """
        tensors, ends = self.tensors, self.ends
        try:
            if not ends:
                lists = zip(tensors, cut.lists, strict=True)
                return {tensor.name: _of_list(tensor, text, limits) for tensor, text in lists}
            body, at = cut.body, cut.end
            if len(body) - at != ends[-1]:
                return None
            arrays: dict[str, Array] = {}
            start = at
            for tensor, end in zip(tensors, ends, strict=True):
                arrays[tensor.name] = tensor.read(body, start, at + end, limits)
                start = at + end
            return arrays
        except (ValueError, PackageError):
            return None


def _of_list(tensor: InputForm, text: bytes, limits: Limits) -> Array:
    data = orjson.loads(text)
    array = list_to_array(tensor.datatype, tensor.shape, tensor.size, data)
    if array is None:
        return data_to_array(tensor.datatype, tensor.shape, data, limits)
    return array


def _probed(cut: Cut) -> dict[str, Any] | None:
    """Return the JSON with another id, and with [0], [1] and so on in place of the lists.

    None: the cut is wrong. No JSON list is a prefix of another one, so each cut list is whole.
    """
    key = cut.key
    for index, data in enumerate(cut.lists):
        if not _is_list(data):
            return None
        key = key.replace(_MARK, b"[%d]" % index, 1)
    probe = f"{cut.id}x"
    if cut.id is not None:
        key = b'{"id":"%b' % probe.encode() + key
    try:
        fields = orjson.loads(key)
    except orjson.JSONDecodeError:
        return None
    if cut.id is not None and fields["id"] != probe:  # the id occurs twice
        return None
    return dict(fields)


def _is_list(text: bytes) -> bool:
    try:
        return type(orjson.loads(text)) is list
    except orjson.JSONDecodeError:
        return False


Written = tuple[bytes, int | None, tuple[Any, ...]]
"""(body of an answer, Inference-Header-Content-Length if it needs one, pieces that follow the body:
views of the answer's arrays)"""


class OutputsForm(msgspec.Struct, frozen=True):
    """Outputs of answers of one form: numbers of these dtypes and shapes, with the same parameters.

    `pieces` are the JSON around the lists of the outputs that are not in `binary`.
    """

    pieces: tuple[bytes, ...]
    binary: tuple[bool, ...]

    @classmethod
    def of(cls, response: InferResponse, binary: Collection[str]) -> OutputsForm | None:
        """Return the form of an answer; None if it has no form."""
        if not response.outputs:
            return None
        outputs = []
        for name, array in response.outputs.items():
            if array.dtype == BYTES or not array.dtype.isnative or sys.byteorder != "little":
                return None
            if name in binary:
                size = {"binary_data_size": array.nbytes}
                outputs.append(output_fields(name, array, parameters=size))
                continue
            if datatype_of(array.dtype) in BINARY_ONLY or array.size > SLICE:
                return None
            outputs.append(output_fields(name, array, data=orjson.Fragment(_MARK)))
        empty = msgspec.structs.replace(response, id="", outputs={})
        text = orjson.dumps(response_fields(empty, outputs), option=_NUMPY)
        return cls(tuple(text.split(_MARK)), tuple(name in binary for name in response.outputs))

    def write(self, request_id: str, values: Sequence[Any]) -> Written | None:
        """Return an answer made of arrays or numpy numbers.

        None for numbers that JSON lacks, and for a large array that is not contiguous.
        """
        pieces = iter(self.pieces)
        first = next(pieces)
        if request_id:
            first = b'{"id":%b,%b' % (orjson.dumps(request_id), first[1:])
        parts, tail = [first], []
        for value, is_binary in zip(values, self.binary, strict=True):
            if is_binary:
                if value.nbytes > _STAYS:
                    return self._write_large(request_id, values)
                tail.append(value.tobytes())
                continue
            text = orjson.dumps(value.ravel(), option=_NUMPY)
            if b"null" in text:
                return None
            parts += (text, next(pieces))
        if not tail:
            return b"".join(parts), None, ()
        length = len(first) if len(parts) == 1 else sum(map(len, parts))
        return b"".join((*parts, *tail)), length, ()

    def _write_large(self, request_id: str, values: Sequence[Any]) -> Written | None:
        """Return an answer with its large arrays as views, after the JSON and the small arrays."""
        pairs = list(zip(values, self.binary, strict=True))
        tail = [value for value, is_binary in pairs if is_binary]
        if not all(value.flags.c_contiguous for value in tail):
            return None  # it needs a copy, which is too slow here
        values = [np.zeros(0, value.dtype) if binary else value for value, binary in pairs]
        written = self.write(request_id, values)
        return written and (written[0], written[1], tuple(map(raw_view, tail)))

    def write_each(self, ids: Sequence[str], stacks: Sequence[Any]) -> list[Written] | None:
        """Return what `write` returns for each answer; `stacks` are their joined arrays."""
        if any(self.binary):
            rows = zip(*(stack.reshape(len(ids), -1) for stack in stacks), strict=True)
            written = [self.write(name, values) for name, values in zip(ids, rows, strict=True)]
            return written if None not in written else None  # type: ignore[return-value]
        first, *others = self.pieces
        firsts = [
            b'{"id":%b,%b' % (orjson.dumps(name), first[1:]) if name else first for name in ids
        ]
        columns: list[Sequence[bytes]] = [firsts]
        for stack, piece in zip(stacks, others, strict=True):
            text = orjson.dumps(stack.reshape(len(ids), -1), option=_NUMPY)
            if b"null" in text:
                return None
            lists = text[2:-2].split(b"],[")
            columns.append([b"[%b]%b" % (text, piece) for text in lists])
        return [(text, None, ()) for text in map(b"".join, zip(*columns, strict=True))]


class FormCodec(NamedTuple):
    """Readers of the requests of one protocol.

    Args:
        cut: cuts a body at the parts that differ; a cut has a `key` and an `id`. Returns None if
            it cannot cut the body. Raises UnknownFormError.
        read: returns a request of any form. Raises PackageError.
        inputs_of: returns the form of a request's inputs, whose `read` takes a cut; or None.
        outputs_of: returns the form of an answer, whose `write` writes one answer and `write_each`
            several; or None.
    """

    cut: Callable[[bytes, int | None], Any]
    read: Callable[[bytes, int | None], InferRequest]
    inputs_of: Callable[[Any, InferRequest], Any]
    outputs_of: Callable[[InferResponse, Collection[str]], Any]


def json_codec(name: str, version: str, limits: Limits) -> FormCodec:
    """Return the codec of requests to a model over HTTP; `version` may be ""."""
    before = behind = key = b""  # of the last body with one list and no id

    def cut(body: bytes, length: int | None) -> Cut | None:
        nonlocal before, behind, key
        size = len(body) if length is None else length
        if size > limits.json_bytes:
            raise UnknownFormError
        if length is not None:
            return cut_json(body, length)
        if key and body.startswith(before) and body.endswith(behind):
            text = body[len(before) : size - len(behind)]
            is_list = text.startswith(b"[") and text.find(b"]") == len(text) - 1
            if is_list and _MARK not in text:
                return Cut(key, None, [text], body, size)
        parts = cut_json(body, None)
        if parts is not None and parts.id is None and len(parts.lists) == 1:
            key = parts.key
            before, behind = key.split(_MARK)
        return parts

    def read(body: bytes, length: int | None) -> InferRequest:
        return read_request(body, length, model_name=name, model_version=version, limits=limits)

    return FormCodec(cut, read, InputsForm.of, OutputsForm.of)


_Form = TypeVar("_Form")


class FormMemory(Generic[_Form]):
    """The most recent forms, by the keys of their cuts."""

    def __init__(self) -> None:
        self.known: dict[bytes, _Form] = {}
        self._seen: set[int] = set()

    def is_seen(self, key: bytes) -> bool:
        """Return whether this key has come before, so that its form is worth remembering."""
        if len(key) > _MOST_KEY_BYTES:
            return False
        if hash(key) in self._seen:
            return True
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen.add(hash(key))
        return False

    def keep(self, key: bytes, form: _Form) -> None:
        """Remember a form."""
        if len(self.known) >= _MOST_FORMS:
            self.known.clear()
        self.known[key] = form


class AnswerForms:
    """The forms of answers to requests of one form, by the dtypes and shapes of the arrays.

    Args:
        names: names of the outputs; () means all.
        form_of: `outputs_of` of a FormCodec.
    """

    def __init__(
        self, names: tuple[str, ...], form_of: Callable[[InferResponse, Collection[str]], Any]
    ) -> None:
        self._names = names
        self._form_of = form_of
        self._known: dict[Any, Any] = {}

    def write(self, payload: Mapping[str, Any], request_id: str) -> Any:
        """Return an answer in its learnt form; None if no form with such arrays was learnt."""
        if not self._known:
            return None
        names = self._names or tuple(payload)
        layout = _layout(payload, names)
        form = None if layout is None else self._known.get((names, layout[1]))
        return None if form is None or layout is None else form.write(request_id, layout[0])

    def write_each(self, stack: Mapping[str, Any], ids: Sequence[str]) -> Sequence[Any] | None:
        """Return what `write` returns for each answer; `stack` has their joined arrays."""
        names = self._names or tuple(stack)
        layout = _layout(stack, names) if self._known else None
        if layout is None or any(value.shape[0] % len(ids) for value in layout[0]):
            return None
        key: list[Any] = []
        for value in layout[0]:
            key += (value.dtype, (value.shape[0] // len(ids), *value.shape[1:]))
        form = self._known.get((names, tuple(key)))
        return None if form is None else form.write_each(ids, layout[0])

    def learn(
        self, payload: Mapping[Any, Any], response: InferResponse, binary: Collection[str]
    ) -> None:
        """Remember the form of a response, if it has exactly the arrays of its payload."""
        names = self._names or tuple(payload)
        if tuple(response.outputs) != names:
            return
        layout = _layout(payload, names)
        if layout is None or any(type(name) is not str for name in payload):
            return
        for value, array in zip(layout[0], response.outputs.values(), strict=True):
            if value.dtype != array.dtype or value.size != array.size:
                return
        form = self._form_of(response, binary)
        if form is not None:
            if len(self._known) >= _MOST_LAYOUTS:
                self._known.clear()
            self._known[names, layout[1]] = form


def _layout(values: Mapping[str, Any], names: Sequence[str]) -> tuple[list[Any], Any] | None:
    """Return the values of these names, and the key of their form.

    None if a value is missing, or is not an array or numpy number.
    """
    layout: list[Any] = []
    key: list[Any] = []
    for name in names:
        value = values.get(name)
        if type(value) is not np.ndarray and not isinstance(value, np.generic):
            return None
        layout.append(value)
        key += (value.dtype, value.shape)
    return layout, tuple(key)
