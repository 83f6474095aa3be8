"""`python -m benchmarks.costs`: what a hop, statistics, text or the gateway cost a request.

A cost is a difference of two services that are measured in turns: CPU time of all of a service's
processes with 64 clients, and what a lone caller waits longer.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.ask import Question
from benchmarks.catalog import MANY, Case, Target, Transport, chain5_case, echo_case, v2_echo_case
from benchmarks.instructions import count_all
from benchmarks.load import missing_tools
from benchmarks.measure import Plan, Results, measure
from benchmarks.report import machine, ratios, table, write
from benchmarks.services.common import BLIND, GATEWAY, PROCESSES, PROFILED, UNFUSED, WATCHED

_PAGE = Path(__file__).parents[1] / "docs" / "costs.md"
_BEGIN = "<!-- costs: written by `python -m benchmarks.costs --write` -->"
_ANY_ANSWER = Question("x", "1", lambda answer: True)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of `case` minus that of `less` (None: nothing), divided by the hops."""

    what: str
    case: Case
    less: Case | None = None
    hops: int = 1


def _array(name: str, *arguments: str) -> Case:
    return Case(
        name, ("array", *arguments), Transport.HTTP, _ANY_ANSWER, "/array/prediction",
        is_counted=True,
    )  # fmt: skip


def costs() -> Iterator[Cost]:
    counted: dict[str, Any] = {"is_counted": True}
    echo = echo_case("echo", **counted)
    yield Cost("a request through one Op, HTTP, `key` and `value`", echo)
    yield Cost("an Op more, fused", chain5_case("chain", **counted), echo, 4)
    apart = chain5_case("chain, unfused", UNFUSED, **counted)
    yield Cost("an Op more, each on its own thread", apart, echo, 4)
    process = echo_case("process", PROCESSES)
    yield Cost("the Op in a process", process, echo)
    yield Cost("a process Op more", chain5_case("chain of processes", PROCESSES), process, 4)
    blind = echo_case("blind", BLIND, **counted)
    yield Cost("statistics (the default)", echo, blind)
    watched = echo_case("watched", WATCHED, **counted)
    yield Cost("tracer, metrics and OpenTelemetry besides", watched, echo)
    profiled = echo_case("profiled", PROFILED, **counted)
    yield Cost("profiles (200 requests a second) besides these", profiled, watched)
    for size in ("2", "16", "1000"):
        text, tensors = (_array(f"{size} as {form}", size, form) for form in ("text", "tensors"))
        yield Cost(f"an answer of {size} float32 as text", text, echo)
        yield Cost(f"an answer of {size} float32 as a tensor, JSON", tensors, echo)
    raw = v2_echo_case("v2")
    yield Cost("16 float32 there and back by v2, raw, in place of a pair", raw, echo)
    yield Cost("the gateway as child, HTTP", echo_case("gateway", GATEWAY), echo)
    grpc = Case("gRPC", echo.command, Transport.GRPC, echo.question, **counted)
    yield Cost("gRPC in place of HTTP", grpc, echo)
    edge = Case("gRPC, gateway", ("echo", GATEWAY), Transport.GRPC, echo.question)
    yield Cost("the gateway as child, gRPC", edge, grpc)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.costs", description=__doc__)
    parser.add_argument("--seconds", type=int, default=2, help="length of a measurement")
    parser.add_argument("--repeats", type=int, default=5, help="rounds; the median is reported")
    parser.add_argument("--requests", type=int, default=2048, help="of a count of instructions")
    parser.add_argument("--no-instructions", action="store_true", help="do without valgrind")
    parser.add_argument("--write", action="store_true", help=f"into {_PAGE.name}")
    arguments = parser.parse_args()
    if missing := missing_tools():
        print(f"missing load generators: apt-get install {' '.join(missing)}", file=sys.stderr)
        return 2
    rows = [*costs()]
    cases = [*{cost.case.name: cost.case for cost in rows}.values()]
    cases += [cost.less for cost in rows if cost.less is not None and cost.less not in cases]
    results = measure([cases], Plan((1, MANY), arguments.seconds, arguments.repeats), _say)
    if not arguments.no_instructions:
        counted = [case for case in cases if case.is_counted]
        results.instructions.update(count_all(counted, arguments.requests, _say))
    report = _report(rows, results)
    print(report)
    if arguments.write:
        write(report, _PAGE, _BEGIN)
    return 0


def _report(wanted: list[Cost], results: Results) -> str:
    header = ("what", "CPU us", "lone caller, us", "instructions")
    rows = [(cost.what, *cells(cost, results)) for cost in wanted]
    notes = [f"- {name}: not measured: {why}" for name, why in results.not_measured.items()]
    return "\n\n".join([f"{machine()}.", table(header, rows), *notes]) + "\n"


def cells(cost: Cost, results: Results) -> Iterator[str]:
    figures = (("server_ms", MANY, 1e3, ",.1f"), ("p50_us", 1, 1, ",.0f"))
    for figure, clients, unit, form in (*figures, ("instructions", 1, 1, ",.0f")):
        base: str | float = 0.0 if cost.less is None else cost.less.name
        values = ratios(results, Target(cost.case.name, clients, figure, base, hops=cost.hops))
        yield format(statistics.median(values) * unit, form) if values else ""


def _say(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
