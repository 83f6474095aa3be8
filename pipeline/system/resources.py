"""Resources of this process: its memory, its threads, its open files."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from pipeline.errors import InitError

_MAPS_OF_A_PROCESS = 16
_NO_THREAD = "can't start new thread"


@contextlib.contextmanager
def exhaustion_named() -> Iterator[None]:
    """Convert errors of exhausted memory or threads to InitError."""
    try:
        yield
    except MemoryError as error:
        raise InitError(
            "the server ends: no memory is left for this process. Raise its limit "
            "(ulimit -v, the container's memory), or give it fewer workers or smaller models."
        ) from error
    except RuntimeError as error:
        if _NO_THREAD not in str(error):
            raise
        raise InitError(
            "the server ends: the system starts no more threads for this process. Raise "
            "its limits (ulimit -v, ulimit -u, the container's pids), or give it fewer workers."
        ) from error


def raise_file_limit() -> None:
    """Raise this process's limit of open files to its maximum, as Go does.

    Each connection needs one. Processes that it starts from now on inherit the limit.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # the system allows less
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def most_open_files() -> int:
    """Return this process's limit of open files."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def mappable_bytes() -> int:
    """Return the size of memory that each of many processes can map, in whole pages.

    It is the machine's memory, or less if the address space or the size of a file, which all of
    them share, is limited (`ulimit -v`, `ulimit -f`).
    """
    page = mmap.PAGESIZE
    memory = os.sysconf("SC_PHYS_PAGES") * page
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE):
        limit, _ = resource.getrlimit(kind)
        if limit != resource.RLIM_INFINITY:
            memory = min(memory, limit // _MAPS_OF_A_PROCESS)
    return max(memory // page, 1) * page


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h of glibc
_KEPT_BYTES = 32 << 20
_FROM_HEAP_BYTES = 32 << 20  # glibc's maximum
_TUNABLES = "GLIBC_TUNABLES"
_USERS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", _TUNABLES)
_HUGE_PAGES = "glibc.malloc.hugetlb=1"
_WHO_GETS_THEM = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_WHO_ASKS = "[madvise]"


def run_on_huge_pages() -> None:
    """Restart this program with glibc's large blocks on huge pages, unless they are already.

    For programs that load and unload large models: a session of onnxruntime frees its memory while
    all other Python code waits, which takes 5 to 25 ms for 100 MiB of small pages and 0.5 to 2 ms
    for huge ones; loading is also faster. glibc reads the setting when a process starts, hence the
    restart, which keeps the process id. Does nothing with another C library, if the kernel gives
    huge pages to no process or to all, or if the environment has the user's settings.
    """
    if os.environ.get(_TUNABLES) == _HUGE_PAGES:
        del os.environ[_TUNABLES]  # for this process, and its forks
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

    By default a freed megabyte goes back to the system at once, and the next request's megabyte
    costs 256 page faults: a quarter of the CPU time of a server that passes on megabytes. Each
    arena keeps as much, so there is one a core, instead of eight. Only for the library's own
    processes; forked ones inherit it. Does nothing with another C library, or if the environment
    has the user's settings.
    """
    if any(name in os.environ for name in _USERS):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _FROM_HEAP_BYTES)
        if "MALLOC_ARENA_MAX" not in os.environ:
            mallopt(_M_ARENA_MAX, max(2, os.cpu_count() or 0))
