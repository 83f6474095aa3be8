"""V2Error: an error of the v2 protocol, and the conversion of our own errors to it."""

from __future__ import annotations

import enum

from pipeline.errors import (
    OverloadedError,
    PipelineError,
    ProductError,
    grpc_status_of,
    http_status_of,
    shortened,
    utf8_text,
)
from pipeline.proto.v2.raw import about_request

NO_LOADING = "explicit model load / unload is not allowed if polling is enabled"
NO_REPOSITORY_NAME = "'repository_name' specification is not supported"
"""Triton's texts for what a server, or the way it was started, does not take."""


class V2Status(enum.Enum):
    """Reasons, each with (HTTP status, name of the gRPC status) from Triton's table."""

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
    """An error of the v2 protocol.

    `retry_after_s`: for `UNAVAILABLE`, when to retry; otherwise None.
    """

    def __init__(self, kind: V2Status, text: str, retry_after_s: int = 1) -> None:
        super().__init__(utf8_text(shortened(text)))
        self.kind = kind
        self.retry_after_s: int | None = retry_after_s if kind is V2Status.UNAVAILABLE else None

    def about(self, request_id: str) -> str:
        """Return the text with the request's id, as Triton has it."""
        return f"{about_request(request_id)}{self}"


class UnknownTensorError(V2Error):
    """A request names an input or output that the model lacks; Triton omits the request's id."""

    def __init__(self, text: str) -> None:
        super().__init__(V2Status.INVALID, text)

    def about(self, request_id: str) -> str:
        return str(self)


def invalid(text: str) -> V2Error:
    """Return the error for an invalid request."""
    return V2Error(V2Status.INVALID, text)


def internal(text: str) -> V2Error:
    """Return the error for a fault of the server, or of its model."""
    return V2Error(V2Status.INTERNAL, text)


_BY_GRPC = {kind.grpc_status: kind for kind in V2Status}
_BY_HTTP = {kind.http_status: kind for kind in reversed(V2Status)}
_LATER = (503, 504)  # Triton has no status for a passed deadline: it is unavailable


def v2_error(error: PipelineError | V2Error) -> V2Error:
    """Return `error` as an error of the v2 protocol.

    A product's own code, which has no field here, precedes its text.
    """
    if isinstance(error, V2Error):
        return error
    is_products = isinstance(error, ProductError)
    text = f"[{error.code}] {error}" if is_products else str(error)
    retry_after_s = error.retry_after_s if isinstance(error, OverloadedError) else 1
    return V2Error(_kind_of(error), text, retry_after_s)


def _kind_of(error: PipelineError) -> V2Status:
    """Return the reason with the error's statuses; of HTTP statuses only Triton's count."""
    status = http_status_of(error)
    if status in _LATER:
        return V2Status.UNAVAILABLE
    kind = _BY_GRPC.get(grpc_status_of(error))
    if kind is not None and kind.http_status == status:
        return kind
    return _BY_HTTP.get(status, V2Status.INVALID if status < 500 else V2Status.INTERNAL)
