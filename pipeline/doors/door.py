"""What every door is to the server: how requests come in, and how they cease to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.config import ServiceConfig

Handle = Callable[[Any, float | None], Awaitable[Any]]
"""`DAGExecutor.handle`: (request, seconds that the caller gives) -> response."""


class Door(Protocol):
    """Takes requests in, on the event loop that called `start`."""

    port: int
    """The real one, after `start`."""

    async def start(self, is_ready: bool = False) -> None:
        """Listen. InitError names an address that is in use."""

    async def set_ready(self, ready: bool) -> None:
        """What the door says to who asks whether the server is ready."""

    async def close(self, grace_s: float) -> None:
        """Stop accepting; requests that are inside have `grace_s`. Does not wait for them."""

    async def stop(self, grace_s: float) -> None:
        """End what is left after `grace_s`. May be called without `start`, `close`, and twice."""


@dataclass(frozen=True, slots=True)
class Behind:
    """What is behind the doors of a server. `is_shared`: other processes listen there too."""

    handle: Handle
    config: ServiceConfig
    is_shared: bool = False


OpenDoors = Callable[[Behind], Mapping[str, Door]]
"""Makes a server's doors, by the names that it shows: {"gRPC": ..., "HTTP": ...}."""
