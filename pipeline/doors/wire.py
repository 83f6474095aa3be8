"""Wire: bytes of a Request to what the engine takes, and its answer to bytes of a Response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError

from pipeline.data import ChannelData
from pipeline.engine.offload import Offload
from pipeline.errors import DeadlineError, PackageError, PipelineError
from pipeline.op import pack_error
from pipeline.proto.large import LargeResponse
from pipeline.proto.pipeline_service_pb2 import Request
from pipeline.proto.slices import Limits


class Wire:
    """Reads and writes the messages of the pipeline service, the large ones beside the loop.

    Args:
        offload: where that is done.
        limits: of what is costly.
    """

    def __init__(self, offload: Offload | None = None, limits: Limits | None = None) -> None:
        self._offload = offload or Offload(threads=0)
        self._limits = limits or Limits()

    def read(self, message: bytes) -> Request:
        """The Request. Raises PackageError."""
        try:
            return Request.FromString(message)
        except DecodeError as error:
            raise PackageError(f"not a Request: {error}") from error

    async def read_large(
        self, pieces: Sequence[bytes], timeout_s: float | None
    ) -> tuple[Any, float | None]:
        """A Request of any size, and the seconds that are left. Raises PipelineError."""
        return await self._offload.run(lambda: self.read(b"".join(pieces)), timeout_s)

    async def write_large(self, response: LargeResponse) -> bytes:
        """The bytes of an answer, or of the error that it could not be written in time."""
        try:
            message, _ = await self._offload.run(response.to_wire)
        except DeadlineError as error:
            return self.write_error(error)
        return message

    def write_error(self, error: PipelineError) -> bytes:
        """The bytes of a Response that is an error."""
        return pack_error(ChannelData(-1, error=error)).SerializeToString()
