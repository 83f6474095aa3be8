"""The clients over HTTP: what they refuse to send, and where an answer ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from raw_server import Answering, Answers, answering_all

from pipeline import AsyncPipelineClient, PipelineClient
from pipeline.client_http import AsyncHttpChannel, HttpChannel, services_of
from pipeline.errors import ClosedError
from pipeline.proto.pipeline_service_pb2 import Request

OK = b"HTTP/1.1 200 OK\r\n"
EVENTS = OK + b"Content-Type: text/event-stream\r\n"
NO_PART = b"event: end\ndata: {}\n\n"
ONE = b'{"key":["a"],"value":["1"]}'


@pytest.fixture
def answering() -> Iterator[Answers]:
    with answering_all() as answers:
        yield answers


def predicted(server: Answering, is_async: bool) -> Any:
    """The answer to a call of either client."""
    if not is_async:
        with PipelineClient() as client:
            client.connect(f"http://{server.address}/svc")
            return client.predict({"x": "1"})

    async def main() -> Any:
        async with AsyncPipelineClient() as client:
            client.connect(f"http://{server.address}/svc")
            return await client.predict({"x": "1"})

    return asyncio.run(main())


def parts_of(server: Answering, is_async: bool) -> list[Any]:
    """The parts that either client reads."""
    if not is_async:
        with PipelineClient() as client:
            client.connect(f"http://{server.address}/svc")
            return list(client.predict_stream({"x": "1"}))

    async def main() -> list[Any]:
        async with AsyncPipelineClient() as client:
            client.connect(f"http://{server.address}/svc")
            return [part async for part in client.predict_stream({"x": "1"})]

    return asyncio.run(main())


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "head", [b"HTTP/1.0 200 OK\r\n", OK + b"Connection: close\r\n", EVENTS.replace(b"/e", b"/x-e")]
)
def test_an_answer_may_end_with_its_connection(answering, is_async, head):
    assert predicted(answering(head + b"\r\n" + ONE), is_async)["a"] == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_an_answer_shorter_than_its_length_is_an_error(answering, is_async):
    server = answering(OK + b"Content-Length: 28\r\n\r\n" + ONE)
    with pytest.raises(ClosedError, match="cut off"):
        predicted(server, is_async)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_stream_without_a_part_ends_at_once(answering, is_async):
    server = answering(EVENTS + b"\r\n" + NO_PART)
    assert parts_of(server, is_async) == []
    with pytest.raises(ClosedError, match="no part at all"):
        predicted(server, is_async)


ODD_FIELDS = [
    ("x", "y\r\nevil: 1"),
    ("x", "y\nz"),
    ("x", "\0"),
    ("x", "\u20ac"),
    ("x", "\udc80"),
    ("x\r\nevil", "1"),
    ("x y", "1"),
    ("x:", "1"),
    ("", "1"),
    ("\u00e9", "1"),
]


@pytest.mark.parametrize("field", ODD_FIELDS)
@pytest.mark.parametrize("method", ["unary_unary", "unary_stream"])
@pytest.mark.parametrize("is_async", [False, True])
def test_invalid_metadata_are_refused_before_the_request(answering, is_async, method, field):
    server = answering(OK + b"Content-Length: 27\r\n\r\n" + ONE)
    services = services_of(f"http://{server.address}/svc")

    async def ask() -> None:
        kind = AsyncHttpChannel if is_async else HttpChannel
        made = getattr(kind(services, 1000), method)("")(Request(), timeout=None, metadata=[field])
        if asyncio.iscoroutine(made):
            await made

    with pytest.raises(TypeError, match="metadata"):
        asyncio.run(ask())
    assert server.heard == []


def test_metadata_are_sent_unchanged(answering):
    server = answering(OK + b"Content-Length: 27\r\n\r\n" + ONE)
    call = HttpChannel(services_of(f"http://{server.address}/svc"), 1000).unary_unary("")
    call(Request(), timeout=None, metadata=[("x-a", "b \u00e9"), ("x-b", "")])
    assert b"\r\nx-a: b \xe9\r\nx-b: \r\n" in server.heard[0]
