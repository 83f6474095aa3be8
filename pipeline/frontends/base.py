"""What every door is to the server: how requests come in, and how they cease to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.config.schema import ServiceConfig
from pipeline.engine.executor import DAGExecutor
from pipeline.engine.graph import Graph
from pipeline.engine.offload import Offload
from pipeline.engine.request import RequestTarget
from pipeline.errors import PackageError
from pipeline.observe.snapshot import AskAll


class Handle(Protocol):
    """`DAGExecutor.handle`: (request, seconds that the caller gives, route) -> response."""

    def __call__(
        self, raw: Any, timeout_s: float | None = None, route: RequestTarget | None = None
    ) -> Awaitable[Any]: ...


class Frontend(Protocol):
    """Takes requests in, on the event loop that called `start`."""

    port: int
    """The real one, after `start`."""

    async def start(self, is_ready: bool = False) -> None:
        """Listen. InitError names an address that is in use."""

    async def set_ready(self, ready: bool) -> None:
        """What the door says to who asks whether the server is ready."""

    async def drain(self) -> None:
        """Say that the server is not ready, serve on, and send callers away with their answers."""

    async def close(self, grace_s: float) -> None:
        """Stop accepting; requests that are inside have `grace_s`. Does not wait for them."""

    async def stop(self, grace_s: float) -> None:
        """End what is left after `grace_s`. May be called without `start`, `close`, and twice."""


@dataclass(frozen=True, slots=True)
class FrontendContext:
    """What is behind the doors of a server, which is called `name`.

    `whole` asks all of its copies how they stand, `record` what happens in the next seconds, see
    `frontends.dashboard.recent`. Large messages are read and written by `offload`. `is_shared`:
    other processes listen there too; this one is `copy`.
    """

    name: str | None
    graph: Graph
    config: ServiceConfig
    engine: DAGExecutor
    whole: AskAll
    record: Callable[[float], Awaitable[list[bytes]]]
    offload: Offload
    is_shared: bool = False
    copy: int = 0


def no_response(answer: Any) -> PackageError:
    """What is told of an overridden `pack_response_package` that returned no Response."""
    return PackageError(f"pack_response_package returned {type(answer).__name__}, not a Response")


OpenDoors = Callable[[FrontendContext], Mapping[str, Frontend]]
"""Makes a server's doors, by the names that it shows: {"gRPC": ..., "HTTP": ...}."""
