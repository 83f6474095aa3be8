"""`iterative`: who joins whom, and who waits for a seat."""

from __future__ import annotations

from scheduling import item, load, request

from pipeline.config.schema import OpConfig
from pipeline.engine.schedulers.base import Batch
from pipeline.engine.schedulers.iterative import IterativeScheduler


class Seats:
    """A scheduler, and those whom it has given a seat at `workers` workers, by their ids."""

    def __init__(self, workers=1, batch_size=4, max_rows=0):
        self.config = OpConfig(batch_size=batch_size, concurrency=workers)
        self.scheduler = IterativeScheduler(self.config)
        self.load = load(workers, max_rows=max_rows)
        self.items = {}

    def add(self, *ids, rows=1, late_from=None):
        for data_id in ids:
            self.items[data_id] = item(request(data_id, rows, late_from), 5.0)
            self.scheduler.add(self.items[data_id], 5.0)

    def next(self):
        """Return (ids of the requests that join, their worker), or None."""
        batch = self.scheduler.next(self.load, 5.0)
        if batch is None:
            return None
        assert isinstance(batch, Batch)
        return [entry.data_id for entry in batch.items], batch.worker

    def leave(self, data_id):
        self.scheduler.leave(self.items[data_id])


def test_without_waiting_requests_no_batch_is_cut():
    seats = Seats()
    assert seats.next() is None
    assert len(seats.scheduler) == 0


def test_all_waiting_requests_join_at_once_while_seats_are_free():
    seats = Seats()
    seats.add(1)
    assert seats.next() == ([1], 0)
    seats.add(2, 3, 4, 5)
    assert seats.next() == ([2, 3, 4], 0)
    assert seats.next() is None
    assert len(seats.scheduler) == 1, "5, which has no seat"
    assert seats.scheduler.under_way == 4


def test_a_seat_is_free_when_its_request_has_left():
    seats = Seats(batch_size=2)
    seats.add(1, 2, 3)
    assert seats.next() == ([1, 2], 0)
    seats.leave(1)
    assert seats.next() == ([3], 0)
    seats.leave(1)
    assert seats.scheduler.under_way == 2


def test_a_finished_request_occupies_its_seat_until_its_worker_reports_it():
    seats = Seats(batch_size=1)
    seats.add(1, 2)
    assert seats.next() == ([1], 0)
    assert seats.scheduler.drop(seats.items[1].request) == [], "it is at its worker"
    assert seats.next() is None
    assert seats.scheduler.drop(seats.items[2].request) == [seats.items[2]]


def test_requests_join_where_the_fewest_are():
    seats = Seats(workers=2, batch_size=2)
    seats.add(1, 2)
    assert seats.next() == ([1, 2], 0)
    seats.add(3)
    assert seats.next() == ([3], 1)
    seats.add(4, 5)
    assert seats.next() == ([4], 1)
    assert seats.next() is None
    seats.leave(2)
    assert seats.next() == ([5], 0)


def test_workers_have_turns():
    seats = Seats(workers=2, batch_size=1)
    seats.add(1, 2, 3)
    assert [seats.next(), seats.next()] == [([1], 0), ([2], 1)]
    seats.leave(2)
    seats.leave(1)
    assert seats.next() == ([3], 0)
    seats.leave(3)
    seats.add(4)
    assert seats.next() == ([4], 1)


def test_no_request_joins_without_workers():
    seats = Seats(workers=1)
    seats.add(1)
    seats.load.workers = 0
    assert seats.next() is None
    assert [entry.data_id for entry in seats.scheduler.clear()] == [1]
    assert len(seats.scheduler) == 0


def test_the_sum_of_rows_under_way_is_bounded():
    seats = Seats(batch_size=8, max_rows=8)
    seats.add(1, rows=3)
    assert seats.next() == ([1], 0)
    seats.add(2, 3, rows=3)
    assert seats.next() == ([2], 0)
    assert seats.next() is None
    seats.leave(1)
    assert seats.next() == ([3], 0)


def test_a_request_with_more_rows_than_a_step_allows_runs_alone():
    seats = Seats(batch_size=8, max_rows=8)
    seats.add(1, rows=9)
    seats.add(2)
    assert seats.next() == ([1], 0)
    assert seats.next() is None


def test_a_late_request_joins_last():
    seats = Seats(batch_size=1)
    seats.add(1, late_from=4.0)
    seats.add(2)
    assert seats.next() == ([2], 0)


def test_batches_are_bounded_by_the_room_of_the_next_op():
    seats = Seats()
    seats.load.max_items = 1
    seats.add(1, 2)
    assert seats.next() == ([1], 0)
