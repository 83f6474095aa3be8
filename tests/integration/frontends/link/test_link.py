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
from fake_begin import begin_of
from hypothesis import given
from hypothesis import strategies as st
from link_peer import (
    OURS,
    SUCCESS,
    LinkPeer,
    Said,
    answer,
    ask,
    asking,
    link_of,
    linked,
    message,
    refusal_of,
    retry_after_s_of,
    said_in,
    state,
    until,
)

from pipeline.engine.request import RequestTarget
from pipeline.errors import ClosedError, ErrorCode, InitError, OverloadedError, PayloadTypeError
from pipeline.frontends.base import HeaderForwarding
from pipeline.frontends.grpc.server import GrpcService
from pipeline.frontends.link import frames
from pipeline.frontends.link.frames import (
    CANCELED,
    CREDIT,
    DATA,
    END,
    FRAME_BYTES,
    HEAD,
    HELLO,
    LAST,
    MESSAGE,
    MORE,
    OPEN,
    OPENED,
    PING,
    PONG,
    Hello,
    frame,
    reset,
)
from pipeline.frontends.link.outbox import Outbox
from pipeline.frontends.link.server import Connection, LinkFrontend
from pipeline.proto.pipeline_service_pb2 import Request, Response
from pipeline.system.event_loop import loop_factory

LIMIT = 200_000
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


def run(test: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(test)


@pytest.fixture
def talk(folder: Path, open_files: None) -> Callable[..., Any]:
    """talk(test, handle, ...): `await test(gateway)`, a gateway of a door for `handle`."""

    def run_it(test: Callable[[LinkPeer], Awaitable[Any]], handle: Any = echo, **how: Any) -> Any:
        async def main() -> Any:
            door = link_of(begin_of(handle), folder / "0.link", **how)
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
def test_handle_receives_the_timeout_of_the_client(talk, timeout_ns, timeout_s):
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
def test_handle_receives_the_trace_of_the_client_if_it_has_a_route(talk, takes_trace, trace, told):
    async def handle(request, timeout_s, *route):
        return Response(value=[item.traceparent for item in route])

    async def test(gateway):
        gateway.say(ask(1, "text", trace=trace))
        assert await gateway.hear() == answer(1, *told)

    talk(test, handle, takes_trace=takes_trace)


@pytest.mark.parametrize("size", [1, 300_000])
def test_handle_receives_the_forwarded_headers(talk, size):
    async def handle(request, timeout_s, *route):
        infos = [item.info for item in route]
        return Response(value=[repr(dict(info.headers)) for info in infos if info is not None])

    async def test(gateway):
        request = Request(value=["x" * size])
        for number, (headers, reported) in enumerate(
            [
                ({"X-User": "\xe9va", "Other": "1", "Cookie": "secret"}, ({"x-user": "\xe9va"},)),
                ({"X-Empty": "", "x-user": "1"}, ({"x-empty": "", "x-user": "1"},)),
                ({"Other": "1"}, ()),
                ({}, ()),
            ],
            start=1,
        ):
            gateway.say(asking(number, request, trace=TRACE, headers=headers))
            assert await gateway.hear() == answer(number, *map(repr, reported))

    talk(test, handle, takes_trace=True, forwarding=HeaderForwarding("x-.*"))


def test_the_gateway_receives_the_capabilities_of_the_server():
    async def said(**how: Any) -> Hello:
        async with opened_wire(**how) as (connection, wire):
            connection.data_received(OURS)
            await until(lambda: bool(wire.packets))
            (kind, _, payload), reported = said_in(b"".join(wire.packets))
            assert (kind, reported) == (HELLO, state(False))
            return frames.read_hello(kind, payload)

    service = GrpcService("a.B", {"C": None}, {"D": None})  # type: ignore[dict-item]
    hello = run(said(services=[service], max_message_bytes=5, max_calls=7))
    assert [(method.id, method.name, method.stream) for method in hello.methods] == [
        (1, "inference", False),
        (2, "json", False),
        (3, "/baidu.paddle_serving.pipeline_serving.PipelineService/inference", False),
        (4, "/a.B/C", False),
        (5, "/a.B/D", True),
    ]
    assert (hello.limits.message_bytes, hello.limits.calls) == (5, 7)
    assert not hello.trace
    assert not hello.headers
    hello = run(said(takes_trace=True, forwarding=HeaderForwarding("x-.*")))
    assert hello.trace
    assert hello.headers


def test_answers_are_sent_when_they_are_ready(talk):
    holds = Holds()

    async def test(gateway):
        gateway.say(ask(1, "a"), ask(2, "b"), ask(3, "c"))
        await until(lambda: len(holds.inside) == 3)
        for number, text in ((2, "b"), (3, "c"), (1, "a")):
            holds.release(text)
            assert await gateway.hear() == answer(number, text)

    talk(test, holds)


def test_messages_of_many_megabytes_pass_in_both_directions(talk):
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


async def is_closed(*_: Any) -> Any:
    raise ClosedError("no more")


async def is_misfit(*_: Any) -> Any:
    raise PayloadTypeError("not that")


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
        (is_closed, (503, ErrorCode.CLOSED_ERROR, "no more")),
        (is_misfit, (500, ErrorCode.TYPE_ERROR, "not that")),
        (is_broken, (500, ErrorCode.UNKNOW, "internal error of the server")),
    ],
    ids=["overloaded", "no response", "closed", "misfit", "a bug"],
)
def test_a_failure_has_the_answer_of_the_http_frontend(talk, caplog, handle, refusal):
    async def test(gateway):
        gateway.say(ask(5))
        hear = await gateway.hear()
        assert hear[1] == 5
        assert retry_after_s_of(hear) == (65_535 if handle is is_full else 0)
        return refusal_of(hear)

    assert talk(test, handle) == refusal
    assert [record.getMessage() for record in caplog.records] == ["inference failed"] * (
        handle is is_broken
    )
    caplog.clear()  # of a traceback, which holds the request


