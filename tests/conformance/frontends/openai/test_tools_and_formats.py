"""The official client gets tools, JSON of a schema and log probabilities, whole and in parts."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai_models import SaysAllAtOnce, SaysPrompt, client_of, openai_server
from pydantic import BaseModel

TOLD = {
    "models": {"told": {"messages": "messages"}, "text": {"messages": "messages", "supports": []}}
}


class Weather(BaseModel):
    city: str
    days: int


PARIS = Weather(city="Paris", days=3)
TEXT = PARIS.model_dump_json()
TOOL = openai.pydantic_function_tool(Weather)
TOKENS = [
    {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "b", "logprob": -1}]},
    {"token": " b", "logprob": -2},
]


@pytest.fixture(scope="module", params=["embedded", "gateway"])
def servers(request: Any) -> Iterator[list[tuple[openai.OpenAI, Any]]]:
    """A client of an Op that answers in parts, one of an Op that answers at once; and the Ops."""
    if request.param == "gateway":
        request.getfixturevalue("gateway_binary")
    with contextlib.ExitStack() as stack:
        collected = []
        for op in (SaysPrompt(), SaysAllAtOnce()):
            server = stack.enter_context(openai_server(op, TOLD, http_server=request.param))
            collected.append((stack.enter_context(client_of(server)), op))
        yield collected


@pytest.fixture
def client(servers: Any) -> openai.OpenAI:
    return servers[0][0]


def ask(*parts: Any, **more: Any) -> dict[str, Any]:
    """A chat that is answered with these parts."""
    messages = [{"role": "user", "content": json.dumps(parts)}]
    return {"model": "told", "messages": messages, **more}


def call(index: int, arguments: str) -> dict[str, Any]:
    """A part of a call, which says id and name each time."""
    fields = {"name": "Weather", "arguments": arguments}
    return {"index": index, "id": f"c{index}", "type": "function", "function": fields}


def pieces(index: int) -> list[dict[str, Any]]:
    return [call(index, TEXT[at : at + 9]) for at in range(0, len(TEXT), 9)]


SIDE_BY_SIDE = [{"tool_calls": [*both]} for both in zip(pieces(0), pieces(1), strict=True)]


@pytest.mark.parametrize("parts", [[{"text": TEXT}], [{"text": item} for item in TEXT]])
def test_json_of_a_schema(client, parts):
    task = ask(*parts, response_format=Weather)
    assert client.chat.completions.parse(**task).choices[0].message.parsed == PARIS
    with client.chat.completions.stream(**task) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == PARIS


@pytest.mark.parametrize("at", [0, 1])
def test_calls_of_tools(servers, at):
    client, op = servers[at]
    whole = [{"tool_calls": [call(0, TEXT), call(1, TEXT)]}]
    task = ask(*(SIDE_BY_SIDE if at == 0 else whole), tools=[TOOL], tool_choice="required")
    done = client.chat.completions.parse(**task).choices[0]
    with client.chat.completions.stream(**task) as stream:
        streamed = stream.get_final_completion().choices[0]
    for choice in (done, streamed):
        calls = choice.message.tool_calls
        assert [(item.id, item.function.parsed_arguments) for item in calls] == [
            ("c0", PARIS), ("c1", PARIS)
        ]  # fmt: skip
        assert choice.finish_reason == "tool_calls"
    assert (op.asked[-1]["tool_choice"], op.asked[-1]["tools"]) == ("required", [TOOL])


def test_a_response_may_have_interleaved_calls_and_text(client):
    parts = [SIDE_BY_SIDE[0], {"text": "so"}, *SIDE_BY_SIDE[1:], {"tool_calls": [call(0, "\n")]}]
    tool = {"type": "function", **TOOL["function"]}
    request = {"model": "told", "input": json.dumps(parts), "tools": [tool]}
    ended = {}
    with client.responses.stream(**request) as events:
        for event in events:
            if event.type == "response.output_item.done":
                assert event.output_index not in ended
                ended[event.output_index] = event.item.to_dict()
            if event.type.endswith(".delta"):
                assert event.output_index not in ended
        output = events.get_final_response().output
    assert [item.type for item in output] == ["function_call", "message", "function_call"]
    assert [output[at].parsed_arguments for at in (0, 2)] == [PARIS.model_dump()] * 2
    assert [output[at].call_id for at in (0, 2)] == ["c0", "c1"]
    assert output[1].content[0].text == "so"
    assert [ended[at]["arguments"].strip() for at in (0, 2)] == [TEXT, TEXT]


def test_id_and_name_are_sent_once_and_arguments_by_index(client):
    stream = client.chat.completions.create(**ask(*SIDE_BY_SIDE, tools=[TOOL]), stream=True)
    deltas = [item.choices[0].delta.tool_calls or [] for item in stream]
    calls = [item for several in deltas for item in several]
    assert [item.index for item in calls] == sorted(item.index for item in calls)
    for index in (0, 1):
        first, *others = [item for item in calls if item.index == index]
        assert (first.id, first.function.name) == (f"c{index}", "Weather")
        assert {(item.id, item.function.name) for item in others} <= {(None, None)}


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_and_reasoning_are_returned(client, stream):
    part = {"text": "a b", "logprobs": TOKENS, "reasoning_content": "hm"}
    task = ask(part, logprobs=True, top_logprobs=1, n=2)
    if stream:
        with client.chat.completions.stream(**task) as events:
            done = events.get_final_completion()
    else:
        done = client.chat.completions.create(**task)
    for choice in done.choices:
        first, second = choice.logprobs.content
        assert (first.token, first.logprob, first.bytes) == ("a", -0.5, [97])
        assert (first.top_logprobs[0].token, second.top_logprobs) == ("b", [])
        assert choice.message.reasoning_content == "hm"
        assert choice.message.content == "a b"


def test_sound_and_pictures(client):
    picture = {"type": "image_url", "image_url": {"url": "data:,"}}
    parts = [{"audio": {"data": "YQ==", "transcript": item}} for item in "ab"]
    task = ask(*parts, {"images": [picture]}, modalities=["audio"], audio={"voice": "v"})
    message = client.chat.completions.create(**task).choices[0].message
    assert (message.audio.transcript, message.content) == ("ab", None)
    assert message.model_extra["images"] == [picture]


@pytest.mark.parametrize("parts", [[], [{}], [{"text": ""}]])
def test_an_empty_choice_ends_with_a_reason_and_counts_are_zeros(client, parts):
    done = client.chat.completions.create(**ask(*parts))
    assert (done.choices[0].message.content, done.choices[0].finish_reason) == ("", "stop")
    assert done.usage.total_tokens == 0
    *chunks, last = client.chat.completions.create(
        **ask(*parts, n=2), stream=True, stream_options={"include_usage": True}
    )
    reasons = {chunk.choices[0].index: chunk.choices[0].finish_reason for chunk in chunks}
    assert reasons == {0: "stop", 1: "stop"}
    assert ["usage" in chunk.model_fields_set for chunk in chunks] == [False] * len(chunks)
    assert (last.choices, last.usage.total_tokens) == ([], 0)


@pytest.mark.parametrize("first", [{"text": "a"}, {"tool_calls": [call(0, "{")]}])
def test_an_error_after_the_first_part_is_raised(client, first):
    stream = client.chat.completions.create(**ask(first, "out of words"), stream=True)
    with pytest.raises(openai.APIError, match="out of words") as caught:
        list(stream)
    assert (caught.value.code, caught.value.type) == ("52", "invalid_request_error")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("param", "code", "more"),
    [
        ("tools[0].function.name", "missing_required_parameter",
         {"tools": [{"type": "function", "function": {}}]}),
        ("response_format.json_schema.schema.type", "invalid_json_schema",
         {"response_format": {"type": "json_schema",
                              "json_schema": {"name": "s", "schema": {"type": "x"}}}}),
        ("tools", "unsupported_parameter", {"model": "text", "tools": [TOOL]}),
        ("top_logprobs", "integer_above_max_value", {"logprobs": True, "top_logprobs": 99}),
        ("messages[0].content", "invalid_type", {"messages": [{"role": "system", "content": 3}]}),
    ],
)  # fmt: skip
def test_a_refusal_has_a_path_and_a_code(client, param, code, more, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{**ask({"text": "a"}), **more}, stream=stream)
    assert (caught.value.param, caught.value.code) == (param, code)


@pytest.mark.parametrize(
    "part", [{"tool_calls": "f"}, {"logprobs": [{}]}, {"audio": 3}, {"tool_calls": [{"index": 3}]}]
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_invalid_answer_is_an_error_of_the_server(client, part, stream):
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(**ask(part), stream=stream)
