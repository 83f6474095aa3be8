"""Errors in OpenAI's form: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from pipeline.errors import (
    ErrorCode,
    OverloadedError,
    PackageError,
    PipelineError,
    ProductError,
    http_status_of,
    shortened,
    utf8_text,
)
from pipeline.frontends.api.errors import error_name, headers_of
from pipeline.frontends.http.routes import Header, HttpError, WebResponse
from pipeline.proto.http import retry_after_s

_LONGEST_RETRY_S = 60  # beyond 120 s openai-python ignores it; openai npm waits for any time
_PATH = re.compile(r"([A-Za-z_][A-Za-z0-9_.\[\]]*): (?:expected|found) ")


class ArgumentError(PackageError):
    """An argument of a request is invalid or not supported; `param` is its path.

    `status` is the HTTP status and `reason` OpenAI's code.
    """

    def __init__(
        self, text: str, param: str | None, reason: str = "invalid_value", status: int = 400
    ) -> None:
        super().__init__(text)
        self.param = param
        self.reason = reason
        self.http_status = status

    def renamed(self, names: Mapping[str, str]) -> ArgumentError:
        """Return this error for an API with other names for the parts of the path."""
        param = self.param or ""
        for name, new_name in names.items():
            param = param.replace(name, new_name)
        text = str(self).replace(self.param or "", param) if self.param else str(self)
        return ArgumentError(text, param or None, self.reason, self.http_status)


def wrong_type(where: str, expected: str, value: Any) -> ArgumentError:
    """Return the error for an argument of a wrong type."""
    kinds = {str: "text", bool: "true or false", list: "a list", dict: "an object"}
    actual = "null" if value is None else kinds.get(type(value), "a number")
    return ArgumentError(f"{where} must be {expected}, not {actual}", where, "invalid_type")


def text_at(where: str, value: Any) -> str:
    """Return the text at a path. Raises ArgumentError for another type."""
    if not isinstance(value, str):
        raise wrong_type(where, "text", value)
    return value


def reply_to(error: PipelineError | HttpError) -> WebResponse:
    """Return the answer to a request that ended in an error."""
    if isinstance(error, HttpError):
        body, headers = error_body(error.error, error.status), _bounded(error.headers)
        return WebResponse(error.status, body, headers=headers)
    headers = _bounded(headers_of(error))
    return WebResponse(status_of(error), error_body(error), headers=headers)


def _bounded(headers: Iterable[Header]) -> tuple[Header, ...]:
    """Return headers with a Retry-After that OpenAI's clients obey: whole seconds, a few."""
    bounded = []
    for name, value in headers:
        if name == b"retry-after":
            if (after_s := retry_after_s(value.decode("latin-1"))) is None:
                continue
            value = b"%d" % min(max(math.ceil(after_s), 1), _LONGEST_RETRY_S)
        bounded.append((name, value))
    return tuple(bounded)


def status_of(error: PipelineError) -> int:
    """Return the status of an error: 429 for overload, as OpenAI's clients expect."""
    if isinstance(error, OverloadedError) and (error.head is None or error.head.status is None):
        return 429
    return http_status_of(error)


def error_body(error: PipelineError, status: int | None = None) -> bytes:
    """Return the JSON of an error; `status` replaces the error's own."""
    return orjson.dumps({"error": error_of(error, status)})


def error_of(error: PipelineError, status: int | None = None) -> dict[str, str | None]:
    """Return the fields of an error; `status` as in `error_body`."""
    argument = error if isinstance(error, ArgumentError) else None
    return {
        "message": utf8_text(shortened(str(error))),
        "type": _type_of(status or status_of(error)),
        "param": argument.param if argument else _path_in(error),
        "code": argument.reason if argument else _code_of(error),
    }


def _type_of(status: int) -> str:
    if status >= 500:
        return "server_error"
    return "rate_limit_error" if status == 429 else "invalid_request_error"


def _path_in(error: PipelineError) -> str | None:
    """Return the path at the beginning of a schema's error."""
    match = _PATH.match(str(error)) if isinstance(error, PackageError) else None
    return match and match[1]


def _code_of(error: PipelineError) -> str:
    """Return the code of a ProductError as text, otherwise the name of the error."""
    if isinstance(error, ProductError) and int(error.code) != ErrorCode.PRODUCT_ERROR:
        return f"{int(error.code)}"
    return error_name(error)
