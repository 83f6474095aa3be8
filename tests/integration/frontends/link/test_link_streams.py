"""Streams over the link, credit, and what ends each breach; seen from the gateway's side."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from fake_begin import begin_of
from link_peer import (
    GRPC_INFERENCE,
    JSON,
    SUCCESS,
    LinkPeer,
    Said,
    answer,
    ask,
    code_of,
    link_of,
    linked,
    message,
    refusal_of,
    until,
)

from pipeline.errors import ErrorCode
from pipeline.frontends.grpc.server import GrpcCall, GrpcError, GrpcService
from pipeline.frontends.link import frames
from pipeline.frontends.link.frames import (
    CANCELED,
    CREDIT,
    DATA,
    END,
    FRAME_BYTES,
    GOAWAY,
    HEAD,
    LAST,
    MESSAGE,
    MORE,
    NO_METHOD,
    OPEN,
    OPENED,
    OVERRUN,
    REFUSED,
    RESET,
    STREAM_CREDIT,
    frame,
)
from pipeline.frontends.link.server import LinkFrontend
from pipeline.proto.pipeline_service_pb2 import Request, Response
from pipeline.system.event_loop import loop_factory

ECHO, ECHOES = 4, 5
"""Numbers of the methods of `Service`."""

PIECE = bytes(FRAME_BYTES)


class Service:
    """A unary method and a stream, which waits before each answer while it is held."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.go.set()
        self.cancelled = 0
        self.taken: list[int] = []

    async def echo(self, asked: bytes, call: GrpcCall) -> bytes:
        if asked == b"abort":
            raise GrpcError(grpc.StatusCode.ABORTED, "why", 51)
        if asked == b"bug":
            raise ZeroDivisionError
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return asked

    async def echoes(self, messages: AsyncIterator[bytes], call: GrpcCall) -> AsyncIterator[bytes]:
        try:
            async for asked in messages:
                self.taken.append(len(asked))
                await self.go.wait()
                if asked == b"abort":
                    raise GrpcError(grpc.StatusCode.ABORTED, "why")
                yield asked
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    @property
    def services(self) -> list[GrpcService]:
        return [GrpcService("a.B", {"Echo": self.echo}, {"Echoes": self.echoes})]  # type: ignore[dict-item]


async def handle(request: Request, timeout_s: float | None = None, target: Any = None) -> Response:
    return Response(value=[request.name, request.method, str(timeout_s), *request.value])


Test = Callable[[LinkPeer, Service, LinkFrontend], Awaitable[None]]


def talk(test: Test, **how: Any) -> None:
    async def main() -> None:
        service = Service()
        with tempfile.TemporaryDirectory(prefix="link-") as folder:
            path = Path(folder, "0.link")
            door = link_of(begin_of(handle), path, services=service.services, **how)
            await door.start(True)
            try:
                async with linked(path) as gateway:
                    await test(gateway, service, door)
            finally:
                await door.stop(0.0)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main())


def opening(number: int, method: int = ECHOES) -> bytes:
    return frame(OPEN, number, OPENED.pack(-1, 0, 0), 0, method)


def data_frame(number: int, data: bytes, flags: int = MESSAGE) -> bytes:
    return frame(DATA, number, data, flags)


async def hear(gateway: LinkPeer) -> Said:
    """The next frame that is no CREDIT; nothing is given back."""
    while True:
        heard = await gateway.hear_frame()
        if heard[0] != CREDIT:
            return heard


# Streams ----------------------------------------------------------------------------------------


def test_a_stream_has_messages_in_both_directions_and_an_end():
    async def test(gateway: LinkPeer, service: Service, door: LinkFrontend) -> None:
        gateway.say(opening(1))
        for data in (b"a", b"", b"b" * 100):
            gateway.say(data_frame(1, data))
            assert await hear(gateway) == (DATA, 1, data)
        gateway.say(data_frame(1, b"", LAST))
        assert await hear(gateway) == (END, 1, SUCCESS)

    talk(test)


def test_a_stream_may_have_one_message_or_none():
    async def test(gateway: LinkPeer, service: Service, door: LinkFrontend) -> None:
        gateway.say(message(1, b"only", method=ECHOES))
        assert await hear(gateway) == (DATA, 1, b"only")
        assert await hear(gateway) == (END, 1, SUCCESS)
        gateway.say(frame(OPEN, 2, OPENED.pack(-1, 0, 0), LAST, ECHOES))
        assert await hear(gateway) == (END, 2, SUCCESS)

    talk(test)


