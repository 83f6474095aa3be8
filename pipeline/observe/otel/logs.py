"""OtelLogSink: sends log records with their traces to OpenTelemetry's collectors."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import Logger, LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import TraceFlags

from pipeline.observe.logs.lines import running_of, traceback_of
from pipeline.observe.logs.sinks import LogSink
from pipeline.observe.otel.environment import CLOSE_S, exporters_of, impatience, resource_of
from pipeline.tracing.context import is_sampled

_LOGGER = logging.getLogger(__name__)
_SEVERITIES = (
    (logging.CRITICAL, SeverityNumber.FATAL),
    (logging.ERROR, SeverityNumber.ERROR),
    (logging.WARNING, SeverityNumber.WARN),
    (logging.INFO, SeverityNumber.INFO),
    (logging.DEBUG, SeverityNumber.DEBUG),
)


class OtelLogSink(LogSink):
    """A LogSink that passes records to exporters in batches, on a thread of the SDK.

    `close_s` limits the wait for a collector at the end.
    """

    def __init__(
        self,
        exporters: Sequence[LogRecordExporter],
        resource: Resource,
        close_s: float = CLOSE_S,
    ) -> None:
        self._exporters = exporters
        self._close_s = close_s
        self._provider = LoggerProvider(resource=resource, shutdown_on_exit=False)
        for exporter in exporters:
            self._provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
        self._loggers: dict[str, Logger] = {}

    def write(self, record: logging.LogRecord) -> None:
        """See `LogSink`. If too many records wait, the SDK drops the oldest."""
        try:
            self._logger(record.name).emit(as_otel(record))
        except Exception:  # raised by the SDK; the `pipeline` log would come back here
            logging.getLogger("opentelemetry").exception("a log record could not be exported")

    def close(self) -> None:
        """Export the waiting records; records that a collector does not accept in time are lost."""
        with impatience(self._exporters, self._close_s):
            self._provider.shutdown()

    def _logger(self, name: str) -> Any:
        logger = self._loggers.get(name)
        if logger is None:
            self._loggers[name] = logger = self._provider.get_logger(name)  # type: ignore[assignment]
        return logger


def as_otel(record: logging.LogRecord) -> LogRecord:
    """Return a record in OpenTelemetry's form, with the names of its conventions."""
    attributes: dict[str, Any] = {
        "code.file.path": record.pathname,
        "code.line.number": record.lineno,
        "code.function.name": record.funcName or "",
        "thread.name": record.threadName or "",
        "process.pid": record.process or 0,
    }
    if trace := traceback_of(record):
        attributes["exception.stacktrace"] = trace
    if record.exc_info and record.exc_info[1] is not None:
        attributes["exception.type"] = type(record.exc_info[1]).__name__
        attributes["exception.message"] = str(record.exc_info[1])
    trace_id = span_id = flags = 0
    about = running_of(record)
    if about is not None:
        attributes |= {f"pipeline.{name}": value for name, value in about.fields().items()}
        ids = about.span()
        if all(ids):
            trace_id, span_id = (int(part, 16) for part in ids)
            flags = int(is_sampled(about.traceparent))
    return LogRecord(
        timestamp=int(record.created * 1e9),
        observed_timestamp=time.time_ns(),
        trace_id=trace_id,
        span_id=span_id,
        trace_flags=TraceFlags(flags),
        severity_text=record.levelname,
        severity_number=severity_of(record.levelno),
        body=record.getMessage(),
        attributes=attributes,
    )


def severity_of(level: int) -> SeverityNumber:
    """Return OpenTelemetry's number of the nearest named level that is not above `level`."""
    return next((number for least, number in _SEVERITIES if level >= least), SeverityNumber.TRACE)


def connect_logs(pipeline_name: str) -> OtelLogSink | None:
    """Return the environment's sink; None if it disables the export."""
    exporters = exporters_of("logs")
    return OtelLogSink(exporters, resource_of(pipeline_name)) if exporters else None
