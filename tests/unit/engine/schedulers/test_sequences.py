"""Sequences on a virtual clock: their slots, waits, ends, and the answers of callers."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable
from functools import partial

import pytest
from sequencing import Sequences

from pipeline.engine.schedulers.base import StartCondition, held_start
from pipeline.errors import ClosedError, DeadlineError, OverloadedError, WorkerDiedError

BOTH = pytest.mark.parametrize("strategy", ["direct", "oldest"])
NO_START = (
    "Op 'm' knows no sequence {}: its first request must have sequence_start: true. A "
    "sequence ends after sequence_end, and after max_idle_ms without a request"
)


# Refusals at once --------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("nobody", [0, ""])
def test_a_request_needs_the_id_of_a_sequence(strategy, nobody):
    told = Sequences(strategy).ask("x start", id=nobody)
    assert told == (
        "Op 'm' has sequences: a request needs a sequence_id, a number that is not 0 or a text"
    )


@BOTH
@pytest.mark.parametrize("name", ["77", "seventy-seven"])
def test_an_unknown_id_needs_the_start_flag(strategy, name):
    asked = Sequences(strategy)
    assert asked.ask(name) == NO_START.format(name)
    assert asked.ask(f"{name} end") == NO_START.format(name)
    assert asked.scheduler.book.queued == 0


@BOTH
def test_a_request_brings_one_sample(strategy):
    told = Sequences(strategy).ask("1 start", rows=2)
    assert told == "Op 'm' has sequences: a request must have one row"


@BOTH
def test_the_number_and_the_text_are_two_ids(strategy):
    asked = Sequences(strategy, slots=2)
    asked.ask("x start", id=7)
    assert asked.ask("x", id="7") == NO_START.format(7)


# Slots -------------------------------------------------------------------------------------


@BOTH
def test_one_request_of_a_sequence_is_under_way_at_a_time(strategy):
    asked = Sequences(strategy, slots=4)
    for words in ("1 start", "1", "1 end"):
        asked.ask(words)
    for number in (1, 2, 3):
        assert asked.next() == (0, {0: f"1/{number}"})
        assert asked.next() is None
        asked.done()
    assert asked.next() is None
    assert asked.ask("1") == NO_START.format(1), "after END the id is unknown"


@BOTH
def test_the_lowest_slot_is_given_first_then_the_lowest_worker(strategy):
    asked = Sequences(strategy, workers=2, slots=2)
    for name in range(1, 5):
        asked.ask(f"{name} start")
    assert asked.next() == (0, {0: "1/1", 1: "3/3"})
    assert asked.next() == (1, {0: "2/2", 1: "4/4"})


@BOTH
def test_a_sequence_keeps_its_worker_and_slot(strategy):
    asked = Sequences(strategy, workers=2, slots=1)
    asked.ask("1 start")
    asked.ask("2 start")
    for _ in range(3):
        while asked.next():
            pass
        asked.done(0)
        asked.done(1)
        asked.ask("2")
        asked.ask("1")
    assert {(name, worker) for name, _, worker, _ in asked.log} == {(1, 0), (2, 1)}


def test_direct_orders_a_batch_by_the_slots():
    asked = Sequences("direct", slots=3)
    for name in (1, 2, 3):
        asked.ask(f"{name} start")
    asked.next()
    asked.done()
    asked.ask("3")
    asked.ask("1")
    assert list(asked.next()[1].items()) == [(0, "1/5"), (2, "3/4")]


def test_oldest_orders_a_batch_by_the_arrivals():
    asked = Sequences("oldest", slots=3)
    for name in (1, 2, 3):
        asked.ask(f"{name} start")
    asked.next()
    asked.done()
    asked.ask("3")
    asked.ask("1")
    assert list(asked.next()[1].items()) == [(2, "3/4"), (0, "1/5")]


@BOTH
def test_a_start_and_end_in_one_is_a_sequence_of_one(strategy):
    asked = Sequences(strategy)
    asked.ask("1 start end")
    asked.ask("2 start end")
    assert asked.next() == (0, {0: "1/1"})
    asked.done()
    assert asked.next() == (0, {0: "2/2"})
    asked.done()
    assert asked.scheduler.book.state().live == 0


@BOTH
def test_a_start_of_a_live_sequence_cuts_it_short_in_its_slot(strategy, caplog):
    asked = Sequences(strategy, workers=2)
    asked.ask("1 start")
    asked.next()
    with caplog.at_level(logging.WARNING):
        asked.ask("1 start")
    assert (
        "sequence 1 for model 'm' has a conflict. The previous sequence did not end before this "
        "sequence start. Previous sequence will be terminated early."
    ) in caplog.text
    asked.done()
    assert asked.next() == (0, {0: "1/2"})
    assert asked.scheduler.book.state().live == 1


@BOTH
def test_an_end_frees_the_slot_though_it_failed(strategy):
    asked = Sequences(strategy)
    asked.ask("1 start end")
    asked.ask("2 start")
    asked.next()
    asked.done()
    assert asked.next() == (0, {0: "2/2"})


# Backlog -----------------------------------------------------------------------------------


@BOTH
def test_who_finds_no_slot_waits_with_all_its_requests(strategy):
    asked = Sequences(strategy)
    for words in ("1 start", "2 start", "3 start end", "2", "1 end", "2 end"):
        asked.ask(words)
    assert asked.scheduler.book.state().backlog == 2
    while asked.next():
        asked.done()
    assert [(name, number) for name, number, _, _ in asked.log] == [
        (1, 1), (1, 5), (2, 2), (2, 4), (2, 6), (3, 3),
    ]  # fmt: skip


@BOTH
def test_a_later_request_follows_its_sequence_out_of_the_backlog(strategy):
    asked = Sequences(strategy)
    for words in ("1 start end", "2 start"):
        asked.ask(words)
    asked.next()
    asked.done()
    assert asked.next() == (0, {0: "2/2"})
    asked.ask("2 end")
    asked.done()
    assert asked.next() == (0, {0: "2/3"})


@BOTH
def test_one_id_twice_in_the_backlog_is_two_sequences(strategy):
    asked = Sequences(strategy)
    for words in ("9 start", "1 start", "1 end", "2 start end", "1 start", "1 end", "9 end"):
        asked.ask(words)
    assert asked.scheduler.book.state().backlog == 3
    while asked.next():
        asked.done()
    names = [(name, number) for name, number, _, _ in asked.log]
    assert names == [(9, 1), (9, 7), (1, 2), (1, 3), (2, 4), (1, 5), (1, 6)]


@BOTH
def test_the_next_sequence_of_an_id_waits_for_the_end_of_the_former(strategy):
    asked = Sequences(strategy, workers=2)
    asked.ask("1 start end")
    assert asked.next() == (0, {0: "1/1"})
    asked.ask("1 start end")
    assert asked.next() is None, "though a worker is free"
    asked.done()
    assert asked.next() == (0, {0: "1/2"})


# Time --------------------------------------------------------------------------------------


@BOTH
def test_an_idle_sequence_loses_its_slot_and_its_next_request_is_refused(strategy):
    asked = Sequences(strategy, max_idle_ms=1000)
    asked.ask("1 start")
    asked.next()
    asked.now = 5.0
    asked.done()
    assert asked.scheduler.book.reaps_at == 6.0, "counted from its answer, not its arrival"
    asked.now = 5.9
    asked.ask("1")
    asked.next()
    asked.done()
    asked.ask("2 start")
    assert asked.next() is None
    asked.now = 6.9
    assert asked.next() == (0, {0: "2/3"})
    assert asked.ask("1") == NO_START.format(1)
    assert asked.scheduler.book.state().reaped == 1


@BOTH
def test_each_sequence_counts_as_one_thing_when_it_is_over(strategy):
    asked = Sequences(strategy, slots=8, max_idle_ms=1000)
    asked.ask("1 start end")
    asked.ask("2 start")
    cancelled = asked.ask("3 start")
    asked.ask("4 start")
    asked.scheduler.drop(cancelled.request)
    asked.next()
    asked.ask("2 start")
    asked.done()
    asked.next()
    asked.done()
    asked.now = 2.0
    asked.scheduler.book.reap(asked.now)
    asked.ask("5 start")
    asked.ask("6 start")
    asked.next()
    asked.lose(0)
    state = asked.scheduler.book.state()
    assert (state.ended, state.cut, state.reaped, state.lost) == (1, 2, 2, 2)
    assert (state.begun, state.live) == (7, 0)


@BOTH
def test_nobody_is_idle_in_the_backlog_or_while_it_runs(strategy):
    asked = Sequences(strategy, max_idle_ms=1)
    asked.ask("1 start")
    asked.ask("2 start")
    asked.next()
    asked.now = 100.0
    assert asked.scheduler.book.reaps_at is None
    assert not isinstance(asked.ask("1 end"), str)
    asked.done()
    asked.next()
    asked.done()
    assert asked.next() == (0, {0: "2/2"})


def test_direct_waits_for_a_share_of_its_slots_but_not_for_long():
    asked = Sequences("direct", slots=4, min_slot_utilization=0.5, max_queue_delay_ms=100)
    asked.ask("1 start")
    assert asked.next() == pytest.approx(0.1)
    asked.ask("2 start")
    assert asked.next() == (0, {0: "1/1", 1: "2/2"})
    asked.done()
    asked.now = 0.5
    asked.ask("1")
    asked.now = 0.6
    assert asked.next() == (0, {0: "1/3"})


@pytest.mark.parametrize(
    "options", [{"min_slot_utilization": 1.0}, {"max_queue_delay_ms": 100}], ids=str
)
def test_direct_waits_only_with_both(options):
    asked = Sequences("direct", slots=4, **options)
    asked.ask("1 start")
    assert asked.next() == (0, {0: "1/1"})


def test_oldest_waits_for_a_full_batch_or_a_preferred_one():
    asked = Sequences("oldest", slots=4, max_queue_delay_ms=100, preferred_batch_sizes=(2,))
    asked.ask("1 start")
    assert asked.next() == pytest.approx(0.1)
    asked.ask("2 start")
    asked.ask("3 start")
    assert asked.next() == (0, {0: "1/1", 1: "2/2"}), "of a preferred size"
    asked.done()
    asked.now = 0.1
    assert asked.next() == (0, {2: "3/3"})


def test_oldest_takes_all_when_the_delay_is_over_whatever_the_preferred_sizes():
    asked = Sequences("oldest", slots=8, max_queue_delay_ms=100, preferred_batch_sizes=(2, 4))
    for name in range(1, 8):
        asked.ask(f"{name} start")
    assert len(asked.next()[1]) == 4, "the largest that can be had"
    asked.done()
    asked.now = 0.1
    assert len(asked.next()[1]) == 3


def test_oldest_without_delay_prefers_sizes_but_waits_for_none():
    asked = Sequences("oldest", slots=4, preferred_batch_sizes=(3,))
    for name in range(1, 5):
        asked.ask(f"{name} start")
    assert len(asked.next()[1]) == 3
    asked.done()
    assert len(asked.next()[1]) == 1


def test_oldest_takes_batches_out_of_more_candidates():
    asked = Sequences("oldest", slots=2, max_candidates=4)
    for name in range(1, 6):
        asked.ask(f"{name} start")
    assert asked.scheduler.book.state().backlog == 1
    assert asked.next() == (0, {0: "1/1", 1: "2/2"})
    asked.done()
    asked.ask("1")
    assert asked.next() == (0, {2: "3/3", 3: "4/4"}), "who has waited longest"


def test_a_busy_worker_gets_a_whole_batch_of_others_ahead():
    asked = Sequences("oldest", slots=2, max_candidates=6)
    for name in range(1, 7):
        asked.ask(f"{name} start")
    assert asked.next() == (0, {0: "1/1", 1: "2/2"})
    first = asked.out.pop(0)
    assert asked.next() is None, "how long a batch takes is not known"
    asked.load.service_s = 0.01
    assert asked.next() == (0, {2: "3/3", 3: "4/4"})
    second = asked.out.pop(0)
    assert asked.next() is None, "one is enough"
    asked.scheduler.done(first, asked.now)
    assert asked.next() == (0, {4: "5/5", 5: "6/6"})
    asked.ask("1")
    asked.ask("3")
    third = asked.out.pop(0)
    asked.scheduler.done(second, asked.now)
    assert asked.next() == (0, {0: "1/7", 2: "3/8"})
    asked.scheduler.done(third, asked.now)
    asked.ask("2")
    assert asked.next() is None, "it is not whole"
    asked.done()
    assert asked.next() == (0, {1: "2/9"})


def test_what_was_sent_ahead_is_forgotten_with_its_worker():
    asked = Sequences("oldest", slots=1, max_candidates=3)
    asked.load.service_s = 0.0005
    for name in range(1, 4):
        asked.ask(f"{name} start")
    batches = []
    while asked.next() is not None:
        batches.append(asked.out.pop(0))
    assert len(batches) == 3
    asked.lose(0)
    for batch in batches:
        asked.scheduler.done(batch, asked.now)
    asked.ask("4 start")
    assert asked.next() == (0, {0: "4/4"})


@BOTH
def test_no_more_begin_than_there_is_room_for_behind(strategy):
    asked = Sequences(strategy, slots=4)
    for name in (1, 2, 3):
        asked.ask(f"{name} start")
    asked.load.max_items = 2
    assert asked.next() == (0, {0: "1/1", 1: "2/2"})
    asked.load.max_items = 0
    asked.done()
    assert asked.next() is None


# Triton's hooks for tests -----------------------------------------------------------------


def test_direct_begins_only_when_so_many_are_queued_and_in_the_backlog():
    asked = Sequences("direct", workers=2, slots=1)
    asked.scheduler.start = StartCondition(queued=3, backlog=1)
    for words in ("1 start", "1", "2 start"):
        asked.ask(words)
        assert asked.next() is None
    asked.ask("3 start")
    assert asked.next() == (0, {0: "1/1"})
    assert asked.next() == (1, {0: "2/3"})
    asked.done()
    assert asked.next() == (0, {0: "1/2"}), "it waits once"


def test_oldest_begins_only_when_so_many_sequences_are_ready_at_a_worker():
    asked = Sequences("oldest", workers=2, slots=2)
    asked.scheduler.start = StartCondition(queued=2, backlog=9)
    for words in ("1 start", "1", "2 start"):
        asked.ask(words)
        assert asked.next() is None
    asked.ask("3 start")
    assert asked.next() == (0, {0: "1/1", 1: "3/4"})
    assert asked.next() == (1, {0: "2/3"})


def test_the_hooks_are_read_only_when_they_are_switched_on():
    hooks = {"TRITONSERVER_DELAY_SCHEDULER": "4", "TRITONSERVER_BACKLOG_DELAY_SCHEDULER": "2"}
    assert held_start(hooks) is None
    assert held_start({**hooks, "PIPELINE_TEST_HOOKS": "0"}) is None
    assert held_start({**hooks, "PIPELINE_TEST_HOOKS": "1"}) == StartCondition(4, 2)
    assert held_start({"PIPELINE_TEST_HOOKS": "1"}) is None


# Ends before the end ----------------------------------------------------------------------


def _leave(asked, item, error=None):
    item.request.error = error
    return asked.scheduler.drop(item.request)


@BOTH
def test_a_queued_request_that_is_cancelled_takes_its_sequence_along(strategy):
    asked = Sequences(strategy)
    asked.ask("1 start")
    asked.next()
    second, third = asked.ask("1"), asked.ask("1")
    asked.ask("2 start")
    assert _leave(asked, second, ClosedError("x")) == [second]
    assert list(asked.refused().values()) == [
        "[m] a request of sequence 1 was cancelled, which ended the sequence"
    ]
    assert third.data_id == 3
    assert asked.ask("1") == NO_START.format(1)
    assert asked.next() is None, "its first request is still under way"
    asked.done()
    assert asked.next() == (0, {0: "2/4"})


@BOTH
def test_a_request_that_is_cancelled_while_it_runs_ends_its_sequence_when_it_returns(strategy):
    asked = Sequences(strategy)
    first = asked.ask("1 start")
    asked.ask("1")
    asked.next()
    assert _leave(asked, first, DeadlineError("x")) == []
    assert list(asked.refused()) == [2]
    asked.ask("1 start")
    assert asked.next() is None
    asked.done()
    assert asked.next() == (0, {0: "1/3"})


@BOTH
def test_the_first_timeout_in_the_backlog_ends_the_whole_sequence(strategy):
    asked = Sequences(strategy)
    asked.ask("1 start")
    asked.ask("2 start")
    late = asked.ask("2")
    _leave(asked, late, DeadlineError("x"))
    ((item, error),) = asked.scheduler.book.refused
    assert item.data_id == 2
    assert isinstance(error, OverloadedError)
    assert str(error) == "timeout of the corresponding sequence has been expired"
    assert asked.ask("2") == NO_START.format(2)


@BOTH
def test_the_earliest_timeout_of_a_sequence_in_the_backlog_counts(strategy):
    asked = Sequences(strategy)
    book = asked.scheduler.book
    asked.ask("1 start")
    asked.next()
    asked.ask("2 start", timeout=3_000_000)
    asked.now = 1.0
    asked.ask("2", timeout=500_000)
    asked.ask("2")
    asked.ask("3 start", timeout=5_000_000)
    assert book.reaps_at == 1.5
    asked.now = 1.4
    assert asked.next() is None
    assert not book.refused
    asked.now = 1.5
    assert asked.next() is None
    errors = [error for _, error in book.refused]
    assert all(isinstance(error, OverloadedError) for error in errors)
    told = "timeout of the corresponding sequence has been expired"
    assert asked.refused() == {2: told, 3: told, 4: told}
    assert asked.ask("2") == NO_START.format(2)
    assert book.reaps_at == 6.0, "that of 3, which waits on"
    assert book.state().backlog == 1


@BOTH
def test_a_timeout_is_nothing_to_a_sequence_that_has_a_slot(strategy):
    asked = Sequences(strategy)
    asked.ask("1 start", timeout=1)
    asked.ask("2 start", timeout=1_000_000)
    asked.next()
    asked.now = 0.5
    assert not isinstance(asked.ask("1 end", timeout=1), str)
    asked.done()
    asked.next()
    asked.done()
    asked.now = 10.0
    assert asked.next() == (0, {0: "2/2"}), "it got the slot in time, and waits for no one"
    assert not asked.refused()


@BOTH
def test_a_new_sequence_of_an_id_has_nothing_of_the_timeout_of_the_former(strategy):
    asked = Sequences(strategy)
    for words in ("1 start", "2 start end"):
        asked.ask(words, timeout=1_000_000)
    asked.next()
    asked.ask("2 start")
    asked.now = 1.0
    asked.next()
    assert list(asked.refused()) == [2]
    assert not isinstance(asked.ask("2"), str)


@BOTH
def test_limits_of_the_backlog_are_forgotten_with_their_sequences(strategy):
    asked = Sequences(strategy)
    asked.ask("1 start")
    for name in range(2, 1000):
        _leave(asked, asked.ask(f"{name} start", timeout=1_000_000 + name))
    last = asked.ask("1000 start", timeout=10)
    for _ in range(1000):
        asked.ask("1000", timeout=2_000_000)
    assert len(asked.scheduler.book._backlog._limits) < 200
    assert asked.scheduler.book.reaps_at == pytest.approx(10e-6)
    _leave(asked, last)
    assert asked.scheduler.book.reaps_at is None


@BOTH
def test_a_request_that_has_run_ends_no_sequence(strategy):
    asked = Sequences(strategy)
    first = asked.ask("1 start")
    asked.next()
    asked.done()
    _leave(asked, first, ClosedError("x"))
    assert not isinstance(asked.ask("1"), str)


@BOTH
def test_the_sequences_of_a_lost_worker_end_and_others_go_on(strategy):
    asked = Sequences(strategy, workers=2, slots=1)
    for words in ("1 start", "2 start", "1", "2", "3 start"):
        asked.ask(words)
    asked.next()
    asked.next()
    lost = asked.lose(0)
    assert [item.data_id for item in lost.items] == [1]
    ((item, error),) = asked.scheduler.book.refused
    assert item.data_id == 3
    assert isinstance(error, WorkerDiedError)
    assert "sequence 1 has ended: its worker was lost" in str(error)
    assert asked.ask("1") == NO_START.format(1)
    assert asked.next() == (0, {0: "3/5"}), "the new worker has slots"
    asked.done(1)
    assert asked.next() == (1, {0: "2/4"})


@BOTH
def test_a_late_report_of_a_lost_worker_does_not_touch_its_successor(strategy):
    asked = Sequences(strategy)
    asked.ask("1 start")
    asked.next()
    old = asked.out.pop(0)
    asked.lives[0] += 1
    asked.scheduler.workers_are(asked.lives)
    asked.ask("1 start")
    assert asked.next() == (0, {0: "1/2"})
    asked.ask("1")
    asked.scheduler.done(old, asked.now)
    assert asked.next() is None, "the new worker is at it"
    asked.done()
    assert asked.next() == (0, {0: "1/3"})


@BOTH
def test_a_worker_that_is_gone_has_no_slots_until_it_is_back(strategy):
    asked = Sequences(strategy)
    asked.scheduler.workers_are({})
    asked.ask("1 start")
    assert asked.next() is None
    asked.scheduler.workers_are({0: 1})
    assert asked.next() == (0, {0: "1/1"})


@BOTH
def test_clear_returns_all_that_was_queued(strategy):
    asked = Sequences(strategy)
    for words in ("1 start", "2 start", "1", "2"):
        asked.ask(words)
    asked.next()
    assert [item.data_id for item in asked.scheduler.clear()] == [2, 3, 4]
    assert asked.scheduler.book.queued == 0
    assert asked.ask("1") == NO_START.format(1)


@BOTH
def test_the_backlog_forgets_those_that_were_cancelled(strategy):
    asked = Sequences(strategy)
    asked.ask("1 start")
    for name in range(2, 2000):
        _leave(asked, asked.ask(f"{name} start"))
    assert len(asked.scheduler.book._backlog._line) < 200
    assert asked.scheduler.book.state().backlog == 0


@BOTH
def test_a_request_that_runs_again_restarts_its_sequence_in_the_backlog(strategy):
    asked = Sequences(strategy)
    asked.ask("1 start end")
    first, _ = asked.ask("2 start end"), asked.ask("3 start end")
    asked.scheduler.drop(first.request)
    assert asked.scheduler.add(first, asked.now) is None  # of the same number, beside what is over
    begun = []
    while (batch := asked.next()) is not None:
        begun.append(batch[1][0])
        asked.done()
    assert begun == ["1/1", "2/2", "3/3"]


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of code it takes."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@BOTH
def test_one_of_many_sequences_of_one_id_is_cancelled_as_quickly_as_one_of_few(strategy):
    counts = []
    for many in (20, 60):
        asked = Sequences(strategy)
        items = [asked.ask("7 start end") for _ in range(many)]
        counts.append(lines_run(partial(asked.scheduler.drop, items[-2].request)))
    assert counts[0] == counts[1]


# Against a model --------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("seed", range(60))
def test_any_course_of_events_keeps_order_slots_and_requests(strategy, seed):
    """Whatever happens: each request begins, is refused or dropped once; sequences stay put."""
    rng = random.Random(seed)
    workers, slots = rng.randint(1, 3), rng.randint(1, 3)
    asked = Sequences(strategy, workers=workers, slots=slots, max_idle_ms=50)
    accepted, ended = {}, {}
    for _ in range(400):
        what = rng.random()
        asked.now += rng.choice([0.0, 0.001, 0.02])
        if what < 0.5:
            flags = rng.choice(["", "", "", " start", " end", " start end"])
            item = asked.ask(f"{rng.randint(1, 8)}{flags}")
            if not isinstance(item, str):
                accepted[item.data_id] = item
        elif what < 0.7:
            asked.next()
        elif what < 0.9 and asked.out:
            asked.done(rng.choice(list(asked.out)))
        elif what < 0.93 and accepted:
            item = rng.choice(list(accepted.values()))
            for each in asked.scheduler.drop(item.request):
                assert ended.setdefault(each.data_id, "dropped") == "dropped"
        elif what < 0.95:
            asked.lose(rng.randrange(workers))
        for number, text in asked.refused().items():
            assert ended.setdefault(number, text) is text
        _holds(asked)
    for _ in range(2000):
        if not asked.out and not asked.scheduler.book.queued:
            break
        while isinstance(asked.next(), tuple):
            pass
        for worker in list(asked.out):
            asked.done(worker)
        asked.now += 0.1
    for number in asked.refused():
        ended[number] = "refused"
    begun = [number for _, number, _, _ in asked.log]
    assert len(begun) == len(set(begun)), "nothing runs twice"
    assert set(begun) | set(ended) == set(accepted), "nothing is lost"
    assert not set(begun) & set(ended)
    _ran_in_order(asked.log, accepted)
    asked.now += 1.0
    asked.next()
    state = asked.scheduler.book.state()
    assert (state.live, state.used, state.slots) == (0, 0, workers * slots)


def _holds(asked):
    book = asked.scheduler.book
    running = [i.request.info.sequence_id for b in asked.out.values() for i in b.items]
    assert len(running) == len(set(running)), "one request of a sequence is under way"
    state = book.state()
    assert 0 <= state.used <= state.slots
    assert state.live == state.used + state.backlog
    assert book.queued == sum(len(s.queue) for s in book._chains.all())


def _ran_in_order(log, accepted):
    """Within each id: rising numbers, one worker and slot from START to what follows."""
    last, at = {}, {}
    for name, number, worker, place in log:
        assert number > last.get(name, 0)
        last[name] = number
        if accepted[number].request.info.sequence_start:
            at[name] = worker, place
        assert at[name] == (worker, place)
