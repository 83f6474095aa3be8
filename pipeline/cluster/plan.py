"""Plan of a fleet: what is to be done so that it becomes what is wanted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

import msgspec

SETTLE_S = 2.0
"""Time from when a replica leaves the list until it is stopped: edges look at it twice a second."""

MAX_FAILURES = 3
"""Replicas of a release that may fail in a row before no more of them are started."""

_FIRST_PAUSE_S, _MAX_PAUSE_S = 1.0, 30.0


class Phase(Enum):
    """State of a replica. It goes from one to the next, and skips some."""

    STARTING = auto()
    READY = auto()
    UNREADY = auto()  # was ready; its Ops lack workers
    DRAINING = auto()  # not in the list any more
    STOPPING = auto()
    FAILED = auto()  # ended by itself, or with its node


class Replica(msgspec.Struct, eq=False):
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
    phase: Phase = Phase.STARTING
    since: float = 0.0
    address: str = ""
    node: str = ""
    detail: str = ""

    @property
    def is_listed(self) -> bool:
        """Return whether edges send it requests."""
        return self.phase in (Phase.READY, Phase.UNREADY)

    def becomes(self, phase: Phase, now: float, detail: str = "") -> None:
        """Go to a phase."""
        if phase is not self.phase:
            self.phase, self.since = phase, now
        self.detail = detail


class Wanted(NamedTuple):
    """What a fleet shall be.

    `unavailable`: replicas that may be missing while a release is renewed, where the nodes have no
    room for one more.
    """

    release: int
    replicas: int
    unavailable: int = 0


class Failures(msgspec.Struct):
    """How replicas of the wanted release have failed, in a row, without one that became ready."""

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
    """What is to be done now.

    `start` so many replicas of the wanted release; `drain` takes from the list, `stop` ends.
    """

    start: int
    drain: Sequence[Replica]
    stop: Sequence[Replica]


def plan(wanted: Wanted, replicas: Sequence[Replica], failures: Failures, now: float) -> Actions:
    """Return what is to be done so that a fleet becomes what is wanted, and serves meanwhile.

    A new release comes one replica at a time beside the old one, which goes one at a time as the
    new ones are ready: there are never fewer ready replicas than wanted, but for those that may be
    missing. Where the new release fails again and again the old one stays.
    """
    new = [each for each in replicas if each.release == wanted.release and _goes_on(each)]
    old = [each for each in replicas if each.release != wanted.release and _goes_on(each)]
    drain = _surplus(wanted, new, old, failures.count > 0)
    stop = [
        each for each in replicas if each.phase is Phase.DRAINING and now - each.since >= SETTLE_S
    ]
    stop += _needless_starts(wanted, new, old)
    return Actions(_to_start(wanted, new, old, failures, now), drain, stop)


def is_reached(wanted: Wanted, replicas: Sequence[Replica]) -> bool:
    """Return whether a fleet is what is wanted, and nothing else is left."""
    ready = [
        each for each in replicas if each.release == wanted.release and each.phase is Phase.READY
    ]
    return len(ready) == len(replicas) == wanted.replicas


def _goes_on(replica: Replica) -> bool:
    return replica.phase in (Phase.STARTING, Phase.READY, Phase.UNREADY)


def _to_start(
    wanted: Wanted, new: Sequence[Replica], old: Sequence[Replica], failures: Failures, now: float
) -> int:
    missing = wanted.replicas - len(new)
    if missing <= 0 or now < failures.last_at + failures.pause_s():
        return 0
    if old and failures.count >= MAX_FAILURES:
        return 0  # the old release serves on, until somebody decides
    if not old and not failures.count:
        return missing
    coming = sum(each.phase is Phase.STARTING for each in new)
    return max(0, 1 - coming)


def _needless_starts(
    wanted: Wanted, new: Sequence[Replica], old: Sequence[Replica]
) -> list[Replica]:
    """Return who starts and is not needed any more, the youngest first."""
    starting = [each for each in new if each.phase is Phase.STARTING]
    surplus = max(0, len(new) - wanted.replicas)
    youngest = sorted(starting, key=lambda each: -each.number)[:surplus]
    return [*youngest, *(each for each in old if each.phase is Phase.STARTING)]


def _surplus(
    wanted: Wanted, new: Sequence[Replica], old: Sequence[Replica], fails: bool
) -> list[Replica]:
    """Return who serves and is not needed: of the old release first, the youngest first."""
    listed = [each for each in (*new, *old) if each.is_listed]
    ready = sum(each.phase is Phase.READY for each in listed)
    needed = wanted.replicas - (wanted.unavailable if old and not fails else 0)
    going: list[Replica] = []
    for each in sorted(listed, key=lambda it: (it.release == wanted.release, -it.number)):
        is_ready = each.phase is Phase.READY
        is_old = each.release != wanted.release
        too_many = len([it for it in new if it.is_listed and it not in going]) > wanted.replicas
        if (is_old or too_many) and ready - is_ready >= needed:
            going.append(each)
            ready -= is_ready
    return going
