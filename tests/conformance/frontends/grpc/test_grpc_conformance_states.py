"""Answers of gRPC while the server is full, starts or stops, with and without the gateway."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from conformance_grpc import INFERENCE, UNLIMITED, Status, ask, infer, request, streamed
from conformance_grpc_edges import Edge, edges
from conformance_server import HELD, Holder, conformance_server
from doubles import server_for, wait_until
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from served import free_port

from pipeline import Op, PipelineServer, RequestOp
from pipeline.frontends.grpc.server import ERR_NO
from pipeline.proto.pipeline_service_pb2 import Request, Response
from pipeline.proto.v2.codec import SERVICE as V2

Health = health_pb2.HealthCheckResponse
STREAM = f"/{V2}/ModelStreamInfer"
CLOSED = "3001"


@pytest.fixture
def holder() -> Iterator[Holder]:
    """Requests that are still held are released at the end."""
    result = Holder()
    yield result
    result.release()


@pytest.fixture(params=edges())
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    edge: Edge = request.param
    return edge.settings(request)


@contextlib.contextmanager
def channel_to(server: PipelineServer) -> Iterator[grpc.Channel]:
    alone = [*UNLIMITED, ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}", alone) as channel:
        yield channel


@contextlib.contextmanager
def stopping(server: PipelineServer) -> Iterator[None]:
    """The server stops beside what is done; at the end it has."""
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(server.stop)
        yield
        stopped.result(60)


def hold(channel: grpc.Channel, holder: Holder, method: str = INFERENCE) -> grpc.Future:
    """A call that is being worked on."""
    count = holder.held
    message = request("hold") if method == INFERENCE else infer(HELD)
    call = channel.unary_unary(method).future(message, timeout=60)
    wait_until(lambda: holder.held > count)
    return call


def watch(channel: grpc.Channel) -> Any:
    return health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)


# Full ---------------------------------------------------------------------------------------


def test_a_full_server_refuses_with_retry_after(settings, holder):
    server = conformance_server(holder, worker_num=1, queue_size=0, **settings)
    with server, channel_to(server) as channel:
        inside = hold(channel, holder)
        heard = ask(channel, INFERENCE, request(a="1"))
        assert heard.status is Status.RESOURCE_EXHAUSTED
        assert heard.trailing == {ERR_NO: "3004", "grpc-retry-pushback-ms": "1000"}
        assert heard.text.startswith("server is overloaded: 1 requests inside and 0 waiting")
        heard = ask(channel, f"/{V2}/ModelInfer", infer(1))
        assert (heard.status, heard.trailing) == (
            Status.UNAVAILABLE,
            {"grpc-retry-pushback-ms": "1000"},
        )
        holder.release()
        assert inside.result(30) is not None
        assert ask(channel, INFERENCE, request(a="1")).status is Status.OK


# It starts ----------------------------------------------------------------------------------


class Waking(Op):
    """An Op whose `init_op` takes as long as the test likes."""

    def __init__(self, awake: threading.Event) -> None:
        super().__init__("waking", [RequestOp()])
        self._awake = awake

    def init_op(self) -> None:
        self._awake.wait(60)


def test_while_the_server_starts_it_is_not_serving(settings):
    awake, port = threading.Event(), free_port()
    server = server_for(Waking(awake), name="conf", rpc_port=port, **settings)
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(server.start)
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                check = health_pb2_grpc.HealthStub(channel).Check
                HealthCheckRequest = health_pb2.HealthCheckRequest()
                answer = check(HealthCheckRequest, wait_for_ready=True, timeout=30)
                assert answer.status == Health.NOT_SERVING
                reported = watch(channel)
                assert next(reported).status == Health.NOT_SERVING
                awake.set()
                starting.result(60)
                assert next(reported).status == Health.SERVING
                assert check(HealthCheckRequest, timeout=30).status == Health.SERVING
        finally:
            awake.set()
            starting.result(60)
            server.stop()


# It stops -----------------------------------------------------------------------------------


def test_a_stop_answers_admitted_requests_and_notifies_watchers(settings, holder):
    server = conformance_server(holder, **settings).start()
    with channel_to(server) as channel:
        reported = watch(channel)
        assert next(reported).status == Health.SERVING
        calls = [hold(channel, holder), hold(channel, holder, f"/{V2}/ModelInfer")]
        with stopping(server):
            assert next(reported).status == Health.NOT_SERVING
            holder.release()
            assert all(call.result(30) is not None for call in calls)
        assert reported.code() is Status.UNAVAILABLE


def test_a_request_during_the_stop_is_not_processed(settings, holder):
    server = conformance_server(holder, **settings).start()
    with channel_to(server) as channel:
        inside = hold(channel, holder)
        count = holder.held
        with stopping(server):
            wait_until(lambda: _is_refused(channel))
            holder.release()
            assert inside.result(30) is not None
        assert holder.held == count


def _is_refused(channel: grpc.Channel) -> bool:
    """Whether a server says that it stops. Before it does, it still answers."""
    heard = ask(channel, INFERENCE, Request(name="another").SerializeToString())
    if heard.answer is not None:
        return Response.FromString(heard.answer).err_no == int(CLOSED)
    assert heard.status is Status.UNAVAILABLE, heard
    return True


def test_a_reflection_client_that_stays_does_not_delay_the_stop(settings, holder):
    server = conformance_server(holder, stop_grace_period=600_000, **settings).start()
    done = threading.Event()

    def asks_and_stays() -> Iterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        done.wait(60)

    with channel_to(server) as channel:
        answers = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            asks_and_stays()
        )
        try:
            assert next(answers).list_services_response.service
            with stopping(server):
                pass
            assert answers.code() is Status.UNAVAILABLE
        finally:
            done.set()


def test_an_idle_stream_ends_as_unavailable_after_its_answers(settings, holder):
    server = conformance_server(holder, stop_grace_period=600_000, **settings).start()
    done = threading.Event()

    def messages() -> Iterator[bytes]:
        yield infer(1)
        done.wait(60)

    with channel_to(server) as channel:
        answers = channel.stream_stream(STREAM)(messages(), timeout=60)
        try:
            assert streamed(next(answers)) == ("", "", [1.0])
            with stopping(server), pytest.raises(grpc.RpcError):
                next(answers)
            assert answers.code() is Status.UNAVAILABLE
            assert dict(answers.trailing_metadata())[ERR_NO] == CLOSED
        finally:
            done.set()


def test_a_stream_gets_the_answers_to_its_earlier_requests(settings, holder):
    server = conformance_server(holder, stop_grace_period=600_000, **settings).start()
    done = threading.Event()

    def messages() -> Iterator[bytes]:
        yield infer(HELD)
        done.wait(60)

    with channel_to(server) as channel:
        answers = channel.stream_stream(STREAM)(messages(), timeout=60)
        try:
            wait_until(lambda: holder.held == 1)
            reported = watch(channel)
            with stopping(server):
                while next(reported).status == Health.SERVING:
                    pass
                holder.release()
                assert streamed(next(answers)) == ("", "", [HELD])
                with pytest.raises(grpc.RpcError):
                    next(answers)
            assert answers.code() is Status.UNAVAILABLE
        finally:
            done.set()


def test_an_interrupted_request_gets_an_error(settings, holder):
    server = conformance_server(holder, stop_grace_period=0, **settings).start()
    with channel_to(server) as channel:
        inside = hold(channel, holder)
        with stopping(server):
            if inside.exception(30) is None:
                answer = Response.FromString(inside.result())
                assert (answer.err_no, answer.err_msg) == (int(CLOSED), "dag closed.")
            else:
                assert inside.code() is Status.UNAVAILABLE
            holder.release()


def test_a_restarted_server_serves_the_same_channel(settings, holder):
    port = free_port()
    for _ in range(2):
        with (
            conformance_server(holder, rpc_port=port, **settings),
            grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            call = channel.unary_unary(INFERENCE)
            assert call(request(a="1"), wait_for_ready=True, timeout=60)
