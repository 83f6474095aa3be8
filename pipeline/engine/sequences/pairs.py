"""SequencePairs: reads the sequence of a request from its pairs or fields.

The pipeline protocol has it in the pairs `sequence_id`, `sequence_start` and `sequence_end`, plain
JSON in fields of these names. The v2 protocol has parameters, which its frontends read. A request
that has only its id and `sequence_end` ends the sequence after the others, and runs no Op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pipeline.data import NO_INFO, RequestInfo
from pipeline.engine.filters import Filter
from pipeline.engine.request import RequestState
from pipeline.errors import ErrorCode, InputError, PipelineError
from pipeline.proto.codec import decode_tensors
from pipeline.proto.pipeline.blocks import BlockMessage, remove_one
from pipeline.proto.pipeline.plain import PlainRequest
from pipeline.proto.pipeline_service_pb2 import Request

ID, START, END = "sequence_id", "sequence_start", "sequence_end"
NAMES = frozenset((ID, START, END))
"""Keys that describe a request's sequence."""

_MOST_PAIRS = 64  # that are searched for the names
_LAST_ID = 2**64 - 1
LONGEST_ID = 1024  # characters
_FLAGS = {"true": True, "1": True, "false": False, "0": False, "": False}


class SequenceEndedError(PipelineError):
    """The normal end of a request that only ends its sequence; not an error for its client."""

    code: int = ErrorCode.OK


class SequencePairs(Filter):
    """Filter that removes a request's sequence from its pairs, or its fields of plain JSON.

    It is used if an Op has `sequence`. The rest is data, the same for every protocol: hooks find
    the sequence in their context, schemas and models do not see it.

    Args:
        end: ends a request's sequence after its other requests.
    """

    def __init__(self, end: Callable[[RequestState], None]) -> None:
        super().__init__()
        self._end = end

    def on_request(self, request: RequestState) -> None:
        target = request.target
        if request.info.sequence_id or (target is not None and target.op is not None):
            return
        if target is None or target.payload is None:
            fields = _of_message(request.raw)
        elif type(target.payload) is dict:
            fields = {name: target.payload.pop(name) for name in NAMES & target.payload.keys()}
        else:
            return
        if fields:
            request.info = info = _with(request.info, fields)
            if info.sequence_end and not info.sequence_start and _is_empty(request):
                self._end(request)
                raise SequenceEndedError


def _of_message(raw: Any) -> dict[str, Any]:
    """Remove and return the keys of a sequence from a Request or PlainRequest: text, or numbers.

    Raises:
        PackageError: a tensor of these names is broken.
    """
    if not isinstance(raw, Request | PlainRequest | BlockMessage):
        return {}  # of a frontend of a plug-in
    fields: dict[str, Any] = {}
    if not NAMES.isdisjoint(raw.key[:_MOST_PAIRS]):
        for index, key in reversed([*enumerate(raw.key[: min(_MOST_PAIRS, len(raw.value))])]):
            if key in NAMES:
                fields.setdefault(key, raw.value[index])
                del raw.key[index], raw.value[index]
    tensors = raw.tensors[:_MOST_PAIRS]
    for index in reversed([at for at, tensor in enumerate(tensors) if tensor.name in NAMES]):
        fields |= {name: _one(value) for name, value in decode_tensors([tensors[index]]).items()}
        remove_one(raw, "tensors", index)
    return fields


def _is_empty(request: RequestState) -> bool:
    """Return whether a request has no other data."""
    payload = request.target.payload if request.target is not None else None
    raw = request.raw
    return not (raw.key or raw.tensors) if payload is None else not payload


def _one(value: Any) -> Any:
    """Return the only element of an array as a Python value; other values unchanged."""
    return value.item() if getattr(value, "size", 0) == 1 else value


def _with(info: RequestInfo, fields: Mapping[str, Any]) -> RequestInfo:
    """Return the info with these sequence fields. Raises InputError."""
    plain = {name: value for name, value in fields.items() if not hasattr(value, "shape")}
    return msgspec.structs.replace(
        info or NO_INFO,
        sequence_id=_id(plain.get(ID, 0)),
        sequence_start=_flag(START, plain.get(START, False)),
        sequence_end=_flag(END, plain.get(END, False)),
    )


def _id(value: Any) -> int | str:
    if isinstance(value, str) and len(value) <= LONGEST_ID:
        number = int(value) if value.isascii() and value.isdecimal() and len(value) <= 20 else -1
        return number if str(number) == value and number <= _LAST_ID else value
    if type(value) is int and -(2**63) <= value <= _LAST_ID:
        return value % (_LAST_ID + 1)
    raise InputError(
        f"{ID} must be an unsigned 64-bit integer or a string of at most {LONGEST_ID} "
        f"characters, found {value!r:.60}"
    )


def _flag(name: str, value: Any) -> bool:
    known = _FLAGS.get(str(value).lower()) if isinstance(value, str | bool | int) else None
    if known is None:
        raise InputError(f"{name} must be true or false, found {value!r:.60}")
    return known
