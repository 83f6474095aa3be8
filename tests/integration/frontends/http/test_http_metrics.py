"""`/metrics`: who is answered, with what, and what the port of its own refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from http.client import HTTPConnection
from typing import Any

import pytest

from pipeline.engine.state import EngineState
from pipeline.errors import ErrorCode, InitError
from pipeline.frontends.http.metrics import MetricsRoutes, metrics_server
from pipeline.frontends.http.routes import HttpError, WebRequest, WebResponse
from pipeline.frontends.http.server import HttpFrontend
from pipeline.observe.snapshot import ModelCounters, Snapshot
from pipeline.system.event_loop import LoopThread

COPIES = [Snapshot(n, EngineState(True, 0, 0, n, 0), [ModelCounters("svc")]) for n in (3, 4)]


async def whole() -> list[Snapshot]:
    return COPIES[:1]


async def all_copies() -> list[Snapshot]:
    return COPIES


async def no_body() -> bytes:
    return b""


def request(path: str = "/metrics", method: str = "GET") -> WebRequest:
    return WebRequest(method, path, path, "", {}, no_body)


def answer(site: MetricsRoutes, asked: WebRequest) -> WebResponse:
    endpoint = site.endpoint(asked)
    assert endpoint is not None

    async def call() -> WebResponse:
        return await endpoint(asked)

    return asyncio.run(call())


@pytest.mark.parametrize("path", ["/metrics", "/metrics/"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_metrics_are_answered_in_prometheus_form(path, method):
    reply = answer(MetricsRoutes(whole), request(path, method))
    assert reply.status == 200
    assert reply.content_type == b"text/plain; version=0.0.4; charset=utf-8"
    assert (b"cache-control", b"no-store") in reply.headers
    assert b"\npipeline_requests_accepted_total 3.0\n" in reply.body
    assert b"pd_" not in reply.body


def test_the_counters_of_the_predecessor_follow_if_configured():
    body = answer(MetricsRoutes(whole, predecessors=True), request()).body
    assert body.index(b"# HELP pd_query") > body.index(b"pipeline_requests_accepted_total")


def test_each_copy_has_its_series():
    body = answer(MetricsRoutes(all_copies, by_replica=True), request()).body
    for copy in (b"3", b"4"):
        assert b'pipeline_requests_accepted_total{copy="%s"}' % copy in body


@pytest.mark.parametrize("path", ["/", "/metric", "/metrics/x", "/Metrics", "/v2/metrics"])
def test_other_paths_are_left_to_others(path):
    assert MetricsRoutes(whole).endpoint(request(path)) is None


def test_other_methods_are_refused():
    with pytest.raises(HttpError) as refusal:
        answer(MetricsRoutes(whole), request(method="POST"))
    assert refusal.value.status == 405
    assert refusal.value.headers == ((b"allow", b"GET, HEAD"),)


# The port of its own ----------------------------------------------------------------------


def serving(ask: Callable[[HttpFrontend], Awaitable[Any]], port: int = 0) -> Any:
    """What `ask` returns, asked of a server that runs."""

    async def run() -> Any:
        server = metrics_server(MetricsRoutes(whole, predecessors=True), "127.0.0.1", port)
        await server.start(is_ready=True)
        try:
            return await ask(server)
        finally:
            await server.close()
            await server.stop()

    thread = LoopThread()
    try:
        return thread.run(run())
    finally:
        thread.close()


def http(port: int, method: str, path: str, body: bytes = b"") -> tuple[int, str, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.getheader("content-type", ""), response.read()
    finally:
        connection.close()


@pytest.mark.usefixtures("open_files")
def test_the_port_of_the_metrics_has_metrics_only():
    async def ask(server: HttpFrontend) -> Any:
        def ask_all() -> Any:
            return (
                http(server.port, "GET", "/metrics"),
                http(server.port, "GET", "/metrics/")[0],
                http(server.port, "HEAD", "/metrics"),
                http(server.port, "POST", "/metrics", b"{}")[0],
                http(server.port, "POST", "/svc/prediction", b"{}"),
            )

        return await asyncio.to_thread(ask_all)

    (status, kind, text), also, head, posted, (refused, _, refusal) = serving(ask)
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b"\npd_query_request_success_total 0.0\n" in text
    assert (also, head, posted, refused) == (200, (200, kind, b""), 405, 404)
    parsed = json.loads(refusal)
    assert parsed["err_no"] == ErrorCode.NO_SERVICE
    assert "GET /metrics" in parsed["err_msg"]


def test_a_port_that_is_in_use_is_named_by_its_key():
    async def ask(server: HttpFrontend) -> Any:
        second = metrics_server(MetricsRoutes(whole), "127.0.0.1", server.port)
        with pytest.raises(InitError, match=r"dag\.prometheus_port: cannot listen"):
            await second.start()

    serving(ask)
