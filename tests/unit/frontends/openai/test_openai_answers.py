"""Texts, counts and reasons of a pipeline's answers, and OpenAI's objects that are made of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from pipeline.errors import OverloadedError, PayloadTypeError
from pipeline.frontends.openai import answers
from pipeline.frontends.openai.answers import (
    Choice,
    counts_of,
    embeddings,
    joined,
    text_of,
    usage_of,
)
from pipeline.frontends.openai.errors import reply_to
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
def test_an_invalid_text_is_an_error(value):
    with pytest.raises(PayloadTypeError, match="no text under 'text', but other, text"):
        text_of({"other": 1, "text": value}, "text")


def test_a_lone_surrogate_is_escaped():
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
    counts = counts_of(payload)
    assert (counts and tuple(counts.values())) == expected


@pytest.mark.parametrize("value", ["many", -1, 2**60, 2**80, float("nan"), [], [[]]])
def test_an_invalid_count_is_an_error(value):
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


@pytest.mark.parametrize(
    "said",
    [
        {"tool_calls": [{"type": "other", "other": {"name": "f"}}]},
        {"logprobs": [{"token": "a", "logprob": -1, "top_logprobs": 5}]},
        {"logprobs": [{"token": "a", "logprob": -1, "top_logprobs": [5]}]},
        {"logprobs": {"tokens": ["a"], "token_logprobs": 5}},
        {"logprobs": {"tokens": ["a"], "token_logprobs": [-1], "top_logprobs": [5]}},
    ],
)
def test_an_invalid_form_is_an_error_of_the_answer(said):
    with pytest.raises(PayloadTypeError, match=r"^(\w+_)?(logprobs|calls)\b.* must be a"):
        Choice(0, "text").take({"text": "a", **said})


@pytest.mark.parametrize("all_of_them", [{}, {"finish_reason": "stop"}, {"completion_tokens": 0}])
def test_parts_of_a_stream_may_have_no_text(all_of_them):
    choice = Choice(0, "text", in_parts=True)
    assert (choice.take(all_of_them), choice.rest(), choice.reason) == ({}, {}, "stop")
    with pytest.raises(PayloadTypeError):
        choice.take({"other": 1})


def test_a_whole_answer_without_text_is_an_error():
    with pytest.raises(PayloadTypeError):
        Choice(0, "text").take({"prompt_tokens": 3})


@pytest.mark.parametrize("kind", [ChatWriter, CompletionWriter])
def test_chunks_name_the_role_once_for_each_choice(kind):
    writer = kind("m", COUNTED)
    choices = [Choice(0, "text"), Choice(1, "text")]
    parts = [writer.part(choices[1], {"text": text}) for text in "ab"]
    chunks = chunks_of(b"".join([*parts, writer.end(choices[0]), writer.last(choices)]))
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert ["usage" in chunk for chunk in chunks] == [False, False, False, True]
    said = [chunk["choices"][0] for chunk in chunks[:3]]
    assert [item["index"] for item in said] == [1, 1, 0]
    assert [item["finish_reason"] for item in said] == [None, None, "stop"]
    if kind is ChatWriter:
        assert [item["delta"] for item in said] == [
            {"role": "assistant", "content": "a"}, {"content": "b"}, {"role": "assistant"}
        ]  # fmt: skip
    else:
        assert [item["text"] for item in said] == ["a", "b", ""]
    assert chunks[3]["choices"] == []


def test_counts_are_a_chunk_if_requested():
    choice = Choice(0, "text")
    choice.take({"text": "a", "prompt_tokens": 1, "completion_tokens": 1})
    assert ChatWriter("m", PLAIN).last([choice]) == b"data: [DONE]\n\n"
    (reported,) = chunks_of(ChatWriter("m", COUNTED).last([choice]))
    assert reported["usage"]["total_tokens"] == 2


@pytest.mark.parametrize("value", [None, "a", ["a"], [[1], [1, 2]], {"a": 1}])
def test_an_invalid_embedding_is_an_error(value):
    with pytest.raises(PayloadTypeError, match="no list of numbers under 'vector'"):
        embeddings([{"vector": value}], "m", ModelOptions(embedding="vector"), in_base64=False)


def test_embeddings_have_their_place_and_counts():
    payloads = [{"embedding": [1, 2.5], "prompt_tokens": 2}, {"embedding": np.ones((1, 2))}]
    document = json.loads(embeddings(payloads, "m", ModelOptions(), in_base64=False))
    assert [item["embedding"] for item in document["data"]] == [[1.0, 2.5], [1.0, 1.0]]
    assert [item["index"] for item in document["data"]] == [0, 1]
    assert document["usage"] == {"prompt_tokens": 2, "total_tokens": 2}


# Calls of tools ---------------------------------------------------------------------------------


def call(index: int | None = None, text: Any = "", **more: Any) -> dict[str, Any]:
    """A call of a tool, or a part of one; `name` is the function's."""
    fields = {"arguments": text, **({"name": more.pop("name")} if "name" in more else {})}
    return {**({} if index is None else {"index": index}), "function": fields, **more}


