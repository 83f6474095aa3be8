"""Gateway: `pipeline-gateway` as the ingress of this server, in a process that is kept running."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pipeline.config.access import (
    ROLES,
    AccessConfig,
    TlsConfig,
    document_of,
    fault_of_access,
)
from pipeline.config.schema import ServiceConfig
from pipeline.config.sections import CorsConfig
from pipeline.errors import ConfigError, InitError
from pipeline.frontends.link.frames import VERSION
from pipeline.frontends.link.places import make_secret, socket_paths
from pipeline.frontends.listen import address_of, bind, check_unix_path, is_loopback, port_of
from pipeline.gateway.binary import cannot_run, check_link, find_binary
from pipeline.runtime.base import Ingress
from pipeline.runtime.sidecar import SidecarSpec, SidecarSupervisor, end_all
from pipeline.system.temp_dir import TempDir
from pipeline.tracing.context import TRACES_A_SECOND

_LOGGER = logging.getLogger(__name__)

_FLAGS = {"HTTP": "--listen-fd", "gRPC": "--grpc-listen-fd", "admin": "--admin-listen-fd"}
"""Flags of inherited sockets."""
_EXTRA_GRACE_S = 1.0  # for answers that are on their way out when the grace period is over
_STALL_TIMEOUT_S = 2.0  # for a replica to answer a heartbeat; its requests then go to others
_LONE_STALL_TIMEOUT_S = 10.0  # without replicas: user code that holds the GIL also keeps it
_END_TIMEOUT_S = 5.0  # to end by itself after its own grace period


def with_edge(config: ServiceConfig) -> ServiceConfig:
    """Return a configuration that says which edge there is, not `auto`.

    `auto` is the gateway for gRPC, if its program is there and can be run. HTTP costs less in the
    server itself, which takes it unless something is asked for that only the gateway does.
    """
    if config.edge != "auto":
        return config
    settled: ServiceConfig
    try:
        if not check_link(binary := find_binary(), VERSION):
            raise InitError(f"{binary} cannot be run")
    except InitError as error:
        if config.tls.grpc_only:
            raise
        _LOGGER.info("edge: auto: the server takes gRPC itself: %s", error)
        settled = msgspec.structs.replace(config, edge="embedded")
        return settled
    _LOGGER.info("edge: auto: the gateway takes gRPC")
    needs_all = config.access != AccessConfig() or config.admin_port is not None
    needs_all = needs_all or (config.tls != TlsConfig() and not config.tls.grpc_only)
    http = config.http_server or ("gateway" if needs_all else "embedded")
    settled = msgspec.structs.replace(config, edge="gateway", http_server=http)
    return settled


def taken_by_gateway(config: ServiceConfig) -> frozenset[str]:
    """Return which of "HTTP" and "gRPC" the gateway takes; none: the server takes them itself."""
    config = with_edge(config)
    ports = {
        "gRPC": (config.rpc_port, config.edge),
        "HTTP": (config.http_port, config.http_server or config.edge),
    }
    return frozenset(
        name for name, (port, taker) in ports.items() if port is not None and taker == "gateway"
    )


def check_access(config: ServiceConfig, taken: frozenset[str]) -> None:
    """Raise ConfigError where `access` or `tls` is wrong, or no part of the server applies it."""
    ports = {"gRPC": config.rpc_port, "HTTP": config.http_port}
    open_ports = {name for name, port in ports.items() if port is not None}
    fault = fault_of_access(config.access, config.tls, open_ports <= taken, taken == {"gRPC"})
    if not fault and config.admin_port is not None and not open_ports <= taken:
        fault = "admin_port: it needs the gateway on all ports: set edge: gateway"
    if fault:
        raise ConfigError(f"{config.source}: {fault}")
    hosts = [config.rpc_host or config.host, config.http_host or config.host]
    if config.admin_port is not None:
        hosts.append(config.admin_host)
    if not all(map(is_loopback, hosts)) and config.access.anonymous == ROLES:
        doors = (
            "" if open_ports <= taken else "; without edge: gateway it is for trusted networks only"
        )
        _LOGGER.warning(
            "%s: every caller that reaches this server may do anything%s: see docs/security.md",
            config.source, doors,
        )  # fmt: skip


class Gateway(Ingress):
    """An Ingress in Go, which asks the server over Unix sockets.

    It listens on a socket that is this process's: when it dies callers wait until it is there
    again. It ends when this process does, however that happens.

    Args:
        config: with a port for each of these.
        takes: what it listens for: "HTTP", "gRPC" or both, see `taken_by_gateway`.
        waits: `start` is done when a replica is ready; False, of a repository: when one is
            connected, ready or not, and requests of a sequence go to one of them.
    """

    def __init__(self, config: ServiceConfig, takes: frozenset[str], waits: bool = True) -> None:
        self.takes: frozenset[str] = takes
        self._waits = waits
        self._config = config
        self._binary = Path()
        is_older = config.http_server == "gateway"  # the word that asks for it
        self._key = "http_server: gateway" if is_older else f"edge: {config.edge}"
        self._folder = TempDir(f"{self._key}: the sockets between it and the server")
        self._listeners: dict[str, socket.socket] = {}
        self._place: SidecarSupervisor | None = None
        self._is_grace_cancelled = False

    def open(self) -> Path:
        """Make the folder for the sockets of the frontends that it asks, until `close`.

        Raises:
            InitError: there is no binary, or one of another link; no folder where sockets can be.
        """
        try:
            self._binary = find_binary()
            check_link(self._binary, VERSION)
        except InitError as error:
            raise InitError(f"{self._key}: {error}") from error
        folder = self._folder.make()
        last = max(0, self._config.replicas - 1)
        for path in socket_paths(folder, last):
            check_unix_path(str(path), self._key)
        if "," in str(folder):  # it stands between the sockets of a --backend
            text = f"{self._key}: there is a comma in {folder}. Set TMPDIR to another folder."
            raise InitError(text)
        make_secret(folder)
        return folder

    def start(self) -> asyncio.Future[None]:
        """Listen, and start it; done when it is up, see `waits`.

        Raises:
            InitError: the port is in use; from what is returned: it does not start.
        """
        for name, (host, port, key) in _places(self._config, self.takes).items():
            self._listeners[name] = bind(host, port, key, self._config.reuse_port)
        ports = {name: port_of(listener) for name, listener in self._listeners.items()}
        if self._is_one_port:
            ports["gRPC"] = ports["HTTP"]
        self.ports: Mapping[str, int] = ports
        where = ", ".join(
            address_of(host, self.ports[name])
            for name, (host, _, _) in _places(self._config, self.takes).items()
        )
        failure = f"{self._key}: it does not start"
        self._place = SidecarSupervisor(
            SidecarSpec(self._run, "gateway", "its process", where, failure)
        )
        return self._place.start()

    def drain(self) -> None:
        """Have it say not ready, serve on for the `drain_delay`, and close its socket then."""
        self._close_listeners()  # the process has them too
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
        self._close_listeners()
        self._folder.remove()

    @property
    def _is_one_port(self) -> bool:
        return is_one_port(self._config) and {"HTTP", "gRPC"} <= self.takes

    def _close_listeners(self) -> None:
        for listener in self._listeners.values():
            listener.close()

    def _run(self, life: socket.socket) -> subprocess.Popen[bytes]:
        listeners = {name: listener.fileno() for name, listener in self._listeners.items()}
        flags = [word for name in listeners for word in (_FLAGS[name], str(listeners[name]))]
        if "HTTP" not in listeners:
            flags += ["--listen", ""]
        if self._is_one_port:
            flags.append("--one-port")
        try:
            return subprocess.Popen(
                [self._binary, "--parent", *flags, *self._arguments()],
                stdin=life.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=tuple(listeners.values()),
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
            "log-format": config.log.format,
            "traces-per-s": str(_traces_per_s(config)),
        }
        return [
            *(f"--backend=link:{link},{http}" for link, http in backends),
            *(f"--{name}={value}" for name, value in settings.items()),
            "--backend-metrics",
            *([] if self._waits else ["--connected-is-up", "--policy=sticky"]),
            *self._security(folder),
        ]

    def _security(self, folder: Path) -> list[str]:
        """Return the flags of `access`, in a file of this user's, and of `tls`."""
        config, flags = self._config, []
        if config.access != AccessConfig():
            document = folder / "access.json"
            document.write_bytes(document_of(config.access))
            flags.append(f"--access={document}")
        tls = {
            "tls-cert": config.tls.certificate,
            "tls-key": config.tls.key,
            "tls-client-ca": config.tls.client_ca,
        }
        return [
            *flags,
            *(f"--{name}={value}" for name, value in tls.items() if value),
            *_flags_of(config.cors),
        ]


