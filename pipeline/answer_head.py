"""AnswerHead: the HTTP status and headers that user code sets, for an answer or for an error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

GRPC_STATUSES: Final[Mapping[int, str]] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    412: "FAILED_PRECONDITION",
    413: "RESOURCE_EXHAUSTED",
    429: "RESOURCE_EXHAUSTED",
    431: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""Names of gRPC's statuses by HTTP status; see `grpc_status_for` for all others."""

_BODILESS = (204, 205)
_MOST_HEADERS = 32
_MOST_BYTES = 4096  # of all headers: gRPC clients take 8 KiB, and other headers are sent also
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_RESERVED = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        *("content-encoding", "content-length", "content-type", "date", "host", "server", "status"),
        "user-agent",
    )
)
_RESERVED_PREFIXES = ("access-control-", "grpc-", "pipeline-", "x-pipeline-")


class AnswerHead(NamedTuple):
    """Status of an answer, None for the usual one, and headers, with names in lower case."""

    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def fields(self) -> tuple[tuple[bytes, bytes], ...]:
        """Return the headers as HTTP writes them."""
        return tuple((name.encode(), value.encode()) for name, value in self.headers)


def head_of(status: Any, headers: Any, lowest: int, highest: int) -> AnswerHead | None:
    """Return the head that user code sets for an answer; None: none.

    Args:
        status: from `lowest` to `highest`; None: the usual one.
        headers: a mapping of names to values.

    Raises:
        ValueError: the values are not allowed; the text names the allowed ones.
    """
    if status is None and not headers:
        return None
    if status is not None and (
        type(status) is not int or not lowest <= status <= highest or status in _BODILESS
    ):
        but = "; 204 and 205 have no body, and an answer has one" if status in _BODILESS else ""
        raise ValueError(f"status is {status!r}: give a number from {lowest} to {highest}{but}")
    return AnswerHead(status, _checked(headers))


def _checked(headers: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(headers, Mapping):
        raise ValueError(f"headers are {type(headers).__name__}: give a dict of text")
    pairs: list[tuple[str, str]] = []
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ValueError(f"header {name!r}: give its name and its value as text")
        small = name.lower()
        if not _NAME.fullmatch(small):
            raise ValueError(f"header {name!r}: a name has letters, digits, '-', '_' and '.'")
        if is_reserved(small):
            raise ValueError(f"header {name!r} is the server's own, or its connection's")
        if not _VALUE.fullmatch(value):
            raise ValueError(
                f"header {name!r} is {value[:100]!r}: a value has printable ASCII characters, "
                "and no space at its ends"
            )
        pairs.append((small, value))
    size = sum(len(name) + len(value) for name, value in pairs)
    if len(pairs) > _MOST_HEADERS or size > _MOST_BYTES:
        raise ValueError(
            f"{len(pairs)} headers with {size} characters: an answer has at most "
            f"{_MOST_HEADERS}, with {_MOST_BYTES} characters"
        )
    return tuple(pairs)


def is_reserved(name: str) -> bool:
    """Return whether user code may not set a header, by its name in lower case."""
    return name in _RESERVED or name.startswith(_RESERVED_PREFIXES) or name.endswith("-bin")


def grpc_status_for(status: int) -> str:
    """Return the name of gRPC's status for an error's HTTP status."""
    usual = "INVALID_ARGUMENT" if status < 500 else "INTERNAL"
    return GRPC_STATUSES.get(status, usual)


def http_status_for(name: str) -> int:
    """Return the HTTP status for the name of a gRPC status; 500 if there is none."""
    return next((status for status, known in GRPC_STATUSES.items() if known == name), 500)
