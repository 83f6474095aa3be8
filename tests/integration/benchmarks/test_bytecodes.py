"""No request takes more bytecodes than its budget: a slower way is found without a clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

from benchmarks.bytecodes import BUDGETS, STEPS, TOLERANCE, Count

pytestmark = pytest.mark.timeout(700)  # the counts are made at the first test
IS_COUNTED = sys.version_info[:2] == (3, 11)


@pytest.fixture(scope="module")
def counts(gateway_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Count]:
    """Counts by case, of one run in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.bytecodes", "--json"]
    folder = tmp_path_factory.mktemp("counted")
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {name: Count(*count) for name, count in json.loads(done.stdout).items()}


@pytest.mark.skipif(not IS_COUNTED, reason="the budgets are bytecodes of CPython 3.11")
@pytest.mark.parametrize("name", BUDGETS)
def test_a_request_takes_no_more_bytecodes_than_its_budget(counts, name):
    assert counts[name].bytecodes <= BUDGETS[name] * (1 + TOLERANCE)


@pytest.mark.skipif(not IS_COUNTED, reason="comprehensions are calls of CPython 3.11")
@pytest.mark.parametrize("name", STEPS)
def test_a_part_takes_few_calls_and_moves(counts, name):
    calls, moves = STEPS[name]
    assert (counts[name].calls <= calls, counts[name].moves <= moves) == (True, True)


def test_each_case_has_a_budget(counts):
    assert counts.keys() == BUDGETS.keys()
