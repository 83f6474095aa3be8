"""Gateway: `pipeline-gateway` as the ingress of this server, in a process that is kept running."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from pathlib import Path

from pipeline.config.schema import ServiceConfig
from pipeline.errors import InitError
from pipeline.frontends.link.server import socket_paths
from pipeline.frontends.listen import address_of, bind, check_unix_path, port_of
from pipeline.gateway.binary import cannot_run, find_binary
from pipeline.runtime.base import Ingress
from pipeline.runtime.sidecar import SidecarSpec, SidecarSupervisor, end_all
from pipeline.system.temp_dir import TempDir

_KEY = "http_server: gateway"
_EXTRA_GRACE_S = 1.0  # for answers that are on their way out when the grace period is over
_STALL_TIMEOUT_S = 2.0  # for a replica to answer a heartbeat; its requests then go to others
_LONE_STALL_TIMEOUT_S = 10.0  # without replicas: user code that holds the GIL keeps it, too
_END_TIMEOUT_S = 5.0  # to end by itself after its own grace period


class Gateway(Ingress):
    """An Ingress in Go, which asks the server over Unix sockets.

    It listens on a socket that is this process's: when it dies callers wait until it is there
    again. It ends when this process does, however that happens.

    Args:
        config: with an `http_port`, and `http_server: gateway`.
    """

    takes_http = True

    def __init__(self, config: ServiceConfig) -> None:
        self._config = config
        self._binary = Path()
        self._folder = TempDir(f"{_KEY}: the sockets between it and the server")
        self._listener: socket.socket | None = None
        self._place: SidecarSupervisor | None = None
        self._is_grace_cancelled = False

    def open(self) -> Path:
        """Make the folder for the sockets of the frontends that it asks, until `close`.

        Raises:
            InitError: there is no binary, or no folder where sockets can be.
        """
        try:
            self._binary = find_binary()
        except InitError as error:
            raise InitError(f"{_KEY}: {error}") from error
        folder = self._folder.make()
        last = max(0, self._config.replicas - 1)
        for path in socket_paths(folder, last):
            check_unix_path(str(path), _KEY)
        if "," in str(folder):  # it stands between the sockets of a --backend
            raise InitError(f"{_KEY}: there is a comma in {folder}. Set TMPDIR to another folder.")
        return folder

    def start(self) -> asyncio.Future[None]:
        """Listen, and start it; done when it has found a replica of the server that is ready.

        Raises:
            InitError: the port is in use; from what is returned: it does not start.
        """
        host = self._config.host
        self._listener = bind(
            host, self._config.http_port or 0, "http_port", self._config.reuse_port
        )
        self.port: int | None = port_of(self._listener)
        where = address_of(host, self.port)
        failure = f"{_KEY}: it does not start"
        self._place = SidecarSupervisor(
            SidecarSpec(self._run, "gateway", "its process", where, failure)
        )
        return self._place.start()

    def drain(self) -> None:
        """Have it say not ready, serve on for the `drain_delay`, and close its socket then."""
        if self._listener is not None:
            self._listener.close()  # the process has it too
        if self._place is not None:
            self._place.end()

    async def stop(self, grace_s: float) -> None:
        """Take no more requests, and end when the active ones are answered."""
        self.drain()
        if self._place is not None:
            if self._is_grace_cancelled:
                self._place.hang_up()
            await end_all([self._place], grace_s + _END_TIMEOUT_S)

    def cancel_grace(self) -> None:
        """Let it end as soon as the answers on their way out are out."""
        self._is_grace_cancelled = True
        if self._place is not None:
            self._place.hang_up()

    def close(self) -> None:
        """Remove the folder."""
        if self._listener is not None:
            self._listener.close()
        self._folder.remove()

    def _run(self, life: socket.socket) -> subprocess.Popen[bytes]:
        assert self._listener is not None
        listener = self._listener.fileno()
        try:
            return subprocess.Popen(
                [self._binary, "--parent", "--listen-fd", str(listener), *self._arguments()],
                stdin=life.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(listener,),
                start_new_session=True,  # Ctrl-C is for the server, whose callers still need it
            )
        except OSError as error:
            raise cannot_run(self._binary, error) from error

    def _arguments(self) -> list[str]:
        config, folder = self._config, self._folder.make()
        backends = [socket_paths(folder, number) for number in range(max(1, config.replicas))]
        stall_timeout_s = _STALL_TIMEOUT_S if len(backends) > 1 else _LONE_STALL_TIMEOUT_S
        settings = {
            "max-message-bytes": str(config.max_message_bytes),
            "max-json-bytes": str(config.max_json_bytes),
            "timeout": _duration(config.timeout_s or 0.0),
            "drain-delay": _duration(config.drain_delay_s),
            "grace": _duration(config.stop_grace_period_s + _EXTRA_GRACE_S),
            "stall-timeout": _duration(stall_timeout_s),
            "access-log-sample": str(config.log.request_sample),
        }
        return [
            *(f"--backend=link:{link},{http}" for link, http in backends),
            *(f"--{name}={value}" for name, value in settings.items()),
            "--backend-metrics",
        ]


def _duration(seconds: float) -> str:
    """Return a duration as Go reads it."""
    return f"{round(seconds * 1000)}ms"
