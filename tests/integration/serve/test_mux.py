"""The port that speaks baidu_std and gRPC: real sockets, answers that the test gives."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import json
import random
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from fake_begin import begin_of
from raw_http2 import PREFACE

from pipeline.errors import (
    ClosedError,
    DeadlineError,
    ErrorCode,
    InitError,
    InputError,
    OverloadedError,
    PackageError,
    PayloadTypeError,
    PredictorError,
    ProductError,
    UserCodeError,
)
from pipeline.frontends.grpc.server import GrpcFrontend
from pipeline.frontends.http.server import HttpFrontend
from pipeline.frontends.listen import bind
from pipeline.proto import pipeline_service_pb2
from pipeline.proto.brpc import frames as baidu_std
from pipeline.proto.brpc.frames import SERVICE, BrpcCode, BrpcFrame, FrameReader, pack, request_meta
from pipeline.proto.brpc_meta_pb2 import RpcMeta
from pipeline.proto.general_model_pb2 import Request, Response
from pipeline.proto.slices import Limits
from pipeline.serve import connection as door_module
from pipeline.serve.connection import BaiduStdConnection
from pipeline.serve.http import ModelRoutes
from pipeline.serve.mux import OnePortFrontend
from pipeline.serve.ops import Answer, ModelCall, answers_of, grpc_service, log_id_of
from pipeline.system.event_loop import loop_factory

LIMIT = 1_000_000
JSON_LIMIT = 10_000
PATIENCE_S = 30.0

pytestmark = pytest.mark.usefixtures("grpc_is_up", "open_files")


def on_loop(test: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Run an async test on the loop that servers run on."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> Any:
        async def limited() -> Any:
            async with asyncio.timeout(PATIENCE_S):
                return await test(**fixtures)

        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(limited())

    return run


async def until(holds: Callable[[], bool]) -> None:
    for _ in iter(holds, True):
        await asyncio.sleep(0)


async def echo(call: ModelCall, timeout_s: float | None) -> bytes:
    return call.message


@contextlib.asynccontextmanager
async def opened(
    answer: Answer = echo, read_timeout_s: float = 60.0
) -> AsyncIterator[OnePortFrontend]:
    """The door, and the one for gRPC behind it."""
    inner = f"pipeline-test-{random.getrandbits(64):x}"
    grpc_door = GrpcFrontend([grpc_service(answer)], f"unix-abstract:{inner}", 0, LIMIT)
    site = ModelRoutes(answer, Limits(json_bytes=JSON_LIMIT))
    behind = HttpFrontend(None, f"unix-abstract:{inner}-http", 0, LIMIT, routes=[site])
    listener = bind("127.0.0.1", 0, "port")
    door = OnePortFrontend(answer, listener, LIMIT, f"\0{inner}", f"\0{inner}-http", read_timeout_s)
    await grpc_door.start(True)
    await behind.start(True)
    await door.start()
    try:
        yield door
    finally:
        await grpc_door.stop(0.0)
        await behind.stop(0.0)
        await door.stop(0.0)


class Peer:
    """A scripted client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._frames = FrameReader()
        self._unread: list[BrpcFrame] = []
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def call(self, number: int, body: bytes = b"x", method: str = "inference", **more: Any) -> None:
        self.send(pack(request_meta(method, number, **more), body))

    async def answer(self) -> tuple[int, int, str, bytes]:
        """(correlation id, error code, error text, body)"""
        while not self._unread:
            data = await self._reader.read(65536)
            assert data, "the server hung up"
            self._unread = self._frames.feed(data)
        frame = self._unread.pop(0)
        return frame.meta.correlation_id, *baidu_std.error_of(frame.meta), bytes(frame.body)

    async def rest(self) -> bytes:
        """What the server says until it hangs up."""
        with contextlib.suppress(ConnectionError):
            return await self._reader.read()
        return b""


@contextlib.asynccontextmanager
async def peer_of(door: OnePortFrontend) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


# baidu_std ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["inference", "debug"])
@on_loop
async def test_a_call_is_answered(method):
    async with opened() as door, peer_of(door) as peer:
        peer.call(7, b"body", method)
        assert await peer.answer() == (7, 0, "", b"body")


