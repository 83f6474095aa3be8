"""ProcessMetrics: CPU, memory, collector, and how long the event loop and threads had to wait."""

from __future__ import annotations

import asyncio
import threading
import time

from pipeline.metrics import LEDGER, FamilyHead, Ledger, MetricSamples
from pipeline.observe.metrics import samples_of_process

_EVERY_S = 1.0
_BOUNDS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_LAG = FamilyHead(
    "pipeline_event_loop_lag_seconds",
    "histogram",
    "Time by which the event loop came too late, looked at once a second.",
    _BOUNDS_S,
)
_WAIT = FamilyHead(
    "pipeline_gil_wait_seconds",
    "histogram",
    "Time that a thread waited for the interpreter, looked at once a second.",
    _BOUNDS_S,
)


class ProcessMetrics:
    """Figures of one process of a server, and what users' code counts in it.

    Once a second the loop looks how late it was called, and a thread how long it takes to get the
    interpreter back that it has just given up.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ledger = Ledger()
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = threading.Event()

    def start(self) -> None:
        """Begin to look; on the loop."""
        self._look_at(self._loop.time() + _EVERY_S)
        threading.Thread(target=self._watch, name="pipeline-gil", daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._is_over.set()
        if self._timer is not None:
            self._timer.cancel()

    def families(self) -> list[MetricSamples]:
        """Return all of it as it is now."""
        return [*samples_of_process(), *self._ledger.families(), *LEDGER.families()]

    def _look_at(self, due: float) -> None:
        self._timer = self._loop.call_at(due, self._look, due)

    def _look(self, due: float) -> None:
        now = self._loop.time()
        self._ledger.change(_LAG, (), max(0.0, now - due))
        self._look_at(now + _EVERY_S)

    def _watch(self) -> None:
        while not self._is_over.wait(_EVERY_S):
            start = time.perf_counter()
            time.sleep(0)  # gives the interpreter up
            self._ledger.change(_WAIT, (), time.perf_counter() - start)
