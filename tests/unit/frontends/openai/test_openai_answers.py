"""Texts, counts and reasons of a pipeline's answers, and OpenAI's objects that are made of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from pipeline.errors import PayloadTypeError
from pipeline.frontends.openai.answers import (
    Choice,
    counts_of,
    embeddings,
    text_of,
    usage_of,
)
from pipeline.frontends.openai.options import ModelOptions
from pipeline.frontends.openai.questions import Questions
from pipeline.frontends.openai.writers import ChatWriter, CompletionWriter

PLAIN, COUNTED = Questions([]), Questions([], has_usage=True)


def chunks_of(events: bytes) -> list[Any]:
    """The chunks that events have, without the end."""
    lines = [line.removeprefix("data: ") for line in events.decode().split("\n\n") if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize(
    "value", ["é", b"\xc3\xa9", ["é"], ("é",), np.array(["é"]), np.array([["é"]], dtype=object)]
)
def test_a_text_alone_or_in_an_array_of_one(value):
    assert text_of({"text": value}, "text") == "é"


@pytest.mark.parametrize("value", [None, 3, [], ["a", "b"], {"a": 1}, np.arange(2)])
def test_what_is_no_text(value):
    with pytest.raises(PayloadTypeError, match="no text under 'text', but other, text"):
        text_of({"other": 1, "text": value}, "text")


def test_half_a_character_is_written_as_what_it_is():
    choice = Choice(0, "text")
    body = ChatWriter("m", PLAIN).whole([(choice, choice.whole({"text": "a\ud800"}))])
    assert json.loads(body)["choices"][0]["message"]["content"] == "a\\ud800"


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({}, None),
        ({"prompt_tokens": None}, None),
        ({"prompt_tokens": 3}, (3, 0)),
        ({"completion_tokens": np.array([1, 2, 3])}, (0, 3)),  # the last part of several
        ({"prompt_tokens": np.int64(2), "completion_tokens": np.array([[4.0]])}, (2, 4)),
    ],
)
def test_counts(payload, expected):
    found = counts_of(payload)
    assert (found and tuple(found.values())) == expected


@pytest.mark.parametrize("value", ["many", -1, 2**60, 2**80, float("nan"), [], [[]]])
def test_what_is_no_count(value):
    with pytest.raises(PayloadTypeError, match="whole numbers"):
        counts_of({"prompt_tokens": value})


def test_sums_count_each_prompt_once():
    counts = [counts_of({"prompt_tokens": 2, "completion_tokens": at}) for at in range(4)]
    assert usage_of(counts, 2) == {
        "prompt_tokens": 4, "completion_tokens": 6, "total_tokens": 10
    }  # fmt: skip
    assert usage_of([None, counts[1]]) == {
        "prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3
    }  # fmt: skip
    assert usage_of([None, None]) == {
        "prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0
    }  # fmt: skip


def test_the_latest_reason_and_counts_of_parts_hold():
    choice = Choice(0, "text", in_parts=True)
    parts: list[dict[str, Any]] = [
        {"text": "a", "completion_tokens": 1},
        {"text": "b", "completion_tokens": 2},
        {"finish_reason": "length"},
    ]
    assert [choice.take(part) for part in parts] == [{"text": "a"}, {"text": "b"}, {}]
    assert (choice.reason, choice.counts) == ("length", counts_of(parts[1]))


def test_reasons_that_became_one_text_are_the_last_of_them():
    choice = Choice(0, "text")
    choice.take({"text": "ab", "finish_reason": "stoplength"})
    assert choice.reason == "length"
    choice.take({"text": "ab", "finish_reason": "my own"})
    assert choice.reason == "my own"


@pytest.mark.parametrize("all_of_them", [{}, {"finish_reason": "stop"}, {"completion_tokens": 0}])
def test_of_parts_none_may_have_a_text(all_of_them):
    choice = Choice(0, "text", in_parts=True)
    assert (choice.take(all_of_them), choice.rest(), choice.reason) == ({}, {}, "stop")
    with pytest.raises(PayloadTypeError):
        choice.take({"other": 1})


def test_one_answer_without_text_is_none_whatever_it_counts():
    with pytest.raises(PayloadTypeError):
        Choice(0, "text").take({"prompt_tokens": 3})


@pytest.mark.parametrize("kind", [ChatWriter, CompletionWriter])
def test_chunks_say_who_speaks_once_for_each_choice(kind):
    writer = kind("m", COUNTED)
    choices = [Choice(0, "text"), Choice(1, "text")]
    parts = [writer.part(choices[1], {"text": text}) for text in "ab"]
    found = chunks_of(b"".join([*parts, writer.end(choices[0]), writer.last(choices)]))
    assert len({each["id"] for each in found}) == 1
    assert ["usage" in each for each in found] == [False, False, False, True]
    said = [each["choices"][0] for each in found[:3]]
    assert [each["index"] for each in said] == [1, 1, 0]
    assert [each["finish_reason"] for each in said] == [None, None, "stop"]
    if kind is ChatWriter:
        assert [each["delta"] for each in said] == [
            {"role": "assistant", "content": "a"}, {"content": "b"}, {"role": "assistant"}
        ]  # fmt: skip
    else:
        assert [each["text"] for each in said] == ["a", "b", ""]
    assert found[3]["choices"] == []


def test_counts_are_a_chunk_for_who_asks_for_them():
    choice = Choice(0, "text")
    choice.take({"text": "a", "prompt_tokens": 1, "completion_tokens": 1})
    assert ChatWriter("m", PLAIN).last([choice]) == b"data: [DONE]\n\n"
    (told,) = chunks_of(ChatWriter("m", COUNTED).last([choice]))
    assert told["usage"]["total_tokens"] == 2


@pytest.mark.parametrize("value", [None, "a", ["a"], [[1], [1, 2]], {"a": 1}])
def test_what_is_no_embedding(value):
    with pytest.raises(PayloadTypeError, match="no list of numbers under 'vector'"):
        embeddings([{"vector": value}], "m", ModelOptions(embedding="vector"), in_base64=False)


def test_embeddings_have_their_place_and_counts():
    payloads = [{"embedding": [1, 2.5], "prompt_tokens": 2}, {"embedding": np.ones((1, 2))}]
    found = json.loads(embeddings(payloads, "m", ModelOptions(), in_base64=False))
    assert [each["embedding"] for each in found["data"]] == [[1.0, 2.5], [1.0, 1.0]]
    assert [each["index"] for each in found["data"]] == [0, 1]
    assert found["usage"] == {"prompt_tokens": 2, "total_tokens": 2}
