"""ModelServices: the services that a server starts for Ops with `client_type: brpc` or `grpc`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pipeline.errors import InitError
from pipeline.op import Op
from pipeline.runtime.predictor_loader import ModelServiceAddress, resolve_path
from pipeline.runtime.sidecar import SidecarSpec, SidecarSupervisor, end_all
from pipeline.system.temp_dir import TempDir

_HOST = "127.0.0.1"
_MAX_ATTEMPTS = 10  # to get a port that is free
_EXIT_TIMEOUT_S = 10.0  # for a service to end by itself


class ModelServices:
    """One service for each device of each Op that wants any.

    They listen on free ports of this machine's own, which are known before they run: `open`
    comes before processes are forked that have to know them. Until one that has ended is ready
    again its port refuses connections. All of them end when this process does.

    Of an Op without `client_config` the first service writes what clients have to know of the
    model, before it is ready, to a temporary folder. A relative `model_config` is looked up in
    the Op's folder of `ops` first. `addresses` are those of an Op's services, by its name.
    """

    def __init__(self, ops: Mapping[Op, Path]) -> None:
        self._ops = [
            op
            for op in ops
            if (local := op.pipeline_config.local_service_conf).model_config is not None
            and local.client_type != "local_predictor"
            and not op.pipeline_config.server_endpoints
        ]
        self._folders = ops
        self._services: list[_ModelService] = []
        self._folder = TempDir("model services")
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
        model = resolve_path(self._folders[op], local.model_config).absolute()
        conf = msgspec.to_builtins(local) | {"model_config": str(model)}
        conf |= conf.pop("engine_options")
        if op.dynamic_shape_info:
            conf["dynamic_shape_info"] = op.dynamic_shape_info
        for card in local.devices.split(","):
            yield conf | {"devices": card.strip()}

    async def start(self) -> None:
        """Start all services; returns when they are ready. InitError says why one is not."""
        await asyncio.gather(*(service.supervisor.start() for service in self._services))

    async def stop(self) -> None:
        try:
            await end_all([service.supervisor for service in self._services], _EXIT_TIMEOUT_S)
        finally:
            self.close()

    def close(self) -> None:
        """Give back the ports and the folder."""
        for service in self._services:
            service.listener.close()
        self._services.clear()
        self._folder.remove()


class _ModelService:
    """One service, and the socket that it listens on, which outlives its processes."""

    def __init__(self, op: str, arguments: list[str]) -> None:
        self.listener = _bound(op)
        self.endpoint = f"{_HOST}:{self.listener.getsockname()[1]}"
        spec = SidecarSpec(
            functools.partial(_run, op, arguments, self.listener),
            op,
            "its service",
            self.endpoint,
            f"op.{op}.local_service_conf: the model's service does not start",
        )
        self.supervisor = SidecarSupervisor(spec, self._down)

    def _down(self) -> None:
        with contextlib.suppress(OSError):  # it did not listen yet
            self.listener.shutdown(socket.SHUT_RDWR)  # so that callers look elsewhere


def _bound(op: str) -> socket.socket:
    """Return a socket with a port of its own; the process that inherits it listens."""
    for _ in range(_MAX_ATTEMPTS):
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
    home = str(Path(__file__).resolve().parents[2])
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