@on_loop
async def test_a_call_may_arrive_byte_by_byte_or_with_others():
    async with opened() as door, peer_of(door) as peer:
        for byte in pack(request_meta("inference", 1), b"slow"):
            peer.send(bytes([byte]))
            await peer.writer.drain()
            await asyncio.sleep(0)
        assert await peer.answer() == (1, 0, "", b"slow")
        peer.send(b"".join(pack(request_meta("inference", n), b"x") for n in range(2, 50)))
        assert {(await peer.answer())[0] for _ in range(2, 50)} == set(range(2, 50))


@on_loop
async def test_answers_are_sent_in_the_order_of_completion():
    releases = {b"first": asyncio.Event(), b"second": asyncio.Event()}
    entered = asyncio.Semaphore(0)

    async def held(call: ModelCall, timeout_s: float | None) -> bytes:
        entered.release()
        await releases[call.message].wait()
        return call.message

    async with opened(held) as door, peer_of(door) as peer:
        peer.call(1, b"first")
        peer.call(2, b"second")
        for _ in releases:
            await entered.acquire()
        releases[b"second"].set()
        assert (await peer.answer())[0] == 2
        releases[b"first"].set()
        assert (await peer.answer())[0] == 1


@on_loop
async def test_the_call_is_passed_on_with_its_log_id_deadline_and_compression():
    seen = []

    async def looks(call: ModelCall, timeout_s: float | None) -> bytes:
        seen.append((call.log_id, call.compress_type, timeout_s))
        return b""

    async with opened(looks) as door, peer_of(door) as peer:
        peer.call(1, log_id=2**64 - 1, timeout_ms=1500)
        peer.call(2, Request(log_id=77).SerializeToString())
        meta = request_meta("inference", 3)
        meta.compress_type = 2
        peer.send(pack(meta, b"whatever"))
        for _ in range(3):
            await peer.answer()
    assert seen == [(2**64 - 1, 0, 1.5), (77, 0, None), (0, 2, None)]


@on_loop
async def test_an_answer_is_compressed_as_the_call_was():
    async with opened() as door, peer_of(door) as peer:
        meta = request_meta("inference", 1)
        meta.compress_type = 3
        peer.send(pack(meta, b"packed"))
        reader = FrameReader()
        (frame,) = reader.feed(await peer._reader.read(1000))
        assert (frame.meta.compress_type, frame.body) == (3, b"packed")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ClosedError("e"), BrpcCode.LOGOFF),
        (DeadlineError("e"), BrpcCode.TIMED_OUT),
        (InputError("e"), BrpcCode.BAD_REQUEST),
        (PackageError("e"), BrpcCode.BAD_REQUEST),
        (PayloadTypeError("e"), BrpcCode.BAD_REQUEST),
        (OverloadedError("e"), BrpcCode.LIMIT),
        (PredictorError("e"), -5000),
        (UserCodeError("e"), BrpcCode.INTERNAL),
        (InitError("e"), BrpcCode.INTERNAL),
    ],
)
@on_loop
async def test_an_error_has_the_code_that_brpc_has_for_it(error, code):
    async def fails(call: ModelCall, timeout_s: float | None) -> bytes:
        raise error

    async with opened(fails) as door, peer_of(door) as peer:
        peer.call(1)
        number, result, text, body = await peer.answer()
        assert (number, result, body) == (1, code, b"")
        assert text == ("InferService inference failed! e" if code == -5000 else "e")


@on_loop
async def test_an_unexpected_exception_is_an_internal_error_and_the_connection_continues(caplog):
    async def fails(call: ModelCall, timeout_s: float | None) -> bytes:
        raise ZeroDivisionError("our defect")

    async with opened(fails) as door, peer_of(door) as peer:
        for number in (1, 2):
            peer.call(number)
            assert (await peer.answer())[:2] == (number, BrpcCode.INTERNAL)
    assert "our defect" in caplog.text


@on_loop
async def test_unknown_services_and_methods_are_refused_as_brpc_does():
    async with opened() as door, peer_of(door) as peer:
        peer.call(1, service="no.Service")
        assert (await peer.answer())[1:3] == (1001, "Fail to find service=no.Service")
        peer.call(2, method="other")
        assert (await peer.answer())[1:3] == (1002, f"Fail to find method={SERVICE}/other")
        peer.send(pack(RpcMeta(correlation_id=3), b""))
        assert (await peer.answer())[:2] == (3, 1001)
        meta = request_meta("inference", 4)
        meta.content_type = 1
        peer.send(pack(meta, b"{}"))
        assert (await peer.answer())[:2] == (4, 1003)


