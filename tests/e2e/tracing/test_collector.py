"""A real collector of OpenTelemetry, where `otelcol` is installed, with a restart in between."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from doubles import wait_until
from served import PATIENCE_S, Served, free_port

SCRIPT = """
import logging
from pipeline import Op, PipelineServer, RequestOp, ResponseOp

class Say(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        text = input_dicts["@DAGExecutor"]["x"]
        logging.getLogger("pipeline.users").warning("seen %s", text)
        return {"y": text}, False, None, ""

server = PipelineServer("traced")
server.set_response_op(ResponseOp(Say("say", RequestOp())))
server.prepare_server("config.yml")
server.run_server()
"""
SPANS = ("traced", "say", "say queue", "say preprocess", "say process", "say postprocess")


@contextmanager
def collector(folder: Path, port: int, name: str) -> Iterator[Path]:
    """A collector that runs; yields the file that it describes what it got in."""
    receivers = {"otlp": {"protocols": {"grpc": {"endpoint": f"127.0.0.1:{port}"}}}}
    one = {"receivers": ["otlp"], "exporters": ["debug"]}
    config = {
        "receivers": receivers,
        "exporters": {"debug": {"verbosity": "detailed"}},
        "service": {
            "telemetry": {"metrics": {"level": "none"}},
            "pipelines": dict.fromkeys(("traces", "logs", "metrics"), one),
        },
    }
    (folder / "collector.yaml").write_text(json.dumps(config))
    path = folder / f"{name}.log"
    with path.open("w") as log:
        command = ["otelcol", "--config", str(folder / "collector.yaml")]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until(lambda: "Everything is ready" in path.read_text())
        yield path
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def ask(server: Served, trace: str) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.http_port}/traced/prediction",
        json.dumps({"key": ["x"], "value": [trace]}).encode(),
        {"traceparent": f"00-{trace}-b7ad6b7169203331-01"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        assert json.loads(answer.read())["err_no"] == 0


def arrived(path: Path, trace: str) -> bool:
    """Whether the collector has all spans of the trace and its log record."""
    text = path.read_text()
    spans = [block for block in text.split("Span #") if f"Trace ID       : {trace}" in block]
    names = {
        line.split(": ", 1)[1]
        for block in spans
        for line in block.splitlines()
        if "    Name  " in line
    }
    record = text.partition(f"Body: Str(seen {trace})")[2].partition("Span ID")[0]
    return set(SPANS) <= names and f"Trace ID: {trace}" in record


@pytest.mark.skipif(shutil.which("otelcol") is None, reason="otelcol is not installed")
def test_all_signals_arrive_also_those_sent_while_the_collector_was_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    port = free_port()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
    first, between, after = (digit * 32 for digit in "abc")
    config = {"opentelemetry": ["traces", "logs", "metrics"]}
    server = Served(tmp_path, SCRIPT, config)
    try:
        with collector(tmp_path, port, "one") as path:
            server.wait_until_ready()
            ask(server, first)
            wait_until(lambda: arrived(path, first))
            wait_until(lambda: "Name: pipeline_request_duration_seconds" in path.read_text())
        ask(server, between)
        with collector(tmp_path, port, "two") as path:
            ask(server, after)
            wait_until(lambda: arrived(path, between) and arrived(path, after))
    finally:
        server.close()
