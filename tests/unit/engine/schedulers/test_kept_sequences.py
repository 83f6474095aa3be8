"""Sequences whose states the book has: they wait for another slot when their worker is lost."""

from __future__ import annotations

from typing import Any

import pytest
from sequencing import Sequences

from pipeline.errors import DeadlineError, PipelineError, WorkerDiedError

DIED = WorkerDiedError("the worker process was killed")


class CheckpointedSequences(Sequences):
    """As Sequences, of which each step leaves its number as the states of its sequence."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, checkpoint=True)

    def done(self, worker: int = 0) -> None:
        items = self.out[worker].items
        self.scheduler.book.keep(items, {at: item.data_id for at, item in enumerate(items)})
        super().done(worker)

    def fail(self, worker: int, error: PipelineError = DIED) -> list[int]:
        """Lose a worker before its requests return; return the numbers of the failed ones."""
        self.lives[worker] += 1
        self.scheduler.workers_are(self.lives)
        batch = self.out.pop(worker)
        failed = self.scheduler.book.again(batch.items, error, 1)
        self.scheduler.done(batch, self.now)
        return [item.data_id for item in failed]

    def given(self) -> dict[int, Any]:
        """What the batches that run bring, by the number of the request."""
        return {
            batch.items[at].data_id: states
            for batch in self.out.values()
            for at, states in self.scheduler.given.get(batch.items[0], {}).items()
        }


def test_a_sequence_continues_at_another_worker_with_its_states() -> None:
    at = CheckpointedSequences(workers=2)
    at.ask("7 start")
    assert at.next() == (0, {0: "7/1"})
    at.done()
    at.ask("7")
    assert at.next() == (0, {0: "7/2"})
    assert at.given() == {}
    assert at.fail(0) == []
    assert at.next() == (0, {0: "7/2"})
    assert at.given() == {2: 1}
    at.done()
    at.ask("7 end")
    assert at.next() == (0, {0: "7/3"})
    assert at.given() == {}
    at.done()
    assert at.refused() == {}
    state = at.scheduler.book.state()
    assert (state.live, state.slots, state.ended, state.lost) == (0, 2, 1, 0)


def test_a_repeated_first_request_carries_empty_states() -> None:
    at = CheckpointedSequences()
    at.ask("7 start")
    at.next()
    assert at.fail(0) == []
    assert at.next() == (0, {0: "7/1"})
    assert at.given() == {1: {}}


def test_requests_of_a_lost_batch_run_alone_and_the_culprit_fails() -> None:
    at = CheckpointedSequences(slots=4)
    for name in "abc":
        at.ask(f"{name} start")
    assert at.next() == (0, {0: "a/1", 1: "b/2", 2: "c/3"})
    assert at.fail(0) == []
    assert at.next() == (0, {0: "a/1"})
    at.done()
    for _ in range(2):
        assert list(at.next()[1].values()) == ["b/2"]
        assert at.fail(0) == []
    assert list(at.next()[1].values()) == ["b/2"]
    assert at.fail(0) == [2]
    assert list(at.next()[1].values()) == ["c/3"]
    at.done()
    for name in "abc":
        at.ask(f"{name} end")
    assert set(at.next()[1].values()) == {"a/4", "b/5", "c/6"}
    assert at.given() == {4: 1, 5: {}}


def test_a_request_with_which_a_worker_hung_alone_fails_as_configured() -> None:
    at = CheckpointedSequences()
    at.ask("7 start")
    at.next()
    assert at.fail(0, DeadlineError("hung")) == [1]
    at.ask("7 end")
    assert at.next() == (0, {0: "7/2"})


def test_a_sequence_of_a_lost_worker_precedes_later_sequences() -> None:
    at = CheckpointedSequences()
    at.ask("7 start")
    at.ask("8 start")
    at.next()
    assert at.fail(0) == []
    assert at.next() == (0, {0: "7/1"})


def test_the_timeout_of_the_backlog_ignores_a_sequence_that_had_a_slot() -> None:
    at = CheckpointedSequences(workers=1)
    at.ask("7 start")
    at.next()
    at.ask("8 start", timeout=1_000_000)
    at.done()
    at.ask("7 end")
    at.next()
    at.done()
    assert at.next() == (0, {0: "8/2"})
    del at.lives[0]
    at.scheduler.workers_are(at.lives)
    at.now = 5.0
    at.scheduler.book.reap(at.now)
    assert at.refused() == {}


def test_an_idle_sequence_of_a_lost_worker_is_reaped_in_time() -> None:
    at = CheckpointedSequences(max_idle_ms=1000)
    at.ask("7 start")
    at.next()
    at.now = 1.0
    at.done()
    at.now = 1.5
    at.lose(0)
    assert at.scheduler.book.reaps_at == pytest.approx(2.0)
    at.now = 2.0
    assert at.next() is None
    assert "its first request must have sequence_start" in at.ask("7")
    state = at.scheduler.book.state()
    assert (state.live, state.backlog, state.reaped) == (0, 0, 1)


def test_a_request_cancelled_during_its_run_is_not_repeated() -> None:
    at = CheckpointedSequences()
    item = at.ask("7 start")
    at.next()
    at.scheduler.drop(item.request)
    assert at.fail(0) == [1]
    assert at.next() is None
    assert at.scheduler.book.state().live == 0


def test_a_sequence_without_saved_states_ends_with_its_worker() -> None:
    at = CheckpointedSequences()
    at.ask("7 start")
    at.next()
    at.scheduler.book.keep(at.out[0].items, {0: None})
    Sequences.done(at)
    at.ask("7")
    at.next()
    at.ask("7")
    assert at.fail(0) == [2]
    assert "sequence 7 has ended: its worker was lost" in at.refused()[3]


def test_states_reported_before_a_worker_was_lost_are_used() -> None:
    at = CheckpointedSequences(workers=2)
    at.ask("7 start")
    at.ask("8 start end")
    assert at.next() == (0, {0: "7/1"})
    assert at.next() == (1, {0: "8/2"})
    at.lives = {0: 1, 1: 1}
    at.scheduler.workers_are(at.lives)
    at.ask("9 start")
    assert at.next() is None
    at.done(0)
    at.done(1)
    assert at.next() == (1, {0: "9/3"})
    at.ask("7")
    assert at.next() == (0, {0: "7/4"})
    assert at.given() == {4: 1}
    state = at.scheduler.book.state()
    assert (state.live, state.used, state.backlog, state.ended) == (2, 2, 0, 1)


def test_an_unsent_first_request_leaves_no_states() -> None:
    at = Sequences()
    at.ask("7 start")
    at.next()
    at.done()
    cut = at.ask("7 start")
    at.next()
    at.scheduler.book.unsent(cut, None)
    at.done()
    at.ask("7")
    at.next()
    assert list(at.scheduler.given.values()) == [{0: {}}]