def frame_of(size: int, meta_size: int, rest: bytes = b"") -> bytes:
    return b"PRPC" + struct.pack(">II", size, meta_size) + rest


@pytest.mark.parametrize(
    "garbage",
    [
        frame_of(LIMIT + 1, 1),
        frame_of(2**32 - 1, 2**32 - 1),
        frame_of(4, 5),
        frame_of(4, 4, b"\xff\xff\xff\xff"),
        b"PRPC" + b"\xff" * 100,
    ],
)
@on_loop
async def test_garbage_ends_its_own_connection_only(garbage):
    async with opened() as door, peer_of(door) as well, peer_of(door) as peer:
        well.call(1)
        await well.answer()
        peer.call(1)
        await peer.answer()
        peer.send(garbage)
        assert await peer.rest() == b""
        well.call(2)
        assert (await well.answer())[:2] == (2, 0)


@on_loop
async def test_the_port_bears_frames_with_wounds():
    whole = pack(request_meta("inference", 1, log_id=5, timeout_ms=9), b"body" * 9, b"attached")

    async def fire(door: OnePortFrontend, rng: random.Random) -> None:
        data = bytearray(whole * rng.choice((1, 3)))
        for _ in range(rng.choice((1, 2, 5))):
            at = rng.randrange(len(data))
            wound = rng.choice(("flip", "cut", "noise"))
            if wound == "flip":
                data[at] ^= 1 << rng.randrange(8)
            elif wound == "cut":
                del data[at : at + rng.choice((1, 4, 40))]
                data = data or bytearray(b"P")
            else:
                data[at:at] = rng.randbytes(rng.choice((1, 16)))
        async with peer_of(door) as peer:
            peer.send(bytes(data))
            peer.writer.write_eof()
            FrameReader().feed(await peer.rest())  # whatever it says is baidu_std

    rng = random.Random(3)
    async with opened() as door:
        for _ in range(20):
            await asyncio.gather(*(fire(door, rng) for _ in range(20)))
        async with peer_of(door) as peer:
            peer.call(1)
            assert (await peer.answer())[:2] == (1, 0)


# Bounds ---------------------------------------------------------------------------------------


@on_loop
async def test_no_more_calls_are_read_than_may_be_worked_on():
    entered, release = asyncio.Semaphore(0), asyncio.Event()
    inside = 0

    async def held(call: ModelCall, timeout_s: float | None) -> bytes:
        nonlocal inside
        inside += 1
        entered.release()
        await release.wait()
        return b""

    register: set[BaiduStdConnection] = set()
    server = await asyncio.get_running_loop().create_server(
        lambda: BaiduStdConnection(held, LIMIT, register, max_calls=2), "127.0.0.1", 0
    )
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        peer = Peer(reader, writer)
        for number in (1, 2):
            peer.call(number)
            await entered.acquire()
        peer.call(3)
        (connection,) = register
        assert not connection.transport.is_reading()
        assert inside == 2
        release.set()
        assert {(await peer.answer())[0] for _ in range(3)} == {1, 2, 3}
        writer.close()
        await connection.lost


@on_loop
async def test_a_peer_that_does_not_take_its_answers_is_not_read_from():
    large = bytes(100_000)
    answered = 0

    async def answers(call: ModelCall, timeout_s: float | None) -> bytes:
        nonlocal answered
        answered += 1
        return large

    async with opened(answers) as door, peer_of(door) as peer:
        peer.call(1)
        await peer.answer()  # it is a baidu_std connection now
        (connection,) = door._connections
        for number in range(2, 1000):
            peer.call(number, b"x" * 1000)
        await until(lambda: not connection.transport.is_reading())
        assert answered < 998
        for _ in range(2, 1000):
            await peer.answer()
        assert answered == 999


@on_loop
async def test_the_calls_of_a_peer_that_leaves_are_cancelled():
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def held(call: ModelCall, timeout_s: float | None) -> bytes:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return b""

    async with opened(held) as door:
        async with peer_of(door) as peer:
            peer.call(1)
            await entered.wait()
            peer.writer.transport.abort()
        await cancelled.wait()


