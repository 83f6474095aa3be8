"""The official client gets the choices and the texts that it asked for, however these come."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai_models import SaysByWord, SaysParts, became_of, client_of, openai_server

LETTERS = "ab\né"
TEXTS = st.lists(st.text(LETTERS, max_size=4), min_size=1, max_size=8)
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=3)


@pytest.fixture(scope="module", params=["embedded", "gateway"])
def clients(request: Any) -> Iterator[tuple[openai.OpenAI, ...]]:
    """Clients of a pipeline with one answer, of one that says words, of one that says parts."""
    if request.param == "gateway":
        request.getfixturevalue("gateway_binary")
    with contextlib.ExitStack() as stack:
        ops = (None, SaysByWord(), SaysParts())
        servers = [openai_server(op, http_server=request.param) for op in ops]
        yield tuple(stack.enter_context(client_of(stack.enter_context(one))) for one in servers)


def text_before_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text up to the stop that is there first as it grows, and whether there is one."""
    for end in range(len(text) + 1):
        results = [stop for stop in stops if text[:end].endswith(stop)]
        if results:
            return text[: end - len(max(results, key=len))], True
    return text, False


def texts_of(stream: Any, choices: int) -> list[str]:
    """The text of each choice, whose chunks come as they like; each ends once, behind its text."""
    texts, reasons = [""] * choices, [""] * choices
    for chunk in stream:
        for choice in chunk.choices:
            assert reasons[choice.index] == ""
            text = choice.text if hasattr(choice, "text") else choice.delta.content
            texts[choice.index] += text or ""
            reasons[choice.index] = choice.finish_reason or ""
    assert all(reasons)
    return texts


@settings(max_examples=int(os.environ.get("EXAMPLES", "60")), deadline=None)
@given(parts=TEXTS, stops=STOPS, choices=st.integers(1, 3), is_chat=st.booleans())
def test_the_text_is_that_of_the_parts_up_to_a_stop(clients, parts, stops, choices, is_chat):
    client = clients[2]
    expected, is_cut = text_before_stop("".join(parts), stops)
    request: dict[str, Any] = {"model": "echo", "n": choices, "stop": stops}
    if is_chat:
        create = client.chat.completions.create
        request["messages"] = [{"role": "user", "content": json.dumps(parts)}]
    else:
        create = client.completions.create
        request["prompt"] = json.dumps(parts)

    assert texts_of(create(**request, stream=True), choices) == [expected] * choices
    done = create(**request)
    assert [item.index for item in done.choices] == [*range(choices)]
    for choice in done.choices:
        assert (choice.message.content if is_chat else choice.text) == expected
        assert choice.finish_reason == ("stop" if is_cut else "length")


@pytest.mark.parametrize("stream", [False, True])
def test_each_prompt_has_its_choices_with_consecutive_seeds(clients, stream):
    request = {"model": "echo", "prompt": ["a", "b"], "n": 3, "seed": 7, "stream": stream}
    done = clients[0].completions.create(**request)
    texts = texts_of(done, 6) if stream else [choice.text for choice in done.choices]
    assert texts == [f"{word} {{'seed': {seed}}}" for word in "ab" for seed in (7, 8, 9)]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_is_counted_once_and_all_that_was_written(clients, stream):
    more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    for client in clients[:2]:
        done = client.completions.create(model="echo", prompt=["a b c", "d"], n=2, **more)
        usage = [*done][-1].usage if stream else done.usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (4, 8, 12)


@pytest.mark.parametrize("stream", [False, True])
def test_more_choices_than_are_worked_on_at_once(clients, stream):
    prompts = [f"p{at}" for at in range(100)]
    for client in clients[:2]:
        done = client.completions.create(model="echo", prompt=prompts, n=2, stream=stream)
        texts = texts_of(done, 200) if stream else [choice.text for choice in done.choices]
        assert [text.strip() for text in texts] == [prompt for prompt in prompts for _ in range(2)]


def test_the_choices_of_a_stream_are_interleaved(clients):
    stream = clients[2].completions.create(model="echo", prompt="word", n=3, stream=True)
    seen = set()
    with stream:
        for chunk in stream:
            seen |= {choice.index for choice in chunk.choices}
            if len(seen) == 3:
                break
    assert became_of("word", 3) == ["closed"] * 3


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_closes_the_generator_in_the_worker(clients, stream):
    done = clients[2].completions.create(model="echo", prompt="ab", stop="bab", stream=stream)
    assert (texts_of(done, 1) if stream else [done.choices[0].text]) == ["a"]
    assert became_of("ab") == ["closed"]


def test_a_closed_stream_closes_the_generator_in_the_worker(clients):
    stream = clients[2].chat.completions.create(
        model="echo", messages=[{"role": "user", "content": "more"}], stream=True
    )
    assert next(stream).choices[0].delta.content == "more"
    stream.close()
    assert became_of("more") == ["closed"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_one_choice_ends_all(clients, stream):
    request = {"model": "echo", "prompt": ["fine", "product"], "n": 2, "stream": stream}
    with pytest.raises(openai.APIError, match="nothing to say"):
        texts_of(clients[0].completions.create(**request), 4)
