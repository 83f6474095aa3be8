"""`python -m benchmarks.compare --before TREE`: this tree beside another one, in one run.

Each of our services runs from both trees, and they are measured in turns: requests/s and CPU time
as ratios. Then instructions per request, by valgrind's callgrind, which noise hardly touches.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.catalog import GROUPS, Case, Target
from benchmarks.instructions import count
from benchmarks.load import missing_tools
from benchmarks.measure import Plan, measure
from benchmarks.report import markdown, table

_HERE = Path(__file__).parents[1]
_NOT_OURS = ("bare ", "mosec", "plain ", "gateway before 1 bare", "gateway before 4 bare")
_COUNTED = ("E echo, HTTP", "E5 chain, HTTP")  # instructions are counted as well


def main() -> int:
    arguments = _arguments()
    if missing := missing_tools():
        print(f"missing load generators: apt-get install {' '.join(missing)}", file=sys.stderr)
        return 2
    trees = {"before": arguments.before.resolve(), "after": _HERE}
    if arguments.groups:
        print(_compare(arguments, trees))
    if not arguments.no_instructions:
        print(_instructions(trees, arguments.rounds, arguments.requests))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("--before", type=Path, required=True, metavar="TREE", help="a checkout")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--groups", nargs="*", default=[*GROUPS], metavar="GROUP")
    names = [case.name for cases in GROUPS.values() for case in cases]
    parser.add_argument("--case", action="append", choices=names, metavar="NAME", help="only this")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 64], metavar="N")
    parser.add_argument("--seconds", type=int, default=3, help="length of a measurement")
    parser.add_argument("--at-least", type=float, default=0.97, help="of before's requests/s")
    parser.add_argument("--no-instructions", action="store_true", help="do without valgrind")
    parser.add_argument("--requests", type=int, default=2048, help="of a count of instructions")
    arguments = parser.parse_args()
    if unknown := set(arguments.groups) - GROUPS.keys():
        parser.error(f"unknown group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    return arguments


def _compare(arguments: argparse.Namespace, trees: dict[str, Path]) -> str:
    """Measure each service of both trees in turns; return the report, before's figures as base."""
    groups, targets = [], []
    for name in arguments.groups:
        ours = [case for case in GROUPS[name] if not case.name.startswith(_NOT_OURS)]
        ours = [case for case in ours if not arguments.case or case.name in arguments.case]
        groups.append([case for one in ours for case in _in_both(one, trees)])
        for case in ours:
            for clients in arguments.clients:
                base, now = f"{case.name}, before", f"{case.name}, after"
                limit = 1 / arguments.at_least
                targets += [
                    Target(now, clients, "per_s", base, at_least=arguments.at_least),
                    Target(now, clients, "server_ms", base, at_most=limit),
                ]
    plan = Plan(tuple(arguments.clients), arguments.seconds, arguments.rounds)
    results = measure(groups, plan, lambda text: print(text, file=sys.stderr))
    return markdown(results, plan, targets)


def _in_both(case: Case, trees: dict[str, Path]) -> Iterator[Case]:
    for when, root in trees.items():
        yield replace(case, name=f"{case.name}, {when}", root=root)


# --- instructions -----------------------------------------------------------------------------


def _instructions(trees: dict[str, Path], rounds: int, requests: int) -> str:
    """Count both trees' instructions in turns; of the rounds the least counts."""
    if shutil.which("valgrind") is None:
        return "instructions are not counted: apt-get install valgrind\n"
    rows = []
    for case in (case for case in GROUPS["http"] if case.name in _COUNTED):
        counts: dict[str, list[float]] = {when: [] for when in trees}
        for _ in range(rounds):
            for when, root in trees.items():
                counts[when].append(count(replace(case, root=root), requests))
                print(f"{case.name}, {when}: {counts[when][-1]:,.0f}", file=sys.stderr)
        before, after = min(counts["before"]), min(counts["after"])
        rows.append((case.name, f"{before:,.0f}", f"{after:,.0f}", f"{after / before:.3f}"))
    return table(("instructions a request", "before", "after", "ratio"), rows) + "\n"


if __name__ == "__main__":
    sys.exit(main())
