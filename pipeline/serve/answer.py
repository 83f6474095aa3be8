"""The general model service, whichever protocol a call of it comes by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pipeline.engine.sink import Begin, ask
from pipeline.errors import PipelineError, error_from_wire
from pipeline.frontends.grpc.server import GrpcCall, GrpcService, grpc_error
from pipeline.proto.brpc import frames as baidu_std
from pipeline.serve.ops import ModelCall, log_id_of

METHODS = ("inference", "debug")

Answer = Callable[[ModelCall, float | None], Awaitable[bytes]]
"""(call, seconds that its caller gives) -> bytes of the answer. Raises PipelineError."""


def answers_of(begin: Begin) -> Answer:
    """Return what has the graph of `serve.ops` answer calls."""

    async def answer(call: ModelCall, timeout_s: float | None) -> bytes:
        response = await ask(begin, call, timeout_s)
        if isinstance(response, bytes):
            return response
        raise error_from_wire(response.err_no, response.err_msg)

    return answer


def grpc_service(answer: Answer) -> GrpcService:
    """Return the service for a GrpcFrontend."""

    async def answered(message: bytes, call: GrpcCall) -> bytes:
        try:
            asked = ModelCall(message, log_id=log_id_of(message))
            return await answer(asked, call.time_left())
        except PipelineError as error:
            raise grpc_error(error) from error

    return GrpcService(baidu_std.SERVICE, dict.fromkeys(METHODS, answered))
