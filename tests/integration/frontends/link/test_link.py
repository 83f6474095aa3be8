"""What the link promises: frames however they are cut, any order, who left, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from begins import begin_of
from hypothesis import given
from hypothesis import strategies as st
from linked import (
    Linked,
    Said,
    answer,
    ask,
    asking,
    frame,
    linked,
    refusal_of,
    retry_after_s_of,
    said_in,
)

from pipeline.engine.request import RequestTarget
from pipeline.errors import ErrorCode, InitError, OverloadedError
from pipeline.frontends.base import HeaderForwarding
from pipeline.frontends.link.frames import (
    ANSWER,
    ASK,
    ASKED,
    CANCEL,
    HEAD,
    HEADED_VERSION,
    MORE,
    MORE_BACK,
    PIECE_BYTES,
    PING,
    PONG,
    READY,
    VERSION,
    Outbox,
)
from pipeline.frontends.link.server import LinkFrontend
from pipeline.proto.pipeline_service_pb2 import Request, Response
from pipeline.system.event_loop import loop_factory

LIMIT = 10_000
TRACE = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


async def echo(
    request: Any, timeout_s: float | None = None, route: RequestTarget | None = None
) -> Any:
    return Response(value=request.value)


class Holds:
    """Holds every request until it is released, or cancelled."""

    def __init__(self) -> None:
        self.inside: dict[str, asyncio.Future[None]] = {}
        self.cancelled: list[str] = []

    async def __call__(
        self, request: Any, timeout_s: float | None = None, route: Any = None
    ) -> Any:
        text = request.value[0]
        self.inside[text] = asyncio.get_running_loop().create_future()
        try:
            await self.inside[text]
        except asyncio.CancelledError:
            self.cancelled.append(text)
            raise
        finally:
            del self.inside[text]
        return Response(value=[text])

    def release(self, *texts: str) -> None:
        for text in texts or list(self.inside):
            self.inside[text].set_result(None)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: those of pytest are too long for sockets."""
    with tempfile.TemporaryDirectory(prefix="link-") as name:
        yield Path(name)


@contextlib.asynccontextmanager
async def opened(door: LinkFrontend, is_ready: bool = True) -> AsyncIterator[LinkFrontend]:
    await door.start(is_ready)
    try:
        yield door
    finally:
        await door.stop(0.0)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0)


