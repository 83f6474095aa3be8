"""The promise of tests/unit: no process, no socket, no sleep. Whoever tries fails, and is told."""

from __future__ import annotations

import asyncio
import sys
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
    """Refuses and remembers what a unit test must not do, while one is running."""

    def __init__(self) -> None:
        self.attempts: list[str] | None = None  # None: no unit test is running
        sys.addaudithook(self._audit)  # there is no way to take a hook away

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _FORBIDDEN and self.attempts is not None:
            self.refuse(f"{_FORBIDDEN[event]} ({event})")

    def refuse(self, what: str) -> NoReturn:
        text = f"a unit test {what}: such a test belongs to tests/integration or tests/e2e"
        assert self.attempts is not None
        self.attempts.append(text)
        pytest.fail(text)


_GUARD = _Guard()


@pytest.fixture(autouse=True)
def refused() -> Iterator[list[str]]:
    """What this test was refused; at its end that is nothing, also if the code took no notice.

    The patches are its own: what looks after the test for what is left behind may sleep.
    """
    really_sleep, really_wait = time.sleep, asyncio.sleep

    def sleep(seconds: float) -> None:
        if seconds > 0:
            _GUARD.refuse("sleeps (time.sleep)")
        really_sleep(seconds)  # lets other threads go on

    async def wait(delay: float, result: Any = None) -> Any:
        if delay > 0 and not isinstance(asyncio.get_running_loop(), VirtualLoop):
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
        _GUARD.attempts = attempts = []
        try:
            yield attempts
        finally:
            _GUARD.attempts = None
    if attempts:
        pytest.fail(attempts[0])
