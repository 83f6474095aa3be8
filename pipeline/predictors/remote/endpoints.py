"""Choice among several servers for the next call: round robin over those that are well."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 3.0
MAX_TIMEOUTS = 3
"""So many calls in a row without any answer, and a server counts as failed."""


@dataclass(slots=True)
class _Health:
    """The health of one server. It is down while `failures` is not 0."""

    failures: int = 0
    timeouts: int = 0
    due_at: float = 0.0


class EndpointPolicy:
    """A policy: nothing is sent, nothing waits, and the caller sees to it that one at a time
    asks. Servers are known by their index.

    Args:
        count: of servers; at least 1.
        clock: seconds, monotonic.
    """

    def __init__(self, count: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._servers = [_Health() for _ in range(count)]
        self._clock = clock
        self._next = 0
        self.count_down: int = 0
        self.all_are_well: bool = True
        """No server is down, and none has let a call run out of time since it answered one."""

    def pick(self, without: Collection[int] = ()) -> int | None:
        """Return the server whose turn it is; of those that are down only when no other is left.

        So a request costs nothing extra while a server is down, and when all are, each is still
        tried: an error comes at once, and the first server that is back is found by the next call.

        Args:
            without: servers that this request has no use for; None if these are all.
        """
        count = len(self._servers)
        if count == 1:
            return None if 0 in without else 0
        down = None
        for step in range(count):
            index = (self._next + step) % count
            if index in without:
                continue
            if not self._servers[index].failures:
                self._next = index + 1
                return index
            down = index if down is None else down
        if down is not None:
            self._next = down + 1
        return down

    def due(self) -> list[int]:
        """Return the servers that are down and whose back-off is over: they may be back."""
        if not 0 < self.count_down < len(self._servers):
            return []  # when all are down every request is a test
        now = self._clock()
        return [
            index
            for index, server in enumerate(self._servers)
            if server.failures and server.due_at <= now
        ]

    def failed(self, index: int) -> bool:
        """Leave a server out for a while, longer each time; whether it was well until now.

        Failures during the back-off change nothing: all calls of a connection fail when it breaks.
        """
        server = self._servers[index]
        now = self._clock()
        if server.failures and now < server.due_at:
            return False
        self.all_are_well = False
        server.timeouts = 0
        server.failures += 1
        wait_s = min(FIRST_BACKOFF_S * 2.0 ** min(server.failures - 1, 30), MAX_BACKOFF_S)
        server.due_at = now + wait_s
        if server.failures > 1:
            return False
        self.count_down += 1
        return True

    def timed_out(self, index: int) -> bool:
        """Note a call without an answer in time; several in a row mean that the server hangs.

        Whether this made a server fail that was well until now.
        """
        server = self._servers[index]
        server.timeouts += 1
        self.all_are_well = False
        return server.timeouts >= MAX_TIMEOUTS and self.failed(index)

    def answered(self, index: int) -> bool:
        """Note that a server is well; return whether it was down until now."""
        server = self._servers[index]
        was_down = server.failures > 0
        server.timeouts = server.failures = 0
        self.count_down -= was_down
        self.all_are_well = not any(one.failures or one.timeouts for one in self._servers)
        return was_down
