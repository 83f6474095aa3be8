"""Wires: read a Request from bytes for the engine, and write its answer, in protobuf or JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from pipeline.data import ChannelData
from pipeline.engine.offload import Offload
from pipeline.errors import DeadlineError, PackageError, PipelineError, TooLargeError
from pipeline.frontends.http.routes import error_body
from pipeline.proto.inflate import emptied, whole
from pipeline.proto.pipeline import json as jsonpb
from pipeline.proto.pipeline.plain import (
    PlainRequest,
    PlainResponse,
    plain_of,
    plain_request_from_json,
)
from pipeline.proto.pipeline.response import LargeResponse, pack_error, read_request
from pipeline.proto.pipeline_service_pb2 import Request, Response
from pipeline.proto.slices import Limits, Piece

RESPONSES = (PlainResponse, Response)
"""Answers that `Wire.write` takes."""


class Wire(Protocol):
    """Reader of requests and writer of answers, in one form.

    `names` are the two parts of a JSON path; a request in protobuf has them itself.
    """

    offload: Offload
    """Threads that read and write large messages."""

    def read(self, message: bytes, *names: str) -> Any:
        """Return the request of a short message. Raises PackageError."""

    async def read_large(
        self, pieces: Sequence[Piece], timeout_s: float | None, *names: str
    ) -> tuple[Any, float | None]:
        """Return a Request of any size, and the remaining seconds. Raises PipelineError."""

    def write(self, response: PlainResponse | Response) -> bytes:
        """Return the bytes of an answer."""

    def write_large(self, response: LargeResponse) -> Awaitable[bytes]:
        """Return the bytes of an answer, or of an error if it cannot be written."""

    def write_pieces(self, response: LargeResponse) -> Awaitable[bytes | list[Piece]]:
        """Return the same in pieces, if some of them need no copy."""

    def write_error(self, error: PipelineError) -> bytes:
        """Return the bytes of an answer with an error."""


class PipelineWire:
    """The wire of the pipeline service's messages; large ones are handled off the event loop.

    Args:
        offload: reads and writes large messages.
        limits: of expensive parts.
        is_own: our RequestOp reads the requests; it needs no complete Request.
        is_plain: a PlainRequest may replace a Request.
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
        self.offload: Offload = offload or Offload(threads=0)
        self._limits = limits or Limits()

    def read(self, message: bytes, *names: str) -> PlainRequest | Request:
        """Return the request of a short message. Raises PackageError."""
        request = _whole(message)
        return plain_of(request) if self._is_plain else request

    async def read_large(
        self, pieces: Sequence[Piece], timeout_s: float | None, *names: str
    ) -> tuple[Any, float | None]:
        """Return a Request of any size, and the remaining seconds. Raises PipelineError."""
        read = partial(self._read_large, list(pieces))
        del pieces
        return await self.offload.run(read, timeout_s)

    def _read_large(self, pieces: list[Piece]) -> Any:
        message = whole(pieces)
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
        """Return the bytes of an answer, or of an error if it is not written in time."""
        try:
            return (await self.offload.run(response.to_wire))[0]
        except DeadlineError as error:
            return self.write_error(error)

    async def write_pieces(self, response: LargeResponse) -> bytes | list[Piece]:
        """Return the same in pieces, with tensors' elements not copied."""
        try:
            return (await self.offload.run(response.pieces))[0]
        except DeadlineError as error:
            return self.write_error(error)

    def write_error(self, error: PipelineError) -> bytes:
        """Return the bytes of a Response with an error."""
        return pack_error(ChannelData(-1, error=error)).SerializeToString()


class JsonWire:
    """The wire of the HTTP port's JSON.

    Args:
        offload: reads and writes large messages.
        limits: of JSON.
        is_plain: a PlainRequest may replace a Request.
    """

    def __init__(self, offload: Offload, limits: Limits, is_plain: bool = False) -> None:
        self.offload: Offload = offload
        self._limits = limits
        self.read: Callable[..., Any] = (
            plain_request_from_json if is_plain else jsonpb.request_from_json
        )

    write_error: Callable[[PipelineError], bytes] = staticmethod(error_body)

    async def read_large(
        self, pieces: Sequence[Piece], timeout_s: float | None, *names: str
    ) -> tuple[Any, float | None]:
        """Return a Request of any size, and the remaining seconds. Raises PipelineError."""
        read = partial(self._read_large, list(pieces), *names)
        del pieces
        return await self.offload.run(read, timeout_s)

    def _read_large(self, pieces: list[Piece], name: str, method: str) -> Any:
        size = sum(map(len, pieces))
        if size > (limit := self._limits.json_bytes):
            raise TooLargeError(f"the request is larger than max_json_bytes ({limit} bytes)")
        return jsonpb.large_request_from_json([emptied(pieces)], name, method, self._limits)

    def write(self, response: PlainResponse | Response) -> bytes:
        """Return the JSON of an answer."""
        if isinstance(response, PlainResponse):
            return response.to_json()
        return jsonpb.response_to_json(response)

    async def write_large(self, response: LargeResponse) -> bytes:
        """Return the JSON of an answer, or of an error if it cannot be written."""
        try:
            return await self.written(response)
        except (DeadlineError, TooLargeError) as error:
            return error_body(error)

    write_pieces = write_large

    async def written(self, response: LargeResponse) -> bytes:
        """Return the JSON of an answer. Raises PipelineError: it is too large, or too late."""
        write = partial(jsonpb.large_response_to_json, response, self._limits)
        return (await self.offload.run(write))[0]


def _whole(message: Piece) -> Request:
    try:
        return Request.FromString(bytes(message))
    except DecodeError as error:
        raise PackageError(f"not a Request: {error}") from error
