"""Settings of the C library's allocator: freed memory is kept, large blocks are on huge pages."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_KEPT_BYTES = 32 << 20
_FROM_HEAP_BYTES = 32 << 20  # the most that glibc allows
_TUNABLES = "GLIBC_TUNABLES"
_USERS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", _TUNABLES)
_HUGE_PAGES = "glibc.malloc.hugetlb=1"
_WHO_GETS_THEM = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_WHO_ASKS = "[madvise]"


def run_on_huge_pages() -> None:
    """Run this program anew with glibc's large blocks on huge pages, unless it does already.

    For programs from which large models come and go: a session of onnxruntime gives its memory
    back while all other Python code waits, which takes 5 to 25 ms for 100 MiB of small pages and
    0.5 to 2 ms for huge ones; loading is quicker, too. glibc reads the setting when a process
    starts, hence the second one, which keeps the number of the first. Does nothing where there is
    another C library, where nobody or everybody gets such pages, or if the environment has
    settings of the user's own.
    """
    if os.environ.get(_TUNABLES) == _HUGE_PAGES:
        del os.environ[_TUNABLES]  # it holds for this process, and those that are forked from it
        return
    if any(name in os.environ for name in _USERS) or not sys.executable:
        return
    with contextlib.suppress(OSError, ValueError):
        is_glibc = (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
        if is_glibc and _WHO_ASKS in _WHO_GETS_THEM.read_text():
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            command = [sys.executable, *sys.orig_argv[1:]]
            os.execve(sys.executable, command, {**os.environ, _TUNABLES: _HUGE_PAGES})


def tune_malloc() -> None:
    """Let glibc keep up to 32 MiB of freed memory instead of returning it piece by piece.

    By default a freed megabyte goes back to the system at once, and the next request's costs
    256 page faults: a quarter of the CPU time of a server that passes megabytes on. For processes
    that are ours alone; forked ones inherit it. Does nothing with another C library, or if the
    environment has settings of the user's own.
    """
    if any(name in os.environ for name in _USERS):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _FROM_HEAP_BYTES)
