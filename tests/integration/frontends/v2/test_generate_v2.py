"""`generate` and `generate_stream`, of the server itself and through the gateway."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest
from doubles import http as ask
from streamed import repeating, seen

from pipeline import PipelineServer

__all__ = ["repeating", "seen"]
pytestmark = pytest.mark.usefixtures("gateway_binary")

PATIENCE_S = 30
NOT_ONE = "generate expects model to produce exactly 1 response"
EVENTS = "text/event-stream; charset=utf-8"


@pytest.fixture(scope="module")
def server(repeating: PipelineServer) -> PipelineServer:
    return repeating


class Events:
    """The events of a stream, as they come; `status` and `type` of their head."""

    def __init__(self, server: PipelineServer, model: str = "repeat", **fields: Any) -> None:
        self.connection = http.client.HTTPConnection(
            "127.0.0.1", server.http_port, timeout=PATIENCE_S
        )
        path = f"/v2/models/{model}/generate_stream"
        self.connection.request("POST", path, json.dumps(fields))
        self.response = self.connection.getresponse()
        self.status = self.response.status
        self.type = self.response.getheader("content-type")

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *error: object) -> None:
        self.response.close()
        self.connection.close()

    def next(self) -> dict[str, Any]:
        line, end = self.response.readline(), self.response.readline()
        assert line.startswith(b"data: ")
        assert end == b"\n"
        document: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
        return document

    def rest(self) -> list[dict[str, Any]]:
        *events, last = self.response.read().split(b"\n\n")
        assert last == b""
        return [json.loads(event.removeprefix(b"data: ")) for event in events]


def generate(server: PipelineServer, model: str = "repeat", **fields: Any) -> tuple[int, Any]:
    status, headers, answer = ask(server, "POST", f"/v2/models/{model}/generate", fields)
    assert headers["content-type"] == "application/json"
    return status, answer


def test_a_single_answer_is_flat_json(server):
    named = {"model_name": "repeat", "model_version": "1"}
    assert generate(server, IN=5, ASKED="") == (200, {"OUT": 5, "IDX": 0, **named})
    status, answer = generate(server, "twice", IN=[5, 6], ASKED="", id="7")
    assert (status, answer["OUT"], answer["id"]) == (200, [10, 12], "7")
    path = "/v2/models/repeat/versions/1/generate"
    assert ask(server, "POST", path, {"IN": 5, "ASKED": ""})[0] == 200


@pytest.mark.parametrize("numbers", [[], [1, 2]])
def test_none_and_several_answers_are_an_error(server, numbers):
    status, answer = generate(server, IN=numbers, ASKED="")
    assert status == 200
    assert answer["error"].startswith(NOT_ONE)


@pytest.mark.parametrize("model", ["repeat", "svc"])
def test_a_stream_is_an_event_for_each_part(server, model):
    with Events(server, model, IN=[5, 6, 7], ASKED="", id="a") as events:
        assert (events.status, events.type) == (200, EVENTS)
        result = events.rest()
    assert [(item["OUT"], item["IDX"], item["id"]) for item in result] == [
        (5, 0, "a"),
        (6, 1, "a"),
        (7, 2, "a"),
    ]


def test_a_stream_of_a_model_that_answers_once_is_one_event(server):
    with Events(server, "twice", IN=[5], ASKED="") as events:
        (answer,) = events.rest()
    assert answer["OUT"] == 10


def test_a_stream_without_parts_is_empty(server):
    with Events(server, IN=[], ASKED="") as events:
        assert (events.status, events.type, events.rest()) == (200, EVENTS, [])


def test_a_part_is_there_before_the_next_one_is_made(server, seen):
    with Events(server, IN=[1, 2], ASKED="hold") as events:
        assert events.next()["OUT"] == 1
        seen.go.set()
        assert events.next()["OUT"] == 2


def test_an_error_in_the_middle_is_the_last_event(server):
    with Events(server, IN=[1, 2], ASKED="fail") as events:
        first, last = events.rest()
    assert first["OUT"] == 1
    assert "broken in the middle" in last["error"]


def test_an_error_before_the_first_part_has_its_status(server):
    with Events(server, IN=[1], ASKED="fail") as events:
        assert (events.status, events.type) == (500, EVENTS)
        (answer,) = events.rest()
    assert "broken in the middle" in answer["error"]
    assert generate(server, IN=[1], ASKED="fail")[0] == 500


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "expected 2 inputs but got 0 inputs"),
        ({"IN": 1}, "expected 2 inputs but got 1 inputs"),
        ({"IN": "x", "ASKED": ""}, "non-signed-integer as signed-integer"),
        ({"IN": 1, "ASKED": "", "other": [1]}, "parameter 'other' has invalid type"),
        ({"IN": 1, "ASKED": "", "triton_x": 1}, "reserved for Triton usage"),
    ],
)
def test_bad_input_is_refused_on_both_paths(server, fields, text):
    status, answer = generate(server, **fields)
    assert status == 400
    assert text in answer["error"]
    with Events(server, **fields) as events:
        assert (events.status, events.type) == (400, "application/json")
        assert text in json.loads(events.response.read())["error"]


def test_paths_and_methods(server):
    status, _, answer = ask(server, "POST", "/v2/models/nope/generate", {})
    assert (status, answer) == (404, {"error": "Request for unknown model: 'nope' is not found"})
    assert ask(server, "GET", "/v2/models/repeat/generate")[0] == 405
    assert ask(server, "GET", "/v2/models/repeat/generate_stream")[0] == 405
    for accept in (EVENTS, "application/x-ndjson", "*/*"):
        head = ask(server, "HEAD", "/v2/models/repeat/generate_stream", None, {"Accept": accept})
        assert (head[0], head[2]) == (405, None)


def test_the_connection_continues_after_a_stream(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=PATIENCE_S)
    for path in ("generate_stream", "generate", "generate_stream"):
        body = json.dumps({"IN": 1, "ASKED": ""})
        connection.request("POST", f"/v2/models/repeat/{path}", body)
        response = connection.getresponse()
        assert response.status == 200
        assert b'"OUT":1' in response.read()
    connection.close()


def test_a_disconnect_closes_the_generator(server, seen):
    with Events(server, IN=[1, 2], ASKED="endless") as events:
        events.next()
    assert seen.closed.wait(PATIENCE_S)


def test_a_disconnect_before_the_first_part_closes_the_generator(server, seen):
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=PATIENCE_S)
    body = json.dumps({"IN": [1], "ASKED": "hold"})
    connection.request("POST", "/v2/models/repeat/generate_stream", body)
    assert seen.begun.wait(PATIENCE_S)
    connection.close()
    seen.go.set()
    assert seen.closed.wait(PATIENCE_S)


def test_a_client_that_does_not_read_pauses_the_generator(server, seen):
    with Events(server, IN=[1, 2], ASKED="endless", id="x" * 60_000) as events:
        events.next()
        before = seen.made_at_rest()
        assert before < 1000
        for _ in range(before):
            events.next()
    assert seen.closed.wait(PATIENCE_S)
