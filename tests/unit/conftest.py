"""The promise of tests/unit: no process, no socket, no sleep. A test that tries one fails."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import grpc
import numpy.testing  # noqa: F401 - which starts a process when it is imported, by numpy 1.26
import pytest
from doubles import VirtualLoop

_FORBIDDEN = {
    "os.exec": "runs a program",
    "os.fork": "forks",
    "os.forkpty": "forks",
    "os.posix_spawn": "starts a process",
    "os.system": "starts a process",
    "pty.spawn": "starts a process",
    "socket.bind": "binds a socket",
    "socket.connect": "connects a socket",
    "subprocess.Popen": "starts a process",
}


class _Guard:
    """Refuses and remembers what a unit test must not do, while one is running.

    Threads that earlier tests have left may do anything: an exporter that still tries to connect.
    """

    def __init__(self) -> None:
        self.attempts: list[str] = []
        self._others: set[threading.Thread] | None = None  # None: no unit test is running
        sys.addaudithook(self._audit)  # a hook cannot be removed

    def begin(self) -> None:
        """Watch the test that begins now: this thread, and the threads that it starts."""
        self.attempts = []
        self._others = {*threading.enumerate()} - {threading.current_thread()}

    def end(self) -> None:
        """Watch no more."""
        self._others = None

    @property
    def watches(self) -> bool:
        """Whether a unit test runs in this thread."""
        return self._others is not None and threading.current_thread() not in self._others

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _FORBIDDEN and self.watches:
            self.refuse(f"{_FORBIDDEN[event]} ({event})")

    def refuse(self, what: str) -> NoReturn:
        text = f"a unit test {what}: such a test belongs to tests/integration or tests/e2e"
        self.attempts.append(text)
        pytest.fail(text)


_GUARD = _Guard()


@pytest.fixture(autouse=True)
def refused() -> Iterator[list[str]]:
    """The attempts of this test that were refused; any left at its end fails it.

    The patches end with the test: the checks that follow it may sleep.
    """
    really_sleep, really_wait = time.sleep, asyncio.sleep

    def sleep(seconds: float) -> None:
        if seconds > 0 and _GUARD.watches:
            _GUARD.refuse("sleeps (time.sleep)")
        really_sleep(seconds)  # lets other threads run

    async def wait(delay: float, result: Any = None) -> Any:
        loop = asyncio.get_running_loop()
        if delay > 0 and not isinstance(loop, VirtualLoop) and _GUARD.watches:
            _GUARD.refuse("sleeps (asyncio.sleep on a loop with a real clock)")
        return await really_wait(delay, result)

    def no_grpc(*_: Any, **__: Any) -> NoReturn:
        _GUARD.refuse("opens gRPC's sockets")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", sleep)
        patch.setattr(asyncio, "sleep", wait)
        for module in (grpc, grpc.aio):
            for name in ("server", "insecure_channel", "secure_channel"):
                patch.setattr(module, name, no_grpc)
        _GUARD.begin()
        try:
            yield _GUARD.attempts
        finally:
            _GUARD.end()
    if _GUARD.attempts:
        pytest.fail(_GUARD.attempts[0])
