"""`python -m benchmarks overload`: what a server answers in time that is asked for too much.

Its capacity is measured first, by callers who wait for their answers. Then requests come at even
distances, whatever becomes of them, each with a deadline. Exit status 1: of what could be answered
in time too little was.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
from collections.abc import Sequence
from pathlib import Path

from benchmarks import mixed_loads
from benchmarks.mixed_loads import MIXED, Callers, Kind, none_refused
from benchmarks.overload_rows import ANSWERED, COLUMNS, LEAST, Result
from benchmarks.process import running
from benchmarks.report import machine, table, write
from pipeline.proto import pipeline_service_pb2 as pb

_RELIABILITY = Path(__file__).parents[1] / "docs" / "reliability.md"
_BEGIN = "<!-- overload: written by `python -m benchmarks overload --write` -->"

KINDS = ("threads", "batches", "diamond")
_KIND = Kind("", lambda number: _MESSAGE)
_MESSAGE = pb.Request(key=["x"], value=["1"]).SerializeToString()


async def measure(port: int, kind: str, given: argparse.Namespace) -> list[Result]:
    """Measure one service under all loads."""
    async with Callers(port) as callers:
        capacity = await callers.capacity(_KIND, given.calm)
        results = []
        for factor in given.times:
            endings = await callers.offer(_KIND, factor * capacity, given.seconds, given.deadline)
            results.append(Result(kind, capacity, factor, given.seconds, endings))
            print(*results[-1].row(), sep="  ", flush=True)
        return results


def markdown(results: Sequence[Result], deadline_s: float) -> str:
    is_met = all(result.is_met for result in results)
    verdict = "met" if is_met else "**missed**"
    unharmed = "none" if none_refused(results) else "**some**"
    return (
        f"{machine()}. Deadline {deadline_s:g} s; {results[0].seconds:g} s of each load, over "
        f"gRPC.\n\n{table(COLUMNS, [result.row() for result in results])}\n\n"
        f"At least {LEAST:g} of the capacity in time under every load: {verdict}. Refused "
        f"requests that do not wait for others (quick, kept, level 1): {unharmed}.\n"
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks overload", description=__doc__)
    parser.add_argument("--times", type=float, nargs="+", default=[0.9, 2.0, 10.0], metavar="N")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each load")
    parser.add_argument("--calm", type=float, default=4.0, help="seconds to measure the capacity")
    parser.add_argument("--deadline", type=float, default=2.0, metavar="S")
    parser.add_argument("--kinds", nargs="+", default=[*KINDS, *MIXED], metavar="KIND")
    parser.add_argument("--write", action="store_true", help=f"into {_RELIABILITY.name}")
    given = parser.parse_args(arguments)
    results = []
    for kind in given.kinds:
        with running("overload", kind) as service:
            service.first_answer(functools.partial(_first, service.grpc_port, kind))
            ask = mixed_loads.measure if kind in MIXED else measure
            results += asyncio.run(ask(service.grpc_port, kind, given))
    report = markdown(results, given.deadline)
    print(report)
    if given.write:
        write(report, _RELIABILITY, _BEGIN)
    is_met = all(result.is_met for result in results) and none_refused(results)
    return 0 if is_met else 1


def _first(port: int, kind: str) -> None:
    """OSError: it does not answer yet."""

    async def ask() -> str:
        async with Callers(port) as callers:
            return await callers.ask(MIXED[kind][0] if kind in MIXED else _KIND, 5.0)

    how = asyncio.run(ask())
    if how != ANSWERED:
        raise OSError(how)
