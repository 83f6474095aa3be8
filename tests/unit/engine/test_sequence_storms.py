"""A short run of `fuzz.sequences`, always the same cases; and proof that it is not blind."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from fuzz import sequences
from fuzz.sequence_cases import READ, Case, Node, Step, made_case

from pipeline.engine.op import answer_cache
from pipeline.engine.sequences.book import SequenceBook
from pipeline.engine.sequences.feeds import FedCall, SequenceFeeds
from pipeline.engine.sequences.order import ReorderBuffer
from pipeline.engine.sequences.states import SlotStates

_SEED = 1
_CASES = 50
_MOST_CASES = 200  # until a defect that is put back is found


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_cases_on_a_virtual_clock_end_as_they_may():
    print(f"python -m fuzz.sequences --seed {_SEED} --cases {_CASES}")
    runs = {seed: sequences.run(made_case(seed)) for seed in range(_SEED, _SEED + _CASES)}
    results = {seed: findings for seed, findings in runs.items() if findings}
    assert not results, "python -m fuzz.sequences --seed SEED --cases 1 shows each again"


def test_any_number_of_refused_requests_get_their_reason():
    nodes = (Node("keeps", (READ,), "direct", slots=1), Node("b", ("keeps",)), Node("c", ("b",)))
    first = Step(1, "a", start=True, end=True, delays_s={"b": 0.1})
    others = [Step(number, f"none {number}", at_s=0.02) for number in range(2, 400)]
    assert sequences.run(Case(nodes, (first, *others), worker_num=1)) == []


def test_after_an_end_on_another_path_a_start_is_missing():
    keeps = Node("keeps", ("fork",), "oldest", slots=1)
    nodes = (Node("fork", (READ,)), keeps, Node("last", ("fork", "keeps")))
    paths = {"fork": ("last",)}
    steps = (Step(1, 7, start=True), Step(2, 7, end=True, ways=paths), Step(3, 7))
    assert sequences.run(Case(nodes, steps)) == []


def test_a_start_that_kills_workers_ends_the_previous_sequence():
    kept = {"workers": "process", "has_state": True, "is_kept": True, "slots": 1}
    nodes = (Node("keeps", (READ,), "direct", **kept),)
    steps = (
        Step(1, 7, start=True),
        Step(2, 7, start=True, faults={"keeps": "crash"}),
        Step(3, 7, at_s=1.0),
    )
    assert sequences.run(Case(nodes, steps)) == []


def never(*args: object) -> None:
    """In the place of a method that does something."""


def without_reordering(self, item, now):
    return self._add_to_book(item, now)


@pytest.mark.parametrize(
    ("of", "method", "other"),
    [
        (ReorderBuffer, "add", without_reordering),
        (ReorderBuffer, "note_missing", never),
        (SequenceBook, "_assign_slots", never),
        (SequenceBook, "miss", never),
        (SequenceBook, "drop", lambda self, request: []),
        (SequenceBook, "keep", never),
        (SequenceBook, "again", lambda self, items, error, attempts: items),
        (SequenceFeeds, "begin", never),
        (FedCall, "keep", never),
        (SlotStates, "restore", never),
        (answer_cache, "key_of", lambda *said: b"the same for all"),
    ],
)
def test_the_fuzzer_reports_an_inserted_defect(monkeypatch, of, method, other):
    monkeypatch.setattr(of, method, other)
    monkeypatch.setattr(sequences, "_OVER_S", 120.0)
    cases = (made_case(seed) for seed in range(_SEED, _SEED + _MOST_CASES))
    assert any(sequences.run(case) for case in cases)
