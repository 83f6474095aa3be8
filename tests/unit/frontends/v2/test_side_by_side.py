"""Requests of one stream: who is answered before whom, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pipeline.frontends.v2.side_by_side import AHEAD, WAITING_BYTES, Place, side_by_side


async def sent(*messages: bytes) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


async def answers_of(*args: Any) -> list[bytes]:
    return [answer async for answer in side_by_side(*args)]


def test_answers_in_turn_are_in_the_order_of_the_messages():
    gates = {b"a": asyncio.Event(), b"b": asyncio.Event(), b"c": asyncio.Event()}
    gates[b"c"].set()

    async def answers(message: bytes, place: Place) -> AsyncIterator[bytes]:
        await gates[message].wait()
        if message != b"a":
            gates[b"a" if message == b"b" else b"b"].set()  # the one before is ready behind it
        await place.come()
        yield message

    assert asyncio.run(answers_of(sent(b"a", b"b", b"c"), answers)) == [b"a", b"b", b"c"]


def test_a_request_that_left_is_not_waited_for():
    gate = asyncio.Event()

    async def answers(message: bytes, place: Place) -> AsyncIterator[bytes]:
        if message == b"stream":
            place.leave()
            await place.come()
            yield b"part"
            await gate.wait()
            yield b"part"
        else:
            await place.come()
            yield message
            gate.set()

    result = asyncio.run(answers_of(sent(b"stream", b"a"), answers))
    assert result == [b"part", b"a", b"part"]


def test_a_turn_passes_requests_that_left():
    async def main() -> list[bool]:
        first = Place()
        second, third = Place(first), None
        third = Place(second)
        second.leave()
        waiting = asyncio.ensure_future(third.come())
        await asyncio.sleep(0)
        came = [waiting.done()]
        first.leave()
        await waiting
        behind = Place(third)
        third.leave()
        await behind.come()
        return came

    assert asyncio.run(main()) == [False]


def test_an_error_ends_the_stream_in_its_turn():
    async def answers(message: bytes, place: Place) -> AsyncIterator[bytes]:
        if message == b"bad":
            raise ValueError(message)
        await asyncio.sleep(0)
        await place.come()
        yield message

    async def main() -> None:
        result = side_by_side(sent(b"a", b"bad", b"c"), answers)
        assert await anext(result) == b"a"
        with pytest.raises(ValueError, match="bad"):
            await anext(result)

    asyncio.run(main())


def test_an_unreadable_message_ends_the_stream_after_earlier_answers():
    async def broken() -> AsyncIterator[bytes]:
        yield b"a"
        raise OSError("gone")

    async def answers(message: bytes, place: Place) -> AsyncIterator[bytes]:
        yield message

    async def main() -> None:
        result = side_by_side(broken(), answers)
        assert await anext(result) == b"a"
        with pytest.raises(OSError, match="gone"):
            await anext(result)

    asyncio.run(main())


@pytest.mark.parametrize("size", [1, 2**20])
def test_concurrent_requests_and_waiting_bytes_of_a_stream_are_bounded(size):
    begun = read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield b"x" * size

    async def answers(message: bytes, place: Place) -> AsyncIterator[bytes]:
        nonlocal begun
        begun += 1
        await asyncio.Event().wait()
        yield message

    async def main() -> None:
        result = side_by_side(endless(), answers)
        waiting = asyncio.ensure_future(anext(result))
        before = -1
        while read != before:
            before = read
            for _ in range(10):
                await asyncio.sleep(0)
        assert begun == AHEAD
        assert 1 <= read - AHEAD <= WAITING_BYTES // size
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await result.aclose()

    asyncio.run(main())


def test_a_closed_stream_closes_all_its_answers():
    closed = 0

    async def answers(message: bytes, place: Place) -> AsyncIterator[bytes]:
        nonlocal closed
        place.leave()
        try:
            while True:
                yield message
        finally:
            closed += 1

    async def main() -> None:
        result = side_by_side(sent(b"a", b"b"), answers)
        assert {await anext(result) for _ in range(20)} == {b"a", b"b"}
        await result.aclose()

    asyncio.run(main())
    assert closed == 2


def test_a_client_that_writes_first_gets_all_answers_in_order():
    written = asyncio.Event()

    async def messages() -> AsyncIterator[bytes]:
        for number in range(1000):
            yield b"%d" % number
            await asyncio.sleep(0)
        written.set()

    async def answers(message: bytes, place: Place) -> AsyncIterator[bytes]:
        await place.come()
        yield message

    async def main() -> list[bytes]:
        result = side_by_side(messages(), answers)
        first = await anext(result)
        await asyncio.wait_for(written.wait(), 30)
        return [first, *[answer async for answer in result]]

    assert asyncio.run(main()) == [b"%d" % number for number in range(1000)]