def test_an_invalid_request_is_refused_and_the_connection_continues(talk):
    async def test(gateway):
        gateway.say(message(1, b"\xff"), ask(2, "next"))
        said = sorted([await gateway.hear(), await gateway.hear()])
        status, err_no, text = refusal_of(said[0])
        assert (status, err_no) == (400, ErrorCode.RPC_PACKAGE_ERROR)
        assert text.startswith("not a Request: ")
        assert said[1] == answer(2, "next")

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

    def close(self) -> None:
        pass

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


@contextlib.asynccontextmanager
async def opened_wire(handle: Any = echo, **how: Any) -> AsyncIterator[tuple[Connection, Wire]]:
    """The door's end of a connection, to which nothing was said, and its transport."""
    connection = cast(Connection, link_of(begin_of(handle), Path("nowhere"), **how).accept())
    wire = Wire()
    connection.connection_made(wire)
    yield connection, wire
    connection.connection_lost(None)
    await asyncio.sleep(0)  # the cancelled calls end


@contextlib.asynccontextmanager
async def wired(handle: Any = echo, **how: Any) -> AsyncIterator[tuple[Connection, Wire]]:
    """The same, when both sides have said HELLO."""
    async with opened_wire(handle, **how) as (connection, wire):
        connection.data_received(OURS)
        await until(lambda: len(wire.packets) == 1)
        wire.packets.clear()
        yield connection, wire


@given(
    texts=st.lists(st.text(max_size=300), max_size=8),
    trace=st.sampled_from(["", TRACE]),
    data=st.data(),
)
def test_requests_are_the_same_however_their_bytes_are_cut(texts, trace, data):
    tasks = [ask(number, text, trace=trace) for number, text in enumerate(texts, start=1)]
    stream = b"".join(task + reset(2**64 - 1, CANCELED) for task in tasks)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))

    async def test() -> list[Said]:
        async with wired() as (connection, wire):
            for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
                if start < end:
                    connection.data_received(stream[start:end])
            await until(lambda: len(said_in(b"".join(wire.packets))) == len(texts))
            assert not wire.is_aborted
            return said_in(b"".join(wire.packets))

    expected = [answer(number, text) for number, text in enumerate(texts, start=1)]
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
            connection.data_received(b"".join(ask(number, str(number)) for number in range(1, 11)))
            await until(lambda: len(holds.inside) == 10)
            holds.release()
            await until(lambda: bool(wire.packets) and not holds.inside)
            return wire.packets

    (packet,) = run(test())
    assert said_in(packet) == [answer(number, str(number)) for number in range(1, 11)]


def test_a_stated_size_allocates_no_memory():
    async def test() -> int:
        async with wired() as (connection, wire):
            tracemalloc.start()
            try:
                connection.data_received(HEAD.pack(FRAME_BYTES, OPEN, 7, 1, 1) + b"x")
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
    large = ask(1, "x" * (3 * FRAME_BYTES))
    pieces = [
        large[at : at + HEAD.size + FRAME_BYTES]
        for at in range(0, len(large), HEAD.size + FRAME_BYTES)
    ]

    async def test(gateway):
        for number, piece in enumerate(pieces, start=2):
            gateway.say(piece, ask(number, "small"))
            if number < len(pieces) + 1:
                assert await gateway.hear() == answer(number, "small")
        last = [await gateway.hear(), await gateway.hear()]
        assert sorted(last) == sorted([answer(1, "x" * (3 * FRAME_BYTES)), answer(number, "small")])

    talk(test)


