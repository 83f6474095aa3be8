"""Rules for restarts of processes that end, and the record they need."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass

STOPPED_S = 1.0  # a process that was stopped (SIGSTOP) may take this long to be continued
KILLED_S = 5.0  # the system may take this long to end killed processes
_MIN_LOOP_ENDS = 3  # ends in a row without any progress that make a crash loop
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 10.0


def restart_pause_s(failures: int) -> float:
    """Return how long to wait before the next start, after so many failures in a row.

    After the first failure the start is immediate; then the pause doubles, from 0.1 s to 10 s.
    """
    if failures < 2:
        return 0.0
    return min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(failures - 2, 30))


def signal_name(number: int) -> str:
    """Return the name of a signal that ended a process."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(slots=True, eq=False)
class RestartSlot:
    """A worker's place, which is filled with one process after the other.

    `failures` counts the processes in a row that ended without progress; the attempts of one
    request count as one. `unprovoked` counts the latest of them that ended without running a job.
    There is one timer: of a process that will be started, killed, or found to be steady.
    """

    number: int
    failures: int = 0
    unprovoked: int = 0
    last_cause: str = ""
    timer: asyncio.TimerHandle | None = None

    @property
    def is_looping(self) -> bool:
        """Return whether it is in a crash loop, whatever the cause."""
        return self.failures >= _MIN_LOOP_ENDS

    @property
    def is_hopeless(self) -> bool:
        """Return whether it is in a crash loop that no job has caused."""
        return self.unprovoked >= _MIN_LOOP_ENDS

    @property
    def pause_s(self) -> float:
        """Return how long to wait before the next start; bad requests must not delay good ones."""
        return restart_pause_s(self.unprovoked)

    def ended(
        self, cause: str, got_somewhere: bool, is_blamed: bool = False, is_again: bool = False
    ) -> None:
        """Note that its process ended.

        `is_blamed`: it ended while it ran a job, or was killed because the job hung; `is_again`:
        the same job had ended a process before.
        """
        self.last_cause = cause
        self.failures = 1 if got_somewhere else self.failures + (not is_again)
        self.unprovoked = 0 if is_blamed else 1 if got_somewhere else self.unprovoked + 1

    def is_steady(self) -> None:
        """Note that its process has made progress, or stays up."""
        self.failures = self.unprovoked = 0

    def set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        """Replace the timer."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer

    def describe_restart(self) -> str:
        """Return a text about the restart: when, and how many there were."""
        if self.failures < 2:
            return "it is restarted"
        return f"it is restarted in {self.pause_s:.1f} s ({self.failures} times in a row)"
