"""Spans through OpenTelemetry's SDK: into memory, and over OTLP to a receiver."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from grpc_peers import peer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode

from pipeline.engine.journal.journal import PIPELINE, Journal, Outcome, pack_request, pack_span
from pipeline.errors import InitError
from pipeline.tracing.context import TraceContext, format_traceparent
from pipeline.tracing.recorder import OtelRecorder, RateLimit, SamplerDecision, connect
from pipeline.tracing.sink import Telemetry, connect_telemetry

CALLER = TraceContext(0xABC, 0xDEF, True)
RESOURCE = Resource({"service.name": "imdb"})


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


def play(telemetry: Telemetry, data_id: int = 7, parent: TraceContext | None = None) -> str:
    """A request that went through the first Op."""
    journal = Journal([telemetry])
    reported = telemetry.begin(data_id, format_traceparent(parent) if parent else "")
    journal.spans.append(pack_span(0, 0, 1, data_id, 1, Outcome.OK, 10, 20, 30, 40, 50, 60))
    row = pack_request(data_id, PIPELINE, 1, Outcome.OTHER, 3001, 1, 2, 3, 70, 80, 0, 0, 0)
    journal.requests.append(row)
    journal.flush()
    return reported


# --- spans ----------------------------------------------------------------------------------


def test_spans_are_exported_unchanged():
    exporter = InMemorySpanExporter()
    recorder = OtelRecorder([exporter], RESOURCE, RateLimit(1))
    telemetry = Telemetry("imdb", ["bow"], recorder, wall_ns=lambda: 1000)
    reported = play(telemetry, parent=CALLER)
    telemetry.close()
    spans: dict[str, ReadableSpan] = {span.name: span for span in exporter.get_finished_spans()}
    assert list(spans) == ["bow", *(f"bow {x}" for x in telemetry_stages()), "imdb"]
    entry, turn = spans["imdb"], spans["bow"]
    assert entry.context is not None
    assert reported.split("-")[2] == f"{entry.context.span_id:016x}"
    assert entry.parent is not None
    assert (entry.parent.span_id, entry.parent.is_remote) == (CALLER.span_id, True)
    assert (entry.kind, turn.kind) == (SpanKind.SERVER, SpanKind.INTERNAL)
    assert (entry.start_time, entry.end_time) == (1001, 1080)
    assert (entry.status.status_code, entry.status.description) == (StatusCode.ERROR, "OTHER")
    assert turn.status.status_code is StatusCode.UNSET
    assert turn.parent is not None
    assert (turn.parent.span_id, turn.parent.is_remote) == (entry.context.span_id, False)
    assert {span.context.trace_id for span in spans.values() if span.context} == {0xABC}
    assert entry.resource.attributes["service.name"] == "imdb"
    assert [(event.name, event.timestamp) for event in entry.events] == [
        ("let into the graph", 1002),
        ("unpacked", 1003),
        ("through the graph", 1070),
    ]


def telemetry_stages() -> tuple[str, ...]:
    return ("queue", "preprocess", "process", "postprocess")


class Stuck(SpanExporter):
    """A collector that never answers, until the exporter is shut down."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._over = threading.Event()

    def export(self, spans: Any) -> SpanExportResult:
        self.asked.set()
        self._over.wait()
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self._over.set()


def test_a_hanging_collector_does_not_delay_the_stop():
    exporter = Stuck()
    recorder = OtelRecorder([exporter], RESOURCE, RateLimit(1), close_s=0.01)
    telemetry = Telemetry("imdb", ["bow"], recorder)
    play(telemetry)
    telemetry.close()
    assert exporter.asked.is_set()


# --- which requests -------------------------------------------------------------------------


def test_the_first_requests_of_a_second_are_recorded():
    now = [100.0]
    choose = RateLimit(2, clock_s=lambda: now[0])
    assert [choose(None) > 0 for _ in range(4)] == [True, True, False, False]
    now[0] += 0.25
    assert not choose(None)
    now[0] += 0.25
    assert [choose(None) > 0 for _ in range(2)] == [True, False]
    now[0] += 3600
    assert [choose(None) > 0 for _ in range(3)] == [True, True, False]


def test_requests_without_a_trace_get_one_each():
    choose = RateLimit(5, clock_s=lambda: 100.0)
    assert len({choose(None) for _ in range(5)} - {0}) == 5


def test_the_decision_of_a_client_applies_at_any_rate():
    choose = RateLimit(1, clock_s=lambda: 0.0)
    unsampled = CALLER._replace(is_sampled=False)
    assert [choose(CALLER) for _ in range(5)] == [CALLER.trace_id] * 5
    assert not choose(unsampled)
    assert choose(None)


