"""Streams over HTTP, as far as only the server's own door has them."""

from __future__ import annotations

import contextlib
import json
import threading
from http.client import HTTPException, IncompleteRead

from doubles import chain, server_for, wait_until
from raw_http import Connection, request
from streaming_http import EVENTS, LINES, Stage, asked, body_of, speaking, texts

from pipeline.frontends.http import routes


def test_a_pipeline_without_a_stream_gives_one_part():
    with server_for(chain("a")) as server:
        with asked(server.http_port, EVENTS, x="1") as heard:
            (name, part), end = heard.events()
        assert (name, part["err_no"], end) == ("", 0, ("end", {}))
        with asked(server.http_port, LINES, x="1") as heard:
            assert [json.loads(line) for line in heard.lines()] == [part]


def test_a_full_server_refuses_as_the_plain_door_does():
    stage = Stage()
    with (
        speaking(stage, worker_num=1, queue_size=0) as server,
        asked(server.http_port, EVENTS, n=2, hold=1) as first,
    ):
        first.line()
        with asked(server.http_port, EVENTS, n=2) as heard:
            assert (heard.status, heard.kind) == (503, "application/json")
            assert heard.response.headers["retry-after"] == "1"
        stage.gate.set()
        assert first.events()[-1] == ("end", {})


def test_requests_sent_ahead_are_answered_after_a_stream():
    with speaking(Stage()) as server, Connection(server.http_port) as connection:
        stream = request(body_of(n=2), f"Accept: {EVENTS}")
        connection.send(request(body_of(n=3)) + stream + stream + request(body_of(n=1)))
        answers = [connection.answer() for _ in range(4)]
    assert texts([answers[0].json, answers[3].json]) == ["012", "0"]
    assert [answer.body.count(b"data: ") for answer in answers[1:3]] == [3, 3]


def test_a_server_that_stops_ends_its_streams_with_an_error():
    stage = Stage()
    server = speaking(stage, stop_grace_period=0)
    with contextlib.ExitStack() as stack, server:
        heard = stack.enter_context(asked(server.http_port, EVENTS, n=2, hold=1))
        heard.line()
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        name, reported = heard.events()[-1]
        stage.gate.set()
        stopping.join()
    assert (name, reported["err_no"]) == ("error", 3001)


def test_a_server_that_drains_lets_its_streams_end():
    stage = Stage()
    with contextlib.ExitStack() as stack, speaking(stage, stop_grace_period=30_000) as server:
        port = server.http_port
        heard = stack.enter_context(asked(port, EVENTS, n=2, hold=1))
        heard.line()
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        wait_until(lambda: not is_ready(port))
        stage.gate.set()
        assert heard.events()[-1] == ("end", {})
        stopping.join()


def is_ready(port: int | None) -> bool:
    try:
        with Connection(port or 0) as connection:
            connection.send(request(method="GET", path="/health/ready"))
            return connection.answer().status == 200
    except (OSError, HTTPException):
        return False


def test_a_client_that_does_not_read_does_not_delay_the_stop(monkeypatch):
    complaints: list[object] = []
    monkeypatch.setattr(routes._LOGGER, "error", lambda *said, **_: complaints.append(said))
    stage = Stage()
    with contextlib.ExitStack() as stack:
        with speaking(stage, stop_grace_period=0) as server:
            heard = stack.enter_context(asked(server.http_port, EVENTS, n=10**9, size=60_000))
            heard.line()
        assert stage.closed == 1
        last = "cut off"  # where the transport still held parts
        with contextlib.suppress(IncompleteRead, ConnectionResetError):
            last = heard.events()[-1][0]
        assert last in ("error", "cut off")
    assert complaints == []
