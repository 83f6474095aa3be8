"""What the gRPC door promises: limits, broken messages, health, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import MagicMock

import grpc
import pytest
from doubles import chain, client_of, on_loop, server_for, wait_until
from fake_begin import begin_of
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from raw_http2 import GOAWAY, HEADERS, call_of

from pipeline import Op, PipelineClient, PipelineServer, RequestOp, ResponseOp
from pipeline.errors import InitError
from pipeline.frontends.grpc.calls import RunningCalls
from pipeline.frontends.grpc.guarded import FIRST_GUARDED, version_of
from pipeline.frontends.grpc.inference import SERVICE, pipeline_service
from pipeline.frontends.grpc.server import (
    ERR_NO,
    RETRY_AFTER,
    GrpcError,
    GrpcFrontend,
    GrpcService,
    _handlers,
)
from pipeline.frontends.grpc.sockets import peer_named
from pipeline.frontends.listen import reserve
from pipeline.proto.pipeline_service_pb2 import Request, Response

LIMIT = 10_000
METHOD = f"/{SERVICE}/inference"
ALONE = [("grpc.use_local_subchannel_pool", 1)]
Status = health_pb2.HealthCheckResponse

pytestmark = pytest.mark.usefixtures("grpc_is_up")


@pytest.fixture(scope="module")
def echo(module_logs: None) -> Iterator[PipelineServer]:
    """Answers with the pairs that it is sent."""
    with server_for(Op("echo", [RequestOp()]), max_message_bytes=LIMIT) as server:
        yield server


def channel_to(port: int | None) -> grpc.Channel:
    return grpc.insecure_channel(f"127.0.0.1:{port}")


def raw_call(channel: grpc.Channel, method: str = METHOD):
    """A call whose request is bytes."""
    return channel.unary_unary(
        method, request_serializer=None, response_deserializer=Response.FromString
    )


def failure_of(call, *args, **kwargs) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(*args, timeout=30, **kwargs)
    return caught.value.code(), caught.value.details()


def request_of(**pairs: str) -> bytes:
    return Request(key=list(pairs), value=list(pairs.values())).SerializeToString()


def test_a_message_above_the_limit_is_refused_and_the_channel_continues(echo):
    with client_of(echo) as client:
        status, details = failure_of(client.predict, {"x": "x" * LIMIT})
        assert status == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(LIMIT) in details
        assert client.predict({"x": "x" * (LIMIT - 100)}).err_no == 0


def test_an_answer_above_the_limit_is_refused_and_the_server_continues():
    class Large(Op):
        def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
            return {"x": "x" * LIMIT * (data_id + 1 == 1)}, None, ""

    op = Large("large", [RequestOp()])
    with server_for(op, max_message_bytes=LIMIT) as server, client_of(server) as client:
        assert failure_of(client.predict, {})[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert client.predict({}).err_no == 0
        assert server.executor.inside == 0


def test_a_caller_may_send_as_much_metadata_as_http_headers(echo):
    with channel_to(echo.rpc_port) as channel:
        call, token = raw_call(channel), "x" * 60_000
        metadata = [("authorization", token)]
        assert call(request_of(a="1"), metadata=metadata, timeout=30).value == ["1"]
        status, _ = failure_of(call, request_of(a="1"), metadata=[("authorization", token * 2)])
        assert status == grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    "message",
    [
        b"\xff",
        b"\x0a\x05ab",  # a string that is longer than the message
        b"\x0a\x02\xc3\x28",  # a string that is no UTF-8
        b"\x0f",  # a wire type that does not exist
        b"\x1a\x04\xba\x01\x01\xff",  # a tensor whose name is no UTF-8
        b"\x0b" * 200,  # groups in groups
    ],
)
def test_an_unreadable_message_is_refused_and_the_channel_continues(echo, message):
    with channel_to(echo.rpc_port) as channel:
        call = raw_call(channel)
        status, details = failure_of(call, message)
        assert status == grpc.StatusCode.INVALID_ARGUMENT
        assert "Request" in details
        assert call(request_of(a="1"), timeout=30).value == ["1"]


@pytest.mark.parametrize("method", [f"/{SERVICE}/other", "/no.Service/inference", "/", "/a/b/c"])
def test_other_methods_are_unimplemented(echo, method):
    with channel_to(echo.rpc_port) as channel:
        status, _ = failure_of(raw_call(channel, method), b"")
        assert status == grpc.StatusCode.UNIMPLEMENTED


def test_an_empty_message_is_an_empty_request(echo):
    with channel_to(echo.rpc_port) as channel:
        assert raw_call(channel)(b"", timeout=30) == Response()


def test_other_metadata_is_ignored(echo):
    metadata = [("traceparent", "00-" + "a" * 32), ("x-bin", b"\x00\xff"), ("x", ""), ("x", "2")]
    with channel_to(echo.rpc_port) as channel:
        call = raw_call(channel)
        assert call(request_of(a="1"), timeout=30, metadata=metadata).value == ["1"]


def test_compressed_messages_are_understood(echo):
    with channel_to(echo.rpc_port) as channel:
        call = raw_call(channel)
        sent = "1" * 5000
        answer = call(request_of(a=sent), timeout=30, compression=grpc.Compression.Gzip)
        assert answer.value == [sent]


def test_the_limit_applies_to_the_decompressed_message(echo):
    with channel_to(echo.rpc_port) as channel:
        bomb = request_of(a="1" * 10_000_000)
        call = raw_call(channel)
        status, _ = failure_of(call, bomb, compression=grpc.Compression.Gzip)
        assert status == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert call(request_of(a="1"), timeout=30).value == ["1"]


def test_many_calls_share_a_channel(echo):
    with client_of(echo) as client:
        calls = [client.predict({"n": str(number)}, asyn=True) for number in range(500)]
        assert [call.result(30).value for call in calls] == [[str(n)] for n in range(500)]
    wait_until(lambda: echo.executor.inside == 0)


def test_cancelled_calls_give_up_their_places_waiting_or_not(holds):
    with server_for(holds, worker_num=2) as server, client_of(server) as client:
        calls = [client.predict({}, asyn=True) for _ in range(10)]
        wait_until(lambda: (server.executor.inside, server.executor.waiting) == (2, 8))
        for call in calls:
            assert call.cancel()
        wait_until(lambda: (server.executor.inside, server.executor.waiting) == (0, 0))
        holds.release.set()
        assert client.predict({}).err_no == 0


def test_a_channel_that_breaks_gives_up_all_its_places(holds):
    with server_for(holds) as server:
        client = PipelineClient()
        client.connect([f"127.0.0.1:{server.rpc_port}"])
        calls = [client.predict({}, asyn=True) for _ in range(10)]
        wait_until(lambda: server.executor.inside == len(calls))
        client.close()
        wait_until(lambda: server.executor.inside == 0)
        holds.release.set()


def test_a_deadline_that_passes_frees_the_place(holds):
    with server_for(holds) as server, channel_to(server.rpc_port) as channel:
        call = raw_call(channel).future(b"", timeout=0.05)
        if call.exception(30) is None:  # the server was quicker than the client's own clock
            assert call.result().err_no == 6000
        else:
            assert call.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        wait_until(lambda: server.executor.inside == 0)
        holds.release.set()


def test_a_pack_method_that_gives_no_response_is_an_internal_error():
    class Wrong(ResponseOp):
        def pack_response_package(self, channeldata):
            return {"not": "a Response"}

    server = server_for(chain("a"), response_op=Wrong([chain("a")]))
    with server, channel_to(server.rpc_port) as channel:
        status, details = failure_of(raw_call(channel), b"")
    assert status == grpc.StatusCode.INTERNAL
    assert details == "pack_response_package returned dict, not a Response"


# Health -----------------------------------------------------------------------------------


def health(channel: grpc.Channel, service: str = "") -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    return (
        health_pb2_grpc.HealthStub(channel).Check(request, wait_for_ready=True, timeout=30).status
    )


def test_health_knows_the_server_and_its_service_only(echo):
    with channel_to(echo.rpc_port) as channel:
        assert health(channel) == Status.SERVING
        assert health(channel, SERVICE) == Status.SERVING
        assert failure_of(lambda timeout: health(channel, "other"))[0] == grpc.StatusCode.NOT_FOUND


def test_health_is_not_serving_until_every_op_is_initialised():
    release = threading.Event()

    class Slow(Op):
        def init_op(self):
            release.wait(60)

    with server_for(chain("a")) as probe:
        port = probe.rpc_port
    server = server_for(Slow("slow", [RequestOp()]), rpc_port=port)
    with ThreadPoolExecutor() as pool, channel_to(port) as channel:
        starting = pool.submit(server.start)
        try:
            assert health(channel) == Status.NOT_SERVING
            assert health(channel, SERVICE) == Status.NOT_SERVING
            release.set()
            starting.result()
            assert health(channel) == Status.SERVING
        finally:
            release.set()
            starting.result().stop()


def test_health_watchers_are_notified_of_the_stop_and_do_not_delay_it(holds):
    server = server_for(holds, stop_grace_period=60_000).start()
    with channel_to(server.rpc_port) as channel, ThreadPoolExecutor() as pool:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == Status.SERVING
        call = raw_call(channel).future(b"")
        assert holds.entered.acquire(timeout=30)
        stopping = pool.submit(server.stop)
        assert next(watch).status == Status.NOT_SERVING
        assert not stopping.done(), "there is still a request inside"
        holds.release.set()
        assert call.result(30).value == ["1"]
        stopping.result(30)  # long before the grace period ends
        assert watch.code() == grpc.StatusCode.UNAVAILABLE


def test_a_reflection_client_that_stays_does_not_delay_the_stop():
    server = server_for(chain("a"), stop_grace_period=60_000).start()
    done = threading.Event()

    def asks_and_stays():
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        done.wait(60)

    with channel_to(server.rpc_port) as channel, ThreadPoolExecutor() as pool:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        answers = stub.ServerReflectionInfo(asks_and_stays())
        try:
            assert next(answers).list_services_response.service
            pool.submit(server.stop).result(30)
            assert answers.code() == grpc.StatusCode.UNAVAILABLE
        finally:
            done.set()


def test_requests_during_the_stop_are_not_processed(holds):
    server = server_for(holds, stop_grace_period=60_000).start()
    with channel_to(server.rpc_port) as channel, ThreadPoolExecutor() as pool:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == Status.SERVING
        inside = raw_call(channel).future(b"")
        assert holds.entered.acquire(timeout=30)
        stopping = pool.submit(server.stop)
        assert next(watch).status == Status.NOT_SERVING  # from then on, but it serves for a moment
        wait_until(lambda: is_refused(channel, Request(name="another").SerializeToString()))
        assert is_refused(channel, b"")
        holds.release.set()
        assert inside.result(30).err_no == 0
        stopping.result(30)
        assert not holds.entered.acquire(blocking=False), "only one got in"


def is_refused(channel: grpc.Channel, message: bytes) -> bool:
    """Return whether a server answers that it stops, to any message."""
    call = raw_call(channel).future(message, timeout=60)
    if call.exception(60) is None:
        return call.result().err_no == 3001
    assert call.code() == grpc.StatusCode.UNAVAILABLE  # it needed a new connection
    return True


class Gate:
    """Between a client and a server: lets bytes through, one way, unless it is shut."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.held = asyncio.Event()

    async def __aenter__(self) -> Gate:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    def to(self, port: int) -> None:
        self._to = port

    async def _relay(self, reader, writer) -> None:
        other, to_other = await asyncio.open_connection("127.0.0.1", self._to)
        await asyncio.gather(self._pass_on(reader, to_other), self._pass_on(other, writer, False))

    async def _pass_on(self, reader, writer, is_gated=True) -> None:
        while data := await reader.read(65536):
            if is_gated and not self.is_open.is_set():
                self.held.set()
                await self.is_open.wait()
            writer.write(data)
        writer.close()


