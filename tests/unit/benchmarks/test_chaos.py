"""A short storm with a high rate of faults, and what is scheduled for the long ones."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos import Plan, Run, judge, markdown
from benchmarks.family import Holdings
from benchmarks.services.chaos import OPS, Board, Poison, Recipe, doom_of, poison_of
from benchmarks.steady import ANSWERED, UNENDED, WRONG, Ending
from benchmarks.storm import Blow, schedule

RECIPE = Recipe(
    seed=1,
    every=500,
    doomed_every=1000,
    retry=3,
    timeout_ms=500,
    deadline_ms=10_000,
    board="",
    requests=0,
)


def test_the_same_seed_gives_the_same_storm() -> None:
    storm = list(schedule(1, 60.0, 1.0))

    assert storm == list(schedule(1, 60.0, 1.0))
    assert storm != list(schedule(2, 60.0, 1.0))
    assert storm == list(itertools.takewhile(lambda event: event.at_s < 60, schedule(1, 99.0, 1.0)))


def test_a_storm_has_a_kill_a_second_and_strikes_every_place() -> None:
    storm = list(schedule(1, 300.0, 1.0))
    kills = [event for event in storm if event.blow is Blow.KILL]

    assert [event.at_s for event in kills] == [float(second) for second in range(1, 300)]
    assert {event.place for event in kills} == {
        (op, number) for op, count in OPS.items() for number in range(count)
    }
    assert {event.blow for event in storm} == set(Blow)


def test_poison_is_independent_of_earlier_attempts() -> None:
    draws = Counter(
        poison_of(RECIPE, op, number, attempt)
        for op in OPS
        for number in range(10_000)
        for attempt in range(2)
        if doom_of(RECIPE, number) is None
    )

    for poison in Poison:
        assert 80 < draws[poison] < 160  # of 60,000 / 500 = 120


def test_a_doomed_request_is_poison_in_every_attempt_at_its_op() -> None:
    dooms = {number: doom_of(RECIPE, number) for number in range(20_000)}
    doomed = {number: doom for number, doom in dooms.items() if doom is not None}

    assert len({(doom.op, doom.poison) for doom in doomed.values()}) == len(OPS) * len(Poison)
    assert all(
        poison_of(RECIPE, doom.op, number, attempt) is doom.poison
        for number, doom in doomed.items()
        for attempt in range(5)
    )


def test_a_request_of_the_calm_is_never_poison() -> None:
    assert not any(doom_of(RECIPE, -number) for number in range(1, 20_000))
    assert not any(poison_of(RECIPE, "left", -number, 0) for number in range(1, 20_000))


def test_the_board_outlives_its_writers(tmp_path: Path) -> None:
    path = str(tmp_path / "board")
    before = Board(path, 10)
    before.count_strike("join", 1, Poison.HANG)

    assert [before.count_attempt("left", 3) for _ in range(2)] == [0, 1]
    assert Board(path, 10).count_attempt("left", 3) == 2
    assert Board(path, 10).count_attempt("right", 3) == 0
    assert Board(path, 10).strikes(Poison.HANG) == 1
    assert Board(path, 10).strikes(Poison.CRASH) == 0


def run_with(*endings: Ending, **changes: Any) -> Run:
    """A storm in which these, and enough others, ended so; nothing else is to be complained of."""
    good = [Ending(-1, 0.01, ANSWERED)]
    held = Holdings(10, 100, 20, 2**20, 2**20)
    run = Run(
        plan=Plan(),
        recipe=RECIPE,
        before=good,
        during=[*endings, *(Ending(-2, 0.01, ANSWERED) for _ in range(1000))],
        after=good,
        held_before=held,
        held_after=held,
        events={},
        ready_s=0.0,
        exit_status=0,
        left=0,
    )
    return replace(run, **changes)


DOOMED = next(number for number in itertools.count() if doom_of(RECIPE, number))


@pytest.mark.parametrize(
    ("run", "missed"),
    [
        (run_with(), []),
        (run_with(Ending(1, 0.1, "worker killed")), []),  # one in a thousand may fail ...
        (run_with(*[Ending(1, 0.1, "worker killed")] * 2), ["answered in the storm"]),
        (run_with(Ending(1, 0.1, "unexplained: x")), ["errors that do not say why"]),
        (run_with(Ending(1, 0.1, WRONG)), ["wrong answers"]),
        (run_with(Ending(1, 12.0, UNENDED)), ["without an end", "more than", "do not say why"]),
        (run_with(Ending(1, 10.5, ANSWERED)), ["more than 10.25 s"]),
        (run_with(Ending(DOOMED, 0.1, "worker crashed")), []),
        (run_with(Ending(DOOMED, 0.1, ANSWERED)), ["always poison: ended"]),
        (run_with(after=[Ending(-1, 0.02, ANSWERED)]), ["p99"]),
        (run_with(ready_s=None), ["ready again"]),
        (run_with(held_after=Holdings(11, 100, 20, 2**20, 2**20)), ["processes"]),
        (run_with(held_after=Holdings(10, 101, 20, 2**20, 2**20)), ["descriptors"]),
        (run_with(held_after=Holdings(10, 101, 21, 2**20, 2**20)), []),
        (run_with(held_after=Holdings(10, 100, 20, 2**25, 2**20)), ["RSS"]),
        (run_with(held_after=Holdings(10, 100, 20, 2**20, 2**25)), ["shared memory"]),
        (run_with(exit_status=None), ["exit status"]),
        (run_with(left=1), ["processes that are left"]),
    ],
)
def test_a_failed_run_has_findings(run: Run, missed: list[str]) -> None:
    results = [finding.what for finding in judge(run) if not finding.is_met]

    assert len(results) == len(missed), results
    assert all(words in what for words, what in zip(missed, results, strict=True)), results
    assert ("**Not survived.**" in markdown(run)) == bool(missed)
