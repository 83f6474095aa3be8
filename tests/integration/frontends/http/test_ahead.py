"""Requests that are sent ahead, at an HTTP port that is played: parsed when it is their turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from doubles import run_virtual
from fake_transport import FakeTransport, connect
from raw_http import request

from pipeline.frontends.http.server import HttpFrontend
from pipeline.proto.pipeline_service_pb2 import Response

SHORTEST = b"GET / HTTP/1.1\r\n\r\n"
COUNT = 2_000


class Handle:
    def cancel(self) -> None:
        """Nobody works for it."""


def begin(raw: Any, timeout_s: Any, target: Any, sink: Any) -> Handle:
    sink.end(Response(key=raw.key, value=raw.value))
    return Handle()


async def _turns(frontend: HttpFrontend, transport: FakeTransport, answers: int) -> None:
    """Wait for so many answers, of requests of which one is read at a time."""
    while transport.written.count(b"HTTP/1.1 ") < answers:
        seen = len(transport.written)
        for _ in range(200):
            await asyncio.sleep(0)
            assert len(frontend._listener.tasks) <= 1
        assert len(transport.written) > seen, "it has stopped"


async def _played(packets: list[bytes], answers: int) -> bytes:
    frontend = HttpFrontend(begin, "127.0.0.1", 0, 2**20)
    await frontend.start(is_ready=True)
    try:
        transport = connect(frontend)
        for packet in packets:
            transport.is_reading = True  # a packet may be on its way when the server pauses
            transport.send(packet)
        await _turns(frontend, transport, answers)
        assert transport.is_reading, "all is answered"
        transport.leave()
        return transport.written
    finally:
        await frontend.stop(0.0)


@pytest.mark.parametrize("packets", [1, 2])
def test_requests_in_a_packet_are_parsed_when_it_is_their_turn(packets: int) -> None:
    sent = [SHORTEST * COUNT] * packets
    written = run_virtual(_played(sent, COUNT * packets))
    assert written.count(b"HTTP/1.1 404 ") == COUNT * packets


@pytest.mark.parametrize("size", [1, 3_000, 40_000])
def test_bodies_in_a_row_are_complete_with_any_cuts(size: int) -> None:
    texts = [f"{number}" + "x" * size for number in range(40)]
    bodies = [f'{{"key":["a"],"value":["{text}"]}}'.encode() for text in texts]
    whole = SHORTEST + b"".join(map(request, bodies))
    cuts = [whole[at : at + 50_000] for at in range(0, len(whole), 50_000)]
    written = run_virtual(_played(cuts, 41))
    assert [written.count(f'"{text}"'.encode()) for text in texts] == [1] * 40


def test_an_invalid_request_ends_the_connection_after_earlier_answers() -> None:
    async def main() -> bytes:
        frontend = HttpFrontend(begin, "127.0.0.1", 0, 2**20)
        await frontend.start(is_ready=True)
        transport = connect(frontend)
        transport.send(SHORTEST * 1_000 + b"no request\r\n\r\n" + SHORTEST * 1_000)
        while not transport.is_over:  # noqa: ASYNC110 - the clock is virtual
            await asyncio.sleep(1.0)
        await frontend.stop(0.0)
        return transport.written

    written = run_virtual(main())
    assert written.count(b"HTTP/1.1 404 ") == 1_000
    assert written.count(b"\r\ndate: ") == 1_001
    assert b"connection: close" in written.partition(b"HTTP/1.1 400 ")[2]
