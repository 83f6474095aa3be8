"""Strands: threads that run only while the event loop waits for them, on its virtual clock.

User code that sleeps, hangs or crashes gives control back to the loop. So the loop's timers alone
decide the order of events, and every run of a case is the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


class Ended(BaseException):
    """Raised in user code whose worker was killed."""


@dataclass(frozen=True)
class Wish:
    """The reason why a strand gave control back. kind: "sleep", "hang", "crash" or "done"."""

    kind: str
    seconds: float | None = None


class Strand:
    """A thread that runs one task after the other, a step at a time."""

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
        """Run `task` with the next steps."""
        self._task = task
        self._is_killed = False
        self.error = None

    def step(self) -> Wish:
        """Let the strand run until its next wish."""
        self._go.release()
        self._back.acquire()
        return self._wish

    def kill(self) -> None:
        """End its task where it waits."""
        self._is_killed = True
        while self.step().kind != "done":
            pass

    def wait_for(self, wish: Wish) -> None:
        """Give control back; the strand itself calls this."""
        self.end_if_killed()
        self._wish = wish
        self._back.release()
        self._go.acquire()
        self.end_if_killed()

    def end_if_killed(self) -> None:
        """Raise Ended in a strand that was killed; the strand itself calls this.

        Code that catches it runs in a process that has ended.
        """
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
            self._task = task = None  # a task refers to its job
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
    """The free strands, so that cases need not start threads."""

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