def call_deltas(*parts: list[dict[str, Any]]) -> list[Any]:
    """(index, id, name, arguments) of each delta that parts become, and of what was held back."""
    choice = Choice(0, "text", in_parts=True)
    deltas = [choice.take({"tool_calls": part}) for part in parts]
    assert choice.reason == "tool_calls"
    calls = [one for delta in [*deltas, choice.rest()] for one in delta.get("tool_calls", [])]
    said = [item["function"] for item in calls]
    names = [item.get("name") for item in said]
    ids = [item.get("id") for item in calls]
    texts = [item["arguments"] for item in said]
    return [*zip([item["index"] for item in calls], ids, names, texts, strict=True)]


def test_id_and_name_of_a_call_are_sent_once():
    part = call(0, '{"a"', id="c", name="f")
    assert call_deltas([part], [part]) == [(0, "c", "f", '{"a"'), (0, None, None, '{"a"')]


def test_calls_without_an_index_begin_with_an_id_or_a_name():
    parts = [[call(id="a", name="f", text="{")], [call(text="}")], [call(name="g", text={"x": 1})]]
    (first, more, other) = call_deltas(*parts)
    assert (first, more) == ((0, "a", "f", "{"), (0, None, None, "}"))
    assert other[0] == 1
    assert other[1].startswith("call_")
    assert other[2:] == ("g", '{"x":1}')
    assert [
        item[0] for item in call_deltas([call(id="a", name="f")], [call(id="a", text="{}")])
    ] == [0, 0]


def test_interleaved_calls_are_sent_one_after_another():
    begin = [call(0, "", id="a", name="f"), call(1, "", id="b", name="g")]
    result = call_deltas(begin, [call(0, '{"x":'), call(1, "{")], [call(1, "}")], [call(0, "1}")])
    assert result == [
        (0, "a", "f", ""), (0, None, None, '{"x":'), (0, None, None, "1}"), (1, "b", "g", "{}")
    ]  # fmt: skip
    assert call_deltas(begin)[1] == (1, "b", "g", "")  # though the first is no JSON


def test_of_a_part_each_call_is_one_delta():
    parts = [call(0, "{", id="a", name="f"), call(0, "}"), call(1, "{}", id="b", name="f")]
    assert call_deltas(parts) == [(0, "a", "f", "{}"), (1, "b", "f", "{}")]


def test_parts_of_calls_are_combined():
    choice = Choice(0, "text")
    parts = [call(1, "{", id="b", name="g"), call(0, "{}", id="a", name="f"), call(1, "}")]
    whole = choice.whole({"tool_calls": parts})
    assert whole == {
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ]
    }
    (said,) = json.loads(ChatWriter("m", PLAIN).whole([(choice, whole)]))["choices"]
    assert (said["message"]["content"], said["finish_reason"]) == (None, "tool_calls")
    assert said["message"]["tool_calls"] == whole["tool_calls"]


@pytest.mark.parametrize(
    "calls",
    [
        "f", {"a": 1}, ["f"], [{}], [{"function": "f"}], [{"type": [], "function": {}}],
        [call(0, "{}")], [call(-1, name="f")], [call(2**20, name="f")], [call(True, name="f")],
        [call(0, name="f"), {"index": 0, "type": "custom", "custom": {"input": ""}}],
        [call(text=object(), name="f")],
    ],
)  # fmt: skip
def test_an_invalid_call_is_an_error(calls):
    with pytest.raises(PayloadTypeError):
        Choice(0, "text").take({"tool_calls": calls})


