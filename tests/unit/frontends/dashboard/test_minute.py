"""The last minute, second by second."""

from __future__ import annotations

import pytest
from fake_page import MS, request, rows

from pipeline.engine.journal.journal import REQUEST, SPAN, Outcome
from pipeline.frontends.dashboard.recent import SECONDS, LastMinute, merged
from pipeline.observe.snapshot import MinuteSeries

S = 1000 * MS
NOTHING = [0] * SECONDS


class Played:
    """A minute with a clock that is moved by hand."""

    def __init__(self):
        self.now_ns = 1000 * S
        self.minute = LastMinute(lambda: self.now_ns)

    def ended(self, *took, **how):
        """Requests end now."""
        rows_of = [request(i, at=self.now_ns - t, took=t, **how) for i, t in enumerate(took)]
        self.minute.notify(rows(SPAN), rows(REQUEST, *rows_of))


@pytest.fixture
def played():
    return Played()


def test_without_requests_the_series_are_zero(played):
    series = played.minute.series()
    assert (series.succeeded, series.p99_ns, series.inside) == (NOTHING, NOTHING, NOTHING)


def test_requests_count_in_the_second_in_which_they_ended(played):
    played.ended(1 * MS, 2 * MS)
    played.now_ns += 2 * S
    played.ended(8 * MS)
    played.minute.sample(3)
    played.minute.sample(2)
    assert played.minute.series().succeeded[-2:] == [2, 0], "this second is not over"
    played.now_ns += S
    series = played.minute.series()
    assert series.end_s == 1003
    assert series.succeeded == [*NOTHING[3:], 2, 0, 1]
    assert series.inside == [*NOTHING[1:], 3]
    assert series.p99_ns[-1] == pytest.approx(8 * MS, rel=0.2)
    assert series.p99_ns[-3] == pytest.approx(2 * MS, rel=0.2)
    assert series.p99_ns[-2] == 0


def test_a_late_row_is_counted(played):
    played.ended(1 * MS)
    played.now_ns += S
    assert played.minute.series().succeeded[-1] == 1
    played.minute.notify(rows(SPAN), rows(REQUEST, request(9, at=1000 * S, took=64 * MS)))
    series = played.minute.series()
    assert series.succeeded[-1] == 2
    assert series.p99_ns[-1] == pytest.approx(64 * MS, rel=0.2)


def test_failures_and_requests_for_one_op_are_not_counted(played):
    played.ended(1 * MS, outcome=Outcome.BACKEND)
    played.now_ns += S
    assert played.minute.series().succeeded == NOTHING


def test_old_seconds_are_removed(played):
    for _ in range(500):
        played.ended(1 * MS)
        played.now_ns += S
    assert played.minute.series().succeeded == [1] * SECONDS
    assert len(played.minute._seconds) <= SECONDS + 1


def test_copies_are_added_up_by_the_second():
    one = MinuteSeries(100, [*NOTHING[2:], 1, 2], [*NOTHING[2:], 10, 20], [*NOTHING[1:], 3])
    late = MinuteSeries(99, [*NOTHING[1:], 5], [*NOTHING[1:], 50], [*NOTHING[1:], 7])
    assert merged([one, late, MinuteSeries()]) == MinuteSeries(
        100, [*NOTHING[2:], 6, 2], [*NOTHING[2:], 50, 20], [*NOTHING[2:], 7, 3]
    )
    assert merged([]) == merged([MinuteSeries()]) == MinuteSeries()


def test_a_replica_without_recent_answers_adds_nothing():
    now = MinuteSeries(1000, NOTHING, NOTHING, NOTHING)
    assert merged([now, MinuteSeries(100, [1] * 60, [1] * 60, [1] * 60)]) == now
