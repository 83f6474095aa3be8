"""Child and ZygoteLink: a child, and a zygote with its control socket, as the parent sees them."""

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
    """Return a process's wait status as a text that follows the process's name."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended with exit code {code} (os._exit or sys.exit in user code)"
    if -code == signal.SIGKILL:
        return "was killed by SIGKILL (kill -9, or the system was out of memory)"
    cause = " (a native crash)" if -code in _NATIVE_CRASHES else ""
    return f"was killed by {signal_name(-code)}{cause}"


def reap(pid: int) -> None:
    """Reap a zombie; does nothing for a running process, or one that is not our child."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


class Child:
    """A worker process, seen from the parent; everything here happens on the loop.

    Attributes:
        number: as given to `Zygotes.start`.
        sock: the parent's end of the socket pair; non-blocking, closed by the caller.
        pid: None until the process is reported to run.
        state: the last reported state.
        ending: how it ended, as a text that follows the worker's name; empty before.
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
        """SIGKILL it, also if it is stopped; `on_change` reports its end."""
        ask, self._ask_to_kill = self._ask_to_kill, None
        if ask is not None and self.state != "ended":
            ask()

    # For Zygotes -----------------------------------------------------------------------

    def begin(self, pid: int, life: int | None) -> None:
        """Note that it runs, and take over the pidfd."""
        self.pid, self.life, self.state = pid, life, "running"

    def change(self, status: int) -> None:
        """Apply a wait status: it was stopped, continued or has ended."""
        if os.WIFSTOPPED(status):
            self.state = "stopped"
        elif os.WIFCONTINUED(status):
            self.state = "running"
        else:
            self.end(ending_of(status))
            return
        self._on_change(self)

    def vanish(self, ending: str) -> None:
        """Note that it has ended, and that its zygote cannot report how."""
        if self.pid is not None:
            reap(self.pid)  # in a container's first process orphans are our children
        self.end(ending)

    def end(self, ending: str) -> None:
        """Note that it has ended; only the first call counts."""
        if self.state == "ended":
            return
        self.state, self.ending = "ended", ending
        if self.life is not None:
            os.close(self.life)
            self.life = None
        self._on_change(self)


def is_at_work(pid: int | None) -> bool:
    """Return whether a process runs, could run, or waits for the kernel; a stopped one does not.

    Linux: state R or D in /proc/<pid>/stat, proc(5).
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] in (["R"], ["D"])


class ZygoteLink:
    """One zygote: sends requests, receives reports.

    Attributes:
        heard: number of reports.
        starting: children whose start it has to report.
        killing: children whose end it has to report.
        doubts: the timer for these reports.
        starts_until: time on the monotonic clock by which it has to be ready.
        busy_until: time by which a pinged zygote that is running has to reply.
        has_runtimes: whether it has imported the children's runtimes.
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
        """Send, or keep until there is room; `end` is sent along and closed here."""
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
                pass  # it is dead, as the end of its reports will show
            except OSError:
                return
            self._backlog.popleft()
            if end is not None:
                end.close()

    def reports(self, at_most: int) -> Iterator[tuple[Report, int | None]]:
        """Return the received reports, each with the pidfd that came with it.

        Raises:
            EOFError: the zygote is dead and all reports were read.
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
                continue  # it died without reading all; its earlier reports still come
            if not data:
                raise EOFError
            self.heard += 1
            yield _decode(data), fds[0] if fds else None

    def be_ready(self, pid: int, life: int | None) -> None:
        """Note that it runs, and take over the pidfd."""
        self.is_ready = True
        if self.pid is None:  # a clone: the parent knows the zygotes that it has launched
            self.pid, self.life = pid, life
            self.reap = functools.partial(reap, pid)  # it is our child once it is an orphan
        elif life is not None:
            os.close(life)

    def change(self, serial: int, status: int) -> None:
        """Apply a change of a child: it was stopped, continued or has ended."""
        child = self.children[serial]
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            del self.children[serial]
            self.killing.discard(serial)
        child.change(status)

    def hang_up(self) -> None:
        """Send no more requests: the zygote kills its children, reports that and ends.

        A fresh interpreter that is not ready may import for long, and has no children: it is
        killed.
        """
        if not self.is_ready:
            self.kill()
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """SIGKILL it, if its pidfd is known; its children die with it."""
        if self.life is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self.life, signal.SIGKILL)

    def close(self) -> None:
        """Close its descriptors in this process; idempotent."""
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