def run(test: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(test)


@pytest.fixture
def talk(folder: Path, open_files: None) -> Callable[..., Any]:
    """talk(test, handle, ...): `await test(gateway)`, a gateway of a door for `handle`."""

    def run_it(test: Callable[[Linked], Awaitable[Any]], handle: Any = echo, **how: Any) -> Any:
        async def main() -> Any:
            door = LinkFrontend(begin_of(handle), folder / "0.link", **how)
            async with opened(door), linked(folder / "0.link") as gateway:
                return await test(gateway)

        return run(main())

    return run_it


# Requests and answers ---------------------------------------------------------------------------


def test_a_request_is_answered(talk):
    async def test(gateway):
        gateway.say(ask(7, "hello"))
        assert await gateway.hear() == answer(7, "hello")

    talk(test)


@pytest.mark.parametrize(
    ("timeout_ns", "timeout_s"), [(-1, None), (0, 0.0), (1, 1e-9), (100_000_000, 0.1)]
)
def test_the_handle_is_given_the_time_that_the_caller_gives(talk, timeout_ns, timeout_s):
    async def handle(request, timeout_s):
        return Response(value=[str(timeout_s)])

    async def test(gateway):
        gateway.say(ask(1, timeout_ns=timeout_ns))
        assert await gateway.hear() == answer(1, str(timeout_s))

    talk(test, handle)


@pytest.mark.parametrize(
    ("takes_trace", "trace", "told"),
    [(True, TRACE, (TRACE,)), (True, "ÿ", ("ÿ",)), (True, "", ()), (False, TRACE, ())],
)
def test_the_handle_is_told_the_callers_trace_if_it_takes_one(talk, takes_trace, trace, told):
    async def handle(request, timeout_s, *route):
        return Response(value=[each.traceparent for each in route])

    async def test(gateway):
        gateway.say(ask(1, "text", trace=trace))
        assert await gateway.hear() == answer(1, *told)

    talk(test, handle, takes_trace=takes_trace)


@pytest.mark.parametrize("size", [1, 300_000])
def test_the_handle_is_told_the_headers_that_are_forwarded(talk, size):
    async def handle(request, timeout_s, *route):
        infos = [each.info for each in route]
        return Response(value=[repr(dict(info.headers)) for info in infos if info is not None])

    async def test(gateway):
        request = Request(value=["x" * size])
        for number, (headers, told) in enumerate(
            [
                ({"X-User": "\xe9va", "Other": "1", "Cookie": "secret"}, ({"x-user": "\xe9va"},)),
                ({"X-Empty": "", "x-user": "1"}, ({"x-empty": "", "x-user": "1"},)),
                ({"Other": "1"}, ()),
                ({}, ()),
            ]
        ):
            gateway.say(asking(number, request, trace=TRACE, headers=headers))
            assert await gateway.hear() == answer(number, *map(repr, told))

    talk(test, handle, takes_trace=True, forwarding=HeaderForwarding("x-.*"))


def test_a_gateway_is_told_whether_headers_are_wanted():
    async def ready(**how: Any) -> bytes:
        connection, wire = LinkFrontend(begin_of(echo), Path("nowhere"), **how).accept(), Wire()
        connection.connection_made(wire)
        await until(lambda: bool(wire.packets))
        connection.connection_lost(None)
        return b"".join(wire.packets)

    assert run(ready()) == frame(READY, 0, bytes([VERSION, 0]))
    forwarding = HeaderForwarding("x-.*")
    assert run(ready(forwarding=forwarding)) == frame(READY, 0, bytes([HEADED_VERSION, 0]))


def test_headers_that_are_cut_short_end_the_connection(caplog):
    async def test(body: bytes) -> bool:
        async with wired(forwarding=HeaderForwarding("x-.*")) as (connection, wire):
            connection.data_received(frame(ASK, 1, ASKED.pack(-1, 0) + body))
            return wire.is_aborted

    assert run(test(b""))
    assert run(test(b"\0"))
    assert run(test(b"\0\5x\ny\n"))
    assert not run(test(b"\0\4x\ny\n"))
    assert "headers up to byte 17 of 16" in caplog.text


def test_answers_come_as_they_get_ready(talk):
    holds = Holds()

    async def test(gateway):
        gateway.say(ask(1, "a"), ask(2, "b"), ask(3, "c"))
        await until(lambda: len(holds.inside) == 3)
        for number, text in ((2, "b"), (3, "c"), (1, "a")):
            holds.release(text)
            assert await gateway.hear() == answer(number, text)

    talk(test, holds)


def test_messages_of_many_megabytes_pass_both_ways(talk):
    text = "x" * 20_000_000

    async def test(gateway):
        gateway.say(ask(1, "small"), ask(2, text), ask(3, "small"))
        heard = [await gateway.hear() for _ in range(3)]
        assert sorted(heard) == [answer(1, "small"), answer(2, text), answer(3, "small")]

    talk(test)


async def is_full(*_: Any) -> Any:
    raise OverloadedError("no place for \udcff", retry_after_s=70_000)


async def is_wrong(*_: Any) -> Any:
    return {}


async def is_broken(*_: Any) -> Any:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("handle", "refusal"),
    [
        (is_full, (503, ErrorCode.OVERLOADED, r"no place for \udcff")),
        (
            is_wrong,
            (
                500,
                ErrorCode.RPC_PACKAGE_ERROR,
                "pack_response_package returned dict, not a Response",
            ),
        ),
        (is_broken, (500, ErrorCode.UNKNOW, "internal error of the server")),
    ],
    ids=["overloaded", "no response", "a bug"],
)
def test_a_failure_is_what_the_http_door_would_say(talk, caplog, handle, refusal):
    async def test(gateway):
        gateway.say(ask(5))
        said = await gateway.hear()
        assert said[1] == 5
        assert retry_after_s_of(said) == (65_535 if handle is is_full else 0)
        return refusal_of(said)

    assert talk(test, handle) == refusal
    assert [record.getMessage() for record in caplog.records] == ["inference failed"] * (
        handle is is_broken
    )
    caplog.clear()  # of a traceback, which holds the request


