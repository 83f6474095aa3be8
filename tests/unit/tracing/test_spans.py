"""The spans that turns and requests become, taken down by a list."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any

import numpy as np
import pytest
from doubles import Engine, chain, run_virtual

from pipeline import Op
from pipeline.engine.journal.journal import (
    NO_WORKER,
    PIPELINE,
    REQUEST,
    SPAN,
    Journal,
    OpSpan,
    Outcome,
    PartKind,
    RequestRecord,
    pack_part,
    pack_request,
    pack_span,
)
from pipeline.engine.state import EngineState
from pipeline.errors import ErrorCode, ProductError, UserCodeError
from pipeline.observe.snapshot import Exemplar, ModelCounters, Snapshot
from pipeline.tracing.context import (
    TraceContext,
    call_trace,
    child,
    format_traceparent,
    parse_traceparent,
)
from pipeline.tracing.sink import Telemetry
from pipeline.tracing.spans import SpanRecord

WALL_NS = 10**18
CALLER = TraceContext(0xABC, 0xDEF, True)
NAMES = ["bow", "cnn", "combine"]


class Recording:
    """A `Recorder` that keeps spans, and records every request but those told not to be."""

    def __init__(self) -> None:
        self.spans: list[SpanRecord] = []
        self.is_closed = False
        self._last = 0

    def start(self, parent: TraceContext | None) -> TraceContext | None:
        if parent is not None and not parent.is_sampled:
            return None
        self._last += 1
        trace_id = 1000 + self._last if parent is None else parent.trace_id
        return TraceContext(trace_id, self._last, True)

    def end(self, span: SpanRecord) -> None:
        self.spans.append(span)

    def close(self) -> None:
        self.is_closed = True

    def named(self, name: str) -> list[SpanRecord]:
        return [span for span in self.spans if span.name == name]


class AtOnce(Executor):
    """Runs its calls at once, or when `open` is called."""

    def __init__(self) -> None:
        self.is_held = False
        self._held: list[Callable[[], Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        self._held.append(partial(fn, *args, **kwargs))
        if not self.is_held:
            self.open()

    def open(self) -> None:
        self.is_held = False
        held, self._held = self._held, []
        for work in held:
            work()


class Bench:
    """A `Telemetry` behind a journal, and what it recorded."""

    def __init__(self) -> None:
        self.recorded = Recording()
        self.thread = AtOnce()
        self.telemetry = Telemetry("imdb", NAMES, self.recorded, self.thread, lambda: WALL_NS)
        self.journal = Journal([self.telemetry])

    def begin(self, data_id: int, parent: TraceContext | None = None) -> str:
        return self.telemetry.begin(data_id, format_traceparent(parent) if parent else "")

    def turn(self, data_id: int, op: int = 0, batch: int = 1, **fields: int) -> None:
        row = OpSpan(op, 0, batch, data_id, 1, Outcome.OK, 10, 20, 30, 40, 50, 60)
        self.journal.spans.append(pack_span(*row._replace(**fields)))

    def request(self, data_id: int, **fields: int) -> None:
        row = RequestRecord(data_id, PIPELINE, 1, Outcome.OK, 0, 1, 2, 3, 70, 80, 0, 0, 0)
        self.journal.requests.append(pack_request(*row._replace(**fields)))

    def spans(self) -> list[SpanRecord]:
        self.journal.flush()
        spans, self.recorded.spans = self.recorded.spans, []
        return spans


@pytest.fixture
def bench() -> Bench:
    return Bench()


def by_name(spans: list[SpanRecord]) -> dict[str, SpanRecord]:
    assert len({span.name for span in spans}) == len(spans)
    return {span.name: span for span in spans}


def times(span: SpanRecord) -> tuple[int, int]:
    return span.start_ns - WALL_NS, span.end_ns - WALL_NS


def test_traced_requests_that_were_answered_are_exemplars_one_per_power_of_two(bench: Bench):
    nobody = format_traceparent(CALLER._replace(is_sampled=False))
    for data_id in range(1, 7):
        bench.begin(data_id, CALLER if data_id == 1 else None)
    bench.telemetry.begin(7, nobody)
    bench.request(1, end_ns=5_001)
    bench.request(2, end_ns=9_001)
    bench.request(3, end_ns=9_101)
    bench.request(4, end_ns=99_001, outcome=Outcome.BACKEND)
    bench.request(5, end_ns=99_001, target=0)
    bench.request(7, end_ns=99_001)
    bench.journal.flush()
    snapshot = Snapshot(0, EngineState(True, 0, 0, 0, 0), [ModelCounters("imdb")])
    bench.telemetry.fill(snapshot)
    at_ms = WALL_NS // 10**6
    assert snapshot.models[0].exemplars == [
        Exemplar(f"{CALLER.trace_id:032x}", 5_000, at_ms),
        Exemplar(f"{1003:032x}", 9_100, at_ms),
    ]
    bench.telemetry.fill(Snapshot(0, EngineState(True, 0, 0, 0, 0), []))


def test_rows_are_read_by_the_names_that_they_have_in_the_journal():
    assert OpSpan._fields == SPAN.names
    assert RequestRecord._fields == REQUEST.names


def test_a_request_is_a_span_with_children_for_ops_and_stages(bench: Bench):
    bench.begin(7)
    bench.turn(7)
    bench.turn(7, op=2, rows=3, worker=1, batch=4, result_received_ns=61)
    bench.request(7)
    spans = by_name(bench.spans())
    assert {name: times(span) for name, span in spans.items()} == {
        "bow": (10, 60),
        "bow queue": (10, 20),
        "bow preprocess": (20, 30),
        "bow process": (30, 40),
        "bow postprocess": (40, 50),
        "combine": (10, 61),
        "combine queue": (10, 20),
        "combine preprocess": (20, 30),
        "combine process": (30, 40),
        "combine postprocess": (40, 50),
        "imdb": (1, 80),
    }
    entry = spans["imdb"]
    assert entry.is_entry
    assert entry.parent is None
    assert spans["bow"].parent == spans["combine"].parent == entry.context
    assert spans["bow process"].parent == spans["bow"].context
    assert len({span.context for span in spans.values()}) == 11
    assert {span.context.trace_id for span in spans.values()} == {1001}
    assert not any(span.error or span.links for span in spans.values())
    assert spans["combine"].attributes == {
        "pipeline.op": "combine",
        "pipeline.rows": 3,
        "pipeline.worker": 1,
        "pipeline.batch": 4,
        "pipeline.batch_requests": 1,
    }
    assert [(text, at - WALL_NS) for text, at in entry.events] == [
        ("let into the graph", 2),
        ("unpacked", 3),
        ("through the graph", 70),
    ]


def test_spans_of_ops_in_one_trip_name_each_other(bench: Bench):
    for data_id in (7, 8):
        bench.begin(data_id)
    for op in (2, 0):  # came back at the same moment
        bench.turn(7, op=op, result_received_ns=61)
    bench.turn(7, op=1, result_received_ns=62)
    bench.turn(7, op=1, worker=NO_WORKER, batch=-1, result_received_ns=61)
    bench.turn(8, op=1, result_received_ns=61)
    results = [
        (span.context.trace_id, span.name, span.attributes.get("pipeline.in_one_go"))
        for span in bench.spans()
        if span.name in NAMES
    ]
    together = "combine, bow"
    assert sorted(results, key=str) == [
        (1001, "bow", together),
        (1001, "cnn", None),
        (1001, "cnn", None),
        (1001, "combine", together),
        (1002, "cnn", None),
    ]


def test_the_span_of_a_step_has_its_sequence_and_slot(bench: Bench):
    for data_id in (7, 8):
        bench.begin(data_id)
        bench.turn(data_id, op=0)
        bench.turn(data_id, op=1)
        bench.request(data_id)
    bench.telemetry.step(7, 1, 2**64 - 1, 3)
    bench.telemetry.step(9, 1, "of one that is not recorded", 0)
    reported = [span.attributes for span in bench.spans() if span.name in NAMES]
    of_steps = [item for item in reported if "pipeline.sequence_id" in item]
    assert [
        (step["pipeline.op"], step["pipeline.sequence_id"], step["pipeline.sequence_slot"])
        for step in of_steps
    ] == [(NAMES[1], "18446744073709551615", 3)]


def test_the_trace_that_a_worker_derives_is_the_span_of_its_stage(bench: Bench):
    reported = bench.begin(7)
    bench.turn(7, op=1)
    spans = by_name(bench.spans())
    assert spans["cnn process"].context == parse_traceparent(child(reported, "cnn", "process"))


def test_a_request_of_a_trace_stays_in_it(bench: Bench):
    traceparent = parse_traceparent(bench.begin(7, CALLER))
    assert traceparent is not None
    assert traceparent.trace_id == CALLER.trace_id
    assert traceparent.span_id != CALLER.span_id
    bench.request(7)
    (entry,) = bench.spans()
    assert (entry.context, entry.parent) == (traceparent, CALLER)


def test_a_request_that_is_not_recorded_passes_on_that_it_is_not(bench: Bench):
    unsampled = CALLER._replace(is_sampled=False)
    assert bench.begin(7, unsampled) == format_traceparent(unsampled)
    bench.turn(7)
    bench.request(7)
    assert bench.spans() == []


def test_an_invalid_traceparent_starts_a_new_trace(bench: Bench):
    assert parse_traceparent(bench.telemetry.begin(7, "00-nonsense")) == TraceContext(1001, 1, True)


def test_turns_of_requests_that_are_not_recorded_are_passed_over(bench: Bench):
    bench.begin(2)
    for data_id in (1, 2, 3):
        bench.turn(data_id)
        bench.request(data_id)
    spans = bench.spans()
    assert [span.name for span in spans if span.is_entry] == ["imdb"]
    assert len(spans) == 6
    assert by_name(spans)["bow"].attributes["pipeline.batch_requests"] == 3


def test_spans_of_one_batch_are_linked_with_the_first(bench: Bench):
    for data_id in (1, 2, 3, 5):
        bench.begin(data_id)
    for data_id in (0, 1, 2, 3):
        bench.turn(data_id, batch=8)
    bench.turn(5, batch=9)
    process = [span for span in bench.spans() if span.name == "bow process"]
    first, second, third, alone = process
    assert first.links == [second.context, third.context]
    assert second.links == third.links == [first.context]
    assert alone.links == []


def test_a_batch_with_more_requests_than_a_span_may_have_links(bench: Bench):
    for data_id in range(200):
        bench.begin(data_id)
        bench.turn(data_id)
    bench.journal.flush()
    first, *others = bench.recorded.named("bow process")
    assert len(first.links) == 127
    assert all(span.links == [first.context] for span in others)


def test_batches_of_different_ops_and_workers_are_distinguished(bench: Bench):
    for data_id, op, worker in ((1, 0, 0), (2, 1, 0), (3, 1, 1)):
        bench.begin(data_id)
        bench.turn(data_id, op=op, worker=worker, batch=1)
    sizes = [
        span.attributes["pipeline.batch_requests"] for span in bench.spans() if span.name in NAMES
    ]
    assert sizes == [1, 1, 1]


def test_a_failure_is_the_status_of_its_turn_and_of_the_request(bench: Bench):
    bench.begin(7)
    bench.turn(7, outcome=Outcome.BACKEND)
    bench.telemetry.failed(7, 0, UserCodeError("no such\n word"))
    bench.telemetry.failed(8, 0, UserCodeError("not recorded"))
    bench.request(7, outcome=Outcome.BACKEND, code=ErrorCode.UNKNOWN, completed_ns=80)
    spans = by_name(bench.spans())
    assert spans["bow"].error == "BACKEND"
    assert spans["imdb"].error == "no such word"
    assert spans["imdb"].attributes["error.type"] == "BACKEND"
    assert spans["imdb"].attributes["pipeline.err_no"] == ErrorCode.UNKNOWN
    assert [text for text, _ in spans["imdb"].events] == ["let into the graph", "unpacked"]


def test_a_client_error_leaves_the_status_unset(bench: Bench):
    bench.begin(7)
    bench.turn(7, outcome=Outcome.PRODUCT)
    bench.telemetry.failed(7, 0, ProductError(51, "no face"))
    bench.request(7, outcome=Outcome.PRODUCT, code=51, completed_ns=80)
    spans = by_name(bench.spans())
    assert (spans["bow"].error, spans["imdb"].error) == ("", "")
    assert spans["imdb"].attributes["error.type"] == "PRODUCT"
    assert spans["imdb"].attributes["pipeline.err_no"] == 51


def test_a_turn_that_never_ran_has_no_stages(bench: Bench):
    bench.begin(7)
    ended = {"start_ns": 60, "preprocess_end_ns": 60, "process_end_ns": 60, "end_ns": 60}
    bench.turn(7, worker=NO_WORKER, batch=-1, outcome=Outcome.REJECTED, **ended)
    bench.request(7, outcome=Outcome.REJECTED, admitted_ns=80, dispatched_ns=0, completed_ns=80)
    spans = by_name(bench.spans())
    assert list(spans) == ["bow", "imdb"]
    assert times(spans["bow"]) == (10, 60)
    assert spans["bow"].attributes == {
        "pipeline.op": "bow",
        "pipeline.rows": 1,
        "error.type": "REJECTED",
    }
    assert spans["imdb"].events == []


def test_only_known_stages_of_a_lost_worker_are_shown(bench: Bench):
    bench.begin(7)
    bench.turn(7, outcome=Outcome.OTHER, preprocess_end_ns=0, process_end_ns=0, end_ns=0)
    spans = by_name(bench.spans())
    assert list(spans) == ["bow", "bow queue"]
    assert times(spans["bow"]) == (10, 60)


def test_a_second_run_of_an_op_has_separate_spans(bench: Bench):
    reported = bench.begin(7)
    bench.turn(7, worker=NO_WORKER, batch=-1)
    bench.turn(7)
    bench.turn(7, batch=2)
    spans = bench.spans()
    assert len({span.context for span in spans}) == len(spans) == 11
    first, _ = [span for span in spans if span.name == "bow process"]
    assert first.context == parse_traceparent(child(reported, "bow", "process")), (
        "the first that ran"
    )


def test_a_turn_that_outlives_its_request_is_shown(bench: Bench):
    bench.begin(7)
    bench.request(7, outcome=Outcome.BACKEND)
    (entry,) = bench.spans()
    bench.turn(7)
    assert by_name(bench.spans())["bow"].parent == entry.context


def test_requests_that_are_over_are_forgotten(bench: Bench):
    for data_id in range(1000):
        bench.begin(data_id)
        bench.request(data_id)
    bench.journal.flush()
    bench.recorded.spans.clear()
    bench.turn(0)
    bench.turn(999)
    assert {span.context.trace_id for span in bench.spans()} == {2000}


def test_requests_that_never_end_do_not_add_up():
    bench = Bench()
    reported = [bench.begin(data_id) for data_id in range(10_002)]
    assert reported.count("") == 2
    bench.request(0)
    bench.journal.flush()
    assert bench.begin(20_000)


def test_with_too_many_waiting_spans_requests_are_not_recorded(bench: Bench):
    bench.thread.is_held = True
    for data_id in range(16):
        assert bench.begin(data_id)
        bench.turn(data_id)
        assert bench.spans() == []
    assert bench.begin(16, CALLER) == format_traceparent(CALLER._replace(is_sampled=False))
    bench.thread.open()
    assert bench.begin(17)
    assert len(bench.recorded.named("bow")) == 16


def test_a_recorder_that_fails_is_logged(bench: Bench, caplog: pytest.LogCaptureFixture):
    def fail(span: SpanRecord) -> None:
        raise RuntimeError("no room")

    bench.recorded.end = fail
    bench.begin(7)
    bench.turn(7)
    with caplog.at_level(logging.ERROR):
        bench.journal.flush()
    assert "could not be recorded" in caplog.text
    assert bench.begin(8)


def test_a_request_for_one_op_is_called_after_it(bench: Bench):
    bench.begin(7)
    bench.request(7, target=1)
    assert [span.name for span in bench.spans()] == ["imdb cnn"]


def test_close_exports_the_waiting_spans(bench: Bench):
    bench.begin(7)
    bench.telemetry.close()
    bench.turn(7)
    assert bench.spans() == []
    assert bench.recorded.is_closed


def test_a_fold_without_requests_or_turns_is_fine(bench: Bench):
    bench.begin(7)
    bench.telemetry.notify(np.empty(0, SPAN), np.empty(0, REQUEST))
    assert bench.recorded.spans == []


# --- beside the engine ----------------------------------------------------------------------


class Asking(Op):
    """Keeps the trace that its calls belong to."""

    traces: list[str]

    def preprocess(self, input_dicts: Any, data_id: int, log_id: int) -> Any:
        return {"x": np.zeros((1, 1))}, False, None, ""

    def process(self, feed_batch: Any, typical_logid: int) -> Any:
        self.traces.append(call_trace())
        return {"y": np.zeros((len(feed_batch), 1))}, None, ""


def test_the_call_of_a_worker_is_a_child_of_its_stage():
    traces: list[str] = []

    async def run() -> list[SpanRecord]:
        recorded = Recording()
        asking = Asking(name="asking", input_ops=[chain("near")])
        asking.traces = traces
        async with Engine(asking) as engine:
            telemetry = Telemetry("svc", ["near", "asking"], recorded, AtOnce())
            engine.journal.sinks.append(telemetry)
            engine.watch(begin_trace=telemetry.begin)
            response = await engine.ask(x="1")
            assert response.err_no == 0, response.err_msg
            engine.journal.flush()
        return recorded.spans

    spans = by_name(run_virtual(run()))
    assert len(spans) == 11
    (reported,) = traces
    assert parse_traceparent(reported) == spans["asking process"].context
    assert call_trace() == ""


def test_a_stream_has_the_time_of_its_first_part_and_the_number_of_parts(bench: Bench):
    for data_id in (7, 8):
        bench.begin(data_id)
    for target, ends in ((0, (25, 31, 45)), (PIPELINE, (2027, 4033, 6047))):
        for number, end_ns in enumerate(ends):
            part = (7, target, number, PartKind.GIVEN, end_ns - 1, end_ns, end_ns)
            bench.journal.parts.append(pack_part(*part))
        bench.journal.parts.append(pack_part(7, target, len(ends), PartKind.EMPTY, 50, 50, 50))
    bench.journal.parts.append(pack_part(9, PIPELINE, 0, PartKind.GIVEN, 1, 2, 3))  # not recorded
    bench.turn(7)
    bench.turn(7, op=1)
    bench.request(7, completed_ns=7000, end_ns=8000)
    spans = by_name(bench.spans())
    entry, maker = spans["imdb"], spans["bow"]
    assert [(text, at - WALL_NS) for text, at in entry.events][2:] == [
        ("first part", 2027),
        ("through the graph", 7000),
    ]
    assert entry.attributes["pipeline.parts"] == 3
    assert entry.attributes["pipeline.part_gap_us"] == 2
    assert [(text, at - WALL_NS) for text, at in maker.events] == [("first part", 25)]
    assert maker.attributes["pipeline.parts"] == 3
    assert "pipeline.parts" not in spans["cnn"].attributes
    bench.request(8)
    assert "pipeline.parts" not in bench.spans()[0].attributes
