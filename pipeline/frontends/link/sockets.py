"""InternalFrontends: the doors of a server that only its front knows, on Unix sockets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pipeline.frontends.base import Frontend


class SocketPaths(NamedTuple):
    """Where one process of a server listens for its front."""

    link: Path
    http: Path


def socket_paths(folder: Path, copy: int) -> SocketPaths:
    """Those of the copy of this number, 0 for a server without copies."""
    return SocketPaths(folder / f"{copy}.link", folder / f"{copy}.http")


class InternalFrontends:
    """Several doors as one, which stay open when the others close.

    Their front may still have requests that it has to bring in: it is gone before `stop`.

    Args:
        doors: whatever there is.
    """

    port = 0

    def __init__(self, doors: Sequence[Frontend]) -> None:
        self._doors = doors

    async def start(self, is_ready: bool = False) -> None:
        """Listen."""
        for door in self._doors:
            await door.start(is_ready)

    async def set_ready(self, ready: bool) -> None:
        """What they say to a front that asks whether the server is ready."""
        for door in self._doors:
            await door.set_ready(ready)

    async def drain(self) -> None:
        """The front is told that the server is not ready; it stays."""
        await self.set_ready(False)

    async def close(self, grace_s: float) -> None:
        """The front closes, not they."""

    async def stop(self, grace_s: float) -> None:
        """End what is left after `grace_s`."""
        for door in self._doors:
            await door.close(grace_s)
            await door.stop(grace_s)