def test_a_call_that_reaches_a_stopping_server_is_not_cancelled():
    """Sent before the server stops, it gets there afterwards, on a busy channel or an idle one."""
    entered, release = asyncio.Event(), asyncio.Event()

    async def holds(request, timeout_s):
        if "hold" in request.key:
            entered.set()
            await release.wait()
        return Response(err_no=3001 if door_is_closed else 0)

    async def test():
        nonlocal door_is_closed
        for is_busy in (True, False):
            door_is_closed = False
            entered.clear()
            release.clear()
            async with door_and_channel(holds) as (door, _), Gate() as gate:
                gate.to(door.port)
                async with grpc.aio.insecure_channel(f"127.0.0.1:{gate.port}") as channel:
                    call = channel.unary_unary(METHOD, None, Response.FromString)
                    await call(b"", timeout=30)
                    inside = call(request_of(hold="1"), timeout=30) if is_busy else None
                    if inside is not None:
                        await asyncio.wait_for(entered.wait(), 30)
                    gate.is_open.clear()
                    late = call(request_of(late="1"), timeout=30)
                    await asyncio.wait_for(gate.held.wait(), 30)
                    door_is_closed = True
                    stopping = asyncio.ensure_future(door.stop(30.0))
                    for _ in range(20):
                        await asyncio.sleep(0)
                    gate.is_open.set()
                    assert await late.code() == grpc.StatusCode.UNAVAILABLE
                    if inside is not None:
                        assert dict(await late.trailing_metadata())[ERR_NO] == "3001"
                        release.set()
                        assert (await inside).err_no == 3001
                    await stopping

    door_is_closed = False
    asyncio.run(test())


