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
            for each in actions.drain:
                each.becomes(ReplicaPhase.DRAINING, self.now)
            for each in actions.stop:
                self.replicas.remove(each)
            for _ in range(actions.start):
                number = 1 + max((each.number for each in self.replicas), default=0)
                self.replicas.append(FleetReplica(number, self.wanted.release, since=self.now))
            self.least_ready = min(self.least_ready, self.ready())
            self.most = max(self.most, len(self.replicas))

    def _live(self) -> None:
        for each in list(self.replicas):
            if self.replicas.index(each) >= self.room:
                each.since = self.now
            elif each.phase is ReplicaPhase.STARTING and self.now - each.since >= 1:
                if each.release in self.failing:
                    self.failures.add(self.now, "no model")
                    self.replicas.remove(each)
                else:
                    each.becomes(ReplicaPhase.READY, self.now)
                    self.failures = Failures()

    def ready(self, release: int = 0) -> int:
        asked = [each for each in self.replicas if release in (0, each.release)]
        return sum(each.phase is ReplicaPhase.READY for each in asked)


@pytest.fixture
def fleet() -> Simulated:
    made = Simulated()
    made.passes(2)
    made.least_ready, made.most = 99, 0
    return made


def test_all_replicas_of_a_first_release_start_together(fleet):
    assert fleet.ready() == 3
    assert is_reached(fleet.wanted, fleet.replicas)


def test_a_new_release_comes_one_at_a_time_and_there_are_never_fewer(fleet):
    fleet.wanted = DesiredFleet(2, 3)
    fleet.passes(20)
    assert (fleet.ready(2), len(fleet.replicas)) == (3, 3)
    assert fleet.least_ready == 3
    assert fleet.most <= 6


def test_where_there_is_no_room_for_one_more_an_old_one_goes_first(fleet):
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


def test_a_release_behind_one_that_failed_comes(fleet):
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
    assert {each.number for each in fleet.replicas} == {1, 2}  # the youngest went


def test_who_is_lost_is_replaced(fleet):
    fleet.replicas.pop(0)
    fleet.passes(3)
    assert fleet.ready() == 3


def test_none_are_left_of_a_fleet_that_is_not_wanted(fleet):
    fleet.replicas.append(FleetReplica(9, 1, since=fleet.now))
    fleet.wanted = DesiredFleet(1, 0)
    fleet.passes(10)
    assert fleet.replicas == []
    assert is_reached(fleet.wanted, fleet.replicas)


def test_a_replica_is_stopped_when_edges_have_seen_that_it_is_not_listed(fleet):
    fleet.wanted = DesiredFleet(1, 2)
    fleet.passes(0.5)
    (going,) = [each for each in fleet.replicas if each.phase is ReplicaPhase.DRAINING]
    fleet.passes(SETTLE_S - 0.5)
    assert going in fleet.replicas
    fleet.passes(0.5)
    assert going not in fleet.replicas


def test_who_is_unready_for_now_is_not_replaced_and_still_listed(fleet):
    fleet.replicas[0].becomes(ReplicaPhase.UNREADY, fleet.now)
    fleet.passes(5)
    assert len(fleet.replicas) == 3
    assert fleet.replicas[0].is_listed
