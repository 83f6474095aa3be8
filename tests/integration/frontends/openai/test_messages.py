"""`/v1/messages` as Anthropic's clients ask it; they themselves ask it in `make clients`."""

from __future__ import annotations

import json
import urllib.request

import pytest
from clients.model import scripted_server
from doubles import http

TOOL = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
TEXT = "Hello from the scripted model"


@pytest.fixture(scope="module")
def server():
    with scripted_server() as server:
        yield server


def body_of(content="say hello", **asked):
    messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
    return {"model": "scripted", "max_tokens": 50, "messages": messages, **asked}


def ask(server, content="say hello", **asked):
    status, _, said = http(server, "POST", "/v1/messages", body_of(content, **asked))
    return status, said


def events_of(server, content="say hello", **asked):
    """The names of the events, and what they say."""
    url = f"http://127.0.0.1:{server.http_port}/v1/messages"
    body = json.dumps(body_of(content, stream=True, **asked)).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
        events = [event.split("\n") for event in answer.read().decode().strip().split("\n\n")]
    document = [(name.removeprefix("event: "), json.loads(data[6:])) for name, data in events]
    assert all(name == said["type"] for name, said in document)
    return document


def test_a_message(server):
    status, said = ask(server, system=[{"type": "text", "text": "be short"}], top_k=5)
    assert (status, said["type"], said["role"], said["model"]) == (
        *(200, "message", "assistant"),
        "scripted",
    )
    assert said["content"] == [{"type": "text", "text": TEXT}]
    assert (said["stop_reason"], said["stop_sequence"]) == ("end_turn", None)
    assert said["usage"] == {"input_tokens": 2, "output_tokens": 5}


def test_why_it_has_ended(server):
    assert ask(server, max_tokens=2)[1]["stop_reason"] == "max_tokens"
    _, said = ask(server, stop_sequences=[" scripted"])
    assert said["content"] == [{"type": "text", "text": "Hello from the"}]
    assert (said["stop_reason"], said["stop_sequence"]) == ("stop_sequence", " scripted")


def test_events_of_a_text(server):
    events = events_of(server)
    assert [name for name, _ in events] == [
        *("message_start", "content_block_start"),
        *["content_block_delta"] * 5,
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    deltas = [said["delta"] for name, said in events if name == "content_block_delta"]
    assert "".join(item["text"] for item in deltas) == TEXT
    assert events[0][1]["message"]["usage"] == {"input_tokens": 0, "output_tokens": 0}
    ended = events[-2][1]
    assert ended["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert ended["usage"] == {"input_tokens": 2, "output_tokens": 5}


def test_tools_are_called_and_answered(server):
    _, said = ask(server, tools=[TOOL], tool_choice={"type": "any"})
    (call,) = said["content"]
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "weather", {"city": "Ada"})
    assert said["stop_reason"] == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "sunny"}
    turns = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": said["content"]},
        {"role": "user", "content": [result]},
    ]
    assert ask(server, turns, tools=[TOOL])[1]["content"][0]["text"] == "The tool says: sunny"


def test_events_of_a_call(server):
    events = events_of(server, tools=[TOOL], tool_choice={"type": "tool", "name": "weather"})
    block = events[1][1]["content_block"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "weather", {})
    deltas = [said["delta"] for name, said in events if name == "content_block_delta"]
    assert "".join(item["partial_json"] for item in deltas) == '{"city": "Ada"}'
    assert events[-2][1]["delta"]["stop_reason"] == "tool_use"


def test_an_error_after_the_first_event_is_the_last_one(server):
    *_, (name, said) = events_of(server, "fail late")
    assert (name, said["error"]["message"]) == ("error", "the script breaks off")
    assert said["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("status", "kind", "param", "asked"),
    [
        (404, "not_found_error", "model", {"model": "none"}),
        (400, "invalid_request_error", "max_tokens", {"max_tokens": None}),
        (400, "invalid_request_error", "max_tokens", {"max_tokens": "many"}),
        (400, "invalid_request_error", "messages", {"content": []}),
        (400, "invalid_request_error", "messages[0].role", {"content": [{"role": "x"}]}),
        (400, "invalid_request_error", "messages[0].content", {"content": [{"role": "user"}]}),
        (400, "invalid_request_error", "system", {"system": 5}),
        (400, "invalid_request_error", "system[0]", {"system": [{"type": "x"}]}),
        (400, "invalid_request_error", "tools", {"tools": {"a": 1}}),
        (400, "invalid_request_error", "tools[0].name", {"tools": [{}]}),
        (400, "invalid_request_error", "tool_choice.type", {"tool_choice": {"type": "x"}}),
        (400, "invalid_request_error", "tool_choice.type", {"tool_choice": {"type": []}}),
        (400, "invalid_request_error", None, {"content": "refuse"}),
    ],
)
def test_errors_have_anthropics_form(server, status, kind, param, asked):
    for stream in (False, True):
        result, said = ask(server, **asked, stream=stream)
        assert (result, said["type"]) == (status, "error")
        assert (said["error"]["type"], said["error"]["param"]) == (kind, param)
        assert said["error"]["message"]


def test_a_number_that_cannot_be_passed_on_is_the_clients_mistake(server):
    block = {"type": "tool_use", "id": "a", "name": "f", "input": {"n": 2**70}}
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": [block]}]
    status, said = ask(server, turns)
    assert status == 400
    assert "input cannot be passed on" in said["error"]["message"]
