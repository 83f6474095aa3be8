"""The queue of what is ready: who goes first, and how many rows go together."""

from __future__ import annotations

from scheduling import item, load, request

from pipeline.engine.schedulers.base import ReadyQueue


def queue_of(*requests):
    queue = ReadyQueue()
    for asked in requests:
        queue.add(item(asked), 0.0)
    return queue


def ids(items):
    return [taken.data_id for taken in items]


def test_the_oldest_request_is_first():
    queue = queue_of(*map(request, (5, 2, 9, 2)))
    assert ids(queue.take(10, load(), 0.0)) == [2, 2, 5, 9]


def test_items_are_cut_up_to_a_limit_of_samples_in_order():
    queue = queue_of(*(request(data_id, rows) for data_id, rows in enumerate((3, 3, 3, 9, 1))))
    assert queue.rows == 19
    taken = [ids(queue.take(5, load(max_rows=8), 0.0)) for _ in range(4)]
    assert taken == [[0, 1], [2], [3], [4]]
    assert queue.rows == len(queue) == 0


def test_samples_that_were_dropped_do_not_count():
    gone, stays = request(1, 5), request(2, 2)
    queue = queue_of(gone, stays)
    assert ids(queue.drop(gone)) == [1]
    assert (queue.rows, len(queue)) == (2, 1)
    assert ids(queue.take(5, load(), 0.0)) == [2]
    assert queue.drop(gone) == []


def test_the_longest_ready_item_need_not_be_the_oldest_request():
    queue = ReadyQueue()
    queue.add(item(request(1), 20.0), 20.0)
    queue.add(item(request(2), 10.0), 20.0)
    assert queue.first_ready_at() == 10.0


def test_late_requests_are_last_and_the_newest_of_them_first():
    queue = queue_of(*(request(data_id, late_from=5.0) for data_id in (1, 2)), request(3))
    assert ids(queue.take(1, load(), 6.0)) == [3]
    assert ids(queue.take(1, load(), 6.0)) == [2]
    assert ids(queue.take(1, load(), 6.0)) == [1]


def test_all_that_is_ready_can_be_cleared():
    queue = queue_of(*(request(data_id, late_from=5.0) for data_id in (1, 2)), request(3))
    queue.take(1, load(), 6.0)
    queue.add(item(request(4)), 6.0)
    assert ids(queue.clear()) == [4, 2, 1]
    assert len(queue) == 0
    assert queue.clear() == []
