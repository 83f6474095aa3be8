"""Processes of this machine, read from Linux, and the processes that user code starts.

Such processes handle signals themselves, and end with this process.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | None

PATIENCE_S = 5.0
"""Time for children to end after SIGTERM, before SIGKILL."""

_FINALIZERS_S = 2.0  # limit for multiprocessing's functions at exit
_PR_SET_PDEATHSIG = 1
# Fields of /proc/<pid>/stat after the name.
_STATE, _PARENT, _SESSION, _CPU_TICKS = 0, 1, 3, slice(11, 15)
_TRACKER = b"multiprocessing.resource_tracker"
_MULTIPROCESSING = "multiprocessing.util"


def default_handlers() -> dict[int, Handler]:
    """Return Python's default handlers of SIGTERM and SIGINT."""
    return {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}


def handlers_now(numbers: Iterable[int]) -> dict[int, Handler]:
    """Return the handlers of these signals."""
    return {number: signal.getsignal(number) for number in numbers}


class _Inheritance:
    """Signal handlers across a fork: a child gets the handlers from before the library's.

    Otherwise a child would inherit the library's handlers, which do nothing, and the descriptor by
    which a signal wakes the event loop: this process would react to the child's SIGTERM, and the
    child would continue.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, tuple[Handler, Handler]] = {}  # (the library's, the child's)
        self._is_leashed = False
        self._is_registered = False
        self._libc = ctypes.CDLL(None)
        self._thread = threading.local()

    def set(self, before: Mapping[int, Handler], is_leashed: bool) -> None:
        ours = handlers_now(before)
        self._handlers = {number: (ours[number], before[number]) for number in before}
        self._is_leashed = is_leashed
        if not self._is_registered:
            self._is_registered = True
            os.register_at_fork(
                before=self._before,
                after_in_parent=self._after_in_parent,
                after_in_child=self._after_in_child,
            )

    def _before(self) -> None:
        """Block signals until a child has its own handlers."""
        is_main = threading.current_thread() is threading.main_thread()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._handlers)
        self._thread.state = is_main, mask

    def _after_in_parent(self) -> None:
        _, mask = self._thread.state
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _after_in_child(self) -> None:
        was_main, mask = self._thread.state
        if self._handlers:
            signal.set_wakeup_fd(-1)
        for number, (ours, before) in self._handlers.items():
            if signal.getsignal(number) is ours:  # otherwise user code has set a handler
                signal.signal(number, signal.SIG_DFL if before is None else before)
        if self._is_leashed and was_main:  # the kernel sends it when the forking thread ends
            self._libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))
        self._handlers, self._is_leashed = {}, False
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


_INHERITANCE: list[_Inheritance] = []  # one, made by the first call: an import opens nothing


def keep_signals_from_children(before: Mapping[int, Handler], is_leashed: bool = False) -> None:
    """Give processes that this process forks from now on the signal handlers `before`.

    Called when the library's handlers are set.

    Args:
        before: the child's handlers by signal.
        is_leashed: whether children of the main thread get SIGTERM when that thread ends, also if
            this process is killed.
    """
    if not _INHERITANCE:
        _INHERITANCE.append(_Inheritance())
    _INHERITANCE[0].set(before, is_leashed)


class StartedChildren:
    """The descendants of this process that were started after this object was made.

    Processes with their own session are meant to outlive this one and are left out.
    """

    def __init__(self) -> None:
        self._before = set(_family(os.getpid(), frozenset(), only_children=True))
        self._finalizers = set(_finalizers())

    def end(self, patience_s: float = PATIENCE_S, besides: Iterable[int] = ()) -> None:
        """End them: with multiprocessing's functions, then SIGTERM, then SIGKILL.

        It does not reap them, because the code that started them may wait for them.

        Args:
            patience_s: time after SIGTERM.
            besides: children to leave alone, with their descendants.
        """
        self._finalize()
        spared = self._before.union(besides)
        for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, PATIENCE_S)):
            lives = _opened(_family(os.getpid(), spared))
            try:
                for life in lives:
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(life, number)
                wait_for_end(lives, wait_s)
            finally:
                for life in lives:
                    os.close(life)

    def _finalize(self) -> None:
        """End pools and managers: a pool starts a new process for each ended one.

        On a thread: a pool may wait forever for a lock of a killed process.
        """
        ends = [end for key, end in _finalizers().items() if key not in self._finalizers]
        if not ends:
            return
        thread = threading.Thread(target=_call_all, args=(ends,), name="end-children", daemon=True)
        thread.start()
        thread.join(_FINALIZERS_S)
        if thread.is_alive():
            atexit.unregister(
                sys.modules[_MULTIPROCESSING]._exit_function
            )  # it would wait for them again


def _finalizers() -> dict[Any, Callable[[], object]]:
    """Return multiprocessing's exit functions for objects of this process."""
    if _MULTIPROCESSING not in sys.modules:
        return {}
    registry: dict[Any, Any] = dict(sys.modules[_MULTIPROCESSING]._finalizer_registry)
    return {key: registry[key] for key in sorted(k for k in registry if k[0] is not None)[::-1]}


