"""Answers as the ResponseOp gets them, and answers for errors, which need no ResponseOp."""

from __future__ import annotations

import logging
from typing import Any

from pipeline.data import ChannelData
from pipeline.engine.journal.journal import outcome_of
from pipeline.engine.request import RequestState
from pipeline.errors import (
    ErrorCode,
    InitError,
    PackageError,
    PipelineError,
    PredictorUnavailableError,
    coded_error,
    described,
    printable,
)
from pipeline.proto.pipeline.response import pack_error
from pipeline.proto.pipeline_service_pb2 import Response

_LOGGER = logging.getLogger(__name__)

_INTERNAL = (InitError, PredictorUnavailableError)  # and all errors with the status 500


def readable_error(request: RequestState, error: PipelineError) -> PipelineError:
    """Return the error that the client may read; an internal error may be replaced.

    The log has the replaced error, under the data id that the client reads.
    """
    is_hidden = request.engine.hides_errors and not request.sink.is_ours
    if not is_hidden or not _is_internal(error):
        return error
    if not error.was_logged:
        where = (request.data_id, request.log_id, error.op or "")
        _LOGGER.error("(data_id=%d log_id=%d) [%s] %s", *where, printable(described(error)))
    text = f"internal error: the log of the server says why, see data_id={request.data_id}"
    safe = coded_error(int(error.code), text)
    safe.http_status, safe.grpc_status = error.http_status, error.grpc_status
    return safe


def withheld(request: RequestState, error: PipelineError, answer: Any) -> Any:
    """Return an answer with this error, or with the error that the client may read."""
    safe = readable_error(request, error)
    return answer if safe is error else pack_error(ChannelData(request.data_id, error=safe))


def _is_internal(error: PipelineError) -> bool:
    """Return whether an error is about the server, and not about the request."""
    if error.was_logged:
        return True
    is_servers = error.http_status == PipelineError.http_status or isinstance(error, _INTERNAL)
    return is_servers and not error.is_callers


def channel_data(request: RequestState, payload: Any, error: PipelineError | None) -> ChannelData:
    """Return the answer of a request, or the error in its place, as the ResponseOp gets it."""
    return ChannelData(
        request.data_id,
        request.log_id,
        payload,
        None if error is None else readable_error(request, error),
        as_tensors=request.as_tensors,
        client_need_profile=request.is_profiled,
    )


def refusal(request: RequestState, error: PipelineError) -> Any:
    """Return the answer for an error without running user code; the answer for OK is empty."""
    is_error = error.code != ErrorCode.OK
    data = channel_data(request, None if is_error else {}, error if is_error else None)
    wants_response = request.target is None or request.target.wants_response
    if not wants_response:
        return data
    return pack_error(data) if is_error else Response()


def packing_error(request: RequestState, error: PipelineError) -> Response:
    """Fail a request whose ResponseOp cannot pack the answer; return the answer."""
    request.blame(error, outcome_of(error))
    return pack_error(channel_data(request, None, error))


def not_unpacked(error: Exception) -> PipelineError:
    """Return the error of a request that our own RequestOp cannot unpack."""
    refused = package_error(error)
    refused.is_callers = True
    return refused


def package_error(error: Exception) -> PipelineError:
    """Return the failure of our own RequestOp or ResponseOp, with Paddle's text."""
    if isinstance(error, PipelineError) and not isinstance(error, PackageError):
        return error
    return PackageError(f"rpc package error: {described(error)}")
