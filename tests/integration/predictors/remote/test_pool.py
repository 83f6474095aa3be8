"""The connections to one server: when there are new ones, and what is known of the server."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from doubles import Clock, wait_until
from fake_brpc import WAIT_S, Collecting, FakeServer

from pipeline.errors import ClosedError
from pipeline.predictors.remote.brpc_connection import BrpcConnection
from pipeline.predictors.remote.pool import (
    MAX_IDLE,
    CannotConnectError,
    ConnectionLostError,
    OutOfTimeError,
    Pool,
    Waiting,
    dial,
)
from pipeline.proto.brpc.frames import request_meta


@contextlib.contextmanager
def pool_to(address: tuple[str, int], **arguments: object) -> Iterator[Pool[BrpcConnection]]:
    pool = Pool(address, BrpcConnection, **arguments)
    try:
        yield pool
    finally:
        pool.close()


def take(pool: Pool[BrpcConnection], time_s: float = WAIT_S) -> BrpcConnection:
    return pool.take(Waiting(time.monotonic() + time_s))


def ask(pool: Pool[BrpcConnection], connection: BrpcConnection, body: bytes = b"") -> bytes:
    waiting = Waiting(time.monotonic() + WAIT_S)
    try:
        return connection.ask(request_meta("inference", 0), body, waiting)[1]
    finally:
        pool.give_back(connection)


def run(pool: Pool[BrpcConnection], body: bytes = b"") -> bytes:
    return ask(pool, take(pool), body)


@pytest.fixture
def dead_address() -> tuple[str, int]:
    """Nobody listens there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
    return host, port


