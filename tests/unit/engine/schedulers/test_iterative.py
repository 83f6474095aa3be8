"""`iterative`: who is in a step, who joins, who sits out."""

from __future__ import annotations

from scheduling import item, load, request

from pipeline.config.schema import OpConfig
from pipeline.engine.schedulers.base import Batch
from pipeline.engine.schedulers.iterative import IterativeScheduler


class Steps:
    """A scheduler, and the steps that it makes at `workers` workers."""

    def __init__(self, workers=1, batch_size=4, max_rows=0):
        self.config = OpConfig(batch_size=batch_size, concurrency=workers)
        self.scheduler = IterativeScheduler(self.config)
        self.load = load(workers, max_rows=max_rows)
        self.room = {}
        self.scheduler.room_of = lambda item: self.room.get(item.data_id, 1)

    def add(self, *ids, rows=1, late_from=None):
        for data_id in ids:
            self.scheduler.add(item(request(data_id, rows, late_from), 5.0), 5.0)

    def next(self, now=5.0):
        return self.scheduler.next(self.load, now)

    def step(self):
        """The ids in the next step, which is over at once."""
        batch = self.next()
        assert isinstance(batch, Batch)
        self.over(batch)
        return ids(batch)

    def over(self, batch):
        self.scheduler.done(batch, 5.0)


def ids(batch):
    return [each.data_id for each in batch.items]


def test_nothing_is_no_step():
    steps = Steps()
    assert steps.next() is None
    assert len(steps.scheduler) == 0


def test_requests_stay_from_step_to_step_and_others_join_in_between():
    steps = Steps()
    steps.add(1)
    assert steps.step() == [1]
    steps.add(2, 3)
    assert steps.step() == [1, 2, 3]
    assert steps.step() == [1, 2, 3]


def test_nobody_joins_a_step_that_runs():
    steps = Steps()
    steps.add(1)
    running = steps.next()
    steps.add(2)
    assert steps.next() is None
    assert len(steps.scheduler) == 1, "who waits"
    steps.over(running)
    assert len(steps.scheduler) == 2
    assert ids(steps.next()) == [1, 2]


def test_a_seat_is_free_when_its_request_has_ended():
    steps = Steps(batch_size=2)
    steps.add(1, 2, 3)
    first = steps.next()
    assert ids(first) == [1, 2]
    steps.over(first)
    assert steps.step() == [1, 2]
    steps.scheduler.leave(first.items[0])
    assert steps.step() == [2, 3]


def test_who_has_no_room_sits_out_and_keeps_its_seat():
    steps = Steps(batch_size=2)
    steps.add(1, 2, 3)
    steps.step()
    steps.room[1] = 0
    assert steps.step() == [2]
    assert steps.scheduler.under_way == 2
    steps.room[2] = 0
    assert steps.next() is None
    assert len(steps.scheduler) == 1, "3, which has no seat"
    steps.room[1] = 1
    assert steps.step() == [1]


def test_a_request_that_is_over_gives_up_its_seat_wherever_it_is():
    steps = Steps(batch_size=2)
    steps.add(1, 2, 3)
    running = steps.next()
    assert steps.scheduler.drop(running.items[0].request) == [], "it is at its worker"
    steps.over(running)
    assert steps.step() == [2, 3]
    idle = running.items[1]
    assert steps.scheduler.drop(idle.request) == [idle]
    assert steps.step() == [3]


def test_requests_stay_at_their_worker_and_join_where_the_fewest_are():
    steps = Steps(workers=2, batch_size=2)
    steps.add(1, 2)
    first = steps.next()
    assert ids(first) == [1, 2]
    steps.add(3)
    second = steps.next()
    assert ids(second) == [3]
    assert {first.worker, second.worker} == {0, 1}
    steps.over(first)
    steps.over(second)
    steps.add(4)
    third, fourth = steps.next(), steps.next()
    assert (ids(third), third.worker) == ([3, 4], second.worker)
    assert (ids(fourth), fourth.worker) == ([1, 2], first.worker)


def test_workers_have_turns():
    steps = Steps(workers=2, batch_size=1)
    steps.add(1, 2)
    found = [steps.step() for _ in range(4)]
    assert sorted(map(tuple, found)) == [(1,), (1,), (2,), (2,)]


def test_a_lone_worker_is_not_named():
    steps = Steps()
    steps.add(1)
    assert steps.next().worker is None


def test_no_step_without_workers():
    steps = Steps(workers=1)
    steps.add(1)
    steps.load.workers = 0
    assert steps.next() is None
    assert [each.data_id for each in steps.scheduler.clear()] == [1]
    assert len(steps.scheduler) == 0


def test_all_that_is_in_no_step_is_cleared():
    steps = Steps(batch_size=1)
    steps.add(1, 2)
    steps.step()
    assert [each.data_id for each in steps.scheduler.clear()] == [1, 2]
    assert steps.scheduler.under_way == 0


def test_rows_of_all_that_are_under_way_are_bounded():
    steps = Steps(batch_size=8, max_rows=8)
    steps.add(1, rows=3)
    steps.step()
    steps.add(2, 3, rows=3)
    assert steps.step() == [1, 2]
    assert steps.step() == [1, 2]


def test_a_request_of_more_rows_than_a_step_may_have_goes_alone():
    steps = Steps(batch_size=8, max_rows=8)
    steps.add(1, rows=9)
    steps.add(2)
    assert steps.step() == [1]
    assert steps.step() == [1]


def test_who_has_waited_too_long_joins_last():
    steps = Steps(batch_size=1)
    steps.add(1, late_from=4.0)
    steps.add(2)
    assert steps.step() == [2]


def test_no_more_begin_than_there_is_room_behind():
    steps = Steps()
    steps.load.max_items = 1
    steps.add(1, 2)
    assert steps.step() == [1]