def test_running_calls_end_as_unavailable_after_the_grace_period():
    async def hangs(request, timeout_s):
        entered.set()
        await asyncio.Event().wait()

    async def test():
        async with door_and_channel(hangs) as (door, channel):
            call = channel.unary_unary(METHOD)(b"", timeout=60)
            await asyncio.wait_for(entered.wait(), 30)
            await door.stop(0.0)
            assert await call.code() == grpc.StatusCode.UNAVAILABLE

    entered = asyncio.Event()
    asyncio.run(test())


@on_loop
async def test_an_idle_stream_ends_as_unavailable_after_its_answers():
    async def echo(messages, call):
        async for message in messages:
            yield message

    door = GrpcFrontend([GrpcService("a.B", {}, {"echo": echo})], "127.0.0.1", 0, LIMIT)
    await door.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{door.port}") as channel:
        stream = channel.stream_stream("/a.B/echo")(timeout=60)
        await stream.write(b"1")
        assert await stream.read() == b"1"
        await door.stop(60.0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert dict(caught.value.trailing_metadata())[ERR_NO] == "3001"


@on_loop
async def test_two_doors_of_one_process_on_one_port_stop_apart():
    async def answers(request, timeout_s):
        return Response()

    with reserve("127.0.0.1", 0, "rpc_port") as held:
        port = held.getsockname()[1]
        services = [pipeline_service(begin_of(answers))]
        first, second = (GrpcFrontend(services, "127.0.0.1", port, LIMIT, True) for _ in range(2))
        await first.start()
        await second.start()
        await first.stop(1.0)
        for _ in range(5):
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", ALONE) as channel:
                await channel.unary_unary(METHOD)(b"", timeout=30)
        await second.stop(1.0)


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("ipv4:127.0.0.1:5000", ("127.0.0.1", 5000)),
        ("ipv6:%5B::1%5D:5000", ("::1", 5000)),
        ("ipv6:[fe80::1%25eth0]:5000", ("fe80::1", 5000)),
        ("ipv6:[::ffff:127.0.0.1]:5000", ("127.0.0.1", 5000)),
        ("unix:", None),
        ("unix-abstract:name", None),
        ("", None),
    ],
)
def test_the_peer_is_parsed_from_its_grpc_name(name, peer):
    assert peer_named(name) == peer