def test_a_cancelled_request_leaves_no_pieces(talk):
    async def test(gateway):
        begun = frame(OPEN, 1, OPENED.pack(-1, 0, 0) + b"\xff", MESSAGE | MORE, 1)
        gateway.say(begun, reset(1, CANCELED), frame(DATA, 1, b"\xff", MESSAGE | LAST))
        gateway.say(ask(2, "again"))
        assert await gateway.hear() == answer(2, "again")

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


def outbox_of(sheet: Sheet, credit: int = 2**40) -> Outbox:
    outbox = Outbox(cast(Any, sheet), sheet.packets.append)
    outbox.call_credit = credit
    return outbox


def test_small_answers_pass_between_the_pieces_of_a_large_one():
    sheet = Sheet()
    outbox = outbox_of(sheet)
    large = bytes(range(256)) * (20 * FRAME_BYTES // 256)
    outbox.answer(1, large + b"end")
    outbox.answer(2, large)
    rounds = 0
    while sheet.due:
        outbox.answer(3 + rounds, b"small")
        sheet.packets.clear()
        sheet.run_due()
        result = said_in(b"".join(sheet.packets))
        assert result[0] == (END, 3 + rounds, SUCCESS + b"small")
        assert len(result) <= 7, "the event loop is not held up"
        rounds += 1
    assert rounds >= 10


def test_the_pieces_of_large_answers_are_the_answers_and_take_turns():
    sheet = Sheet()
    outbox = outbox_of(sheet)
    bodies = {number: bytes([number]) * (number * FRAME_BYTES + number) for number in range(1, 4)}
    for number, body in bodies.items():
        outbox.answer(number, body)
    while sheet.due:
        sheet.run_due()
    heard: dict[int, bytes] = {}
    order = []
    for kind, number, body in said_in(b"".join(sheet.packets)):
        order.append(number)
        if kind == DATA:
            heard[number] = heard.get(number, b"") + body
        else:
            assert (kind, body) == (END, SUCCESS)
            assert heard[number] == bodies[number]
    assert heard == bodies
    assert order == [1, 2, 3, 1, 2, 3, 1, 2, 3, 2, 3, 3]


def test_a_large_answer_waits_for_a_gateway_that_does_not_take_more():
    sheet = Sheet()
    outbox = outbox_of(sheet)
    outbox.answer(1, bytes(3 * FRAME_BYTES))
    outbox.pause()
    sheet.run_due()
    assert not sheet.packets
    assert not sheet.due
    outbox.send(frame(PONG, 0))
    sheet.run_due()
    assert said_in(b"".join(sheet.packets)) == [(PONG, 0, b"")]
    outbox.resume()
    assert len(said_in(b"".join(sheet.packets))) == 5
    assert not outbox.has_long


def test_a_large_answer_waits_for_credit():
    sheet = Sheet()
    outbox = outbox_of(sheet, FRAME_BYTES + 1)
    outbox.answer(1, bytes(3 * FRAME_BYTES))
    while sheet.due:
        sheet.run_due()
    sizes = [len(body) for _, _, body in said_in(b"".join(sheet.packets))]
    assert sizes == [FRAME_BYTES, 1]
    outbox.answer(2, b"small")  # which needs none
    sheet.run_due()
    assert said_in(sheet.packets[-1]) == [(END, 2, SUCCESS + b"small")]
    outbox.add_credit(1, FRAME_BYTES)
    outbox.add_credit(1, FRAME_BYTES)
    while sheet.due:
        sheet.run_due()
    said = said_in(b"".join(sheet.packets))
    assert sum(len(body) for kind, _, body in said if kind == DATA) == 3 * FRAME_BYTES
    assert said[-1] == (END, 1, SUCCESS)


def test_a_large_answer_is_dropped_with_its_caller():
    sheet = Sheet()
    outbox = outbox_of(sheet)
    outbox.pause()
    outbox.answer(1, bytes(3 * FRAME_BYTES))
    outbox.answer(2, bytes(FRAME_BYTES + 1))
    outbox.drop(1)
    outbox.resume()
    assert {number for _, number, _ in said_in(b"".join(sheet.packets))} == {2}


def test_requests_are_read_while_a_large_answer_is_written():
    async def test() -> None:
        async with wired() as (connection, wire):
            connection.data_received(ask(1, "x" * (4 * FRAME_BYTES)))
            await until(lambda: bool(wire.packets))
            wire.packets.clear()
            connection.data_received(ask(2, "x" * (40 * FRAME_BYTES)))
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
            assert said_in(b"".join(wire.packets)) == [(PONG, 7, b""), state(False, 1)]

    run(test())


def test_a_silent_gateway_is_given_up(caplog):
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


def test_a_request_whose_client_left_is_cancelled_and_not_answered(talk):
    holds = Holds()

    async def test(gateway):
        gateway.say(ask(1, "a"), ask(2, "b"))
        await until(lambda: len(holds.inside) == 2)
        gateway.say(reset(1, CANCELED), reset(3, CANCELED))
        await until(lambda: holds.cancelled == ["a"])
        holds.release("b")
        assert await gateway.hear() == answer(2, "b")
        gateway.say(reset(2, CANCELED), ask(4, "again"))
        await until(lambda: "again" in holds.inside)
        holds.release()
        assert await gateway.hear() == answer(4, "again")

    talk(test, holds)


def test_a_client_that_leaves_when_the_answer_is_ready_gets_none(talk):
    holds = Holds()

    async def stubborn(request, timeout_s):
        with contextlib.suppress(asyncio.CancelledError):
            await holds(request)
        return Response()

    async def test(gateway):
        gateway.say(ask(1, "a"))
        await until(lambda: "a" in holds.inside)
        gateway.say(reset(1, CANCELED))
        await until(lambda: holds.cancelled == ["a"])
        gateway.say(ask(2, "b"), reset(2, CANCELED))  # has not even begun
        gateway.say(message(3, b"\xff"))
        assert (await gateway.hear())[1] == 3
        assert holds.cancelled == ["a"]

    talk(test, stubborn)


def test_a_disconnected_gateway_cancels_all_its_requests(folder, open_files):
    holds = Holds()

    async def test():
        path = folder / "0.link"
        async with opened(link_of(begin_of(holds), path)), linked(path) as other:
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


def test_a_gateway_receives_the_readiness_at_once_and_at_each_change(folder, open_files):
    async def test():
        async with opened(link_of(begin_of(echo), folder / "0.link"), is_ready=False) as door:
            streams = await asyncio.open_unix_connection(str(folder / "0.link"))
            first = LinkPeer(*streams)
            first.say(OURS)
            assert (await first.hear())[0] == HELLO
            assert await first.hear() == state(False)
            await door.set_ready(True)
            assert await first.hear() == state(True)
            async with linked(folder / "0.link") as second:
                await door.set_ready(False)
                assert await first.hear() == state(False)
                assert await second.hear() == state(False)
            first.leave()

    run(test())


@pytest.mark.parametrize("ready", [False, True])
def test_a_gateway_receives_a_change_of_readiness_before_its_hello(ready):
    async def test():
        door, wire = link_of(begin_of(echo), Path("nowhere")), Wire()
        await door.set_ready(not ready)
        connection = door.accept()
        connection.connection_made(wire)
        await door.set_ready(ready)
        connection.data_received(OURS)
        await until(lambda: len(wire.packets) == 1)
        assert said_in(wire.packets[0])[1:] == [state(ready)]
        connection.connection_lost(None)

    run(test())


def test_a_pong_has_the_number_of_calls():
    holds = Holds()

    async def test() -> None:
        async with wired(holds) as (connection, wire):
            connection.data_received(ask(1, "a") + ask(2, "b") + frame(PING, 0))
            await until(lambda: bool(wire.packets))
            assert said_in(b"".join(wire.packets)) == [(PONG, 0, b""), state(False, 2)]
            wire.packets.clear()
            connection.data_received(frame(PING, 9))
            await until(lambda: bool(wire.packets))
            assert said_in(b"".join(wire.packets)) == [(PONG, 9, b"")]

    run(test())


def test_a_server_that_is_not_ready_answers_all_the_same(folder, open_files):
    async def test():
        path = folder / "0.link"
        async with (
            opened(link_of(begin_of(echo), path), is_ready=False),
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
        (frame(END, 1), "a frame of kind 5 with 0 bytes"),
        (frame(HELLO, 0), "a frame of kind 1 with 0 bytes"),
        (frame(12, 1), "a frame of kind 12"),
        (frame(0, 1), "a frame of kind 0"),
        (HEAD.pack(2**32 - 1, OPEN, 6, 1, 1), "with 4294967295 bytes"),
        (frame(OPEN, 1, b"x" * (FRAME_BYTES + 1), 6, 1), f"with {FRAME_BYTES + 1} bytes"),
        (frame(OPEN, 1, b"1234567890", 6, 1), "an OPEN of 10 bytes"),
        (frame(OPEN, 1, OPENED.pack(-1, 1, 2) + b"ab", 6, 1), "1 bytes of a caller and 2 of"),
        (ask(1, "hold") + ask(1, "again"), "the id 1 comes after 1"),
        (ask(2, "hold") + ask(1, "again"), "the id 1 comes after 2"),
        (frame(DATA, 1, b"x", MESSAGE | LAST), "DATA of 1, which was not opened"),
        (frame(CREDIT, 1, b"x"), "a CREDIT of 1 bytes"),
    ],
)
def test_an_invalid_frame_ends_its_connection_and_no_other(folder, open_files, caplog, said, why):
    async def test():
        path, holds = folder / "0.link", Holds()
        door = link_of(begin_of(holds), path, max_message_bytes=LIMIT)
        async with opened(door), linked(path) as good, linked(path) as bad:
            good.say(ask(1, "good"))
            await until(lambda: "good" in holds.inside)
            bad.say(said)
            assert await bad.hears_the_end()
            holds.release("good")
            assert await good.hear() == answer(1, "good")

    with caplog.at_level(logging.INFO):
        run(test())
    (record,) = (item for item in caplog.records if item.name == "pipeline.frontends.link.server")
    assert record.levelno == logging.WARNING
    assert why in record.getMessage()


