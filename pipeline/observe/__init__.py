"""Readers of a server's events: the built-in ones, and the interface for plug-ins, see `Sink`."""

from pipeline.engine.journal.journal import (
    NO_WORKER,
    PIPELINE,
    OpSpan,
    Outcome,
    RequestRecord,
    Rows,
    Sink,
    op_spans,
    request_records,
    wall_offset_ns,
)
from pipeline.observe.background import Background
from pipeline.observe.sink import SinkContext, SinkFactory

__all__ = [
    "NO_WORKER",
    "PIPELINE",
    "Background",
    "OpSpan",
    "Outcome",
    "RequestRecord",
    "Rows",
    "Sink",
    "SinkContext",
    "SinkFactory",
    "op_spans",
    "request_records",
    "wall_offset_ns",
]