def test_a_sampler_of_the_sdk_decides():
    ids = iter([1, 2**64 - 1])
    by_ratio = SamplerDecision(ParentBased(TraceIdRatioBased(0.5)), "imdb", lambda: next(ids))
    assert [by_ratio(None), by_ratio(None)] == [1, 0]
    of_low_ratio = CALLER._replace(trace_id=2**64 - 1)
    assert by_ratio(of_low_ratio) == 2**64 - 1
    assert not by_ratio(CALLER._replace(trace_id=1, is_sampled=False))
    assert not SamplerDecision(ALWAYS_OFF, "imdb")(CALLER)


# --- the environment ------------------------------------------------------------------------


@contextmanager
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ExportTraceServiceRequest]]:
    """An OTLP collector that the environment names."""
    received: list[ExportTraceServiceRequest] = []

    def export(request: bytes, context: Any) -> bytes:
        received.append(ExportTraceServiceRequest.FromString(request))
        return ExportTraceServiceResponse().SerializeToString()

    with peer("opentelemetry.proto.collector.trace.v1.TraceService", {"Export": export}) as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{server.endpoint}")
        yield received


def spans_in(received: list[ExportTraceServiceRequest]) -> list[Any]:
    return [
        span
        for request in received
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def services_in(received: list[ExportTraceServiceRequest]) -> set[str]:
    return {
        attribute.value.string_value
        for request in received
        for resource in request.resource_spans
        for attribute in resource.resource.attributes
        if attribute.key == "service.name"
    }


def test_a_collector_gets_the_spans_over_otlp(monkeypatch: pytest.MonkeyPatch):
    with receiver(monkeypatch) as received:
        telemetry = connect_telemetry("imdb", ["bow"])
        assert telemetry is not None
        play(telemetry, 1, CALLER)
        play(telemetry, 2)
        telemetry.close()
        spans = spans_in(received)
        assert sorted(span.name for span in spans) == sorted(
            2 * ["imdb", "bow", *(f"bow {stage}" for stage in telemetry_stages())]
        )
        ours = [span for span in spans if int.from_bytes(span.trace_id, "big") == 0xABC]
        assert len(ours) == 6
        entry = next(span for span in ours if span.name == "imdb")
        assert int.from_bytes(entry.parent_span_id, "big") == CALLER.span_id
        assert services_in(received) == {"imdb"}


def test_the_environment_may_name_the_service(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=films,deployment=blue")
    with receiver(monkeypatch) as received:
        telemetry = connect_telemetry("imdb", ["bow"])
        assert telemetry is not None
        play(telemetry)
        telemetry.close()
        assert services_in(received) == {"films"}


def test_the_environment_may_name_a_sampler(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with receiver(monkeypatch) as received:
        telemetry = connect_telemetry("imdb", ["bow"])
        assert telemetry is not None
        assert play(telemetry) == ""
        reported = play(telemetry, parent=CALLER)
        assert reported == format_traceparent(CALLER._replace(is_sampled=False))
        telemetry.close()
        assert received == []


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_SDK_DISABLED", "True"), ("OTEL_TRACES_EXPORTER", "none")]
)
def test_the_environment_may_switch_it_off(name: str, value: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(name, value)
    assert connect_telemetry("imdb", ["bow"]) is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin", "'zipkin' is not installed"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier-pigeon", "one of grpc, .*found 'carrier-pigeon'"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "cannot be made: .*'soon'"),
    ],
)
def test_an_environment_that_cannot_be_followed_is_refused_at_the_start(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(name, value)
    with pytest.raises(InitError, match=f"^opentelemetry: .*{said}"):
        connect("imdb")


def test_without_the_extra_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pipeline.tracing.recorder", None)
    with pytest.raises(InitError, match=r"pip install 'pipeline-serving\[otel\]'"):
        connect_telemetry("imdb", ["bow"])


def test_several_exporters_get_all_spans(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp, console")
    with receiver(monkeypatch) as received:
        telemetry = connect_telemetry("imdb", ["bow"])
        assert telemetry is not None
        play(telemetry)
        telemetry.close()
        assert len(spans_in(received)) == 6


def test_a_missing_collector_is_logged_and_does_not_affect_requests(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    telemetry = connect_telemetry("imdb", ["bow"])
    assert telemetry is not None
    with caplog.at_level(logging.ERROR):
        play(telemetry)
        telemetry.close()
    assert "Failed to export" in caplog.text
