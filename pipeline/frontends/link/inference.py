"""Inference over the link: a call that is the sink of its own request, in protobuf or in JSON."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol

from pipeline.answer_head import AnswerHead
from pipeline.engine.offload import Offload
from pipeline.engine.request import Begin, RequestHandle, RequestTarget, UnarySink
from pipeline.errors import (
    DeadlineError,
    PipelineError,
    TooLargeError,
    UserCodeError,
)
from pipeline.frontends.base import HeaderForwarding, no_response, seconds_of
from pipeline.frontends.grpc.inference import TIMEOUT, failure_said
from pipeline.frontends.grpc.server import trailing
from pipeline.frontends.http.routes import error_body
from pipeline.frontends.link.calls import LinkCall, Peer, end_of_error, end_of_exception
from pipeline.frontends.link.frames import SUCCESS, end_of, fields
from pipeline.frontends.wire import RESPONSES, PipelineWire
from pipeline.proto.pipeline import json as jsonpb
from pipeline.proto.pipeline.large import LargeResponse
from pipeline.proto.pipeline.plain import PlainResponse, plain_request_from_json
from pipeline.proto.pipeline_service_pb2 import Response
from pipeline.proto.slices import Limits

_LOGGER = logging.getLogger(__name__)

PATH = ":path"
"""Metadata of a call in JSON: the path that was posted to."""

_INTERNAL = 13  # of gRPC
_NO_PATH = ("", "")
_MAX_PATHS = 1024  # that are kept, as they came
_TIMEOUT = TIMEOUT.encode()


class Form(Protocol):
    """Reader of requests and writer of answers, in one form."""

    def read(self, message: bytes, metadata: bytes) -> Any:
        """Return a Request. Raises PackageError."""

    async def read_large(
        self, pieces: Sequence[bytes], metadata: bytes, timeout_s: float | None
    ) -> tuple[Any, float | None]:
        """Return a Request of any size, and the seconds that are left. Raises PipelineError."""

    def write(self, response: PlainResponse | Response) -> bytes:
        """Return the bytes of an answer."""

    def write_large(self, response: LargeResponse) -> Awaitable[bytes]:
        """Return the bytes of an answer of any size, or of the error that it was not written."""

    def write_error(self, error: PipelineError) -> bytes:
        """Return the bytes of an answer that is an error."""


class ProtobufForm:
    """Messages of the pipeline service.

    Args:
        wire: reads and writes them.
    """

    def __init__(self, wire: PipelineWire) -> None:
        self._wire = wire
        self.write: Callable[[PlainResponse | Response], bytes] = wire.write
        self.write_large: Callable[[LargeResponse], Awaitable[bytes]] = wire.write_large
        self.write_error: Callable[[PipelineError], bytes] = wire.write_error

    def read(self, message: bytes, metadata: bytes) -> Any:
        """Return a Request. Raises PackageError."""
        return self._wire.read(message)

    async def read_large(
        self, pieces: Sequence[bytes], metadata: bytes, timeout_s: float | None
    ) -> tuple[Any, float | None]:
        """Return a Request of any size, and the seconds that are left. Raises PipelineError."""
        return await self._wire.read_large(pieces, timeout_s)


class JsonForm:
    """The JSON that the HTTP port takes and gives.

    Args:
        offload: where large messages are read and written.
        limits: of JSON.
        is_plain: the engine takes a PlainRequest where a Request stands.
    """

    def __init__(self, offload: Offload, limits: Limits, is_plain: bool = False) -> None:
        self._offload = offload
        self._limits = limits
        self._from_json: Callable[[bytes, str, str], Any] = (
            plain_request_from_json if is_plain else jsonpb.request_from_json
        )

    write_error: Callable[[PipelineError], bytes] = staticmethod(error_body)

    def read(self, message: bytes, metadata: bytes) -> Any:
        """Return the Request that a body is. Raises PackageError."""
        return self._from_json(message, *_names_of(metadata))

    def write(self, response: PlainResponse | Response) -> bytes:
        """Return the JSON of an answer."""
        if isinstance(response, PlainResponse):
            return response.to_json()
        return jsonpb.response_to_json(response)

    async def read_large(
        self, pieces: Sequence[bytes], metadata: bytes, timeout_s: float | None
    ) -> tuple[Any, float | None]:
        """Return a Request of any size, and the seconds that are left. Raises PipelineError."""
        name, method = _names_of(metadata)
        read = functools.partial(self._read_large, list(pieces), name, method)
        return await self._offload.run(read, timeout_s)

    def _read_large(self, pieces: list[bytes], name: str, method: str) -> Any:
        size = sum(map(len, pieces))
        if size > (limit := self._limits.json_bytes):
            raise TooLargeError(f"the request is larger than max_json_bytes ({limit} bytes)")
        body = b"".join(pieces)
        pieces.clear()
        return jsonpb.large_request_from_json([body], name, method, self._limits)

    async def write_large(self, response: LargeResponse) -> bytes:
        """Return the JSON of an answer, or of the error that it was not written."""
        write = functools.partial(jsonpb.large_response_to_json, response, self._limits)
        try:
            body, _ = await self._offload.run(write)
        except (DeadlineError, TooLargeError) as error:
            return error_body(error)
        return body


@functools.lru_cache(_MAX_PATHS)
def _names_of(metadata: bytes) -> tuple[str, str]:
    """Return name and method of the path in the metadata of a call in JSON."""
    texts = metadata.decode("latin-1").split("\n")
    path = dict(zip(texts[::2], texts[1::2], strict=False)).get(PATH, "")
    parts = path.encode("latin-1").decode("utf-8", "replace").split("/")
    return (parts[1], parts[2]) if len(parts) == 3 else _NO_PATH


class InferenceService(NamedTuple):
    """The engine, how its messages are written, and what it is told of its callers.

    `is_grpc`: for callers of gRPC: the metadata may say when to answer, and statuses are its own.
    """

    begin: Begin
    form: Form
    takes_trace: bool = False
    forwarding: HeaderForwarding | None = None
    is_grpc: bool = False


class InferenceCall(UnarySink, LinkCall):
    """One request, and the sink of its answer, which goes straight to the connection."""

    __slots__ = ("_end", "_head", "_service", "_work")

    def __init__(
        self,
        peer: Peer,
        number: int,
        timeout_ns: int,
        metadata: bytes,
        service: InferenceService,
    ) -> None:
        self._peer = peer
        self._number = number
        self._timeout_ns = timeout_ns
        self._metadata = metadata
        self._service = service
        self._work: RequestHandle | None = None  # what goes on for it now
        self._end = SUCCESS
        self._head: AnswerHead | None = None  # as user code says it

    def say(self, head: AnswerHead) -> None:
        """Take what user code says of the answer's head."""
        self._head = head
        told = trailing(None, head=head) if self._service.is_grpc else head.headers
        self._end = end_of(0, head.status or 200, trailers=fields(told))

    def begin(self, message: bytes) -> None:
        """Begin a request that is there in whole."""
        service, metadata, timeout_s = self._service, self._metadata, self.timeout_s
        try:
            target = None
            if metadata:
                timeout_s, target = self._told(timeout_s)
            begun = service.begin(service.form.read(message, metadata), timeout_s, target, self)
        except Exception as error:
            self._fail(error)
        else:
            self._work = self._work or begun  # it may have ended by now, and be written

    def _told(
        self, timeout_s: float | None, is_large: bool = False
    ) -> tuple[float | None, RequestTarget | None]:
        """Return the time that its caller gives, and what the engine is told of it."""
        service, metadata = self._service, self._metadata
        if service.is_grpc and _TIMEOUT in metadata and (told := self.header(TIMEOUT)):
            given = seconds_of(told, TIMEOUT)
            timeout_s = given if timeout_s is None else min(given, timeout_s)
        trace = self.header("traceparent") if service.takes_trace else ""
        info = None if service.forwarding is None else service.forwarding.info(self.headers())
        if is_large or trace or info is not None:
            return timeout_s, RequestTarget(traceparent=trace, is_large=is_large, info=info)
        return timeout_s, None

    def _begin_long(self, pieces: list[bytes]) -> None:
        self._work = self._peer.loop.create_task(self._read_large(pieces))

    async def _read_large(self, pieces: list[bytes]) -> None:
        service = self._service
        try:
            timeout_s, target = self._told(self.timeout_s, is_large=True)
            request, left_s = await service.form.read_large(pieces, self._metadata, timeout_s)
            pieces.clear()
            self._work = None
            begun = service.begin(request, left_s, target, self)
            self._work = self._work or begun
        except Exception as error:
            self._fail(error)

    def end(self, answer: Any) -> None:
        """Send the answer."""
        try:
            head = self._head if self._service.is_grpc else None
            if head is not None and (failure := failure_said(head, answer)):
                self._peer.fail(self._number, end_of_exception(failure, "inference"))
            elif isinstance(answer, RESPONSES):
                self._peer.answer(self._number, self._service.form.write(answer), self._end)
            elif isinstance(answer, LargeResponse):
                self._work = self._peer.loop.create_task(self._write_large(answer))
            else:
                self._peer.fail(self._number, end_of_error(no_response(answer), _INTERNAL))
        except Exception as error:
            self._fail(error)

    async def _write_large(self, answer: LargeResponse) -> None:
        try:
            message = await self._service.form.write_large(answer)
            self._peer.answer(self._number, message, self._end)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, DeadlineError):
            self._peer.answer(self._number, self._service.form.write_error(error))
            return
        if not isinstance(error, PipelineError):
            _LOGGER.exception("inference failed", exc_info=error)  # a bug of ours
            error = UserCodeError("internal error of the server")
        self._peer.fail(self._number, end_of_error(error))

    def cancel(self) -> None:
        """Stop what goes on for it."""
        if self._work is not None:
            self._work.cancel()
