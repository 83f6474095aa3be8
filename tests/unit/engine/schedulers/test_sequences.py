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
    refusal = Sequences(strategy).ask("x start", id=nobody)
    assert refusal == (
        "Op 'm' has sequences: a request needs a sequence_id, a number that is not 0 or a text"
    )


@BOTH
@pytest.mark.parametrize("name", ["77", "seventy-seven"])
def test_an_unknown_id_needs_the_start_flag(strategy, name):
    sequences = Sequences(strategy)
    assert sequences.ask(name) == NO_START.format(name)
    assert sequences.ask(f"{name} end") == NO_START.format(name)
    assert sequences.scheduler.book.queued == 0


@BOTH
def test_a_request_of_a_sequence_has_one_sample(strategy):
    refusal = Sequences(strategy).ask("1 start", rows=2)
    assert refusal == "Op 'm' has sequences: a request must have one row"


@BOTH
def test_the_number_and_the_text_are_two_ids(strategy):
    sequences = Sequences(strategy, slots=2)
    sequences.ask("x start", id=7)
    assert sequences.ask("x", id="7") == NO_START.format(7)


# Slots -------------------------------------------------------------------------------------


@BOTH
def test_a_sequence_has_one_request_under_way_at_a_time(strategy):
    sequences = Sequences(strategy, slots=4)
    for words in ("1 start", "1", "1 end"):
        sequences.ask(words)
    for number in (1, 2, 3):
        assert sequences.next() == (0, {0: f"1/{number}"})
        assert sequences.next() is None
        sequences.done()
    assert sequences.next() is None
    assert sequences.ask("1") == NO_START.format(1), "after END the id is unknown"


@BOTH
def test_the_lowest_slot_is_assigned_first_then_the_lowest_worker(strategy):
    sequences = Sequences(strategy, workers=2, slots=2)
    for name in range(1, 5):
        sequences.ask(f"{name} start")
    assert sequences.next() == (0, {0: "1/1", 1: "3/3"})
    assert sequences.next() == (1, {0: "2/2", 1: "4/4"})


@BOTH
def test_a_sequence_keeps_its_worker_and_slot(strategy):
    sequences = Sequences(strategy, workers=2, slots=1)
    sequences.ask("1 start")
    sequences.ask("2 start")
    for _ in range(3):
        while sequences.next():
            pass
        sequences.done(0)
        sequences.done(1)
        sequences.ask("2")
        sequences.ask("1")
    assert {(name, worker) for name, _, worker, _ in sequences.log} == {(1, 0), (2, 1)}


def test_direct_orders_a_batch_by_the_slots():
    sequences = Sequences("direct", slots=3)
    for name in (1, 2, 3):
        sequences.ask(f"{name} start")
    sequences.next()
    sequences.done()
    sequences.ask("3")
    sequences.ask("1")
    assert list(sequences.next()[1].items()) == [(0, "1/5"), (2, "3/4")]


def test_oldest_orders_a_batch_by_the_arrivals():
    sequences = Sequences("oldest", slots=3)
    for name in (1, 2, 3):
        sequences.ask(f"{name} start")
    sequences.next()
    sequences.done()
    sequences.ask("3")
    sequences.ask("1")
    assert list(sequences.next()[1].items()) == [(2, "3/4"), (0, "1/5")]


@BOTH
def test_a_start_and_end_in_one_is_a_sequence_of_one(strategy):
    sequences = Sequences(strategy)
    sequences.ask("1 start end")
    sequences.ask("2 start end")
    assert sequences.next() == (0, {0: "1/1"})
    sequences.done()
    assert sequences.next() == (0, {0: "2/2"})
    sequences.done()
    assert sequences.scheduler.book.state().live == 0


@BOTH
def test_a_start_of_a_live_sequence_cuts_it_short_in_its_slot(strategy, caplog):
    sequences = Sequences(strategy, workers=2)
    sequences.ask("1 start")
    sequences.next()
    with caplog.at_level(logging.WARNING):
        sequences.ask("1 start")
    assert (
        "sequence 1 for model 'm' has a conflict. The previous sequence did not end before this "
        "sequence start. Previous sequence will be terminated early."
    ) in caplog.text
    sequences.done()
    assert sequences.next() == (0, {0: "1/2"})
    assert sequences.scheduler.book.state().live == 1


