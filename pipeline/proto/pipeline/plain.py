"""PlainRequest and PlainResponse: requests and answers of pairs alone, without protobuf.

A frontend may pass a PlainRequest in place of a Request unless user code reads the request. The
answer is a PlainResponse if it consists of pairs, otherwise a Response.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
import orjson

from pipeline.data import ChannelData
from pipeline.errors import ErrorCode, PayloadTypeError
from pipeline.proto import codec
from pipeline.proto.messages import PROFILE_KEY
from pipeline.proto.pipeline.json import request_from_json
from pipeline.proto.pipeline_service_pb2 import Request, Response
from pipeline.proto.slices import SHORT_BYTES, SLICE

_STR = frozenset({str})
_INT64 = 2**63
_FEW, _SHORT = 64, SHORT_BYTES // 2
_dumps = orjson.dumps


class PlainRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A Request without tensors: it has the same attributes, and no code changes it."""

    key: list[str] = []
    value: list[str] = []
    name: str = ""
    method: str = ""
    logid: int = 0  # of 64 bits once it is read
    clientip: str = ""
    tensors: ClassVar[tuple[()]] = ()

    def pairs(self) -> dict[str, Any] | None:
        """Return the RequestOp's result for it; None if it is long or lacks values."""
        keys, values = self.key, self.value
        if len(keys) > len(values) or len(keys) > SLICE:
            return None
        pairs: dict[str, Any] = dict(
            zip(keys, values, strict=False)
        )  # more values than keys: as in RequestOp
        pairs.pop(PROFILE_KEY, None)
        return pairs


class PlainResponse(msgspec.Struct):
    """A Response that has no error and no tensors."""

    key: list[str]
    value: list[str]

    def to_json(self) -> bytes:
        """Return what `response_to_json` returns for the same Response."""
        return _dumps(
            {"err_no": 0, "err_msg": "", "key": self.key, "value": self.value, "tensors": []}
        )

    def to_message(self) -> bytes:
        """Return the same Response in protobuf."""
        return Response(key=self.key, value=self.value).SerializeToString()


_read = msgspec.json.Decoder(PlainRequest).decode


def plain_request_from_json(body: bytes, name: str, method: str) -> PlainRequest | Request:
    """Return the request that was posted to `/{name}/{method}`, as `request_from_json` does.

    It is a Request if it has more than pairs, or if a value has to be converted. Raises
    PackageError as `request_from_json` does.
    """
    try:
        request = _read(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return request_from_json(body, name, method)
    if not -_INT64 <= request.logid < _INT64:
        return request_from_json(body, name, method)
    request.name, request.method = name, method
    return request


def plain_of(request: Request) -> PlainRequest | Request:
    """Return a Request as a PlainRequest, if it has no tensors and few pairs."""
    if request.tensors or len(request.key) > _FEW or len(request.value) > _FEW:
        return request
    pairs = [*request.key], [*request.value]
    return PlainRequest(*pairs, request.name, request.method, request.logid, request.clientip)


def pack_short(payload: Any) -> PlainResponse | None:
    """Return an answer of a few short texts; None for other answers."""
    if type(payload) is not dict or len(payload) > _FEW:
        return None
    keys, values = [*payload], [*payload.values()]
    if len(keys) == 1 and type(text := values[0]) is str is type(
        key := keys[0]
    ):  # the usual answer
        is_ascii = text.isascii() and key.isascii()
        if is_ascii and len(key) + len(text) <= _SHORT:
            return PlainResponse(keys, values)
    if {*map(type, keys), *map(type, values)} != _STR:
        return None
    texts = "".join(keys + values)
    is_fit = len(texts) <= _SHORT and (texts.isascii() or _is_utf8(texts))
    return PlainResponse(keys, values) if is_fit else None


def short_json(answer: Any) -> bytes | None:
    """Return the JSON of a PlainResponse; None for other answers."""
    return answer.to_json() if type(answer) is PlainResponse else None


def pack_plain(payload: Mapping[str, Any]) -> PlainResponse | None:
    """Return an answer as text; None if its Response has tensors or an error."""
    keys, values = [*map(str, payload)], [*payload.values()]
    if not _STR.issuperset(map(type, values)):
        try:
            if ChannelData.check_npdata(payload)[0] != ErrorCode.OK:
                return None
            values = [codec.numpy_to_text(value) for value in values]
        except PayloadTypeError:
            return None
    texts = "".join(keys + values)
    return PlainResponse(keys, values) if texts.isascii() or _is_utf8(texts) else None


def _is_utf8(text: str) -> bool:
    """Return whether a text has no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
