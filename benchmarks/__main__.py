"""`python -m benchmarks`: measure our services and the bare baselines, print the tables.

`python -m benchmarks big`, `overload` and `pictures` are measurements of their own: see `large`,
`overload` and `pictures`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import large, overload, pictures
from benchmarks.catalog import GROUPS, SETS, TARGETS
from benchmarks.instructions import count_all
from benchmarks.load import missing_tools
from benchmarks.measure import Plan, measure
from benchmarks.report import BEGIN, markdown, write

_TABLES = Path(__file__).parents[1] / "docs" / "measurements.md"


def main() -> int:
    if sys.argv[1:2] == ["big"]:
        return large.main(sys.argv[2:])
    if sys.argv[1:2] == ["overload"]:
        return overload.main(sys.argv[2:])
    if sys.argv[1:2] == ["pictures"]:
        return pictures.main(sys.argv[2:])
    arguments = _arguments()
    if missing := missing_tools():
        print(f"missing load generators: apt-get install {' '.join(missing)}", file=sys.stderr)
        return 2
    plan = Plan(tuple(arguments.clients), arguments.seconds, arguments.repeats)
    if arguments.quick:
        plan = Plan((1, 64), seconds=1, repeats=1)
    names = [*(SETS[arguments.set] if arguments.set else arguments.groups)]
    groups = [
        [case for case in GROUPS[name] if not arguments.case or case.name in arguments.case]
        for name in names
    ]
    results = measure(groups, plan, _say)
    if arguments.instructions:
        counted = [case for cases in groups for case in cases if case.is_counted]
        results.instructions.update(count_all(counted, arguments.requests, _say))
    report = markdown(results, plan, TARGETS)
    print(report)
    if arguments.write:
        write(report, _TABLES, BEGIN.format(arguments.set))
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = [case.name for cases in GROUPS.values() for case in cases]
    parser.add_argument(
        "groups", nargs="*", default=[*GROUPS], metavar="GROUP", help=f"of {', '.join(GROUPS)}"
    )
    parser.add_argument("--set", choices=SETS, help="of groups, in place of them")
    parser.add_argument(
        "--case", action="append", choices=names, metavar="NAME", help="only this; may be repeated"
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 64], metavar="N")
    parser.add_argument("--seconds", type=int, default=2, help="length of a measurement")
    parser.add_argument("--repeats", type=int, default=5, help="rounds; the median is reported")
    parser.add_argument("--quick", action="store_true", help="one round of 1 s, 1 and 64 clients")
    parser.add_argument("--instructions", action="store_true", help="count them, by valgrind")
    parser.add_argument("--requests", type=int, default=2048, help="of such a count")
    parser.add_argument("--write", action="store_true", help=f"a set, into {_TABLES.name}")
    arguments = parser.parse_args()
    if unknown := set(arguments.groups) - GROUPS.keys():
        parser.error(f"unknown group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    if arguments.write and not arguments.set:
        parser.error("what is written is one of the sets: --set")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