@pytest.mark.parametrize("late", [" ", "\n"])
def test_space_after_complete_arguments_is_removed(late):
    begin = [call(0, "{}", id="a", name="f"), call(1, "", id="b", name="g")]
    result = call_deltas(begin, [call(1, "{}")], [call(0, late)], [call(1, "\n")])
    assert result[2:] == [(1, None, None, "{}"), (1, None, None, "\n")]


def test_arguments_after_complete_ones_are_an_error():
    begin = [call(0, "{}", id="a", name="f"), call(1, "", id="b", name="g")]
    with pytest.raises(
        PayloadTypeError, match=r"tool_calls\[0\]: the arguments of call 0 had ended"
    ):
        call_deltas(begin, [call(0, "{")])


def test_an_input_of_any_text_is_complete_at_the_end():
    def part(index: int, text: str, **more: Any) -> dict[str, Any]:
        return {"index": index, "type": "custom", "custom": {"input": text, **more}, "id": index}

    choice, deltas = Choice(0, "text", in_parts=True), []
    for index, text in ((0, "a"), (1, "b"), (0, "{}"), (1, "d")):
        deltas.append(choice.take({"tool_calls": [part(index, text, name="f")]}))
    deltas.append(choice.rest())
    inputs = [
        (one["index"], one["custom"]["input"]) for d in deltas for one in d.get("tool_calls", ())
    ]
    assert inputs == [(0, "a"), (0, "{}"), (1, "bd")]


class Counted(str):
    """A text that counts the characters that are copied where texts are added to it."""

    __slots__ = ()
    copied = 0

    def __add__(self, other: str) -> Counted:
        Counted.copied += len(self) + len(other)
        return Counted(str(self) + str(other))


@pytest.mark.parametrize("index", [0, 1])
def test_parts_of_a_call_are_copied_once(index, monkeypatch):
    monkeypatch.setattr(answers, "utf8_text", lambda text: text)
    choice, count = Choice(0, "text", in_parts=True), 1000
    Counted.copied = 0
    deltas = [choice.take({"tool_calls": [call(0, Counted("["), id="a", name="f")]})]
    for at in range(count):
        names = {"name": "g", "id": "b"} if index and not at else {}
        part = call(index, Counted("0123456789"), **names)
        deltas.append(choice.take({"tool_calls": [part]}))
    whole = joined([*deltas, choice.rest()])["tool_calls"]
    assert len(whole[index]["function"]["arguments"]) == 10 * count + (not index)
    assert Counted.copied == 0


def test_a_custom_tool_has_an_input():
    one = {"id": "a", "type": "custom", "custom": {"name": "f", "input": "x y"}}
    assert Choice(0, "text").whole({"tool_calls": [one]}) == {"tool_calls": [one]}


# Other fields -----------------------------------------------------------------------------------


def test_a_chunk_has_all_fields_of_a_part():
    choice, writer = Choice(0, "text", in_parts=True), ChatWriter("m", PLAIN)
    picture = {"type": "image_url", "image_url": {"url": "data:,"}}
    part = {"text": "a", "reasoning_content": "hm", "refusal": "no", "images": [picture]}
    first, second = chunks_of(writer.part(choice, choice.take(part)))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert second["choices"][0]["delta"] == {
        "content": "a", "reasoning_content": "hm", "refusal": "no", "images": [picture]
    }  # fmt: skip
    whole = Choice(0, "text").whole(part)
    (said,) = json.loads(ChatWriter("m", PLAIN).whole([(choice, whole)]))["choices"]
    assert said["message"] == {"role": "assistant", **second["choices"][0]["delta"]}


