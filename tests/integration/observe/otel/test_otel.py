"""Traces, logs and metrics of a server, over OTLP to a receiver of the tests' own."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, repeat
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
from doubles import on_loop
from grpc_peers import peer
from opentelemetry._logs import SeverityNumber
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult
from opentelemetry.sdk.resources import Resource

from pipeline import Op, PipelineClient, PipelineServer, ProductError, RequestOp, ResponseOp
from pipeline.errors import InitError
from pipeline.observe import otel
from pipeline.observe.otel.logs import OtelLogSink, as_otel, severity_of
from pipeline.observe.otel.metrics import OtelMetrics

LOG = logging.getLogger("pipeline.users")


class Speaks(Op):
    """Logs in each method."""

    def preprocess(self, input_dicts):
        LOG.warning("in preprocess")
        if input_dicts["@DAGExecutor"]["x"] == "bad":
            raise ProductError(51, "bad")
        return {"x": np.zeros((1, 1))}

    def process(self, feed_batch):
        LOG.warning("in process")
        return feed_batch[0]

    def postprocess(self, input_dicts, fetch_data):
        LOG.warning("in postprocess")
        return {"y": "1"}


class Collector:
    """The received messages, by signal."""

    def __init__(self) -> None:
        self.records: dict[str, Any] = {}
        self.spans: dict[str, Any] = {}
        self.metrics: dict[str, Any] = {}
        self.services: set[str] = set()

    def of_logs(self, request: bytes, context: Any) -> bytes:
        for log in logs.ExportLogsServiceRequest.FromString(request).resource_logs:
            self._note(log.resource)
            for scope in log.scope_logs:
                for record in scope.log_records:
                    self.records[record.body.string_value] = record
        return logs.ExportLogsServiceResponse().SerializeToString()

    def of_traces(self, request: bytes, context: Any) -> bytes:
        for item in traces.ExportTraceServiceRequest.FromString(request).resource_spans:
            for scope in item.scope_spans:
                self.spans |= {(span.trace_id, span.span_id): span.name for span in scope.spans}
        return traces.ExportTraceServiceResponse().SerializeToString()

    def of_metrics(self, request: bytes, context: Any) -> bytes:
        for item in metrics.ExportMetricsServiceRequest.FromString(request).resource_metrics:
            self._note(item.resource)
            for scope in item.scope_metrics:
                self.metrics |= {metric.name: metric for metric in scope.metrics}
        return metrics.ExportMetricsServiceResponse().SerializeToString()

    def _note(self, resource: Any) -> None:
        self.services |= {
            attribute.value.string_value
            for attribute in resource.attributes
            if attribute.key == "service.name"
        }


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@contextmanager
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector with a port for each signal, all of which the environment names."""
    result = Collector()
    doors = {"logs": result.of_logs, "metrics": result.of_metrics, "trace": result.of_traces}
    with ExitStack() as stack:
        for signal, take in doors.items():
            name = f"opentelemetry.proto.collector.{signal}.v1.{signal.title()}Service"
            server = stack.enter_context(peer(name, {"Export": take}))
            variable = "TRACES" if signal == "trace" else signal.upper()
            endpoint = f"http://{server.endpoint}"
            monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{variable}_ENDPOINT", endpoint)
        yield result


def speaking(**config: Any) -> PipelineServer:
    server = PipelineServer("speaks")
    server.set_response_op(ResponseOp(Speaks("op", RequestOp())))
    server.prepare_server(yml_dict={"rpc_port": 0, **config})
    return server


def ask(server: PipelineServer) -> None:
    """Two requests, the second of which is refused; then the server ends."""
    with server, PipelineClient() as client:
        client.connect(f"127.0.0.1:{server.rpc_port}")
        client.predict({"x": "1"}, log_id=7).raise_for_error()
        assert client.predict({"x": "bad"}).err_no == 51


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_all_three_signals_of_a_request_have_one_trace(workers, monkeypatch):
    signals = ["traces", "logs", "metrics"]
    with collector(monkeypatch) as result:
        ask(speaking(opentelemetry=signals, op={"op": {"workers": workers}}))
    for stage in ("preprocess", "process", "postprocess"):
        record = result.records[f"in {stage}"]
        assert result.spans[record.trace_id, record.span_id] == f"op {stage}"
        said = {attribute.key: attribute.value for attribute in record.attributes}
        assert said["pipeline.op"].string_value == "op"
        assert said["pipeline.stage"].string_value == stage
        assert said["code.file.path"].string_value == __file__
    assert said["pipeline.data_id"].int_value == 0
    assert said["pipeline.log_id"].int_value == 7
    (failed,) = [text for text in result.records if "Failed to predict" in text]
    assert result.records[failed].severity_number == SeverityNumber.INFO.value
    assert result.spans[result.records[failed].trace_id, result.records[failed].span_id] == "speaks"
    assert result.services == {"speaks"}
    (count,) = [
        point.as_double
        for point in result.metrics["nv_inference_request_success"].sum.data_points
        if {attribute.key: attribute.value.string_value for attribute in point.attributes}["model"]
        == "speaks"
    ]
    assert count == 1
    assert result.metrics["process_resident_memory_bytes"].gauge.data_points