@BOTH
def test_an_end_frees_the_slot_though_it_failed(strategy):
    sequences = Sequences(strategy)
    sequences.ask("1 start end")
    sequences.ask("2 start")
    sequences.next()
    sequences.done()
    assert sequences.next() == (0, {0: "2/2"})


# Backlog -----------------------------------------------------------------------------------


@BOTH
def test_a_sequence_without_a_slot_waits_with_all_its_requests(strategy):
    sequences = Sequences(strategy)
    for words in ("1 start", "2 start", "3 start end", "2", "1 end", "2 end"):
        sequences.ask(words)
    assert sequences.scheduler.book.state().backlog == 2
    while sequences.next():
        sequences.done()
    assert [(name, number) for name, number, _, _ in sequences.log] == [
        (1, 1), (1, 5), (2, 2), (2, 4), (2, 6), (3, 3),
    ]  # fmt: skip


@BOTH
def test_a_later_request_follows_its_sequence_out_of_the_backlog(strategy):
    sequences = Sequences(strategy)
    for words in ("1 start end", "2 start"):
        sequences.ask(words)
    sequences.next()
    sequences.done()
    assert sequences.next() == (0, {0: "2/2"})
    sequences.ask("2 end")
    sequences.done()
    assert sequences.next() == (0, {0: "2/3"})


@BOTH
def test_one_id_twice_in_the_backlog_is_two_sequences(strategy):
    sequences = Sequences(strategy)
    for words in ("9 start", "1 start", "1 end", "2 start end", "1 start", "1 end", "9 end"):
        sequences.ask(words)
    assert sequences.scheduler.book.state().backlog == 3
    while sequences.next():
        sequences.done()
    names = [(name, number) for name, number, _, _ in sequences.log]
    assert names == [(9, 1), (9, 7), (1, 2), (1, 3), (2, 4), (1, 5), (1, 6)]


@BOTH
def test_a_new_sequence_of_an_id_waits_for_the_end_of_the_previous_one(strategy):
    sequences = Sequences(strategy, workers=2)
    sequences.ask("1 start end")
    assert sequences.next() == (0, {0: "1/1"})
    sequences.ask("1 start end")
    assert sequences.next() is None, "though a worker is free"
    sequences.done()
    assert sequences.next() == (0, {0: "1/2"})


# Time --------------------------------------------------------------------------------------


@BOTH
def test_an_idle_sequence_loses_its_slot_and_its_next_request_is_refused(strategy):
    sequences = Sequences(strategy, max_idle_ms=1000)
    sequences.ask("1 start")
    sequences.next()
    sequences.now = 5.0
    sequences.done()
    assert sequences.scheduler.book.reaps_at == 6.0, "counted from its answer, not its arrival"
    sequences.now = 5.9
    sequences.ask("1")
    sequences.next()
    sequences.done()
    sequences.ask("2 start")
    assert sequences.next() is None
    sequences.now = 6.9
    assert sequences.next() == (0, {0: "2/3"})
    assert sequences.ask("1") == NO_START.format(1)
    assert sequences.scheduler.book.state().reaped == 1


@BOTH
def test_each_sequence_counts_as_one_thing_when_it_is_over(strategy):
    sequences = Sequences(strategy, slots=8, max_idle_ms=1000)
    sequences.ask("1 start end")
    sequences.ask("2 start")
    cancelled = sequences.ask("3 start")
    sequences.ask("4 start")
    sequences.scheduler.drop(cancelled.request)
    sequences.next()
    sequences.ask("2 start")
    sequences.done()
    sequences.next()
    sequences.done()
    sequences.now = 2.0
    sequences.scheduler.book.reap(sequences.now)
    sequences.ask("5 start")
    sequences.ask("6 start")
    sequences.next()
    sequences.lose(0)
    state = sequences.scheduler.book.state()
    assert (state.ended, state.cut, state.reaped, state.lost) == (1, 2, 2, 2)
    assert (state.begun, state.live) == (7, 0)


