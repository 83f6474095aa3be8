"""Calls of several servers: which is asked, and what becomes of failures."""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
from doubles import Clock, wait_until
from fake_brpc import WAIT_S, Collecting, FakeServer, Peer, answer_to, echo
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import (
    ClosedError,
    DeadlineError,
    PredictorError,
    PredictorUnavailableError,
)
from pipeline.predictors.remote import brpc_channel, pool
from pipeline.predictors.remote.brpc_channel import BrpcChannel, _ServerFailedError
from pipeline.predictors.remote.pool import MAX_TIMEOUTS, OutOfTimeError, Waiting
from pipeline.proto.brpc.frames import SERVICE, BrpcCode, BrpcFrame, pack, request_meta
from pipeline.tracing.context import TraceContext, format_traceparent, set_call_trace

SOON_S = 0.05


@contextlib.contextmanager
def channel_to(*servers: FakeServer | tuple[str, int]) -> Iterator[BrpcChannel]:
    addresses = [one if isinstance(one, tuple) else one.address for one in servers]
    channel = BrpcChannel("det", [f"{host}:{port}" for host, port in addresses], addresses)
    try:
        yield channel
    finally:
        channel.close()


def ask(channel: BrpcChannel, body: bytes = b"", time_s: float = WAIT_S) -> bytes:
    return channel.ask(body, 7, Waiting(time.monotonic() + time_s), bytes)


def close(peer: Peer, _: BrpcFrame) -> None:
    peer.close()


def refuse_with(code: int) -> Callable[[Peer, BrpcFrame], None]:
    return lambda peer, frame: peer.fail(frame, code, "because")


