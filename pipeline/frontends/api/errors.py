"""Errors of `/api`: the status and the JSON object of a PipelineError."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import orjson

from pipeline.errors import (
    ErrorCode,
    OverloadedError,
    PipelineError,
    ProductError,
    http_status_of,
    shortened,
    utf8_text,
)
from pipeline.frontends.http.routes import Header, HttpError, WebResponse


class Failure(NamedTuple):
    """An error as the client gets it: status, body and additional headers."""

    status: int
    body: bytes
    headers: tuple[Header, ...] = ()


def failure_of(error: PipelineError | HttpError) -> Failure:
    """Return the failure to answer with."""
    if isinstance(error, HttpError):
        return Failure(error.status, error_body(error.error), error.headers)
    return Failure(http_status_of(error), error_body(error), headers_of(error))


def headers_of(error: PipelineError) -> tuple[Header, ...]:
    """Return the headers from user code; for overload, the time to retry."""
    if error.head is not None:
        return error.head.fields
    if isinstance(error, OverloadedError):
        return ((b"retry-after", b"%d" % error.retry_after_s),)
    return ()


def reply_to(error: PipelineError | HttpError) -> WebResponse:
    """Return the answer to a request that ended in an error."""
    failure = failure_of(error)
    return WebResponse(failure.status, failure.body, headers=failure.headers)


def error_body(error: PipelineError) -> bytes:
    """Return `{"error": {...}}`: the code, its name, the text, and the Op where it happened."""
    code = int(error.code)
    body = {
        "code": code if code.bit_length() < 64 else int(ErrorCode.PRODUCT_ERROR),
        "name": error_name(error),
        "message": utf8_text(shortened(str(error))),
        "op": error.op,
    }
    return orjson.dumps({"error": body})


def error_name(error: PipelineError) -> str:
    """Return the name of an error's code."""
    code = int(error.code)
    if isinstance(error, ProductError):
        return ErrorCode.PRODUCT_ERROR.name
    if code == ErrorCode.UNKNOWN:  # the other name is Paddle Serving's
        return "UNKNOWN"
    with contextlib.suppress(ValueError):
        return ErrorCode(code).name
    return ErrorCode.PRODUCT_ERROR.name
