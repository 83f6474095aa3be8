"""The event loop of a server: uvloop where it is available; on its own thread if wanted."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any

_EXECUTOR_JOIN_S = 5.0
_Job = tuple[Future[Any], Callable[[], Any]]


class DaemonThreads(ThreadPoolExecutor):
    """An executor with at most `max_threads` daemon threads.

    It is a `ThreadPoolExecutor` because asyncio accepts no other default executor. Python joins the
    threads of a `ThreadPoolExecutor`, without a limit, before a process ends; these are left
    behind.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        super().__init__(1, name)  # only its own `submit` starts a thread
        self._max_threads = max_threads
        self._name = name
        self._lock = threading.Lock()
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._idle = 0  # threads without a job
        self._started: list[threading.Thread] = []
        self._is_closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Schedule a call of `fn`. Raises RuntimeError: after `shutdown`."""
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
        """Refuse new jobs; if `wait`, wait up to 5 s for running ones. May be repeated."""
        with self._lock:
            self._is_closed = True
            jobs = self._waiting() if cancel_futures else []
            for _ in self._started:
                self._queue.put(None)
        for future, _ in jobs:
            future.cancel()
        ends = time.monotonic() + _EXECUTOR_JOIN_S
        for thread in self._started if wait else ():
            if thread is not threading.current_thread():
                thread.join(max(0.0, ends - time.monotonic()))

    def _waiting(self) -> list[_Job]:
        jobs = []
        with contextlib.suppress(Empty):  # a thread may take the last job at any time
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
                except BaseException as error:  # it goes to the waiter of the result
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del job, future, work
            with self._lock:
                self._idle += 1


_LOGGER = logging.getLogger(__name__)

_THREADS = 32  # of a loop's default executor
_CANCEL_TIMEOUT_S = 5.0  # limit for a cancelled task to end
_JOIN_TIMEOUT_S = 30.0
_CULPRITS = ("handle", "task", "future", "protocol")  # keys of a context that the log line shows


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return a factory of event loops whose threads do not keep the process alive."""
    try:
        import uvloop
    except ImportError:  # no wheel for this platform: use asyncio's own loop
        factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    else:
        factory = uvloop.new_event_loop

    def make() -> asyncio.AbstractEventLoop:
        loop = factory()
        loop.set_default_executor(DaemonThreads(_THREADS, "asyncio"))
        loop.set_exception_handler(log_failure)
        return loop

    return make


def log_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an exception of a callback or a forgotten task.

    asyncio's own handler only writes to stderr. `context` is that of
    `loop.call_exception_handler`.
    """
    about = ", ".join(f"{key}={context[key]!r}" for key in _CULPRITS if key in context)
    _LOGGER.error(
        "%s (%s)",
        context.get("message", "a callback failed"),
        about,
        exc_info=context.get("exception"),
    )


async def end_tasks() -> None:
    """Cancel all other tasks of this loop; tasks that do not end in time are left behind.

    They are usually tasks of user code. Closing a loop would wait for its tasks without a limit.
    """
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        _, refusing = await asyncio.wait(tasks, timeout=_CANCEL_TIMEOUT_S)
        for task in refusing:
            _LOGGER.warning(
                "a task does not end when it is cancelled, and is left behind: %r", task
            )
            asyncio._unregister_task(task)  # documented for other ways to run tasks


async def or_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work` and return True; if `stop` is set first, cancel it and return False."""
    working = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not working.done():
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working
        return False
    await working
    return True


async def waited(event: asyncio.Event, seconds: float) -> bool:
    """Wait for `event` for at most `seconds`; return whether it is set."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()


async def ending_alone(coroutine: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """Return the result of a coroutine, or the exception that would also end the event loop."""
    try:
        return await coroutine, None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error


def result_of(ended: concurrent.futures.Future[tuple[Any, BaseException | None]]) -> Any:
    """Wait for an `ending_alone`; return the coroutine's result, or raise its exception."""
    left_by = None
    try:
        result, left_by = ended.result()
        if left_by is not None:
            raise left_by
        return result
    finally:
        del ended, left_by  # an error's traceback leads here: only the gc could free them


class LoopThread:
    """An event loop on its own thread, in a copy of the caller's context."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=loop_factory())
        self._loop: concurrent.futures.Future[asyncio.AbstractEventLoop]
        self._loop = concurrent.futures.Future()
        self._end = asyncio.Event()
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name="pipeline-loop", daemon=True
        )
        self._thread.start()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop once it runs."""
        return self._loop.result()

    def run(self, work: Any) -> Any:
        """Return the result of a coroutine, which runs in the thread's loop."""
        return result_of(asyncio.run_coroutine_threadsafe(ending_alone(work), self.loop))

    def close(self) -> None:
        """End the loop and the thread."""
        self.loop.call_soon_threadsafe(self._end.set)
        self._thread.join(_JOIN_TIMEOUT_S)

    def _run(self) -> None:
        with self._runner as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self._loop.set_result(asyncio.get_running_loop())
        await self._end.wait()
        await end_tasks()
