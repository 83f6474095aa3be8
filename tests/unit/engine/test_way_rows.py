"""A row of a request's whole way stands for the spans of all its steps, and for the request."""

from __future__ import annotations

from types import SimpleNamespace

from pipeline.engine.journal.journal import (
    MAX_ROWS,
    PIPELINE,
    Journal,
    OpSpan,
    Outcome,
    RequestRecord,
    op_spans,
    pack_request,
    pack_span,
    request_records,
)
from pipeline.engine.journal.spans import TripRows


class RecordingSink:
    """A sink that keeps the rows."""

    def __init__(self):
        self.spans, self.requests = [], []

    def notify(self, spans, requests):
        self.spans += op_spans(spans)
        self.requests += request_records(requests)


def rows_of(sink, last_read=(-1, 0, 0, 2)):
    recorders = [
        SimpleNamespace(index=index + 3, batches=10 * index) for index in range(len(last_read))
    ]
    journal = Journal([sink])
    return TripRows(journal, recorders, last_read), recorders, journal


MARKS = [0, 11, 11, 12, 1, 13, 14, 15, 2, 16, 16, 17, 3, 18, 18, 19]
SPANS = [
    OpSpan(3, 0, 2, 8, 2, 0, 5, 10, 11, 11, 12, 20),
    OpSpan(4, 1, 12, 8, 2, 0, 12, 12, 13, 14, 15, 20),
    OpSpan(5, 2, 22, 8, 2, 0, 12, 15, 16, 16, 17, 20),
    OpSpan(6, 3, 32, 8, 2, 0, 17, 17, 18, 18, 19, 20),
]
STAGES = {"input_ns": 4, "infer_ns": 1, "output_ns": 4}


def test_each_span_is_ready_at_the_end_of_the_last_step_that_it_reads():
    sink = RecordingSink()
    rows, recorders, journal = rows_of(sink)
    for data_id in (7, 8):
        request = SimpleNamespace(data_id=data_id, rows=2, input_ns=0, infer_ns=0, output_ns=0)
        rows.add_spans(request, (5, 10, 20, *MARKS))
        assert vars(request) == {"data_id": data_id, "rows": 2, **STAGES}
    assert sink.spans == []
    journal.flush()
    assert sorted(span for span in sink.spans if span.data_id == 8) == SPANS
    assert sink.requests == []
    assert [recorder.batches for recorder in recorders] == [2, 12, 22, 32]
    assert len({(span.op, span.batch) for span in sink.spans}) == len(sink.spans) == 8
    journal.flush()
    assert len(sink.spans) == 8


def test_a_restart_of_a_finished_request_does_not_change_its_times():
    sink = RecordingSink()
    rows, _, journal = rows_of(sink)
    rows.add_spans(SimpleNamespace(data_id=7, rows=2), (5, 10, 20, *MARKS), is_over=True)
    journal.flush()
    assert len(sink.spans) == 4


def test_a_combined_row_equals_separate_rows():
    sink = RecordingSink()
    rows, _, journal = rows_of(sink)
    record = RequestRecord(8, PIPELINE, 2, Outcome.OK, 0, 1, 2, 3, 22, 23, *STAGES.values())
    reported = 8, 2, 1, 2, 3, 22, 23, 5, 10, 20, *MARKS
    others = OpSpan(*range(12)), RequestRecord(*range(13))
    rows.add(*reported)
    journal.flush()
    journal.spans.append(pack_span(*others[0]))
    journal.requests.append(pack_request(*others[1]))
    rows.add(*reported)
    journal.flush()
    spans = [span._replace(batch=span.batch - 1) for span in SPANS]
    assert sink.spans == [*spans, others[0], *SPANS]
    assert sink.requests == [record, others[1], record]
    journal.flush()
    assert len(sink.requests) == 3, "nothing happened since"


def test_rows_are_flushed_when_they_represent_many_spans():
    sink = RecordingSink()
    rows, _, _ = rows_of(sink)
    for data_id in range(MAX_ROWS // 4):
        assert sink.spans == []
        rows.add(data_id, 1, *[0] * 5, 5, 10, 20, *MARKS)
    assert len(sink.spans) == MAX_ROWS
