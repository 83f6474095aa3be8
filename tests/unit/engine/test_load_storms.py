"""The fuzzer of mixed overload (`python -m fuzz.loads`): cases, and wrong judges that it finds."""

from __future__ import annotations

import logging

import pytest
from fuzz import loads

_CASES = 8
SHOWN_BY = {
    "a_level_is_measured_by_all": loads.Case("levels", 2, 1, 0.05, 10.0, 35.0, 1.2, 5, False),
    "all_levels_are_one_queue": loads.Case("levels", 2, 1, 0.05, 4.0, 20.0, 1.2, 5, False),
    "bursts_are_kept_short": loads.made_case(1),
    "each_answer_counts_twice": loads.made_case(2),
    "everybody_inside_is_before": loads.Case("answered", 2, 1, 0.05, 4.0, 10.0, 1.2, 5, False),
    "cached_answers_are_judged_first": loads.Case(
        "kept of the graph", 2, 1, 0.05, 4.0, 10.0, 1.2, 5, False
    ),
    "no_op_refuses": loads.Case("answered", 2, 1, 0.05, 10.0, 10.0, 1.2, 5, False),
}


@pytest.fixture(autouse=True)
def silent():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(1, 1 + _CASES))
def test_each_kind_has_its_share_of_mixed_overload(seed):
    assert loads.run(loads.made_case(seed)) == [], f"python -m fuzz.loads --seed {seed} --cases 1"


@pytest.mark.parametrize("name", sorted(loads.MUTANTS))
def test_the_fuzzer_reports_a_mutant(name):
    assert loads.run(SHOWN_BY[name]) == []
    with loads.MUTANTS[name]():
        assert loads.run(SHOWN_BY[name])
