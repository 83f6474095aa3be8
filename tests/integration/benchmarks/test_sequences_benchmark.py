"""`python -m benchmarks.sequences`, as short as it can be: every step is right, and is counted."""

from __future__ import annotations

import sys

import pytest

from benchmarks import sequences
from benchmarks.sequence_steps import Steps

SHORT = ["--rounds", "1", "--seconds", "0.1", "--step-ms", "0", "--length", "3", "--callers", "8"]


def ran(monkeypatch, capsys, *arguments):
    """The rows of the table, the first two columns."""
    monkeypatch.setattr(sys, "argv", ["sequences", *SHORT, *arguments])
    assert sequences.main() == 0
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    return {line[0].strip("| "): line[1] for line in lines if len(line) > 3}


@pytest.mark.parametrize("arguments", [[], ["--live", "20", "--every", "0.02", "--short", "60000"]])
def test_each_kind_has_run_steps(monkeypatch, capsys, arguments):
    rows = ran(monkeypatch, capsys, *arguments)
    assert list(rows) == ["steps", "stateless", "direct", "oldest"]
    assert all(int(rows[kind].replace(",", "")) > 0 for kind in ("stateless", "direct", "oldest"))


def test_percentiles_are_right_by_two_per_cent():
    steps = Steps()
    for milliseconds in range(1, 101):
        steps.took(milliseconds / 1e3)
    assert steps.percentile_ms(0.5) == pytest.approx(50, rel=0.03)
    assert steps.percentile_ms(0.99) == pytest.approx(99, rel=0.03)
