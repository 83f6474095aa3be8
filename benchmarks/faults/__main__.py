"""`python -m benchmarks.faults`: what 64 clients see of faults of a machine and of its processes.

Each fault has a server of its own, process workers behind the gateway, and 64 clients over HTTP
that send one request after the other. Prints how many requests were answered, failed, were refused
(of callers without valid credentials), were wrong or had no end, and whether the server answers
afterwards. Exit status 1: an answer was wrong, a request had no end, one failed that may not, or
the server does not answer.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator

from benchmarks.faults import credentials, outside, processes, releases
from benchmarks.faults.clients import CLIENTS
from benchmarks.faults.fault import COUNTED, Fault, suffer
from benchmarks.process import ROOT
from benchmarks.report import machine, table, write

_RELIABILITY = ROOT / "docs" / "reliability.md"
_BEGIN = "<!-- faults: written by `python -m benchmarks.faults --write` -->"
_FAULTS = (*processes.FAULTS, *outside.FAULTS, *credentials.FAULTS, *releases.FAULTS)


def _possible(names: list[str]) -> Iterator[Fault]:
    for fault in _FAULTS:
        if names and not any(name in fault.name for name in names):
            continue
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        is_here = all(shutil.which(program, path=path) for program in fault.needs)
        if is_here and (not fault.needs_root or os.geteuid() == 0):
            yield fault
        else:
            print(f"not run: {fault.name}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="FAULT", help="parts of names; default: all")
    parser.add_argument("--write", action="store_true", help=f"into {_RELIABILITY.name}")
    given = parser.parse_args()
    rows, are_met = [], True
    for fault in _possible(given.names):
        row, is_met = suffer(fault)
        rows.append(row)
        are_met &= is_met
        print(" | ".join(row), flush=True)
    head = ("fault", *COUNTED, "of these", "answers again", "verdict")
    verdict = "met" if are_met else "**missed**"
    end = f"Nothing wrong, nothing hung, nothing fails that may not: {verdict}."
    report = f"{machine()}. {CLIENTS} clients over HTTP.\n\n{table(head, rows)}\n\n{end}\n"
    print(report)
    if given.write:
        write(report, _RELIABILITY, _BEGIN)
    return 0 if are_met else 1


if __name__ == "__main__":
    sys.exit(main())
