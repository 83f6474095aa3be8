"""Random models of a repository, asked by several callers at once."""

from __future__ import annotations

from unittest import mock

from fuzz import together
from fuzz.mutants import TOGETHER_MUTANTS

_TRIES = 5  # whether requests come in one round is chance
_SHOWN_BY = {"requests_get_each_others_answers": 2, "tensors_without_samples_are_joined": 5}


@mock.patch.object(together, "_REQUESTS", 15)
def test_the_fuzzer_reports_its_mutants_and_nothing_else():
    assert together.run(2) == []
    for name, seed in _SHOWN_BY.items():
        with TOGETHER_MUTANTS[name]():
            assert any(together.run(seed) for _ in range(_TRIES)), name
    assert _SHOWN_BY.keys() == TOGETHER_MUTANTS.keys()
