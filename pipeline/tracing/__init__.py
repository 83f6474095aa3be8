"""Traces of requests: the W3C context that they travel in, and the OpenTelemetry spans of them."""

from pipeline.tracing.context import (
    TraceContext,
    call_trace,
    child,
    format_traceparent,
    parse_traceparent,
    set_call_trace,
)

__all__ = [
    "TraceContext",
    "call_trace",
    "child",
    "format_traceparent",
    "parse_traceparent",
    "set_call_trace",
]
