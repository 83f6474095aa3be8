"""`python -m fuzz.campaign NAME ...` runs fuzzers in turn; `campaign` is the loop over seeds.

Each fuzzer is a process of its own with an equal share of `--seconds`, from the same seed. The last
line names the fuzzers that found something or cannot run here. The exit status is 1 if one found
something, or was named and cannot run.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

CANNOT_RUN = 3
"""The exit status of a fuzzer that lacks something."""

_MOST_BAD = 10
_STOP_S = 120.0  # for the last case of a fuzzer whose time is over

FUZZERS = {
    "graphs": "fuzz",
    **{
        name: f"fuzz.{name}"
        for name in (
            *("batches", "loads", "sequences", "streams"),
            *("sequences_real", "streams_real", "sockets", "upstream", "repository", "stored"),
            "together",
            *("lane", "edge", "parsers", "coverage"),
        )
    },
}


def parser_of(
    name: str,
    description: str | None,
    mutants: Mapping[str, Callable[[], contextlib.AbstractContextManager[Any]]] | None = None,
) -> argparse.ArgumentParser:
    """Return the parser of `python -m fuzz.<name>`, for `campaign`."""
    parser = argparse.ArgumentParser(prog=f"python -m fuzz.{name}", description=description)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, help="of the first case")
    parser.add_argument("--cases", type=int)
    if mutants:
        parser.add_argument("--mutant", choices=sorted(mutants), help="a defect to put back")
    return parser


def campaign(
    command: str, given: argparse.Namespace, run: Callable[[int], Sequence[str]], more: str = ""
) -> int:
    """Run cases until the time is over, print the findings, and return the exit status."""
    logging.disable(logging.CRITICAL)
    seed = given.seed if given.seed is not None else time.time_ns() % 10**9
    ends, count, bad = time.monotonic() + given.seconds, 0, 0
    while count < given.cases if given.cases is not None else time.monotonic() < ends:
        findings = run(seed + count)
        count += 1
        if findings:
            bad += 1
            print(f"{command} --cases 1 --seed {seed + count - 1}{more}")
            for finding in findings[:4]:
                print(f"    {finding[:900]}", flush=True)
            if bad >= _MOST_BAD:
                break
    print(f"{'FOUND' if bad else 'nothing found'}: {count} cases from seed {seed}, {bad} bad")
    return 1 if bad else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.campaign", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(FUZZERS)}")
    parser.add_argument("--seconds", type=float, default=600.0, help="of all together")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9)
    given = parser.parse_args()
    names = given.names or list(FUZZERS)
    if unknown := set(names) - FUZZERS.keys():
        parser.error(f"no such fuzzers: {', '.join(sorted(unknown))}")
    each_s = given.seconds / len(names)
    ended = {name: _status(name, given.seed, each_s) for name in names}
    lacking = [name for name, status in ended.items() if status == CANNOT_RUN]
    bad = [name for name, status in ended.items() if status not in (0, CANNOT_RUN)]
    verdict = f"FOUND by {', '.join(bad)}" if bad else "nothing found"
    ran = ", ".join(name for name in names if name not in lacking)
    unrun = f"; not run: {', '.join(lacking)}" if lacking else ""
    print(f"{verdict}: seed {given.seed}, {each_s:.0f} s each of {ran}{unrun}")
    return 1 if bad or (lacking and given.names) else 0


def _status(name: str, seed: int, seconds: float) -> int:
    """Return the exit status of a fuzzer; one that does not end has found something too."""
    print(f"{name}:", flush=True)
    command = [sys.executable, "-m", FUZZERS[name], f"--seconds={seconds}", f"--seed={seed}"]
    try:
        return subprocess.run(command, timeout=seconds + _STOP_S, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"    did not end within {seconds + _STOP_S:.0f} s", flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