def test_long_messages_of_a_stream_do_not_block_short_calls():
    async def test(gateway: LinkPeer, service: Service, door: LinkFrontend) -> None:
        gateway.say(message(1, b"x" * (5 * FRAME_BYTES), method=ECHOES, is_last=False))
        gateway.say(ask(2, "small"), data_frame(1, b"", LAST))
        heard = [await gateway.hear() for _ in range(2)]
        assert (END, 1, SUCCESS + b"x" * (5 * FRAME_BYTES)) in heard
        assert (
            END,
            2,
            SUCCESS + Response(value=["", "", "None", "small"]).SerializeToString(),
        ) in heard

    talk(test)


def test_a_stream_ends_with_its_error_after_its_answers():
    async def test(gateway: LinkPeer, service: Service, door: LinkFrontend) -> None:
        gateway.say(
            opening(1), data_frame(1, b"a"), data_frame(1, b"abort"), data_frame(1, b"never")
        )
        assert await hear(gateway) == (DATA, 1, b"a")
        ended = await hear(gateway)
        assert (code_of(ended), refusal_of(ended)) == (10, (409, 0, "why"))
        gateway.say(data_frame(1, b"late"), ask(2))  # which is passed over
        assert (await hear(gateway))[1] == 2

    talk(test)


def test_a_stream_whose_client_left_is_cancelled():
    async def test(gateway: LinkPeer, service: Service, door: LinkFrontend) -> None:
        service.go.clear()
        gateway.say(
            opening(1),
            data_frame(1, b"a"),
            frame(OPEN, 2, OPENED.pack(-1, 0, 0) + b"x", MESSAGE | LAST, ECHO),
        )
        await until(lambda: service.taken == [1])
        gateway.say(frames.reset(1, CANCELED), frames.reset(2, CANCELED))
        await until(lambda: service.cancelled == 2)
        service.go.set()
        gateway.say(ask(3))
        assert (await hear(gateway))[1] == 3

    talk(test)


def test_streams_end_after_their_answers_when_the_server_stops():
    async def test(gateway: LinkPeer, service: Service, door: LinkFrontend) -> None:
        service.go.clear()
        gateway.say(opening(1), data_frame(1, b"a"))
        await until(lambda: service.taken == [1])
        stopping = asyncio.ensure_future(door.stop(30.0))
        assert await hear(gateway) == (GOAWAY, 0, (1).to_bytes(8) + b"the server stops")
        gateway.say(ask(2))
        assert await hear(gateway) == (RESET, 2, bytes([REFUSED]))
        service.go.set()
        assert await hear(gateway) == (DATA, 1, b"a")
        ended = await hear(gateway)
        closed = 503, ErrorCode.CLOSED_ERROR, "the server has stopped"
        assert (code_of(ended), refusal_of(ended)) == (14, closed)
        assert await gateway.hears_the_end()
        await stopping

    talk(test)


def test_a_completed_stream_continues_when_the_server_stops():
    async def test(gateway: LinkPeer, service: Service, door: LinkFrontend) -> None:
        service.go.clear()
        gateway.say(opening(1), data_frame(1, b"a", MESSAGE | LAST))
        await until(lambda: service.taken == [1])
        stopping = asyncio.ensure_future(door.stop(30.0))
        assert await hear(gateway) == (GOAWAY, 0, (1).to_bytes(8) + b"the server stops")
        service.go.set()
        assert await hear(gateway) == (DATA, 1, b"a")
        assert await hear(gateway) == (END, 1, SUCCESS)
        assert await gateway.hears_the_end()
        await stopping

    talk(test)


# Credit -----------------------------------------------------------------------------------------