@pytest.fixture
def dead_address() -> tuple[str, int]:
    """Nobody listens there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
    return host, port


def test_a_request_has_the_method_and_the_timeout() -> None:
    with FakeServer() as server, channel_to(server) as channel:
        assert channel.ask(b"body", 2**64 - 1, Waiting(time.monotonic() + 20.0), bytes) == b"body"
        request = server.requests[0].meta.request
        assert (request.service_name, request.method_name) == (SERVICE, "inference")
        assert request.log_id == -1
        assert 0 < request.timeout_ms <= 20_000


def test_a_call_may_have_all_the_time_in_the_world() -> None:
    with FakeServer() as server, channel_to(server) as channel:
        assert ask(channel, b"any time", math.inf) == b"any time"
        assert server.requests[0].meta.request.timeout_ms > 0


def test_a_server_receives_the_trace_with_its_own_span() -> None:
    trace_id, span_id = 2**127 + 2**63 + 5, 2**64 - 7
    recorded = TraceContext(trace_id, span_id, True)
    try:
        with FakeServer() as server, channel_to(server) as channel:
            for context in (recorded, recorded._replace(is_sampled=False)):
                set_call_trace(format_traceparent(context))
                ask(channel)
            set_call_trace("")
            ask(channel)
    finally:
        set_call_trace("")
    reported, *others = [frame.meta.request for frame in server.requests]
    assert reported.trace_id == 5 - 2**63, "the low 64 bits"
    assert reported.parent_span_id == -7
    assert reported.span_id not in (0, -7), "a brpc server takes it for its own span"
    assert not any(meta.HasField("trace_id") or meta.HasField("span_id") for meta in others)


def test_servers_take_turns() -> None:
    with FakeServer() as one, FakeServer() as two, channel_to(one, two) as channel:
        for _ in range(10):
            ask(channel)
        assert len(one.requests) == len(two.requests) == 5


def test_a_server_that_is_not_there_costs_no_request(dead_address: tuple[str, int]) -> None:
    with FakeServer() as server, channel_to(dead_address, server) as channel:
        for _ in range(5):
            assert ask(channel, b"x") == b"x"


def test_the_error_names_every_server_and_its_reason(dead_address: tuple[str, int]) -> None:
    with FakeServer(close) as server, channel_to(dead_address, server) as channel:
        with pytest.raises(PredictorUnavailableError) as caught:
            ask(channel)
        assert str(caught.value) == (
            f"[det] no server answers: 127.0.0.1:{dead_address[1]}: cannot connect: Connection "
            f"refused; {server.endpoint}: it closed the connection"
        )


def test_a_call_whose_connection_breaks_is_repeated_on_another_server() -> None:
    def half_an_answer(peer: Peer, frame: BrpcFrame) -> None:
        peer.send(answer_to(frame)[:-1])
        peer.close()

    with FakeServer(half_an_answer) as bad, FakeServer() as good:
        with channel_to(bad, good) as channel:
            for _ in range(5):
                assert ask(channel, b"whole") == b"whole"
        assert len(good.requests) == 5
        assert len(bad.requests) >= 1


def test_a_call_whose_connection_breaks_is_repeated_on_the_only_server() -> None:
    closed = threading.Event()

    def close_once(peer: Peer, frame: BrpcFrame) -> None:
        if not closed.is_set():
            closed.set()
            peer.close()
        else:
            peer.answer(frame)

    with FakeServer(close_once) as server, channel_to(server) as channel:
        assert ask(channel, b"again") == b"again"


def test_a_server_that_closes_each_connection_is_called_twice() -> None:
    with FakeServer(close) as server, channel_to(server) as channel:
        with pytest.raises(PredictorUnavailableError, match="it closed the connection"):
            ask(channel)
        assert len(server.requests) == 2


def test_garbage_is_an_error_and_the_next_call_works() -> None:
    with (
        FakeServer(lambda peer, _: peer.send(b"<html>no</html>")) as server,
        channel_to(server) as channel,
    ):
        with pytest.raises(PredictorUnavailableError, match="it answers garbage: no baidu_std"):
            ask(channel)
        server.behaviour = echo
        assert ask(channel, b"well") == b"well"


def test_an_answer_of_another_message_is_garbage() -> None:
    def refuse(_: bytes) -> bytes:
        raise DecodeError("wrong wire type")

    with (
        FakeServer() as server,
        channel_to(server) as channel,
        pytest.raises(PredictorUnavailableError, match="garbage: wrong wire type"),
    ):
        channel.ask(b"", 0, Waiting(time.monotonic() + WAIT_S), refuse)


def test_a_peer_that_sends_requests_is_an_error() -> None:
    def mirror(peer: Peer, frame: BrpcFrame) -> None:
        peer.send(pack(request_meta("inference", frame.meta.correlation_id), frame.body))

    with (
        FakeServer(mirror) as server,
        channel_to(server) as channel,
        pytest.raises(PredictorUnavailableError, match="garbage: a request"),
    ):
        ask(channel)


@pytest.mark.parametrize("compression", [1, 2, 3])
def test_answers_may_be_compressed(compression: int) -> None:
    body = b"text " * 1000
    with (
        FakeServer(lambda peer, frame: peer.answer(frame, body, compression)) as server,
        channel_to(server) as channel,
    ):
        assert ask(channel) == body


def test_a_compression_that_is_unknown_is_garbage() -> None:
    def answer(peer: Peer, frame: BrpcFrame) -> None:
        frame.meta.compress_type = 9
        frame.meta.ClearField("request")
        peer.send(pack(frame.meta, b"?"))

    with (
        FakeServer(answer) as server,
        channel_to(server) as channel,
        pytest.raises(PredictorUnavailableError, match="compress_type 9"),
    ):
        ask(channel)


def test_an_error_of_the_server_has_its_name_and_code_and_is_not_retried() -> None:
    with (
        FakeServer(refuse_with(BrpcCode.INTERNAL)) as one,
        FakeServer() as two,
        channel_to(one, two) as channel,
    ):
        with pytest.raises(PredictorError) as caught:
            ask(channel)
        assert type(caught.value) is PredictorError
        assert str(caught.value) == (
            f"[det] the server at {one.endpoint} answered error 2001 (INTERNAL): because"
        )
        assert not two.requests


def test_a_code_of_the_server_is_returned() -> None:
    with (
        FakeServer(refuse_with(-5000)) as server,
        channel_to(server) as channel,
        pytest.raises(PredictorError, match="answered error -5000: because"),
    ):
        ask(channel)


def test_a_timeout_of_the_server_is_a_deadline_error() -> None:
    with (
        FakeServer(refuse_with(BrpcCode.TIMED_OUT)) as server,
        channel_to(server) as channel,
        pytest.raises(DeadlineError, match="TIMED_OUT"),
    ):
        ask(channel)


@pytest.mark.parametrize("code", [1005, 1009, 1011, 1014, 2003, 2004])
def test_a_server_that_refuses_for_now_passes_the_request_on(code: int) -> None:
    with (
        FakeServer(refuse_with(code)) as busy,
        FakeServer() as free,
        channel_to(busy, free) as channel,
    ):
        assert ask(channel, b"x") == b"x"
        assert len(busy.requests) == 1


def test_servers_that_all_refuse_are_called_once_each() -> None:
    with FakeServer(refuse_with(2004)) as one, FakeServer(refuse_with(1011)) as two:
        with channel_to(one, two) as channel:
            with pytest.raises(PredictorUnavailableError) as caught:
                ask(channel)
            assert "it refuses: 2004 (LIMIT): because" in str(caught.value)
            assert "it refuses: 1011 (OVERCROWDED): because" in str(caught.value)
        assert len(one.requests) == len(two.requests) == 1


def test_a_server_that_does_not_answer_is_a_deadline_that_passed() -> None:
    with (
        FakeServer(Collecting()) as server,
        channel_to(server) as channel,
        pytest.raises(DeadlineError, match=f"no answer from the server at {server.endpoint}"),
    ):
        ask(channel, time_s=SOON_S)


def test_a_server_that_does_not_read_is_a_deadline_that_passed() -> None:
    with (
        FakeServer(reads=False) as server,
        channel_to(server) as channel,
        pytest.raises(DeadlineError),
    ):
        ask(channel, bytes(2**25), SOON_S)


def test_a_server_that_hangs_is_removed_with_a_log_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "LEAST_SILENCE_S", 0.0)
    with (
        FakeServer(Collecting()) as hung,
        FakeServer() as well,
        channel_to(hung, well) as channel,
    ):
        late = 0
        while late < MAX_TIMEOUTS:
            try:
                ask(channel, time_s=4 * SOON_S)
            except DeadlineError:
                late += 1
        before = len(hung.requests)
        ask(channel)
        ask(channel)
        assert len(hung.requests) == before
    assert f"[det] {hung.endpoint} is left out: several calls in a row" in caplog.text


def test_time_spent_on_other_servers_is_not_silence_of_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(brpc_channel, "time", Mock(monotonic=clock))
    channel = BrpcChannel("det", ["first", "last"], [("127.0.0.1", 1), ("127.0.0.1", 2)])
    outcomes: list[Exception] = [_ServerFailedError("lost", is_final=True), OutOfTimeError()]

    def ask_one(*_: object) -> None:
        clock.now += 2.0
        raise outcomes.pop(0)

    monkeypatch.setattr(channel, "_ask", ask_one)
    waits: list[tuple[int, float]] = []
    monkeypatch.setattr(channel._servers().policy, "timed_out", lambda *args: waits.append(args))
    with pytest.raises(DeadlineError):
        channel.ask(b"", 0, Waiting(clock.now + 4.0), lambda body: body)
    assert waits == [(1, 2.0)]


def test_a_server_that_restarts_on_its_port_is_used_at_once() -> None:
    with FakeServer() as first, channel_to(first) as channel:
        ask(channel)
        first.close()
        with pytest.raises(PredictorUnavailableError):
            ask(channel)
        with FakeServer(port=first.port):
            assert ask(channel, b"back") == b"back"


def test_a_recovered_server_is_found_while_another_works(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with FakeServer() as well, FakeServer() as first, channel_to(well, first) as channel:
        ask(channel)
        ask(channel)
        first.close()
        ask(channel)
        wait_until(lambda: ask(channel) == b"" and "is left out" in caplog.text)
        with FakeServer(port=first.port) as second:
            wait_until(lambda: ask(channel) == b"" and len(second.requests) > 0)
    assert f"[det] {first.endpoint} is asked again" in caplog.text


def test_connections_that_a_restart_ended_cost_no_call() -> None:
    with FakeServer() as first, channel_to(first) as channel, ThreadPoolExecutor(8) as callers:
        held = Collecting()
        first.behaviour = held
        answers = [callers.submit(ask, channel) for _ in range(8)]
        for peer, frame in held.wait_for(8):
            peer.answer(frame)
        assert [answer.result(WAIT_S) for answer in answers] == [b""] * 8
        first.close()
        with FakeServer(port=first.port):
            assert list(callers.map(lambda n: ask(channel, b"%d" % n), range(8))) == [
                b"%d" % n for n in range(8)
            ]


def test_connect_names_the_servers_that_are_not_there(dead_address: tuple[str, int]) -> None:
    with FakeServer() as server, channel_to(server, dead_address) as channel:
        [problem] = channel.connect(WAIT_S)
        assert problem.startswith(f"127.0.0.1:{dead_address[1]}: cannot connect")
        ask(channel)
        assert len(server.peers) == 1


def test_a_closed_channel_refuses_calls_and_running_ones_finish() -> None:
    held = Collecting()
    with (
        FakeServer(held) as server,
        ThreadPoolExecutor(1) as one,
        channel_to(server) as channel,
    ):
        answer = one.submit(ask, channel, b"last")
        [(peer, frame)] = held.wait_for(1)
        channel.close()
        with pytest.raises(ClosedError):
            ask(channel)
        peer.answer(frame)
        assert answer.result(WAIT_S) == b"last"


def test_a_running_call_is_not_retried_after_close() -> None:
    held = Collecting()
    with (
        FakeServer(held) as server,
        ThreadPoolExecutor(1) as one,
        channel_to(server) as channel,
    ):
        answer = one.submit(ask, channel)
        [(peer, _)] = held.wait_for(1)
        channel.close()
        peer.close()
        assert isinstance(answer.exception(WAIT_S), ClosedError)


@pytest.mark.usefixtures("open_files")
def test_many_threads_get_their_own_answers_while_servers_break_connections() -> None:
    seen = threading.Lock()
    count = 0

    def unreliable(peer: Peer, frame: BrpcFrame) -> None:
        nonlocal count
        with seen:
            count += 1
            breaks = count % 97 == 0
        if breaks:
            peer.close()
        else:
            peer.answer(frame)

    with (
        FakeServer(unreliable) as one,
        FakeServer() as two,
        channel_to(one, two) as channel,
        ThreadPoolExecutor(64) as callers,
    ):
        bodies = [str(number).encode() * (number % 100 + 1) for number in range(3000)]
        assert list(callers.map(lambda body: ask(channel, body), bodies)) == bodies


FORKS = """
import os, sys, threading, time
from pipeline.predictors.remote.brpc_channel import BrpcChannel
from pipeline.predictors.remote.pool import Waiting
port = int(sys.argv[1])
channel = BrpcChannel("det", ["server"], [("127.0.0.1", port)])
def ask(text):
    assert channel.ask(text, 0, Waiting(time.monotonic() + 30.0), bytes) == text
