"""Spans of streams, for the journal."""

from __future__ import annotations

from pipeline.engine.channel import Item
from pipeline.engine.journal import pack_span
from pipeline.engine.span_recorder import SpanRecorder
from pipeline.engine.streams.run import StreamRun


def note_stream(spans: SpanRecorder, run: StreamRun, item: Item, outcome: int) -> None:
    """Take down the span of a request whose generator is done with it: one for all its parts."""
    if not spans.is_wanted:
        return
    request, now = item.request, spans.clock_ns()
    began, prepared = run.start_ns or now, run.preprocess_end_ns or now
    span = pack_span(
        spans.index,
        run.ran_at,
        spans.next_batch(),
        item.data_id,
        request.rows,
        outcome,
        item.ready_ns,
        began,
        prepared,
        now,
        now,
        now,
    )
    if spans.journal is not None:
        spans.journal.spans.append(span)
    if request.spans is not None:
        request.spans.append(span)
    request.input_ns += prepared - began
    request.infer_ns += now - prepared
