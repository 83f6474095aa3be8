"""RayApi: what we use of Ray, as far as the rest of this folder knows it; tests play it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pipeline.config.sections import RayConfig

Told = Callable[[Any, "Exception | None"], None]
"""Told the value of a reference, or why there is none; in whatever thread."""


class ActorGoneError(Exception):
    """An actor has died."""


class UnreachableError(ActorGoneError):
    """An actor cannot be reached: most likely its node is gone."""


class ObjectGoneError(Exception):
    """An object is lost: with the node that it was on, or as there is no more room."""


@dataclass(frozen=True, slots=True)
class Demands:
    """Demands of an actor: what it needs of its node, and where it is put.

    `node` is the id of one where it is put if there is room; `spreads`: on one that has few.
    """

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    spreads: bool = False
    node: str | None = None


class RayApi(Protocol):
    """Calls into Ray. From any thread but the event loop's, as each may take a while.

    Attributes:
        where: returns the id of the node that it is called on; picklable.
    """

    @property
    def where(self) -> Callable[[], str]: ...

    def connect(self, config: RayConfig) -> None:
        """Be part of a cluster; raises InitError."""

    def start(self, actor: type, cargo: Any, demands: Demands, name: str) -> Any:
        """Return a handle of a new actor, which is made with `cargo` as soon as there is room."""

    def call(self, actor: Any, method: str, args: Sequence[Any], returns: int) -> list[Any]:
        """Call a method of an actor; return references of what it returns."""

    def put(self, value: Any) -> Any:
        """Return a reference of a value, which is in the store from now on."""

    def get(self, ref: Any, timeout_s: float) -> Any:
        """Return the value of a reference, waited for; raises ObjectGoneError."""

    def when_done(self, ref: Any, notify: Told) -> None:
        """Have `told` called with its value, or an ActorGoneError, ObjectGoneError or another."""

    def kill(self, actor: Any) -> None:
        """End an actor at once."""

    def describe_room(self) -> str:
        """Return what the nodes have, for an error message."""

    def close(self) -> None:
        """Part from the cluster; end it, if it is our own."""
