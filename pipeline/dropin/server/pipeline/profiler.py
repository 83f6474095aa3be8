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
    """Records when something began and ended, as lines that `Analyst` reads. Thread-safe.

        profiler = TimeProfiler()
        profiler.enable(True)
        profiler.record("prep#[bow|0]_0")  # begins
        profiler.record("prep#[bow|0]_1")  # ends
        profiler.print_profile()

    It records nothing until it is enabled.

    Args:
        clock_ns: returns the nanoseconds since the epoch.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock_ns = clock_ns
        self._is_enabled = False
        self._lock = threading.Lock()
        self._open: dict[str, str] = {}  # begun and not ended, by name
        self._pairs: list[str] = []

    def enable(self, enable: bool) -> None:
        self._is_enabled = enable

    def record(self, name_with_tag: str) -> None:
        """Record the event `<name>_<tag>`; the first of a name is its begin, the second its end."""
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
        """Return a line of what ended since the last line; None if not enabled."""
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


UnsafeTimeProfiler = TimeProfiler  # the predecessor's has no lock

PerformanceTracer: Any = stub(
    "PerformanceTracer",
    __name__,
    "the server makes its own: `dag.tracer.interval_s` has it write pipeline.tracer",
)
