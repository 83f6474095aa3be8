"""AccessLog: a line for each finished request, in the same form as the gateway's.

It has no query, body or credential.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.observe.logs.lines import FIELDS as MORE_FIELDS
from pipeline.tracing.context import parse_traceparent

_LOGGER = logging.getLogger(__name__)

_MAX_PATH = 1024  # characters that are written


@dataclass(slots=True)
class Entry:
    """A finished request. A text that is "" is not known.

    Attributes:
        address: of the client, with a port.
        action: "POST /path HTTP/1.1", or gRPC's method.
        status: HTTP's as a number, gRPC's as its name.
        sent_bytes: of the answer's body.
        took_s: from the request's head to the end of the answer.
        traceparent: the client's trace.
    """

    address: str = ""
    action: str = ""
    status: str = ""
    sent_bytes: int = 0
    took_s: float = 0.0
    traceparent: str = ""


class Field(NamedTuple):
    """A field of a line: its name in JSON, its form in text, and its value, "" if not known."""

    name: str
    form: str
    value: Callable[[Entry], Any]


# In order. A test compares them with the gateway's (accesslog.go).
FIELDS = (
    Field("address", "%s", lambda entry: entry.address),
    Field("action", "%q", lambda entry: entry.action),
    Field("status", "%s", lambda entry: entry.status),
    Field("bytes", "%dB", lambda entry: entry.sent_bytes),
    Field("ms", "%.2fms", lambda entry: round(entry.took_s * 1e3, 2)),
    Field("backend", "%s", lambda entry: ""),
    Field("caller", "%s", lambda entry: ""),
    Field("trace_id", "%s", lambda entry: _trace_id(entry.traceparent)),
)


class AccessLog:
    """A log of every n-th request (`log.request_sample`), in the server's log."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._seen = 0

    def write(self, entry: Entry) -> None:
        """Write every n-th finished request."""
        self._seen += 1
        if self._seen % self._every:
            return
        fields = {field.name: field.value(entry) for field in FIELDS}
        text = " ".join(_text(field.form, fields[field.name]) for field in FIELDS)
        _LOGGER.info("%s", text, extra={MORE_FIELDS: {"message": "request", **fields}})


def access_log(every: int) -> AccessLog | None:
    """Return a log of every n-th request; None if `log.request_sample` is 0."""
    return AccessLog(every) if every else None


def path_of(target: str) -> str:
    """Return the path without its query, which may hold secrets."""
    path = target.partition("?")[0]
    return path if len(path) <= _MAX_PATH else path[:_MAX_PATH] + "..."


def _text(form: str, value: Any) -> str:
    if value == "":
        return "-"
    if form == "%q":
        return json.dumps(value, ensure_ascii=False)
    text: str = form % value
    return text


def _trace_id(traceparent: str) -> str:
    parsed = parse_traceparent(traceparent)
    return "" if parsed is None else f"{parsed.trace_id:032x}"
