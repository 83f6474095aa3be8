"""Streams over HTTP: the server's own door, a gateway before it, and one that a server starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from conformance_gateway import PATIENT, both_ports, gateway_before, only_grpc
from doubles import wait_until
from raw_http import Connection, request
from streaming_http import EVENTS, LINES, Stage, asked, body_of, speaking, texts

from pipeline.frontends.http.pairs import Pairs

PLACES = ("door", "gateway", "own")
END = ("end", {})


@pytest.fixture(scope="module")
def stage() -> Stage:
    return Stage()


@pytest.fixture(scope="module")
def ports(gateway_binary: Path, stage: Stage, module_logs: None) -> Iterator[dict[str, int | None]]:
    with (
        speaking(stage) as server,
        gateway_before(gateway_binary, both_ports(server), flags=PATIENT) as gateway,
        gateway_before(gateway_binary, only_grpc(server), flags=PATIENT) as blind,
        speaking(stage, edge="gateway") as whole,
    ):
        gateway.wait_until_ready()
        blind.wait_until_ready()
        yield {
            "door": server.http_port,
            "gateway": gateway.port,
            "own": whole.http_port,
            "blind": blind.port,
        }


@pytest.fixture(params=PLACES)
def port(request: pytest.FixtureRequest, ports: dict[str, int | None]) -> int:
    result = ports[request.param]
    assert result is not None
    return result


@pytest.fixture(autouse=True)
def gate(stage: Stage) -> Iterator[Callable[[], None]]:
    """Opens the stage's gate; behind a test it is open, so that nobody waits on."""
    stage.gate.clear()
    yield stage.gate.set
    stage.gate.set()


# The two forms ------------------------------------------------------------------------------


def test_events(port):
    with asked(port, EVENTS, n=3) as heard:
        assert (heard.status, heard.kind) == (200, EVENTS)
        assert heard.response.headers["cache-control"] == "no-cache"
        *parts, last = heard.events()
    assert [name for name, _ in parts] == [""] * 3
    assert texts([part for _, part in parts]) == ["0", "1", "2"]
    assert last == END


def test_lines(port):
    with asked(port, LINES, n=3) as heard:
        assert (heard.status, heard.kind) == (200, LINES)
        assert texts([json.loads(line) for line in heard.lines()]) == ["0", "1", "2"]


def test_no_parts(port):
    with asked(port, EVENTS, n=0) as heard:
        assert heard.events() == [END]
    with asked(port, LINES, n=0) as heard:
        assert (heard.status, heard.lines()) == (200, [])


@pytest.mark.parametrize(
    "accept",
    [
        None,
        "*/*",
        "application/json",
        "text/*",
        "text/event-stream;q=0",
        "text/event-stream;q=0.1, */*",
    ],
)
def test_a_unary_request_gets_the_parts_combined(port, accept):
    with asked(port, accept, n=3) as heard:
        assert heard.kind == "application/json"
        assert texts([json.loads(heard.response.read())]) == ["012"]


def test_each_part_is_there_before_the_next_is_made(port, gate):
    with asked(port, EVENTS, n=2, hold=1) as heard:
        assert texts([json.loads(heard.line().removeprefix("data: "))]) == ["0"]
        gate()
        assert len(heard.events()) == 2


@pytest.mark.parametrize("size", [70_000, 900_000])
def test_large_parts(port, size):
    with asked(port, EVENTS, n=3, size=size) as heard:
        *parts, last = heard.events()
    assert [len(text) for text in texts([part for _, part in parts])] == [size + 1] * 3
    assert last == END


def test_a_connection_continues_after_a_stream(port):
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    for accept in ("*/*", EVENTS, "*/*", LINES, EVENTS):
        connection.request("POST", "/svc/prediction", body_of(n=2), {"Accept": accept})
        response = connection.getresponse()
        kind = "application/json" if accept == "*/*" else accept
        assert response.headers["content-type"] == kind
        assert response.read().count(b'"err_no":0') == (1 if accept == "*/*" else 2)
        assert not response.will_close
    connection.close()


def test_the_last_answer_of_a_connection(port):
    with asked(port, EVENTS, n=2, headers={"Connection": "close"}) as heard:
        assert heard.response.will_close
        assert heard.events()[-1] == END


def test_http_1_0_has_no_chunks(port):
    with Connection(port) as connection:
        raw = request(body_of(n=2), f"Accept: {EVENTS}").replace(b"HTTP/1.1", b"HTTP/1.0")
        connection.send(raw)
        answer = connection.answer()
        assert "transfer-encoding" not in answer.headers
        assert answer.body.endswith(b"event: end\ndata: {}\n\n")
        assert connection.is_at_end()