def test_a_request_of_the_largest_size_is_accepted_and_a_larger_one_is_not(talk):
    async def test(gateway):
        gateway.say(ask(1, "x" * (LIMIT - 4), trace="t" * 60_000))
        assert refusal_of(await gateway.hear())[0] == 200
        gateway.say(ask(2, "x" * (LIMIT - 3), trace="t" * 60_000), ask(3, "next"))
        hear = await gateway.hear()
        assert refusal_of(hear) == (
            413,
            ErrorCode.RPC_PACKAGE_ERROR,
            f"the request is larger than max_message_bytes ({LIMIT} bytes)",
        )
        assert await gateway.hear() == answer(3, "next")

    talk(test, max_message_bytes=LIMIT)


# The end ----------------------------------------------------------------------------------------


def test_a_door_that_stops_waits_for_the_requests_inside(folder, open_files):
    holds = Holds()

    async def test():
        door = link_of(begin_of(holds), folder / "0.link")
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


def test_a_stopping_frontend_refuses_slow_requests(folder, open_files):
    holds = Holds()

    async def test():
        door = link_of(begin_of(holds), folder / "0.link")
        async with opened(door), linked(folder / "0.link") as gateway:
            gateway.say(ask(1, "a"))
            await until(lambda: len(holds.inside) == 1)
            await door.stop(0.0)
            await until(lambda: holds.cancelled == ["a"])

    run(test())


