"""Child and ZygoteLink: the parent's view of a child, and of a zygote with its control socket."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from pipeline.workers.restart_policy import signal_name
from pipeline.workers.zygote.main import MESSAGE_BYTES, Report, Request

_NATIVE_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT}

_decode = msgspec.msgpack.Decoder(Report).decode
_encode = msgspec.msgpack.Encoder().encode


def ending_of(status: int) -> str:
    """Return a process's wait status in words that follow its name."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended with exit code {code} (os._exit or sys.exit in user code)"
    if -code == signal.SIGKILL:
        return "was killed by SIGKILL (kill -9, or the system was out of memory)"
    cause = " (a native crash)" if -code in _NATIVE_CRASHES else ""
    return f"was killed by {signal_name(-code)}{cause}"


def reap(pid: int) -> None:
    """Take a zombie away; does nothing about a process that runs or is none of our children."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


class Child:
    """A worker process, seen from the parent; everything here happens on the loop.

    Attributes:
        number: as given to `Zygotes.start`.
        sock: the parent's end of the socket pair; non-blocking, the caller's to close.
        pid: None until the process is reported to run.
        state: the last that was reported.
        ending: how it ended, in words that follow the worker's name; empty before.
        life: its pidfd, while it is known to run.
    """

    def __init__(
        self,
        number: int,
        sock: socket.socket,
        on_change: Callable[[Child], None],
        ask_to_kill: Callable[[], None],
    ) -> None:
        self.number = number
        self.sock = sock
        self.pid: int | None = None
        self.state: Literal["starting", "running", "stopped", "ended"] = "starting"
        self.ending: str = ""
        self._on_change = on_change
        self._ask_to_kill: Callable[[], None] | None = ask_to_kill
        self.life: int | None = None

    def kill(self) -> None:
        """SIGKILL it, also if it is stopped; `on_change` tells when it has ended."""
        ask, self._ask_to_kill = self._ask_to_kill, None
        if ask is not None and self.state != "ended":
            ask()

    # For Zygotes -----------------------------------------------------------------------

    def begin(self, pid: int, life: int | None) -> None:
        """Take note that it runs, and take over the pidfd."""
        self.pid, self.life, self.state = pid, life, "running"

    def change(self, status: int) -> None:
        """Take note of a wait status: it was stopped, continued or has ended."""
        if os.WIFSTOPPED(status):
            self.state = "stopped"
        elif os.WIFCONTINUED(status):
            self.state = "running"
        else:
            self.end(ending_of(status))
            return
        self._on_change(self)

    def vanish(self, ending: str) -> None:
        """Take note that it has ended and its zygote cannot say how."""
        if self.pid is not None:
            reap(self.pid)  # orphans are ours if we are the first process of a container
        self.end(ending)

    def end(self, ending: str) -> None:
        """Take note that it has ended; only the first time counts."""
        if self.state == "ended":
            return
        self.state, self.ending = "ended", ending
        if self.life is not None:
            os.close(self.life)
            self.life = None
        self._on_change(self)


def is_at_work(pid: int | None) -> bool:
    """Return whether a process runs, would run, or waits for the kernel; not one that is stopped.

    Linux: state R or D in /proc/<pid>/stat, proc(5).
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] in (["R"], ["D"])


class ZygoteLink:
    """One zygote: requests go out, reports come in.

    `heard` counts the reports; `starting` and `killing` are the children that it is to report
    on, and `doubts` is the timer of whoever waits for that. One that is launched has until
    `starts_until`, of the monotonic clock, to be ready; one that was asked and is at work has until
    `busy_until` to say something. With `has_runtimes` it was to import those of the children.
    """

    def __init__(self, control: socket.socket) -> None:
        control.setblocking(False)
        self.control = control
        self.children: dict[int, Child] = {}
        self.clones: list[ZygoteLink] = []
        self.is_ready: bool = False
        self.has_runtimes: bool = False
        self.starts_until: float = 0.0
        self.busy_until: float = 0.0
        self.heard: int = 0
        self.starting: set[int] = set()
        self.killing: set[int] = set()
        self.is_pinged = False
        self.doubts: asyncio.TimerHandle | None = None
        self.pid: int | None = None
        self.life: int | None = None
        self.reap: Callable[[], object] = lambda: None
        self._backlog: deque[tuple[bytes, socket.socket | None]] = deque()

    def send(self, request: Request, end: socket.socket | None = None) -> None:
        """Send, or keep until there is room; `end` travels along and is closed here."""
        self._backlog.append((_encode(request), end))
        self.flush()

    def flush(self) -> None:
        """Send what found no room. A full socket holds requests that reports will answer, so
        flushing after reports is enough."""
        while self._backlog:
            data, end = self._backlog[0]
            try:
                socket.send_fds(self.control, [data], [end.fileno()] if end else [])
            except ConnectionError:
                pass  # it is dead, which the end of its reports is about to tell
            except OSError:
                return
            self._backlog.popleft()
            if end is not None:
                end.close()

    def reports(self, at_most: int) -> Iterator[tuple[Report, int | None]]:
        """Return what has come in, each with the pidfd that came along.

        Raises:
            EOFError: the zygote is dead and has nothing more to say.
        """
        flags = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
        for _ in range(at_most):
            if self.control.fileno() < 0:
                return
            try:
                data, fds, _, _ = socket.recv_fds(self.control, MESSAGE_BYTES, 1, flags)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # it died without reading all; what it had said before is still to come
            if not data:
                raise EOFError
            self.heard += 1
            yield _decode(data), fds[0] if fds else None

    def be_ready(self, pid: int, life: int | None) -> None:
        """Take note that it runs, and take over the pidfd."""
        self.is_ready = True
        if self.pid is None:  # a clone: those that the parent launched are known to it
            self.pid, self.life = pid, life
            self.reap = functools.partial(reap, pid)  # it is ours once it is an orphan
        elif life is not None:
            os.close(life)

    def change(self, serial: int, status: int) -> None:
        """Take note that a child was stopped, continued or has ended."""
        child = self.children[serial]
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            del self.children[serial]
            self.killing.discard(serial)
        child.change(status)

    def hang_up(self) -> None:
        """Ask for nothing more: the zygote kills its children, reports that and ends."""
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close what this process holds of it; idempotent."""
        self.control.close()
        if self.doubts is not None:
            self.doubts.cancel()
        if self.life is not None:
            os.close(self.life)
            self.life = None
        for _, end in self._backlog:
            if end is not None:
                end.close()
        self._backlog.clear()