def test_an_unread_stream_returns_no_credit():
    async def test(gateway: LinkPeer, service: Service, door: LinkFrontend) -> None:
        service.go.clear()
        count = STREAM_CREDIT // (FRAME_BYTES // 8)
        gateway.say(opening(1), *(data_frame(1, PIECE[: FRAME_BYTES // 8]) for _ in range(count)))
        await until(lambda: len(service.taken) == 1)
        gateway.say(ask(2))
        assert (await gateway.hear_frame())[:2] == (END, 2)  # and no CREDIT before it
        service.go.set()
        back = 0
        while back < STREAM_CREDIT:
            kind, number, payload = await gateway.hear_frame()
            back += frames.read_credit(payload) if (kind, number) == (CREDIT, 1) else 0
        gateway.say(frames.credit(1, STREAM_CREDIT), *(data_frame(1, PIECE) for _ in range(2)))
        await until(lambda: len(service.taken) == count + 2)

    talk(test)


def test_a_call_that_exceeds_its_credit_is_reset_and_no_other():
    async def test(gateway: LinkPeer, service: Service, door: LinkFrontend) -> None:
        service.go.clear()
        count = STREAM_CREDIT // FRAME_BYTES + 2  # of the first the credit is given back, in halves
        gateway.say(opening(1), *(data_frame(1, PIECE) for _ in range(count)), ask(2))
        kind, number, payload = await hear(gateway)
        assert (kind, number, payload[0]) == (RESET, 1, OVERRUN)
        assert (await hear(gateway))[:2] == (END, 2)
        await until(lambda: service.cancelled <= 1)

    talk(test)


def test_unread_streams_do_not_use_the_credit_of_other_calls():
    async def test(gateway: LinkPeer, service: Service, door: LinkFrontend) -> None:
        service.go.clear()
        streams = range(1, 2 + 64 * 2**20 // FRAME_BYTES)
        for number in streams:  # the first message is taken, the other one waits
            gateway.say(opening(number), data_frame(number, PIECE), data_frame(number, PIECE))
        await until(lambda: len(service.taken) == len(streams))
        last = len(streams) + 1
        gateway.say(opening(last), data_frame(last, b"", LAST))
        assert await hear(gateway) == (END, last, SUCCESS)

    talk(test)


def test_a_stream_waits_while_its_answers_are_not_read():
    async def test(gateway: LinkPeer, service: Service, door: LinkFrontend) -> None:
        size = FRAME_BYTES // 8
        count = STREAM_CREDIT // size * 15 // 8
        gateway.say(opening(1))
        sent = result = 0
        for _ in range(count):
            gateway.say(data_frame(1, PIECE[:size]))
            sent += size
            while result < min(sent, STREAM_CREDIT):
                result += len((await hear(gateway))[2])
        await until(lambda: sum(service.taken) > STREAM_CREDIT)
        before = len(service.taken)
        gateway.say(ask(2))
        assert (await hear(gateway))[:2] == (END, 2)  # nothing more of the stream came
        assert before < count, "it waits"
        gateway.say(frames.credit(1, 2 * STREAM_CREDIT), data_frame(1, b"", LAST))
        while result < sent:
            result += len((await hear(gateway))[2])
        assert await hear(gateway) == (END, 1, SUCCESS)

    talk(test)


# Breaches, and what is refused ------------------------------------------------------------------


def test_a_missing_method_is_reset():
    async def test(gateway: LinkPeer, service: Service, door: LinkFrontend) -> None:
        gateway.say(message(1, b"", method=99), data_frame(1, b"x"), ask(2))
        assert await hear(gateway) == (RESET, 1, bytes([NO_METHOD]) + b"no method 99")
        assert (await hear(gateway))[:2] == (END, 2)

    talk(test)


def test_calls_that_are_too_many_are_refused_and_safe_to_repeat():
    async def test(gateway: LinkPeer, service: Service, door: LinkFrontend) -> None:
        service.go.clear()
        gateway.say(*(message(number, b"x", method=ECHO) for number in (1, 2, 3)))
        assert await hear(gateway) == (RESET, 3, bytes([REFUSED]))
        service.go.set()
        assert {(await hear(gateway))[1] for _ in range(2)} == {1, 2}
        gateway.say(message(4, b"x", method=ECHO))
        assert await hear(gateway) == (END, 4, SUCCESS + b"x")

    talk(test, max_calls=2)


def test_a_message_of_a_stream_that_is_too_large_ends_it():
    async def test(gateway: LinkPeer, service: Service, door: LinkFrontend) -> None:
        gateway.say(opening(1), data_frame(1, PIECE, MESSAGE | MORE), data_frame(1, b"x"), ask(2))
        text = f"the request is larger than max_message_bytes ({FRAME_BYTES} bytes)"
        first, second = sorted([await hear(gateway), await hear(gateway)], key=lambda item: item[1])
        assert refusal_of(first) == (413, ErrorCode.RPC_PACKAGE_ERROR, text)
        assert second[:2] == (END, 2)

    talk(test, max_message_bytes=FRAME_BYTES)


def test_failures_of_methods_have_both_edges_codes(caplog):
    async def test(gateway: LinkPeer, service: Service, door: LinkFrontend) -> None:
        gateway.say(message(1, b"abort", method=ECHO))
        ended = await hear(gateway)
        assert (code_of(ended), refusal_of(ended)) == (10, (409, 51, "why"))
        assert b"pipeline-err-no\n51\n" in ended[2]
        gateway.say(message(2, b"bug", method=ECHO))
        ended = await hear(gateway)
        internal = 500, ErrorCode.UNKNOW, "internal error of the server"
        assert (code_of(ended), refusal_of(ended)) == (13, internal)
        assert "/a.B/Echo failed" in caplog.text
        caplog.clear()  # of a traceback, which holds the call

    talk(test)


@pytest.mark.parametrize(
    ("method", "timeout_ns", "metadata", "told"),
    [
        (GRPC_INFERENCE, -1, b"", "None"),
        (GRPC_INFERENCE, -1, b"pipeline-timeout\n100m\n", "0.1"),
        (GRPC_INFERENCE, 10_000_000, b"pipeline-timeout\n100m\n", "0.01"),
        (GRPC_INFERENCE, 10**12, b"pipeline-timeout\n1u\npipeline-timeout\n2S\n", "2.0"),
        (1, -1, b"pipeline-timeout\n100m\n", "None"),
    ],
)
def test_the_time_to_answer_in_may_be_metadata_over_grpc(method, timeout_ns, metadata, told):
    async def test(gateway: LinkPeer, service: Service, door: LinkFrontend) -> None:
        gateway.say(message(1, b"", timeout_ns, metadata, method))
        assert await gateway.hear() == answer(1, "", "", told)

    talk(test)


def test_an_invalid_timeout_is_refused():
    async def test(gateway: LinkPeer, service: Service, door: LinkFrontend) -> None:
        gateway.say(message(1, b"", -1, b"pipeline-timeout\nsoon\n", GRPC_INFERENCE))
        status, err_no, text = refusal_of(await gateway.hear())
        assert (status, err_no) == (400, ErrorCode.RPC_PACKAGE_ERROR)
        assert "'soon'" in text

    talk(test)


@pytest.mark.parametrize("size", [1, FRAME_BYTES])
@pytest.mark.parametrize(
    ("path", "names"),
    [
        (b"/a/b", ["a", "b"]),
        ("/ä/b".encode(), ["ä", "b"]),
        (b"/\xff/b", ["\ufffd", "b"]),
        (b"/a", ["", ""]),
    ],
)
def test_json_is_called_with_its_path(size, path, names):
    async def test(gateway: LinkPeer, service: Service, door: LinkFrontend) -> None:
        body = b'{"value":["%s"]}' % (b"x" * size)
        gateway.say(message(1, body, -1, b":path\n" + path + b"\n", JSON))
        _, _, payload = await gateway.hear()
        assert payload.startswith(SUCCESS)
        values = "".join(f'"{text}",' for text in (*names, "None"))
        expected = (
            f'{{"err_no":0,"err_msg":"","key":[],"value":[{values}"{"x" * size}"],"tensors":[]}}'
        )
        assert payload.removeprefix(SUCCESS).decode() == expected

    talk(test)


@pytest.mark.parametrize("body", [b"{", b'{"value":1}', b'{"value":["' + b"x" * FRAME_BYTES])
def test_invalid_json_is_refused(body):
    async def test(gateway: LinkPeer, service: Service, door: LinkFrontend) -> None:
        gateway.say(message(1, body, -1, b":path\n/a/b\n", JSON), ask(2))
        ends = sorted([await gateway.hear(), await gateway.hear()], key=lambda item: item[1])
        status, err_no, text = refusal_of(ends[0])
        assert (status, err_no, code_of(ends[0])) == (400, ErrorCode.RPC_PACKAGE_ERROR, 3)
        assert text.startswith("the request ")

    talk(test)


def test_a_partial_frame_is_not_a_sign_of_life():
    async def test(gateway: LinkPeer, service: Service, door: LinkFrontend) -> None:
        (connection,) = door.connections
        for at in range(3):
            gateway.say(frame(frames.PING, 1)[at : at + 1])
            await asyncio.sleep(0)
            connection.check_alive()
        connection.check_alive()
        assert await gateway.hears_the_end()

    talk(test)


def test_head_sizes_match_the_format():
    assert (HEAD.size, OPENED.size, len(SUCCESS)) == (16, 11, 13)


def test_a_gateway_that_asks_before_its_hello_is_refused():
    async def main() -> None:
        with tempfile.TemporaryDirectory(prefix="link-") as folder:
            door = link_of(begin_of(handle), Path(folder, "0.link"))
            await door.start(True)
            with contextlib.suppress(ConnectionResetError):
                streams = await asyncio.open_unix_connection(str(Path(folder, "0.link")))
                gateway = LinkPeer(*streams)
                gateway.say(ask(1))
                kind, _, payload = await gateway.hear_frame()
                assert kind == GOAWAY
                assert b"does not begin with a HELLO; this server has version 7" in payload
                assert await gateway.hears_the_end()
                gateway.leave()
            await door.stop(0.0)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main())
