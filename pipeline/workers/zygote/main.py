"""Main function of a zygote, which forks worker processes and reports how each one ends."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import select
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

import msgspec

from pipeline.system.processes import (
    StartedChildren,
    default_handlers,
    keep_signals_from_children,
)
from pipeline.workers.zygote.runtimes import fork_with

_LOGGER = logging.getLogger(__name__)

EntryPoint = Callable[[socket.socket, int], None]

MESSAGE_BYTES = 4096  # the longest message is a refusal, whose reason is cut to _REASON_CHARS
_REASON_CHARS = 500
_PATIENCE_S = 0.5  # for processes that a worker's Op has started, when the worker ends
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


class Start(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    """Fork a child that runs `entry_points[main]`; comes with the child's end of a socket pair."""

    child: int
    main: int
    number: int


class Kill(msgspec.Struct, frozen=True, array_like=True, tag="kill"):
    """SIGKILL a child; ignored if it has ended already."""

    child: int


class CloneZygote(msgspec.Struct, frozen=True, array_like=True, tag="clone"):
    """Fork another zygote, which imports `runtimes`; comes with the control socket that it is to
    serve."""

    runtimes: tuple[str, ...] = ()


class Ping(msgspec.Struct, frozen=True, array_like=True, tag="ping"):
    """Ask for a sign of life."""


class Pong(msgspec.Struct, frozen=True, array_like=True, tag="pong"):
    """The answer to a Ping."""


class ZygoteReady(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """A zygote's first message; comes with its pidfd, if one could be opened."""

    pid: int


class ChildStarted(msgspec.Struct, frozen=True, array_like=True, tag="started"):
    """A child runs; comes with its pidfd, if one could be opened."""

    child: int
    pid: int


class ForkRefused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """A child could not be forked."""

    child: int
    reason: str


class ChildChanged(msgspec.Struct, frozen=True, array_like=True, tag="changed"):
    """A child was stopped, continued or has ended; `status` is that of `os.waitpid`."""

    child: int
    status: int


class NotImported(msgspec.Struct, frozen=True, array_like=True, tag="not-imported"):
    """A clone that has imported runtimes cannot be forked: one without them replaces it."""

    runtimes: tuple[str, ...]
    reason: str

    def log(self) -> None:
        """Log the reason, in the server."""
        names = ", ".join(place.partition(":")[0] for place in self.runtimes)
        _LOGGER.warning("each worker process imports %s for itself: %s", names, self.reason)


Request = Start | Kill | CloneZygote | Ping
Report = ZygoteReady | ChildStarted | ForkRefused | ChildChanged | Pong | NotImported

_decode = msgspec.msgpack.Decoder(Request).decode
_encode = msgspec.msgpack.Encoder().encode


def signals_blocked() -> set[int]:
    """Block every signal of this thread, so that a new process gets none before it has handlers
    of its own; returns the mask to restore."""
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()))


def fork_quietly() -> int:
    """`os.fork`; in the child all signals are blocked.

    Raises:
        OSError: no more processes or memory.
    """
    mask = signals_blocked()
    pid = -1
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns if other threads exist, and those of native libraries count.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
    finally:
        if pid != 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


def flush_stdio() -> None:
    """Flush the standard streams, so that no other process prints their content again."""
    for stream in (sys.stdout, sys.stderr):
        # A stream may be None, closed, a user's class, or a pipe without a reader.
        with contextlib.suppress(Exception):
            stream.flush()


def serve(
    control: socket.socket,
    load: Callable[[], Sequence[EntryPoint]],
    parent_life: int,
    leave_parent: Callable[[], None] = lambda: None,
) -> NoReturn:
    """Be a zygote until the parent hangs up or dies; never returns.

    Args:
        control: our end of a SOCK_SEQPACKET pair.
        load: called in each child, returns the functions that children can run.
        parent_life: pidfd of the parent. The control socket alone would not show its death while
            another fork of the parent holds a copy of its end.
        leave_parent: closes descriptors that a fork has inherited and only the parent should have.
    """
    code = 1
    try:
        leave_parent()
        gc.freeze()  # otherwise the collector's marks would unshare every page in every child
        _Zygote(control, load, parent_life).run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


