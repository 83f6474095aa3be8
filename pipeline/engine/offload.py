"""Offload: threads for messages that are too large to be read or written on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from pipeline.errors import DeadlineError
from pipeline.proto.slices import AbandonedError, wanted_while
from pipeline.system.event_loop import DaemonThreads

_Result = TypeVar("_Result")

_THREADS = 2  # that work at the same time; other messages wait in the order of arrival
_JOIN_TIMEOUT_S = 5.0


class Offload:
    """Threads for work whose size the client decides.

    Args:
        limit_s: the service's own limit for a request; None: none.
        threads: that work at the same time; 0: the caller does the work at once.
    """

    def __init__(self, limit_s: float | None = None, threads: int = _THREADS) -> None:
        self._limit_s = limit_s
        self._threads = threads
        self._pool = DaemonThreads(threads, "pipeline-large") if threads else None
        self._unwanted: set[threading.Event] = set()  # of the running work

    def start(self) -> None:
        """Start the threads; otherwise they start with the first work."""
        if self._pool is not None:
            begin = threading.Event()
            for _ in range(self._threads):
                self._pool.submit(begin.wait)
            begin.set()

    async def run(
        self, work: Callable[[], _Result], timeout_s: float | None = None
    ) -> tuple[_Result, float | None]:
        """Return the result of `work`, and what is left of the client's `timeout_s`.

        Work whose client leaves, or has no time left, ends at its next slice.

        Raises:
            DeadlineError: the wait and the work took too long.
        """
        loop = asyncio.get_running_loop()
        limits = [limit for limit in (timeout_s, self._limit_s) if limit is not None]
        ends = loop.time() + min(limits) if limits else None
        if self._pool is None:
            return work(), timeout_s
        unwanted = threading.Event()
        self._unwanted.add(unwanted)
        future = self._pool.submit(_run, work, unwanted)
        # So that asyncio does not log an error that nobody awaits.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        waiting = asyncio.wrap_future(future)
        try:
            await asyncio.wait({waiting}, timeout=None if ends is None else ends - loop.time())
            if not waiting.done():
                raise DeadlineError("the deadline passed while the message was read or written")
            return waiting.result(), None if ends is None else max(0.0, ends - loop.time())
        finally:
            unwanted.set()
            waiting.cancel()
            self._unwanted.discard(unwanted)
            # they have an error whose traceback leads here, and to the work's data
            del future, waiting

    async def stop(self) -> None:
        """End all work at its next slice; a thread stays only if it hangs in a single slice."""
        if self._pool is None:
            return
        for unwanted in self._unwanted:
            unwanted.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        joined = asyncio.to_thread(self._pool.shutdown, wait=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(joined), _JOIN_TIMEOUT_S)


def _run(work: Callable[[], _Result], unwanted: threading.Event) -> _Result:
    """Return the result of `work`, as long as somebody waits for it."""
    with wanted_while(lambda: not unwanted.is_set()):
        if unwanted.is_set():
            raise AbandonedError("nobody waits for this any more")
        return work()
