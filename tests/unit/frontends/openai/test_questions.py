"""What pipelines are asked for a body, and which argument is named in the error about another."""

from __future__ import annotations

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


def asked(model: ModelOptions = MODEL, **body):
    """What completions of the prompt "a" ask."""
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
        ({"response_format": {"type": "text"}, "modalities": ["text"]}, {}),
    ],
)
def test_what_is_handed_on(body, fields):
    assert asked(**body).fields == [{"prompt": "a", **fields}]


def test_keys_are_the_pipelines():
    model = ModelOptions(
        prompt="words", keys={"max_tokens": "most", "stop": "ends", "seed": "from"}
    )
    found = asked(model, max_completion_tokens=3, stop=["x"], seed=1, n=2)
    one = {"words": "a", "most": 3, "ends": ["x"]}
    assert found.fields == [{**one, "from": 1}, {**one, "from": 2}]
    assert (found.each, found.stops) == (2, ["x"])


def test_choices_of_a_prompt_stand_behind_each_other():
    found = completion_questions({"prompt": ["a", "b"], "n": 2, "best_of": 2}, MODEL)
    assert [each["prompt"] for each in found.fields] == ["a", "a", "b", "b"]


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
        asked(**body)
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
    pictures = [{"role": "user", "content": [{"type": "image_url"}]}]
    found = chat_questions({"messages": pictures, "n": 2}, model)
    assert found.fields == [{"talk": pictures}] * 2


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("input", {}),
        ("input", {"input": []}),
        ("input", {"input": {"a": 1}}),
        ("input[2][0]", {"input": ["a", "b", [-1]]}),
        ("input[1]", {"input": [15339, "a"]}),
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
        assert read({"model": "m", name: given}, MODEL).fields == [{name: each} for each in found]
