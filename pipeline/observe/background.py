"""Background: a thread that does slow work in order, off the event loop."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

_LOGGER = logging.getLogger(__name__)

_JOIN_TIMEOUT_S = 10.0  # a disk or a pipe that hangs must not keep a server from stopping

Job = Callable[[], object]


class Background:
    """Runs jobs one after the other; an exception is logged, and the next job runs.

    At most `limit` jobs wait, further ones are dropped; their number is logged, under the thread's
    `name`, when there is room again.
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
        """Queue `job`; False: too many wait, or this is not open. From one thread only."""
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
        """Run the waiting jobs and end the thread. May be called again, and without `start`."""
        if self._is_open:
            self._is_open = False
            self._jobs.put(None)
            self._thread.join(_JOIN_TIMEOUT_S)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # a failed job must not stop later ones
                _LOGGER.exception("%s failed to write a piece", self._name)
            del job  # free its data while the thread waits
