"""Strands: threads that run only while the event loop waits for them, on its virtual clock.

User code that sleeps, hangs or crashes gives control back to the loop; so what runs when is up to
the loop's timers alone, and every run of a case is the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


class Ended(BaseException):
    """Raised in user code whose worker was killed."""


@dataclass(frozen=True)
class Wish:
    """What a strand gave control back for. kind: "sleep", "hang", "crash" or "done"."""

    kind: str
    seconds: float | None = None


class Strand:
    """One thread; runs one task after the other, a step at a time."""

    def __init__(self) -> None:
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._task: Callable[[], None] | None = None
        self._wish = Wish("done")
        self._is_killed = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="strand", daemon=True)
        self._thread.start()

    def begin(self, task: Callable[[], None]) -> None:
        """Have `task` run with the next steps."""
        self._task = task
        self._is_killed = False
        self.error = None

    def step(self) -> Wish:
        """Let it run until it wishes for something."""
        self._go.release()
        self._back.acquire()
        return self._wish

    def kill(self) -> None:
        """End its task at the place where it waits."""
        self._is_killed = True
        while self.step().kind != "done":
            pass

    def wait_for(self, wish: Wish) -> None:
        """Called by the strand itself."""
        self.end_if_killed()
        self._wish = wish
        self._back.release()
        self._go.acquire()
        self.end_if_killed()

    def end_if_killed(self) -> None:
        """Called by the strand itself. What catches this goes on in a process that is no more."""
        if self._is_killed:
            raise Ended

    def _run(self) -> None:
        _CURRENT.strand = self
        while True:
            self._go.acquire()
            task = self._task
            if task is None:
                return
            try:
                task()
            except BaseException as error:  # of the engine's own code: a finding
                self.error = error
            self._task = task = None  # which holds whatever it worked on
            self._wish = Wish("done")
            self._back.release()

    def close(self) -> None:
        self._task = None
        self._go.release()
        self._thread.join()


class _Current(threading.local):
    strand: Strand | None = None


_CURRENT = _Current()


class Strands:
    """Those that are free, so that cases need not start threads."""

    def __init__(self) -> None:
        self._free: list[Strand] = []

    def take(self) -> Strand:
        return self._free.pop() if self._free else Strand()

    def give_back(self, strand: Strand) -> None:
        self._free.append(strand)

    def close(self) -> None:
        while self._free:
            self._free.pop().close()


class StrandWorld:
    """`ops.World` for user code that runs in strands."""

    def sleep(self, seconds: float) -> None:
        if seconds:
            self._wait_for(Wish("sleep", seconds))
        elif _CURRENT.strand is not None:
            _CURRENT.strand.end_if_killed()

    def hang(self, seconds: float | None) -> None:
        self._wait_for(Wish("hang", seconds))

    def crash(self) -> None:
        self._wait_for(Wish("crash"))

    def _wait_for(self, wish: Wish) -> None:
        assert _CURRENT.strand is not None, "user code runs in strands only"
        _CURRENT.strand.wait_for(wish)
