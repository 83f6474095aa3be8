"""Calls over gRPC against real servers: which are made again, how errors are named, the end."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from doubles import wait_until
from grpc_peers import Answer, Gate, peer

from pipeline.data import RequestContext
from pipeline.errors import (
    ClosedError,
    DeadlineError,
    InitError,
    PredictorError,
    PredictorUnavailableError,
)
from pipeline.predictors.remote.base import RemoteModel
from pipeline.predictors.remote.grpc_calls import GrpcCalls
from pipeline.predictors.remote.pool import Waiting
from pipeline.tracing.context import TraceContext, format_traceparent, set_call_trace

SERVICE = "test.Service"
PATH = f"/{SERVICE}/ask"
HOUR_S = 3600.0  # a test that waits for it fails: the test's own limit is shorter


def echo(request: bytes, context: Any) -> bytes:
    return request


def refusal(code: grpc.StatusCode, text: str) -> Answer:
    def refuse(request: bytes, context: Any) -> bytes:
        context.abort(code, text)
        raise AssertionError

    return refuse


@contextlib.contextmanager
def asking(*endpoints: str, **options: Any) -> Iterator[Callable[..., bytes]]:
    """`ask(request, deadline_s)`, with a channel and calls of its own."""
    model = RemoteModel("uci", "grpc", endpoints, **options)
    calls = GrpcCalls(model)
    method = calls.method(PATH)
    try:
        yield lambda request=b"x", deadline_s=HOUR_S: calls.run(method, request, deadline_s)
    finally:
        calls.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def raw_server(speak: Callable[[socket.socket], None]) -> Iterator[str]:
    """The endpoint of a server that speaks something else than gRPC on each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        speak(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


# --- which server is asked ------------------------------------------------------------------


def test_calls_are_distributed_round_robin_over_all_servers():
    with (
        peer(SERVICE, {"ask": lambda *_: b"first"}) as first,
        peer(SERVICE, {"ask": lambda *_: b"second"}) as second,
        asking(first.endpoint, second.endpoint) as ask,
    ):
        wait_until(lambda: {ask(), ask()} == {b"first", b"second"})


def test_a_server_that_is_down_is_passed_over():
    with (
        peer(SERVICE, {"ask": echo}) as there,
        asking(f"127.0.0.1:{free_port()}", there.endpoint) as ask,
    ):
        assert [ask(b"%d" % number) for number in range(20)] == [b"%d" % n for n in range(20)]


def test_without_a_server_the_error_is_immediate_and_names_all():
    endpoints = [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]
    with asking(*endpoints) as ask, pytest.raises(PredictorUnavailableError) as caught:
        ask()
    assert str(caught.value).startswith(f"[uci] no server is available at {', '.join(endpoints)}: ")


def test_a_call_whose_connection_breaks_is_repeated_at_another_server():
    gates = [Gate(echo), Gate(echo)]
    with (
        peer(SERVICE, {"ask": gates[0]}) as first,
        peer(SERVICE, {"ask": gates[1]}) as second,
        asking(first.endpoint, second.endpoint) as ask,
        ThreadPoolExecutor() as pool,
    ):
        answer = pool.submit(ask, b"kept")
        wait_until(lambda: any(gate.arrived.is_set() for gate in gates))
        broken = 0 if gates[0].arrived.is_set() else 1
        gates[1 - broken].opened.set()
        (first, second)[broken].cut_off()
        assert answer.result() == b"kept"
        gates[broken].opened.set()


def test_a_call_whose_only_connection_breaks_is_unavailable():
    gate = Gate(echo)
    with (
        peer(SERVICE, {"ask": gate}) as only,
        asking(only.endpoint) as ask,
        ThreadPoolExecutor() as pool,
    ):
        answer = pool.submit(ask)
        gate.arrived.wait()
        only.cut_off()
        with pytest.raises(PredictorUnavailableError, match=only.endpoint):
            answer.result()
        gate.opened.set()


def test_a_recovered_server_is_used_again():
    with peer(SERVICE, {"ask": echo}) as before, asking(before.endpoint) as ask:
        assert ask(b"1") == b"1"
        before.cut_off()
        with pytest.raises(PredictorUnavailableError):
            ask(b"2")
        with peer(SERVICE, {"ask": echo}, before.port):
            wait_until(lambda: answers(ask))


def answers(ask: Callable[..., bytes]) -> bool:
    try:
        return ask(b"3") == b"3"
    except PredictorUnavailableError:
        return False


def test_a_refusing_server_is_called_again_a_limited_number_of_times():
    requests: list[bytes] = []
    refuse = refusal(grpc.StatusCode.UNAVAILABLE, "draining")

    def drain(request: bytes, context: Any) -> bytes:
        requests.append(request)
        return refuse(request, context)

    with (
        peer(SERVICE, {"ask": drain}) as only,
        asking(only.endpoint) as ask,
        pytest.raises(PredictorUnavailableError, match="draining"),
    ):
        ask()
    assert len(requests) == 2


@pytest.mark.parametrize(
    "greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 100, b"PRPC" * 50]
)
def test_a_peer_that_speaks_no_grpc_is_unavailable(greeting: bytes):
    with (
        raw_server(lambda connection: connection.sendall(greeting)) as endpoint,
        asking(endpoint) as ask,
        pytest.raises(PredictorUnavailableError, match=endpoint),
    ):
        ask()


def test_a_silent_peer_is_waited_for_until_the_deadline():
    over = threading.Event()
    with raw_server(lambda connection: over.wait() and None) as endpoint, asking(endpoint) as ask:
        with pytest.raises(DeadlineError):
            ask(deadline_s=0.05)
        over.set()


# --- deadlines ------------------------------------------------------------------------------


def test_a_slow_answer_is_a_deadline_error_and_the_next_call_works():
    gate = Gate(echo)
    with peer(SERVICE, {"ask": gate}) as slow, asking(slow.endpoint) as ask:
        with pytest.raises(DeadlineError, match=rf"\[uci\] no answer from {slow.endpoint} within"):
            ask(b"1", 0.05)
        gate.opened.set()
        assert ask(b"2") == b"2"


def test_the_server_receives_the_deadline():
    def left(request: bytes, context: Any) -> bytes:
        return b"%d" % context.time_remaining()

    with peer(SERVICE, {"ask": left}) as server, asking(server.endpoint, timeout_s=500.0) as ask:
        assert 0 < int(ask(deadline_s=100.0)) <= 100
        assert 100 < int(ask(deadline_s=None)) <= 500


def test_without_remaining_time_no_call_is_made():
    requests: list[bytes] = []
    with (
        peer(SERVICE, {"ask": lambda request, _: requests.append(request) or b""}) as server,
        asking(server.endpoint) as ask,
        pytest.raises(DeadlineError),
    ):
        ask(deadline_s=0.0)
    assert requests == []


# --- errors that a server answers -----------------------------------------------------------


def test_an_error_of_the_server_is_named_and_not_retried():
    requests: list[bytes] = []
    refuse = refusal(grpc.StatusCode.INVALID_ARGUMENT, "no such input\n  'z'")

    def fail(request: bytes, context: Any) -> bytes:
        requests.append(request)
        return refuse(request, context)

    with peer(SERVICE, {"ask": fail}) as server, asking(server.endpoint) as ask:
        with pytest.raises(PredictorError) as caught:
            ask()
        assert str(caught.value) == (
            f"[uci] the server at {server.endpoint} answered INVALID_ARGUMENT: no such input 'z'"
        )
        assert not caught.value.retryable
    assert len(requests) == 1


def test_a_method_that_the_server_lacks_is_named():
    with (
        peer(SERVICE, {"other": echo}) as server,
        asking(server.endpoint) as ask,
        pytest.raises(PredictorError, match="UNIMPLEMENTED"),
    ):
        ask()


def test_an_overloaded_server_may_be_called_again_later():
    refuse = refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue is full")
    with (
        peer(SERVICE, {"ask": refuse}) as server,
        asking(server.endpoint) as ask,
        pytest.raises(PredictorUnavailableError, match="RESOURCE_EXHAUSTED: queue is full"),
    ):
        ask()


def test_a_message_too_long_for_the_server_is_not_retried():
    with peer(SERVICE, {"ask": echo}) as server, asking(server.endpoint) as ask:
        with pytest.raises(PredictorError, match=r"EXHAUSTED: .*larger than max") as caught:
            ask(bytes(5 * 1024 * 1024))
        assert not caught.value.retryable


def test_long_answers_are_accepted():
    size = 20 * 1024 * 1024
    with peer(SERVICE, {"ask": lambda *_: bytes(size)}) as server, asking(server.endpoint) as ask:
        assert len(ask()) == size


# --- what goes along --------------------------------------------------------------------------


def test_the_server_receives_the_trace_of_the_call():
    seen: list[str | None] = []

    def note(request: bytes, context: Any) -> bytes:
        seen.append(dict(context.invocation_metadata()).get("traceparent"))
        return request

    trace = format_traceparent(TraceContext(5, 7, True))
    with peer(SERVICE, {"ask": note}) as server, asking(server.endpoint) as ask:
        ask()
        set_call_trace(trace)
        try:
            ask()
        finally:
            set_call_trace("")
    assert seen == [None, trace]


# --- start and end --------------------------------------------------------------------------


@pytest.mark.parametrize("endpoints", [("localhost",), ("127.0.0.1:0",), ()])
def test_an_invalid_endpoint_is_refused_with_its_key(endpoints: tuple[str, ...]):
    with pytest.raises(InitError, match=r"op\.uci\.server_endpoints: "):
        GrpcCalls(RemoteModel("uci", "grpc", endpoints))


@pytest.mark.parametrize("is_there", [True, False])
def test_a_server_that_is_down_at_start_is_a_warning(
    is_there: bool, caplog: pytest.LogCaptureFixture
):
    with peer(SERVICE, {"ask": echo}) as server:
        endpoint = server.endpoint if is_there else f"127.0.0.1:{free_port()}"
        calls = GrpcCalls(RemoteModel("uci", "grpc", (endpoint,)))
        with caplog.at_level(logging.WARNING):
            calls.warn_if_down()
        calls.close()
    assert [endpoint in line for line in caplog.messages] == ([] if is_there else [True])


def test_after_close_no_call_starts_and_running_ones_finish():
    gate = Gate(echo)
    with peer(SERVICE, {"ask": gate}) as server, ThreadPoolExecutor() as pool:
        calls = GrpcCalls(RemoteModel("uci", "grpc", (server.endpoint,)))
        method = calls.method(PATH)
        answer = pool.submit(calls.run, method, b"kept", HOUR_S)
        gate.arrived.wait()
        calls.close()
        with pytest.raises(ClosedError, match=r"\[uci\] the predictor is closed"):
            calls.run(method, b"late")
        gate.opened.set()
        assert answer.result() == b"kept"  # a channel that is closed ends its calls
        with pytest.raises(ValueError, match="closed channel"):
            method(b"late", HOUR_S, Waiting(HOUR_S))
        calls.close()


def test_an_error_of_a_missing_server_names_the_proxy(monkeypatch):
    for name in ("grpc_proxy", "https_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    calls = GrpcCalls(RemoteModel("uci", "grpc", ("192.0.2.1:1",)))  # for documentation
    with pytest.raises(PredictorUnavailableError, match="by the proxy that http_proxy names"):
        calls.run(calls.method("/a/b"), b"")
    calls.close()


def test_a_cancelled_call_is_cancelled_at_the_server():
    Event, left, cancelled = threading.Event(), threading.Event(), threading.Event()

    def hang(request: bytes, context: Any) -> bytes:
        context.add_callback(cancelled.set)
        Event.set()
        cancelled.wait()
        return request

    with peer(SERVICE, {"ask": hang}) as server, ThreadPoolExecutor() as pool:
        calls = GrpcCalls(RemoteModel("uci", "grpc", (server.endpoint,)))
        context = (RequestContext(data_id=1, is_over=left.is_set),)
        answer = pool.submit(calls.run, calls.method(PATH), b"x", HOUR_S, context)
        Event.wait()
        assert not cancelled.is_set()
        left.set()
        with pytest.raises(ClosedError, match="nobody waits"):
            answer.result()
        assert cancelled.wait(HOUR_S)
        calls.close()


@pytest.mark.parametrize("outcome", ["answer", "error"])
def test_a_call_that_could_be_cancelled_ends_as_any(outcome):
    fails = refusal(grpc.StatusCode.INTERNAL, "broken")
    with peer(SERVICE, {"ask": echo if outcome == "answer" else fails}) as server:
        calls = GrpcCalls(RemoteModel("uci", "grpc", (server.endpoint,)))
        context = (RequestContext(data_id=1, is_over=bool),)
        if outcome == "answer":
            assert calls.run(calls.method(PATH), b"x", HOUR_S, context) == b"x"
        else:
            with pytest.raises(PredictorError, match="INTERNAL: broken"):
                calls.run(calls.method(PATH), b"x", HOUR_S, context)
        calls.close()
