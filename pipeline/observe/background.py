"""Background: one thread that does, in order, what must not hold up the event loop."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

_LOGGER = logging.getLogger(__name__)

_JOIN_TIMEOUT_S = 10.0  # a disk or a pipe that hangs must not keep a server from stopping

Job = Callable[[], object]


class Background:
    """Runs jobs one after the other; an exception of one is logged and ends nothing else.

    So many jobs as `limit` says may wait, more are dropped; the number dropped is logged, under
    the thread's `name`, once there is room again.
    """

    def __init__(self, name: str, limit: int = 100) -> None:
        self._name = name
        self._limit = limit
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._dropped = 0
        self._is_open = False
        self._thread = threading.Thread(target=self._run, name=f"pipeline-{name}", daemon=True)

    def start(self) -> None:
        self._is_open = True
        self._thread.start()

    def submit(self, job: Job) -> bool:
        """Have `job` done soon; False: too many wait, or this is not open. From one thread only."""
        if not self._is_open:
            return False
        if self._jobs.qsize() >= self._limit:
            self._dropped += 1
            return False
        if self._dropped:
            _LOGGER.warning("%s could not keep up: %d pieces lost", self._name, self._dropped)
            self._dropped = 0
        self._jobs.put(job)
        return True

    def close(self) -> None:
        """Do what waits and end the thread. May be called again, and without `start`."""
        if self._is_open:
            self._is_open = False
            self._jobs.put(None)
            self._thread.join(_JOIN_TIMEOUT_S)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # one bad piece must not stop the later ones
                _LOGGER.exception("%s failed to write a piece", self._name)
