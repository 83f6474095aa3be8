"""Clocks of two machines: `time.monotonic` starts at another time on each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from pipeline.workers.process.wire import Jobs, WireItem, WorkerReport

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return an id of this machine since its start; "": unknown."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class ServerClock:
    """The server's clock, as an actor knows it.

    On one machine both clocks are the same. Otherwise each message shows by how much this clock is
    ahead, plus the time of its transport; the least of these is the best estimate.
    """

    def __init__(self, is_same: bool, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._is_same = is_same
        self._ahead_ns: int | None = 0 if is_same else None

    def heard(self, sent_ns: int) -> None:
        """Note when, on the server's clock, a message was sent that arrives now."""
        if not self._is_same:
            ahead = self._clock_ns() - sent_ns
            self._ahead_ns = ahead if self._ahead_ns is None else min(ahead, self._ahead_ns)

    def to_here(self, work: Jobs) -> None:
        """Convert the deadlines of a message to this clock."""
        ahead_ns = self._ahead_ns or 0
        if ahead_ns:
            for item in items_of(work):
                if item.deadline is not None:
                    item.deadline += ahead_ns / 1e9

    def to_server(self, report: WorkerReport) -> None:
        """Convert the times of a report to the server's clock."""
        ahead_ns = self._ahead_ns or 0
        if not ahead_ns:
            return
        for result in report.results:
            result.start_ns -= ahead_ns
            result.preprocess_end_ns -= ahead_ns
            result.process_end_ns -= ahead_ns
            result.end_ns -= ahead_ns
            result.execution_ends_ns = [at - ahead_ns for at in result.execution_ends_ns]
        for parts in report.parts:
            parts.start_ns -= ahead_ns
            parts.preprocess_end_ns -= ahead_ns
            step = parts.step
            if step is not None:
                step.process_end_ns -= ahead_ns
                step.end_ns -= ahead_ns
                step.execution_ends_ns = [at - ahead_ns for at in step.execution_ends_ns]


def items_of(work: Jobs) -> Iterable[WireItem]:
    """Yield all requests of a message."""
    for job in work.jobs:
        yield from job.items
    for piece in work.slices:
        for _, item in piece.joining:
            yield item
