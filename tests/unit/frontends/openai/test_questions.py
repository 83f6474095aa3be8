"""The requests that a body makes, and the argument that an error about a body names."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.frontends.openai.errors import ArgumentError
from pipeline.frontends.openai.options import ModelOptions
from pipeline.frontends.openai.questions import (
    chat_questions,
    completion_questions,
    embedding_questions,
)

MODEL = ModelOptions()
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CHOSEN = {"type": "function", "function": {"name": "f"}}


def completion_of(model: ModelOptions = MODEL, **body):
    """Return the requests that completions of the prompt "a" make."""
    return completion_questions({"model": "m", "prompt": "a", **body}, model)


def chat(messages):
    return chat_questions({"model": "m", "messages": messages}, MODEL)


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, {}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5, "max_tokens": 9}, {"max_tokens": 5}),
        ({"max_tokens": 9, "max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"temperature": 0, "top_p": 0.5}, {"temperature": 0, "top_p": 0.5}),
        ({"stop": "x"}, {"stop": ["x"]}),
        ({"stop": None, "seed": None, "n": None, "logprobs": None}, {}),
        ({"extra": {"of": ["mine"]}}, {"extra": {"of": ["mine"]}}),
        ({"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"}, {}),
        ({"n": 1, "best_of": 1, "stream": True, "echo": False, "suffix": ""}, {}),
        ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}, {}),
        ({"tool_choice": "none", "logprobs": False}, {}),
        ({"tools": [TOOL], "tool_choice": "none"}, {"tools": [TOOL], "tool_choice": "none"}),
        (
            {"tools": [TOOL], "parallel_tool_calls": False, "tool_choice": CHOSEN},
            {"tools": [TOOL], "parallel_tool_calls": False, "tool_choice": CHOSEN},
        ),
        (
            {"response_format": {"type": "json_object"}},
            {"response_format": {"type": "json_object"}},
        ),
        (
            {"logprobs": 0, "echo": True, "suffix": "x"},
            {"logprobs": 0, "echo": True, "suffix": "x"},
        ),
        (
            {"modalities": ["text", "audio"], "audio": {"voice": "v"}},
            {"modalities": ["text", "audio"], "audio": {"voice": "v"}},
        ),
        ({"response_format": {"type": "text"}, "modalities": ["text"]}, {}),
    ],
)
def test_fields_of_a_body_become_fields_of_the_request(body, fields):
    assert completion_of(**body).fields == [{"prompt": "a", **fields}]


def test_keys_are_the_pipelines():
    model = ModelOptions(
        prompt="words", keys={"max_tokens": "most", "stop": "ends", "seed": "from"}
    )
    result = completion_of(model, max_completion_tokens=3, stop=["x"], seed=1, n=2)
    one = {"words": "a", "most": 3, "ends": ["x"]}
    assert result.fields == [{**one, "from": 1}, {**one, "from": 2}]
    assert (result.choices, result.stops) == (2, ["x"])


def test_choices_of_a_prompt_follow_each_other():
    result = completion_questions({"prompt": ["a", "b"], "n": 2, "best_of": 2}, MODEL)
    assert [field["prompt"] for field in result.fields] == ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("prompt", {"prompt": None}),
        ("prompt", {"prompt": 3}),
        ("prompt[1]", {"prompt": ["a", 3]}),
        ("prompt[0]", {"prompt": [[]]}),
        ("prompt[0][1]", {"prompt": [[1, -2]]}),
        ("prompt[1]", {"prompt": [1, 2**31]}),
        ("prompt[1]", {"prompt": ["a", 1]}),
        ("prompt[0]", {"prompt": [True]}),
        ("prompt[1]", {"prompt": [[1, 2], []]}),
        ("prompt[2]", {"prompt": [1, 2, "a"]}),
        ("prompt[1]", {"prompt": [1, -2]}),
        ("prompt[0][1]", {"prompt": [[1, 2**31]]}),
        ("prompt[0][1]", {"prompt": [[1, True]]}),
        ("logprobs", {"logprobs": True}),
        ("logprobs", {"logprobs": -1}),
        ("echo", {"echo": 1}),
        ("suffix", {"suffix": 1}),
        ("tool_choice", {"tool_choice": "required"}),
        ("parallel_tool_calls", {"parallel_tool_calls": 1}),
        ("modalities", {"modalities": "audio"}),
        ("max_tokens", {"max_tokens": "5"}),
        ("max_tokens", {"max_tokens": 1.5}),
        ("max_tokens", {"max_tokens": True}),
        ("max_completion_tokens", {"max_completion_tokens": -1}),
        ("seed", {"seed": "x"}),
        ("n", {"n": 0}),
        ("n", {"n": 129}),
        ("n", {"n": True}),
        ("n", {"n": 2, "prompt": ["a"] * 1025}),
        ("best_of", {"best_of": 2}),
        ("best_of", {"best_of": 3, "n": 2}),
        ("temperature", {"temperature": "hot"}),
        ("temperature", {"temperature": False}),
        ("logit_bias", {"logit_bias": []}),
        ("stop", {"stop": 3}),
        ("stop", {"stop": ""}),
        ("stop", {"stop": ["a"] * 17}),
        ("stop[1]", {"stop": ["a", ""]}),
        ("stop[0]", {"stop": [None]}),
        ("stop[0]", {"stop": ["x" * 257]}),
        ("stream", {"stream": 1}),
        ("stream_options", {"stream": True, "stream_options": True}),
        ("stream_options", {"stream_options": {"include_usage": True}}),
        ("stream_options.include_usage", {"stream": True, "stream_options": {"include_usage": 1}}),
    ],
)
def test_the_argument_that_is_wrong_is_named(param, body):
    with pytest.raises(ArgumentError) as caught:
        completion_of(**body)
    assert caught.value.param == param
    assert str(caught.value).startswith((param, "more than"))


@pytest.mark.parametrize(
    ("param", "messages"),
    [
        ("messages", None),
        ("messages", []),
        ("messages", {"role": "user"}),
        ("messages[1]", [*HELLO, "hello"]),
        ("messages[1].role", [*HELLO, {"content": "a"}]),
        ("messages[0].content", [{"role": "user"}]),
        ("messages[0].content", [{"role": "user", "content": 3}]),
        ("messages[0].content[0]", [{"role": "user", "content": [{"type": "image_url"}]}]),
        ("messages[0].content[0]", [{"role": "user", "content": ["a"]}]),
        ("messages[0].content[1].text", [{"role": "user", "content": [
            {"type": "text", "text": "a"}, {"type": "text", "text": 3}]}]),
        ("messages[1].content", [{"role": "system", "content": "a"},
                                 {"role": "system", "content": {"a": 1}}, *HELLO]),
        ("messages[1].content[0].type", [*HELLO, {"role": "system", "content": [{"text": "a"}]}]),
        ("messages[1].tool_call_id", [*HELLO, {"role": "tool", "content": "a"}]),
        ("messages[0].tool_calls", [{"role": "assistant", "tool_calls": {}}]),
        ("messages[0].tool_calls[0]", [{"role": "assistant", "tool_calls": [{"type": []}]}]),
        ("messages[0].tool_calls[0].function.name", [
            {"role": "assistant", "tool_calls": [{"type": "function", "function": {}}]}]),
    ],
)  # fmt: skip
def test_the_message_that_is_wrong_is_named(param, messages):
    with pytest.raises(ArgumentError) as caught:
        chat(messages)
    assert caught.value.param == param


def test_a_chat_is_a_prompt_or_its_messages():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat(HELLO).fields == [{"prompt": "hello"}]
    turns = [*HELLO, {"role": "assistant", "content": parts}]
    assert chat(turns).fields == [{"prompt": "user: hello\nassistant: ab\nassistant:"}]
    model = ModelOptions(messages="talk")
    called = {"role": "assistant", "tool_calls": [{"id": "1", **CHOSEN}]}
    answered = {"role": "tool", "tool_call_id": "1", "content": "3"}
    turns = [*HELLO, called, answered]
    assert chat(turns).fields == [{"prompt": "user: hello\nassistant: \ntool: 3\nassistant:"}]
    pictures = [{"role": "user", "content": [{"type": "image_url"}]}]
    result = chat_questions({"messages": pictures, "n": 2}, model)
    assert result.fields == [{"talk": pictures}] * 2


def test_prompts_of_tokens():
    assert completion_of(prompt=[1, 2]).fields == [{"prompt": [1, 2]}]
    result = completion_of(prompt=[[1, 2], "a", [3]])
    assert [field["prompt"] for field in result.fields] == [[1, 2], "a", [3]]
    result = embedding_questions({"input": [[1], [2, 3]]}, MODEL)
    assert [field["input"] for field in result.fields] == [[1], [2, 3]]


def function(**more: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", **more}}]}


def schema(**more: Any) -> dict[str, Any]:
    fields = {"name": "s", "schema": more}
    return {"response_format": {"type": "json_schema", "json_schema": fields}}


PLACE, FUNCTION = "response_format.json_schema", "tools[0].function"


@pytest.mark.parametrize(
    ("param", "code", "body"),
    [
        ("tools", "invalid_type", {"tools": {}}),
        ("tools[0]", "invalid_type", {"tools": ["f"]}),
        ("tools[0].type", "missing_required_parameter", {"tools": [{}]}),
        (FUNCTION, "missing_required_parameter", {"tools": [{"type": "function"}]}),
        (f"{FUNCTION}.name", "missing_required_parameter", function(name=None)),
        (f"{FUNCTION}.name", "empty_string", function(name="")),
        (f"{FUNCTION}.name", "invalid_type", function(name=3)),
        (f"{FUNCTION}.parameters", "invalid_type", function(parameters=[])),
        (f"{FUNCTION}.parameters.type", "invalid_json_schema", function(parameters={"type": "x"})),
        (f"{FUNCTION}.parameters.type", "invalid_json_schema",
         function(parameters={"type": "array"})),
        ("tool_choice", "invalid_value", {**function(), "tool_choice": "some"}),
        ("tool_choice", "invalid_type", {**function(), "tool_choice": 3}),
        ("tool_choice.function", "missing_required_parameter",
         {**function(), "tool_choice": {"type": "function"}}),
        ("tool_choice.function.name", "invalid_value",
         {**function(), "tool_choice": {"type": "function", "function": {"name": "g"}}}),
        ("response_format", "invalid_type", {"response_format": "json"}),
        ("response_format.type", "missing_required_parameter", {"response_format": {"a": 1}}),
        (PLACE, "missing_required_parameter", {"response_format": {"type": "json_schema"}}),
        (f"{PLACE}.name", "missing_required_parameter",
         {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}),
        (f"{PLACE}.schema.type", "invalid_json_schema", schema(type=["object", "none"])),
        (f"{PLACE}.schema.required", "invalid_json_schema", schema(required="a")),
        (f"{PLACE}.schema.enum", "invalid_json_schema", schema(enum="a")),
        (f"{PLACE}.schema.properties", "invalid_json_schema", schema(properties=[])),
        (f"{PLACE}.schema.properties.a", "invalid_json_schema", schema(properties={"a": 3})),
        (f"{PLACE}.schema.anyOf[1].items", "invalid_json_schema",
         schema(anyOf=[True, {"items": "a"}])),
        ("top_logprobs", "invalid_value", {"top_logprobs": 2}),
        ("top_logprobs", "integer_above_max_value", {"logprobs": True, "top_logprobs": 21}),
        ("logprobs", "invalid_type", {"logprobs": 3}),
        ("n", "integer_above_max_value", {"n": 129}),
        ("max_tokens", "integer_below_min_value", {"max_tokens": -1}),
    ],
)  # fmt: skip
def test_an_invalid_chat_is_refused_with_path_and_code(param, code, body):
    with pytest.raises(ArgumentError) as caught:
        chat_questions({"model": "m", "messages": HELLO, **body}, MODEL)
    assert (caught.value.param, caught.value.reason) == (param, code)


@pytest.mark.parametrize(
    ("feature", "param", "body"),
    [
        ("tools", "tools", {"tools": [TOOL]}),
        ("json_object", "response_format", {"response_format": {"type": "json_object"}}),
        ("json_schema", "response_format", schema(type="object")),
        ("logprobs", "logprobs", {"logprobs": True}),
        ("audio", "modalities", {"modalities": ["audio"]}),
        ("images", "messages[0].content[0]",
         {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    ],
)  # fmt: skip
def test_an_unsupported_feature_is_refused(feature, param, body):
    talk = {"messages": HELLO, **body}
    with pytest.raises(ArgumentError) as caught:
        chat_questions(talk, ModelOptions(messages="talk", supports=["echo"]))
    assert (caught.value.param, caught.value.reason) == (param, "unsupported_parameter")
    assert f"({feature}): it supports echo" in str(caught.value)
    supports = ModelOptions(messages="talk", supports=[feature])
    assert (
        chat_questions(talk, supports).fields
        == chat_questions(talk, ModelOptions(messages="talk")).fields
    )


def test_an_ignored_key_reaches_a_model_that_names_it():
    result = completion_of(ModelOptions(keys={"user": "who"}), user="u", store=True)
    assert result.fields == [{"prompt": "a", "who": "u"}]


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("input", {}),
        ("input", {"input": []}),
        ("input", {"input": {"a": 1}}),
        ("input[2][0]", {"input": ["a", "b", [-1]]}),
        ("input[1]", {"input": [15339, "a"]}),
        ("input[2]", {"input": ["a", "b", []]}),
        ("input[1]", {"input": [15339, 19.5]}),
        ("encoding_format", {"input": "a", "encoding_format": "hex"}),
        ("encoding_format", {"input": "a", "encoding_format": ["float"]}),
        ("dimensions", {"input": "a", "dimensions": 0}),
        ("dimensions", {"input": "a", "dimensions": "4"}),
    ],
)
def test_the_input_that_is_wrong_is_named(param, body):
    with pytest.raises(ArgumentError) as caught:
        embedding_questions(body, MODEL)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("a", ["a"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        (["a", [1]], ["a", [1]]),
    ],
)
def test_a_text_may_be_a_list_of_tokens(given, found):
    for read, name in ((completion_questions, "prompt"), (embedding_questions, "input")):
        assert read({"model": "m", name: given}, MODEL).fields == [{name: item} for item in found]
