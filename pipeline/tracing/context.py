"""W3C trace context: reads, writes and derives `traceparent`, and keeps that of the running call.

A span's id is derived from its request's by hashing, so that the process that makes the spans and
the process that calls another server need not communicate.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from contextvars import ContextVar
from typing import NamedTuple

HEADER = "traceparent"
"""The name of the HTTP header, and of the gRPC metadata."""

_SPAN_BEGINS, _SPAN_ENDS = 36, 52  # where the span's id stands in a `traceparent`, version 00
_NO_SPAN = "0" * 16  # no id that the format allows
_FORMAT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_SAMPLED = 1
TRACES_A_SECOND = 10
"""The rate at which requests without a `traceparent` are recorded, if no sampler is configured."""

_call_trace: ContextVar[str] = ContextVar("pipeline_call_trace", default="")


class TraceContext(NamedTuple):
    """A span of a trace. `is_sampled`: it is recorded, and its children should also be recorded."""

    trace_id: int
    span_id: int
    is_sampled: bool


def parse_traceparent(text: str) -> TraceContext | None:
    """Read what a caller sent; None if it is no `traceparent`, which is to be ignored.

    Of a version later than 00 the part that is known is read, as the W3C asks for.
    """
    match = _FORMAT.fullmatch(text.strip(" \t"))
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest):
        return None
    context = TraceContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED))
    return context if context.trace_id and context.span_id else None


def format_traceparent(context: TraceContext) -> str:
    """Return the header's value, in version 00."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.is_sampled:02x}"


def child(traceparent: str, op: str, stage: str = "", turn: int = 0) -> str:
    """Return the `traceparent` of a span below a request's own one; equal arguments give equal
    results.

    Args:
        traceparent: of the request's own span, as `format_traceparent` wrote it; "": none. One that
            is not sampled is returned unchanged, because it has no spans below it.
        op: the Op's name.
        stage: "preprocess", "process", ...; "": the Op's turn as a whole.
        turn: how often the request was at the Op before.
    """
    if not is_sampled(traceparent):
        return traceparent
    span_id = child_id(traceparent, op, stage, turn)
    return f"{traceparent[:_SPAN_BEGINS]}{span_id}{traceparent[_SPAN_ENDS:]}"


def child_id(traceparent: str, op: str, stage: str = "", turn: int = 0) -> str:
    """Return the id of the span of `child`, in hex digits."""
    what = f"{traceparent[:_SPAN_ENDS]}\0{op}\0{stage}\0{turn}"
    span_id = hashlib.blake2b(what.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return span_id if span_id != _NO_SPAN else _NO_SPAN[:-1] + "1"


def is_sampled(traceparent: str) -> bool:
    """Return whether the span is recorded; the text is one of `format_traceparent`, or ""."""
    return traceparent.endswith("1")


def first_of(traces: Iterable[str]) -> str:
    """Return the `traceparent` of a call for several requests: the first that is sampled.

    If none is, any; "" if there is none. What the call causes belongs to one trace only.
    """
    present = [traceparent for traceparent in traces if traceparent]
    return next(filter(is_sampled, present), present[0] if present else "")


def call_trace() -> str:
    """Return the `traceparent` that the running call sends to what it calls; "": none."""
    return _call_trace.get()


def set_call_trace(traceparent: str) -> None:
    """Say it for this thread, and for coroutines that it starts."""
    _call_trace.set(traceparent)


def call_metadata() -> tuple[tuple[str, str], ...] | None:
    """Return `call_trace` as gRPC metadata."""
    traceparent = _call_trace.get()
    return ((HEADER, traceparent),) if traceparent else None