ask(b"parent")
before = len(os.listdir("/proc/self/fd"))
child = os.fork()
for number in range(200):
    ask(b"%d %d" % (child, number))
assert len(os.listdir("/proc/self/fd")) == before
channel.close()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_parent_and_forked_child_use_separate_connections() -> None:
    with FakeServer() as server:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", FORKS, str(server.port)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert len(server.peers) == 2


def test_no_thread_of_a_child_uses_its_parents_connections(monkeypatch) -> None:
    with FakeServer() as server, channel_to(server) as channel, ThreadPoolExecutor() as threads:
        ask(channel)
        brpc_channel._count_fork()
        make, answers = brpc_channel.Pool, []

        def make_while_another_asks(*arguments):
            monkeypatch.setattr(brpc_channel, "Pool", make)
            answers.append(threads.submit(ask, channel, b"other").result(WAIT_S))
            return make(*arguments)

        monkeypatch.setattr(brpc_channel, "Pool", make_while_another_asks)
        assert (ask(channel, b"one"), answers) == (b"one", [b"other"])


@given(st.binary(max_size=64), st.booleans())
@settings(max_examples=50, deadline=None)
def test_any_bytes_of_a_peer_end_the_call(data: bytes, is_framed: bool) -> None:
    def send(peer: Peer, frame: BrpcFrame) -> None:
        peer.send(b"PRPC\0\0\0\x40\0\0\0\x10" + data if is_framed else data)
        peer.close()

    with FakeServer(send) as server, channel_to(server) as channel:
        with pytest.raises(PredictorUnavailableError):
            ask(channel)
        server.behaviour = echo
        assert ask(channel, b"well") == b"well"