@on_loop
async def test_a_stopping_frontend_sends_its_answers():
    async with opened() as door, peer_of(door) as peer:
        peer.call(1)
        assert (await peer.answer())[0] == 1
        await door.close(1.0)
        peer.call(2)
        assert (await peer.answer())[0] == 2
        await door.stop(1.0)
        assert await peer.rest() == b""
        with pytest.raises(OSError, match="refused"):
            await asyncio.open_connection("127.0.0.1", door.port)


# What else comes to the port ------------------------------------------------------------------


async def posted(
    door: OnePortFrontend, body: bytes, path: str = "/GeneralModelService/inference", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """(status, header fields, body) of the answer over HTTP."""
    fields = {"content-length": str(len(body)), "connection": "close", "host": "x"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    async with peer_of(door) as peer:
        peer.send(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        answer = await peer.rest()
    head, _, rest = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    result = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), result, rest


@on_loop
async def test_a_call_over_http_is_answered_in_its_own_form():
    requests = []

    async def answer(call: ModelCall, timeout_s: float | None) -> bytes:
        requests.append(call)
        return call.message

    message = Request(log_id=7).SerializeToString()
    async with opened(answer) as door:
        for kind in ("application/proto", "application/proto; x=y", "application/x-protobuf"):
            status, headers, body = await posted(door, message, content_type=kind)
            assert (status, body) == (200, message)
            assert headers["content-type"] == "application/proto"
        form = "application/x-www-form-urlencoded"  # as `curl -d` has it
        path = "/baidu.paddle_serving.predictor.general_model.GeneralModelService/debug"
        status, headers, body = await posted(door, b"{}", path, content_type=form)
        assert (status, headers["content-type"], body) == (200, "application/json", b"{}")
    assert requests == [ModelCall(message, log_id=7)] * 3 + [ModelCall(b"{}", is_json=True)]


@on_loop
async def test_bodies_over_http_may_be_compressed_in_both_directions():
    long, short = b"x" * 600, b"x" * 500
    async with opened() as door:
        for body, accepted, is_packed in (
            (long, "gzip", True),
            (long, "br, GZIP;q=0.5", True),
            (long, "gzip;q=0, br", False),
            (long, "br", False),
            (short, "gzip", False),
        ):
            status, headers, answer = await posted(
                door, gzip.compress(body), content_encoding="gzip", accept_encoding=accepted
            )
            assert status == 200
            assert ("content-encoding" in headers) is is_packed
            assert (gzip.decompress(answer) if is_packed else answer) == body


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InputError("bad shape"), 200, 5000),
        (OverloadedError("full"), 503, 3004),
        (ClosedError("dag closed."), 503, 3001),
        (ProductError(2**40, "odd"), 200, 50),
    ],
)
@on_loop
async def test_errors_over_http_are_answers_with_code_and_text(error, status, code):
    async def fails(call: ModelCall, timeout_s: float | None) -> bytes:
        raise error

    async with opened(fails) as door:
        result, _, body = await posted(door, b"{}")
        answer = json.loads(body)
        assert (result, answer["err_no"], answer["outputs"]) == (status, code, [])
        message = Request(log_id=7).SerializeToString()
        result, _, body = await posted(door, message, content_type="application/proto")
        response = Response.FromString(body)
        assert (result, response.err_no, response.log_id) == (status, code, 7)
        assert str(error) in response.err_msg
        assert answer["err_msg"] == response.err_msg


@on_loop
async def test_other_paths_and_methods_and_too_much_json_are_refused_over_http():
    async with opened() as door:
        status, _, body = await posted(door, b" " * (JSON_LIMIT + 1))
        assert (status, b"max_json_bytes" in body) == (413, True)
        assert (await posted(door, b"{}", "/GeneralModelService/nope"))[0] == 404
        async with peer_of(door) as peer:
            head = b"GET /GeneralModelService/inference HTTP/1.1\r\nhost: x\r\n"
            peer.send(head + b"connection: close\r\n\r\n")
            assert (await peer.rest()).startswith(b"HTTP/1.1 405 ")


