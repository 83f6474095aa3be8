"""The command line of a fuzzer whose cases are seeds, and the loop over them."""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Sequence

_MOST_BAD = 10


def parser_of(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of `python -m fuzz.<name>`, for `campaign`."""
    parser = argparse.ArgumentParser(prog=f"python -m fuzz.{name}", description=description)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, help="of the first case")
    parser.add_argument("--cases", type=int)
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
