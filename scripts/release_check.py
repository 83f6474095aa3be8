"""Run everything that a release promises, in parts: `make release-check`.

Runs each part that has not passed at this commit, and writes docs/verified.md after each, which is
all the state that there is: commit it, and another machine continues. A part that passed at an
earlier commit stays there until it runs again; a machine that lacks what it needs changes nothing.
The output of each part is in build/release. Changes of docs/verified.md and of pictures in docs,
which parts draw, do not count.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PASSED, FAILED, LATE, NOT_RUN = "passed", "**failed**", "**took too long**", "not run"
_PAGE = Path("docs", "verified.md")
_VERIFIED_FILES = (".", f":!{_PAGE}", ":!docs/*.png")
_MOST_CHARACTERS = 160
_GRACE_S = 20
_LOGS = Path("build", "release")
_ROW = re.compile(
    r"^\| (.+?) \| `[^`]+` \| (\S+) \| (.+?) \| (.+?) \| (.+?) \| (\d+) \| (.*) \|$", re.M
)
_NOTHING_RAN = re.compile(r"\d+ skipped\b")  # pytest's last line, without a test that passed


class Part(NamedTuple):
    """A command, which gets `limit_s` and needs some programs."""

    name: str
    command: str
    limit_s: int = 1750
    needs: tuple[str, ...] = ()


_FUZZ = "PYTHONPATH=tests .venv/bin/python -m fuzz.campaign --seconds"
_BENCH = ".venv/bin/python -m benchmarks"
_PLOT = "--seconds 600 --plot docs/soak_"
PARTS = (
    Part("check", "make check", 900),
    Part("test", "make test"),
    Part("page", "make page", needs=("chromium",)),
    Part("packages installed", "PART='not versions_work' make packages"),
    *(Part(f"packages 3.{minor}", f"PART=3.{minor} make packages") for minor in range(11, 16)),
    Part("interop", "make interop", needs=("java", "mvn")),
    Part("clients", "make clients", needs=("npm",)),
    Part("fuzz engine", f"{_FUZZ} 900 graphs batches loads sequences streams"),
    Part(
        "fuzz servers",
        f"{_FUZZ} 1500 sequences_real streams_real sockets upstream repository stored together",
    ),
    Part("fuzz edges", "FUZZ='--seconds 900 lane edge parsers coverage' make fuzz"),
    Part("fuzz Go", ".venv/bin/python scripts/check_go.py --fuzz-seconds 120"),
    Part("chaos", f"{_BENCH}.chaos"),
    Part("faults", f"{_BENCH}.faults", needs=("faketime", "redis-server", "ray")),
    Part("edge faults", f"{_BENCH}.edge_faults"),
    *(
        Part(f"soak {kind}", f"{_BENCH}.soak {kind} {_PLOT}{kind}.png")
        for kind in ("threads", "processes", "streams", "sequences", "repository")
    ),
    Part("soak edge", f"{_BENCH}.attack.soak {_PLOT}edge.png"),
    Part("attack", "make attack"),
    Part("overload", f"{_BENCH} overload"),
    Part("big", f"{_BENCH} big"),
    Part("cluster", "make cluster", needs=("ray",)),
    Part("advisories", "make advisories"),
    Part("manifests", "make manifests", 600),
    Part("docs", "make docs", 300),
    Part("bench goals", "make bench-goals", needs=("wrk", "h2load")),
)


@dataclass(frozen=True)
class Outcome:
    """The last run of a part. `artefact`: the last line that it printed."""

    commit: str
    date: str
    machine: str
    outcome: str
    seconds: int
    artefact: str


class State:
    """The outcomes by the names of their parts, and the page that has them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        text = path.read_text("utf-8") if path.exists() else ""
        self.outcomes = {
            name: Outcome(commit, date, machine, outcome, int(seconds), artefact)
            for name, commit, date, machine, outcome, seconds, artefact in _ROW.findall(text)
        }

    def add(self, name: str, outcome: Outcome) -> None:
        self.outcomes[name] = outcome
        new = self._path.parents[1] / _LOGS / self._path.name
        new.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(page(PARTS, self.outcomes), encoding="utf-8")
        new.replace(self._path)