def test_what_is_no_request_is_refused_and_the_connection_goes_on(talk):
    async def test(gateway):
        gateway.say(frame(ASK, 1, ASKED.pack(-1, 0) + b"\xff"), ask(2, "next"))
        said = sorted([await gateway.hear(), await gateway.hear()])
        status, err_no, text = refusal_of(said[1])
        assert (status, err_no) == (400, ErrorCode.RPC_PACKAGE_ERROR)
        assert text.startswith("not a Request: ")
        assert said[0] == answer(2, "next")

    talk(test)


# Frames, however they are cut -------------------------------------------------------------------


class Wire(asyncio.Transport):
    """A transport that writes down what happens to it."""

    def __init__(self) -> None:
        super().__init__()
        self.packets: list[bytes] = []
        self.is_aborted = False
        self.is_read = True

    def write(self, data: Any) -> None:
        self.packets.append(bytes(data))

    def abort(self) -> None:
        self.is_aborted = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


@contextlib.asynccontextmanager
async def wired(handle: Any = echo, **how: Any) -> AsyncIterator[tuple[asyncio.Protocol, Wire]]:
    """The door's end of a connection, which has said that it is ready, and its transport."""
    connection, wire = LinkFrontend(begin_of(handle), Path("nowhere"), **how).accept(), Wire()
    connection.connection_made(wire)
    await until(lambda: len(wire.packets) == 1)
    wire.packets.clear()
    yield connection, wire
    connection.connection_lost(None)
    await asyncio.sleep(0)  # those who are cancelled end


@given(
    texts=st.lists(st.text(max_size=300), max_size=8),
    trace=st.sampled_from(["", TRACE]),
    data=st.data(),
)
def test_requests_are_the_same_however_their_bytes_are_cut(texts, trace, data):
    frames = [ask(number, text, trace=trace) for number, text in enumerate(texts)]
    stream = b"".join(each + frame(CANCEL, 2**64 - 1) for each in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))

    async def test() -> list[Said]:
        async with wired() as (connection, wire):
            for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
                if start < end:
                    connection.data_received(stream[start:end])
            await until(lambda: len(said_in(b"".join(wire.packets))) == len(texts))
            assert not wire.is_aborted
            return said_in(b"".join(wire.packets))

    expected = [answer(number, text) for number, text in enumerate(texts)]
    assert sorted(run(test())) == expected


def test_requests_are_the_same_byte_by_byte():
    stream = ask(1, "a" * 50) + ask(2, "b" * 50)

    async def test() -> list[Said]:
        async with wired() as (connection, wire):
            for at in range(len(stream)):
                connection.data_received(stream[at : at + 1])
            await until(lambda: len(said_in(b"".join(wire.packets))) == 2)
            return said_in(b"".join(wire.packets))

    assert run(test()) == [answer(1, "a" * 50), answer(2, "b" * 50)]


def test_answers_that_get_ready_together_are_one_packet():
    holds = Holds()

    async def test() -> list[bytes]:
        async with wired(holds) as (connection, wire):
            connection.data_received(b"".join(ask(number, str(number)) for number in range(10)))
            await until(lambda: len(holds.inside) == 10)
            holds.release()
            await until(lambda: bool(wire.packets) and not holds.inside)
            return wire.packets

    (packet,) = run(test())
    assert said_in(packet) == [answer(number, str(number)) for number in range(10)]


