"""The gateway's end of the link, in Go, beside the server's: whatever is called comes back."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from fake_begin import begin_of
from hypothesis import given, settings
from hypothesis import strategies as st
from link_peer import link_of

from pipeline.errors import OverloadedError
from pipeline.frontends.grpc.server import GrpcCall, GrpcError, GrpcService
from pipeline.frontends.link.frames import FRAME_BYTES
from pipeline.gateway.build import BuildError, find_go
from pipeline.proto.pipeline_service_pb2 import Response
from pipeline.system.event_loop import loop_factory

ECHO, ECHOES, FAIL = "/test.Service/Echo", "/test.Service/Echoes", "/test.Service/Fail"
EDGES = [0, 1, FRAME_BYTES - 40, FRAME_BYTES, FRAME_BYTES + 1, 3 * FRAME_BYTES, 2**20, 3 * 2**20]


@pytest.fixture(scope="module")
def peer() -> Iterator[Path]:
    """The program: `internal/link/linkpeer`."""
    try:
        go = find_go()
    except BuildError as error:
        pytest.skip(str(error))
    with tempfile.TemporaryDirectory(prefix="peer-") as folder:
        program = Path(folder, "linkpeer")
        go.run("build", "-o", str(program), "./internal/link/linkpeer")
        yield program


async def echo(message: bytes, call: GrpcCall) -> bytes:
    said = json.dumps([(name, str(value)) for name, value in call.headers()])
    left_s = call.time_left()
    return b"\n".join((said.encode(), b"-" if left_s is None else b"+", message))


async def echoes(messages: AsyncIterator[bytes], call: GrpcCall) -> AsyncIterator[bytes]:
    async for message in messages:
        yield message


async def fail(message: bytes, call: GrpcCall) -> bytes:
    raise GrpcError(grpc.StatusCode.ABORTED, message.decode(), 51, 3)


SERVICE = GrpcService("test.Service", {"Echo": echo, "Fail": fail}, {"Echoes": echoes})  # type: ignore[dict-item]


async def handle(request: Any, timeout_s: float | None = None, target: Any = None) -> Response:
    if request.name == "full":
        raise OverloadedError("no place", retry_after_s=5)
    return Response(value=[request.name, request.method, *request.value])


def called(peer: Path, calls: list[dict[str, Any]], secret: str = "") -> list[dict[str, Any]]:
    """How each call ended, in their order."""

    async def main() -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory(prefix="peer-") as folder:
            path = Path(folder, "0.link")
            door = link_of(begin_of(handle), path, services=[SERVICE], secret="hush")
            await door.start(True)
            try:
                said = await asyncio.to_thread(
                    subprocess.run,
                    [peer, path, secret or "hush"],
                    input=b"".join(json.dumps(item).encode() + b"\n" for item in calls),
                    capture_output=True,
                    timeout=120,
                    check=True,
                )
            finally:
                await door.stop(0.0)
            return sorted(
                map(json.loads, said.stdout.splitlines()), key=lambda item: int(item["number"])
            )

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main())


def call_of(method: str, *messages: bytes, number: int = 0, **how: Any) -> dict[str, Any]:
    encoded = [base64.b64encode(message).decode() for message in messages]
    return {"method": method, "messages": encoded, "number": number, "seconds": -1.0} | how


def messages_of(ended: dict[str, Any]) -> list[bytes]:
    return [base64.b64decode(item) for item in ended["messages"]]


MESSAGES = st.builds(
    lambda size, seed: bytes([seed]) * size, st.sampled_from(EDGES), st.integers(0, 255)
) | st.binary(max_size=50)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=10).filter(
    lambda name: not name.endswith("-bin")
)
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
CALLS = st.tuples(
    st.just(ECHO),
    st.lists(MESSAGES, min_size=1, max_size=1),
    st.lists(st.tuples(NAMES, VALUES), max_size=3),
    st.sampled_from([-1.0, 60.0]),
) | st.tuples(st.just(ECHOES), st.lists(MESSAGES, max_size=5), st.just([]), st.just(-1.0))


@settings(max_examples=15, deadline=None)
@given(calls=st.lists(CALLS, max_size=12))
def test_calls_of_all_kinds_and_sizes_are_returned_unchanged(peer, calls):
    made = [
        call_of(
            method,
            *messages,
            number=at,
            metadata=metadata,
            seconds=seconds,
            is_stream=method == ECHOES,
        )
        for at, (method, messages, metadata, seconds) in enumerate(calls)
    ]
    ends = called(peer, made)
    assert len(ends) == len(calls)
    for (method, messages, metadata, seconds), ended in zip(calls, ends, strict=True):
        assert (ended["code"], ended["status"]) == (0, 200)
        if method == ECHOES:
            assert ended["error"] == "EOF"
            assert messages_of(ended) == messages
        else:
            (answer,) = messages_of(ended)
            said, left, message = answer.split(b"\n", 2)
            assert [tuple(pair) for pair in json.loads(said)] == metadata
            assert left == (b"-" if seconds < 0 else b"+")
            assert message == messages[0]


def test_failures_are_sent_with_all_fields(peer):
    full, failed = called(
        peer,
        [
            call_of("json", b"{}", number=1, metadata=[[":path", "/full/p"]]),
            call_of(FAIL, b"why", number=2),
        ],
    )
    retry = ["grpc-retry-pushback-ms", "5000"]
    assert full["trailers"] == [["pipeline-err-no", "3004"], retry]
    assert [full[item] for item in ("code", "status", "err_no", "retry_after_s", "text")] == [
        *(8, 503, 3004, 5, "no place")
    ]
    assert failed["trailers"] == [["pipeline-err-no", "51"], ["grpc-retry-pushback-ms", "3000"]]
    assert [failed[item] for item in ("code", "status", "err_no", "retry_after_s", "text")] == [
        *(10, 409, 51, 3, "why")
    ]


def test_json_is_passed_unchanged(peer):
    body = '{"key":["a"],"value":["ä"]}'.encode()
    path = [[":path", "/n\u00e4me/mäthod"]]
    (ended,) = called(peer, [call_of("json", body, metadata=path)])
    assert json.loads(messages_of(ended)[0])["value"] == ["näme", "mäthod", "ä"]


def test_a_missing_method_is_an_error(peer):
    none, kind = called(
        peer,
        [call_of("none", b"", number=1), call_of(ECHO, b"", number=2, is_stream=True)],
    )
    assert none["error"] == kind["error"] == "the server has no such method"


def test_a_gateway_without_the_secret_is_refused_with_the_reason(peer, caplog):
    with pytest.raises(subprocess.CalledProcessError) as failed:
        called(peer, [], secret="other")
    assert failed.value.stderr.strip() == b"it refuses the link: its secret is wrong"
    assert "its secret is wrong" in caplog.text