def test_a_request_refused_by_a_stopping_frontend_gets_the_reason(folder, open_files):
    holds = Holds()

    async def test():
        door = link_of(begin_of(holds), folder / "0.link")
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
        door = link_of(begin_of(holds), folder / "0.link")
        async with opened(door):
            reader, writer = await asyncio.open_unix_connection(str(folder / "0.link"), limit=1)
            writer.write(OURS + ask(1, text))
            await until(lambda: text in holds.inside)
            writer.transport.pause_reading()
            holds.release()
            await door.stop(0.01)
            writer.transport.resume_reading()
            with contextlib.suppress(ConnectionResetError):
                assert len(await asyncio.wait_for(reader.read(), 30)) < len(text)
            writer.transport.abort()

    run(test())


def test_a_closed_frontend_accepts_no_connections_and_keeps_existing_ones(folder, open_files):
    async def test():
        door = link_of(begin_of(echo), folder / "0.link")
        async with opened(door), linked(folder / "0.link") as gateway:
            await door.close()
            with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
                await asyncio.open_unix_connection(str(folder / "0.link"))
            gateway.say(ask(1, "still"))
            assert await gateway.hear() == answer(1, "still")

    run(test())


def test_a_door_may_be_stopped_twice_or_before_it_starts(folder, open_files):
    async def test():
        door = link_of(begin_of(echo), folder / "0.link")
        await door.stop()
        await door.start()
        await door.stop()
        await door.stop()
        assert door.port == 0

    run(test())


def test_a_frontend_that_cannot_listen_gives_the_reason(folder):
    with pytest.raises(InitError, match=r"http_server: cannot listen on unix:.*No such file"):
        run(link_of(begin_of(echo), folder / "none" / "0.link").start())