@BOTH
def test_a_sequence_is_not_idle_in_the_backlog_or_while_it_runs(strategy):
    sequences = Sequences(strategy, max_idle_ms=1)
    sequences.ask("1 start")
    sequences.ask("2 start")
    sequences.next()
    sequences.now = 100.0
    assert sequences.scheduler.book.reaps_at is None
    assert not isinstance(sequences.ask("1 end"), str)
    sequences.done()
    sequences.next()
    sequences.done()
    assert sequences.next() == (0, {0: "2/2"})


def test_direct_waits_for_a_share_of_its_slots_but_not_for_long():
    sequences = Sequences("direct", slots=4, min_slot_utilization=0.5, max_queue_delay_ms=100)
    sequences.ask("1 start")
    assert sequences.next() == pytest.approx(0.1)
    sequences.ask("2 start")
    assert sequences.next() == (0, {0: "1/1", 1: "2/2"})
    sequences.done()
    sequences.now = 0.5
    sequences.ask("1")
    sequences.now = 0.6
    assert sequences.next() == (0, {0: "1/3"})


@pytest.mark.parametrize(
    "options", [{"min_slot_utilization": 1.0}, {"max_queue_delay_ms": 100}], ids=str
)
def test_direct_waits_only_with_both(options):
    sequences = Sequences("direct", slots=4, **options)
    sequences.ask("1 start")
    assert sequences.next() == (0, {0: "1/1"})


def test_oldest_waits_for_a_full_batch_or_a_preferred_one():
    sequences = Sequences("oldest", slots=4, max_queue_delay_ms=100, preferred_batch_sizes=(2,))
    sequences.ask("1 start")
    assert sequences.next() == pytest.approx(0.1)
    sequences.ask("2 start")
    sequences.ask("3 start")
    assert sequences.next() == (0, {0: "1/1", 1: "2/2"}), "of a preferred size"
    sequences.done()
    sequences.now = 0.1
    assert sequences.next() == (0, {2: "3/3"})


def test_oldest_cuts_all_after_the_delay_regardless_of_preferred_sizes():
    sequences = Sequences("oldest", slots=8, max_queue_delay_ms=100, preferred_batch_sizes=(2, 4))
    for name in range(1, 8):
        sequences.ask(f"{name} start")
    assert len(sequences.next()[1]) == 4, "the largest that can be had"
    sequences.done()
    sequences.now = 0.1
    assert len(sequences.next()[1]) == 3


def test_oldest_without_delay_prefers_sizes_but_does_not_wait():
    sequences = Sequences("oldest", slots=4, preferred_batch_sizes=(3,))
    for name in range(1, 5):
        sequences.ask(f"{name} start")
    assert len(sequences.next()[1]) == 3
    sequences.done()
    assert len(sequences.next()[1]) == 1


def test_oldest_takes_batches_out_of_more_candidates():
    sequences = Sequences("oldest", slots=2, max_candidates=4)
    for name in range(1, 6):
        sequences.ask(f"{name} start")
    assert sequences.scheduler.book.state().backlog == 1
    assert sequences.next() == (0, {0: "1/1", 1: "2/2"})
    sequences.done()
    sequences.ask("1")
    assert sequences.next() == (0, {2: "3/3", 3: "4/4"}), "who has waited longest"


def test_a_busy_worker_gets_a_whole_batch_of_others_ahead():
    sequences = Sequences("oldest", slots=2, max_candidates=6)
    for name in range(1, 7):
        sequences.ask(f"{name} start")
    assert sequences.next() == (0, {0: "1/1", 1: "2/2"})
    first = sequences.out.pop(0)
    assert sequences.next() is None, "how long a batch takes is not known"
    sequences.load.service_s = 0.01
    assert sequences.next() == (0, {2: "3/3", 3: "4/4"})
    second = sequences.out.pop(0)
    assert sequences.next() is None, "one is enough"
    sequences.scheduler.done(first, sequences.now)
    assert sequences.next() == (0, {4: "5/5", 5: "6/6"})
    sequences.ask("1")
    sequences.ask("3")
    third = sequences.out.pop(0)
    sequences.scheduler.done(second, sequences.now)
    assert sequences.next() == (0, {0: "1/7", 2: "3/8"})
    sequences.scheduler.done(third, sequences.now)
    sequences.ask("2")
    assert sequences.next() is None, "it is not whole"
    sequences.done()
    assert sequences.next() == (0, {1: "2/9"})


