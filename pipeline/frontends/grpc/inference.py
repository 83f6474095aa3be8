"""`PipelineService` over gRPC: inference, answered at once or in parts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc

from pipeline.answer_head import AnswerHead, grpc_status_for
from pipeline.engine.request import Begin, RequestTarget, ask
from pipeline.errors import (
    ERROR_STATUSES,
    ClosedError,
    DeadlineError,
    PackageError,
    PipelineError,
)
from pipeline.frontends.base import HeaderForwarding, no_response, seconds_of
from pipeline.frontends.grpc.server import GrpcCall, GrpcError, GrpcService, grpc_error
from pipeline.frontends.parts import PartsReader, answers_to
from pipeline.frontends.wire import RESPONSES, PipelineWire
from pipeline.proto.pipeline.response import LargeResponse
from pipeline.proto.pipeline_service_pb2 import Response
from pipeline.proto.slices import SHORT_BYTES

SERVICE = "baidu.paddle_serving.pipeline_serving.PipelineService"

TIMEOUT = "pipeline-timeout"
"""Metadata of a call: the time for the server's answer, in the form of `grpc-timeout`.

A client that wants the server's own answer to a deadline, which is a Response, sends it here and
gives the call more time: after a call's deadline gRPC drops the server's answer.
"""


def pipeline_service(
    begin: Begin,
    takes_trace: bool = False,
    wire: PipelineWire | None = None,
    forwarding: HeaderForwarding | None = None,
) -> GrpcService:
    """Return `PipelineService`, for an engine that answers a Request with Responses.

    With `takes_trace` the engine receives the client's traceparent, with `forwarding` these
    headers. `wire` reads and writes the messages.
    """
    calls = _Calls(begin, takes_trace, wire or PipelineWire(), forwarding)
    streams = {"inference_stream": calls.inference_stream}
    return GrpcService(SERVICE, {"inference": calls.inference}, streams)


class _Calls:
    """The methods, from message to message."""

    def __init__(
        self,
        begin: Begin,
        takes_trace: bool,
        wire: PipelineWire,
        forwarding: HeaderForwarding | None,
    ) -> None:
        self._begin = begin
        self._takes_trace = takes_trace
        self._wire = wire
        self._forwarding = forwarding

    async def inference(self, message: bytes, call: GrpcCall) -> bytes:
        try:
            read = await self._read(message, call)
            del message
            answer = ask(self._begin, *read)
            if answer.done() and _is_closed(answer.result()):
                raise _not_begun(answer.result())
            response = await answer
            _send_head(answer.head, response, call)
        except DeadlineError as error:
            return self._wire.write_error(error)
        except PipelineError as error:
            raise grpc_error(error) from error
        return await self._written(response)

    async def inference_stream(
        self, messages: AsyncIterator[bytes], call: GrpcCall
    ) -> AsyncGenerator[bytes, None]:
        """Answer one message with each part of the answer.

        The next part is asked for when the last one is on its way, so a client that reads slowly
        makes the stream wait. If the client disconnects, this generator is closed, and with it the
        request.
        """
        try:
            message = await anext(messages)
        except StopAsyncIteration:
            closed = ClosedError("there is no request: none was sent, or the server has stopped")
            raise grpc_error(closed) from None
        try:
            read = await self._read(message, call)
            del message
            reader = PartsReader()
            answers = answers_to(self._begin, *read, reader=reader)
            async with contextlib.aclosing(answers):
                async for response, is_part in answers:
                    _send_head(None if is_part else reader.head, response, call)
                    yield await self._written(response)
        except DeadlineError as error:
            yield self._wire.write_error(error)
        except PipelineError as error:
            raise grpc_error(error) from error

    async def _read(
        self, message: bytes, call: GrpcCall
    ) -> tuple[Any, float | None, RequestTarget | None]:
        """Return the request, its time in seconds, and its target."""
        traceparent = call.header("traceparent") if self._takes_trace else ""
        info = None if self._forwarding is None else self._forwarding.info(call.headers())
        left_s = _timeout_of(call)
        if len(message) <= SHORT_BYTES:
            is_usual = not traceparent and info is None
            target = None if is_usual else RequestTarget(traceparent=traceparent, info=info)
            return self._wire.read(message), left_s, target
        target = RequestTarget(traceparent=traceparent, is_large=True, info=info)
        request, left_s = await self._wire.read_large([message], left_s)
        return request, left_s, target

    async def _written(self, response: Any) -> bytes:
        if isinstance(response, RESPONSES):
            return self._wire.write(response)
        if not isinstance(response, LargeResponse):
            failure = no_response(response)
            raise GrpcError(grpc.StatusCode.INTERNAL, str(failure), failure.code)
        return await self._wire.write_large(response)


def failure_in(head: AnswerHead, response: Any) -> GrpcError | None:
    """Return the failure in a head from user code; None: the answer is a success."""
    if head.status is None or head.status < ERROR_STATUSES[0]:
        return None
    status = grpc.StatusCode[grpc_status_for(head.status)]
    if not isinstance(response, Response):
        return GrpcError(status, "", head=head)
    return GrpcError(status, response.err_msg, response.err_no, head=head)


def _send_head(head: AnswerHead | None, response: Any, call: GrpcCall) -> None:
    """Send the head that user code set. Raises GrpcError if it is an error's."""
    if head is None:
        return
    failure = failure_in(head, response)
    if failure is not None:
        raise failure
    call.take_head(head)


def _is_closed(response: Any) -> bool:
    return isinstance(response, Response) and response.err_no == ClosedError.code


def _not_begun(response: Response) -> GrpcError:
    """Return the error of a call that arrived after the server closed: nothing was begun.

    In a list of servers the client should ask another one at once, which an answer would prevent;
    `RETRY_AFTER` beside UNAVAILABLE says so.
    """
    unavailable = grpc.StatusCode.UNAVAILABLE
    return GrpcError(unavailable, response.err_msg, ClosedError.code, retry_after_s=0)


def _timeout_of(call: GrpcCall) -> float | None:
    """Return the seconds for the server's answer; None: the client set no limit."""
    left, limit = call.time_left(), call.header(TIMEOUT)
    if not limit:
        return left
    try:
        seconds = seconds_of(limit, TIMEOUT)
    except PackageError as error:
        raise grpc_error(error) from error
    return seconds if left is None else min(seconds, left)