# The door on its own ------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def door_and_channel(handle):
    door = GrpcFrontend([pipeline_service(begin_of(handle))], "127.0.0.1", 0, LIMIT)
    await door.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{door.port}") as channel:
            yield door, channel
    finally:
        await door.stop(0.0)


@on_loop
@pytest.mark.parametrize("is_at_once", [True, False])
async def test_an_unstarted_call_and_an_interrupted_call_have_different_statuses(is_at_once):
    closed = Response(err_no=3001, err_msg="dag closed.")

    def begin(raw, timeout_s, target, sink):
        if is_at_once:
            sink.end(closed)
        else:
            asyncio.get_running_loop().call_soon(sink.end, closed)

    door = GrpcFrontend([pipeline_service(begin)], "127.0.0.1", 0, LIMIT)
    await door.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{door.port}") as channel:
        call = channel.unary_unary(METHOD)(b"", timeout=30)
        if is_at_once:
            assert await call.code() == grpc.StatusCode.UNAVAILABLE
            trailers = dict(await call.trailing_metadata())
            assert (trailers[ERR_NO], trailers[RETRY_AFTER]) == ("3001", "0")
        else:
            assert Response.FromString(await call) == closed
    await door.stop(0.0)


@on_loop
async def test_health_is_not_serving_from_the_first_moment_on():
    async with door_and_channel(None) as (_, channel):
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert answer.status == Status.NOT_SERVING


