"""CallLink: a worker's end of what it asks of its server."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any, cast
from unittest.mock import Mock

import msgspec
import pytest

from pipeline.engine.model_calls import MetricUse
from pipeline.workers.process.calls import AnswersMessage, CallLink, CallsMessage, WirePartLimit
from pipeline.workers.process.wire import Unframer

Ends = tuple[CallLink, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        yield CallLink(ours, cast(Any, None), 0), theirs


def dropped(sock: socket.socket) -> list[int]:
    """Return the numbers of the families that the server was notified of."""
    try:
        data = sock.recv(65536)
    except BlockingIOError:
        return []
    said = [msgspec.msgpack.decode(body, type=CallsMessage) for body in Unframer().feed(data)]
    return [wire.metric.number for item in said for wire in item.calls if wire.metric is not None]


def test_a_family_dropped_during_a_call_is_sent_later(ends: Ends) -> None:
    link, server = ends
    with link._lock:  # the garbage collector runs in a thread that has it
        link.drop_metrics(MetricUse(1, "drop"))
    assert dropped(server) == []
    link.drop_metrics(MetricUse(2, "drop"))
    assert dropped(server) == [1, 2]


def test_without_a_thread_for_the_check_the_model_is_not_ready_and_answers_arrive(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(work: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("pipeline.workers.process.calls.begin_check", no_thread)
    link, server = ends
    link._memory = Mock()
    limits: list[WirePartLimit] = []
    link.on_room = limits.append
    limit = WirePartLimit(1, 0, False)
    link._take(AnswersMessage([], [], limit, checks=True))
    assert limits == [limit]
    (body,) = Unframer().feed(server.recv(65536))
    assert msgspec.msgpack.decode(body, type=CallsMessage).is_ready is False


def test_a_forked_child_of_a_model_drops_nothing(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, server = ends
    monkeypatch.setattr(os, "getpid", lambda: -1)
    link.drop_metrics(MetricUse(1, "drop"))
    monkeypatch.undo()
    assert dropped(server) == []


def test_without_a_server_no_error_is_raised(ends: Ends) -> None:
    link, server = ends
    server.close()
    link.drop_metrics(MetricUse(1, "drop"))
