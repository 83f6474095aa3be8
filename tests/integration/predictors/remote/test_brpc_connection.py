"""One connection that threads share, against a server that does what each test tells it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from doubles import wait_until
from played_brpc import WAIT_S, Collecting, Peer, PlayedServer, answer_to

from pipeline.predictors.remote.brpc_connection import (
    BrpcCall,
    BrpcConnection,
    ConnectionLostError,
    OutOfTimeError,
)
from pipeline.proto.brpc.frames import BrpcFrame, pack, request_meta, response_meta

SOON_S = 0.05  # of calls that are meant to run out of time
BIG = bytes(32 * 2**20)  # more than the kernel keeps for a peer that does not read


@pytest.fixture
def callers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as threads:
        yield threads


@contextlib.contextmanager
def connected(server: PlayedServer, **arguments: Any) -> Iterator[BrpcConnection]:
    connection = BrpcConnection(socket.create_connection(server.address), **arguments)
    try:
        yield connection
    finally:
        connection.retire()
        assert not connection.load
        assert connection._socket.fileno() == -1


def reserve(connection: BrpcConnection) -> BrpcCall:
    call = connection.reserve()
    assert call is not None
    return call


def ask(connection: BrpcConnection, body: bytes, time_s: float = WAIT_S) -> bytes:
    deadline = time.monotonic() + time_s
    return reserve(connection).run(request_meta("inference", 0), body, deadline).body


def is_waiting(connection: BrpcConnection, count: int) -> Callable[[], bool]:
    """Whether so many callers wait: one reads for all, the others for it."""
    return lambda: (
        connection._is_read
        and sum(call.waits for call in list(connection._calls.values())) == count - 1
    )


def test_a_request_is_answered() -> None:
    with PlayedServer() as server, connected(server) as connection:
        assert ask(connection, b"one") == b"one"
        assert ask(connection, b"two") == b"two"
        assert connection.has_answered


def test_answers_in_any_order_find_their_callers(callers: ThreadPoolExecutor) -> None:
    held = Collecting()
    with PlayedServer(held) as server, connected(server) as connection:
        bodies = [str(number).encode() for number in range(20)]
        answers = [callers.submit(ask, connection, body) for body in bodies]
        for peer, frame in reversed(held.wait_for(20)):
            peer.answer(frame)
        assert [answer.result(WAIT_S) for answer in answers] == bodies


def test_an_answer_may_come_in_pieces() -> None:
    def byte_by_byte(peer: Peer, frame: BrpcFrame) -> None:
        for byte in answer_to(frame):
            peer.send(bytes([byte]))

    with PlayedServer(byte_by_byte) as server, connected(server) as connection:
        assert ask(connection, b"piece by piece") == b"piece by piece"


def test_several_answers_may_come_in_one_piece(callers: ThreadPoolExecutor) -> None:
    held = Collecting()
    with PlayedServer(held) as server, connected(server) as connection:
        answers = [callers.submit(ask, connection, body) for body in (b"a", b"b", b"c")]
        frames = held.wait_for(3)
        frames[0][0].send(b"".join(answer_to(frame) for _, frame in frames))
        assert {answer.result(WAIT_S) for answer in answers} == {b"a", b"b", b"c"}


def test_big_requests_and_answers_go_through_beside_small_ones(
    callers: ThreadPoolExecutor,
) -> None:
    with PlayedServer() as server, connected(server) as connection:
        big = [callers.submit(ask, connection, bytes([n]) * 9_000_000) for n in range(3)]
        small = [callers.submit(ask, connection, str(n).encode()) for n in range(20)]
        assert [answer.result(WAIT_S) for answer in small] == [str(n).encode() for n in range(20)]
        assert all(answer.result(WAIT_S) == bytes([n]) * 9_000_000 for n, answer in enumerate(big))


def test_a_late_answer_is_dropped_and_the_connection_goes_on() -> None:
    held = Collecting()
    with PlayedServer(held) as server, connected(server) as connection:
        with pytest.raises(OutOfTimeError):
            ask(connection, b"late", SOON_S)
        [(peer, late)] = held.wait_for(1)
        peer.answer(late)
        server.behaviour = Peer.answer
        assert ask(connection, b"in time") == b"in time"


def test_the_lead_is_passed_on_when_the_time_of_the_leader_is_over(
    callers: ThreadPoolExecutor,
) -> None:
    held = Collecting()
    with PlayedServer(held) as server, connected(server) as connection:
        leader = callers.submit(ask, connection, b"leads", 1.0)
        wait_until(is_waiting(connection, 1))
        others = [callers.submit(ask, connection, body) for body in (b"x", b"y")]
        wait_until(is_waiting(connection, 3))
        with pytest.raises(OutOfTimeError):
            leader.result(WAIT_S)
        for peer, frame in held.wait_for(3)[1:]:
            peer.answer(frame)
        assert [other.result(WAIT_S) for other in others] == [b"x", b"y"]


def test_a_caller_that_waits_for_the_leader_runs_out_of_time_alone(
    callers: ThreadPoolExecutor,
) -> None:
    held = Collecting()
    with PlayedServer(held) as server, connected(server) as connection:
        leader = callers.submit(ask, connection, b"leads")
        wait_until(is_waiting(connection, 1))
        with pytest.raises(OutOfTimeError):
            ask(connection, b"follows", SOON_S)
        peer, frame = held.wait_for(2)[0]
        peer.answer(frame)
        assert leader.result(WAIT_S) == b"leads"


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
def test_a_connection_that_is_lost_ends_all_its_calls_at_once(
    callers: ThreadPoolExecutor, ends: Callable[[Peer], object], reason: str
) -> None:
    held = Collecting()
    with PlayedServer(held) as server, connected(server) as connection:
        calls = [callers.submit(ask, connection, b"lost") for _ in range(5)]
        ends(held.wait_for(5)[0][0])
        for call in calls:
            with pytest.raises(ConnectionLostError, match=reason):
                call.result(WAIT_S)
        assert not connection.is_usable
        assert connection.reserve() is None


def test_a_place_that_was_reserved_before_the_loss_ends_with_its_reason() -> None:
    with PlayedServer(lambda peer, _: peer.close()) as server, connected(server) as connection:
        place = reserve(connection)
        with pytest.raises(ConnectionLostError):
            ask(connection, b"")
        with pytest.raises(ConnectionLostError, match="it closed the connection"):
            place.run(request_meta("inference", 0), b"", time.monotonic() + WAIT_S)


def test_an_answer_larger_than_allowed_is_refused() -> None:
    with PlayedServer() as server, connected(server, max_bytes=1000) as connection:
        assert ask(connection, bytes(900)) == bytes(900)
        with pytest.raises(ConnectionLostError, match="larger than 1000"):
            ask(connection, bytes(1001))


def test_a_send_to_a_peer_that_never_reads_ends_in_time() -> None:
    with PlayedServer(reads=False) as server, connected(server) as connection:
        with pytest.raises(OutOfTimeError):
            ask(connection, BIG, SOON_S)
        assert connection.reserve() is None  # half a request is on its way: none can follow


def test_calls_before_a_request_that_was_not_sent_whole_still_get_their_answers(
    callers: ThreadPoolExecutor,
) -> None:
    held = Collecting()
    stuck = threading.Event()

    def then_stop_reading(peer: Peer, frame: BrpcFrame) -> None:
        held(peer, frame)
        assert stuck.wait(WAIT_S)

    with PlayedServer(then_stop_reading) as server, connected(server) as connection:
        early = callers.submit(ask, connection, b"early")
        [(peer, frame)] = held.wait_for(1)
        with pytest.raises(OutOfTimeError):
            ask(connection, BIG, SOON_S)
        peer.answer(frame)
        assert early.result(WAIT_S) == b"early"
        stuck.set()


def test_a_request_behind_one_that_was_not_sent_whole_is_not_sent(
    callers: ThreadPoolExecutor,
) -> None:
    with PlayedServer(reads=False) as server, connected(server) as connection:
        big = callers.submit(ask, connection, BIG, 1.0)
        wait_until(lambda: connection.is_sending)
        small = callers.submit(ask, connection, b"small")
        with pytest.raises(OutOfTimeError):
            big.result(WAIT_S)
        with pytest.raises(ConnectionLostError, match="could not be sent whole"):
            small.result(WAIT_S)


def test_a_request_that_waits_to_be_sent_runs_out_of_time(callers: ThreadPoolExecutor) -> None:
    with PlayedServer(reads=False) as server, connected(server) as connection:
        big = callers.submit(ask, connection, BIG, 1.0)
        wait_until(lambda: connection.is_sending)
        with pytest.raises(OutOfTimeError):
            ask(connection, b"small", SOON_S)
        assert isinstance(big.exception(WAIT_S), OutOfTimeError)


def test_a_peer_that_first_wants_to_get_rid_of_a_late_answer_is_read_while_sending() -> None:
    late_answer = bytes(64 * 2**20)
    given_up = threading.Event()

    def answer_when_given_up(peer: Peer, frame: BrpcFrame) -> None:
        if frame.body == b"late":
            assert given_up.wait(WAIT_S)
            peer.answer(frame, late_answer)  # and reads nothing before that is gone
        else:
            peer.answer(frame, b"big")

    with PlayedServer(answer_when_given_up) as server, connected(server) as connection:
        with pytest.raises(OutOfTimeError):
            ask(connection, b"late", SOON_S)
        given_up.set()
        assert ask(connection, BIG) == b"big"


def test_a_connection_that_breaks_ends_the_call_that_is_being_sent(
    callers: ThreadPoolExecutor,
) -> None:
    with PlayedServer(reads=False) as server, connected(server) as connection:
        call = callers.submit(ask, connection, BIG)
        wait_until(lambda: connection.is_sending and len(server.peers) == 1)
        server.peers[0].socket.close()
        with pytest.raises(ConnectionLostError, match="connection"):
            call.result(WAIT_S)


def test_a_retired_connection_serves_the_calls_under_way(callers: ThreadPoolExecutor) -> None:
    held = Collecting()
    with PlayedServer(held) as server, connected(server) as connection:
        answer: Future[bytes] = callers.submit(ask, connection, b"last")
        [(peer, frame)] = held.wait_for(1)
        connection.retire()
        assert connection.reserve() is None
        peer.answer(frame)
        assert answer.result(WAIT_S) == b"last"


def test_an_idle_connection_that_the_server_closed_is_noticed() -> None:
    with PlayedServer() as server, connected(server, fresh_s=0) as connection:
        ask(connection, b"")
        ask(connection, b"")
        server.peers[0].close()
        wait_until(lambda: bool(connection._readable.poll(0)))
        assert connection.reserve() is None


def test_an_idle_connection_with_a_late_answer_is_not_taken_for_closed() -> None:
    held = Collecting()
    with PlayedServer(held) as server, connected(server, fresh_s=0) as connection:
        with pytest.raises(OutOfTimeError):
            ask(connection, b"late", SOON_S)
        peer, frame = held.wait_for(1)[0]
        peer.answer(frame)
        wait_until(lambda: bool(connection._readable.poll(0)))
        reserve(connection).give_back()


def test_garbage_ends_a_call_that_is_being_sent(callers: ThreadPoolExecutor) -> None:
    with PlayedServer(reads=False) as server, connected(server) as connection:
        sent = callers.submit(ask, connection, b"small")
        wait_until(is_waiting(connection, 1))
        big = callers.submit(ask, connection, BIG)
        wait_until(lambda: connection.is_sending and len(server.peers) == 1)
        server.peers[0].send(b"HTTP/1.1 400 Bad Request\r\n")
        for call in (sent, big):
            assert isinstance(call.exception(WAIT_S), ConnectionLostError)


def test_a_place_can_be_given_back() -> None:
    with PlayedServer() as server, connected(server) as connection:
        reserve(connection).give_back()
        assert connection.load == 0


def test_many_threads_share_a_connection(callers: ThreadPoolExecutor) -> None:
    with PlayedServer() as server, connected(server) as connection:
        bodies = [str(number).encode() * (number % 50 + 1) for number in range(2000)]
        answers = callers.map(lambda body: ask(connection, body), bodies)
        assert list(answers) == bodies
        assert len(server.peers) == 1
