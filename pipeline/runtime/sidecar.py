"""SidecarSupervisor: a program that runs beside a server, in one process after the other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from pipeline.errors import InitError
from pipeline.observe.logs.lines import FIELDS
from pipeline.workers.restart_policy import RestartSlot, signal_name

_LOGGER = logging.getLogger(__name__)

READY = b"ready\n"
"""The word of a program, over its life line, that it takes requests."""

_MAX_LINE_BYTES = 16 * 1024
_READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class SidecarSpec:
    """The program that is to run beside a server.

    `run` starts a process, whose stderr is a pipe, and which has the given socket as its life
    line: it says READY there, and ends when the other side does, which is when the server is
    gone, however that happens.

    In words: `name` begins its lines in the log, `what` is what they call its process, `where` it
    listens; `failure` begins the InitError that says why it does not start.
    """

    run: Callable[[socket.socket], subprocess.Popen[bytes]]
    name: str
    what: str
    where: str
    failure: str


class SidecarSupervisor:
    """The supervisor of a program, which runs in one process after the other.

    `on_down` is called when its process is gone, before another is started.
    """

    def __init__(self, spec: SidecarSpec, on_down: Callable[[], None] = lambda: None) -> None:
        self._spec = spec
        self._on_down = on_down
        self._slot = RestartSlot(0)
        self._process: _Process | None = None
        self._started: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[None] | None = None

    def start(self) -> asyncio.Future[None]:
        """Start it; done when it is ready, or with the InitError that says why it is not."""
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.create_future()
        self._launch()
        return self._started

    def end(self) -> asyncio.Future[None]:
        """Have it end; done when it has. May be called without `start`, and twice."""
        self._slot.set_timer(None)
        if self._started is not None:
            self._started.cancel()  # nobody waits for it any more
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
            if self._process is None:
                self._ended.set_result(None)
            else:
                self._process.child.send_signal(signal.SIGTERM)
        return self._ended

    def hang_up(self) -> None:
        """End its life line: it ends as if the server was gone."""
        if self._process is not None:
            with contextlib.suppress(OSError):  # it has ended, and we have not heard of it yet
                self._process.life.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """End it at once, since it does not by itself."""
        if self._process is not None:
            spec = self._spec
            _LOGGER.warning("[%s] %s does not end and is killed", spec.name, spec.what)
            self._process.child.send_signal(signal.SIGKILL)

    def _launch(self) -> None:
        try:
            self._process = _Process(self._spec, self._on_ready, self._on_exit)
        except (OSError, InitError) as error:  # no process or descriptor is left, no such program
            self._on_exit(f"could not be started: {error}", "")

    def _on_ready(self) -> None:
        assert self._process is not None
        self._slot.is_steady()
        spec = self._spec
        fields = (spec.name, spec.what, spec.where, self._process.child.pid)
        _LOGGER.info("[%s] %s is ready at %s (pid %d)", *fields)
        if self._started is not None and not self._started.done():
            self._started.set_result(None)

    def _on_exit(self, how: str, last_line: str) -> None:
        was_up = self._process is not None and self._process.is_ready
        self._process = None
        self._on_down()
        if self._ended is not None:
            self._ended.set_result(None)
            return
        if self._started is not None and not self._started.done():
            self._started.set_exception(InitError(f"{self._spec.failure}: {last_line or how}"))
            return
        self._slot.ended(how, got_somewhere=was_up)
        fields = (self._spec.name, self._spec.what, how, self._slot.describe_restart())
        _LOGGER.error("[%s] %s %s: %s", *fields)
        self._slot.set_timer(self._loop.call_later(self._slot.pause_s, self._launch))


async def end_all(supervisors: Sequence[SidecarSupervisor], timeout_s: float) -> None:
    """End what runs there; what has not ended after `timeout_s` is killed."""
    ended = [supervisor.end() for supervisor in supervisors]
    if ended:
        _, late = await asyncio.wait(ended, timeout=timeout_s)
        for supervisor in supervisors if late else []:
            supervisor.kill()
        await asyncio.gather(*ended)


class _Process:
    """A process that runs a program.

    `on_ready` is called when it takes requests, `on_end` with (how it ended, its last words) when
    it is gone.
    """

    def __init__(
        self, spec: SidecarSpec, on_ready: Callable[[], None], on_end: Callable[[str, str], None]
    ) -> None:
        self._on_ready = on_ready
        self._on_end = on_end
        self.is_ready = False
        self._loop = asyncio.get_running_loop()
        self.life, theirs = socket.socketpair()
        with theirs:
            try:
                self.child: subprocess.Popen[bytes] = spec.run(theirs)
            except BaseException:
                self.life.close()
                raise
        self._pidfd = os.pidfd_open(self.child.pid)
        self._log = _StderrLogger(spec.name)
        assert self.child.stderr is not None
        self._stderr = self.child.stderr
        os.set_blocking(self._stderr.fileno(), False)
        self._loop.add_reader(self.life, self._read_life)
        self._loop.add_reader(self._stderr, self._read_stderr)
        self._loop.add_reader(self._pidfd, self._ended)

    def _read_life(self) -> None:
        self._loop.remove_reader(self.life)
        if self.life.recv(len(READY)) == READY:
            self.is_ready = True
            self._on_ready()

    def _read_stderr(self) -> bool:
        """Log what it has said; whether it may have said more."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._stderr.fileno(), _READ_BYTES)
            self._log.write(data)
            if not data:
                self._loop.remove_reader(self._stderr)
            return bool(data)
        return False

    def _ended(self) -> None:
        code = self.child.wait()
        while self._read_stderr():
            pass
        for file in (self.life, self._stderr, self._pidfd):
            self._loop.remove_reader(file)
        os.close(self._pidfd)
        self.life.close()
        self._stderr.close()
        self._log.close()
        how = f"exited with code {code}" if code >= 0 else f"was killed by {signal_name(-code)}"
        self._on_end(how, self._log.last_line)


class _StderrLogger:
    """Writes to our log what a program says on its stderr: `LEVEL text`, or just text."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rest = b""
        self.last_line = ""

    def write(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._write_line(line)
        if len(self._rest) > _MAX_LINE_BYTES:
            self.close()

    def close(self) -> None:
        """Write what has no end of line."""
        self._write_line(self._rest)
        self._rest = b""

    def _write_line(self, line: bytes) -> None:
        text = line.decode("utf-8", "backslashreplace").rstrip()
        if not text:
            return
        word, _, rest = text.partition(" ")
        level = logging.getLevelNamesMapping().get(word)
        if level is None:
            level, rest = logging.INFO, text
        self.last_line = rest
        extra = {FIELDS: fields} if (fields := _fields_of(rest)) else None
        _LOGGER.log(level, "[%s] %s", self._name, rest, extra=extra)


def _fields_of(text: str) -> dict[str, object]:
    """Return the fields of a line that is a JSON object; of any other line none."""
    if not text.startswith("{"):
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except msgspec.DecodeError:
        return {}