@on_loop
async def test_an_invalid_path_does_not_close_the_port():
    """The server of grpcio 1.84 and 1.85 alone would close its port permanently."""
    release = asyncio.Event()

    async def holds(request, timeout_s):
        if "hold" in request.key:
            await release.wait()
        return Response(value=request.value)

    async with door_and_channel(holds) as (door, channel):
        await door.set_ready(True)
        call = channel.unary_unary(METHOD, None, Response.FromString)
        inside = call(request_of(hold="inside"), timeout=60)
        for _ in range(3):
            await wait_for_answer(call)
            reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
            writer.write(call_of(b"/\xff"))
            await asyncio.wait_for(answer_or_farewell(reader), 30)
            writer.close()
        await wait_for_answer(call)
        answer = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=30
        )
        assert answer.status == Status.SERVING
        release.set()
        assert (await inside).value == ["inside"]


@pytest.mark.parametrize("version", ["1.86.0", "2.0.0rc1"])
def test_a_grpcio_without_a_tried_guard_is_refused(version, monkeypatch):
    monkeypatch.setattr(grpc, "__version__", version)
    door = GrpcFrontend([], "127.0.0.1", 0, LIMIT)
    refused = f"grpcio {version} was not tried: .*Install grpcio<1.86, or set `edge: gateway`"
    with pytest.raises(InitError, match=refused):
        asyncio.run(door.start())