class _Zygote:
    """One process; after a `CloneZygote` there are two, which do not know each other."""

    def __init__(
        self, control: socket.socket, load: Callable[[], Sequence[EntryPoint]], parent_life: int
    ) -> None:
        self._control = control
        self._load = load
        self._parent_life = parent_life
        self._libc = ctypes.CDLL(None)
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._children: dict[int, int] = {}  # pid -> the parent's number of the child
        self._clones: set[int] = set()
        self._descendants = StartedChildren()
        self._control.setblocking(True)
        self._wake, self._wake_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)
        _reset_signals()
        signal.signal(signal.SIGCHLD, _ignore)
        self._poll = select.poll()
        for fd in (self._control.fileno(), self._wake, self._parent_life):
            self._poll.register(fd, select.POLLIN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        threading.main_thread().name = "MainThread"  # the parent may have forked in any thread
        self._name("zygote")
        # Orphans of its children are reaped here: PID 1 of a container may not do it.
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._report_with_pidfd(ZygoteReady(self._pid), self._pid)

    def run(self) -> None:
        while True:
            ready = {fd for fd, _ in self._poll.poll()}
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, MESSAGE_BYTES)
                while self._reap(os.WNOHANG | os.WUNTRACED | os.WCONTINUED):
                    pass
            if self._parent_life in ready:
                break
            if self._control.fileno() in ready and not self._obey():
                break
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        while self._children and self._reap(0):
            pass
        self._descendants.end(0.0, besides=self._clones)  # left by workers that were killed

    def _obey(self) -> bool:
        """Read one request and execute it; return False after the last one."""
        flags = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
        try:
            data, fds, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 1, flags)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        if not data:
            return False
        match _decode(data):
            case Start() as request:
                self._start(request, fds)
            case Kill(child):
                self._kill(child)
            case CloneZygote(runtimes):
                self._clone(fds, runtimes)
            case Ping():
                self._tell(Pong())
        return True

    # Children --------------------------------------------------------------------------

    def _start(self, request: Start, fds: list[int]) -> None:
        if not fds:  # the kernel drops it if the table of descriptors is full
            self._refuse(request, "no file descriptor is left (ulimit -n)")
            return
        try:
            pid = fork_quietly()
        except OSError as error:
            os.close(fds[0])
            self._refuse(request, str(error))
            return
        if pid == 0:
            self._be_child(request, fds[0])
        os.close(fds[0])
        self._children[pid] = request.child
        self._report_with_pidfd(ChildStarted(request.child, pid), pid)

    def _refuse(self, request: Start, reason: str) -> None:
        self._tell(ForkRefused(request.child, reason[:_REASON_CHARS]))

    def _be_child(self, request: Start, fd: int) -> NoReturn:
        code = 1
        try:
            # Die when the zygote does; it has a single thread, so that means the process.
            self._libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
            if os.getppid() != self._pid:
                os._exit(1)
            signal.set_wakeup_fd(-1)
            _reset_signals()
            keep_signals_from_children(default_handlers(), is_leashed=True)
            self._control.close()
            for ours in (self._wake, self._wake_end, self._parent_life):
                os.close(ours)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            self._name("worker")
            sock = socket.socket(fileno=fd)
            sock.setblocking(True)  # socket.setdefaulttimeout() of the user is not for this socket
            children = StartedChildren()
            try:
                self._load()[request.main](sock, request.number)
            finally:
                children.end(_PATIENCE_S)
            code = 0
        except SystemExit as end:
            code = _exit_code(end)
        except BaseException:
            traceback.print_exc()
        finally:
            flush_stdio()
            os._exit(code)

    def _kill(self, child: int) -> None:
        for pid, number in self._children.items():
            if number == child:
                os.kill(pid, signal.SIGKILL)  # not reaped yet: the pid is still this child's

    def _reap(self, options: int) -> bool:
        """Read one change of one child; return False if there is none."""
        try:
            pid, status = os.waitpid(-1, options)
        except ChildProcessError:
            return False
        child = self._children.get(pid)
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            self._children.pop(pid, None)
            self._clones.discard(pid)
        if child is not None:  # otherwise it is a cloned zygote, which the parent handles
            self._tell(ChildChanged(child, status))
        return pid != 0

    # Itself ----------------------------------------------------------------------------

    def _clone(self, fds: list[int], runtimes: tuple[str, ...]) -> None:
        # If anything fails here, the parent sees the end of the clone's control socket.
        if not fds:
            return
        with socket.socket(fileno=fds[0]) as control:
            reason = self._fork_clone(control, runtimes)
            if reason and os.getpid() == self._pid:
                report = NotImported(runtimes, reason[:_REASON_CHARS])
                with contextlib.suppress(OSError):
                    control.send(_encode(report))
                self._fork_clone(control, ())

    def _fork_clone(self, control: socket.socket, runtimes: tuple[str, ...]) -> str:
        """Fork a zygote. Return why a clone with imported runtimes cannot fork children.

        Such a clone has ended. `""`: it can.
        """
        try:
            pid, reason = fork_with(runtimes, fork_quietly)
        except OSError:
            return ""
        if pid:
            if not reason:
                self._clones.add(pid)
            return reason
        self._control.close()
        os.close(self._wake)
        os.close(self._wake_end)
        self._control = control.dup()
        self._begin()
        return ""

    def _tell(self, report: Report, fds: Sequence[int] = ()) -> None:
        # If the parent is dead the report is dropped, and poll() shows the parent's end.
        with contextlib.suppress(ConnectionError):
            socket.send_fds(self._control, [_encode(report)], fds)

    def _report_with_pidfd(self, report: Report, pid: int) -> None:
        try:
            life = os.pidfd_open(pid)
        except OSError:
            self._tell(report)
            return
        try:
            self._tell(report, [life])
        finally:
            os.close(life)

    def _name(self, name: str) -> None:
        """Set the name in `ps -o comm`, `top` and the kernel's log: 15 bytes."""
        self._libc.prctl(_PR_SET_NAME, name.encode())


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing: a signal handler."""


def _reset_signals() -> None:
    """Remove the signal handlers of the process that forked us.

    Ctrl-C and service managers signal the whole group, while the parent needs its workers until it
    has drained. SIG_IGN would be inherited by programs that users' code executes; a handler is not.
    """
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ignore)
        signal.siginterrupt(number, False)


def _exit_code(end: SystemExit) -> int:
    """Return the exit code that the interpreter uses for a SystemExit."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    with contextlib.suppress(Exception):
        sys.stderr.write(f"{end.code}\n")
    return 1
