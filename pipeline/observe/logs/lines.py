"""Log lines: records as text or as JSON; no text can imitate a record."""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from typing import Any

from pipeline.errors import UNPRINTABLE, printable
from pipeline.tracing.running import Running, running

_FORMAT = "%(levelname)s %(asctime)s [%(filename)s:%(lineno)d] %(message)s"
RUNNING = "pipeline_running"
"""The attribute of a record that says what it is about, a `Running`; it may be given as `extra`."""

FIELDS = "pipeline_fields"
"""The attribute of a record with more fields of its JSON object, and its message there."""

_INDENT = "\n  "
_MAX_TRACEBACK = 65536  # characters: an exception's own text may be of any length


class _Formatter(logging.Formatter):
    """Shortens exceptions to a useful length."""

    def formatException(self, ei: Any) -> str:
        text = super().formatException(ei)
        return text if len(text) <= _MAX_TRACEBACK else text[:_MAX_TRACEBACK] + "..."


class LineFormatter(_Formatter):
    """A record as a line. Further lines, for example of a traceback, are indented; a record never
    is.

    Control characters are escaped. A record of another process has its pid before the message.
    """

    def __init__(self, form: str = _FORMAT) -> None:
        super().__init__(form)

    def format(self, record: logging.LogRecord) -> str:
        return _INDENT.join(map(printable, super().format(record).split("\n")))

    def formatMessage(self, record: logging.LogRecord) -> str:
        if record.process not in (None, os.getpid()):
            record.message = f"[pid {record.process}] {record.message}"
        return super().formatMessage(record)

    def line(self, record: logging.LogRecord, message: str) -> str:
        """Return the record as one line that says `message`, without a traceback."""
        record.message, record.asctime = message, self.formatTime(record)
        return printable(self.formatMessage(record))


class JsonFormatter(logging.Formatter):
    """A record as a JSON object in one line, for log collectors."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "place": f"{record.filename}:{record.lineno}",
            "pid": record.process,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        extra: dict[str, Any] = getattr(record, FIELDS, {})
        fields |= {name: extra[name] for name in extra if name == "message" or name not in fields}
        about = running_of(record)
        if about is not None:
            fields |= about.fields()
            trace_id, span_id = about.span()
            if trace_id:
                fields |= {"trace_id": trace_id, "span_id": span_id}
        if trace := traceback_of(record):
            fields["traceback"] = trace
        text = json.dumps(fields, ensure_ascii=False)
        return UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def running_of(record: logging.LogRecord) -> Running | None:
    """Return the subject of a record: its own, otherwise what its thread works on."""
    if RUNNING in vars(record):
        about: Running | None = getattr(record, RUNNING)
        return about
    return running()


_PLAIN = _Formatter()


def traceback_of(record: logging.LogRecord) -> str:
    """Return the traceback and stack of a record; "": it has neither."""
    return "\n".join(text for text in (exception_text(record), record.stack_info) if text)


def exception_text(record: logging.LogRecord) -> str:
    if record.exc_text:
        return record.exc_text
    return _PLAIN.formatException(record.exc_info) if record.exc_info else ""
