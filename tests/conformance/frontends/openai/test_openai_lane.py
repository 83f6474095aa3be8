"""Completions are answered the same with and without the lane, which the official client takes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai_models import (
    Says,
    SaysParts,
    became_of,
    client_of,
    openai_server,
    wait_until_begun,
)
from raw_http import Answer, Connection, request

from pipeline import PipelineServer
from pipeline.frontends.http.server import HttpFrontend
from pipeline.frontends.openai.completions import CompletionEndpoint

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
JSON = "Content-Type: application/json"


class LongAnswers(Says):
    """Says a long text for prompts with `much` in them."""

    def answer(self, fields: Any) -> Any:
        return {"text": "long " * 40_000} if "much" in fields["prompt"] else super().answer(fields)


OPS = {"one answer": LongAnswers, "parts": SaysParts}


@pytest.fixture(scope="module")
def servers(module_logs: None) -> Iterator[dict[str, list[PipelineServer]]]:
    """For each kind of pipeline two servers that run, of which the first one has a lane."""
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as running:
        results: dict[str, list[PipelineServer]] = {kind: [] for kind in OPS}
        for kind, op in OPS.items():
            for has_lane in (True, False):
                patch.setattr(HttpFrontend, "pipeline_has_lane", has_lane)
                server = openai_server(op(), max_message_bytes=300_000)
                results[kind].append(running.enter_context(server))
        yield results


def comparable(answer: Answer) -> Any:
    """Status, headers and body of an answer, without what differs each time."""
    headers = {name: value for name, value in answer.headers.items() if name != "date"}
    text = answer.body.decode()
    if answer.headers["content-type"].startswith("application/json"):
        body = json.loads(text)
        body.pop("id", None)
        body.pop("created", None)
        return answer.status, headers, body
    return answer.status, text.count("\n"), text.count("[DONE]")


def post_of(path: str, *headers: str, **body: Any) -> bytes:
    fields = {"model": "echo", **body}
    return request(json.dumps(fields).encode(), JSON, *headers, path=path)


def chat(content: Any, **body: Any) -> bytes:
    return post_of(CHATS, messages=[{"role": "user", "content": content}], **body)


TEXT = '["a b", " c"]'
CASES = {
    "a completion": post_of(COMPLETIONS, prompt=TEXT),
    "a chat": chat(TEXT),
    "its arguments": post_of(COMPLETIONS, prompt=TEXT, max_tokens=1, user="u", temperature=0.5),
    "a stop": post_of(COMPLETIONS, prompt=TEXT, stop=[" c", "b "]),
    "two choices": post_of(COMPLETIONS, prompt=TEXT, n=2),
    "two prompts": post_of(COMPLETIONS, prompt=[TEXT, TEXT]),
    "a stream": post_of(COMPLETIONS, prompt=TEXT, stream=True),
    "a stream that is not a bool": post_of(COMPLETIONS, prompt=TEXT, stream=1),
    "a long text": post_of(COMPLETIONS, prompt=json.dumps(["long " * 20_000, "more " * 10_000])),
    "a long answer": chat('["much"]'),
    "a long answer that is cut": chat('["much"]', stop="uc"),
    "no such model": post_of(COMPLETIONS, model="none", prompt=TEXT),
    "another kind": post_of(COMPLETIONS, model="places", prompt=TEXT),
    "no prompt": post_of(COMPLETIONS),
    "an argument of another type": chat(TEXT, max_tokens="5"),
    "a tool": chat(TEXT, tools=[{"type": "function"}]),
    "no JSON": request(b"{", JSON, path=COMPLETIONS),
    "a list": request(b"[]", JSON, path=CHATS),
    "nothing": request(b"", JSON, path=CHATS),
    "twice": request(b'{"model":"echo","model":"echo","prompt":"a"}', JSON, path=COMPLETIONS),
    "too deep": request(b'{"a":' * 300 + b"1" + b"}" * 300, JSON, path=COMPLETIONS),
    "no type": request(b'{"model":"echo","prompt":"[]"}', path=COMPLETIONS),
    "another type": request(b"{}", "Content-Type: text/plain", path=COMPLETIONS),
    "time": post_of(COMPLETIONS, "Grpc-Timeout: 30S", prompt=TEXT),
    "no time": post_of(COMPLETIONS, "Grpc-Timeout: 0n", prompt=TEXT),
    "an invalid time": post_of(COMPLETIONS, "Grpc-Timeout: x", prompt=TEXT),
    "another method": request(method="GET", path=COMPLETIONS),
    "a product's error": post_of(COMPLETIONS, prompt="product"),
    "an error": post_of(COMPLETIONS, prompt="raise"),
    "too large": post_of(COMPLETIONS, prompt="[" + '"x", ' * 80_000 + '"x"]'),
    "embeddings": post_of("/v1/embeddings", input="a"),
}  # fmt: skip
PAIRS = [
    (kind, name)
    for kind in OPS
    for name in CASES
    if kind != "parts" or name not in ("a product's error", "an error", "embeddings")
]


@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_answers_are_the_same(servers, kind, name):
    heard = []
    for server in servers[kind]:
        with Connection(server.http_port) as connection:
            connection.send(CASES[name])
            heard.append([comparable(connection.answer())])
            if name != "too large":  # which may end the connection
                connection.send(CASES["a completion"])
                heard[-1].append(comparable(connection.answer()))
    assert heard[0] == heard[1]
    assert heard[0][-1][0] == (413 if name == "too large" else 200)


def test_the_official_client_takes_the_lane(servers, monkeypatch):
    seen = []
    begin = CompletionEndpoint.begin

    def spied(self: Any, body: bytes, sink: Any) -> Any:
        seen.append(body)
        return begin(self, body, sink)

    monkeypatch.setattr(CompletionEndpoint, "begin", spied)
    for server, count in zip(servers["one answer"], (2, 0), strict=True):
        seen.clear()
        with client_of(server) as client:
            for _ in range(2):
                done = client.completions.create(model="echo", prompt=TEXT)
                assert done.choices[0].finish_reason
        assert len(seen) == count


def test_a_disconnect_in_the_lane_closes_the_generator():
    with openai_server(SaysParts(), dag={"max_parts": 10**9}) as server:
        with Connection(server.http_port) as connection:
            connection.send(post_of(COMPLETIONS, prompt="lane"))
            wait_until_begun("lane")
        assert became_of("lane") == ["closed"]
