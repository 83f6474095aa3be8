"""Answers that are held to what a chat asks for, and ChatRequest as a schema."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.errors import PackageError, ProductError
from pipeline.openai import ChatRequest, Delta, held_to_format
from pipeline.schema.bound import bind

SCHEMA = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
FORM = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
HELLO: Any = [{"role": "user", "content": "hello"}]


class Script:
    """A model with prepared answers, given in order."""

    def __init__(self, *answers: Any) -> None:
        self.answers = [*answers]
        self.asked: list[ChatRequest] = []

    def __call__(self, ask: ChatRequest) -> Delta:
        self.asked.append(ask)
        return self.answers.pop(0)


def call(arguments: str, name: str = "f") -> dict[str, Any]:
    return {"tool_calls": [{"id": "c", "function": {"name": name, "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("more", "answer"),
    [
        ({}, {"text": "no JSON"}),
        ({"response_format": {"type": "text"}}, {"text": "no JSON"}),
        ({"response_format": FORM}, {"text": '{"a": 1}'}),
        ({"response_format": {"type": "json_object"}}, {"text": "{}"}),
        ({"tools": [TOOL], "response_format": FORM}, call('{"a": 1}')),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, call("")),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": None}}]},
         call("")),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": None}}},
         {"text": "{}"}),
        ({"response_format": {"type": "json_object", "json_schema": None}}, {"text": "{}"}),
    ],
)  # fmt: skip
def test_a_valid_answer_is_generated_once(more, answer):
    write = Script(answer)
    ask: Any = {"messages": HELLO, **more}
    assert held_to_format(ask, write) is answer
    assert write.asked == [ask]


@pytest.mark.parametrize(
    ("more", "wrong", "right", "fault"),
    [
        ({"response_format": FORM}, {"text": "{"}, {"text": '{"a": 1}'}, "it is not JSON"),
        ({"response_format": FORM}, {}, {"text": '{"a": 1}'}, "it is not JSON"),
        ({"response_format": FORM}, {"text": '{"a": "b"}'}, {"text": '{"a": 1}'},
         "a: expected integer, found string"),
        ({"response_format": {"type": "json_object"}}, {"text": "[]"}, {"text": "{}"},
         "expected object, found array"),
        ({"tools": [TOOL]}, call("{}"), call('{"a": 1}'), "arguments of f: the key 'a' is missing"),
        ({"tools": [TOOL]}, call("{}", "g"), call('{"a": 1}'), "there is no tool 'g'"),
    ],
)  # fmt: skip
def test_an_invalid_answer_is_requested_again_with_the_fault(more, wrong, right, fault):
    wrong, right = {"prompt_tokens": 2, **wrong}, {"prompt_tokens": 5, **right}
    write = Script(wrong, right)
    held = held_to_format({"messages": HELLO, **more}, write)
    assert {**held, "prompt_tokens": 5} == {**right, "prompt_tokens": 5}
    assert held["prompt_tokens"] == 7
    again = write.asked[1]["messages"]
    assert again[: len(HELLO)] == HELLO
    assert [item["role"] for item in again[len(HELLO) :]] == ["assistant", "user"]
    assert fault in again[-1]["content"]


def test_counts_of_both_answers_are_added():
    usage = {"prompt_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 1}}
    write = Script({"text": "a", "usage": usage}, {"text": "{}", "usage": {"prompt_tokens": 5}})
    held = held_to_format({"messages": HELLO, "response_format": {"type": "json_object"}}, write)
    assert held == {"text": "{}", "usage": {**usage, "prompt_tokens": 7}}


def test_a_second_invalid_answer_is_an_error():
    with pytest.raises(ProductError, match="form either: it is not JSON") as caught:
        held_to_format(
            {"messages": HELLO, "response_format": FORM}, Script({"text": "a"}, {"text": "b"})
        )
    assert caught.value.status == 502


def test_a_schema_that_cannot_be_checked_is_the_callers_fault():
    form: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"$ref": "#"}}}
    with pytest.raises(PackageError):
        held_to_format({"messages": HELLO, "response_format": form}, Script({"text": "{}"}))


def test_a_chat_has_a_schema_that_keeps_other_keys():
    schema = bind(ChatRequest)
    ask = {"messages": [*HELLO, {"role": "user", "content": [{"type": "text", "text": "a"}]}]}
    more = {"tools": [TOOL], "response_format": FORM, "max_tokens": 3, "my_own": [1]}
    assert schema.check({**ask, **more}) == {**ask, **more}
    with pytest.raises(PackageError, match=r"^messages\[0\].role: expected str, found int"):
        schema.check({"messages": [{"role": 3}]})
