"""`paddle_serving_server.pipeline.util`: small generators."""

from __future__ import annotations

import itertools
import threading
from typing import Any

from pipeline.dropin.server.web_service import port_is_available
from pipeline.dropin.stubs import stub

__all__ = [
    "AvailablePortGenerator",
    "GetAvailablePortGenerator",
    "NameGenerator",
    "PipelineProcSyncManager",
    "ThreadIdGenerator",
]


class NameGenerator:
    """`NameGenerator("Op").next()` is "Op0", then "Op1", ..."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._numbers = itertools.count()

    def next(self) -> str:
        return f"{self._prefix}{next(self._numbers)}"


class AvailablePortGenerator:
    """Free ports of this machine, from `start_port` on."""

    def __init__(self, start_port: int = 12000) -> None:
        self._ports = itertools.count(start_port)

    @staticmethod
    def port_is_available(port: int) -> bool:
        return port_is_available(port)

    def next(self) -> int:
        return next(port for port in self._ports if port_is_available(port))


_ports = AvailablePortGenerator()


def GetAvailablePortGenerator() -> AvailablePortGenerator:
    """Return the generator that all callers share."""
    return _ports


class ThreadIdGenerator:
    """Numbers from `base_counter` in steps up to `max_id`, then from the start. Thread-safe."""

    def __init__(
        self, max_id: int, base_counter: int = 0, step: int = 1, lock: threading.Lock | None = None
    ) -> None:
        self._first = self._next = base_counter
        self._step = step
        self._max_id = max_id
        self._lock = lock or threading.Lock()

    def next(self) -> int:
        with self._lock:
            number = self._next
            self._next = number + self._step
            if self._next >= self._max_id:
                self._next = self._first
            return number


PipelineProcSyncManager: Any = stub(
    "PipelineProcSyncManager", __name__, "process workers share nothing; use `multiprocessing`"
)
