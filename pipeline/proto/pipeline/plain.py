"""PlainRequest and PlainResponse: requests and answers of pairs alone, without protobuf.

A frontend may give a PlainRequest where a Request stands for all but what is the user's own; who
comes with one is answered with a PlainResponse where the answer is pairs, with a Response else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
import orjson

from pipeline.data import ChannelData
from pipeline.errors import ErrorCode, PayloadTypeError
from pipeline.proto import codec
from pipeline.proto.pipeline.json import request_from_json
from pipeline.proto.pipeline_service_pb2 import Request

_STR = frozenset({str})
_INT64 = 2**63
_dumps = orjson.dumps


class PlainRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A Request that has no tensors: the same attributes, and nobody changes it."""

    key: list[str] = []
    value: list[str] = []
    name: str = ""
    method: str = ""
    logid: int = 0  # of 64 bits once it is read
    clientip: str = ""
    tensors: ClassVar[tuple[()]] = ()


class PlainResponse(msgspec.Struct):
    """A Response that has no error and no tensors."""

    key: list[str]
    value: list[str]

    def to_json(self) -> bytes:
        """Return what `response_to_json` returns for the same Response."""
        return _dumps(
            {"err_no": 0, "err_msg": "", "key": self.key, "value": self.value, "tensors": []}
        )


_read = msgspec.json.Decoder(PlainRequest).decode


def plain_request_from_json(body: bytes, name: str, method: str) -> PlainRequest | Request:
    """Return the request that was posted to `/{name}/{method}`, as `request_from_json` does.

    It is a Request where more than pairs stands in it, or a value has to be converted. Raises
    PackageError, like the other.
    """
    try:
        request = _read(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return request_from_json(body, name, method)
    if not -_INT64 <= request.logid < _INT64:
        return request_from_json(body, name, method)
    request.name, request.method = name, method
    return request


def pack_plain(payload: Mapping[str, Any]) -> PlainResponse | None:
    """Return an answer as text; None: its Response is another one, or an error's."""
    keys, values = [*map(str, payload)], [*payload.values()]
    if not _STR.issuperset(map(type, values)):
        try:
            if ChannelData.check_npdata(payload)[0] != ErrorCode.OK:
                return None
            values = [codec.numpy_to_text(value) for value in values]
        except PayloadTypeError:
            return None
    texts = "".join(keys + values)
    if not texts.isascii():
        try:
            texts.encode()
        except UnicodeEncodeError:  # half of a surrogate pair
            return None
    return PlainResponse(keys, values)
