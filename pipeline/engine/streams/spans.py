"""Spans of streams, for the journal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from pipeline.engine.journal.journal import (
    FROM_OUTSIDE,
    MAX_ROWS,
    Journal,
    Outcome,
    PartKind,
    pack_part,
    pack_span,
)
from pipeline.engine.journal.spans import SpanRecorder
from pipeline.engine.op.channel import Item
from pipeline.engine.request import RequestState
from pipeline.engine.streams.flow import Bundle, Flow
from pipeline.engine.streams.run import StreamRun
from pipeline.engine.streams.step import StepRun

_GIVEN = int(PartKind.GIVEN)
_OK = int(Outcome.OK)


def note_stream(spans: SpanRecorder, run: StreamRun, item: Item, outcome: int) -> None:
    """Take down the span of a request whose generator is done with it: one for all its parts."""
    if run.tells_steps or not spans.is_wanted:
        return
    request, now = item.request, spans.clock_ns()
    began, prepared = run.start_ns or now, run.preprocess_end_ns or now
    times = item.ready_ns, began, prepared, now, now, now
    spans.batches += 1
    spans.row(request, run.ran_at, spans.batches, request.rows, outcome, *times)
    request.input_ns += prepared - began
    request.infer_ns += now - prepared


def note_step(spans: SpanRecorder, worker: int, step: StepRun) -> None:
    """Take down the spans of those in a step that went well for all of them, in one call."""
    spans.batches = batch = spans.batches + 1
    index, received_ns = spans.index, spans.clock_ns()
    times = start_ns, prepared_ns, processed_ns, _ = (
        step.start_ns,
        step.preprocess_end_ns,
        step.process_end_ns,
        step.end_ns,
    )
    input_ns, infer_ns = prepared_ns - start_ns, processed_ns - prepared_ns
    output_ns = received_ns - processed_ns
    found: list[bytes] = []
    for item, count in zip(step.items, step.rows or repeat(0), strict=False):
        request = item.request
        if item.generation == request.generation:
            request.input_ns += input_ns
            request.infer_ns += infer_ns
            request.output_ns += output_ns
        who = index, worker, batch, item.data_id, count or request.rows, _OK
        found.append(span := pack_span(*who, item.ready_ns, *times, received_ns))
        if request.spans is not None:
            request.spans.append(span)
    if spans.journal is not None:
        spans.journal.spans += found
        spans.journal.flush_if_long()


def note_cut(spans: SpanRecorder, flow: Flow) -> None:
    """Take down a stream that ends with its request, or has to start anew with it."""
    item = flow.run.items[flow.place]
    request, outcome = item.request, Outcome(item.request.outcome)
    if request.generation != RequestState.OVER or outcome not in (Outcome.OK, *FROM_OUTSIDE):
        outcome = Outcome.OTHER
    if outcome is Outcome.CANCELED:
        note_end(spans, flow, item, PartKind.CANCELED)
    note_stream(spans, flow.run, item, outcome)


def note_made(spans: SpanRecorder, flow: Flow, item: Item, bundle: Bundle) -> None:
    """Take down the last parts that an Op has made."""
    journal = spans.journal
    if journal is None:
        return
    parts, target, data_id, count = journal.parts, spans.index, item.data_id, len(bundle.parts)
    times_ns = bundle.times_ns or [spans.clock_ns()] * count
    number, began_ns = flow.sent - count, flow.sent_ns or flow.run.start_ns or times_ns[0]
    for made_ns in times_ns:
        parts.append(pack_part(data_id, target, number, _GIVEN, began_ns, made_ns, made_ns))
        number, began_ns = number + 1, made_ns
    flow.sent_ns = began_ns
    if len(parts) >= MAX_ROWS:
        journal.flush_parts()


def note_end(spans: SpanRecorder, flow: Flow, item: Item, kind: PartKind) -> None:
    """Take down the end of a stream that an Op has made."""
    if spans.journal is not None:
        now = spans.clock_ns()
        began_ns = flow.sent_ns or flow.run.start_ns or now
        row = pack_part(item.data_id, spans.index, flow.sent, kind, began_ns, now, now)
        note_parts(spans.journal, [row])
        flow.sent_ns = now


def note_parts(journal: Journal, rows: Sequence[bytes]) -> None:
    """Take down parts of streams, see `journal.PART`."""
    journal.parts += rows
    if len(journal.parts) >= MAX_ROWS:
        journal.flush_parts()
