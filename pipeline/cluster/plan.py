"""Plan of a fleet: what is to be done so that it becomes what is wanted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

SETTLE_S = 2.0
"""Time from when a replica leaves the list until it is stopped: edges look at it twice a second."""

MAX_FAILURES = 3
"""Replicas of a release that may fail in a row before no more of them are started."""

_FIRST_PAUSE_S, _MAX_PAUSE_S = 1.0, 30.0


class ReplicaPhase(Enum):
    """State of a replica. It goes from one to the next, and skips some."""

    STARTING = "starting"
    READY = "ready"
    UNREADY = "unready"  # was ready; its Ops lack workers
    DRAINING = "draining"  # not in the list any more
    STOPPING = "stopping"
    FAILED = "failed"  # ended by itself, or with its node


class FleetReplica(msgspec.Struct, eq=False):
    """One server of a fleet.

    Attributes:
        number: tells it from all others that the fleet ever had.
        release: that it serves, from 1.
        since: when it came to this phase, in seconds of the fleet's clock.
        address: `host:rpc_port/http_port`; "" before it has one.
        node: where it runs, for people.
        detail: why it failed, or what it waits for.
    """

    number: int
    release: int
    phase: ReplicaPhase = ReplicaPhase.STARTING
    since: float = 0.0
    address: str = ""
    node: str = ""
    detail: str = ""

    @property
    def is_listed(self) -> bool:
        """Return whether edges send it requests."""
        return self.phase in (ReplicaPhase.READY, ReplicaPhase.UNREADY)

    def becomes(self, phase: ReplicaPhase, now: float, detail: str = "") -> None:
        """Go to a phase."""
        if phase is not self.phase:
            self.phase, self.since = phase, now
        self.detail = detail


Replicas = Sequence[FleetReplica]


class DesiredFleet(NamedTuple):
    """FleetRelease and number of replicas that a fleet shall have.

    `unavailable`: replicas that may be missing while a release is renewed, where the nodes have no
    room for one more.
    """

    release: int
    replicas: int
    unavailable: int = 0


class Failures(msgspec.Struct):
    """Failures of replicas of the wanted release, in a row, without one that became ready."""

    count: int = 0
    last_at: float = 0.0
    reason: str = ""

    def add(self, now: float, reason: str) -> None:
        """Take note of one more."""
        self.count, self.last_at, self.reason = self.count + 1, now, reason

    def pause_s(self) -> float:
        """Return how long to wait before the next start."""
        if not self.count:
            return 0.0
        return min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** (self.count - 1))


class Actions(NamedTuple):
    """Work that is to be done now.

    `start` so many replicas of the wanted release; `drain` takes from the list, `stop` ends.
    """

    start: int
    drain: Replicas
    stop: Replicas


def plan(wanted: DesiredFleet, replicas: Replicas, failures: Failures, now: float) -> Actions:
    """Return the next actions that bring a fleet to the wanted state without an interruption.

    Replicas of a new release start one at a time, and replicas of the old one end as the new ones
    become ready: the number of ready replicas never falls below the wanted number, except by those
    already missing. If the new release fails repeatedly the old one stays.
    """
    new = [
        replica for replica in replicas if replica.release == wanted.release and _goes_on(replica)
    ]
    old = [
        replica for replica in replicas if replica.release != wanted.release and _goes_on(replica)
    ]
    drain = _surplus(wanted, new, old, failures.count > 0)
    draining = [replica for replica in replicas if replica.phase is ReplicaPhase.DRAINING]
    stop = [replica for replica in draining if now - replica.since >= SETTLE_S]
    stop += _needless_starts(wanted, new, old)
    return Actions(_to_start(wanted, new, old, failures, now), drain, stop)


def is_reached(wanted: DesiredFleet, replicas: Replicas) -> bool:
    """Return whether a fleet is what is wanted, and nothing else is left."""
    new = [replica for replica in replicas if replica.release == wanted.release]
    ready = [replica for replica in new if replica.phase is ReplicaPhase.READY]
    return len(ready) == len(replicas) == wanted.replicas


def _goes_on(replica: FleetReplica) -> bool:
    return replica.phase in (ReplicaPhase.STARTING, ReplicaPhase.READY, ReplicaPhase.UNREADY)


def _to_start(
    wanted: DesiredFleet,
    new: Replicas,
    old: Replicas,
    failures: Failures,
    now: float,
) -> int:
    missing = wanted.replicas - len(new)
    if missing <= 0 or now < failures.last_at + failures.pause_s():
        return 0
    if old and failures.count >= MAX_FAILURES:
        return 0  # the old release serves on, until somebody decides
    if not old and not failures.count:
        return missing
    coming = sum(replica.phase is ReplicaPhase.STARTING for replica in new)
    return max(0, 1 - coming)


def _needless_starts(wanted: DesiredFleet, new: Replicas, old: Replicas) -> list[FleetReplica]:
    """Return who starts and is not needed any more, the youngest first."""
    starting = [replica for replica in new if replica.phase is ReplicaPhase.STARTING]
    surplus = max(0, len(new) - wanted.replicas)
    youngest = sorted(starting, key=lambda replica: -replica.number)[:surplus]
    return [*youngest, *(replica for replica in old if replica.phase is ReplicaPhase.STARTING)]


def _surplus(wanted: DesiredFleet, new: Replicas, old: Replicas, fails: bool) -> list[FleetReplica]:
    """Return who serves and is not needed: of the old release first, the youngest first."""
    listed = [replica for replica in (*new, *old) if replica.is_listed]
    ready = sum(replica.phase is ReplicaPhase.READY for replica in listed)
    needed = wanted.replicas - (wanted.unavailable if old and not fails else 0)
    going: list[FleetReplica] = []
    for replica in sorted(listed, key=lambda it: (it.release == wanted.release, -it.number)):
        is_ready = replica.phase is ReplicaPhase.READY
        is_old = replica.release != wanted.release
        too_many = len([it for it in new if it.is_listed and it not in going]) > wanted.replicas
        if (is_old or too_many) and ready - is_ready >= needed:
            going.append(replica)
            ready -= is_ready
    return going
