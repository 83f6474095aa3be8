"""`pipeline serve --reload`: servers one after the other on the same ports, as files change.

The next server starts beside the one that serves, and takes the ports over when it is ready
(`reuse_port`): then the other one sends its callers away, answers what it has, and ends. One that
cannot start changes nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.cli.parsing import FAILED
from pipeline.system.processes import is_shared_with_strangers
from pipeline.system.service_manager import VARIABLE
from pipeline.system.stdio import say_on_stderr

_DRAIN_DELAY_MS = 500  # in which callers that keep their connections are asked to close them
_POLL_INTERVAL_S = 0.2
_MAX_DATAGRAM = 4096
_ANY_FREE = "0"
# `pipeline` has to be the library, also where the folder has a module of that name.
_FIRST_LINES = (
    "import sys; sys.path[0] = {root!r}; from pipeline.cli.main import main; sys.exit(main())"
)

Ports = Mapping[str, str]
"""Ports that a server has, by their keys in config.yml."""


class Reloader:
    """The server that serves, the next one that starts, and older ones that drain, as files change.

    Args:
        start: starts a server on these ports, {} at first.
        changed: the files that have changed since the last call.
        say: writes a line for the developer.

    Attributes:
        is_unwanted: somebody else serves at the ports, so that it had better end.
    """

    def __init__(
        self,
        start: Callable[[Ports], ServerProcess],
        changed: Callable[[], Sequence[str]],
        say: Callable[[str], object],
    ) -> None:
        self._start = start
        self._changed = changed
        self._report = say
        self._ports: Ports = {}
        self._serving: ServerProcess | None = None
        self._starting: ServerProcess | None = start({})
        self._leaving: list[ServerProcess] = []
        self.is_unwanted: bool = False

    def tick(self) -> None:
        """Look at the files and the servers once."""
        changed = self._changed()
        if changed:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            self._report(f"{changed[0]}{more} changed")
            self._leave(self._starting)
            self._starting = self._start(self._ports)
        self._look_at_start()
        if self._serving is not None and (status := self._serving.status()) is not None:
            self._report(f"the server has ended (status {status}); waiting for a change")
            self._serving = None
        self._leaving = [release for release in self._leaving if release.status() is None]

    def _look_at_start(self) -> None:
        if self._starting is None:
            return
        ports = self._starting.ports()
        if ports is not None:
            if self._serving is not None:
                self._report("the new server has taken over")
            elif not self._ports and (port := self._starting.shared_port()):
                self._report(
                    f"port {port} is also another server's: stop that server, or use --port"
                )
                self.is_unwanted = True
            self._leave(self._serving)
            self._ports = ports
            self._serving, self._starting = self._starting, None
        elif (status := self._starting.status()) is not None:
            other = "the previous server continues" if self._serving else "waiting for a change"
            self._report(f"the server could not start (status {status}); {other}")
            self._starting = None

    def stop(self) -> None:
        """Have all servers answer what they have, and end; a second call: at once."""
        for release in self._leaving:
            release.leave()
        self._leave(self._starting)
        self._leave(self._serving)
        self._starting = self._serving = None

    @property
    def is_over(self) -> bool:
        """Return whether no server runs any more."""
        running = (self._starting, self._serving, *self._leaving)
        return all(release is None or release.status() is not None for release in running)

    def _leave(self, release: ServerProcess | None) -> None:
        if release is not None and release.status() is None:
            release.leave()
            self._leaving.append(release)


def serve_and_reload(
    scripts: Sequence[str],
    words: Sequence[str],
    settings: Sequence[str],
    profiles: Sequence[str] | None,
) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit status."""
    folders = list(dict.fromkeys(Path(script).resolve().parent for script in scripts))
    stop = threading.Event()
    with tempfile.TemporaryDirectory(prefix="pipeline-reload-") as sockets, _signals() as signals:
        numbers = itertools.count()

        def start(ports: Ports) -> ServerProcess:
            command = _command(scripts, words, pinned(settings, ports), profiles)
            return ServerProcess(command, f"{sockets}/{next(numbers)}")

        watches = [Watch(folder) for folder in folders]

        def changed() -> list[str]:
            return [name for watch in watches for name in watch.changed()]

        reloader = Reloader(start, changed, _report)
        _report(f"watching {', '.join(map(str, folders))}; stop with Ctrl-C")
        while not signals and not reloader.is_unwanted:
            reloader.tick()
            stop.wait(_POLL_INTERVAL_S)
        reported = -1
        while not reloader.is_over:
            if len(signals) > reported:
                reported = len(signals)
                reloader.stop()
            stop.wait(_POLL_INTERVAL_S)
    return FAILED if reloader.is_unwanted else 0


