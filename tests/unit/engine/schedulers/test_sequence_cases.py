"""What Triton's suites of its sequence batcher ask of its schedulers, on a virtual clock.

Each case has who asks how often, in this order, and how many batches of which size that makes: at
one worker with four slots, at two with two, at four with one. In `direct` a batch is as large as
the highest slot that is in it, as the model sees it.
"""

from __future__ import annotations

from collections import Counter

import pytest
from sequencing import Sequences

from pipeline.engine.schedulers.base import StartCondition

LAYOUTS = {1: (1, 4), 2: (2, 2), 4: (4, 1)}
FULL = ["1*3", "2*3", "3*3", "4*3"]

DIRECT = {
    "half_batch": (["1*4", "2*4"], (8, 0), {1: {2: 4}, 2: {1: 8}, 4: {1: 8}}),
    "full_batch": (FULL, (12, 0), {1: {4: 3}, 2: {2: 6}, 4: {1: 12}}),
    "skip_batch": (
        ["2*4", "4*4", "1*2", "3*2"],
        (12, 0),
        {1: {2: 2, 4: 2}, 2: {2: 4, 1: 4}, 4: {1: 12}},
    ),
    "backlog": ([*FULL, "5*3"], (12, 0), {1: {4: 3, 1: 3}, 2: {2: 6, 1: 3}, 4: {1: 15}}),
    "fill": (["1*3", "2*2", "3*2", "4*3", "5", "6"], (10, 2), {1: {4: 3}}),
    "fill_no_end": (["1*3", "2*2", "3*2", "4*3", "5", "6*3"], (10, 3), {1: {4: 3, 3: 2}}),
    "same_id": ([*FULL, "2*2"], (12, 2), {1: {4: 3, 1: 2}, 2: {2: 6, 1: 2}, 4: {1: 14}}),
    "same_id_no_end": (["1*2-", "2*4", "3*4", "4*4", "1*2"], (16, 0), {1: {4: 4}}),
}


def ask_all(asked, who):
    """Have "2*3" be sequence 2 with START, a step and END, "2*3-" the same with no END."""
    sent = []
    for words in who:
        name, _, count = words.rstrip("-").partition("*")
        steps = int(count or 1)
        for step in range(steps):
            start, end = step == 0, step == steps - 1 and not words.endswith("-")
            sent.append(asked.ask(f"{name}{' start' * start}{' end' * end}"))
    assert all(not isinstance(item, str) for item in sent)
    return sent


def run_all(asked, strategy="direct"):
    """Run until nobody is left; how many batches had which size."""
    sizes = Counter()
    while asked.scheduler.book.queued:
        while isinstance(begun := asked.next(), tuple):
            places = begun[1]
            sizes[max(places) + 1 if strategy == "direct" else len(places)] += 1
        assert asked.out, "somebody waits for nothing"
        for worker in list(asked.out):
            asked.done(worker)
    return dict(sizes)


CASES = [(name, layout) for name, (_, _, sizes) in DIRECT.items() for layout in sizes]


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_direct_batches(name, layout):
    who, (queued, backlog), sizes = DIRECT[name]
    workers, slots = LAYOUTS[layout]
    sequences = Sequences("direct", workers=workers, slots=slots)
    sequences.scheduler.start = StartCondition(queued, backlog)
    sent = ask_all(sequences, who)
    assert run_all(sequences) == sizes[layout]
    assert sorted(number for _, number, _, _ in sequences.log) == [item.data_id for item in sent]


OLDEST = {
    "backlog": ([*FULL, "5*3"], {4: 3, 1: 3}),
    "fill": (["1*3", "2*2", "3*2", "4*3", "5", "6"], {4: 3}),
    "fill_no_end": (["1*3", "2*2", "3*2", "4*3", "5", "6*3"], {4: 3, 1: 2}),
}


@pytest.mark.parametrize("name", OLDEST)
def test_oldest_batches(name):
    who, sizes = OLDEST[name]
    options = {"max_candidates": 4, "preferred_batch_sizes": (4,), "max_queue_delay_ms": 5000}
    sequences = Sequences("oldest", slots=8, **options)
    ask_all(sequences, who)
    collected = Counter()
    while sequences.scheduler.book.queued:
        begun = sequences.next()
        if isinstance(begun, float):
            sequences.now = begun  # who is alone waits for others until the delay is over
            continue
        collected[len(begun[1])] += 1
        sequences.done()
    assert collected == sizes


@pytest.mark.parametrize(
    ("share", "sizes"), [(0.0, {1: 1, 2: 2}), (0.5, {2: 2}), (1.0, {2: 2})], ids=str
)
def test_queue_delay(share, sizes):
    """One request at first, two of another sequence a second later; both slots of four."""
    options = {"max_queue_delay_ms": 3000, "max_idle_ms": 5000}
    sequences = Sequences("direct", slots=4, min_slot_utilization=share, **options)
    sequences.ask("1 start")
    begun = {}
    collected = Counter()

    def run():
        while isinstance(each := sequences.next(), tuple):
            for name in each[1].values():
                begun[name] = sequences.now
            collected[max(each[1]) + 1] += 1
            sequences.done()

    run()
    sequences.now = 1.0
    sequences.ask("2 start")
    sequences.ask("2")
    for sequences.now in (1.0, 2.9, 3.0, 3.9, 4.0):
        run()
    assert collected == sizes
    first = {0.0: 0.0, 0.5: 1.0, 1.0: 3.0}[share]
    assert begun["1/1"] == first
    assert begun["2/2"] == max(first, 1.0)
    assert begun["2/3"] == {0.0: 1.0, 0.5: 4.0, 1.0: 4.0}[share], "alone it waits for its own delay"


def test_a_sequence_that_is_idle_makes_room_for_the_backlog():
    sequences = Sequences("direct", slots=4, max_idle_ms=5000)
    sequences.scheduler.start = StartCondition(4)
    ask_all(sequences, ["1*1-", "2*1-", "3*1-", "4*1-"])
    assert sequences.next()[1].keys() == {0, 1, 2, 3}
    sequences.done()
    ask_all(sequences, ["5*2"])
    assert sequences.next() is None
    for sequences.now in (2.5, 4.9):
        for name in (2, 3, 4):
            sequences.ask(f"{name}")
        sequences.next()
        sequences.done()
    sequences.now = 5.0
    assert sequences.next() == (0, {0: "5/5"}), "in the place of the first"
    sequences.done()
    assert "its first request must have sequence_start" in sequences.ask("1")
    assert sequences.next() == (0, {0: "5/6"})


def test_the_start_condition_counts_sequences_with_and_without_a_slot_separately():
    sequences = Sequences("direct", slots=1)
    sequences.scheduler.start = StartCondition(2, 2)
    for words in ("1 start", "2 start", "2", "2 end"):
        sequences.ask(words)
        assert sequences.next() is None
    sequences.ask("1 end")
    assert sequences.next() == (0, {0: "1/1"})
