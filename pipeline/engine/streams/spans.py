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
from pipeline.engine.streams.flow import Flow
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
        note_made(spans, run, item, flow, PartKind.CANCELED)
    note_stream(spans, run, item, outcome)


def note_made(
    spans: SpanRecorder, run: Batch, item: Item, flow: Flow, kind: PartKind = PartKind.GIVEN
) -> None:
    """Take down a part that an Op has made, or the end of its stream."""
    if spans.journal is not None:
        now = spans.clock_ns()
        began_ns = flow.sent_ns or run.start_ns or now
        number = flow.sent - 1 if kind is PartKind.GIVEN else flow.sent
        note_part(spans.journal, item.request, spans.index, number, kind, began_ns, now, now)
        flow.sent_ns = now


def note_bundle(
    spans: SpanRecorder, run: Batch, item: Item, flow: Flow, times_ns: Sequence[int]
) -> None:
    """Take down the last parts that an Op has made, which were there at these times."""
    journal = spans.journal
    if journal is None:
        return
    target, data_id, kind = spans.index, item.data_id, PartKind.GIVEN
    numbers = range(flow.sent - len(times_ns), flow.sent)
    begins = [flow.sent_ns or run.start_ns, *times_ns]
    journal.parts += [
        pack_part(data_id, target, number, kind, began_ns, made_ns, made_ns)
        for number, began_ns, made_ns in zip(numbers, begins, times_ns, strict=False)
    ]
    flow.sent_ns = times_ns[-1]
    if len(journal.parts) >= MAX_ROWS:
        journal.flush_parts()


def note_part(
    journal: Journal,
    request: RequestState,
    target: int,
    number: int,
    kind: PartKind,
    start_ns: int,
    made_ns: int,
    end_ns: int,
) -> None:
    """Take down a part of a stream, see `journal.PART`."""
    row = pack_part(request.data_id, target, number, kind, start_ns, made_ns, end_ns)
    journal.parts.append(row)
    if len(journal.parts) >= MAX_ROWS:
        journal.flush_parts()