def test_a_size_that_is_only_said_takes_no_memory():
    async def test() -> int:
        async with wired() as (connection, wire):
            tracemalloc.start()
            try:
                connection.data_received(HEAD.pack(PIECE_BYTES, ASK, 1) + b"x")
                connection.data_received(b"x" * 100)
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
                assert not wire.is_aborted

    assert run(test()) < 100_000


def test_a_gateway_that_does_not_take_its_answers_is_not_read_from():
    async def test() -> None:
        async with wired() as (connection, wire):
            connection.pause_writing()
            assert not wire.is_read
            connection.resume_writing()
            assert wire.is_read

    run(test())


# Large messages beside small ones ---------------------------------------------------------------


def test_small_requests_pass_between_the_pieces_of_a_large_one(talk):
    large = ask(1, "x" * (3 * PIECE_BYTES))
    pieces = [
        large[at : at + HEAD.size + PIECE_BYTES]
        for at in range(0, len(large), HEAD.size + PIECE_BYTES)
    ]

    async def test(gateway):
        for number, piece in enumerate(pieces, start=2):
            gateway.say(piece, ask(number, "small"))
            if number < len(pieces) + 1:
                assert await gateway.hear() == answer(number, "small")
        last = [await gateway.hear(), await gateway.hear()]
        assert sorted(last) == sorted([answer(1, "x" * (3 * PIECE_BYTES)), answer(number, "small")])

    talk(test)


def test_a_request_whose_caller_has_left_leaves_no_pieces(talk):
    async def test(gateway):
        gateway.say(frame(MORE, 1, ASKED.pack(-1, 0) + b"\xff"), frame(CANCEL, 1), ask(1, "again"))
        assert await gateway.hear() == answer(1, "again")

    talk(test)


