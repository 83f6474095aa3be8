"""The last line and the exit status of `python -m fuzz.campaign`."""

from __future__ import annotations

import subprocess
import sys

import pytest
from fuzz import campaign

LACKS = campaign.CANNOT_RUN


@pytest.mark.parametrize(
    ("statuses", "status", "line"),
    [
        ({"lane": 0, "edge": 0}, 0, "nothing found: seed 7, 5 s each of lane, edge"),
        ({"lane": 1, "edge": 0}, 1, "FOUND by lane: seed 7, 5 s each of lane, edge"),
        ({"lane": 0, "edge": LACKS}, 1, "nothing found: seed 7, 5 s each of lane; not run: edge"),
        ({"lane": None, "edge": 0}, 1, "FOUND by lane: seed 7, 5 s each of lane, edge"),
    ],
)
def test_named_fuzzers_have_to_run(monkeypatch, capsys, statuses, status, line):
    assert _ended(monkeypatch, statuses, list(statuses)) == status
    assert capsys.readouterr().out.splitlines()[-1] == line


def test_one_of_all_fuzzers_may_be_unable_to_run(monkeypatch, capsys):
    assert _ended(monkeypatch, dict.fromkeys(campaign.FUZZERS, 0) | {"coverage": LACKS}, []) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith("parsers; not run: coverage")


def _ended(monkeypatch, statuses, names):
    """The exit status, if the fuzzers end with these; None: one does not end."""
    by_module = {campaign.FUZZERS[name]: status for name, status in statuses.items()}

    def run(command, timeout, **_):
        status = by_module[command[2]]
        if status is None:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["campaign", "--seconds=10", "--seed=7", *names])
    return campaign.main()
