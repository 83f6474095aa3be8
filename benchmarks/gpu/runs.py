"""Outcomes of checks, each of which runs in a process of its own with a limit of time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
OK, FAILED, SKIPPED = "ok", "FAILED", "not run"
_MARK = "outcome of the check: "
_SHOWN = 300  # characters of what a process said last


@dataclass(frozen=True)
class Outcome:
    """The result of a check: one of the states above, with a reason or the findings."""

    state: str
    text: str = ""


def told(outcome: Outcome) -> str:
    """Return the line by which a process says how its check ended."""
    return _MARK + json.dumps([outcome.state, outcome.text])


def run_apart(command: Sequence[str], limit_s: float) -> Outcome:
    """Run a check in a process of its own, which may crash or hang."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), *_python_path()])}
    process = subprocess.Popen(
        command,
        cwd=_ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return Outcome(FAILED, f"no end after {limit_s:g} s; it said last: {_last(output)}")
    for line in reversed(output.splitlines()):
        if line.startswith(_MARK):
            return Outcome(*json.loads(line.removeprefix(_MARK)))
    return Outcome(FAILED, f"its process ended with {process.returncode}: {_last(output)}")


def run_tests(paths: Sequence[str], limit_s: float) -> Outcome:
    """Run tests with pytest; the text is its summary."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths]
    try:
        done = subprocess.run(
            command, cwd=_ROOT, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return Outcome(FAILED, f"no end after {limit_s:g} s")
    return Outcome(OK if done.returncode == 0 else FAILED, _last(done.stdout or done.stderr))


def _python_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def _last(output: str) -> str:
    lines = output.strip().splitlines()
    return (lines[-1] if lines else "(nothing)")[-_SHOWN:]
