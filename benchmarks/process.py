"""A service under test as a process of its own: started, awaited, watched, stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from benchmarks import NotMeasuredError

_ROOT = Path(__file__).parents[1]
_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 10.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a service and its children have used so far, and hold now."""

    cpu_s: float
    rss_bytes: int


class Service:
    """A running `benchmarks/services/<module>.py`; its output and logs go to `folder`."""

    def __init__(self, folder: Path, module: str, *arguments: str) -> None:
        self.module = module
        self.http_port, self.grpc_port = _free_ports()
        self._log = folder / "output"
        environment = os.environ | {
            "BENCH_HTTP_PORT": str(self.http_port),
            "BENCH_GRPC_PORT": str(self.grpc_port),
            "SERVING_LOG_PATH": str(folder),
            "SERVING_HOME": str(folder),
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"benchmarks.services.{module}", *arguments],
                cwd=_ROOT,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def first_answer(self, ask: Callable[[], _T]) -> _T:
        """The result of `ask`, called until it raises no OSError.

        Raises NotMeasuredError if the service ends, or does not answer for a minute.
        """
        give_up = time.monotonic() + _START_LIMIT_S
        while True:
            try:
                return ask()
            except OSError as error:
                if self._process.poll() is not None or time.monotonic() > give_up:
                    raise NotMeasuredError(
                        f"{self.module}: {error}\n{self._last_words()}"
                    ) from error
                time.sleep(0.1)

    def usage(self) -> Usage:
        """CPU time and resident memory of the whole family."""
        if (status := self._process.poll()) is not None:
            raise NotMeasuredError(f"{self._last_words()}\n{self.module} died, status {status}")
        return usage_of(self._process.pid)

    def stop(self) -> None:
        """Ask the service to stop; kill its session if it does not."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_LIMIT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]


@contextlib.contextmanager
def running(module: str, *arguments: str) -> Iterator[Service]:
    """Start a service; stop it when the block ends."""
    with TemporaryDirectory(prefix="bench-") as folder:
        service = Service(Path(folder), module, *arguments)
        try:
            yield service
        finally:
            service.stop()


def _free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


def usage_of(root: int) -> Usage:
    """CPU time and resident memory of process `root` and all that descend from it."""
    stats = _all_stats()
    children: dict[int, list[int]] = {}
    for pid, fields in stats.items():
        children.setdefault(int(fields[1]), []).append(pid)
    family = [root]
    for pid in family:  # grows while it is walked
        family += children.get(pid, [])
    members = [stats[pid] for pid in family if pid in stats]
    # utime, stime, and those of children that have ended and were waited for
    ticks = sum(int(field) for fields in members for field in fields[11:15])
    pages = sum(int(fields[21]) for fields in members)
    return Usage(cpu_s=ticks / _TICKS_PER_S, rss_bytes=pages * _PAGE_BYTES)


def _all_stats() -> dict[int, list[str]]:
    """The fields of /proc/<pid>/stat after the name, which may hold blanks, for all processes."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended meanwhile
            stats[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    return stats
