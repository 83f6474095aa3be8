"""The event loop that a server runs on: uvloop where it can be installed, in a thread if asked."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from pipeline.system.daemon_threads import DaemonThreads

_LOGGER = logging.getLogger(__name__)

_THREADS = 32  # for what is asked to run beside a loop
_CANCEL_TIMEOUT_S = 5.0  # that a task may take to end when it is cancelled
_JOIN_TIMEOUT_S = 30.0
_CULPRITS = ("handle", "task", "future", "protocol")  # of a context, for its line in the log


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes new loops; none of their threads keeps the process alive."""
    try:
        import uvloop
    except ImportError:  # no wheel for this platform: asyncio's own loop serves as well
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
    """Log what a callback or a forgotten task raised: asyncio's own handler writes to stderr alone.

    `context` is what `loop.call_exception_handler` takes.
    """
    about = ", ".join(f"{key}={context[key]!r}" for key in _CULPRITS if key in context)
    _LOGGER.error(
        "%s (%s)",
        context.get("message", "a callback failed"),
        about,
        exc_info=context.get("exception"),
    )


async def end_tasks() -> None:
    """Cancel all other tasks of this loop; those that do not end in time are left behind.

    They are user code's as a rule. Who closes a loop waits for its tasks without a limit.
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
            asyncio._unregister_task(task)  # documented, for who runs tasks in another way


async def or_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do `work` and return True; or cancel it if `stop` is set first, and return False."""
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
    """Wait for `event`, but no longer than that; return whether it is set."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()


class LoopThread:
    """An event loop in a thread of its own, in a copy of its maker's context."""

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
        """Return the loop, as soon as it runs."""
        return self._loop.result()

    def run(self, work: Any) -> Any:
        """Return the result of a coroutine that runs in the thread's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

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