def test_batches_sent_ahead_are_dropped_with_their_worker():
    sequences = Sequences("oldest", slots=1, max_candidates=3)
    sequences.load.service_s = 0.0005
    for name in range(1, 4):
        sequences.ask(f"{name} start")
    batches = []
    while sequences.next() is not None:
        batches.append(sequences.out.pop(0))
    assert len(batches) == 3
    sequences.lose(0)
    for batch in batches:
        sequences.scheduler.done(batch, sequences.now)
    sequences.ask("4 start")
    assert sequences.next() == (0, {0: "4/4"})


@BOTH
def test_batches_are_bounded_by_the_room_of_the_next_op(strategy):
    sequences = Sequences(strategy, slots=4)
    for name in (1, 2, 3):
        sequences.ask(f"{name} start")
    sequences.load.max_items = 2
    assert sequences.next() == (0, {0: "1/1", 1: "2/2"})
    sequences.load.max_items = 0
    sequences.done()
    assert sequences.next() is None


# Triton's hooks for tests -----------------------------------------------------------------


def test_direct_begins_only_when_so_many_are_queued_and_in_the_backlog():
    sequences = Sequences("direct", workers=2, slots=1)
    sequences.scheduler.start = StartCondition(queued=3, backlog=1)
    for words in ("1 start", "1", "2 start"):
        sequences.ask(words)
        assert sequences.next() is None
    sequences.ask("3 start")
    assert sequences.next() == (0, {0: "1/1"})
    assert sequences.next() == (1, {0: "2/3"})
    sequences.done()
    assert sequences.next() == (0, {0: "1/2"}), "it waits once"


def test_oldest_begins_only_when_so_many_sequences_are_ready_at_a_worker():
    sequences = Sequences("oldest", workers=2, slots=2)
    sequences.scheduler.start = StartCondition(queued=2, backlog=9)
    for words in ("1 start", "1", "2 start"):
        sequences.ask(words)
        assert sequences.next() is None
    sequences.ask("3 start")
    assert sequences.next() == (0, {0: "1/1", 1: "3/4"})
    assert sequences.next() == (1, {0: "2/3"})


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
    sequences = Sequences(strategy)
    sequences.ask("1 start")
    sequences.next()
    second, third = sequences.ask("1"), sequences.ask("1")
    sequences.ask("2 start")
    assert _leave(sequences, second, ClosedError("x")) == [second]
    assert list(sequences.refused().values()) == [
        "[m] a request of sequence 1 was cancelled, which ended the sequence"
    ]
    assert third.data_id == 3
    assert sequences.ask("1") == NO_START.format(1)
    assert sequences.next() is None, "its first request is still under way"
    sequences.done()
    assert sequences.next() == (0, {0: "2/4"})


@BOTH
def test_a_request_cancelled_while_it_runs_ends_its_sequence_on_return(strategy):
    sequences = Sequences(strategy)
    first = sequences.ask("1 start")
    sequences.ask("1")
    sequences.next()
    assert _leave(sequences, first, DeadlineError("x")) == []
    assert list(sequences.refused()) == [2]
    sequences.ask("1 start")
    assert sequences.next() is None
    sequences.done()
    assert sequences.next() == (0, {0: "1/3"})


@BOTH
def test_the_first_timeout_in_the_backlog_ends_the_whole_sequence(strategy):
    sequences = Sequences(strategy)
    sequences.ask("1 start")
    sequences.ask("2 start")
    late = sequences.ask("2")
    _leave(sequences, late, DeadlineError("x"))
    ((item, error),) = sequences.scheduler.book.refused
    assert item.data_id == 2
    assert isinstance(error, OverloadedError)
    assert str(error) == "timeout of the corresponding sequence has been expired"
    assert sequences.ask("2") == NO_START.format(2)


