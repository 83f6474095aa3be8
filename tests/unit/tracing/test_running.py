"""Notes of what an Op works on: what logs say of it."""

from __future__ import annotations

import contextvars
import pickle
from types import SimpleNamespace

from pipeline.tracing.context import TraceContext, child_id, format_traceparent
from pipeline.tracing.running import Notes, Running, running

OWN = format_traceparent(TraceContext(0xABC, 0xDEF, True))


def test_only_known_fields_are_set():
    assert Running().fields() == {}
    assert Running("a", "process", (0,), 7).fields() == {
        "op": "a",
        "stage": "process",
        "data_id": 0,
        "log_id": 7,
    }
    assert Running(data_ids=(3, 4)).fields() == {"data_ids": [3, 4]}


def test_the_span_is_that_of_the_stage_or_of_the_request():
    trace_id = f"{0xABC:032x}"
    assert Running("a", "process", traceparent=OWN).span() == (
        trace_id,
        child_id(OWN, "a", "process"),
    )
    assert Running(traceparent=OWN).span() == (trace_id, f"{0xDEF:016x}")
    unsampled = OWN[:-1] + "0"
    assert Running("a", "process", traceparent=unsampled).span() == (trace_id, f"{0xDEF:016x}")
    assert Running("a").span() == ("", "")


def test_notes_belong_to_their_context():
    notes = Notes()
    notes.trace_of = {5: OWN}.get
    context = contextvars.Context()
    context.run(notes.begin, "a", "preprocess", 5, 7)
    assert context.run(running) == Running("a", "preprocess", (5,), 7, OWN)
    assert running() is None
    items = [SimpleNamespace(data_id=n, log_id=n + 1, trace=OWN * (n == 2)) for n in (1, 2)]
    context.run(notes.begin_call, "a", "process", items)
    assert context.run(running) == Running("a", "process", (1, 2), 2, OWN)


def test_in_another_process_notes_have_no_trace():
    notes = Notes()
    notes.trace_of = lambda data_id: OWN
    copy = pickle.loads(pickle.dumps(notes))
    assert copy.trace_of(5) == ""