class Sheet:
    """An Outbox's loop and transport: what is written, and the calls that are due."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self.due: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.due.append(call)

    def run_due(self) -> None:
        due, self.due = self.due, []
        for call in due:
            call()


def test_small_answers_pass_between_the_pieces_of_a_large_one():
    sheet = Sheet()
    outbox = Outbox(cast(Any, sheet), sheet.packets.append)
    large = bytes(range(256)) * (20 * PIECE_BYTES // 256)
    outbox.send(ANSWER, 1, large + b"end")
    outbox.send(ANSWER, 2, large)
    rounds = 0
    while sheet.due:
        outbox.send(ANSWER, 3 + rounds, b"small")
        sheet.packets.clear()
        sheet.run_due()
        found = said_in(b"".join(sheet.packets))
        assert found[0] == (ANSWER, 3 + rounds, b"small")
        assert len(found) <= 5, "the event loop is not held up"
        rounds += 1
    assert rounds >= 10


def test_the_pieces_of_large_answers_are_the_answers_and_take_turns():
    sheet = Sheet()
    outbox = Outbox(cast(Any, sheet), sheet.packets.append)
    bodies = {number: bytes([number]) * (number * PIECE_BYTES + number) for number in range(4)}
    for number, body in bodies.items():
        outbox.send(ANSWER, number, body)
    while sheet.due:
        sheet.run_due()
    heard: dict[int, bytes] = {}
    order = []
    for kind, number, body in said_in(b"".join(sheet.packets)):
        heard[number] = heard.get(number, b"") + body
        assert (kind == ANSWER) == (len(heard[number]) == len(bodies[number]))
        assert kind in (ANSWER, MORE_BACK)
        order.append(number)
    assert heard == bodies
    assert order == [0, 1, 2, 3, 1, 2, 3, 2, 3, 3]


def test_a_large_answer_waits_for_a_gateway_that_does_not_take_more():
    sheet = Sheet()
    outbox = Outbox(cast(Any, sheet), sheet.packets.append)
    outbox.send(ANSWER, 1, bytes(3 * PIECE_BYTES))
    outbox.pause()
    sheet.run_due()
    assert not sheet.packets
    assert not sheet.due
    outbox.send(PONG, 0, b"")
    sheet.run_due()
    assert said_in(b"".join(sheet.packets)) == [(PONG, 0, b"")]
    outbox.resume()
    assert len(sheet.packets) == 4
    assert not outbox.has_large


def test_a_large_answer_is_dropped_with_its_caller():
    sheet = Sheet()
    outbox = Outbox(cast(Any, sheet), sheet.packets.append)
    outbox.pause()
    outbox.send(ANSWER, 1, bytes(3 * PIECE_BYTES))
    outbox.send(ANSWER, 2, bytes(PIECE_BYTES + 1))
    outbox.drop(1)
    outbox.resume()
    assert {number for _, number, _ in said_in(b"".join(sheet.packets))} == {2}


def test_requests_are_read_while_a_large_answer_is_taken():
    async def test() -> None:
        async with wired() as (connection, wire):
            connection.data_received(ask(1, "x" * (4 * PIECE_BYTES)))
            await until(lambda: bool(wire.packets))
            wire.packets.clear()
            connection.data_received(ask(2, "x" * (40 * PIECE_BYTES)))
            await until(lambda: bool(wire.packets))
            connection.pause_writing()
            assert wire.is_read

    run(test())


# Heartbeat --------------------------------------------------------------------------------------


def test_a_ping_is_answered_at_once():
    holds = Holds()

    async def test() -> None:
        async with wired(holds) as (connection, wire):
            connection.data_received(ask(1, "held") + frame(PING, 7))
            await until(lambda: bool(wire.packets))
            assert said_in(b"".join(wire.packets)) == [(PONG, 7, b"")]

    run(test())


def test_a_gateway_that_says_nothing_is_given_up(caplog):
    async def test() -> None:
        async with wired() as (connection, wire):
            for _ in range(5):
                connection.check_alive()
                connection.check_alive()
                connection.data_received(frame(PING, 1))
            connection.check_alive()
            assert not wire.is_aborted
            for _ in range(3):
                connection.check_alive()
            assert wire.is_aborted

    run(test())
    assert "it has said nothing for 15 s" in caplog.text


# Who left ---------------------------------------------------------------------------------------


def test_a_request_whose_caller_has_left_is_cancelled_and_not_answered(talk):
    holds = Holds()

    async def test(gateway):
        gateway.say(ask(1, "a"), ask(2, "b"))
        await until(lambda: len(holds.inside) == 2)
        gateway.say(frame(CANCEL, 1), frame(CANCEL, 3))
        await until(lambda: holds.cancelled == ["a"])
        holds.release("b")
        assert await gateway.hear() == answer(2, "b")
        gateway.say(frame(CANCEL, 2), ask(1, "again"))
        await until(lambda: "again" in holds.inside)
        holds.release()
        assert await gateway.hear() == answer(1, "again")

    talk(test, holds)


def test_who_leaves_when_the_answer_is_there_gets_none(talk):
    holds = Holds()

    async def stubborn(request, timeout_s):
        with contextlib.suppress(asyncio.CancelledError):
            await holds(request)
        return Response()

    async def test(gateway):
        gateway.say(ask(1, "a"))
        await until(lambda: "a" in holds.inside)
        gateway.say(frame(CANCEL, 1))
        await until(lambda: holds.cancelled == ["a"])
        gateway.say(ask(2, "b"), frame(CANCEL, 2))  # has not even begun
        gateway.say(frame(ASK, 3, ASKED.pack(-1, 0) + b"\xff"))
        assert (await gateway.hear())[1] == 3
        assert holds.cancelled == ["a"]

    talk(test, stubborn)


def test_a_gateway_that_is_gone_has_left_with_all_its_requests(folder, open_files):
    holds = Holds()

    async def test():
        path = folder / "0.link"
        async with opened(LinkFrontend(begin_of(holds), path)), linked(path) as other:
            async with linked(path) as gateway:
                gateway.say(ask(1, "a"), ask(2, "b"))
                other.say(ask(1, "other"))
                await until(lambda: len(holds.inside) == 3)
            await until(lambda: len(holds.inside) == 1)
            assert sorted(holds.cancelled) == ["a", "b"]
            holds.release()
            assert await other.hear() == answer(1, "other")

    run(test())


# Readiness --------------------------------------------------------------------------------------


def test_a_gateway_is_told_at_once_and_at_every_change_whether_the_server_is_ready(
    folder, open_files
):
    async def test():
        async with opened(LinkFrontend(begin_of(echo), folder / "0.link"), is_ready=False) as door:
            streams = await asyncio.open_unix_connection(str(folder / "0.link"))
            first = Linked(*streams)
            assert await first.hear() == (READY, 0, bytes([VERSION, 0]))
            await door.set_ready(True)
            assert await first.hear() == (READY, 0, bytes([VERSION, 1]))
            async with linked(folder / "0.link") as second:
                await door.set_ready(False)
                assert await first.hear() == (READY, 0, bytes([VERSION, 0]))
                assert await second.hear() == (READY, 0, bytes([VERSION, 0]))
            first.leave()

    run(test())


@pytest.mark.parametrize("ready", [False, True])
def test_a_gateway_is_told_of_a_change_that_comes_before_its_connection_is_made(ready):
    async def test():
        door, wire = LinkFrontend(begin_of(echo), Path("nowhere")), Wire()
        await door.set_ready(not ready)
        connection = door.accept()
        await door.set_ready(ready)
        connection.connection_made(wire)
        await until(lambda: len(wire.packets) == 1)
        assert said_in(wire.packets[0]) == [(READY, 0, bytes([VERSION, ready]))]
        connection.connection_lost(None)

    run(test())


def test_a_server_that_is_not_ready_answers_all_the_same(folder, open_files):
    async def test():
        path = folder / "0.link"
        async with (
            opened(LinkFrontend(begin_of(echo), path), is_ready=False),
            linked(path) as gateway,
        ):
            gateway.say(ask(1, "early"))
            assert await gateway.hear() == answer(1, "early")

    run(test())


# Bad peers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of kind 47"),
        (frame(ANSWER, 1), "a frame of kind 17 with 9 bytes"),
        (HEAD.pack(8, CANCEL, 1), "a frame of kind 2 with 8 bytes"),
        (HEAD.pack(2**32 - 1, ASK, 1), "with 4294967295 bytes"),
        (frame(ASK, 1, b"x" * (PIECE_BYTES + 1)), f"with {PIECE_BYTES + 10} bytes"),
        (frame(5, 1), "a frame of kind 5"),
        (frame(ASK, 1, b"123456789"), "a request of 9 bytes"),
        (frame(ASK, 1, ASKED.pack(-1, 3) + b"ab"), "a traceparent of 3 bytes in 2"),
        (ask(1, "hold") + ask(1, "again"), "the id 1 is in flight"),
    ],
)
def test_what_is_no_frame_ends_its_connection_and_no_other(folder, open_files, caplog, said, why):
    async def test():
        path, holds = folder / "0.link", Holds()
        door = LinkFrontend(begin_of(holds), path, max_message_bytes=LIMIT)
        async with opened(door), linked(path) as good, linked(path) as bad:
            good.say(ask(1, "good"))
            await until(lambda: "good" in holds.inside)
            bad.say(said)
            assert await bad.hears_the_end()
            holds.release("good")
            assert await good.hear() == answer(1, "good")

    with caplog.at_level(logging.INFO):
        run(test())
    (record,) = (each for each in caplog.records if each.name == "pipeline.frontends.link.server")
    assert record.levelno == logging.WARNING
    assert why in record.getMessage()


def test_a_request_of_the_largest_size_is_taken_and_a_larger_one_is_not(talk):
    async def test(gateway):
        gateway.say(ask(1, "x" * (LIMIT - 3), trace="t" * 60_000))
        assert (await gateway.hear())[0] == ANSWER
        gateway.say(ask(2, "x" * (LIMIT + 2**17)))
        assert await gateway.hears_the_end()

    talk(test, max_message_bytes=LIMIT)


# The end ----------------------------------------------------------------------------------------


def test_a_door_that_stops_waits_for_the_requests_inside(folder, open_files):
    holds = Holds()

    async def test():
        door = LinkFrontend(begin_of(holds), folder / "0.link")
        async with opened(door), linked(folder / "0.link") as gateway:
            gateway.say(ask(1, "a"))
            await until(lambda: len(holds.inside) == 1)
            stopping = asyncio.ensure_future(door.stop(60.0))
            await asyncio.sleep(0)
            holds.release()
            assert await gateway.hear() == answer(1, "a")
            assert await gateway.hears_the_end()
            await stopping

    run(test())


def test_a_door_that_stops_refuses_what_takes_too_long(folder, open_files):
    holds = Holds()

    async def test():
        door = LinkFrontend(begin_of(holds), folder / "0.link")
        async with opened(door), linked(folder / "0.link") as gateway:
            gateway.say(ask(1, "a"))
            await until(lambda: len(holds.inside) == 1)
            await door.stop(0.0)
            await until(lambda: holds.cancelled == ["a"])

    run(test())


def test_who_is_refused_by_a_door_that_stops_is_told_so(folder, open_files):
    holds = Holds()

    async def test():
        door = LinkFrontend(begin_of(holds), folder / "0.link")
        async with opened(door), linked(folder / "0.link") as gateway:
            gateway.say(ask(1, "a"))
            await until(lambda: len(holds.inside) == 1)
            await door.stop(0.1)
            closed = 503, ErrorCode.CLOSED_ERROR, "the server has stopped"
            assert refusal_of(await gateway.hear()) == closed
            assert await gateway.hears_the_end()

    run(test())


def test_a_gateway_that_does_not_read_does_not_hold_up_the_end(folder, open_files):
    holds, text = Holds(), "x" * 20_000_000

    async def test():
        door = LinkFrontend(begin_of(holds), folder / "0.link")
        async with opened(door):
            reader, writer = await asyncio.open_unix_connection(str(folder / "0.link"), limit=1)
            writer.write(ask(1, text))
            await until(lambda: text in holds.inside)
            writer.transport.pause_reading()
            holds.release()
            await door.stop(0.01)
            writer.transport.resume_reading()
            with contextlib.suppress(ConnectionResetError):
                assert len(await asyncio.wait_for(reader.read(), 30)) < len(text)
            writer.transport.abort()

    run(test())


def test_a_closed_door_takes_no_connections_and_keeps_those_that_there_are(folder, open_files):
    async def test():
        door = LinkFrontend(begin_of(echo), folder / "0.link")
        async with opened(door), linked(folder / "0.link") as gateway:
            await door.close()
            with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
                await asyncio.open_unix_connection(str(folder / "0.link"))
            gateway.say(ask(1, "still"))
            assert await gateway.hear() == answer(1, "still")

    run(test())


def test_a_door_may_be_stopped_twice_or_before_it_starts(folder, open_files):
    async def test():
        door = LinkFrontend(begin_of(echo), folder / "0.link")
        await door.stop()
        await door.start()
        await door.stop()
        await door.stop()
        assert door.port == 0

    run(test())


def test_a_door_that_cannot_listen_says_why(folder):
    with pytest.raises(InitError, match=r"http_server: cannot listen on unix:.*No such file"):
        run(LinkFrontend(begin_of(echo), folder / "none" / "0.link").start())
