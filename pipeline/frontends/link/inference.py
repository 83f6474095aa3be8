"""Inference over the link: a call that is the sink of its own request, in protobuf or in JSON."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from pipeline.answer_head import AnswerHead
from pipeline.engine.request import Begin, RequestHandle, RequestTarget, UnarySink
from pipeline.errors import DeadlineError, PipelineError, UserCodeError
from pipeline.frontends.base import HeaderForwarding, no_response, seconds_of
from pipeline.frontends.grpc.inference import TIMEOUT, failure_in
from pipeline.frontends.grpc.server import trailing
from pipeline.frontends.link.calls import (
    OVER,
    LinkCall,
    Peer,
    end_of_error,
    end_of_exception,
)
from pipeline.frontends.link.frames import SUCCESS, end_of, fields
from pipeline.frontends.wire import RESPONSES, Wire
from pipeline.proto.pipeline.response import LargeResponse
from pipeline.proto.slices import Piece

_LOGGER = logging.getLogger(__name__)

PATH = ":path"
"""Metadata of a call in JSON: the path of the POST."""

_INTERNAL = 13  # of gRPC
_NO_PATH = ("", "")
_MAX_PATHS = 1024  # that are remembered
_TIMEOUT = TIMEOUT.encode()


@functools.lru_cache(_MAX_PATHS)
def names_of(metadata: bytes) -> tuple[str, str]:
    """Return name and method of the path in the metadata of a call in JSON."""
    texts = metadata.decode("latin-1").split("\n")
    path = dict(zip(texts[::2], texts[1::2], strict=False)).get(PATH, "")
    parts = path.encode("latin-1").decode("utf-8", "replace").split("/")
    return (parts[1], parts[2]) if len(parts) == 3 else _NO_PATH


def no_names(metadata: bytes) -> tuple[str, ...]:
    """Return no names: a message in protobuf has them itself."""
    return ()


class InferenceService(NamedTuple):
    """The engine, its messages' wire, and what the engine receives about clients.

    `names`: finds names in a call's metadata that the message lacks. `is_grpc`: for clients of
    gRPC: the metadata may have a time limit, and the statuses are gRPC's.
    """

    begin: Begin
    wire: Wire
    names: Callable[[bytes], tuple[str, ...]] = no_names
    takes_trace: bool = False
    forwarding: HeaderForwarding | None = None
    is_grpc: bool = False


class InferenceCall(UnarySink, LinkCall):
    """One request, and the sink of its answer, which it sends directly."""

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
        self._work: RequestHandle | None = None  # its current work
        self._end = SUCCESS
        self._head: AnswerHead | None = None  # set by user code

    def take_head(self, head: AnswerHead) -> None:
        """Note the head that user code set."""
        self._head = head
        metadata = trailing(None, head=head) if self._service.is_grpc else head.headers
        self._end = end_of(0, head.status or 200, trailers=fields(metadata))

    def begin(self, message: bytes) -> None:
        """Begin a complete request."""
        service, metadata, timeout_s = self._service, self._metadata, self.timeout_s
        try:
            target = None
            if metadata:
                timeout_s, target = self._limit_and_target(timeout_s)
            begun = service.begin(
                service.wire.read(message, *service.names(metadata)), timeout_s, target, self
            )
        except Exception as error:
            self._fail(error)
        else:
            self._work = self._work or begun  # it may have ended, and be written already

    def _limit_and_target(
        self, timeout_s: float | None, is_large: bool = False
    ) -> tuple[float | None, RequestTarget | None]:
        """Return the client's time limit, and the target of the request."""
        service, metadata = self._service, self._metadata
        if service.is_grpc and _TIMEOUT in metadata and (timeout := self.header(TIMEOUT)):
            seconds = seconds_of(timeout, TIMEOUT)
            timeout_s = seconds if timeout_s is None else min(seconds, timeout_s)
        trace = self.header("traceparent") if service.takes_trace else ""
        info = None if service.forwarding is None else service.forwarding.info(self.headers())
        if is_large or trace or info is not None:
            return timeout_s, RequestTarget(traceparent=trace, is_large=is_large, info=info)
        return timeout_s, None

    def _begin_long(self, pieces: list[Piece]) -> None:
        self._work = self._peer.loop.create_task(self._read_large(pieces))

    async def _read_large(self, pieces: list[Piece]) -> None:
        service = self._service
        try:
            timeout_s, target = self._limit_and_target(self.timeout_s, is_large=True)
            names = service.names(self._metadata)
            request, left_s = await service.wire.read_large(pieces, timeout_s, *names)
            pieces.clear()
            self._work = None
            begun = service.begin(request, left_s, target, self)
            self._work = self._work or begun
        except Exception as error:
            self._fail(error)

    def end(self, answer: Any) -> None:
        """Send the answer."""
        self._work = OVER
        try:
            head = self._head if self._service.is_grpc else None
            if head is not None and (failure := failure_in(head, answer)):
                self._peer.fail(self._number, end_of_exception(failure, "inference"))
            elif isinstance(answer, RESPONSES):
                self._peer.answer(self._number, self._service.wire.write(answer), self._end)
            elif isinstance(answer, LargeResponse):
                self._work = self._peer.loop.create_task(self._write_large(answer))
            else:
                self._peer.fail(self._number, end_of_error(no_response(answer), _INTERNAL))
        except Exception as error:
            self._fail(error)

    async def _write_large(self, answer: LargeResponse) -> None:
        try:
            wire = self._service.wire
            message = await wire.write_pieces(answer)
            if isinstance(message, bytes):
                self._peer.answer(self._number, message, self._end)
            else:
                self._work = self._peer.answer_long(self._number, message, self._end, wire.offload)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, DeadlineError):
            self._peer.answer(self._number, self._service.wire.write_error(error))
            return
        if not isinstance(error, PipelineError):
            _LOGGER.exception("inference failed", exc_info=error)  # a bug in this library
            error = UserCodeError("internal error of the server")
        self._peer.fail(self._number, end_of_error(error))

    def cancel(self) -> None:
        """Stop its work."""
        work, self._work = self._work, OVER
        if work is not None:
            work.cancel()
