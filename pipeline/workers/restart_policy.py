"""Rules of how often a process that ends is started again, and the record they work on."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass

STOPPED_S = 1.0  # a process that was stopped (SIGSTOP) may take so long to be continued
KILLED_S = 5.0  # the system may take so long to end processes that were killed
_MIN_LOOP_ENDS = 3  # ends in a row without any progress that make a crash loop
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 10.0


def restart_pause_s(failures: int) -> float:
    """Return how long to wait before the next start, after so many failures in a row.

    The first one is made good at once; then the pause doubles, from 0.1 s to 10 s.
    """
    if failures < 2:
        return 0.0
    return min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(failures - 2, 30))


def signal_name(number: int) -> str:
    """Return what a signal that ended a process is called."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(slots=True, eq=False)
class RestartSlot:
    """A worker's place, which is filled with one process after the other.

    `failures` counts the processes in a row that ended without having got anywhere, the attempts
    of one request as one; `unprovoked` those among the last of them that no job can be blamed for.
    There is one timer: of a process that is about to be started, killed, or found to be steady.
    """

    number: int
    failures: int = 0
    unprovoked: int = 0
    last_cause: str = ""
    timer: asyncio.TimerHandle | None = None

    @property
    def is_looping(self) -> bool:
        """Return whether it is in a crash loop, be it for what it was given to do."""
        return self.failures >= _MIN_LOOP_ENDS

    @property
    def is_hopeless(self) -> bool:
        """Return whether it is in a crash loop that no job can be blamed for."""
        return self.unprovoked >= _MIN_LOOP_ENDS

    @property
    def pause_s(self) -> float:
        """Return how long to wait before the next start; bad requests must not delay good ones."""
        return restart_pause_s(self.unprovoked)

    def ended(
        self, cause: str, got_somewhere: bool, is_blamed: bool = False, is_again: bool = False
    ) -> None:
        """Note that its process ended.

        `is_blamed`: in the midst of a job, or killed because that hung; `is_again`: which had cost
        a process before.
        """
        self.last_cause = cause
        self.failures = 1 if got_somewhere else self.failures + (not is_again)
        self.unprovoked = 0 if is_blamed else 1 if got_somewhere else self.unprovoked + 1

    def is_steady(self) -> None:
        """Take note that its process got somewhere, or stays up."""
        self.failures = self.unprovoked = 0

    def set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        """Put `timer` in the place of the one that is set."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer

    def describe_restart(self) -> str:
        """Return what follows, in words: it is started anew, when, and how often it was."""
        if self.failures < 2:
            return "it is started anew"
        return f"it is started anew in {self.pause_s:.1f} s ({self.failures} times in a row)"
