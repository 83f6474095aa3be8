"""The HTTP frontend answers the same with and without its lane.

The tables are those of the gateway's conformance, asked of a server that reads protobuf; and one of
requests to a server whose pairs never become protobuf. `python -m fuzz.lane --seconds 600` plays
random ones for longer.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conformance_dialogue import Case, run_dialogue
from conformance_server import Holder, conformance_server
from conformance_table import CASES, DIFFERENT, IN_OTHER_WORDS
from doubles import run_virtual, server_for, virtual
from fuzz import lane as fuzz_lane
from raw_http import Answer, Connection, chunked, request

from pipeline import Op, PipelineServer, ProductError, RequestOp
from pipeline.frontends.http.server import HttpFrontend

_PLAYED = 400


@contextlib.contextmanager
def _both(make: Any) -> Iterator[list[PipelineServer]]:
    """Two servers that run, of which the first one has a lane."""
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as running:
        collected = []
        for has_lane in (True, False):
            patch.setattr(HttpFrontend, "pipeline_has_lane", has_lane)
            collected.append(running.enter_context(make()))
        patch.undo()
        yield collected


# The tables of the gateway --------------------------------------------------------------------


@pytest.fixture(scope="module")
def ports(module_logs: None, holder: Holder) -> Iterator[list[int | None]]:
    with _both(lambda: conformance_server(holder)) as servers:
        yield [server.http_port for server in servers]


@pytest.mark.parametrize("case", [*CASES, *IN_OTHER_WORDS, *DIFFERENT], ids=lambda case: case.name)
def test_the_tables_hold_with_and_without_it(ports, holder, case: Case):
    received = []
    for port in ports:
        try:
            received.append(run_dialogue(port, case.door))
        finally:
            holder.release()
    if case.name != "the metrics":
        assert received[0] == received[1]


# Pairs that never become protobuf -------------------------------------------------------------


class Answers(Op):
    """Answers as the pair `do` says, or with what came."""

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        (pairs,) = input_dicts.values()
        do = pairs.get("do", "")
        if do == "raise":
            raise ValueError("of the user")
        if do == "product":
            raise ProductError(7, "no")
        fail: dict[str, dict[Any, Any]] = {
            "log": {"log_id": str(log_id)},
            "array": {"x": np.arange(6.0).reshape(2, 3), "y": ["a", "b"]},
            "none": {},
            "mixed": {"a": "x", "b": 5},
            "bytes": {"a": b"x"},
            "surrogate": {"a": "\ud800"},
            "key": {1: "one", "é": "\u2028\x00"},
            "long": {"a": "x" * 50_000},
            "large": {"a": "x" * 100_000},
            "huge": {"a": np.zeros(20_000)},
        }
        return fail.get(do, pairs)


def _pairs(**pairs: str) -> bytes:
    return json.dumps({"key": list(pairs), "value": list(pairs.values())}).encode()


_ECHO = _pairs(a="1", b="é")
_DONE = [
    "raise", "product", "log", "array", "none", "mixed", "bytes", "surrogate", "key", "long",
    "large", "huge",
]  # fmt: skip
_BODIES = [
    b"", b"{}", b" {} ", _ECHO, b"null", b"[]", b'"x"', b"{", b'{"key":["a"]}', b'{"value":["a"]}',
    b'{"key":["a"],"value":["1"],"logid":12}', b'{"key":["do"],"value":["log"],"logid":"12"}',
    b'{"key":["do"],"value":["log"],"logid":9223372036854775807}',
    b'{"key":["do"],"value":["log"],"logid":9223372036854775808}', b'{"logid":1.5}',
    b'{"key":["a"],"value":[1]}', b'{"key":["a"],"value":["\\ud800"]}', b'{"key":"a"}',
    b'{"key":["a"],"value":["\xff"]}', b'{"key":["a","a"],"value":["1","2"]}',
    b'{"key":["a"],"key":["b"],"value":["1"]}', b'{"appid":{},"key":null}',
    b'{"tensors":[{"name":"t","elem_type":0,"int64_data":[1],"shape":[1]}]}',
    b'{"tensors":[{"name":"t","elem_type":99}]}', b'{"name":"other","method":5}',
    b'{"name":"other"}', _pairs(a="x" * 60_000), _pairs(a="x" * 70_000), _pairs(a="x" * 120_000),
    *(_pairs(do=do) for do in _DONE),
]  # fmt: skip
_HEADERS: list[tuple[str, ...]] = [
    ("Content-Type: text/plain", "Accept-Encoding: gzip", "User-Agent: x"),
    ("Grpc-Timeout: 30S",), ("Grpc-Timeout: 0n",), ("Grpc-Timeout: x",),
    ("traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",),
    ("Connection: close",), ("Connection: keep-alive",), ("Connection: Keep-Alive, Foo",),
    ("Content-Encoding: gzip",), ("Content-Encoding: identity",), ("Content-Encoding: br",),
    ("Origin: http://elsewhere", "Content-Type: text/plain"), ("X-A: 1", "X-A: 2"),
    ("Connection: upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: x"),
    ("Expect: 100-continue", "Grpc-Timeout: x"), ("Transfer-Encoding: identity",),
    ("A: " + "a" * 3000,),
]  # fmt: skip
_PATHS = [
    "/svc/prediction", "/other/prediction", "/svc/p%20q", "/svc/prediction?x=1", "/svc", "/", "//",
    "/svc/", "/svc/a/b", "/v2/models/svc/infer", "/v2/health", "/health/live", "/health/x",
]  # fmt: skip


@pytest.fixture(scope="module")
def echoes(module_logs: None) -> Iterator[list[PipelineServer]]:
    def make() -> PipelineServer:
        return server_for(Answers("echo", [RequestOp()]), max_message_bytes=110_000)

    with _both(make) as servers:
        yield servers


def _alike(servers: list[PipelineServer], raw: bytes, answers: int = 1) -> Answer:
    """The last answer to what is sent on a connection; all are the same with and without lane."""
    received = []
    for server in servers:
        assert server.http_port is not None
        with Connection(server.http_port) as connection:
            connection.send(raw)
            received.append([connection.answer() for _ in range(answers)])
            for answer in received[-1]:
                answer.headers.pop("date")
                if answer.status == 413:  # it ends the connection if more is still to come then
                    answer.headers.pop("connection", None)
    for ours, theirs in zip(*received, strict=True):
        assert ours == theirs
    return received[0][-1]


@pytest.mark.parametrize("body", _BODIES, ids=range(len(_BODIES)))
def test_bodies_are_answered_alike(echoes, body):
    answer = _alike(echoes, request(body))
    assert answer.status in (200, 400, 413)


def test_a_request_for_a_profile_gets_one(echoes):
    raw = request(_pairs(a="1", **{"pipeline.profile": "1"}))
    for server in echoes:
        with Connection(server.http_port) as connection:
            connection.send(raw)
            assert connection.answer().json["key"] == ["a", "pipeline.profile"]


@pytest.mark.parametrize("headers", _HEADERS, ids=lambda headers: headers[0][:40])
def test_headers_mean_the_same(echoes, headers):
    _alike(echoes, request(_ECHO, *headers))


@pytest.mark.parametrize("path", _PATHS)
@pytest.mark.parametrize("method", ["POST", "PUT", "GET"])
def test_paths_mean_the_same(echoes, path, method):
    _alike(echoes, request(_ECHO, path=path, method=method))


@pytest.mark.parametrize("first", [_ECHO, _pairs(do="large"), _pairs(a="x" * 60_000)])
@pytest.mark.parametrize(
    "second",
    [
        request(_ECHO),
        request(chunked(_ECHO), "Transfer-Encoding: chunked"),
        request(method="GET", path="/health/live"),
        request(_ECHO, "Connection: close"),
        request(_pairs(do="large")),
        request(b"{"),
    ],
)
def test_requests_that_are_sent_together_are_answered_in_their_order(echoes, first, second):
    answer = _alike(echoes, request(first) + request(b"") + second, answers=3)
    assert answer.status in (200, 400)


def test_the_answer_of_a_request_that_names_another_service_is_the_same(module_logs):
    last = Answers("echo", [RequestOp()])
    with _both(lambda: server_for(last, name="svc")) as servers:
        for path in ("/svc/prediction", "/other/prediction"):
            _alike(servers, request(_ECHO, path=path))


# Anything ---------------------------------------------------------------------------------------


@pytest.fixture
def is_silent() -> Iterator[None]:
    """What the engine that is played raises is logged."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("is_silent")
def test_random_connections_are_answered_alike():
    played, result = run_virtual(fuzz_lane.run(range(1, _PLAYED + 1)))
    assert played == _PLAYED
    assert not result, "\n".join(result)


@virtual
async def test_many_requests_in_a_packet_with_a_partial_head_are_not_a_long_head():
    one = b"POST /s/m HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
    data = one * 2000
    case = fuzz_lane.Connection(((data[:-20], 3), (data[-20:], 3)))
    async with fuzz_lane.Frontends() as frontends:
        for received in await frontends.play(case):
            assert (len(received.answers), received.begun) == (2000, 2000)


@pytest.mark.usefixtures("is_silent")
@pytest.mark.parametrize(
    ("defect", "was"),
    [
        ("_UNUSUAL", frozenset()),
        ("_SOUND", re.compile(rb"POST ([^ ]*).*", re.DOTALL)),
    ],
)
def test_the_player_of_random_connections_is_not_blind(monkeypatch, defect, was):
    monkeypatch.setattr(f"pipeline.frontends.http.heads.{defect}", was)
    assert run_virtual(fuzz_lane.run(range(1, 300), stops=True))[1]
