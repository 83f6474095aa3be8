"""Answers of engines in the form of `/api`: a JSON object, or the bytes of a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pipeline.data import ChannelData
from pipeline.errors import PayloadTypeError, PipelineError, error_from_wire
from pipeline.frontends.base import no_response
from pipeline.frontends.http.routes import WebResponse
from pipeline.op import PROFILE_KEY
from pipeline.proto.codec import decode_tensors
from pipeline.proto.pipeline.response import LargeResponse
from pipeline.proto.pipeline_service_pb2 import Response
from pipeline.proto.plain_answer import write_large_object, write_object
from pipeline.proto.slices import SHORT_BYTES, Limits, is_short

CONTENT_TYPE: Final = "content_type"
"""The key next to bytes that are sent unchanged, with their content type."""

_FEW = 64  # values of a list up to which they are checked one by one
_SCALARS = frozenset({int, float, bool, type(None)})
_NUMERIC = (float, int)
_SHORT = SHORT_BYTES // _FEW // 2  # characters of a text; a few such texts are still short
_BYTES = (bytes, bytearray, memoryview)
_MEDIA_TYPE = re.compile(r"[a-z]+/[A-Za-z0-9.+-]+(?:; ?[a-z]+=[A-Za-z0-9-]+)?")

Payload = Mapping[str, Any]


def payload_of(answer: Any, failure: PipelineError | None = None) -> Payload:
    """Return the fields of an engine's answer: a ChannelData, or the result of a ResponseOp.

    `failure` is the error that the ResponseOp got, if the answer is its result for an error.

    Raises:
        PipelineError: the answer is an error, or has another form.
    """
    if isinstance(answer, ChannelData):
        if answer.error is not None:
            raise answer.error
        if not isinstance(answer.payload, Mapping):
            kind = type(answer.payload).__name__
            raise PayloadTypeError(f"the last Op answered with {kind}, not with a dict")
        return answer.payload
    message = answer.message if isinstance(answer, LargeResponse) else answer
    if not isinstance(message, Response):
        raise no_response(message)
    if message.err_no:
        raise error_from_wire(message.err_no, message.err_msg, failure)
    fields: dict[str, Any] = dict(zip(message.key, message.value, strict=False))
    fields.pop(PROFILE_KEY, None)
    fields.update(decode_tensors(message.tensors))
    return fields


def is_short_answer(answer: Any) -> bool:
    """Return whether the event loop may inspect and write an answer."""
    if isinstance(answer, LargeResponse):
        return False
    if not isinstance(answer, ChannelData) or not isinstance(answer.payload, Mapping):
        return True
    return is_quick(answer.payload) or is_short(answer.payload)


def quick_object(answer: Any) -> bytes | None:
    """Return the JSON of an answer with a few short values; None: another answer.

    Raises PayloadTypeError: a value has no form in JSON.
    """
    payload = answer.payload if type(answer) is ChannelData else None
    if type(payload) is dict and CONTENT_TYPE not in payload and is_quick(payload):
        return write_object(payload)
    return None


def quick_payload(answer: Any) -> dict[str, Any] | None:
    """Return the fields of an answer with a few short values; None: another answer."""
    payload = answer.payload if type(answer) is ChannelData else None
    return payload if type(payload) is dict and is_quick(payload) else None


def is_quick(payload: Payload) -> bool:
    """Return whether the fields are only a few short texts, numbers, and lists of numbers."""
    if len(payload) > _FEW:
        return False
    for value in payload.values():
        kind = type(value)
        if kind is list:
            if len(value) > _FEW or not _are_numbers(value):
                return False
        elif kind is str:
            if len(value) > _SHORT:
                return False
        elif kind not in _SCALARS:
            return False
    return True


def _are_numbers(values: list[Any]) -> bool:
    """Return whether a list has only numbers: then it has a sum, which C computes fast."""
    if not values or type(values[0]) not in _NUMERIC:
        return not values
    try:
        return type(sum(values)) in _NUMERIC
    except TypeError:
        return False


def written(payload: Payload) -> bytes | WebResponse:
    """Return the body of a short answer, or its bytes.

    Raises PayloadTypeError: a value has no form in JSON.
    """
    if CONTENT_TYPE in payload and (media := _media(payload)) is not None:
        return WebResponse(200, bytes(media[1]), media[0])
    return write_object(payload)


def _media(payload: Payload) -> tuple[bytes, Any] | None:
    """Return the type and the bytes of an answer that is a file; None: another answer."""
    kind, others = payload[CONTENT_TYPE], [*payload.values()]
    if len(others) != 2 or not isinstance(kind, str) or not _MEDIA_TYPE.fullmatch(kind):
        return None
    return next(((kind.encode(), value) for value in others if isinstance(value, _BYTES)), None)


def large_media(answer: Any) -> WebResponse | None:
    """Return the reply for a large file, which is written without a copy; None: another answer."""
    payload = answer.payload if type(answer) is ChannelData else None
    if type(payload) is not dict or CONTENT_TYPE not in payload:
        return None
    if (media := _media(payload)) is None:
        return None
    kind, view = media[0], memoryview(media[1])
    if view.nbytes <= SHORT_BYTES or not (view.readonly and view.c_contiguous):
        return None
    return WebResponse(200, b"", kind, tail=(view.cast("B"),))


def written_large(answer: Any, limits: Limits) -> bytes | WebResponse:
    """Return the reply for an engine's answer of any size, as `written`. Raises PipelineError."""
    payload = payload_of(answer)
    if CONTENT_TYPE in payload and (media := _media(payload)) is not None:
        return WebResponse(200, bytes(media[1]), media[0])
    return write_large_object(payload, limits)


def large_part(answer: Any, limits: Limits) -> bytes:
    """Return the JSON of a part of any size. Raises PipelineError."""
    return write_large_object(payload_of(answer), limits)
