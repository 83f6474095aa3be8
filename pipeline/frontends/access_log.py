"""AccessLog: a line for requests, who asked for what, and what came of it; the gateway's alike.

No query, body or credential is in it.
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

_MAX_PATH = 1024  # characters of it that are written


@dataclass(slots=True)
class Entry:
    """A request that is over. Texts that are "" are not known.

    Attributes:
        address: of who asked, with a port.
        action: "POST /path HTTP/1.1", or gRPC's method.
        status: that of HTTP as a number, that of gRPC as its name.
        sent_bytes: of the answer's body.
        took_s: from the request's head to the end of the answer.
        traceparent: what the caller says of its trace.
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


# In their order. Those of the gateway are the same (accesslog.go), which a test holds.
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
    """The log of every n-th request, as `log.request_sample` says, in the server's log."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._seen = 0

    def write(self, entry: Entry) -> None:
        """Write a request that is over, if it is its turn."""
        self._seen += 1
        if self._seen % self._every:
            return
        fields = {field.name: field.value(entry) for field in FIELDS}
        text = " ".join(_text(field.form, fields[field.name]) for field in FIELDS)
        _LOGGER.info("%s", text, extra={MORE_FIELDS: {"message": "request", **fields}})


def access_log(every: int) -> AccessLog | None:
    """Return a log of every n-th request; None for one of no request."""
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