def _traces_per_s(config: ServiceConfig) -> int:
    """Return how many traces the gateway begins a second that are recorded; 0: it begins none.

    As many as the server would: where a sampler is configured that is the server's to ask.
    """
    return TRACES_A_SECOND if config.sends_traces and "OTEL_TRACES_SAMPLER" not in os.environ else 0


def _flags_of(cors: CorsConfig) -> list[str]:
    """Return the gateway's flags about web pages from other origins."""
    if not cors.origins:
        return []
    return [
        *(f"--cors-origin={origin}" for origin in cors.origins),
        *(f"--cors-header={name}" for name in cors.headers),
        *(["--cors-credentials"] if cors.credentials else []),
        f"--cors-max-age={cors.max_age_s}s",
    ]


def is_one_port(config: ServiceConfig) -> bool:
    """Return whether `rpc_port` and `http_port` are one."""
    hosts = {config.rpc_host or config.host, config.http_host or config.host}
    return bool(config.rpc_port) and config.rpc_port == config.http_port and len(hosts) == 1


def _places(config: ServiceConfig, takes: frozenset[str]) -> dict[str, tuple[str, int, str]]:
    """Return where to listen, by the names of the ports: host, port and the key that says so."""
    places = {}
    if "gRPC" in takes and not (is_one_port(config) and "HTTP" in takes):
        places["gRPC"] = (config.rpc_host or config.host, config.rpc_port or 0, "rpc_port")
    if "HTTP" in takes:
        places["HTTP"] = (config.http_host or config.host, config.http_port or 0, "http_port")
    if config.admin_port is not None:
        places["admin"] = (config.admin_host, config.admin_port, "admin_port")
    return places


def _duration(seconds: float) -> str:
    """Return a duration as Go reads it."""
    return f"{round(seconds * 1000)}ms"