@pytest.mark.parametrize("start", [b"\x16\x03\x01\x00", b"\x00" * 100, b"PRPX", b"prpc"])
@on_loop
async def test_other_protocols_are_disconnected(start):
    async with opened() as door, peer_of(door) as peer:
        peer.send(start)
        assert await peer.rest() == b""


@pytest.mark.parametrize("start", [b"", b"PR"])
@on_loop
async def test_a_silent_connection_is_disconnected(start):
    async with opened(read_timeout_s=0.05) as door, peer_of(door) as peer:
        peer.send(start)
        assert await peer.rest() == b""


# gRPC, relayed --------------------------------------------------------------------------------


def method_of(channel: Any, name: str = "inference") -> Any:
    return channel.unary_unary(f"/{SERVICE}/{name}", None, None)


@on_loop
async def test_grpc_calls_of_any_size_and_number_are_answered():
    async with (
        opened() as door,
        grpc.aio.insecure_channel(f"127.0.0.1:{door.port}") as channel,
    ):
        bodies = [bytes([n]) * (n * n * 100) for n in range(40)]
        answers = await asyncio.gather(*(method_of(channel)(body) for body in bodies))
        assert answers == bodies
        assert await method_of(channel, "debug")(b"d") == b"d"
        with pytest.raises(grpc.RpcError) as caught:
            await method_of(channel, "other")(b"")
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (InputError, grpc.StatusCode.INVALID_ARGUMENT),
        (OverloadedError, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (DeadlineError, grpc.StatusCode.DEADLINE_EXCEEDED),
        (ClosedError, grpc.StatusCode.UNAVAILABLE),
        (PredictorError, grpc.StatusCode.INTERNAL),
    ],
)
@on_loop
async def test_an_error_has_a_status_of_grpc(kind, status):
    async def fails(call: ModelCall, timeout_s: float | None) -> bytes:
        raise kind("why")

    async with (
        opened(fails) as door,
        grpc.aio.insecure_channel(f"127.0.0.1:{door.port}") as channel,
    ):
        with pytest.raises(grpc.RpcError) as caught:
            await method_of(channel)(b"")
        assert (caught.value.code(), caught.value.details()) == (status, "why")


@on_loop
async def test_a_relayed_connection_ends_at_both_ends():
    async with opened() as door:
        async with peer_of(door) as peer:
            peer.send(PREFACE)
            await peer._reader.read(1)  # it is relayed
        await until(lambda: not door._proxied)
        async with peer_of(door) as peer:
            peer.send(PREFACE)
            await peer._reader.read(1)
            for end in door._proxied:
                end.other.transport.abort()
            await peer.rest()


@on_loop
async def test_without_a_server_the_relay_closes_the_connection():
    listener = bind("127.0.0.1", 0, "port")
    nobody = "\0pipeline-test-nobody"
    door = OnePortFrontend(echo, listener, LIMIT, nobody, nobody)
    await door.start()
    for said in (PREFACE, b"GET / HTTP/1.1\r\n\r\n"):
        async with peer_of(door) as peer:
            peer.send(said)
            assert await peer.rest() == b""
    await door.stop(0.0)


# Small parts ------------------------------------------------------------------------------------


@on_loop
async def test_an_answer_of_the_graph_is_bytes_or_an_error():
    async def bad(call: object, timeout_s: float | None) -> object:
        code = int(ErrorCode.INPUT_PARAMS_ERROR)
        return pipeline_service_pb2.Response(err_no=code, err_msg="bad")

    with pytest.raises(InputError, match="bad"):
        await answers_of(begin_of(bad))(ModelCall(b""), None)


@pytest.mark.parametrize("log_id", [0, 1, 127, 128, 2**63, 2**64 - 1])
def test_the_log_id_is_parsed_without_decoding(log_id):
    request = Request(log_id=log_id, fetch_var_names=["a", "b"], profile_server=True)
    request.tensor.add(name="x", float_data=[1.0] * 100)
    assert log_id_of(request.SerializeToString()) == log_id


@pytest.mark.parametrize("message", [b"\x20", b"\x20\xff", b"\xff" * 50, b"\x0a\x7f", b"\x20" * 99])
def test_any_bytes_have_a_log_id_in_range(message):
    assert 0 <= log_id_of(message) < 2**64


def test_the_number_of_calls_of_a_connection_is_bounded_by_default():
    assert door_module.MAX_CALLS == 1024
