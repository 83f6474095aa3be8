"""PipelineWire: reads a Request from bytes for the engine, writes its answer as a Response."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError

from pipeline.data import ChannelData
from pipeline.engine.offload import Offload
from pipeline.errors import DeadlineError, PackageError, PipelineError
from pipeline.proto.inflate import emptied
from pipeline.proto.pipeline.large import LargeResponse, read_request
from pipeline.proto.pipeline.plain import (
    PlainRequest,
    PlainResponse,
    plain_request_from_message,
)
from pipeline.proto.pipeline.response import pack_error
from pipeline.proto.pipeline_service_pb2 import Request, Response
from pipeline.proto.slices import Limits

RESPONSES = (PlainResponse, Response)
"""Answers that `PipelineWire.write` takes."""


class PipelineWire:
    """A reader and writer of the pipeline service's messages, the large ones beside the loop.

    Args:
        offload: where that is done.
        limits: of what is costly.
        is_own: whether our own RequestOp takes the requests, which needs no whole Request.
        is_plain: whether a PlainRequest may stand for a Request.
    """

    def __init__(
        self,
        offload: Offload | None = None,
        limits: Limits | None = None,
        is_own: bool = False,
        is_plain: bool = False,
    ) -> None:
        self._is_own = is_own
        self._is_plain = is_plain
        self._offload = offload or Offload(threads=0)
        self._limits = limits or Limits()

    def read(self, message: bytes) -> PlainRequest | Request:
        """Return the request of a short message. Raises PackageError."""
        if self._is_plain and (plain := plain_request_from_message(message)) is not None:
            return plain
        return _whole(message)

    async def read_large(
        self, pieces: Sequence[bytes], timeout_s: float | None
    ) -> tuple[Any, float | None]:
        """Return a Request of any size, and the seconds that are left. Raises PipelineError."""
        read = partial(self._read_large, list(pieces))
        del pieces
        return await self._offload.run(read, timeout_s)

    def _read_large(self, pieces: list[bytes]) -> Any:
        message = emptied(pieces)
        if self._is_own:
            return read_request(message, self._limits)
        request = _whole(message)
        self._limits.check_texts(len(request.key) + len(request.value))
        return request

    def write(self, response: PlainResponse | Response) -> bytes:
        """Return the bytes of an answer."""
        if isinstance(response, PlainResponse):
            return response.to_message()
        return response.SerializeToString()

    async def write_large(self, response: LargeResponse) -> bytes:
        """Return the bytes of an answer, or of the error that it was not written in time."""
        try:
            message, _ = await self._offload.run(response.to_wire)
        except DeadlineError as error:
            return self.write_error(error)
        return message

    def write_error(self, error: PipelineError) -> bytes:
        """Return the bytes of a Response that is an error."""
        return pack_error(ChannelData(-1, error=error)).SerializeToString()


def _whole(message: bytes) -> Request:
    try:
        return Request.FromString(message)
    except DecodeError as error:
        raise PackageError(f"not a Request: {error}") from error
