"""What tests/unit/conftest.py refuses, and what it lets be."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time

import grpc
import pytest
from doubles import run_virtual


def unbound(family, attempt):
    with socket.socket(family) as found:
        attempt(found)


@pytest.mark.parametrize(
    ("attempt", "told"),
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
def test_who_breaks_the_promise_is_told(refused, attempt, told):
    with pytest.raises(pytest.fail.Exception, match=f"a unit test {told}"):
        attempt()
    assert len(refused) == 1
    refused.clear()


def test_it_is_remembered_also_where_the_code_takes_no_notice(refused):
    with contextlib.suppress(BaseException):
        time.sleep(1)
    assert refused == ["a unit test sleeps (time.sleep): such a test belongs to "
                       "tests/integration or tests/e2e"]  # fmt: skip
    refused.clear()


def test_loops_of_their_own_pairs_of_sockets_and_virtual_time_are_no_matter(refused):
    here, there = socket.socketpair()
    with here, there:
        here.sendall(b"x")
        assert there.recv(1) == b"x"
    asyncio.run(asyncio.sleep(0))
    run_virtual(asyncio.sleep(3600))
    time.sleep(0)
    assert refused == []
