"""`python -m fuzz`: cases until the time is up; each finding with a line that shows it again.

Prints what it does once a minute, every finding with the fewest requests that still show it, and
a verdict at the end. Status 1 if there was a finding.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import time
from dataclasses import dataclass, field

from fuzz import generator, shrink, virtual
from fuzz.case import Case
from fuzz.generator import Features
from fuzz.mutants import MUTANTS
from fuzz.strands import Strands

_PROGRESS_S = 60.0
_MOST_SHOWN = 25  # findings that are printed whole
_MOST_OF_A_KIND = 5
_MOST_LINES = 3  # of each
_MOST_CHARACTERS = 700


@dataclass
class Summary:
    """What was found so far. `kinds` has a count for each kind of finding."""

    started: float
    cases: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    bad: int = 0
    kinds: dict[str, int] = field(default_factory=dict)

    def count(self, engine: str, case: Case) -> None:
        self.cases[engine] = self.cases.get(engine, 0) + 1
        self.requests += len(case.requests)

    def tell(self, engine: str, seed: int, case: Case, findings: list[str], without: str) -> None:
        """Print a finding, unless there were too many."""
        self.bad += 1
        kind = shrink.kind_of(findings[0])
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if self.bad > _MOST_SHOWN or self.kinds[kind] > _MOST_OF_A_KIND:
            return
        only = ",".join(str(request.number) for request in case.requests)
        missing = f" --without {without}" if without else ""
        line = f"--engine {engine} --seed {seed} --cases 1 --only {only}{missing}"
        print(f"\nfinding {self.bad}: python -m fuzz {line}")
        for finding in findings[:_MOST_LINES]:
            print(f"    {finding[:_MOST_CHARACTERS]}")
        sys.stdout.flush()

    def line(self) -> str:
        took_s = time.monotonic() - self.started
        cases = ", ".join(f"{count:,} {engine}" for engine, count in self.cases.items())
        return f"{took_s:,.0f} s: {cases or 'no'} cases, {self.requests:,} requests, {self.bad} bad"


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
    parser.add_argument("--seconds", type=float, default=60.0, help="how long it goes on")
    parser.add_argument("--seed", type=int, help="of the first case; the next ones follow")
    parser.add_argument("--cases", type=int, help="how many, instead of --seconds")
    parser.add_argument("--engine", choices=("virtual",), default="virtual")
    parser.add_argument("--without", default="", help="features to leave out, with commas")
    parser.add_argument("--only", default="", help="of the case: these requests, with commas")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="a defect to put back")
    return parser.parse_args()


def fuzz(given: argparse.Namespace, features: Features) -> Summary:
    """Cases one after the other, virtual and real ones in turn."""
    seed = given.seed if given.seed is not None else time.time_ns() % 10**9
    print(f"seed {seed}, engine {given.engine}, without: {given.without or 'nothing'}", flush=True)
    summary = Summary(time.monotonic())
    ends, told = summary.started + given.seconds, summary.started
    strands = Strands()
    for number in range(given.cases if given.cases is not None else sys.maxsize):
        now = time.monotonic()
        if given.cases is None and now >= ends:
            break
        if now - told >= _PROGRESS_S:
            told = now
            print(summary.line(), flush=True)
        case = generator.generate(seed + number, features)
        if given.only:
            case = case.only([int(each) for each in given.only.split(",")])
        findings = virtual.run(case, strands)
        summary.count("virtual", case)
        if findings:
            case, findings = shrink.shrunk(case, lambda each: virtual.run(each, strands))
            summary.tell("virtual", seed + number, case, findings, given.without)
    strands.close()
    return summary


if __name__ == "__main__":
    sys.exit(main())