@on_loop
async def test_a_peer_that_left_before_its_error_is_not_logged(caplog):
    async def leave_at_once(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(call_of(b"/\xff"))
        await asyncio.wait_for(reader.read(1), 30)
        writer.transport.abort()

    async with door_and_channel(answers_values) as (door, channel):
        for _ in range(20):
            await asyncio.gather(*(leave_at_once(door.port) for _ in range(20)))
        await wait_for_answer(channel.unary_unary(METHOD, None, Response.FromString))
    if version_of(grpc.__version__) < FIRST_GUARDED:
        assert "codec can't decode byte" in caplog.text, "gRPC has changed: is the filter needed?"
    else:
        assert caplog.text == ""
    assert "Failed sending error status" not in caplog.text


class ExecuteBatchError(Exception):
    """As gRPC's is called."""


@pytest.mark.parametrize(("method", "is_logged"), [("", False), ("/a.B/c", True)])
@on_loop
async def test_a_peer_that_left_a_path_without_a_method_is_not_logged(method, is_logged, caplog):
    """gRPC logs it from 1.84 on, if the peer leaves before UNIMPLEMENTED is sent."""
    async with door_and_channel(answers_values):
        logging.getLogger("grpc._cython.cygrpc").error(
            "ExecuteBatchError raised in core by servicer method [%s]",
            method,
            exc_info=ExecuteBatchError(),
        )
    assert bool(caplog.text) == is_logged


class Departed:
    """The context of a call whose peer has left, which gRPC has not noticed."""

    time_remaining = add_done_callback = peer = MagicMock()

    def __init__(self, error: Exception) -> None:
        self._error = error

    def cancelled(self) -> bool:
        return False

    async def abort(self, *_: object) -> None:
        raise self._error


@pytest.mark.parametrize("error", [ExecuteBatchError(), grpc.aio.AbortError("aborted")])
@on_loop
async def test_a_failed_abort_of_a_disconnected_peer_is_not_our_error(error):
    async def fails(message, call):
        raise GrpcError(grpc.StatusCode.ABORTED, "oh")

    async def fails_in_a_stream(messages, call):
        raise GrpcError(grpc.StatusCode.ABORTED, "oh")
        yield b""

    service = GrpcService("a.B", {"Call": fails}, {"Stream": fails_in_a_stream})
    handlers, context = _handlers(service, RunningCalls()), Departed(error)
    for answer in (handlers["Call"].unary_unary, handlers["Stream"].stream_stream):
        if isinstance(error, ExecuteBatchError):  # gRPC knows that it aborts, and continues
            await answer(b"", context)
        else:
            with pytest.raises(grpc.aio.AbortError):
                await answer(b"", context)


@on_loop
async def test_only_reports_of_disconnected_peers_are_dropped_while_a_frontend_is_open(caplog):
    logger = logging.getLogger("grpc._cython.cygrpc")
    filters = list(logger.filters)  # of other doors of these tests

    def say(text: str, error: Exception) -> list[str]:
        caplog.clear()
        logger.error(text, exc_info=error)
        return caplog.messages

    farewell = "Failed sending error status from server"
    async with door_and_channel(None):
        assert say(farewell, ExecuteBatchError()) == []
        assert say(farewell, ValueError()) == [farewell]
        assert say("something else", ExecuteBatchError()) == ["something else"]
    assert logger.filters == filters


async def answers_values(request, timeout_s):
    return Response(value=request.value)


async def answer_or_farewell(reader):
    """Read frames until the server answers, or says that it goes away."""
    kind = None
    while kind not in (HEADERS, GOAWAY):
        head = await reader.readexactly(9)
        kind = head[3]
        await reader.readexactly(int.from_bytes(head[:3]))


async def wait_for_answer(call):
    """Call until it is answered, as clients with a retry policy do."""
    for _ in range(1000):
        try:
            assert (await call(request_of(a="1"), timeout=30, wait_for_ready=True)).value == ["1"]
            return
        except grpc.aio.AioRpcError as error:
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                raise
            await asyncio.sleep(0.01)
    pytest.fail("the door stays closed")


def test_an_unexpected_exception_is_an_internal_error_without_details(caplog):
    async def fails(request, timeout_s):
        raise ZeroDivisionError("internal")

    async def test():
        async with door_and_channel(fails) as (_, channel):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(METHOD)(b"", timeout=30)
        return caught.value

    error = asyncio.run(test())
    assert error.code() == grpc.StatusCode.INTERNAL
    assert error.details() == "internal error of the server"
    assert "internal" in caplog.text


@pytest.mark.parametrize("sent", [None, 30.0])
@on_loop
async def test_the_callers_deadline_is_handed_on(sent):
    given = []

    async def notes(request, timeout_s):
        given.append(timeout_s)
        return Response()

    async with door_and_channel(notes) as (_, channel):
        await channel.unary_unary(METHOD)(b"", timeout=sent)
    (timeout_s,) = given
    assert timeout_s is None if sent is None else 0 < timeout_s <= 31
