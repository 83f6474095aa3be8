"""The access log of the embedded doors, beside the gateway's: the same fields, the same lines."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
from doubles import chain, client_of, server_for, wait_until
from paths import ROOT
from raw_http import Connection, request

from pipeline.frontends.access_log import FIELDS, AccessLog, Entry
from pipeline.observe.logs.lines import FIELDS as MORE_FIELDS

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACE = f"traceparent: 00-{TRACE_ID}-00f067aa0ba902b7-01"
BODY = b'{"key": ["x"], "value": ["1"]}'


def test_the_fields_equal_those_of_the_gateway():
    source = ROOT / "pipeline" / "gateway" / "internal" / "accesslog" / "accesslog.go"
    theirs = re.findall(r'^\t\{"(\w+)", "([^"]+)", func', source.read_text(), re.MULTILINE)
    assert [(field.name, field.form) for field in FIELDS] == theirs


def test_a_line_is_as_the_gateway_writes_it(caplog):
    caplog.set_level(logging.INFO)
    log = AccessLog(1)
    traceparent = TRACE.partition(" ")[2]
    log.write(Entry("192.0.2.1:5", "POST /svc/p HTTP/1.1", "200", 95, 0.00431, traceparent))
    log.write(Entry("192.0.2.1:5", "GET /\n", "404"))
    assert caplog.messages == [
        f'192.0.2.1:5 "POST /svc/p HTTP/1.1" 200 95B 4.31ms - - {TRACE_ID}',
        '192.0.2.1:5 "GET /\\n" 404 0B 0.00ms - - -',
    ]
    assert getattr(caplog.records[0], MORE_FIELDS) == {
        "message": "request", "address": "192.0.2.1:5", "action": "POST /svc/p HTTP/1.1",
        "status": "200", "bytes": 95, "ms": 4.31, "backend": "", "caller": "", "trace_id": TRACE_ID,
    }  # fmt: skip


SERVICE = "baidu.paddle_serving.pipeline_serving.PipelineService"


def log_of(folder: Path) -> str:
    return (folder / "PipelineServingLogs" / "pipeline.log").read_text()


def lines(folder: Path) -> list[dict[str, object]]:
    document = map(json.loads, log_of(folder).splitlines())
    return [line for line in document if line["message"] == "request"]


def send(server, *raw: bytes) -> None:
    for item in raw:
        with Connection(server.http_port) as connection:
            connection.send(item)
            connection.answer()


@pytest.mark.parametrize("edge", ["embedded", "gateway"])
def test_both_edges_log_the_same_requests(edge, gateway_binary, tmp_path):
    log = {"request_sample": 1, "format": "json"}
    with server_for(chain("a"), name="s", edge=edge, log=log) as server:
        send(
            server,
            request(BODY, TRACE, path="/s/prediction?token=secret"),
            request(BODY, TRACE, "Accept: text/event-stream", path="/s/prediction"),
            request(b"{", path="/s/prediction"),
            request(BODY, path="/" + 2000 * "x"),
            request(b"", path="/health/ready?token=secret", method="GET"),
        )
        with client_of(server) as client:
            client.predict({"x": "1"})
            assert list(client.predict_stream({"x": "1"}))
        wait_until(lambda: len(lines(tmp_path)) == 7)
    result = lines(tmp_path)
    assert "secret" not in log_of(tmp_path)
    assert [(line["action"], line["status"]) for line in result] == [
        ("POST /s/prediction HTTP/1.1", "200"),
        ("POST /s/prediction HTTP/1.1", "200"),
        ("POST /s/prediction HTTP/1.1", "400"),
        (f"POST /{'x' * 1023}... HTTP/1.1", "404"),
        ("GET /health/ready HTTP/1.1", "200"),
        (f"/{SERVICE}/inference", "OK"),
        (f"/{SERVICE}/inference_stream", "OK"),
    ]
    assert [line["trace_id"] for line in result[:3]] == [TRACE_ID, TRACE_ID, ""]
    assert all(str(line["address"]).startswith("127.0.0.1:") for line in result)
    assert all(int(str(line["bytes"])) > 0 for line in result)


@pytest.mark.parametrize("edge", ["embedded", "gateway"])
@pytest.mark.parametrize("more", [(), ("Accept: text/event-stream",)], ids=["lane", "routes"])
def test_a_disconnected_client_is_logged(edge, more, holds, gateway_binary, tmp_path):
    log = {"request_sample": 1, "format": "json"}
    with server_for(holds, name="s", edge=edge, log=log) as server:
        with Connection(server.http_port) as connection:
            connection.send(request(BODY, *more, path="/s/prediction"))
            assert holds.entered.acquire(timeout=20)
        wait_until(lambda: len(lines(tmp_path)) == 1)
        holds.release.set()
    assert [line["status"] for line in lines(tmp_path)] == ["499"]


def test_without_a_sample_no_request_is_logged(tmp_path):
    with server_for(chain("a"), name="s") as server:
        send(server, request(BODY, path="/s/prediction"))
    assert "HTTP/1.1" not in log_of(tmp_path)