class Tree:
    """The checkout that is verified."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root

    def commit(self) -> str:
        """Return the commit; with a mark if files differ from it."""
        changed = self._git("status", "--porcelain", "--", *_VERIFIED_FILES)
        return self._git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")

    def is_same(self, commit: str, other: str) -> bool:
        """Return whether two commits have the same files, apart from what parts write."""
        if commit == other:
            return not commit.endswith("+changes")
        try:
            self._git("diff", "--quiet", commit, other, "--", *_VERIFIED_FILES)
        except subprocess.CalledProcessError:  # they differ, or one of them is not here
            return False
        return True

    def _git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=self.root, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()


def missing(programs: Iterable[str]) -> list[str]:
    """Return the programs that this machine lacks."""
    path = os.pathsep.join([str(ROOT / ".venv" / "bin"), os.environ.get("PATH", "")])
    return [program for program in programs if not shutil.which(program, path=path)]


def run(part: Part, commit: str, log: Path, cwd: Path = ROOT) -> Outcome:
    """Run a part in a session of its own, which is killed past its limit."""
    date = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
    machine = f"{os.cpu_count()} x {platform.machine()}, Python {platform.python_version()}"
    if absent := missing(part.needs):
        return Outcome(commit, date, machine, NOT_RUN, 0, f"needs {', '.join(absent)}")
    began = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output, contextlib.ExitStack() as stack:
        with _signals_later():
            process = subprocess.Popen(
                ["bash", "-c", part.command],
                cwd=cwd,
                env=os.environ | {"MAKEFLAGS": "--no-print-directory"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            stack.callback(_end, process)
        try:
            outcome = FAILED if process.wait(part.limit_s) else PASSED
        except subprocess.TimeoutExpired:
            outcome = LATE
    seconds = round(time.monotonic() - began)
    line = last_line(log.read_text("utf-8", "replace"))
    if outcome == PASSED and _NOTHING_RAN.match(line):
        outcome = NOT_RUN
    return Outcome(commit, date, machine, outcome, seconds, line)


@contextlib.contextmanager
def _signals_later() -> Iterator[None]:
    """Handle SIGTERM and SIGINT after the block.

    They raise exceptions, and a process that is being started then would be lost. The process does
    not ignore SIGINT, which a shell lets those ignore that it starts in the background.
    """
    came = list[int]()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {each: signal.signal(each, lambda number, _: came.append(number)) for each in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in came:
        signal.raise_signal(number)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process, if it runs, and its children.

    It begins as Ctrl-C does: a benchmark then stops its services, which have their own sessions.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_line(text: str) -> str:
    """Return the last line that says something, as a cell of a table."""
    lines = [line.strip("= ") for line in text.splitlines()]
    line = next((line for line in reversed(lines) if any(map(str.isalnum, line))), "")
    return line[:_MOST_CHARACTERS].replace("|", "\\|")


def page(parts: Sequence[Part], outcomes: Mapping[str, Outcome]) -> str:
    """Return docs/verified.md."""
    return "\n".join(_page(parts, outcomes)) + "\n"


def _page(parts: Sequence[Part], outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    yield "# Verified"
    yield ""
    yield "The last run of each part of a release. `make release-check` writes this page."
    yield ""
    yield "| part | command | commit | date (UTC) | machine | outcome | seconds | last line |"
    yield "|---|---|---|---|---|---|---|---|"
    for part in parts:
        outcome = outcomes.get(part.name)
        if outcome is None:
            yield f"| {part.name} | `{part.command}` | | | | {NOT_RUN} | | |"
        else:
            cells = (outcome.commit, outcome.date, outcome.machine, outcome.outcome)
            yield (
                f"| {part.name} | `{part.command}` | {' | '.join(cells)} "
                f"| {outcome.seconds} | {outcome.artefact} |"
            )


def verify(parts: Sequence[Part], state: State, tree: Tree, is_again: bool = False) -> bool:
    """Run the parts that have not passed at this commit.

    Return whether each part passed, or lacks what it needs; print the parts that lack something.
    """
    outcomes = dict[str, Outcome]()
    for part in parts:
        commit, last = tree.commit(), state.outcomes.get(part.name)
        if not is_again and last and last.outcome == PASSED and tree.is_same(last.commit, commit):
            continue
        print(f"{part.name}: {part.command}", flush=True)
        log = tree.root / _LOGS / f"{part.name.replace(' ', '-')}.log"
        outcome = outcomes[part.name] = run(part, commit, log, tree.root)
        if outcome.outcome != NOT_RUN or last is None or last.outcome != PASSED:
            state.add(part.name, outcome)
        print(f"    {outcome.outcome}, {outcome.seconds} s: {outcome.artefact}", flush=True)
    for name, outcome in outcomes.items():
        if outcome.outcome == NOT_RUN:
            print(f"{name} did not run: {outcome.artefact}")
    return all(outcome.outcome in (PASSED, NOT_RUN) for outcome in outcomes.values())


def _leave(*_: object) -> None:
    """Leave by an exception, which ends the part that runs."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


def main() -> int:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of: {', '.join(names)}")
    parser.add_argument("--again", action="store_true", help="run also what has passed")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(names):
        parser.error(f"no such parts: {', '.join(sorted(unknown))}")
    parts = [part for part in PARTS if part.name in given.parts or not given.parts]
    signal.signal(signal.SIGTERM, _leave)
    return 0 if verify(parts, State(ROOT / _PAGE), Tree(), given.again) else 1


if __name__ == "__main__":
    sys.exit(main())
