"""tests/unit/conftest.py refuses processes, sockets and sleeps to tests, and to nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from doubles import run_virtual


class Left:
    """A thread of an earlier test: it sleeps when it is asked to."""

    def __init__(self):
        self.asked, self.has_slept = threading.Event(), False
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        self.asked.wait(60)
        time.sleep(0.001)
        self.has_slept = True


@pytest.fixture(scope="module")
def left_promise():
    left = Left()
    yield left
    left.asked.set()
    left.thread.join()


def test_a_thread_of_an_earlier_test_does_not_break_the_promise(left_promise, refused):
    left_promise.asked.set()
    left_promise.thread.join()
    assert (left_promise.has_slept, refused) == (True, [])


def test_a_thread_of_the_test_breaks_it(refused):
    with contextlib.suppress(BaseException), ThreadPoolExecutor(1) as threads:
        threads.submit(time.sleep, 0.001).result()
    assert len(refused) == 1
    refused.clear()


def unbound(family, attempt):
    with socket.socket(family) as result:
        attempt(result)


@pytest.mark.parametrize(
    ("attempt", "text"),
    [
        (lambda: unbound(socket.AF_INET, lambda s: s.bind(("127.0.0.1", 0))), "binds a socket"),
        (lambda: unbound(socket.AF_INET6, lambda s: s.connect(("::1", 1))), "connects a socket"),
        (lambda: unbound(socket.AF_UNIX, lambda s: s.bind("\0nobody")), "binds a socket"),
        (lambda: asyncio.run(asyncio.start_server(print, "127.0.0.1", 0)), "binds a socket"),
        (lambda: subprocess.run([sys.executable, "--version"], check=True), "starts a process"),
        (lambda: os.system("true"), "starts a process"),
        (os.fork, "forks"),
        (lambda: time.sleep(0.001), "sleeps"),
        (lambda: asyncio.run(asyncio.sleep(0.001)), "sleeps"),
        (lambda: grpc.insecure_channel("127.0.0.1:1"), "opens gRPC's sockets"),
        (lambda: grpc.aio.server(), "opens gRPC's sockets"),
    ],
)  # fmt: skip
def test_a_test_that_breaks_the_promise_fails(refused, attempt, text):
    with pytest.raises(pytest.fail.Exception, match=f"a unit test {text}"):
        attempt()
    assert len(refused) == 1
    refused.clear()


def test_an_attempt_counts_also_where_the_code_catches_the_failure(refused):
    with contextlib.suppress(BaseException):
        time.sleep(1)
    assert refused == ["a unit test sleeps (time.sleep): such a test belongs to "
                       "tests/integration or tests/e2e"]  # fmt: skip
    refused.clear()


def test_loops_pairs_of_sockets_and_virtual_time_are_allowed(refused):
    here, there = socket.socketpair()
    with here, there:
        here.sendall(b"x")
        assert there.recv(1) == b"x"
    asyncio.run(asyncio.sleep(0))
    run_virtual(asyncio.sleep(3600))
    time.sleep(0)
    assert refused == []
