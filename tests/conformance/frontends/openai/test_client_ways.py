"""Ways of the official client beside plain calls: asyncio, raw answers, helpers, retries."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import openai
import pytest
from openai_models import Says, SaysByWord, SaysParts, became_of, client_of, openai_server

from pipeline import Filter
from pipeline.config.registry import register
from pipeline.errors import OverloadedError

CHAT: Any = [{"role": "user", "content": "one two three"}]


class Busy(Filter):
    """Refuses the first request of each prompt, as a server with too much to do does."""

    seen: ClassVar[set[str]] = set()

    def on_request(self, request: Any) -> None:
        prompt = request.target.payload.get("prompt", "")
        if prompt.startswith("busy") and prompt not in self.seen:
            self.seen.add(prompt)
            raise OverloadedError("too much to do", retry_after_s=0)


@pytest.fixture(scope="module", autouse=True)
def busy() -> None:
    register("filters", "busy", Busy)


@pytest.fixture(scope="module", params=["embedded", "gateway"])
def servers(request: Any) -> Iterator[tuple[Any, Any]]:
    """Servers of a pipeline that says words, and of one that says parts."""
    if request.param == "gateway":
        request.getfixturevalue("gateway_binary")
    Busy.seen.clear()
    dag = {"max_parts": 10**9}
    with (
        openai_server(SaysByWord(), http_server=request.param, filters={"busy": {}}) as words,
        openai_server(SaysParts(), http_server=request.param, dag=dag) as parts,
    ):
        yield words, parts


@pytest.fixture
def client(servers: Any) -> Iterator[openai.OpenAI]:
    with client_of(servers[0]) as client:
        yield client


def test_with_asyncio(servers):
    url = f"http://127.0.0.1:{servers[0].http_port}/v1"

    async def ask() -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
            prompts = [f"a b {at}" for at in range(20)]
            calls = [client.completions.create(model="echo", prompt=prompt) for prompt in prompts]
            texts = [done.choices[0].text for done in await asyncio.gather(*calls)]
            assert texts == [f" {prompt}" for prompt in prompts]

            stream = await client.chat.completions.create(
                model="echo", messages=CHAT, stream=True, n=2
            )
            said = ["", ""]
            async for chunk in stream:
                for choice in chunk.choices:
                    said[choice.index] += choice.delta.content or ""
            assert said == [" one two three"] * 2

            vectors = await client.embeddings.create(model="places", input=["a", "bc"])
            assert [item.embedding[0] for item in vectors.data] == [1, 2]
            with pytest.raises(openai.NotFoundError):
                await client.completions.create(model="none", prompt="a")

    asyncio.run(ask())


def test_a_closed_stream_of_asyncio_closes_the_generator(servers):
    url = f"http://127.0.0.1:{servers[1].http_port}/v1"

    async def ask() -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
            stream = await client.completions.create(model="echo", prompt="aio", stream=True)
            async for _ in stream:
                break
            await stream.close()

    asyncio.run(ask())
    assert became_of("aio") == ["closed"]


def test_raw_answers(client):
    raw = client.chat.completions.with_raw_response.create(model="echo", messages=CHAT)
    assert (raw.status_code, raw.headers["content-type"]) == (200, "application/json")
    assert raw.parse().choices[0].message.content == " one two three"
    with client.completions.with_streaming_response.create(
        model="echo", prompt="a b", stream=True
    ) as streamed:
        assert streamed.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in streamed.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"


def test_the_helper_for_streams_puts_the_chunks_together(client):
    with client.chat.completions.stream(model="echo", messages=CHAT) as stream:
        kinds = [event.type for event in stream]
        done = stream.get_final_completion()
    assert kinds.count("content.delta") == 3
    assert done.choices[0].message.content == " one two three"
    assert done.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_the_client_asks_again_where_there_was_too_much_to_do(client, stream):
    prompt = f"busy once {stream}"
    with pytest.raises(openai.RateLimitError, match="too much to do") as caught:
        client.completions.create(model="echo", prompt=prompt, stream=stream)
    assert (caught.value.status_code, caught.value.code) == (429, "OVERLOADED")
    assert caught.value.response.headers["retry-after"] == "1"
    again = client.with_options(max_retries=1)
    done = again.completions.create(model="echo", prompt=f"{prompt} more", stream=stream)
    assert list(done) if stream else done.choices


def test_a_timeout_of_the_client_closes_the_generator(servers):
    with client_of(servers[1]) as client, pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=1).completions.create(
            model="echo", prompt="patience", stop="none of it"
        )
    assert became_of("patience") == ["closed"]


@pytest.mark.parametrize("stop", [None, "none of it"])
def test_a_stream_that_is_too_long_for_one_answer(stop):
    with openai_server(SaysParts(), dag={"max_parts": 8}) as server, client_of(server) as client:
        with pytest.raises(openai.APIStatusError, match=r"more than dag.max_parts \(8\)") as caught:
            client.completions.create(model="echo", prompt=f"long {stop is None}", stop=stop)
        assert caught.value.status_code == 413
        assert became_of(f"long {stop is None}") == ["closed"]


def test_apis_that_are_not_here(client):
    for ask in (
        lambda: client.moderations.create(input="a"),
        lambda: client.files.list(),
    ):
        with pytest.raises(openai.NotFoundError, match="there are /v1/chat/completions"):
            ask()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("param", "more"),
    [
        ("seed", {"seed": 1.5}),
        ("n", {"n": 0}),
        ("temperature", {"temperature": "hot"}),
    ],
)
def test_a_refused_parameter_is_named(client, param, more, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="echo", messages=CHAT, stream=stream, **more)
    assert (caught.value.param, caught.value.type) == (param, "invalid_request_error")
    assert param in caught.value.message


def test_parameters_are_passed_on_or_ignored(client):
    done = client.chat.completions.create(
        model="echo", messages=CHAT, seed=3, user="u", metadata={"a": "b"}, store=False,
        service_tier="auto", tools=[], extra_body={"more": {"deep": [1]}}, logprobs=False,
        response_format={"type": "text"}, extra_headers={"x-more": "1"}, extra_query={"a": "b"},
    )  # fmt: skip
    assert done.choices[0].message.content == " one two three {'seed': 3, 'more': {'deep': [1]}}"


def test_one_answer_to_many_clients_that_stream(servers):
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(client_of(servers[0])) for _ in range(8)]
        streams = [
            item.chat.completions.create(model="echo", messages=CHAT, stream=True)
            for item in clients
        ]
        for stream in streams:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            assert text == " one two three"


def test_a_pipeline_of_one_answer_streams_it_whole():
    with openai_server(Says()) as server, client_of(server) as client:
        stream = client.completions.create(model="echo", prompt="a b c", stream=True, stop="b")
        assert [chunk.choices[0].text for chunk in stream] == ["a ", ""]
