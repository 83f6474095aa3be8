"""The parent's side of process workers: starts, kills and watches them through zygotes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import itertools
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from pipeline.errors import InitError
from pipeline.system.interpreter import Interpreter
from pipeline.system.processes import wait_for_end
from pipeline.workers.zygote import spawn as zygote_spawn
from pipeline.workers.zygote.link import Child, ZygoteLink, is_at_work, reap
from pipeline.workers.zygote.main import (
    ChildChanged,
    ChildStarted,
    CloneZygote,
    EntryPoint,
    ForkRefused,
    Kill,
    NotImported,
    Ping,
    Pong,
    Report,
    Start,
    ZygoteReady,
    flush_stdio,
    fork_quietly,
    serve,
)

__all__ = ["Child", "EntryPoint", "Zygotes"]

# Launches a zygote that serves the control socket: returns its pid, and a function that reaps it
# after its end.
_Launch = Callable[[socket.socket], tuple[int, Callable[[], object]]]

_VANISHED = "vanished with its zygote"
_NO_ZYGOTE = (
    "could not be started: the processes that workers are forked from are gone "
    "(both were killed). Restart the server"
)
_STOPPING = "could not be started: the server is stopping"
_READ_AT_ONCE = 64  # reports for each wake-up, so that many of them do not block the loop
_PATIENCE_S = 3.0  # a zygote that does not reply for so long was stopped or hangs
_BUSY_S = 60.0  # ... or a zygote that waits for a processor
_START_S = 60.0  # for an interpreter to start, on a busy machine
_KILL_TIMEOUT_S = 5.0  # for the kernel to remove killed processes


class Zygotes:
    """Two zygotes: one that forks the workers, and a spare one in case it dies.

    They are launched at once, before any thread of this library exists. A spare that was used or
    has died is replaced: the remaining zygote clones itself.

    Args:
        entry_points: functions that children can run, each in its own process. When one returns or
            raises, its process ends.
        start_method: "fork", or "spawn" for zygotes that are fresh interpreters, to which
            `entry_points` are shipped by dill. They are unpacked in the children, so that code that
            scripts run when they are imported (CUDA!) runs in no process that forks.
        pass_fds: file descriptors that spawned zygotes, and so the children, inherit.
        preload: modules that spawned zygotes import, so that the children need not.
        revives: if both zygotes are lost at once, a spawned one takes their place.
        runtimes: functions "module:function" that import large modules, so that the children need
            not; called in a zygote that is dropped if it cannot be forked afterwards.
        interpreter: that spawned zygotes run; None: this one.
        reply_timeout_s: for the reply of a zygote; after that it is killed, and the spare takes
            over.

    Raises:
        InitError: not on Linux 5.3 or newer; no more processes; something cannot be shipped.
    """

    def __init__(
        self,
        entry_points: Sequence[EntryPoint],
        start_method: Literal["fork", "spawn"] = "fork",
        pass_fds: Sequence[int] = (),
        reply_timeout_s: float = _PATIENCE_S,
        preload: Sequence[str] = (),
        revives: bool = False,
        interpreter: Interpreter | None = None,
        runtimes: Sequence[str] = (),
    ) -> None:
        self._reply_timeout_s = reply_timeout_s
        self._runtimes = tuple(runtimes)
        self._zygotes: list[ZygoteLink] = []  # the first is the active one
        # by pidfd: called when the process has ended
        self._dying: dict[int, Callable[[], None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._interpreter = interpreter
        self._all_ended: asyncio.Future[None] | None = None
        self._serials = itertools.count()
        self._revival = (
            functools.partial(self._launcher, list(entry_points), "spawn", pass_fds, preload)
            if revives
            else None
        )
        if sys.platform != "linux":
            raise InitError("process workers need Linux: use thread workers on this system.")
        try:
            with self._launcher(entry_points, start_method, pass_fds, preload) as launch:
                self._launch(launch)
                if runtimes:
                    self._add_spare()
                else:
                    self._launch(launch)
        except OSError as error:
            self.close_now()
            raise InitError(f"process workers cannot be prepared: {error}.") from error
        except BaseException:
            self.close_now()
            raise

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read reports on this loop from now on; all other methods are also called on it."""
        self._loop = loop
        for zygote in self._zygotes:
            loop.add_reader(zygote.control.fileno(), self._read, zygote)

    def start(self, main: int, number: int, on_change: Callable[[Child], None]) -> Child:
        """Have a child forked that runs `entry_points[main](sock, number)`; returns at once.

        `on_change` is called on the loop, never from within this call, when the child was stopped,
        was continued, and exactly once when it has ended. A child that cannot be started is
        reported as one that ended at once.

        Raises:
            InitError: this process has no file descriptor left.
        """
        if self._loop is None:
            raise RuntimeError("attach() comes before start()")
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise InitError(f"no socket for a worker process: {error} (ulimit -n).") from error
        ours.setblocking(False)
        on_change = functools.partial(self._tell, on_change)
        if not self._zygotes and not self._is_closed:
            self._revive()
        if self._is_closed or not self._zygotes:
            theirs.close()
            child = Child(number, ours, on_change, lambda: None)
            self._loop.call_soon(child.end, _STOPPING if self._is_closed else _NO_ZYGOTE)
            return child
        zygote = self._zygotes[0]
        serial = next(self._serials)
        child = Child(number, ours, on_change, functools.partial(self._ask, zygote, Kill(serial)))
        zygote.children[serial] = child
        self._ask(zygote, Start(serial, main, number), theirs)
        if len(self._zygotes) == 1:
            self._add_spare()
        return child

    def _ask(
        self, zygote: ZygoteLink, request: Start | Kill, end: socket.socket | None = None
    ) -> None:
        """Send a request that needs a report, and watch for the report."""
        (zygote.starting if isinstance(request, Start) else zygote.killing).add(request.child)
        zygote.send(request, end)
        if zygote.doubts is None:
            self._check_later(zygote)

    def _check_later(self, zygote: ZygoteLink) -> None:
        assert self._loop is not None
        check = functools.partial(self._check, zygote, zygote.heard)
        zygote.doubts = self._loop.call_later(self._reply_timeout_s, check)

    def _check(self, zygote: ZygoteLink, heard: int) -> None:
        """Kill a zygote that has not sent a report in time: the spare takes over.

        A child may take long to die, so the zygote is pinged first. A zygote that waits for a
        processor or for memory, on a busy machine, gets more time.
        """
        zygote.doubts = None
        if not zygote.starting and not zygote.killing:  # no report is due
            return
        if not zygote.is_ready and time.monotonic() < zygote.starts_until:
            self._check_later(zygote)
            return
        is_silent = zygote.heard == heard
        if not (is_silent and zygote.is_pinged):
            zygote.is_pinged = is_silent
            zygote.busy_until = time.monotonic() + _BUSY_S
            if is_silent:
                zygote.send(Ping())
            self._check_later(zygote)
        elif time.monotonic() < zygote.busy_until and is_at_work(zygote.pid):
            self._check_later(zygote)
        else:
            zygote.kill()

    async def close(self, timeout_s: float) -> None:
        """Kill all children and end the zygotes; each child is reported before this returns."""
        self._is_closed = True
        try:
            if self._loop is not None and (self._zygotes or self._dying):
                self._all_ended = self._loop.create_future()
                self._hang_up()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout_s):
                        await self._all_ended
        finally:
            self.close_now(0.0)

    def close_now(self, timeout_s: float = 1.0) -> None:
        """Do as `close` when no loop runs: it waits here, up to `timeout_s` and what the kernel
        takes to end processes that were killed. Idempotent."""
        self._is_closed = True
        self._hang_up()
        lives = [zygote.life for zygote in self._zygotes if zygote.life is not None]
        wait_for_end(lives, timeout_s)
        for zygote in list(self._zygotes):
            self._read(zygote, sys.maxsize)
            self._lose(zygote)
        while self._dying:  # first the zygotes, then the children that they leave
            wait_for_end(self._dying, _KILL_TIMEOUT_S)
            for life in list(self._dying):
                self._has_ended(life)

    def _hang_up(self) -> None:
        for zygote in list(self._zygotes):
            self._read(zygote, sys.maxsize)  # it may have become ready
            zygote.hang_up()

    # Launching -------------------------------------------------------------------------

    @contextlib.contextmanager
    def _launcher(
        self,
        entry_points: Sequence[EntryPoint],
        start_method: str,
        pass_fds: Sequence[int],
        preload: Sequence[str],
    ) -> Iterator[_Launch]:
        with contextlib.ExitStack() as stack:
            parent_life = os.pidfd_open(os.getpid())
            stack.callback(os.close, parent_life)
            if start_method == "spawn":
                is_ours = self._interpreter is None
                shipment = zygote_spawn.pack(entry_points, preload, is_prepared=is_ours)
                stack.callback(os.close, shipment)
                yield functools.partial(
                    zygote_spawn.spawn,
                    parent_life=parent_life,
                    shipment=shipment,
                    pass_fds=pass_fds,
                    interpreter=self._interpreter,
                )
            else:
                # Collected here, because in a zygote it would run finalizers of the parent's
                # objects.
                gc.collect()
                yield functools.partial(self._fork, list(entry_points), parent_life)

    def _launch(self, launch: _Launch) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        zygote = ZygoteLink(ours)
        self._zygotes.append(zygote)
        with theirs:
            zygote.pid, zygote.reap = launch(theirs)
        zygote.starts_until = time.monotonic() + _START_S
        zygote.life = os.pidfd_open(zygote.pid)

    def _revive(self) -> None:
        """Spawn a zygote in the place of two lost ones, if possible."""
        if self._revival is None:
            return
        assert self._loop is not None
        try:
            with self._revival() as launch:
                self._launch(launch)
        except (OSError, InitError):  # no memory, or no processes: the next start tries again
            self._zygotes.clear()
            return
        self._loop.add_reader(self._zygotes[0].control.fileno(), self._read, self._zygotes[0])

    def _fork(
        self, entry_points: Sequence[EntryPoint], parent_life: int, control: socket.socket
    ) -> tuple[int, Callable[[], object]]:
        flush_stdio()
        pid = fork_quietly()
        if pid == 0:
            serve(control, lambda: entry_points, parent_life, self._leave_to_parent)
        return pid, functools.partial(reap, pid)

    def _leave_to_parent(self) -> None:
        for zygote in self._zygotes:
            zygote.close()

    def _add_spare(self) -> None:
        """Have the active zygote clone itself. The clone can take requests at once.

        A clone that imports the runtimes becomes the active zygote.
        """
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return  # the next start tries again
        active, spare = self._zygotes[0], ZygoteLink(ours)
        spare.starts_until = time.monotonic() + _START_S
        runtimes = () if active.has_runtimes else self._runtimes
        spare.has_runtimes = active.has_runtimes or bool(runtimes)
        self._zygotes.insert(0 if runtimes else 1, spare)
        if self._loop is not None:
            self._loop.add_reader(ours.fileno(), self._read, spare)
        active.clones.append(spare)
        active.send(CloneZygote(runtimes), theirs)

    # Reports ---------------------------------------------------------------------------

    def _read(self, zygote: ZygoteLink, at_most: int = _READ_AT_ONCE) -> None:
        try:
            for report, life in zygote.reports(at_most):
                self._take(zygote, report, life)
        except EOFError:
            self._lose(zygote)
        else:
            zygote.flush()

    def _take(self, zygote: ZygoteLink, report: Report, life: int | None) -> None:
        match report:
            case ZygoteReady(pid):
                zygote.be_ready(pid, life)
            case ChildStarted(child, pid):
                zygote.starting.discard(child)
                zygote.children[child].begin(pid, life)
            case ForkRefused(child, reason):
                zygote.starting.discard(child)
                zygote.children.pop(child).end(f"could not be started: {reason}")
            case Pong():
                pass  # only its arrival matters
            case ChildChanged(child, status):
                zygote.change(child, status)
            case NotImported():
                report.log()

    def _tell(self, on_change: Callable[[Child], None], child: Child) -> None:
        """Call the owner of a child; its exceptions do not stop reports for others."""
        try:
            on_change(child)
        except Exception as error:
            assert self._loop is not None
            self._loop.call_exception_handler(
                {"message": f"on_change of child {child.number} raised", "exception": error}
            )

    # Ends ------------------------------------------------------------------------------

    def _lose(self, zygote: ZygoteLink) -> None:
        """End a zygote that is dead, or has to end, and its children."""
        if zygote not in self._zygotes:
            return
        self._zygotes.remove(zygote)
        self._stop_reading(zygote.control.fileno())
        # A spare that never became ready would not become ready at once now.
        if zygote.is_ready and self._zygotes and not self._is_closed:
            self._add_spare()
        self._finish_off(zygote.life, functools.partial(self._bury, zygote))
        self._notify_if_all_ended()

    def _bury(self, zygote: ZygoteLink) -> None:
        zygote.reap()
        zygote.close()
        # The processes that it forked have another parent now, perhaps this one: only now can they
        # be reaped.
        for clone in zygote.clones:
            clone.reap()
        for child in list(zygote.children.values()):
            self._finish_off(child.life, functools.partial(child.vanish, _VANISHED))

    def _finish_off(self, life: int | None, then: Callable[[], None]) -> None:
        """Kill a process that has no zygote; `then` is called when it has ended."""
        if life is None:
            then()
            return
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(life, signal.SIGKILL)
        self._dying[life] = then
        if self._loop is not None and not self._loop.is_closed():
            self._loop.add_reader(life, self._has_ended, life)

    def _has_ended(self, life: int) -> None:
        then = self._dying.pop(life)
        self._stop_reading(life)
        then()
        self._notify_if_all_ended()

    def _stop_reading(self, fd: int) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(fd)

    def _notify_if_all_ended(self) -> None:
        waiter = self._all_ended
        if waiter is not None and not waiter.done() and not self._zygotes and not self._dying:
            waiter.set_result(None)
