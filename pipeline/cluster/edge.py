"""Edge of a fleet: the gateway before its replicas, whose list follows the fleet."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from pipeline.cluster.fleet import FleetView
from pipeline.errors import InitError
from pipeline.gateway.binary import cannot_run, find_binary
from pipeline.runtime.sidecar import SidecarSpec, SidecarSupervisor, end_all
from pipeline.system.event_loop import waited
from pipeline.system.temp_dir import TempDir

_LOGGER = logging.getLogger(__name__)

_LOOK_S = 0.5
_END_TIMEOUT_S = 35.0


class Edge:
    """The gateway as a child, and the file with the addresses of the replicas.

    While the fleet cannot be asked the last list stays.

    Args:
        view: asks the fleet.
        flags: of the gateway: where it listens, TLS, access.
    """

    def __init__(self, view: Callable[[], Awaitable[FleetView]], flags: Sequence[str]) -> None:
        self._view = view
        self._flags = flags
        self._folder = TempDir("the edge of a fleet")
        self._listed: list[str] | None = None
        self._is_lost = False
        self.last: FleetView | None = None
        """View of the fleet when it was asked last."""

    async def run(self, stopped: asyncio.Event) -> None:
        """Serve until it is stopped. Raises InitError: the gateway does not start."""
        binary = find_binary()
        await self.look()
        spec = SidecarSpec(
            lambda life: self._start(binary, life),
            *("edge", "its process", " ".join(self._flags), "the edge does not start"),
        )
        gateway = SidecarSupervisor(spec)
        try:
            await gateway.start()
            while not stopped.is_set():
                await self.look()
                await waited(stopped, _LOOK_S)
        finally:
            await end_all([gateway], _END_TIMEOUT_S)
            self._folder.remove()

    async def look(self) -> None:
        """Ask the fleet, and write the list if it has changed."""
        try:
            self.last = view = await self._view()
        except InitError as error:
            if not self._is_lost:
                _LOGGER.error("%s; requests go to the replicas that were there", error)
            self._is_lost = True
            return
        self._is_lost = False
        if view.addresses != self._listed:
            self._listed = view.addresses
            write_list(self._path, self._listed)
            _LOGGER.info("replicas: %s", ", ".join(self._listed) or "none")

    @property
    def _path(self) -> Path:
        return self._folder.make() / "backends"

    def _start(self, binary: Path, life: socket.socket) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                [binary, "--parent", f"--backends-file={self._path}", *self._flags],
                stdin=life.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for us, who end it when it has answered
            )
        except OSError as error:
            raise cannot_run(binary, error) from error


def write_list(path: Path, addresses: Sequence[str]) -> None:
    """Write the list of replicas; who reads it sees the old one or the new."""
    draft = path.with_suffix(".new")
    lines = "".join(f"{address}\n" for address in addresses)
    draft.write_text(lines or "[]\n", encoding="ascii")  # an empty file is a mistake to the gateway
    os.replace(draft, path)