def _call_all(ends: Iterable[Callable[[], object]]) -> None:
    for end in ends:
        with contextlib.suppress(Exception):
            end()


def _family(pid: int, spared: Iterable[int], only_children: bool = False) -> list[int]:
    """Return the descendants of a process that are in its session, parents first.

    The resource tracker of multiprocessing is left out: it cleans up and ends by itself.
    """
    session = os.getsid(pid)
    children: dict[int, list[int]] = {}
    for number, fields in _stats():
        if fields[_STATE] not in "ZX" and int(fields[_SESSION]) == session:
            children.setdefault(int(fields[_PARENT]), []).append(number)
    family, spared = [pid], {*spared}
    for parent in family:
        family += [child for child in children.pop(parent, ()) if child not in spared]
        if only_children:
            break
    return [child for child in family[1:] if not _is_tracker(child)]


def _stats() -> Iterator[tuple[int, list[str]]]:
    """Yield each process with its fields after the name; nothing without /proc."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            text = path.read_text(errors="replace")
            yield int(path.parent.name), text.rpartition(")")[2].split()


def _is_tracker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return _TRACKER in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _opened(pids: Iterable[int]) -> list[int]:
    lives = []
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended, or no descriptor is left
            lives.append(os.pidfd_open(pid))
    return lives


def wait_for_end(lives: Iterable[int], timeout_s: float) -> None:
    """Wait until these processes have ended, at most for the time."""
    poll, waiting = select.poll(), set(lives)
    for life in waiting:
        poll.register(life, select.POLLIN)
    ends = time.monotonic() + timeout_s
    while waiting and (left_s := ends - time.monotonic()) > 0:
        for life, _ in poll.poll(left_s * 1000):
            poll.unregister(life)
            waiting.discard(life)


_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTEN = "0A"


def is_shared_with_strangers(port: int, session: int) -> bool:
    """Return whether processes outside of a session also listen on a port."""
    return not _listening(port) <= _sockets_of(session)


def _listening(port: int) -> set[str]:
    """Return the inodes of the sockets that listen on a port."""
    pids = set()
    for table in _TABLES:
        with contextlib.suppress(OSError):  # a system without IPv6
            for fields in map(str.split, Path(table).read_text().splitlines()[1:]):
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    pids.add(fields[9])
    return pids


def _sockets_of(session: int) -> set[str]:
    """Return the inodes of all sockets of a session's processes."""
    members = (pid for pid, fields in _stats() if int(fields[_SESSION]) == session)
    return {inode for pid in members for inode in _sockets_in(pid)}


def _sockets_in(pid: int) -> Iterator[str]:
    folder = Path(f"/proc/{pid}/fd")
    with contextlib.suppress(OSError):  # it has ended, or is another user's
        for number in os.listdir(folder):
            with contextlib.suppress(OSError):
                kind, _, inode = os.readlink(folder / number).partition(":")
                if kind == "socket":
                    yield inode.strip("[]")


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Family:
    """CPU time (s) and memory (MiB) of some processes.

    Shared memory is divided among its processes. `each_mb` is the mean of all but the first; 0 if
    there is only one.
    """

    cpu_s: float
    memory_mb: float
    each_mb: float


def family_of(root: int) -> Family:
    """Return the usage of the process `root` and its descendants. Raises OSError: it has ended."""
    stats = dict(_stats())
    if root not in stats:
        raise ProcessLookupError(f"process {root} is gone")
    pids = [root]
    for pid in pids:  # grows during the loop
        pids += [child for child, fields in stats.items() if int(fields[_PARENT]) == pid]
    ticks = sum(int(field) for pid in pids for field in stats[pid][_CPU_TICKS])
    sizes = [_memory_bytes(pid) / _MIB for pid in pids]
    return Family(ticks / _TICKS_PER_S, sum(sizes), sum(sizes[1:]) / (len(sizes) - 1 or 1))


def _memory_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
