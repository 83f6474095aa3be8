"""Spans of streams, for the journal."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.engine.journal.journal import (
    FROM_OUTSIDE,
    MAX_ROWS,
    Journal,
    Outcome,
    PartKind,
    pack_part,
)
from pipeline.engine.journal.spans import SpanRecorder
from pipeline.engine.op.channel import Item
from pipeline.engine.request import RequestState
from pipeline.engine.schedulers.base import Batch
from pipeline.engine.streams.flow import Bundle, Flow
from pipeline.engine.streams.run import StreamRun


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


def note_cut(spans: SpanRecorder, run: StreamRun, item: Item, flow: Flow) -> None:
    """Take down a stream that ends with its request, or has to start anew with it."""
    request, outcome = item.request, Outcome(item.request.outcome)
    if request.generation != RequestState.OVER or outcome not in (Outcome.OK, *FROM_OUTSIDE):
        outcome = Outcome.OTHER
    if outcome is Outcome.CANCELED:
        note_end(spans, run, item, flow, PartKind.CANCELED)
    note_stream(spans, run, item, outcome)


def note_made(spans: SpanRecorder, run: Batch, item: Item, flow: Flow, bundle: Bundle) -> None:
    """Take down the last parts that an Op has made."""
    journal = spans.journal
    if journal is None:
        return
    target, data_id, kind = spans.index, item.data_id, PartKind.GIVEN
    times_ns = bundle.times_ns or [spans.clock_ns()] * len(bundle.parts)
    numbers = range(flow.sent - len(times_ns), flow.sent)
    begins = [flow.sent_ns or run.start_ns or times_ns[0], *times_ns]
    note_parts(
        journal,
        [
            pack_part(data_id, target, number, kind, began_ns, made_ns, made_ns)
            for number, began_ns, made_ns in zip(numbers, begins, times_ns, strict=False)
        ],
    )
    flow.sent_ns = times_ns[-1]


def note_end(spans: SpanRecorder, run: Batch, item: Item, flow: Flow, kind: PartKind) -> None:
    """Take down the end of a stream that an Op has made."""
    if spans.journal is not None:
        now = spans.clock_ns()
        began_ns = flow.sent_ns or run.start_ns or now
        row = pack_part(item.data_id, spans.index, flow.sent, kind, began_ns, now, now)
        note_parts(spans.journal, [row])
        flow.sent_ns = now


def note_parts(journal: Journal, rows: Sequence[bytes]) -> None:
    """Take down parts of streams, see `journal.PART`."""
    journal.parts += rows
    if len(journal.parts) >= MAX_ROWS:
        journal.flush_parts()
