"""`python -m fuzz`: runs cases until the time is up; each finding has a command that repeats it.

Prints its progress once a minute, every finding with the fewest requests that still show it, and
a verdict at the end. The exit status is 1 if there was a finding.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import resource
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field

from fuzz import generator, real, shrink, virtual
from fuzz.generator import Features
from fuzz.mutants import MUTANTS
from fuzz.strands import Strands

_PROGRESS_S = 60.0
_LANES = 2  # real cases at a time; they mostly wait
_REPEATS = 2
_MOST_SHOWN = 25  # findings that are printed whole
_MOST_OF_A_KIND = 5
_MOST_LINES = 3  # of each
_MOST_CHARACTERS = 700


@dataclass
class Summary:
    """The findings so far. `kinds` has a count for each kind of finding.

    `unrepeated` counts late requests of real cases that were in time when the case ran again: a
    busy machine may be the reason.
    """

    started: float
    without: str = ""
    cases: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    bad: int = 0
    unrepeated: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    told: float = field(default_factory=time.monotonic)

    def count(self, engine: str, requests: int) -> None:
        self.cases[engine] = self.cases.get(engine, 0) + 1
        self.requests += requests

    def tell(self, line: str, findings: list[str]) -> None:
        """Print a finding, unless there were too many."""
        self.bad += 1
        kind = shrink.kind_of(findings[0])
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if self.bad > _MOST_SHOWN or self.kinds[kind] > _MOST_OF_A_KIND:
            return
        missing = f" --without {self.without}" if self.without else ""
        print(f"\nfinding {self.bad}: python -m fuzz {line} --cases 1{missing}")
        for finding in findings[:_MOST_LINES]:
            print(f"    {finding[:_MOST_CHARACTERS]}")
        sys.stdout.flush()

    def say_if_due(self) -> None:
        """Print the progress, at most once a minute."""
        if time.monotonic() - self.told >= _PROGRESS_S:
            self.told = time.monotonic()
            print(self.line(), flush=True)

    def line(self) -> str:
        took_s = time.monotonic() - self.started
        cases = ", ".join(f"{count:,} {engine}" for engine, count in self.cases.items())
        late = f", {self.unrepeated} late once" if self.unrepeated else ""
        most_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        return (
            f"{took_s:,.0f} s: {cases or 'no'} cases, {self.requests:,} requests, "
            f"{self.bad} bad{late}; {most_mib} MiB"
        )


def main() -> int:
    given = _arguments()
    logging.disable(logging.CRITICAL)
    features = Features().without(*filter(None, given.without.split(",")))
    mutant = MUTANTS[given.mutant]() if given.mutant else contextlib.nullcontext()
    with mutant:
        summary = fuzz(given, features)
    print(("FOUND: " if summary.bad else "nothing found: ") + summary.line(), flush=True)
    for kind, count in sorted(summary.kinds.items(), key=lambda each: -each[1]):
        print(f"  {count} x {kind}")
    return 1 if summary.bad else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long it runs")
    parser.add_argument("--seed", type=int, help="of the first case; the next ones follow")
    parser.add_argument("--cases", type=int, help="how many of each engine, instead of --seconds")
    parser.add_argument("--engine", choices=("virtual", "real", "both"), default="both")
    parser.add_argument("--without", default="", help="features to leave out, with commas")
    parser.add_argument("--only", default="", help="of the cases: these requests, with commas")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="a defect to put back (virtual)")
    return parser.parse_args()


def fuzz(given: argparse.Namespace, features: Features) -> Summary:
    """Run cases until the time is up: virtual ones in this thread, real ones in lanes."""
    seed = given.seed if given.seed is not None else time.time_ns() % 10**9
    print(f"seed {seed}, engine {given.engine}, without: {given.without or 'nothing'}", flush=True)
    summary = Summary(time.monotonic(), given.without)
    until = Until(summary.started + given.seconds, given.cases)
    lanes = []
    if given.engine != "virtual":
        lanes = [Lane(seed, first, until, given) for first in range(_LANES)]
    for lane in lanes:
        lane.start()
    if given.engine != "real":
        _fuzz_virtual(given, seed, features, until, summary, lanes)
    for lane in lanes:
        while lane.is_alive():
            lane.join(1.0)
            _take_in(lanes, summary)
    _take_in(lanes, summary)
    return summary


@dataclass
class Until:
    """The end of the run: a time, or `only` so many cases of each engine."""

    at: float
    only: int | None

    def is_over(self, number: int) -> bool:
        return number >= self.only if self.only is not None else time.monotonic() >= self.at


def _fuzz_virtual(
    given: argparse.Namespace,
    seed: int,
    features: Features,
    until: Until,
    summary: Summary,
    lanes: list[Lane],
) -> None:
    strands = Strands()
    for number in itertools.count():
        _take_in(lanes, summary)
        if until.is_over(number):
            break
        case = generator.generate(seed + number, features)
        if given.only:
            case = case.only([int(each) for each in given.only.split(",")])
        findings = virtual.run(case, strands)
        summary.count("virtual", case.count)
        if findings:
            case, findings = shrink.shrunk(case, lambda each: virtual.run(each, strands))
            numbers = (request.number for one in case.pipelines for request in one.requests)
            only = ",".join(map(str, numbers))
            summary.tell(f"--engine virtual --seed {seed + number} --only {only}", findings)
    strands.close()


def _take_in(lanes: list[Lane], summary: Summary) -> None:
    """Add the findings of the lanes; print the progress if it is due."""
    for lane in lanes:
        while lane.told:
            seed, requests, findings, is_repeated = lane.told.popleft()
            summary.count("real", requests)
            if findings and not is_repeated:
                summary.unrepeated += 1
            elif findings:
                summary.tell(f"--engine real --seed {seed}", findings)
    summary.say_if_due()


class Lane(threading.Thread):
    """Runs real cases, one after the other: every `_LANES`-th seed.

    `told` has (seed, requests, findings, whether they were repeated or need not be).
    """

    def __init__(self, seed: int, first: int, until: Until, given: argparse.Namespace) -> None:
        super().__init__(daemon=True)
        self.told: deque[tuple[int, int, list[str], bool]] = deque()
        self._seed = seed
        self._first = first
        self._until = until
        self._runner = real.Runner(_LANES, given.without, given.only)

    def run(self) -> None:
        for number in itertools.count(self._first, _LANES):
            if self._until.is_over(number):
                break
            seed = self._seed + number
            try:
                requests, findings = self._runner.run(seed)
            except Exception as error:  # of the fuzzer itself: report it and continue
                requests, findings = 0, [f"the fuzzer failed: {error!r}"]
                self._runner.close()
            is_repeated = True
            if findings and all(map(real.may_be_slowness, findings)):
                is_repeated = any(self._runner.again(seed) for _ in range(_REPEATS))
            self.told.append((seed, requests, findings, is_repeated))
        self._runner.close()


if __name__ == "__main__":
    sys.exit(main())
