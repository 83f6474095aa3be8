"""BaiduStdConnection: a connection of brpc's baidu_std, with answers in any order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import cast

from pipeline.engine.offload import Offload
from pipeline.errors import (
    ClosedError,
    DeadlineError,
    InputError,
    OverloadedError,
    PackageError,
    PayloadTypeError,
    PipelineError,
    PredictorError,
)
from pipeline.proto.brpc import frames as baidu_std
from pipeline.proto.brpc.frames import BrpcCode, BrpcFrame, FrameError, FrameReader
from pipeline.proto.brpc_meta_pb2 import RpcMeta
from pipeline.proto.slices import SHORT_BYTES, joined
from pipeline.serve.ops import METHODS, Answer, ModelCall, log_id_of

_LOGGER = logging.getLogger(__name__)

MAX_CALLS = 1024
"""Maximum number of active calls of a connection; reading pauses while there are more."""

MODEL_FAILED = -5000
"""The code of Paddle Serving's server for a failure of the model, as `InferService` below."""

_CODE_OF: Mapping[type[PipelineError], int] = {
    ClosedError: BrpcCode.LOGOFF,
    DeadlineError: BrpcCode.TIMED_OUT,
    InputError: BrpcCode.BAD_REQUEST,
    OverloadedError: BrpcCode.LIMIT,
    PackageError: BrpcCode.BAD_REQUEST,
    PayloadTypeError: BrpcCode.BAD_REQUEST,
    PredictorError: MODEL_FAILED,
}


class BaiduStdConnection(asyncio.Protocol):
    """One peer; `answer` answers its calls.

    Bytes that are not baidu_std end the connection. As in brpc, a peer that shuts its sending side
    has left, and its calls are cancelled. Reading pauses while the peer has too many calls or
    unread answers.

    Args:
        max_bytes: limit of a frame.
        register: contains the connection while it is open.
        offload: copies large messages on a thread; its owner stops it.

    Attributes:
        lost: done when the connection is closed.
    """

    transport: asyncio.Transport
    lost: asyncio.Future[None]

    def __init__(
        self,
        answer: Answer,
        max_bytes: int,
        register: set[BaiduStdConnection],
        max_calls: int = MAX_CALLS,
        offload: Offload | None = None,
    ) -> None:
        self._answer = answer
        self._offload = offload or Offload(threads=0)
        self._max_bytes = max_bytes
        self._register = register
        self._max_calls = max_calls
        self._reader = FrameReader(max_bytes)
        self._calls: set[asyncio.Task[None]] = set()
        self._call_bytes = 0
        self._is_untaken = False
        self._is_paused = False

    # What the event loop calls --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses
        self.transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self.lost = self._loop.create_future()
        self._register.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._reader.feed(data)
        except FrameError as error:
            _LOGGER.info("a connection is closed: %s", error)
            self.transport.abort()
            return
        for frame in frames:
            self._take(frame)
        self._throttle()

    def pause_writing(self) -> None:
        self._is_untaken = True
        self._throttle()

    def resume_writing(self) -> None:
        self._is_untaken = False
        self._throttle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._register.discard(self)
        self.lost.set_result(None)
        for call in self._calls:
            call.cancel()

    # Calls ------------------------------------------------------------------------------------

    def _take(self, frame: BrpcFrame) -> None:
        refusal = _refusal(frame.meta)
        if refusal is not None:
            self._refuse(frame.meta, *refusal)
            return
        call = self._loop.create_task(self._serve(frame))
        self._calls.add(call)
        self._call_bytes += len(frame.body)

    async def _serve(self, frame: BrpcFrame) -> None:
        meta, body, size = frame.meta, frame.body, len(frame.body)
        del frame
        request = meta.request
        timeout_s = request.timeout_ms / 1000 if request.timeout_ms > 0 else None
        try:
            if isinstance(body, memoryview):
                copy = partial(joined, (body,))
                del body
                message, timeout_s = await self._offload.run(copy, timeout_s)
                del copy
            else:
                message = body
            log_id = request.log_id % 2**64 or (0 if meta.compress_type else log_id_of(message))
            call = ModelCall(message, meta.compress_type, log_id)
            del message
            self._write(meta, await self._answer(call, timeout_s))
        except PipelineError as error:
            code = _CODE_OF.get(type(error), BrpcCode.INTERNAL)
            prefix = "InferService inference failed! " if code == MODEL_FAILED else ""
            self._refuse(meta, code, f"{prefix}{error}")
        except Exception as error:  # a defect of this library: that client gets the error
            _LOGGER.exception("%s failed", request.method_name, exc_info=error)
            self._refuse(meta, BrpcCode.INTERNAL, "internal error of the server")
        finally:
            self._finish(size)

    def _finish(self, size: int) -> None:
        call = asyncio.current_task(self._loop)
        assert call is not None
        self._calls.discard(call)
        self._call_bytes -= size
        if self._is_paused:
            self._throttle()

    def _write(self, asked: RpcMeta, body: bytes) -> None:
        meta = baidu_std.response_meta(asked.correlation_id)
        if asked.compress_type:
            meta.compress_type = asked.compress_type
        if len(body) <= SHORT_BYTES:
            self.transport.write(baidu_std.pack(meta, body))
            return
        self.transport.write(baidu_std.pack_head(meta, len(body)))
        self.transport.write(body)

    def _refuse(self, asked: RpcMeta, code: int, text: str) -> None:
        meta = baidu_std.response_meta(asked.correlation_id, code, text)
        self.transport.write(baidu_std.pack(meta, b""))

    def _throttle(self) -> None:
        is_too_much = (
            self._is_untaken
            or len(self._calls) >= self._max_calls
            or self._call_bytes > self._max_bytes
        )
        if is_too_much == self._is_paused or self.transport.is_closing():
            return
        self._is_paused = is_too_much
        if is_too_much:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()


def _refusal(meta: RpcMeta) -> tuple[int, str] | None:
    """Return the error of a call that is refused by its meta alone, in brpc's words."""
    service, method = meta.request.service_name, meta.request.method_name
    if service != baidu_std.SERVICE:
        return BrpcCode.NO_SERVICE, f"Fail to find service={service}"
    if method not in METHODS:
        return BrpcCode.NO_METHOD, f"Fail to find method={service}/{method}"
    if meta.content_type:
        return BrpcCode.BAD_REQUEST, f"content_type {meta.content_type}: send protobuf (0)"
    return None