# Wrong streams ------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", [EVENTS, LINES])
@pytest.mark.parametrize(
    ("changes", "status", "err_no"),
    [
        ({"body": b'{"key": ['}, 400, 8000),
        ({"body": b"[]"}, 400, 8000),
        ({"headers": {"Grpc-Timeout": "soon"}}, 400, 8000),
        ({"headers": {"Content-Encoding": "br"}}, 415, 8000),
    ],
)
def test_a_refusal_is_that_of_the_plain_door(port, accept, changes, status, err_no):
    with asked(port, accept, **{"n": 2, **changes}) as heard:
        assert (heard.status, heard.kind) == (status, "application/json")
        reported = json.loads(heard.response.read())
    assert reported["err_no"] == err_no
    with asked(port, None, **{"n": 2, **changes}) as heard:
        assert (heard.status, json.loads(heard.response.read())) == (status, reported)


def test_a_foreign_page_is_refused(port):
    with asked(port, EVENTS, n=2, headers={"Origin": "http://elsewhere.example"}) as heard:
        assert heard.status == 403


@pytest.mark.parametrize("at", [0, 2])
def test_an_error_is_the_last_event(port, at):
    with asked(port, EVENTS, n=4, fail=at) as heard:
        assert heard.status == 200
        *parts, (name, reported) = heard.events()
    assert texts([part for _, part in parts]) == ["0", "1"][:at]
    assert name == "error"
    assert reported["err_no"] != 0
    assert "no more" in reported["err_msg"]


@pytest.mark.parametrize("at", [0, 2])
def test_an_error_is_the_last_line(port, at):
    with asked(port, LINES, n=4, fail=at) as heard:
        *parts, reported = [json.loads(line) for line in heard.lines()]
    assert texts(parts) == ["0", "1"][:at]
    assert "no more" in reported["err_msg"]


@pytest.mark.parametrize("at", [0, 1])
def test_the_deadline_ends_a_stream(port, at):
    with asked(port, EVENTS, n=2, hold=at, headers={"Grpc-Timeout": "150m"}) as heard:
        *parts, (name, reported) = heard.events()
    assert len(parts) <= at, "fewer where a busy machine lets it pass before"
    assert (name, reported["err_no"]) == ("error", 6000)


def test_a_part_that_is_too_large_for_json_ends_the_stream(ports, stage):
    with asked(ports["door"], EVENTS, n=3, size=17 * 2**20) as heard:
        (name, reported), *more = heard.events()
    assert (name, more) == ("error", [])
    assert "max_json_bytes" in reported["err_msg"]


def test_other_methods_have_no_streams(port):
    for method, status in (("GET", 405), ("HEAD", 405), ("PUT", 405)):
        with Connection(port) as connection:
            connection.send(request(b"", f"Accept: {EVENTS}", method=method))
            assert connection.answer(method).status == status


def test_a_gateway_before_a_grpc_port_alone_has_no_streams(ports):
    with asked(ports["blind"], EVENTS, n=2) as heard:
        assert (heard.status, heard.kind) == (501, "application/json")
        reported = json.loads(heard.response.read())
    assert reported["err_no"] == 3000
    assert "HTTP port" in reported["err_msg"]
    with asked(ports["blind"], None, n=2) as heard:
        assert texts([json.loads(heard.response.read())]) == ["01"]


# Callers that are slow, or gone -------------------------------------------------------------


def test_a_disconnect_closes_the_generator(port, stage, gate):
    closed = stage.closed
    with asked(port, EVENTS, n=10**9) as heard:
        heard.line()
    wait_until(lambda: stage.closed == closed + 1)


def test_a_client_may_disconnect_while_no_part_is_sent(port, stage, gate):
    closed = stage.closed
    with asked(port, EVENTS, n=10**9, hold=1) as heard:
        heard.line()
    gate()
    wait_until(lambda: stage.closed == closed + 1)


def test_a_slow_reader_stops_the_generator(port, stage):
    total, size = 1500, 60_000
    made = stage.made

    def stands() -> bool:
        """Whether nothing was made while other callers were served."""
        before = stage.made
        for _ in range(20):
            with asked(port, LINES, n=0) as quick:
                assert quick.lines() == []
        return stage.made == before

    with asked(port, EVENTS, n=total, size=size) as slow:
        slow.line()
        wait_until(stands)
        assert stage.made - made < total
        *parts, last = slow.events()
    assert (len(parts), last) == (total - 1, END)


@pytest.mark.parametrize("at", [0, 1])
def test_heartbeats(port, gate, monkeypatch, at):
    monkeypatch.setattr(Pairs, "heartbeat_s", 0.01)
    with asked(port, EVENTS, n=2, hold=at) as heard:
        collected: list[str] = []
        while collected.count(": heartbeat") < 3:  # some may come before the part
            collected.append(heard.line())
        assert len(collected) <= 3 + at
        gate()
        assert heard.events()[-1] == END


def test_lines_have_no_heartbeats(port, gate, monkeypatch):
    monkeypatch.setattr(Pairs, "heartbeat_s", 0.01)
    with asked(port, LINES, n=2, hold=1) as heard:
        heard.line()
        with asked(port, EVENTS, n=2, hold=1) as other:
            while other.line() != ": heartbeat":
                pass
            gate()
        assert texts([json.loads(line) for line in heard.lines()]) == ["1"]
