"""Processes that user code starts: signals to them are theirs, and they end when this one does."""

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
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | None

PATIENCE_S = 5.0
"""Time that children get to end after SIGTERM, before SIGKILL."""

_FINALIZERS_S = 2.0  # what multiprocessing gets to do what it does at exit
_PR_SET_PDEATHSIG = 1
_TRACKER = b"multiprocessing.resource_tracker"
_MULTIPROCESSING = "multiprocessing.util"


def default_handlers() -> dict[int, Handler]:
    """Return how Python handles SIGTERM and SIGINT where nobody has set a handler."""
    return {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}


def handlers_now(numbers: Iterable[int]) -> dict[int, Handler]:
    """Return the handlers of these signals."""
    return {number: signal.getsignal(number) for number in numbers}


class _Inheritance:
    """Handlers over a fork: a child is given those that were there before ours.

    A child would inherit ours, which do nothing, and the file by which a signal wakes our event
    loop: its SIGTERM would be read here as our own, and it would go on.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, tuple[Handler, Handler]] = {}  # ours, and the child's
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
        """Have no signal come to a child that still has our handlers."""
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
            if signal.getsignal(number) is ours:  # else user code has set one of its own
                signal.signal(number, signal.SIG_DFL if before is None else before)
        if self._is_leashed and was_main:  # the signal comes when the thread that forked ends
            self._libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))
        self._handlers, self._is_leashed = {}, False
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


_INHERITANCE: list[_Inheritance] = []  # one, from the first call on: an import opens nothing


def keep_signals_from_children(before: Mapping[int, Handler], is_leashed: bool = False) -> None:
    """Have what this process forks from now on handle signals as `before`, and not as we do.

    Called when our handlers are set.

    Args:
        before: by signal, the handler of the child.
        is_leashed: what the main thread forks gets SIGTERM when that thread ends, also if this
            process is killed.
    """
    if not _INHERITANCE:
        _INHERITANCE.append(_Inheritance())
    _INHERITANCE[0].set(before, is_leashed)


class ChildrenSince:
    """The children of this process that were started since this was made, and theirs in turn.

    Those that began a session of their own are meant to outlive it, and are not among them.
    """

    def __init__(self) -> None:
        self._before = set(_family(os.getpid(), frozenset(), only_children=True))
        self._finalizers = set(_finalizers())

    def end(self, patience_s: float = PATIENCE_S, besides: Iterable[int] = ()) -> None:
        """End them: by what multiprocessing does at exit, by SIGTERM, and by SIGKILL.

        They are not reaped: whoever has started them may wait for them.

        Args:
            patience_s: what they get after SIGTERM.
            besides: children to leave alone, with theirs.
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
        """Have pools and managers end: a pool starts a new process for each that is ended.

        In a thread: a pool waits without end for a lock that a process had that was killed.
        """
        ends = [end for key, end in _finalizers().items() if key not in self._finalizers]
        if not ends:
            return
        thread = threading.Thread(target=_call_all, args=(ends,), name="end-children", daemon=True)
        thread.start()
        thread.join(_FINALIZERS_S)
        if thread.is_alive():
            atexit.unregister(sys.modules[_MULTIPROCESSING]._exit_function)  # it would wait, too


def _finalizers() -> dict[Any, Callable[[], object]]:
    """Return what multiprocessing is to call at exit for what was made in this process."""
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

    The resource tracker of multiprocessing is left out: it ends by itself and cleans up then.
    """
    session = os.getsid(pid)
    children: dict[int, list[int]] = {}
    for entry in _processes():
        with contextlib.suppress(OSError):  # it has ended
            stat = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            if stat[0] not in b"ZX" and int(stat[3]) == session:
                children.setdefault(int(stat[1]), []).append(int(entry.name))
    found, spared = [pid], {*spared}
    for parent in found:
        found += [child for child in children.pop(parent, ()) if child not in spared]
        if only_children:
            break
    return [child for child in found[1:] if not _is_tracker(child)]


def _processes() -> list[Path]:
    """Return the folders of all processes; none where the system has no /proc."""
    with contextlib.suppress(OSError):
        return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return []


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
    """Wait until these processes have ended, or the time is over."""
    poll, waiting = select.poll(), set(lives)
    for life in waiting:
        poll.register(life, select.POLLIN)
    ends = time.monotonic() + timeout_s
    while waiting and (left_s := ends - time.monotonic()) > 0:
        for life, _ in poll.poll(left_s * 1000):
            poll.unregister(life)
            waiting.discard(life)
