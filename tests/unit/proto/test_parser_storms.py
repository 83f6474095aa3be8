"""A short run of `fuzz.parsers`, and proof that it is not blind."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from unittest.mock import Mock

import pytest
from fuzz import coverage, parsers


@pytest.mark.parametrize("seed", range(len(parsers.PARSERS)))
def test_only_errors_of_the_parser_come(seed):
    assert parsers.run(seed) == [], f"python -m fuzz.parsers --cases 1 --seed {seed}"


def test_a_parser_that_lets_other_errors_pass_is_found():
    careless = {"json": parsers.Parser([b'{"a": 1}'], lambda data: json.loads(data)["a"])}
    assert any("JSONDecodeError" in finding for finding in parsers.run(1, careless))


@pytest.mark.parametrize(("seconds", "most"), [(0.4, 1), (2.5, 3), (7.0, 7)])
def test_the_fuzzer_that_sees_branches_always_has_a_limit(tmp_path, monkeypatch, seconds, most):
    atheris = Mock()
    atheris.instrument_imports = lambda **_: contextlib.nullcontext()
    monkeypatch.setitem(sys.modules, "atheris", atheris)
    monkeypatch.setattr(coverage, "_CORPORA", tmp_path)
    monkeypatch.setattr(logging, "disable", Mock())
    coverage.fuzz(next(iter(parsers.PARSERS)), seconds, 1)
    assert f"-max_total_time={most}" in atheris.Setup.call_args.args[0]


def test_a_finding_has_a_command_that_repeats_it_and_both_ends_of_its_text():
    text = (
        b"warm\n === Uncaught ===\nValueError: "
        + b"x" * 9000
        + b"\nTest unit written to /b/crash-1"
    )
    found = coverage.finding(["-m", "fuzz.coverage", "--parser=v2 json"], text)
    command, _, rest = found.partition("\n")
    assert command == "PYTHONPATH=tests python -m fuzz.coverage '--parser=v2 json' /b/crash-1"
    assert rest.startswith("=== Uncaught ===\nValueError: x")
    assert rest.endswith("x\nTest unit written to /b/crash-1")
    assert len(rest) < 3000
