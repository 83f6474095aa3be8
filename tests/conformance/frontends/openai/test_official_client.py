"""The official client, unmodified, asks the server itself and the gateway."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import openai
import pytest
from openai_models import SaysByWord, client_of, openai_server

CHAT = [{"role": "user", "content": "one two three"}]


@pytest.fixture(scope="module", params=["embedded", "gateway"])
def clients(request) -> Iterator[tuple[openai.OpenAI, openai.OpenAI]]:
    """A client of a pipeline with one answer, and one of a pipeline that streams."""
    if request.param == "gateway":
        request.getfixturevalue("gateway_binary")
    with contextlib.ExitStack() as stack:
        servers = [openai_server(op, http_server=request.param) for op in (None, SaysByWord())]
        yield tuple(stack.enter_context(client_of(stack.enter_context(one))) for one in servers)


@pytest.fixture
def client(clients):
    return clients[0]


@pytest.fixture
def streaming(clients):
    return clients[1]


def test_models(client):
    assert [model.id for model in client.models.list()] == ["echo", "talks", "places"]
    assert client.models.retrieve("echo").object == "model"


def test_a_completion(client):
    done = client.completions.create(model="echo", prompt="one two three", max_tokens=2)
    assert (done.object, done.model, done.choices[0].text) == ("text_completion", "echo", "one two")
    assert done.choices[0].finish_reason == "length"
    assert (done.usage.prompt_tokens, done.usage.total_tokens) == (3, 5)


def test_prompts_have_a_choice_each(client):
    prompts = [f"p{at}" for at in range(100)]
    done = client.completions.create(model="echo", prompt=prompts)
    assert [(choice.index, choice.text) for choice in done.choices] == [*enumerate(prompts)]
    assert done.usage.prompt_tokens == 100


def test_arguments_are_handed_on(client):
    done = client.completions.create(
        model="echo", prompt="a", temperature=0.5, stop="\n\n", user="u", extra_body={"more": 1}
    )
    assert done.choices[0].text == "a {'temperature': 0.5, 'stop': ['\\n\\n'], 'more': 1}"


def test_a_chat(client):
    done = client.chat.completions.create(model="echo", messages=CHAT, max_completion_tokens=1)
    assert done.object == "chat.completion"
    assert done.choices[0].message.role == "assistant"
    assert done.choices[0].message.content == "one"
    turns = [*CHAT, {"role": "user", "content": [{"type": "text", "text": "b"}]}]
    done = client.chat.completions.create(model="echo", messages=turns)
    assert done.choices[0].message.content == "user: one two three user: b assistant:"


def test_a_chat_as_messages(client):
    done = client.chat.completions.create(model="talks", messages=[*CHAT, *CHAT])
    assert done.choices[0].message.content == "one two three; one two three"
    assert done.usage.total_tokens == 0


def test_a_stream_of_a_chat(streaming):
    parts = list(streaming.chat.completions.create(model="echo", messages=CHAT, stream=True))
    assert [part.choices[0].delta.content for part in parts] == [" one", " two", " three", None]
    assert parts[0].choices[0].delta.role == "assistant"
    assert {part.id for part in parts} == {parts[0].id}
    assert parts[0].object == "chat.completion.chunk"
    assert [part.choices[0].finish_reason for part in parts] == [None, None, None, "stop"]


def test_a_stream_of_a_completion_with_its_counts(streaming):
    stream = streaming.completions.create(
        model="echo", prompt="a b c", stream=True, max_tokens=2,
        stream_options={"include_usage": True},
    )  # fmt: skip
    *parts, last = stream
    assert [part.choices[0].text for part in parts] == [" a", " b", ""]
    assert parts[-1].choices[0].finish_reason == "length"
    assert (last.choices, last.usage.completion_tokens) == ([], 2)


def test_one_answer_is_a_stream_of_one_part(client):
    parts = list(client.completions.create(model="echo", prompt="a b", stream=True))
    assert [part.choices[0].text for part in parts] == ["a b", ""]


def test_embeddings_as_the_client_asks_for_them_and_as_numbers(client):
    request = {"model": "places", "input": ["a", "bcd"], "dimensions": 3}
    for form in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        done = client.embeddings.create(**request, **form)
        vectors = [item.embedding for item in done.data]
        if "base64" not in form.values():
            assert vectors == [[1, 2, 3], [3, 4, 5]]
        assert done.usage.total_tokens == 2


def test_large_embeddings(client):
    done = client.embeddings.create(model="places", input=["a"] * 200, dimensions=500)
    assert [len(item.embedding) for item in done.data] == [500] * 200
    assert done.data[199].embedding[:2] == [1, 2]


BAD = (
    (openai.NotFoundError, "model_not_found", "model", {"model": "none", "prompt": "a"}),
    (openai.BadRequestError, "model_not_supported", "model", {"model": "places", "prompt": "a"}),
    (openai.BadRequestError, "invalid_type", "prompt[1]", {"model": "echo", "prompt": [1, "a"]}),
    (openai.BadRequestError, "invalid_value", "prompt", {"model": "echo", "prompt": []}),
    (openai.BadRequestError, "integer_above_max_value", "n",
     {"model": "echo", "prompt": "a", "n": 129}),
    (openai.BadRequestError, "51", None, {"model": "echo", "prompt": "product"}),
    (openai.InternalServerError, "UNKNOWN", None, {"model": "echo", "prompt": "raise"}),
)  # fmt: skip


@pytest.mark.parametrize(("kind", "code", "param", "asked"), BAD)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_their_status_with_and_without_a_stream(
    client, kind, code, param, asked, stream
):
    with pytest.raises(kind) as caught:
        client.completions.create(**asked, stream=stream)
    assert (caught.value.code, caught.value.param) == (code, param)
    client.models.retrieve("echo")


def test_invalid_messages_and_unsupported_parameters_of_a_chat_are_refused(client):
    image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    for param, more in (
        ("messages", {"messages": []}),
        ("messages[0]", {"messages": ["a"]}),
        ("messages[0].role", {"messages": [{"content": "a"}]}),
        ("messages[0].content", {"messages": [{"role": "user"}]}),
        ("messages[0].content[0]", {"messages": [{"role": "user", "content": image}]}),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**{"model": "echo", "messages": CHAT, **more})
        assert caught.value.param == param


def test_an_error_in_a_stream_ends_it(streaming):
    stream = streaming.completions.create(model="echo", prompt="late a b c", stream=True)
    texts = []
    with pytest.raises(openai.APIError, match="out of words"):
        texts.extend(part.choices[0].text for part in stream)
    stream = streaming.completions.create(model="echo", prompt="late a b c", stream=True)
    assert [next(stream).choices[0].text for _ in range(2)] == [" a", " b"]
    stream.close()
