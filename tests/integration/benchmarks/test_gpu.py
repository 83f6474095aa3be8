"""`make gpu` where there is no card: its runs, its table, and its checks on the processor."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.gpu import __main__ as program
from benchmarks.gpu import checks, place
from benchmarks.gpu.checks import CHECKS, MissingError
from benchmarks.gpu.place import Place
from benchmarks.gpu.runs import FAILED, OK, SKIPPED, Outcome, run_apart, run_tests

REHEARSAL = Place(is_rehearsal=True, seconds=0.1)


def apart(code: str, limit_s: float = 60.0) -> Outcome:
    return run_apart([sys.executable, "-c", code], limit_s)


def test_the_outcome_of_a_check_is_found_in_its_output():
    code = (
        "from benchmarks.gpu.runs import *; print('x'); print(told(Outcome(OK, 'a b'))); print(1)"
    )
    assert apart(code) == Outcome(OK, "a b")


def test_a_check_that_crashes_or_hangs_has_failed_and_the_next_one_runs():
    crashed = apart("import os; print('about to', flush=True); os.abort()")
    assert crashed == Outcome(FAILED, "its process ended with -6: about to")
    hung = apart("print('waiting', flush=True); import time; time.sleep(600)", limit_s=2.0)
    assert hung == Outcome(FAILED, "no end after 2 s; it said last: waiting")


@pytest.mark.parametrize("name", ["onnx_cuda", "round_robin", "wrong_devices"])
def test_a_rehearsal_runs_the_code_of_a_check_on_the_processor(name):
    (check,) = [item for item in CHECKS if item.name == name]
    assert check.run(REHEARSAL)


def test_a_measurement_is_rehearsed_in_its_own_process():
    command = [sys.executable, "-m", "benchmarks.gpu", "--inside", "--rehearse"]
    outcome = run_apart([*command, "--seconds", "0.1", "--only", "resnet50_8"], 100.0)
    assert outcome.state == OK, outcome.text
    assert "pictures/s" in outcome.text


def test_without_a_gpu_each_check_names_its_needs(monkeypatch):
    monkeypatch.setattr(place, "cards", tuple)
    outcomes = [program._inside(check, Place()) for check in CHECKS]
    assert {outcome.state for outcome in outcomes} == {SKIPPED}
    assert all(outcome.text.startswith("needs ") for outcome in outcomes)


def test_a_build_without_cuda_is_not_a_failure(monkeypatch):
    monkeypatch.setattr(place, "cards", lambda: ("A card",))
    with pytest.raises(MissingError, match="pip install onnxruntime-gpu"):
        checks.onnx_cuda(Place())
    paddle = SimpleNamespace(device=SimpleNamespace(is_compiled_with_cuda=lambda: False))
    monkeypatch.setattr(place, "need_module", lambda name: paddle)
    with pytest.raises(MissingError, match="paddlepaddle-gpu"):
        checks.paddle_cuda(Place())


def test_an_answer_that_is_off_fails():
    assert "off the CPU's" in checks.compared(np.array([1.0, 2.001]), np.array([1.0, 2.0]))
    for wrong in (3.0, np.nan):
        with pytest.raises(AssertionError):
            checks.compared(np.array([1.0, wrong]), np.array([1.0, 2.0]))


def test_the_table_is_written_between_the_marks_of_a_page(tmp_path: Path):
    page = tmp_path / "gpu.md"
    page.write_text(f"before\n{program._BEGIN}\nold\n{program._END}\nafter\n")
    rows = [("a", "what", "needs", Outcome(OK, "1 | 2"))]
    program.write(program.table(rows), page)
    text = page.read_text()
    assert text.startswith(f"before\n{program._BEGIN}\n| check |")
    assert f"| `a` | what | needs | ok: 1 \\| 2 |\n{program._END}\nafter\n" in text
    (tmp_path / "none.md").touch()
    with pytest.raises(ValueError, match="has no"):
        program.write("x", tmp_path / "none.md")


def test_tests_are_run_and_summed_up(tmp_path: Path):
    (tmp_path / "test_it.py").write_text("def test_a(): pass\ndef test_b(): assert 0\n")
    outcome = run_tests([str(tmp_path)], 60.0)
    assert outcome.state == FAILED
    assert "1 failed, 1 passed" in outcome.text