def test_a_traced_request_is_an_exemplar_in_openmetrics(monkeypatch):
    accept = {"Accept": "application/openmetrics-text"}
    with collector(monkeypatch) as result, speaking(opentelemetry=True, http_port=0) as server:
        at = f"http://127.0.0.1:{server.http_port}"
        urlopen(f"{at}/speaks/prediction", b'{"key":["x"],"value":["1"]}').read()
        page = urlopen(Request(f"{at}/metrics", headers=accept)).read().decode()
        server.stop()
    (trace_id,) = {trace_id for trace_id, _ in result.spans}
    (line,) = [line for line in page.splitlines() if "# {" in line]
    assert line.startswith("pipeline_request_duration_seconds_bucket{")
    assert f'1.0 # {{trace_id="{trace_id.hex()}"}}' in line


def test_only_configured_signals_are_sent(monkeypatch):
    with collector(monkeypatch) as result:
        ask(speaking(opentelemetry=["metrics"]))
    assert result.metrics
    assert not result.spans
    assert not result.records


@pytest.mark.parametrize("signal", ["logs", "metrics"])
def test_the_environment_switches_a_signal_off(signal, monkeypatch):
    monkeypatch.setenv(f"OTEL_{signal.upper()}_EXPORTER", "none")
    with speaking(opentelemetry=[signal]):
        pass


@pytest.mark.parametrize(
    ("signal", "name", "value", "said"),
    [
        ("logs", "OTEL_LOGS_EXPORTER", "pigeon", "'pigeon' is not installed, only .*OTEL_LOGS_"),
        (
            "metrics",
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
            "x",
            "OTLP_METRICS_PROTOCOL: .*found 'x'",
        ),
        ("metrics", "OTEL_METRIC_EXPORT_INTERVAL", "soon", "expected milliseconds, found 'soon'"),
    ],
)
def test_an_environment_that_cannot_be_followed_ends_the_start(
    signal, name, value, said, monkeypatch
):
    monkeypatch.setenv(name, value)
    with pytest.raises(InitError, match=f"^opentelemetry: .*{said}"):
        speaking(opentelemetry=[signal]).start()


@pytest.mark.parametrize("signal", ["logs", "metrics"])
def test_without_the_extra_the_error_names_the_package(signal, monkeypatch):
    monkeypatch.setitem(sys.modules, f"pipeline.observe.otel.{signal}", None)
    with pytest.raises(InitError, match=r"pip install 'pipeline-serving\[otel\]'"):
        otel.open_logs("") if signal == "logs" else otel.open_metrics("", None)


class Stuck(LogRecordExporter, MetricExporter):
    """A collector that never answers, until it is shut down."""

    def __init__(self) -> None:
        MetricExporter.__init__(self)
        self.asked = threading.Event()
        self._over = threading.Event()

    def export(self, *_: Any, **__: Any) -> Any:
        self.asked.set()
        self._over.wait()
        return LogRecordExportResult.FAILURE

    def shutdown(self, *_: Any, **__: Any) -> None:
        self._over.set()

    def force_flush(self, *_: Any, **__: Any) -> bool:
        return True


def test_a_hanging_collector_of_logs_does_not_delay_the_stop():
    stuck = Stuck()
    sink = OtelLogSink([stuck], Resource({}), close_s=0.01)
    sink.write(LOG.makeRecord("pipeline.x", logging.ERROR, "f.py", 1, "text", (), None))
    sink.close()
    assert stuck.asked.is_set()


@on_loop
async def test_a_hanging_collector_of_metrics_does_not_delay_the_stop():
    stuck = Stuck()

    async def collect() -> bytes:
        return b"x 1\n"

    sender = OtelMetrics([stuck], Resource({}), collect, interval_s=3600, close_s=0.01)
    sender.start()
    await sender.close()
    assert stuck.asked.is_set()


class Sent(MetricExporter):
    """Keeps what was exported."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.first = threading.Event()

    def export(self, metrics_data: Any, *_: Any, **__: Any) -> MetricExportResult:
        (of_resource,) = metrics_data.resource_metrics
        self.names += [metric.name for metric in of_resource.scope_metrics[0].metrics]
        self.first.set()
        return MetricExportResult.SUCCESS

    def shutdown(self, *_: Any, **__: Any) -> None: ...

    def force_flush(self, *_: Any, **__: Any) -> bool:
        return True


@on_loop
async def test_a_turn_that_fails_is_logged_and_the_next_one_is_sent(caplog):
    texts = chain([ValueError("no figures"), b"second 1\n"], repeat(b"last 1\n"))
    sent, loop = Sent(), asyncio.get_running_loop()

    async def collect() -> bytes:
        text = next(texts)
        if isinstance(text, Exception):
            raise text
        return text

    sender = OtelMetrics([sent], Resource({}), collect, interval_s=0.001)
    sender.start()
    await loop.run_in_executor(None, sent.first.wait)
    await sender.close()
    assert sent.names[0] == "second"
    assert set(sent.names[1:]) == {"last"}
    assert "metrics could not be collected" in caplog.text


def test_a_record_has_its_severity_and_its_exception():
    try:
        raise ValueError("wrong")
    except ValueError:
        record = LOG.makeRecord("pipeline.x", 35, "f.py", 1, "%s", ("text",), sys.exc_info())
    made = as_otel(record)
    assert (made.body, made.severity_number) == ("text", SeverityNumber.WARN)
    assert made.attributes is not None
    assert made.attributes["exception.type"] == "ValueError"
    assert "raise ValueError" in str(made.attributes["exception.stacktrace"])
    assert severity_of(1) is SeverityNumber.TRACE
    assert severity_of(60) is SeverityNumber.FATAL