def test_log_probabilities_have_all_keys_in_both_forms():
    tokens = [
        {"token": "é", "logprob": np.float32(-0.5)},
        {"token": "b", "logprob": float("-inf"), "top_logprobs": [{"token": "c", "logprob": -1}]},
    ]
    choice = Choice(0, "text", in_parts=True)
    deltas = [choice.take({"text": "éb", "logprobs": tokens}) for _ in range(2)]
    content = deltas[0]["logprobs"]
    assert content[0] == {"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": []}
    top = {"token": "c", "logprob": -1, "bytes": [99]}
    assert (content[1]["logprob"], content[1]["top_logprobs"]) == (-9999, [top])
    (_, chunk) = chunks_of(ChatWriter("m", PLAIN).part(choice, deltas[0]))
    assert chunk["choices"][0]["logprobs"] == {"content": content, "refusal": None}
    writer = CompletionWriter("m", PLAIN)
    chunks = chunks_of(b"".join([writer.part(choice, delta) for delta in deltas]))
    results = [item["choices"][0]["logprobs"] for item in chunks]
    assert [result["text_offset"] for result in results] == [[0, 1], [2, 3]]
    assert results[0]["tokens"] == ["é", "b"]
    assert results[0]["top_logprobs"] == [{}, {"c": -1}]
    token = {"token": "a", "logprob": 1}
    for wrong in (
        "a", [3], [np.zeros(1)], [{"token": "a"}], [{"token": 3, "logprob": 1}], [{"logprob": 1}],
        [{**token, "top_logprobs": 3}], {"tokens": ["a"], "token_logprobs": 3},
        {"tokens": ["a"], "token_logprobs": [1], "top_logprobs": ["a"]},
    ):  # fmt: skip
        with pytest.raises(PayloadTypeError, match="logprobs"):
            choice.take({"text": "", "logprobs": wrong})


def test_sound_has_an_id_once_and_is_base64():
    choice = Choice(0, "text", in_parts=True)
    parts = [{"audio": {"data": b"ab", "transcript": "a"}}, {"audio": {"data": b"c", "id": "x"}}]
    deltas = [choice.take(part) for part in parts]
    assert ["id" in delta["audio"] for delta in deltas] == [True, False]
    whole = joined(deltas)
    assert (whole["audio"]["data"], whole["audio"]["transcript"]) == (b"abc", "a")
    (said,) = json.loads(ChatWriter("m", PLAIN).whole([(choice, whole)]))["choices"]
    assert said["message"]["audio"]["data"] == "YWJj"
    with pytest.raises(PayloadTypeError, match="audio must be"):
        choice.take({"audio": b"ab"})
    with pytest.raises(PayloadTypeError, match="data of several parts"):
        joined([*deltas, {"audio": {"data": "YWI="}}])


def test_counts_may_be_an_object_with_details():
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    counts = counts_of({"usage": usage, "prompt_tokens": 9})
    assert usage_of([counts]) == {**usage, "total_tokens": 5}
    assert usage_of([counts, counts], 2) == {**usage, "completion_tokens": 4, "total_tokens": 7}


def test_a_choice_without_text_ends_with_a_reason():
    choice, writer = Choice(0, "text", in_parts=True), ChatWriter("m", PLAIN)
    (chunk,) = chunks_of(writer.end(choice))
    assert chunk["choices"][0]["finish_reason"] == "stop"
    assert chunk["choices"][0]["delta"] == {"role": "assistant"}


@pytest.mark.parametrize(("later_s", "told_s"), [(0, b"1"), (7, b"7"), (500, b"60")])
def test_overload_is_429_with_retry_after(later_s, told_s):
    reply = reply_to(OverloadedError("too much to do", later_s))
    assert (reply.status, reply.headers) == (429, ((b"retry-after", told_s),))
    assert json.loads(reply.body)["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize(
    "said",
    [
        {"content": [{"token": "a", "logprob": None}, {"token": "b", "logprob": -1.0}]},
        {"tokens": ["a", "b"], "token_logprobs": [None, -1.0], "top_logprobs": None},
        {"tokens": ["a", "b"], "token_logprobs": [None, -1.0], "top_logprobs": [None, {}]},
    ],
)
def test_log_probabilities_of_another_server_pass_through(said):
    choice = Choice(0, "text")
    whole = choice.whole({"text": "ab", "logprobs": said})
    (reported,) = json.loads(CompletionWriter("m", PLAIN).whole([(choice, whole)]))["choices"]
    assert reported["logprobs"] == {
        "tokens": ["a", "b"], "token_logprobs": [None, -1.0], "top_logprobs": [{}, {}],
        "text_offset": [0, 1],
    }  # fmt: skip


def test_the_older_call_of_a_function_grows():
    choice = Choice(0, "text", in_parts=True)
    parts = [{"name": "f", "arguments": "{"}, {"arguments": "}"}]
    deltas = [choice.take({"function_call": part}) for part in parts]
    assert joined(deltas) == {"function_call": {"name": "f", "arguments": "{}"}}
