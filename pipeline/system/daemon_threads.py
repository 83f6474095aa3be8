"""DaemonThreads: an executor whose threads do not hold the process when they hang."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any

_JOIN_TIMEOUT_S = 5.0
_Job = tuple[Future[Any], Callable[[], Any]]


class DaemonThreads(ThreadPoolExecutor):
    """An executor of what is submitted, on up to `max_threads` threads.

    A `ThreadPoolExecutor` for asyncio's sake, which takes no other one for its default. Python
    joins that one's own threads, without a limit, before a process may end; ours are left behind.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        super().__init__(1, name)  # it starts a thread at its own `submit` only
        self._max_threads = max_threads
        self._name = name
        self._lock = threading.Lock()
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._idle = 0  # threads that nobody has given a job yet
        self._started: list[threading.Thread] = []
        self._is_closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have `fn` called; RuntimeError after `shutdown`."""
        future: Future[Any] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._queue.put((future, lambda: fn(*args, **kwargs)))
            if self._idle:
                self._idle -= 1
            elif len(self._started) < self._max_threads:
                name = f"{self._name}_{len(self._started)}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._started.append(thread)
                thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more; wait five seconds at most for what runs, with `wait`. May be repeated."""
        with self._lock:
            self._is_closed = True
            jobs = self._waiting() if cancel_futures else []
            for _ in self._started:
                self._queue.put(None)
        for future, _ in jobs:
            future.cancel()
        ends = time.monotonic() + _JOIN_TIMEOUT_S
        for thread in self._started if wait else ():
            if thread is not threading.current_thread():
                thread.join(max(0.0, ends - time.monotonic()))

    def _waiting(self) -> list[_Job]:
        jobs = []
        with contextlib.suppress(Empty):  # a thread may take the last one at any time
            while True:
                if (job := self._queue.get_nowait()) is not None:
                    jobs.append(job)
        return jobs

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            future, work = job
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as error:  # it is for who waits for the result
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del job, future, work
            with self._lock:
                self._idle += 1
