"""A row of a trip stands for the spans of all its steps."""

from __future__ import annotations

from types import SimpleNamespace

from pipeline.engine.journal.journal import MAX_ROWS, Journal, OpSpan, op_spans
from pipeline.engine.trips.rows import TripRows


class Kept:
    """A sink that keeps the spans."""

    def __init__(self):
        self.spans = []

    def notify(self, spans, requests):
        self.spans += op_spans(spans)


def rows_of(sink, last_read=(-1, 0, 0, 2)):
    recorders = [SimpleNamespace(index=index + 3, batches=10 * index) for index in range(4)]
    return TripRows(Journal([sink]), recorders, last_read), recorders


MARKS = [0, 11, 12, 1, 13, 14, 2, 15, 16, 3, 17, 18]


def test_each_step_is_a_span_that_was_ready_when_the_last_that_it_reads_had_ended():
    sink = Kept()
    rows, recorders = rows_of(sink)
    for data_id in (7, 8):
        rows.journal.add_trip(rows, rows.pack(data_id, 2, 5, 10, 20, *MARKS))
    assert sink.spans == []
    rows.journal.flush()
    assert sorted(span for span in sink.spans if span.data_id == 8) == [
        OpSpan(3, 0, 2, 8, 2, 0, 5, 10, 11, 11, 12, 20),
        OpSpan(4, 1, 12, 8, 2, 0, 12, 12, 13, 13, 14, 20),
        OpSpan(5, 2, 22, 8, 2, 0, 12, 14, 15, 15, 16, 20),
        OpSpan(6, 3, 32, 8, 2, 0, 16, 16, 17, 17, 18, 20),
    ]
    assert [recorder.batches for recorder in recorders] == [2, 12, 22, 32]
    assert len({(span.op, span.batch) for span in sink.spans}) == len(sink.spans) == 8
    rows.journal.flush()
    assert len(sink.spans) == 8


def test_they_are_flushed_when_they_stand_for_many_spans():
    sink = Kept()
    rows, _ = rows_of(sink)
    for data_id in range(MAX_ROWS // 4):
        assert sink.spans == []
        rows.journal.add_trip(rows, rows.pack(data_id, 1, 5, 10, 20, *MARKS))
    assert len(sink.spans) == MAX_ROWS
