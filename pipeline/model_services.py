"""ModelServices: the services that a server starts for Ops with `client_type: brpc` or `grpc`."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pipeline.connecting import ModelServiceAddress, resolved
from pipeline.engine.workers.supervision import Place, signal_name
from pipeline.errors import InitError
from pipeline.op import Op
from pipeline.serve_arguments import READY

_LOGGER = logging.getLogger(__name__)

_HOST = "127.0.0.1"
_ATTEMPTS = 10  # to get a port that is free
_END_S = 10.0  # for a service to end by itself
_MOST_LINE_BYTES = 16 * 1024
_READ_BYTES = 64 * 1024


class ModelServices:
    """One service for each device of each Op that wants any.

    They listen on free ports of this machine's own, which are known before they run: `open`
    comes before processes are forked that have to know them. A service that ends is started
    anew; until it is ready again its port refuses connections. All of them end when this process
    does, however that happens.

    Of an Op without `client_config` the first service writes what clients have to know of the
    model, before it is ready, to a temporary folder.

    Args:
        ops: of the graph; those whose model runs here, or elsewhere, are left alone.
        base_dir: where a relative `model_config` is looked up first.

    Attributes:
        addresses: of an Op's services, by its name.
    """

    def __init__(self, ops: Iterable[Op], base_dir: Path) -> None:
        self._ops = [op for op in ops if _wants_service(op)]
        self._base_dir = base_dir
        self._services: list[_ModelService] = []
        self._folder = _TemporaryFolder()
        self.addresses: Mapping[str, ModelServiceAddress] = {}

    def open(self) -> None:
        """Get the ports and the folder. Raises InitError if there are none left."""
        addresses: dict[str, ModelServiceAddress] = {}
        try:
            for number, op in enumerate(self._ops):
                knows = bool(op.pipeline_config.client_config)
                folder = None if knows else self._folder.make() / str(number)
                addresses[op.name] = ModelServiceAddress(self._open(op, folder), folder)
        except BaseException:
            self.close()
            raise
        self.addresses = addresses

    def _open(self, op: Op, folder: Path | None) -> tuple[str, ...]:
        """Get the ports of one Op; `folder` is for what its clients have to know."""
        endpoints: list[str] = []
        for conf in self._confs(op):
            arguments = ["--local_service_conf", json.dumps(conf)]
            if folder is not None and not endpoints:
                arguments += ["--write_client_conf", str(folder)]
            service = _ModelService(op.name, arguments)
            self._services.append(service)
            endpoints.append(service.endpoint)
        return tuple(endpoints)

    def _confs(self, op: Op) -> Iterator[dict[str, Any]]:
        local = op.pipeline_config.local_service_conf
        assert local.model_config is not None
        model = resolved(self._base_dir, local.model_config).absolute()
        conf = msgspec.to_builtins(local) | {"model_config": str(model)}
        if op.dynamic_shape_info:
            conf["dynamic_shape_info"] = op.dynamic_shape_info
        for card in local.devices.split(","):
            yield conf | {"devices": card.strip()}

    async def start(self) -> None:
        """Start all services; returns when they are ready. InitError says why one is not."""
        await asyncio.gather(*(service.start() for service in self._services))

    async def stop(self) -> None:
        """End all services."""
        ended = [service.end() for service in self._services]
        try:
            if ended:
                _, late = await asyncio.wait(ended, timeout=_END_S)
                for service in self._services if late else []:
                    service.kill()
                await asyncio.gather(*ended)
        finally:
            self.close()

    def close(self) -> None:
        """Give back the ports and the folder."""
        for service in self._services:
            service.listener.close()
        self._services.clear()
        self._folder.remove()


def _wants_service(op: Op) -> bool:
    local = op.pipeline_config.local_service_conf
    return (
        local.model_config is not None
        and local.client_type != "local_predictor"
        and not op.pipeline_config.server_endpoints
    )


class _TemporaryFolder:
    """A folder among the system's temporary ones.

    Those are cleared of what is old on many systems, and workers that are started anew read this
    one after weeks: systemd-tmpfiles leaves alone what is in a folder that is locked.
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._lock: int | None = None

    def make(self) -> Path:
        """The folder; made by the first call."""
        if self._path is None:
            try:
                self._path = Path(tempfile.mkdtemp(prefix="pipeline-"))
                self._lock = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
            except OSError as error:
                raise InitError(f"model services need a temporary folder: {error}") from error
            with contextlib.suppress(OSError):  # not every file system has locks
                fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return self._path

    def remove(self) -> None:
        """Remove it with what is in it, if it was made."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
        self._path = self._lock = None


class _ModelService:
    """The place of one service, which is filled with one process after the other."""

    def __init__(self, op: str, arguments: list[str]) -> None:
        self._name = op
        self._arguments = arguments
        self._place = Place(0)
        self._process: _Process | None = None
        self._ended: asyncio.Future[None] | None = None
        self.listener = _bound(op)

    @property
    def endpoint(self) -> str:
        return f"{_HOST}:{self.listener.getsockname()[1]}"

    def start(self) -> asyncio.Future[None]:
        """Done when it is ready, or with the reason why it is not."""
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._launch()
        return self._started

    def end(self) -> asyncio.Future[None]:
        """Have it end; done when it has."""
        self._place.set_timer(None)
        self._ended = asyncio.get_running_loop().create_future()
        if self._process is None:
            self._ended.set_result(None)
        else:
            self._process.signal(signal.SIGTERM)
        return self._ended

    def kill(self) -> None:
        if self._process is not None:
            _LOGGER.warning("[%s] its service does not end and is killed", self._name)
            self._process.signal(signal.SIGKILL)

    def _launch(self) -> None:
        try:
            self._process = _Process(
                self._name, self._arguments, self.listener, self._up, self._over
            )
        except OSError as error:  # no process or descriptor is left
            self._over(f"could not be started: {error}", "")

    def _up(self) -> None:
        self._place.is_steady()
        assert self._process is not None
        _LOGGER.info(
            "[%s] its service is ready at %s (pid %d)",
            self._name,
            self.endpoint,
            self._process.pid,
        )
        if not self._started.done():
            self._started.set_result(None)

    def _over(self, how: str, last_words: str) -> None:
        was_up = self._process is not None and self._process.is_ready
        self._process = None
        with contextlib.suppress(OSError):  # it did not listen yet
            self.listener.shutdown(socket.SHUT_RDWR)  # so that callers look elsewhere
        if self._ended is not None:
            self._ended.set_result(None)
            return
        if not self._started.done():
            why = last_words or how
            text = f"op.{self._name}.local_service_conf: the model's service does not start: {why}"
            self._started.set_exception(InitError(text))
            return
        self._place.ended(how, got_somewhere=was_up)
        _LOGGER.error("[%s] its service %s: %s", self._name, how, self._place.describe_restart())
        self._place.set_timer(self._loop.call_later(self._place.pause_s, self._launch))


class _Process:
    """A process that runs `pipeline.serve`.

    `on_ready` is called when it takes requests, `on_end` with (how it ended, its last words) when
    it is gone.
    """

    def __init__(
        self,
        name: str,
        arguments: list[str],
        listener: socket.socket,
        on_ready: Callable[[], None],
        on_end: Callable[[str, str], None],
    ) -> None:
        self._on_ready = on_ready
        self._on_end = on_end
        self.is_ready = False
        self._loop = asyncio.get_running_loop()
        self._life, theirs = socket.socketpair()
        with theirs:
            try:
                self._child = _run(name, arguments, listener, theirs)
            except BaseException:
                self._life.close()
                raise
        self._pidfd = os.pidfd_open(self._child.pid)
        self._log = _Relogger(name)
        assert self._child.stderr is not None
        os.set_blocking(self._child.stderr.fileno(), False)
        self._loop.add_reader(self._life, self._heard)
        self._loop.add_reader(self._child.stderr, self._logged)
        self._loop.add_reader(self._pidfd, self._ended)

    @property
    def pid(self) -> int:
        return self._child.pid

    def signal(self, number: int) -> None:
        self._child.send_signal(number)

    def _heard(self) -> None:
        self._loop.remove_reader(self._life)
        if self._life.recv(len(READY)) == READY:
            self.is_ready = True
            self._on_ready()

    def _logged(self) -> None:
        assert self._child.stderr is not None
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._child.stderr.fileno(), _READ_BYTES)
            self._log.write(data)
            if not data:
                self._loop.remove_reader(self._child.stderr)

    def _ended(self) -> None:
        assert self._child.stderr is not None
        code = self._child.wait()
        self._logged()
        for file in (self._life, self._child.stderr, self._pidfd):
            self._loop.remove_reader(file)
        os.close(self._pidfd)
        self._life.close()
        self._child.stderr.close()
        self._log.close()
        how = f"exited with code {code}" if code >= 0 else f"was killed by {signal_name(-code)}"
        self._on_end(how, self._log.last_line)


class _Relogger:
    """Writes to our log what a service says on its stderr: `LEVEL text`, or just text."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rest = b""
        self.last_line = ""

    def write(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._write_line(line)
        if len(self._rest) > _MOST_LINE_BYTES:
            self.close()

    def close(self) -> None:
        """Write what has no end of line."""
        self._write_line(self._rest)
        self._rest = b""

    def _write_line(self, line: bytes) -> None:
        text = line.decode("utf-8", "backslashreplace").rstrip()
        if not text:
            return
        self.last_line = text
        word, _, rest = text.partition(" ")
        level = logging.getLevelNamesMapping().get(word)
        if level is None:
            level, rest = logging.INFO, text
        _LOGGER.log(level, "[%s] %s", self._name, rest)


def _bound(op: str) -> socket.socket:
    """A socket with a port that nobody else gets; whoever inherits it listens."""
    for _ in range(_ATTEMPTS):
        with socket.create_server((_HOST, 0)) as probe:
            port = probe.getsockname()[1]
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # To listen again in spite of the connections that a service which has ended had.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            # By its number: the system would take a port that it has chosen back at `shutdown`.
            bound.bind((_HOST, port))
        except OSError:  # somebody was quicker
            bound.close()
        else:
            return bound
    raise InitError(f"op.{op}.local_service_conf: there is no free port for the model's service")


def _run(
    name: str, arguments: list[str], listener: socket.socket, life: socket.socket
) -> subprocess.Popen[bytes]:
    fds = (listener.fileno(), life.fileno())
    ours = ["--fd", str(fds[0]), "--parent_fd", str(fds[1]), "--name", name]
    home = str(Path(__file__).resolve().parents[1])
    paths = [home, os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        # -P: what lies in the working folder is not ours to import.
        [sys.executable, "-P", "-m", "pipeline.serve", *ours, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=fds,
        start_new_session=True,  # Ctrl-C is for the server, whose requests still need us
    )
