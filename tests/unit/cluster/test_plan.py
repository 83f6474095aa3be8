"""The plan of a fleet, and fleets that follow it, on a clock of the test's own."""

from __future__ import annotations

import pytest

from pipeline.cluster.plan import (
    MAX_FAILURES,
    SETTLE_S,
    DesiredFleet,
    Failures,
    FleetReplica,
    ReplicaPhase,
    is_reached,
    plan,
)


class Simulated:
    """A fleet whose replicas are ready a second after their start, unless their release fails."""

    def __init__(self) -> None:
        self.now = 0.0
        self.replicas: list[FleetReplica] = []
        self.failures = Failures()
        self.wanted = DesiredFleet(1, 3)
        self.failing: set[int] = set()
        self.least_ready = 99
        self.most = 0
        self.room = 99

    def passes(self, seconds: float) -> None:
        for _ in range(round(seconds * 2)):
            self.now += 0.5
            self._live()
            actions = plan(self.wanted, self.replicas, self.failures, self.now)
            for item in actions.drain:
                item.becomes(ReplicaPhase.DRAINING, self.now)
            for item in actions.stop:
                self.replicas.remove(item)
            for _ in range(actions.start):
                number = 1 + max((replica.number for replica in self.replicas), default=0)
                self.replicas.append(FleetReplica(number, self.wanted.release, since=self.now))
            self.least_ready = min(self.least_ready, self.ready())
            self.most = max(self.most, len(self.replicas))

    def _live(self) -> None:
        for replica in list(self.replicas):
            if self.replicas.index(replica) >= self.room:
                replica.since = self.now
            elif replica.phase is ReplicaPhase.STARTING and self.now - replica.since >= 1:
                if replica.release in self.failing:
                    self.failures.add(self.now, "no model")
                    self.replicas.remove(replica)
                else:
                    replica.becomes(ReplicaPhase.READY, self.now)
                    self.failures = Failures()

    def ready(self, release: int = 0) -> int:
        asked = [replica for replica in self.replicas if release in (0, replica.release)]
        return sum(item.phase is ReplicaPhase.READY for item in asked)


@pytest.fixture
def fleet() -> Simulated:
    made = Simulated()
    made.passes(2)
    made.least_ready, made.most = 99, 0
    return made


def test_all_replicas_of_a_first_release_start_together(fleet):
    assert fleet.ready() == 3
    assert is_reached(fleet.wanted, fleet.replicas)


def test_a_new_release_replaces_one_replica_at_a_time(fleet):
    fleet.wanted = DesiredFleet(2, 3)
    fleet.passes(20)
    assert (fleet.ready(2), len(fleet.replicas)) == (3, 3)
    assert fleet.least_ready == 3
    assert fleet.most <= 6


def test_without_spare_capacity_an_old_replica_stops_first(fleet):
    fleet.room = 3
    fleet.wanted = DesiredFleet(2, 3)
    fleet.passes(20)
    assert fleet.ready(1) == 3
    fleet.wanted = DesiredFleet(2, 3, unavailable=1)
    fleet.passes(40)
    assert (fleet.ready(2), fleet.least_ready) == (3, 2)


def test_a_new_release_that_fails_leaves_the_old_one(fleet):
    fleet.failing = {2}
    fleet.wanted = DesiredFleet(2, 3)
    fleet.passes(200)
    assert (fleet.ready(1), fleet.least_ready) == (3, 3)
    assert fleet.failures.count == MAX_FAILURES


def test_a_release_after_a_failed_one_starts(fleet):
    fleet.failing = {2}
    fleet.wanted = DesiredFleet(2, 3)
    fleet.passes(60)
    fleet.failures = Failures()
    fleet.wanted = DesiredFleet(3, 3)
    fleet.passes(20)
    assert is_reached(fleet.wanted, fleet.replicas)
    assert fleet.least_ready == 3


def test_a_first_release_that_fails_is_tried_again_after_pauses():
    fleet = Simulated()
    fleet.failing = {1}
    fleet.passes(120)
    assert MAX_FAILURES < fleet.failures.count < 20
    fleet.failing = set()
    fleet.passes(120)
    assert fleet.ready() == 3


def test_more_and_fewer_replicas(fleet):
    fleet.wanted = DesiredFleet(1, 5)
    fleet.passes(20)
    assert fleet.ready() == 5
    fleet.wanted = DesiredFleet(1, 2)
    fleet.passes(20)
    assert (fleet.ready(), len(fleet.replicas)) == (2, 2)
    assert {replica.number for replica in fleet.replicas} == {1, 2}  # the youngest went


def test_a_lost_replica_is_replaced(fleet):
    fleet.replicas.pop(0)
    fleet.passes(3)
    assert fleet.ready() == 3


def test_an_unwanted_fleet_has_no_replicas(fleet):
    fleet.replicas.append(FleetReplica(9, 1, since=fleet.now))
    fleet.wanted = DesiredFleet(1, 0)
    fleet.passes(10)
    assert fleet.replicas == []
    assert is_reached(fleet.wanted, fleet.replicas)


def test_a_replica_stops_after_edges_have_removed_it(fleet):
    fleet.wanted = DesiredFleet(1, 2)
    fleet.passes(0.5)
    (going,) = [replica for replica in fleet.replicas if replica.phase is ReplicaPhase.DRAINING]
    fleet.passes(SETTLE_S - 0.5)
    assert going in fleet.replicas
    fleet.passes(0.5)
    assert going not in fleet.replicas


def test_a_replica_that_is_temporarily_unready_is_not_replaced(fleet):
    fleet.replicas[0].becomes(ReplicaPhase.UNREADY, fleet.now)
    fleet.passes(5)
    assert len(fleet.replicas) == 3
    assert fleet.replicas[0].is_listed
