"""Routes: what the HTTP frontend serves besides requests to the pipeline, found by path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec

from pipeline.data import ChannelData
from pipeline.errors import NotImplementedByOpError, PipelineError
from pipeline.proto.pipeline import json as jsonpb
from pipeline.proto.pipeline.response import pack_error

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"

Header = tuple[bytes, bytes]
CLOSE: Header = (b"connection", b"close")


class WebRequest(msgspec.Struct, frozen=True):
    """One HTTP request.

    `path` is decoded, `raw_path` as it came (a `%2F` is no `/` there), `headers` has lower-case
    names; of several with one name the last counts. `read` gives the body, inflated, and
    raises HttpError for one that is too large or damaged; `timeout_s` is the caller's
    `Grpc-Timeout`.
    """

    method: str
    path: str
    raw_path: str
    query: str
    headers: Mapping[bytes, bytes]
    read: Callable[[], Awaitable[bytes]]
    timeout_s: float | None = None


class WebResponse(msgspec.Struct, frozen=True):
    """The answer to a WebRequest."""

    status: int = 200
    body: bytes = b""
    content_type: bytes = JSON
    headers: tuple[Header, ...] = ()


Endpoint = Callable[[WebRequest], Awaitable[WebResponse]]
"""Answers a request; it is cancelled if the caller goes away."""


class Routes(Protocol):
    """Some paths of the HTTP port; `POST /<name>/<method>` is never one of them."""

    def endpoint(self, request: WebRequest) -> Endpoint | None:
        """Return the endpoint that answers it; None for paths of others."""


class HttpError(Exception):
    """A request that is answered with an HTTP status of its own."""

    def __init__(self, status: int, error: PipelineError, *headers: Header) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error
        self.headers = headers


def not_allowed(method: str, allowed: bytes) -> HttpError:
    """Return the error for a method that a path does not have; `allowed`: b"GET, HEAD"."""
    error = NotImplementedByOpError(f"method {method} is not allowed here: use {allowed.decode()}")
    return HttpError(405, error, (b"allow", allowed))


def error_body(error: PipelineError) -> bytes:
    """Return the body of an answer that is an error: a Response, like any other."""
    return jsonpb.response_to_json(pack_error(ChannelData(-1, error=error)))
