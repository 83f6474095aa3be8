"""ElasticPolicy: how many workers an Op should have, on a clock of the test's own."""

from __future__ import annotations

import pytest

from pipeline.config.sections import ElasticConfig
from pipeline.engine.op.elastic import Demand, ElasticPolicy

CONFIG = ElasticConfig(utilization=0.8, max_wait_ms=100, idle_s=60)


class Simulated:
    """Workers that become as many as the policy wants at once."""

    def __init__(self, lowest: int = 1, highest: int = 16, config: ElasticConfig = CONFIG) -> None:
        self.policy = ElasticPolicy(lowest, highest, config)
        self.workers = max(1, lowest)
        self.now = 0.0
        self.changes: list[int] = []

    def passes(self, seconds: float, busy: int, queued: int = 0, wait_s: float = 0.0) -> int:
        """Have time pass in which so many have work, if there are so many."""
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            demand = Demand(self.workers, min(busy, self.workers), queued, wait_s)
            wanted = self.policy.wanted(demand, self.now)
            if wanted != self.workers:
                self.changes.append(wanted)
            self.workers = wanted
        return self.workers


def test_a_load_that_the_workers_can_process_changes_nothing():
    op = Simulated(lowest=2)
    assert op.passes(600, busy=1) == 2
    assert op.changes == []


def test_busy_workers_get_others_until_the_share_is_as_wanted():
    op = Simulated()
    assert op.passes(60, busy=8) == 10


def test_a_load_that_stays_has_a_number_that_stays():
    op = Simulated()
    op.passes(60, busy=4)
    op.changes.clear()
    op.passes(600, busy=4)
    assert op.changes == []


def test_a_long_wait_adds_workers_at_once():
    op = Simulated()
    assert op.passes(0.1, busy=1, queued=30, wait_s=0.3) == 2  # never more than twice as many
    assert op.passes(0.1, busy=2, queued=30, wait_s=0.15) == 3


def test_there_are_never_more_than_the_most():
    op = Simulated(highest=3)
    assert op.passes(30, busy=3, queued=999, wait_s=9.0) == 3


def test_workers_of_the_start_also_stop_after_the_idle_time():
    op = Simulated(lowest=0)
    assert op.passes(59, busy=0) == 1
    assert op.passes(2, busy=0) == 0


def test_workers_stop_when_none_was_needed_for_the_whole_time():
    op = Simulated()
    op.passes(60, busy=8)
    assert op.passes(59, busy=1) == 10
    assert op.passes(15, busy=1) == 2


def test_a_peak_within_that_time_keeps_them():
    op = Simulated()
    op.passes(60, busy=8)
    op.changes.clear()
    for _ in range(5):
        op.passes(40, busy=1)
        op.passes(10, busy=8)
    assert set(op.changes) <= {10}


@pytest.mark.parametrize(("lowest", "left"), [(0, 0), (1, 1), (3, 3)])
def test_the_lowest_number_of_workers_remains_without_requests(lowest, left):
    op = Simulated(lowest=lowest)
    op.passes(60, busy=4)
    assert op.passes(90, busy=0) == left


def test_a_request_without_workers_starts_one():
    op = Simulated(lowest=0)
    op.passes(70, busy=0)
    assert op.workers == 0
    assert op.passes(0.1, busy=0, queued=1) == 1


def test_a_worker_that_serves_occasional_requests_stays():
    op = Simulated(lowest=0)
    for _ in range(10):
        op.passes(0.2, busy=1)
        assert op.passes(50, busy=0) == 1
