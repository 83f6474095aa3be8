"""RayApi: the part of Ray that this folder uses; tests replace it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pipeline.config.sections import RayConfig

OnValue = Callable[[Any, "Exception | None"], None]
"""Gets the value of a reference, or why there is none; in any thread."""


class ActorGoneError(Exception):
    """An actor has died."""


class UnreachableError(ActorGoneError):
    """An actor cannot be reached: most likely its node is gone."""


class ObjectGoneError(Exception):
    """An object is lost: with its node, or because there was no room."""


@dataclass(frozen=True, slots=True)
class Demands:
    """Resources that an actor needs of its node, and its placement.

    `node` is the id of a preferred node; `spreads`: prefer a node with few actors.
    """

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    spreads: bool = False
    node: str | None = None


class RayApi(Protocol):
    """Calls to Ray. From any thread but the event loop's, because each may take long.

    Attributes:
        where: returns the id of the node that it is called on; picklable.
    """

    @property
    def where(self) -> Callable[[], str]: ...

    def connect(self, config: RayConfig) -> None:
        """Join a cluster; raises InitError."""

    def start(self, actor: type, cargo: Any, demands: Demands, name: str) -> Any:
        """Return a handle of a new actor, which is made with `cargo` as soon as there is room."""

    def call(self, actor: Any, method: str, args: Sequence[Any], returns: int) -> list[Any]:
        """Call a method of an actor; return references of its results."""

    def put(self, value: Any) -> Any:
        """Put a value into the store, and return a reference."""

    def get(self, ref: Any, timeout_s: float) -> Any:
        """Wait for the value of a reference and return it; raises ObjectGoneError."""

    def when_done(self, ref: Any, notify: OnValue) -> None:
        """Have `notify` called with its value, or an ActorGoneError, ObjectGoneError or another."""

    def kill(self, actor: Any) -> None:
        """Kill an actor."""

    def describe_room(self) -> str:
        """Return the nodes' resources, for an error message."""

    def close(self) -> None:
        """Leave the cluster; end it if this process has started it."""
