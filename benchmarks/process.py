"""A service under test as a process of its own: started, awaited, watched, stopped."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from benchmarks import NotMeasuredError
from benchmarks.family import Holdings, Usage, holdings_of, members, usage_of
from benchmarks.services.ports import free_ports

ROOT = Path(__file__).parents[1]
_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 10.0
_ASK_AGAIN_S = 0.05
_T = TypeVar("_T")


class Service:
    """A running `benchmarks/services/<module>.py`; its output and logs go to `folder`.

    Args:
        root: the tree that it runs from; a module that is new here runs from here, on that tree.
        under: a command that runs it, such as valgrind.
        environment: variables, besides this process's own.
    """

    def __init__(
        self,
        folder: Path,
        module: str,
        *arguments: str,
        root: Path = ROOT,
        under: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.module = module
        self.folder = folder
        self.http_port, self.grpc_port = free_ports()
        self._log = folder / "output"
        variables = os.environ | {
            "BENCH_HTTP_PORT": str(self.http_port),
            "BENCH_GRPC_PORT": str(self.grpc_port),
            "SERVING_LOG_PATH": str(folder),
            "SERVING_HOME": str(folder),
            "PYTHONPATH": str(root),
            **(environment or {}),
        }
        place = Path("benchmarks", "services", f"{module}.py")
        script = next(tree / place for tree in (root, ROOT) if (tree / place).exists())
        self._start_s = time.monotonic()
        self.ready_s = math.nan
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*under, sys.executable, "-P", str(script), *arguments],
                cwd=root,
                env=variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def first_answer(self, ask: Callable[[], _T], limit_s: float = _START_LIMIT_S) -> _T:
        """Return the result of `ask`, called until it raises no OSError; note when that was.

        Raises NotMeasuredError if the service ends, or does not answer within `limit_s`.
        """
        give_up = time.monotonic() + limit_s
        while True:
            try:
                answer = ask()
                self.ready_s = time.monotonic() - self._start_s
                return answer
            except OSError as error:
                if self._process.poll() is not None or time.monotonic() > give_up:
                    raise NotMeasuredError(
                        f"{self.module}: {error}\n{self._last_words()}"
                    ) from error
                time.sleep(_ASK_AGAIN_S)

    def usage(self) -> Usage:
        """CPU time and resident memory of the whole family."""
        self._check_alive()
        return usage_of(self._process.pid)

    def holdings(self) -> Holdings:
        """Processes, descriptors and memory of the whole family."""
        self._check_alive()
        return holdings_of(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> tuple[int | None, int]:
        """Ask the service to stop: (exit status, processes left); None if it does not stop."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_LIMIT_S)
        return self._process.returncode, len(members(self._process.pid))

    def stop(self) -> None:
        """Ask the service to stop; kill its session if it does not."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_LIMIT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _check_alive(self) -> None:
        if (status := self._process.poll()) is not None:
            raise NotMeasuredError(f"{self._last_words()}\n{self.module} died, status {status}")

    def output(self) -> str:
        """Return what the service has printed."""
        return self._log.read_text(errors="replace")

    def _last_words(self) -> str:
        return self.output()[-2000:]


@contextlib.contextmanager
def running(
    module: str,
    *arguments: str,
    root: Path = ROOT,
    under: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Service]:
    """Start a service; stop it when the block ends."""
    with TemporaryDirectory(prefix="bench-") as folder:
        service = Service(
            Path(folder), module, *arguments, root=root, under=under, environment=environment
        )
        try:
            yield service
        finally:
            service.stop()