def pinned(settings: Sequence[str], ports: Ports) -> list[str]:
    """Return settings in which these ports replace ports that were free to choose."""
    is_free = any(setting in ("http_port=0", "rpc_port=0") for setting in settings)
    if not ports or not is_free:
        return list(settings)
    return [*settings, *(f"{key}={port}" for key, port in ports.items() if port != _ANY_FREE)]


def _command(
    scripts: Sequence[str],
    words: Sequence[str],
    settings: Sequence[str],
    profiles: Sequence[str] | None,
) -> list[str]:
    root = str(Path(__file__).resolve().parents[2])
    overlap = ["reuse_port=true", f"drain_delay={_DRAIN_DELAY_MS}"]
    named = [word for profile in profiles or () for word in ("--profile", profile)]
    options = [word for setting in (*overlap, *settings) for word in ("--set", setting)]
    first = [sys.executable, "-c", _FIRST_LINES.format(root=root)]
    return [*first, "serve", *scripts, "--parent", str(os.getpid()), *named, *options, "--", *words]


class ServerProcess:
    """A server, from its start to its end; it reports its ports as to a service manager."""

    def __init__(self, command: Sequence[str], place: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(place)
        self._socket.setblocking(False)
        self._ports: Ports = {}
        # A session of its own: what Ctrl-C sends goes to this process, which tells it once.
        self._process = subprocess.Popen(
            command, env={**os.environ, VARIABLE: place}, start_new_session=True
        )

    def ports(self) -> Ports | None:
        """Return the ports, once it is ready; None: it is not yet."""
        try:
            lines = self._socket.recv(_MAX_DATAGRAM).decode().splitlines()
        except BlockingIOError:
            return None
        variables = dict(line.split("=", 1) for line in lines if "=" in line)
        keys = {"http_port": "X_HTTP_PORT", "rpc_port": "X_RPC_PORT"}
        self._ports = {key: variables.get(name, _ANY_FREE) for key, name in keys.items()}
        return self._ports

    def shared_port(self) -> str:
        """Return a port of the server at which another program also listens; "": no port."""
        taken = (port for port in self._ports.values() if port != _ANY_FREE)
        session = self._process.pid  # see above
        return next((p for p in taken if is_shared_with_strangers(int(p), session)), "")

    def status(self) -> int | None:
        """Return the exit status; None: it runs."""
        status = self._process.poll()
        if status is not None:
            self._socket.close()
        return status

    def leave(self) -> None:
        """Have it answer what it has, and end; a second call: at once."""
        self._process.terminate()


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Yield a list of the signals to stop that have come."""
    come: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, _: come.append(number)) for number in numbers]
    try:
        yield come
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _report(text: str) -> None:
    say_on_stderr(f"reload: {text}")


SUFFIXES = (".py", ".yml", ".yaml", ".json", ".pbtxt", ".prototxt", ".toml")
_LEFT_OUT = {"__pycache__", "node_modules", "site-packages", "PipelineServingLogs"}
MAX_FILES = 20_000

Stamps = Mapping[str, tuple[int, int]]
"""Time of the last change, ns, and size of each file."""


class Watch:
    """The files of a folder that a server may be made of; hidden folders and environments not."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = os.fspath(folder)
        self._known = self._last = self._stamps()

    def changed(self) -> list[str]:
        """Return the files that have changed since the last report, relative to the folder.

        They are reported when nothing has changed from one call to the next: an editor or a
        checkout
        may not be through with the others.
        """
        now = self._stamps()
        is_calm, self._last = now == self._last, now
        if not is_calm or now == self._known:
            return []
        known, self._known = self._known, now
        names = {name for name in {*known, *now} if known.get(name) != now.get(name)}
        return sorted(os.path.relpath(name, self._folder) for name in names)

    def _stamps(self) -> Stamps:
        stamps = {}
        for name in self._files():
            try:
                status = os.stat(name)
            except OSError:  # it has gone meanwhile
                continue
            stamps[name] = (status.st_mtime_ns, status.st_size)
            if len(stamps) >= MAX_FILES:
                break
        return stamps

    def _files(self) -> Iterator[str]:
        for folder, folders, files in os.walk(self._folder):
            folders[:] = sorted(name for name in folders if _is_watched(folder, name))
            for name in files:  # hidden ones are of editors: locks, drafts
                if name.endswith(SUFFIXES) and not name.startswith("."):
                    yield os.path.join(folder, name)


def _is_watched(folder: str, name: str) -> bool:
    is_left_out = name.startswith(".") or name in _LEFT_OUT
    return not is_left_out and not Path(folder, name, "pyvenv.cfg").exists()
