"""`cors` of a real server, at both doors: a page that is listed asks, another one does not."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator

import pytest

from pipeline import Op, PipelineServer, RequestOp, ResponseOp

APP, EVIL = "https://app.example.com", "https://evil.example.com"
BODY = json.dumps({"key": ["x"], "value": ["1"]})


class Echo(Op):
    def preprocess(self, input_dicts):
        return dict(input_dicts["@DAGExecutor"])


@pytest.fixture(scope="module", params=["embedded", "gateway"])
def server(request: pytest.FixtureRequest) -> Iterator[PipelineServer]:
    server = PipelineServer("svc")
    server.set_response_op(ResponseOp(Echo("echo", RequestOp())))
    server.prepare_server(
        yml_dict={"rpc_port": 0, "http_port": 0, "edge": request.param, "cors": {"origins": [APP]}}
    )
    with server as running:
        yield running


def ask(
    server: PipelineServer, method: str, path: str, body: str | None = None, **said: str
) -> tuple[int, dict[str, list[str]]]:
    assert server.http_port is not None
    caller = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    try:
        caller.request(method, path, body, {name.replace("_", "-"): said[name] for name in said})
        reply = caller.getresponse()
        reply.read()
        collected: dict[str, list[str]] = {}
        for name, value in reply.getheaders():
            collected.setdefault(name.lower(), []).append(value)
        return reply.status, collected
    finally:
        caller.close()


def test_a_browser_asks_before_a_page_asks(server: PipelineServer) -> None:
    fields = {
        "access_control_request_method": "POST",
        "access_control_request_headers": "content-type",
    }
    status, headers = ask(server, "OPTIONS", "/svc/prediction", origin=APP, **fields)
    assert (status, headers["access-control-allow-origin"]) == (200, [APP])
    assert headers["access-control-allow-headers"] == ["content-type"]
    status, headers = ask(server, "OPTIONS", "/svc/prediction", origin=EVIL, **fields)
    assert status == 405
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("path", ["/svc/prediction", "/api/svc"])
def test_a_page_that_is_listed_asks(server: PipelineServer, path: str) -> None:
    body = BODY if path == "/svc/prediction" else json.dumps({"x": "1"})
    for kind in ("application/json", "text/plain"):
        status, headers = ask(server, "POST", path, body, origin=APP, content_type=kind)
        assert (status, headers["access-control-allow-origin"]) == (200, [APP])
        assert headers["vary"] == ["Origin"]
    status, headers = ask(server, "POST", path, body, origin=EVIL, content_type="text/plain")
    assert status == 403
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("path", ["/svc/prediction", "/api/svc"])
def test_an_answer_without_an_origin_varies_by_origin(server: PipelineServer, path: str) -> None:
    bodies = (BODY if path == "/svc/prediction" else json.dumps({"x": "1"}), "no JSON")
    for body in bodies:
        status, headers = ask(server, "POST", path, body, content_type="application/json")
        assert (status == 200) == (body != "no JSON")
        assert headers["vary"] == ["Origin"]
