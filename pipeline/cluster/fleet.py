"""Fleet: keeps as many replicas of a release as are wanted, and renews them without a gap."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.cluster.bundle import ScriptBundle
from pipeline.cluster.node_server import ReplicaReport
from pipeline.cluster.plan import (
    MAX_FAILURES,
    DesiredFleet,
    Failures,
    FleetReplica,
    ReplicaPhase,
    is_reached,
    plan,
)
from pipeline.errors import InitError, described

if TYPE_CHECKING:
    from pipeline.cluster.ray_fleet import RayNodes

_LOGGER = logging.getLogger(__name__)

_ROUND_S = 0.5
_LOOK_TIMEOUT_S = 5.0
_MAX_MISSED = 3  # looks in a row that a replica lets pass, which is seen as gone then
_STOP_EXTRA_S = 10.0


class ReplicaGoneError(Exception):
    """A replica's process is gone, or its node is."""


class FleetRelease(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """Version of a service: what a replica serves, and what it needs.

    Attributes:
        bundle: the script with its folder.
        settings: keys of config.yml by their dotted names, over those of the file.
        num_cpus: that a replica takes of its node's.
        num_gpus: the same of its cards.
        resources: the same of a node's own.
        grace_s: time that a replica that is stopped gives its requests.
        unavailable: see `plan.DesiredFleet`.
    """

    bundle: ScriptBundle
    settings: Mapping[str, str] = {}
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    resources: Mapping[str, float] = {}
    grace_s: float = 30.0
    unavailable: int = 0


class FleetView(msgspec.Struct, frozen=True):
    """View of a fleet, for people and edges.

    Attributes:
        wanted: release and number of replicas.
        is_reached: whether it is that, and nothing is left of what was before.
        is_stuck: whether the release failed so often that the one before stays.
        reason: why replicas of the release have failed.
    """

    name: str
    wanted: DesiredFleet
    is_reached: bool
    is_stuck: bool
    reason: str
    replicas: tuple[FleetReplica, ...]

    @property
    def addresses(self) -> list[str]:
        """Return where edges send requests: `host:rpc_port/http_port` of each."""
        return sorted(
            replica.address for replica in self.replicas if replica.is_listed and replica.address
        )


class Fleet:
    """Replicas of one service. On one event loop."""

    def __init__(
        self, name: str, nodes: RayNodes, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name: str = name
        self._nodes = nodes
        self._clock = clock
        self._releases: dict[int, FleetRelease] = {}
        self._wanted = DesiredFleet(0, 0)
        self._failures = Failures()
        self._handles: dict[FleetReplica, Any] = {}
        self._missed: dict[FleetReplica, int] = {}
        self._ends: dict[FleetReplica, asyncio.Task[None]] = {}
        self._last_number = self._last_release = 0
        self._is_over = False

    def want(self, release: FleetRelease | None, replicas: int | None) -> None:
        """Change the wanted state; None: keep a value. A release replaces the last one.

        Raises InitError: the fleet has ended, or there is no release that replicas could serve.
        """
        if self._is_over:
            raise InitError(f"the fleet {self.name!r} ends at this moment: try again")
        number = self._wanted.release
        if release is None and replicas and not number:
            raise InitError("it has no release yet: pipeline cluster up SCRIPT brings one")
        if release is not None:
            self._last_release = number = self._last_release + 1
            self._releases[number] = release
            self._failures = Failures()
        count = self._wanted.replicas if replicas is None else replicas
        unavailable = self._wanted.unavailable if release is None else release.unavailable
        self._wanted = DesiredFleet(number, count, unavailable)

    def roll_back(self) -> int:
        """Want the release again that serves beside the wanted one; return its number, or 0."""
        serving = {handle.release for handle in self._handles if handle.is_listed}
        release = max(serving - {self._wanted.release}, default=0)
        if release:
            self._wanted = self._wanted._replace(release=release)
            self._failures = Failures()
        return release

    def end(self) -> bool:
        """Stop the fleet permanently; return False if it has replicas, or should have some."""
        self._is_over = not self._wanted.replicas and not self._handles
        return self._is_over

    def view(self) -> FleetView:
        """Return how it stands."""
        replicas, failures = tuple(self._handles), self._failures
        return FleetView(
            self.name,
            self._wanted,
            is_reached(self._wanted, replicas),
            failures.count >= MAX_FAILURES and self._wanted.replicas > 0,
            failures.reason,
            replicas,
        )

    async def run(self) -> None:
        """Adjust the fleet to the wanted state, in a loop."""
        while True:
            try:
                await self.round()
            except Exception:  # a defect of this library must not stop the loop
                _LOGGER.exception("fleet %s: a round failed", self.name)
            await asyncio.sleep(_ROUND_S)

    async def round(self) -> None:
        """Look at all replicas, and do what is to be done now."""
        await asyncio.gather(*(self._look(handle) for handle in list(self._handles)))
        now = self._clock()
        actions = plan(self._wanted, tuple(self._handles), self._failures, now)
        for replica in actions.drain:
            replica.becomes(ReplicaPhase.DRAINING, now, "other replicas take its requests")
        for replica in actions.stop:
            replica.becomes(ReplicaPhase.STOPPING, now)
            self._ends[replica] = asyncio.create_task(self._end(replica))
        for _ in range(actions.start):
            self._start(now)
        used = {handle.release for handle in self._handles} | {self._wanted.release}
        self._releases = {kept: self._releases[kept] for kept in self._releases if kept in used}

    def _start(self, now: float) -> None:
        self._last_number += 1
        release = self._wanted.release
        replica = FleetReplica(
            self._last_number, release, since=now, detail="waits for a node with room"
        )
        name = f"{self.name}-{replica.number}"
        try:
            self._handles[replica] = self._nodes.start(name, self._releases[release])
        except Exception as error:  # what is asked of the nodes cannot be
            self._failed(replica, described(error))
            return
        _LOGGER.info(
            "fleet %s: replica %d of release %d starts", self.name, replica.number, release
        )

    async def _look(self, replica: FleetReplica) -> None:
        if replica.phase not in (ReplicaPhase.STARTING, ReplicaPhase.READY, ReplicaPhase.UNREADY):
            return
        try:
            async with asyncio.timeout(_LOOK_TIMEOUT_S):
                look, node = await self._nodes.look(self._handles[replica])
        except TimeoutError:
            self._missed_look(replica)
        except ReplicaGoneError as error:
            self._failed(replica, str(error))
        else:
            self._missed[replica] = 0
            self._seen(replica, look, node)

    def _missed_look(self, replica: FleetReplica) -> None:
        if replica not in self._missed:  # it has no process yet
            return
        self._missed[replica] += 1
        if self._missed[replica] >= _MAX_MISSED:
            self._failed(replica, f"it answered nothing for {_MAX_MISSED * _LOOK_TIMEOUT_S:g} s")

    def _seen(self, replica: FleetReplica, look: ReplicaReport, node: str) -> None:
        now = self._clock()
        replica.node = node
        if look.phase is ReplicaPhase.FAILED:
            self._failed(replica, look.detail)
            return
        if look.phase is ReplicaPhase.READY and replica.phase is not ReplicaPhase.READY:
            _LOGGER.info("fleet %s: replica %d is ready on %s", self.name, replica.number, node)
            if replica.release == self._wanted.release:
                self._failures = Failures()
        is_coming = replica.phase is ReplicaPhase.STARTING and look.phase is not ReplicaPhase.READY
        replica.address = look.address
        replica.becomes(ReplicaPhase.STARTING if is_coming else look.phase, now, look.detail)

    def _failed(self, replica: FleetReplica, reason: str) -> None:
        """Take note that a replica is gone; another one comes in its place."""
        now = self._clock()
        _LOGGER.error("fleet %s: replica %d failed: %s", self.name, replica.number, reason)
        if replica.release == self._wanted.release:
            self._failures.add(now, reason)
        replica.becomes(ReplicaPhase.FAILED, now, reason)
        self._remove(replica)

    async def _end(self, replica: FleetReplica) -> None:
        grace_s = self._releases[replica.release].grace_s
        try:
            async with asyncio.timeout(grace_s + _STOP_EXTRA_S):
                await self._nodes.stop(self._handles[replica], grace_s)
        except (TimeoutError, ReplicaGoneError) as error:
            _LOGGER.warning("fleet %s: replica %d: %s", self.name, replica.number, error)
        self._ends.pop(replica, None)
        self._remove(replica)

    def _remove(self, replica: FleetReplica) -> None:
        handle = self._handles.pop(replica, None)
        self._missed.pop(replica, None)
        if handle is not None:
            self._nodes.kill(handle)
