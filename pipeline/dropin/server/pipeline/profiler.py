"""`paddle_serving_server.pipeline.profiler`: stop watches that write PROFILE lines."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from pipeline.dropin.stubs import stub

__all__ = ["PerformanceTracer", "TimeProfiler", "UnsafeTimeProfiler"]


class TimeProfiler:
    """Takes down when something began and ended, as lines that `Analyst` reads; for many threads.

        profiler = TimeProfiler()
        profiler.enable(True)
        profiler.record("prep#[bow|0]_0")  # begins
        profiler.record("prep#[bow|0]_1")  # ends
        profiler.print_profile()

    Until it is enabled it does nothing.

    Args:
        clock_ns: time since the epoch.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock_ns = clock_ns
        self._is_enabled = False
        self._lock = threading.Lock()
        self._open: dict[str, str] = {}  # by name: what has begun and not ended
        self._pairs: list[str] = []

    def enable(self, enable: bool) -> None:
        self._is_enabled = enable

    def record(self, name_with_tag: str) -> None:
        """Note the instant `<name>_<tag>`; two of one name are a begin and an end."""
        if not self._is_enabled:
            return
        event = f"{name_with_tag}:{self._clock_ns() // 1000} "
        name = name_with_tag.rpartition("_")[0]
        with self._lock:
            begin = self._open.pop(name, None)
            if begin is None:
                self._open[name] = event
            else:
                self._pairs += (begin, event)

    def gen_profile_str(self) -> str | None:
        """Return a line of everything that has ended since the last one; None if it is not
        enabled."""
        if not self._is_enabled:
            return None
        with self._lock:
            pairs, self._pairs = self._pairs, []
        return f"\nPROFILE\tpid:{os.getpid()}\t{''.join(pairs)}\n"

    def print_profile(self) -> None:
        """Write that line to stderr."""
        line = self.gen_profile_str()
        if line is not None:
            sys.stderr.write(line)


UnsafeTimeProfiler = TimeProfiler  # which spared itself the lock

PerformanceTracer: Any = stub(
    "PerformanceTracer",
    __name__,
    "the server makes its own: `dag.tracer.interval_s` has it write pipeline.tracer",
)
