"""Answers as the ResponseOp gets them, and those that it is not asked about: errors."""

from __future__ import annotations

from typing import Any

from pipeline.data import ChannelData
from pipeline.engine.request import RequestState
from pipeline.errors import ErrorCode, PackageError, PipelineError, described
from pipeline.proto.pipeline.response import pack_error
from pipeline.proto.pipeline_service_pb2 import Response


def channel_data(request: RequestState, payload: Any, error: PipelineError | None) -> ChannelData:
    """Return the answer of a request, or the error in its place, as the ResponseOp gets it."""
    return ChannelData(
        request.data_id,
        request.log_id,
        payload,
        error,
        as_tensors=request.as_tensors,
        client_need_profile=request.is_profiled,
    )


def refusal(request: RequestState, error: PipelineError) -> Any:
    """Return the answer for an error that nobody's code is asked about; OK is an empty one."""
    is_error = error.code != ErrorCode.OK
    data = channel_data(request, None if is_error else {}, error if is_error else None)
    wants_response = request.target is None or request.target.wants_response
    if not wants_response:
        return data
    return pack_error(data) if is_error else Response()


def packing_error(data: ChannelData, error: Exception) -> Response:
    """Return what is answered where our own ResponseOp cannot pack an answer."""
    return pack_error(ChannelData(data.data_id, data.log_id, error=_package_error(error)))


def not_unpacked(error: Exception) -> PipelineError:
    """Return what is told whose request cannot be unpacked by our own RequestOp."""
    refused = _package_error(error)
    refused.is_callers = True
    return refused


def _package_error(error: Exception) -> PipelineError:
    if isinstance(error, PipelineError) and not isinstance(error, PackageError):
        return error
    return PackageError(f"rpc package error: {described(error)}")
