"""Items of what a chat says: texts of each kind, and calls of tools, one behind the other."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pipeline.errors import PayloadTypeError
from pipeline.frontends.openai.answers import Choice
from pipeline.frontends.openai.errors import ArgumentError
from pipeline.frontends.openai.messages import MessageWriter
from pipeline.frontends.openai.output import Output
from pipeline.frontends.openai.questions import Questions
from pipeline.frontends.openai.response_writer import ResponseWriter
from pipeline.frontends.openai.responses import KeptResponse, KeptResponses
from pipeline.proto.slices import SHORT_BYTES

SAID = [
    {"reasoning_content": "hm"},
    {"text": "a"},
    {"text": "b", "annotations": [{"type": "x"}]},
    {"tool_calls": [{"index": 0, "id": "c0", "function": {"name": "f", "arguments": "{"}}]},
    {"tool_calls": [{"index": 1, "id": "c1", "function": {"name": "g", "arguments": '{"a"'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]},
    {"tool_calls": [{"index": 1, "function": {"arguments": ": 1}"}}]},
    {"refusal": "no"},
]


def test_the_input_of_a_custom_tool_may_continue_after_valid_json():
    output = Output()
    call = {"index": 0, "id": "c", "type": "custom", "custom": {"name": "f", "input": "{}"}}
    more = {"index": 0, "id": "c", "type": "custom", "custom": {"name": "f", "input": " more"}}
    for delta in ({"tool_calls": [call]}, {"text": "a"}, {"tool_calls": [more]}):
        list(output.take(delta))
    assert ["".join(item.pieces) for item in output.items] == ["{} more", "a"]


def choice_and_deltas():
    """A choice, and the deltas of what was said."""
    choice = Choice(0, "text", in_parts=True)
    return choice, [choice.take(said) for said in SAID]


def events(written):
    return [json.loads(line[6:]) for line in written.decode().split("\n") if line[:5] == "data:"]


def test_steps_of_items():
    output, (_, deltas) = Output(), choice_and_deltas()
    steps = [step for delta in deltas for step in output.take(delta)]
    reported = [(act, item.kind, text) for act, item, text, _ in [*steps, *output.end()]]
    assert reported == [
        ("begin", "reasoning_content", ""),
        ("grow", "reasoning_content", "hm"),
        ("end", "reasoning_content", ""),
        ("begin", "text", ""),
        ("grow", "text", "a"),
        ("grow", "text", "b"),
        ("end", "text", ""),
        ("begin", "function", ""),
        ("grow", "function", "{"),
        ("grow", "function", "}"),
        ("end", "function", ""),
        ("begin", "function", ""),
        ("grow", "function", '{"a"'),
        ("grow", "function", ": 1}"),
        ("end", "function", ""),
        ("begin", "refusal", ""),
        ("grow", "refusal", "no"),
        ("end", "refusal", ""),
    ]
    assert [item.text for item in output.items] == ["hm", "ab", "{}", '{"a": 1}', "no"]


def test_a_text_inside_of_a_call_ends_neither():
    output, choice = Output(), Choice(0, "text", in_parts=True)
    parts = [
        {"tool_calls": [{"index": 0, "id": "c0", "function": {"name": "f", "arguments": "{"}}]},
        {"text": "a"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]},
        {"text": "b"},
        {"refusal": "no"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "\n"}}]},
    ]
    steps = [step for part in parts for step in output.take(choice.take(part))]
    reported = [(act, item.index, text) for act, item, text, _ in [*steps, *output.end()]]
    assert reported == [
        ("begin", 0, ""),
        ("grow", 0, "{"),
        ("begin", 1, ""),
        ("grow", 1, "a"),
        ("grow", 0, "}"),
        ("grow", 1, "b"),
        ("end", 0, ""),
        ("end", 1, ""),
        ("begin", 2, ""),
        ("grow", 2, "no"),
        ("end", 2, ""),
    ]
    assert [item.text for item in output.items] == ["{}", "ab", "no"]
    with pytest.raises(PayloadTypeError, match="arguments of call 0 had ended"):
        list(output.take({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}))


def test_events_of_a_response_have_numbers_and_places():
    writer, (choice, deltas) = (
        ResponseWriter(KeptResponses(0), "m", Questions([])),
        choice_and_deltas(),
    )
    written = b"".join(writer.part(choice, delta) for delta in deltas)
    result = events(written + writer.end(choice) + writer.last([choice]))
    assert [event["sequence_number"] for event in result] == [*range(len(result))]
    ended = [event for event in result if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in ended] == [0, 1, 2, 3, 4]
    last = result[-1]["response"]
    assert [event["item"] for event in ended] == last["output"]
    reasoning, text, first, second, refusal = last["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert (text["content"][0]["text"], text["content"][0]["annotations"]) == (
        "ab",
        [{"type": "x"}],
    )
    assert (first["call_id"], first["arguments"]) == ("c0", "{}")
    assert (second["name"], second["arguments"]) == ("g", '{"a": 1}')
    assert refusal["content"] == [{"type": "refusal", "refusal": "no"}]


def test_annotations_after_the_text_are_sent():
    writer, choice = ResponseWriter(KeptResponses(0), "m", Questions([])), Choice(0, "text")
    fields = {"annotations": [{"type": "x"}], "logprobs": [{"token": "", "logprob": -1.0}]}
    writer.part(choice, {"annotations": [{"type": "of no text"}]})
    writer.part(choice, {"text": "a"})
    writer.part(choice, fields)
    done, *_ = events(writer.end(choice))
    assert len(done["logprobs"]) == 1
    (item,) = events(writer.last([choice]))[0]["response"]["output"]
    assert item["content"][0]["annotations"] == [{"type": "x"}]


def test_a_response_is_short_until_its_text_is_long():
    writer, choice = ResponseWriter(KeptResponses(0), "m", Questions([])), Choice(0, "written")
    assert writer.is_short
    writer.part(choice, {"text": "a" * SHORT_BYTES})
    assert not writer.is_short
    assert writer.is_short_part(choice, {"written": "b"}), "it repeats nothing"
    assert writer.is_short_part(choice, {"written": "b", "completion_tokens": 2})
    assert writer.is_short_part(choice, {"written": "b", "tool_calls": [], "refusal": None})
    assert writer.is_short_part(choice, {"completion_tokens": 3})
    of_arrays = {"written": np.array(["b", "c"]), "logits": np.zeros(2)}
    assert writer.is_short_part(choice, of_arrays), "an array has no truth"
    for begins in ({"refusal": "no"}, {"written": "b", "tool_calls": [{}]}):
        assert not writer.is_short_part(choice, begins)
    writer = ResponseWriter(KeptResponses(0), "m", Questions([], is_large=True))
    assert (writer.is_short, writer.is_short_part(choice, {"refusal": "no"})) == (False, True)


@pytest.mark.parametrize(
    "delta",
    [
        {"text": "a", "logprobs": [{"token": "a", "top_logprobs": [{"token": "a"}] * 20}]},
        {"text": "a", "annotations": [{"type": "url_citation", "title": "a" * 100}]},
        {"annotations": [{"type": "url_citation", "title": "a" * 100}]},
        {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"}}]},
    ],
)
def test_the_size_counts_all_that_the_last_events_repeat(delta):
    writer, choice = ResponseWriter(KeptResponses(0), "m", Questions([])), Choice(0, "text")
    writer.part(choice, {"text": "a"})
    for index in range(1000):
        calls = [{**call, "index": index} for call in delta.get("tool_calls", ())]
        writer.part(choice, {**delta, **({"tool_calls": calls} if calls else {})})
    assert not writer.is_short


def test_a_whole_answer_equals_its_parts():
    choice, _ = choice_and_deltas()
    whole = Choice(0, "text").whole(
        {
            "reasoning_content": "hm",
            "text": "ab",
            "tool_calls": [{"id": "c0", "function": {"name": "f", "arguments": {}}}],
        }
    )
    document = json.loads(
        ResponseWriter(KeptResponses(0), "m", Questions([])).whole([(choice, whole)])
    )
    kinds = [item["type"] for item in document["output"]]
    assert kinds == ["reasoning", "message", "function_call"]


def test_blocks_of_a_message():
    writer, (choice, deltas) = MessageWriter("m", Questions([])), choice_and_deltas()
    written = b"".join(writer.part(choice, delta) for delta in deltas)
    result = events(written + writer.end(choice) + writer.last([choice]))
    begun = [item["content_block"] for item in result if item["type"] == "content_block_start"]
    assert [block["type"] for block in begun] == [
        "thinking",
        "text",
        "tool_use",
        "tool_use",
        "text",
    ]
    stops = [item["index"] for item in result if item["type"] == "content_block_stop"]
    assert stops == [0, 1, 2, 3, 4]


def test_a_message_needs_arguments_in_json():
    choice = Choice(0, "text")
    call = {"id": "c", "function": {"name": "f", "arguments": "[1"}}
    whole = choice.whole({"tool_calls": [call]})
    with pytest.raises(PayloadTypeError, match="not a JSON object"):
        MessageWriter("m", Questions([])).whole([(choice, whole)])


def test_kept_responses_are_bounded_by_bytes():
    kept = KeptResponses(100, most_bytes=10_000)
    for number in range(3):
        kept.add(f"resp_{number}", KeptResponse(b" " * 4000, []))
    with pytest.raises(ArgumentError, match="resp_0"):
        kept.find("resp_0")
    kept.remove("resp_1")
    kept.add("resp_3", KeptResponse(b" " * 4000, []))
    assert len(kept.find("resp_2").body) == 4000
