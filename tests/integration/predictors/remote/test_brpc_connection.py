"""One connection, against a server that does what each test tells it."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from doubles import wait_until
from fake_brpc import WAIT_S, Collecting, FakeServer, Peer, answer_to

from pipeline.errors import ClosedError
from pipeline.predictors.remote import brpc_connection
from pipeline.predictors.remote.brpc_connection import BrpcConnection
from pipeline.predictors.remote.pool import ConnectionLostError, OutOfTimeError, Waiting
from pipeline.proto.brpc.frames import BrpcFrame, pack, request_meta, response_meta

SOON_S = 0.05  # of calls that are meant to run out of time
BIG = bytes(32 * 2**20)  # more than the kernel keeps for a peer that does not read


@pytest.fixture
def callers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


@contextlib.contextmanager
def connected(server: FakeServer, **arguments: Any) -> Iterator[BrpcConnection]:
    connection = BrpcConnection(socket.create_connection(server.address), **arguments)
    try:
        yield connection
    finally:
        connection.close()


def ask(connection: BrpcConnection, body: bytes, time_s: float = WAIT_S) -> bytes:
    waiting = Waiting(time.monotonic() + time_s)
    return connection.ask(request_meta("inference", 0), body, waiting)[1]


def test_a_request_is_answered() -> None:
    with FakeServer() as server, connected(server) as connection:
        assert ask(connection, b"one") == b"one"
        assert ask(connection, b"two") == b"two"
        assert connection.has_answered


def test_an_answer_may_arrive_in_pieces() -> None:
    def byte_by_byte(peer: Peer, frame: BrpcFrame) -> None:
        for byte in answer_to(frame):
            peer.send(bytes([byte]))

    with FakeServer(byte_by_byte) as server, connected(server) as connection:
        assert ask(connection, b"piece by piece") == b"piece by piece"


def test_a_late_answer_may_arrive_together_with_one_in_time() -> None:
    held = Collecting()

    def answer_both(peer: Peer, frame: BrpcFrame) -> None:
        held(peer, frame)
        if len(held.waiting) == 2:
            peer.send(b"".join(answer_to(each) for _, each in held.waiting))

    with FakeServer(answer_both) as server, connected(server) as connection:
        with pytest.raises(OutOfTimeError):
            ask(connection, b"late", SOON_S)
        assert ask(connection, b"in time") == b"in time"
        assert connection.is_usable


def test_an_answer_may_take_longer_than_one_receive_waits(
    callers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brpc_connection, "_LONGEST_WAIT_S", 0.001)
    held = Collecting()
    with FakeServer(held) as server, connected(server) as connection:
        receives: list[int] = []
        receive = connection._receive
        connection._receive = lambda: (receives.append(1), receive())
        call = callers.submit(ask, connection, b"late, but in time")
        wait_until(lambda: len(receives) > 2)
        peer, frame = held.wait_for(1)[0]
        peer.answer(frame)
        assert call.result(WAIT_S) == b"late, but in time"
        assert connection.is_usable


def test_big_requests_and_answers_are_passed() -> None:
    with FakeServer() as server, connected(server) as connection:
        for n in range(3):
            assert ask(connection, bytes([n]) * 9_000_000) == bytes([n]) * 9_000_000


def test_a_late_answer_is_dropped_and_the_connection_continues() -> None:
    held = Collecting()
    with FakeServer(held) as server, connected(server) as connection:
        with pytest.raises(OutOfTimeError):
            ask(connection, b"late", SOON_S)
        [(peer, late)] = held.wait_for(1)
        peer.answer(late)
        server.behaviour = Peer.answer
        assert ask(connection, b"in time") == b"in time"


@pytest.mark.parametrize(
    ("ends", "reason"),
    [
        (Peer.close, "it closed the connection"),
        (lambda peer: peer.send(b"HTTP/1.1 400 Bad Request\r\n"), "it answers garbage: no baidu"),
        (lambda peer: peer.send(b"PRPC\xff\xff\xff\xff\0\0\0\1"), "it answers garbage: a frame of"),
        (
            lambda peer: peer.send(pack(response_meta(99), b"")),
            "garbage: an answer to call 99, which",
        ),
        (
            lambda peer: peer.send(pack(response_meta(0, 2001, "no method"), b"")),
            r"an answer to call 0, which was never made: error 2001 \(INTERNAL\): no method",
        ),
        (
            lambda peer: (peer.send(pack(response_meta(1), b"half an answer")[:-3]), peer.close()),
            "it closed the connection",
        ),
    ],
)
def test_a_connection_that_is_lost_ends_its_call_at_once(
    callers: ThreadPoolExecutor, ends: Callable[[Peer], object], reason: str
) -> None:
    held = Collecting()
    with FakeServer(held) as server, connected(server) as connection:
        call = callers.submit(ask, connection, b"lost")
        ends(held.wait_for(1)[0][0])
        with pytest.raises(ConnectionLostError, match=reason):
            call.result(WAIT_S)
        assert not connection.is_usable


def test_an_answer_larger_than_allowed_is_refused() -> None:
    with FakeServer() as server, connected(server, max_bytes=1000) as connection:
        assert ask(connection, bytes(900)) == bytes(900)
        with pytest.raises(ConnectionLostError, match="larger than 1000"):
            ask(connection, bytes(1001))


def test_a_send_to_a_peer_that_never_reads_ends_in_time() -> None:
    with FakeServer(reads=False) as server, connected(server) as connection:
        with pytest.raises(OutOfTimeError):
            ask(connection, BIG, SOON_S)
        assert not connection.is_usable, "half a request is on its way: none can follow"


def test_a_peer_that_first_sends_a_late_answer_is_read_while_sending() -> None:
    late_answer = bytes(64 * 2**20)
    given_up = threading.Event()

    def answer_when_given_up(peer: Peer, frame: BrpcFrame) -> None:
        if frame.body == b"late":
            assert given_up.wait(WAIT_S)
            peer.answer(frame, late_answer)  # and reads nothing before that is gone
        else:
            peer.answer(frame, b"big")

    with FakeServer(answer_when_given_up) as server, connected(server) as connection:
        with pytest.raises(OutOfTimeError):
            ask(connection, b"late", SOON_S)
        given_up.set()
        assert ask(connection, BIG) == b"big"


def test_an_idle_connection_that_the_server_closed_is_noticed() -> None:
    with FakeServer() as server, connected(server) as connection:
        ask(connection, b"")
        ask(connection, b"")
        server.peers[0].close()
        wait_until(connection.has_ended)


def test_an_idle_connection_with_a_late_answer_is_not_mistaken_for_closed() -> None:
    held = Collecting()
    with FakeServer(held) as server, connected(server) as connection:
        with pytest.raises(OutOfTimeError):
            ask(connection, b"late", SOON_S)
        peer, frame = held.wait_for(1)[0]
        peer.answer(frame)
        wait_until(lambda: bool(select.select([connection._socket], [], [], 0)[0]))
        assert not connection.has_ended()


@pytest.mark.parametrize(
    ("ends", "reason"),
    [
        (lambda peer: peer.socket.close(), "connection"),
        (lambda peer: peer.send(b"HTTP/1.1 400 Bad Request\r\n"), "it answers garbage"),
    ],
    ids=["breaks", "garbage"],
)
def test_the_end_of_a_connection_ends_the_call_that_is_being_sent(
    callers: ThreadPoolExecutor, ends: Callable[[Peer], object], reason: str
) -> None:
    with FakeServer(reads=False) as server, connected(server) as connection:
        call = callers.submit(ask, connection, BIG)
        wait_until(lambda: len(server.peers) == 1 and not connection.is_usable)
        ends(server.peers[0])
        with pytest.raises(ConnectionLostError, match=reason):
            call.result(WAIT_S)
        assert not connection.is_usable


@pytest.mark.parametrize("size", [1, 10_000, 16_300, 16_400, 100_000])
def test_requests_of_all_sizes_arrive_whole(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"end"
    with FakeServer() as server, connected(server) as connection:
        assert [ask(connection, body) for _ in range(3)] == [body] * 3


def test_a_short_request_waits_for_room_in_the_send_buffer() -> None:
    with FakeServer(reads=False) as server, connected(server) as connection:
        connection._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                connection._socket.send(BIG)
        connection._socket.setblocking(True)
        with pytest.raises(OutOfTimeError):
            ask(connection, b"short", SOON_S)
        assert not connection.is_usable


def test_a_short_request_on_a_broken_connection_is_an_error() -> None:
    with FakeServer() as server, connected(server) as connection:
        connection._socket.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionLostError, match="broke while a request was sent: Broken"):
            ask(connection, b"short")


def test_a_cancelled_call_closes_its_connection(
    callers: ThreadPoolExecutor,
) -> None:
    left, held = threading.Event(), Collecting()
    with FakeServer(held) as server, connected(server) as connection:
        waiting = Waiting(time.monotonic() + WAIT_S, left.is_set)
        meta = request_meta("inference", 0)
        answer = callers.submit(connection.ask, meta, b"x", waiting)
        held.wait_for(1)
        left.set()
        with pytest.raises(ClosedError):
            answer.result()
        assert not connection.is_usable  # so a pool closes it, which the server sees
