"""Random models of a repository, asked by several callers at once."""

from __future__ import annotations

import pytest
from fuzz import together
from fuzz.mutants import TOGETHER_MUTANTS

_TRIES = 5  # whether requests come in one round is chance
_SHOWN_BY = {"requests_get_each_others_answers": 2, "tensors_without_samples_are_joined": 5}


@pytest.mark.parametrize("name", sorted(TOGETHER_MUTANTS))
def test_the_fuzzer_reports_a_mutant_and_nothing_else(name):
    seed = _SHOWN_BY[name]
    assert together.run(seed) == []
    with TOGETHER_MUTANTS[name]():
        assert any(together.run(seed) for _ in range(_TRIES))
