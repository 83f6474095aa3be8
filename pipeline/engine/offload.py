"""Offload: threads for what is too large to be read or written on the event loop."""

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

_THREADS = 2  # at work; what else is large waits in the order in which it came
_JOIN_TIMEOUT_S = 5.0


class Offload:
    """Threads for work of a caller's size, beside the event loop.

    Args:
        limit_s: the service's own deadline of a request; None: none.
        threads: that work at the same time; 0: work is done at once, where it is asked for.
    """

    def __init__(self, limit_s: float | None = None, threads: int = _THREADS) -> None:
        self._limit_s = limit_s
        self._threads = threads
        self._pool = DaemonThreads(threads, "pipeline-large") if threads else None
        self._unwanted: set[threading.Event] = set()  # of the work that goes on

    def start(self) -> None:
        """Start the threads; else they start when there is work for them."""
        if self._pool is not None:
            begin = threading.Event()
            for _ in range(self._threads):
                self._pool.submit(begin.wait)
            begin.set()

    async def run(
        self, work: Callable[[], _Result], timeout_s: float | None = None
    ) -> tuple[_Result, float | None]:
        """Return the result of `work`, and what is left of `timeout_s`, which its caller gives.

        Work whose caller leaves, or has no more time, ends at its next slice.

        Raises:
            DeadlineError: it took too long, its turn included.
        """
        loop = asyncio.get_running_loop()
        limits = [limit for limit in (timeout_s, self._limit_s) if limit is not None]
        ends = loop.time() + min(limits) if limits else None
        if self._pool is None:
            return work(), timeout_s
        unwanted = threading.Event()
        self._unwanted.add(unwanted)
        future = self._pool.submit(_run, work, unwanted)
        # So that an error that nobody waits for is taken notice of.
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
            del future, waiting  # have an error whose traceback leads here, and to the work's data

    async def stop(self) -> None:
        """End all work, at its next slice; no thread is left unless one hangs in a single one."""
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
