"""V2Error: an answer of the v2 protocol that is an error, and what our own errors become there."""

from __future__ import annotations

import enum

from pipeline.errors import (
    ConflictError,
    ErrorCode,
    OverloadedError,
    PipelineError,
    PredictorUnavailableError,
    ProductError,
    RequestCancelledError,
    TooLargeError,
    UnspecifiedError,
    shortened,
    utf8_text,
)


class V2Status(enum.Enum):
    """Reasons, each with (HTTP status, name of the gRPC status) by Triton's table."""

    INVALID = (400, "INVALID_ARGUMENT")
    UNKNOWN = (400, "UNKNOWN")
    ALREADY_EXISTS = (400, "ALREADY_EXISTS")
    NOT_FOUND = (404, "NOT_FOUND")
    TOO_LARGE = (413, "RESOURCE_EXHAUSTED")
    CANCELLED = (499, "CANCELLED")
    INTERNAL = (500, "INTERNAL")
    UNSUPPORTED = (501, "UNIMPLEMENTED")
    UNAVAILABLE = (503, "UNAVAILABLE")

    @property
    def http_status(self) -> int:
        return self.value[0]

    @property
    def grpc_status(self) -> str:
        return self.value[1]


class V2Error(Exception):
    """A request that is answered with an error of the v2 protocol.

    `retry_after_s`: when it may be different, for what is `UNAVAILABLE`; else None.
    """

    def __init__(self, kind: V2Status, text: str, retry_after_s: int = 1) -> None:
        super().__init__(utf8_text(shortened(text)))
        self.kind = kind
        self.retry_after_s: int | None = retry_after_s if kind is V2Status.UNAVAILABLE else None


# Triton knows no deadline that passed: to it, too late is unavailable.
_KINDS: dict[int, V2Status] = {
    ErrorCode.CLOSED_ERROR: V2Status.UNAVAILABLE,
    ErrorCode.OVERLOADED: V2Status.UNAVAILABLE,
    ErrorCode.TIMEOUT: V2Status.UNAVAILABLE,
    ErrorCode.NO_SERVICE: V2Status.NOT_FOUND,
    ErrorCode.NOT_IMPLEMENTED: V2Status.UNSUPPORTED,
    ErrorCode.INPUT_PARAMS_ERROR: V2Status.INVALID,
    ErrorCode.RPC_PACKAGE_ERROR: V2Status.INVALID,
}


def v2_error(error: PipelineError | V2Error) -> V2Error:
    """Return `error` for a caller of the v2 protocol, found by its code, if it is not yet one.

    A product's own error is about what its caller sent; its code, which has no other place here,
    stands before its text.
    """
    if isinstance(error, V2Error):
        return error
    if isinstance(error, ProductError):
        return V2Error(V2Status.INVALID, f"[{error.code}] {error}")
    if isinstance(error, PredictorUnavailableError):
        return V2Error(V2Status.UNAVAILABLE, str(error))
    if isinstance(error, RequestCancelledError):
        return V2Error(V2Status.CANCELLED, str(error))
    if isinstance(error, UnspecifiedError):
        return V2Error(V2Status.UNKNOWN, str(error))
    if isinstance(error, ConflictError):
        return V2Error(V2Status.ALREADY_EXISTS, str(error))
    if isinstance(error, TooLargeError):
        return V2Error(V2Status.TOO_LARGE, str(error))
    retry_after_s = error.retry_after_s if isinstance(error, OverloadedError) else 1
    return V2Error(_KINDS.get(error.code, V2Status.INTERNAL), str(error), retry_after_s)
