"""LoopInbox: messages from worker threads to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

_LOOK_S = 0.002


class LoopInbox:
    """Runs callbacks on the event loop that any thread may post.

    While a wake-up is on its way further messages join it, so that a busy server pays for one
    wake-up per loop iteration, not per message.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, after: Callable[[], None]) -> None:
        self._loop = loop
        self._after = after
        self._messages: deque[tuple[Callable[..., None], object, object]] = deque()
        self._is_scheduled = False
        self._is_looking = False  # polls without being woken

    def post(self, callback: Callable[..., None], first: object, second: object) -> None:
        """Have `callback(first, second)` called on the loop.

        Thread-safe; dropped when the loop is closed.
        """
        self._messages.append((callback, first, second))
        if not self._is_scheduled:
            self._is_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self.drain)
            except RuntimeError:  # the loop is closed: a stuck thread came back late
                self._messages.clear()

    def post_soon(self, callback: Callable[..., None], first: object, second: object) -> None:
        """Have `callback(first, second)` called on the loop, within a few milliseconds.

        For threads with many messages: a thread that wakes the loop hands it the interpreter at
        once, and waits until it is done; a loop that polls works while the thread's model runs.
        """
        self._messages.append((callback, first, second))
        if not (self._is_looking or self._is_scheduled):
            self._is_looking = True
            with contextlib.suppress(RuntimeError):  # as in `post`
                self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        """Poll for messages, until none have come for one period."""
        self._is_looking = False
        if self._messages:
            self._is_looking = True
            self._loop.call_later(_LOOK_S, self._look)
            if not self._is_scheduled:
                self.drain()

    def drain(self) -> None:
        """Call back for all messages that have come, on the loop."""
        # First reset the flag, then read: a message posted in between schedules another drain.
        self._is_scheduled = False
        messages = self._messages
        try:
            for _ in range(len(messages)):
                callback, first, second = messages.popleft()
                callback(first, second)
        finally:  # a callback that fails, which is a defect, does not stop the others
            if messages and not self._is_scheduled:
                self._is_scheduled = True
                self._loop.call_soon(self.drain)
            self._after()