@BOTH
def test_the_earliest_timeout_of_a_sequence_in_the_backlog_counts(strategy):
    sequences = Sequences(strategy)
    book = sequences.scheduler.book
    sequences.ask("1 start")
    sequences.next()
    sequences.ask("2 start", timeout=3_000_000)
    sequences.now = 1.0
    sequences.ask("2", timeout=500_000)
    sequences.ask("2")
    sequences.ask("3 start", timeout=5_000_000)
    assert book.reaps_at == 1.5
    sequences.now = 1.4
    assert sequences.next() is None
    assert not book.refused
    sequences.now = 1.5
    assert sequences.next() is None
    errors = [error for _, error in book.refused]
    assert all(isinstance(error, OverloadedError) for error in errors)
    text = "timeout of the corresponding sequence has been expired"
    assert sequences.refused() == {2: text, 3: text, 4: text}
    assert sequences.ask("2") == NO_START.format(2)
    assert book.reaps_at == 6.0, "that of 3, which waits on"
    assert book.state().backlog == 1


@BOTH
def test_a_timeout_does_not_apply_to_a_sequence_with_a_slot(strategy):
    sequences = Sequences(strategy)
    sequences.ask("1 start", timeout=1)
    sequences.ask("2 start", timeout=1_000_000)
    sequences.next()
    sequences.now = 0.5
    assert not isinstance(sequences.ask("1 end", timeout=1), str)
    sequences.done()
    sequences.next()
    sequences.done()
    sequences.now = 10.0
    assert sequences.next() == (0, {0: "2/2"}), "it got the slot in time, and waits for no one"
    assert not sequences.refused()


@BOTH
def test_a_new_sequence_of_an_id_does_not_inherit_the_timeout_of_the_previous_one(strategy):
    sequences = Sequences(strategy)
    for words in ("1 start", "2 start end"):
        sequences.ask(words, timeout=1_000_000)
    sequences.next()
    sequences.ask("2 start")
    sequences.now = 1.0
    sequences.next()
    assert list(sequences.refused()) == [2]
    assert not isinstance(sequences.ask("2"), str)


@BOTH
def test_limits_of_the_backlog_are_forgotten_with_their_sequences(strategy):
    sequences = Sequences(strategy)
    sequences.ask("1 start")
    for name in range(2, 1000):
        _leave(sequences, sequences.ask(f"{name} start", timeout=1_000_000 + name))
    last = sequences.ask("1000 start", timeout=10)
    for _ in range(1000):
        sequences.ask("1000", timeout=2_000_000)
    assert len(sequences.scheduler.book._backlog._limits) < 200
    assert sequences.scheduler.book.reaps_at == pytest.approx(10e-6)
    _leave(sequences, last)
    assert sequences.scheduler.book.reaps_at is None


@BOTH
def test_a_request_that_has_run_ends_no_sequence(strategy):
    sequences = Sequences(strategy)
    first = sequences.ask("1 start")
    sequences.next()
    sequences.done()
    _leave(sequences, first, ClosedError("x"))
    assert not isinstance(sequences.ask("1"), str)


@BOTH
def test_the_sequences_of_a_lost_worker_end_and_others_continue(strategy):
    sequences = Sequences(strategy, workers=2, slots=1)
    for words in ("1 start", "2 start", "1", "2", "3 start"):
        sequences.ask(words)
    sequences.next()
    sequences.next()
    lost = sequences.lose(0)
    assert [item.data_id for item in lost.items] == [1]
    ((item, error),) = sequences.scheduler.book.refused
    assert item.data_id == 3
    assert isinstance(error, WorkerDiedError)
    assert "sequence 1 has ended: its worker was lost" in str(error)
    assert sequences.ask("1") == NO_START.format(1)
    assert sequences.next() == (0, {0: "3/5"}), "the new worker has slots"
    sequences.done(1)
    assert sequences.next() == (1, {0: "2/4"})


@BOTH
def test_a_late_report_of_a_lost_worker_does_not_touch_its_successor(strategy):
    sequences = Sequences(strategy)
    sequences.ask("1 start")
    sequences.next()
    old = sequences.out.pop(0)
    sequences.lives[0] += 1
    sequences.scheduler.workers_are(sequences.lives)
    sequences.ask("1 start")
    assert sequences.next() == (0, {0: "1/2"})
    sequences.ask("1")
    sequences.scheduler.done(old, sequences.now)
    assert sequences.next() is None, "the new worker is at it"
    sequences.done()
    assert sequences.next() == (0, {0: "1/3"})


