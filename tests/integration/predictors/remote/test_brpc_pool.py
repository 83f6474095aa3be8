"""The connections to one server: when there are new ones, and what is known of the server."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from doubles import wait_until
from played_brpc import WAIT_S, Collecting, PlayedServer

from pipeline.predictors.remote.brpc_connection import BrpcCall, ConnectionLostError, OutOfTimeError
from pipeline.predictors.remote.brpc_pool import BrpcPool, CannotConnectError, dial
from pipeline.proto.brpc.frames import request_meta


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextlib.contextmanager
def pool_to(address: tuple[str, int], **arguments: object) -> Iterator[BrpcPool]:
    pool = BrpcPool(address, **arguments)  # type: ignore[arg-type]
    try:
        yield pool
    finally:
        pool.close()


def take(pool: BrpcPool, time_s: float = WAIT_S) -> BrpcCall:
    return pool.take(time.monotonic() + time_s)


def run(call: BrpcCall, body: bytes = b"") -> bytes:
    return call.run(request_meta("inference", 0), body, time.monotonic() + WAIT_S).body


@pytest.fixture
def dead_address() -> tuple[str, int]:
    """Nobody listens there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
    return host, port


@pytest.fixture
def silent_address() -> Iterator[tuple[str, int]]:
    """Attempts to connect get no answer: the queue of those who want to is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = listener.getsockname()
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(address)
        yield address


def test_an_idle_connection_is_used_again() -> None:
    with PlayedServer() as server, pool_to(server.address) as pool:
        assert [run(take(pool), body) for body in (b"1", b"2", b"3")] == [b"1", b"2", b"3"]
        assert len(server.peers) == 1


def test_callers_at_the_same_time_get_connections_of_their_own_up_to_a_limit() -> None:
    with PlayedServer() as server, pool_to(server.address, max_connections=3) as pool:
        calls = [take(pool) for _ in range(7)]
        wait_until(lambda: len(server.peers) == 3)
        assert sorted(connection.load for connection in pool._connections) == [2, 2, 3]
        assert [run(call) for call in calls] == [b""] * 7
        assert len(server.peers) == 3


def test_a_connection_on_which_something_big_is_sent_is_shared_last() -> None:
    server = PlayedServer(reads=False)
    with server, pool_to(server.address, max_connections=2) as pool, ThreadPoolExecutor() as one:
        big = take(pool)
        deadline = time.monotonic() + 1.0
        sent = one.submit(big.run, request_meta("inference", 0), bytes(2**25), deadline)
        wait_until(lambda: pool._connections[0].is_sending)
        others = [take(pool) for _ in range(3)]
        assert [connection.load for connection in pool._connections] == [1, 3]
        for call in others:
            call.give_back()
        assert isinstance(sent.exception(WAIT_S), OutOfTimeError)


def test_a_connection_that_is_lost_is_replaced() -> None:
    with PlayedServer() as server, pool_to(server.address) as pool:
        run(take(pool))
        server.peers[0].close()
        with pytest.raises(ConnectionLostError):
            run(take(pool))
        assert run(take(pool), b"again") == b"again"
        assert len(server.peers) == 2


def test_a_server_that_is_not_there_is_an_error_at_once(dead_address: tuple[str, int]) -> None:
    with (
        pool_to(dead_address) as pool,
        pytest.raises(CannotConnectError, match=r"cannot connect: Connection refused"),
    ):
        take(pool)


def test_a_name_that_is_unknown_is_an_error() -> None:
    with pool_to(("no-such-host.invalid", 1)) as pool, pytest.raises(CannotConnectError):
        take(pool)


def test_a_server_that_does_not_take_connections_costs_no_more_than_the_deadline(
    silent_address: tuple[str, int],
) -> None:
    with pool_to(silent_address) as pool, pytest.raises(OutOfTimeError):
        take(pool, 0.05)


def test_callers_that_wait_for_a_connection_fail_with_the_one_that_tried(
    silent_address: tuple[str, int],
) -> None:
    with (
        pool_to(silent_address, max_connections=1) as pool,
        ThreadPoolExecutor(2) as callers,
    ):
        first = callers.submit(take, pool, 0.5)
        wait_until(lambda: pool._dialling == 1)
        second = callers.submit(take, pool)
        assert isinstance(first.exception(WAIT_S), OutOfTimeError)
        assert isinstance(second.exception(WAIT_S), CannotConnectError)
        assert pool._failures == 1, "the second has not tried again"


def test_callers_that_wait_for_a_connection_run_out_of_time(
    silent_address: tuple[str, int],
) -> None:
    with (
        pool_to(silent_address, max_connections=1) as pool,
        ThreadPoolExecutor(1) as callers,
    ):
        first = callers.submit(take, pool, 0.5)
        wait_until(lambda: pool._dialling == 1)
        with pytest.raises(OutOfTimeError):
            take(pool, 0.05)
        assert isinstance(first.exception(WAIT_S), OutOfTimeError)


def test_where_no_more_connections_can_be_opened_those_there_are_shared() -> None:
    clock = Clock()
    with PlayedServer() as server, pool_to(server.address, clock=clock) as pool:
        first = take(pool)
        pool._address = ("no-such-host.invalid", 1)
        second = take(pool)
        assert [connection.load for connection in pool._connections] == [2]
        pool._address = server.address
        third = take(pool)
        assert len(pool._connections) == 1, "it pauses before it tries again"
        clock.now += 10
        fourth = take(pool)
        assert len(pool._connections) == 2
        for call in (first, second, third, fourth):
            call.give_back()


def test_a_probe_finds_a_server_and_its_connection_is_used() -> None:
    with PlayedServer() as server, pool_to(server.address) as pool:
        wait_until(lambda: pool.probe() is True)
        assert run(take(pool), b"probed") == b"probed"
        assert len(server.peers) == 1


def test_a_probe_of_a_server_that_is_not_there_fails(dead_address: tuple[str, int]) -> None:
    with pool_to(dead_address) as pool:
        wait_until(lambda: pool.probe() is False)


def test_a_probe_that_gets_no_answer_waits_for_nothing_and_fails_in_the_end(
    silent_address: tuple[str, int],
) -> None:
    clock = Clock()
    with pool_to(silent_address, clock=clock) as pool:
        assert pool.probe() is None
        assert pool.probe() is None
        clock.now += 10
        assert pool.probe() is False
        assert pool.probe() is None, "the next one begins anew"


def test_after_close_calls_under_way_finish_and_no_new_ones_begin() -> None:
    held = Collecting()
    with PlayedServer(held) as server, ThreadPoolExecutor(1) as one:
        pool = BrpcPool(server.address)
        answer = one.submit(run, take(pool), b"last")
        [(peer, frame)] = held.wait_for(1)
        pool.close()
        pool.close()
        with pytest.raises(CannotConnectError, match="closed"):
            take(pool)
        peer.answer(frame)
        assert answer.result(WAIT_S) == b"last"


def test_what_is_connected_after_close_is_closed_too() -> None:
    with PlayedServer() as server:
        pool = BrpcPool(server.address)
        pool.close()
        assert pool.probe() is None
        pool.close()


def test_a_connection_is_made_to_a_name() -> None:
    with PlayedServer() as server:
        dial(("localhost", server.port), time.monotonic() + WAIT_S).close()