@pytest.fixture
def silent_address() -> Iterator[tuple[str, int]]:
    """An address where attempts to connect get no answer: the listener's queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = listener.getsockname()
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(address)
        yield address


def test_an_idle_connection_is_used_again() -> None:
    with FakeServer() as server, pool_to(server.address) as pool:
        assert [run(pool, body) for body in (b"1", b"2", b"3")] == [b"1", b"2", b"3"]
        assert len(server.peers) == 1


def test_concurrent_callers_get_separate_connections() -> None:
    with FakeServer() as server, pool_to(server.address) as pool:
        connections = [take(pool) for _ in range(7)]
        wait_until(lambda: len(server.peers) == 7)
        assert [ask(pool, connection) for connection in connections] == [b""] * 7
        assert [run(pool) for _ in range(7)] == [b""] * 7
        assert len(server.peers) == 7


def test_the_number_of_idle_connections_is_limited() -> None:
    with FakeServer() as server, pool_to(server.address) as pool:
        connections = [take(pool) for _ in range(MAX_IDLE + 2)]
        for connection in connections:
            pool.give_back(connection)
        assert [item._socket.fileno() == -1 for item in connections].count(True) == 2


def test_many_threads_get_their_own_answers() -> None:
    with (
        FakeServer() as server,
        pool_to(server.address) as pool,
        ThreadPoolExecutor(32) as callers,
    ):
        bodies = [str(number).encode() * (number % 50 + 1) for number in range(2000)]
        assert list(callers.map(lambda body: run(pool, body), bodies)) == bodies
        assert len(server.peers) <= 32


def test_a_connection_with_a_late_answer_is_used_again() -> None:
    held = Collecting()
    with FakeServer(held) as server, pool_to(server.address) as pool:
        connection = take(pool)
        with pytest.raises(OutOfTimeError):
            connection.ask(request_meta("inference", 0), b"late", Waiting(time.monotonic() + 0.05))
        pool.give_back(connection)
        assert take(pool) is connection
        pool.give_back(connection)


def test_a_connection_that_is_lost_is_replaced() -> None:
    with FakeServer() as server, pool_to(server.address) as pool:
        run(pool)
        connection = take(pool)
        server.peers[0].close()
        with pytest.raises(ConnectionLostError):
            ask(pool, connection)
        assert run(pool, b"again") == b"again"
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


def test_a_server_that_accepts_no_connections_costs_at_most_the_deadline(
    silent_address: tuple[str, int],
) -> None:
    with pool_to(silent_address) as pool, pytest.raises(OutOfTimeError):
        take(pool, 0.05)


@pytest.fixture
def full(dead_address: tuple[str, int]) -> Iterator[tuple[Pool[BrpcConnection], BrpcConnection]]:
    """A pool that has one connection, which is in use, and can open no other."""
    with FakeServer() as server, pool_to(server.address) as pool:
        connection = take(pool)
        pool._address = dead_address
        yield pool, connection


def is_waited_for(pool: Pool[BrpcConnection]) -> bool:
    return len(pool._given_back._waiters) == 1


def test_without_new_connections_the_next_returned_one_is_used(full) -> None:
    pool, connection = full
    with ThreadPoolExecutor(1) as one:
        other = one.submit(take, pool)
        wait_until(lambda: is_waited_for(pool))
        pool.give_back(connection)
        assert other.result(WAIT_S) is connection
        assert ask(pool, connection, b"used") == b"used"


def test_a_caller_that_waits_for_a_connection_times_out(full) -> None:
    pool, connection = full
    with pytest.raises(OutOfTimeError):
        take(pool, 0.05)
    pool.give_back(connection)


def test_a_caller_that_left_waits_for_no_connection(full) -> None:
    pool, connection = full
    has_left = threading.Event()
    with ThreadPoolExecutor(1) as one:
        other = one.submit(pool.take, Waiting(math.inf, has_left.is_set))
        wait_until(lambda: is_waited_for(pool))
        has_left.set()
        with pytest.raises(ClosedError):
            other.result(WAIT_S)
    pool.give_back(connection)


def test_a_caller_that_left_stops_connecting(silent_address: tuple[str, int]) -> None:
    looks = iter([False, False, True])
    with pool_to(silent_address) as pool, pytest.raises(ClosedError):
        pool.take(Waiting(time.monotonic() + WAIT_S, lambda: next(looks)))


def test_a_caller_that_waits_for_a_lost_connection_gets_the_reason(full) -> None:
    pool, connection = full
    with ThreadPoolExecutor(1) as one:
        other = one.submit(take, pool)
        wait_until(lambda: is_waited_for(pool))
        connection.is_usable = False
        pool.give_back(connection)
        with pytest.raises(CannotConnectError, match="Connection refused"):
            other.result(WAIT_S)


def test_after_retirement_running_calls_finish_and_others_get_new_connections() -> None:
    held = Collecting()
    with (
        FakeServer(held) as server,
        pool_to(server.address) as pool,
        ThreadPoolExecutor(1) as one,
    ):
        idle, busy = take(pool), take(pool)
        pool.give_back(idle)
        answer = one.submit(ask, pool, busy, b"last")
        [(peer, frame)] = held.wait_for(1)
        pool.retire_all()
        peer.answer(frame)
        assert answer.result(WAIT_S) == b"last"
        new = take(pool)
        assert new not in (idle, busy)
        assert idle._socket.fileno() == busy._socket.fileno() == -1
        pool.give_back(new)


def test_an_idle_connection_that_the_server_closed_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(BrpcConnection, "has_ended", lambda connection: True)
    with FakeServer() as server, pool_to(server.address) as pool:
        run(pool, b"first")
        assert run(pool, b"second") == b"second"
        assert len(server.peers) == 2


def test_a_probe_finds_a_server_and_its_connection_is_used() -> None:
    with FakeServer() as server, pool_to(server.address) as pool:
        wait_until(lambda: pool.probe() is True)
        assert run(pool, b"probed") == b"probed"
        assert len(server.peers) == 1


def test_a_probe_of_a_server_that_is_not_there_fails(dead_address: tuple[str, int]) -> None:
    with pool_to(dead_address) as pool:
        wait_until(lambda: pool.probe() is False)


def test_an_unanswered_probe_does_not_block_and_fails_eventually(
    silent_address: tuple[str, int],
) -> None:
    clock = Clock()
    with pool_to(silent_address, clock=clock) as pool:
        assert pool.probe() is None
        assert pool.probe() is None
        clock.now += 10
        assert pool.probe() is False
        assert pool.probe() is None, "the next probe starts again"


def test_after_close_running_calls_finish_and_no_new_ones_start() -> None:
    held = Collecting()
    with FakeServer(held) as server, ThreadPoolExecutor(1) as one:
        pool = Pool(server.address, BrpcConnection)
        answer = one.submit(run, pool, b"last")
        [(peer, frame)] = held.wait_for(1)
        pool.close()
        pool.close()
        with pytest.raises(CannotConnectError, match="closed"):
            take(pool)
        peer.answer(frame)
        assert answer.result(WAIT_S) == b"last"


def test_a_connection_made_after_close_is_closed() -> None:
    with FakeServer() as server:
        pool = Pool(server.address, BrpcConnection)
        pool.close()
        assert pool.probe() is None
        pool.close()


def test_a_connection_is_made_to_a_name() -> None:
    with FakeServer() as server:
        dial(("localhost", server.port), Waiting(time.monotonic() + WAIT_S)).close()