@BOTH
def test_a_lost_worker_has_no_slots_until_its_restart(strategy):
    sequences = Sequences(strategy)
    sequences.scheduler.workers_are({})
    sequences.ask("1 start")
    assert sequences.next() is None
    sequences.scheduler.workers_are({0: 1})
    assert sequences.next() == (0, {0: "1/1"})


@BOTH
def test_clear_returns_all_that_was_queued(strategy):
    sequences = Sequences(strategy)
    for words in ("1 start", "2 start", "1", "2"):
        sequences.ask(words)
    sequences.next()
    assert [item.data_id for item in sequences.scheduler.clear()] == [2, 3, 4]
    assert sequences.scheduler.book.queued == 0
    assert sequences.ask("1") == NO_START.format(1)


@BOTH
def test_cancelled_sequences_are_removed_from_the_backlog(strategy):
    sequences = Sequences(strategy)
    sequences.ask("1 start")
    for name in range(2, 2000):
        _leave(sequences, sequences.ask(f"{name} start"))
    assert len(sequences.scheduler.book._backlog._line) < 200
    assert sequences.scheduler.book.state().backlog == 0


@BOTH
def test_a_request_that_runs_again_restarts_its_sequence_in_the_backlog(strategy):
    sequences = Sequences(strategy)
    sequences.ask("1 start end")
    first, _ = sequences.ask("2 start end"), sequences.ask("3 start end")
    sequences.scheduler.drop(first.request)
    assert (
        sequences.scheduler.add(first, sequences.now) is None
    )  # of the same number, beside what is over
    begun = []
    while (batch := sequences.next()) is not None:
        begun.append(batch[1][0])
        sequences.done()
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
def test_the_cost_of_a_cancellation_does_not_grow_with_sequences_of_its_id(strategy):
    counts = []
    for many in (20, 60):
        sequences = Sequences(strategy)
        items = [sequences.ask("7 start end") for _ in range(many)]
        counts.append(lines_run(partial(sequences.scheduler.drop, items[-2].request)))
    assert counts[0] == counts[1]


# Against a model --------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("seed", range(60))
def test_any_course_of_events_keeps_order_slots_and_requests(strategy, seed):
    """Whatever happens: each request begins, is refused or dropped once; sequences stay put."""
    rng = random.Random(seed)
    workers, slots = rng.randint(1, 3), rng.randint(1, 3)
    sequences = Sequences(strategy, workers=workers, slots=slots, max_idle_ms=50)
    accepted, ended = {}, {}
    for _ in range(400):
        what = rng.random()
        sequences.now += rng.choice([0.0, 0.001, 0.02])
        if what < 0.5:
            flags = rng.choice(["", "", "", " start", " end", " start end"])
            item = sequences.ask(f"{rng.randint(1, 8)}{flags}")
            if not isinstance(item, str):
                accepted[item.data_id] = item
        elif what < 0.7:
            sequences.next()
        elif what < 0.9 and sequences.out:
            sequences.done(rng.choice(list(sequences.out)))
        elif what < 0.93 and accepted:
            item = rng.choice(list(accepted.values()))
            for entry in sequences.scheduler.drop(item.request):
                assert ended.setdefault(entry.data_id, "dropped") == "dropped"
        elif what < 0.95:
            sequences.lose(rng.randrange(workers))
        for number, text in sequences.refused().items():
            assert ended.setdefault(number, text) is text
        _holds(sequences)
    for _ in range(2000):
        if not sequences.out and not sequences.scheduler.book.queued:
            break
        while isinstance(sequences.next(), tuple):
            pass
        for worker in list(sequences.out):
            sequences.done(worker)
        sequences.now += 0.1
    for number in sequences.refused():
        ended[number] = "refused"
    begun = [number for _, number, _, _ in sequences.log]
    assert len(begun) == len(set(begun)), "nothing runs twice"
    assert set(begun) | set(ended) == set(accepted), "nothing is lost"
    assert not set(begun) & set(ended)
    _ran_in_order(sequences.log, accepted)
    sequences.now += 1.0
    sequences.next()
    state = sequences.scheduler.book.state()
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
