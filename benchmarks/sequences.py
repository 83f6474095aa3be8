"""`python -m benchmarks.sequences`: the cost of sequences, compared with an Op without them.

Two workers under full load, without sequences and with each strategy in turns: steps a second.
With `--live`: memory and the time of a step at a steady rate, of so many long sequences and of
`--short` sequences of two steps that begin each minute, in turns with as many steps of an Op
without sequences. Everything runs in one process; the callers use the engine without a frontend.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks import NotMeasuredError
from benchmarks.family import usage_of
from benchmarks.report import machine, table
from benchmarks.sequence_steps import KINDS, Begin, Crowd, Flow, Steps, model_of
from pipeline import PipelineServer, ResponseOp
from pipeline.runtime.service import gc_frozen

_WARM_UP_S = 0.3


@dataclass(frozen=True)
class Turn:
    """The measurements of one kind in one round."""

    steps: Steps
    seconds: float
    cpu_s: float

    @property
    def per_s(self) -> float:
        return self.steps.count / self.seconds

    @property
    def cpu_us(self) -> float:
        return 1e6 * self.cpu_s / self.steps.count


def main() -> int:
    options = _arguments()
    asyncio.run(_steady(options) if options.live else _turns(options))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sequences", description=__doc__)
    parser.add_argument("--processes", action="store_true", help="in place of threads")
    parser.add_argument("--callers", type=int, default=64, help="callers, each with one sequence")
    parser.add_argument("--batch", type=int, default=32, help="the most steps in a batch")
    parser.add_argument("--candidates", type=int, default=0, help="slots; 0: as many as a batch")
    parser.add_argument("--step-ms", type=float, default=2.0, help="time of the model for one step")
    parser.add_argument("--length", type=int, default=100, help="steps of a sequence")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--live", type=int, default=0, help="number of long sequences")
    parser.add_argument(
        "--every", type=float, default=10.0, help="seconds between two steps of a long sequence"
    )
    parser.add_argument(
        "--short", type=int, default=100_000, help="short sequences a minute, with --live"
    )
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


@asynccontextmanager
async def _serving(kind: str, options: argparse.Namespace) -> AsyncIterator[Begin]:
    """Run a server with the Op; gives its engine's `begin`."""
    sequence: dict[str, Any] = {} if kind == KINDS[0] else {"strategy": kind}
    if kind == "oldest":
        sequence["max_candidates"] = options.candidates or options.live or options.batch
    if sequence:
        sequence["max_idle_ms"] = 600_000
    server = PipelineServer(kind)
    server.set_response_op(ResponseOp([model_of(kind, options.step_ms / 1e3)]))
    server.prepare_server(
        yml_dict={
            "rpc_port": 0,
            "http_port": 0,
            "edge": "embedded",
            "worker_num": 65_536,
            "dag": {"is_thread_op": not options.processes},
            "op": {"model": {"concurrency": 2, "batch_size": options.batch, "sequence": sequence}},
        }
    )
    async with server:
        with gc_frozen():  # as in a process that only serves
            yield server._running().models.begin


async def _turns(options: argparse.Namespace) -> None:
    turns: dict[str, list[Turn]] = {kind: [] for kind in options.kinds}
    async with AsyncExitStack() as stack:
        begins = {kind: await stack.enter_async_context(_serving(kind, options)) for kind in turns}
        for _ in range(options.rounds):
            for kind, begin in begins.items():
                turns[kind].append(await _turn(begin, kind, options))
    print(_report(turns))


async def _steady(options: argparse.Namespace) -> None:
    by_kind: dict[str, list[Steps]] = {kind: [] for kind in options.kinds}
    async with AsyncExitStack() as stack:
        begins = {
            kind: await stack.enter_async_context(_serving(kind, options)) for kind in by_kind
        }
        flows = {}
        for kind, begin in begins.items():
            flow = Flow(begin, kind != KINDS[0], options.live, options.every, options.short / 60)
            await flow.begin_all()
            flows[kind] = flow
            await flow.run(_WARM_UP_S)
        rss_mib = []
        for _ in range(options.rounds):
            for kind, flow in flows.items():
                by_kind[kind].append(await flow.run(options.seconds))
                if by_kind[kind][-1].errors:
                    raise NotMeasuredError(f"{kind}: {by_kind[kind][-1].errors}")
            rss_mib.append(usage_of(os.getpid()).rss_bytes / 2**20)
        for flow in flows.values():
            await flow.end_all()
    print(
        _report_steady(by_kind, options),
        f"RSS MiB after each round: {', '.join(f'{each:.1f}' for each in rss_mib)}",
        sep="\n\n",
    )


async def _turn(begin: Begin, kind: str, options: argparse.Namespace) -> Turn:
    crowd = Crowd(begin, kind != KINDS[0], options.callers, options.length)
    await asyncio.sleep(_WARM_UP_S)
    steps = crowd.reset_counts()
    began, cpu_s = time.perf_counter(), usage_of(os.getpid()).cpu_s
    await asyncio.sleep(options.seconds)
    seconds, cpu_s = time.perf_counter() - began, usage_of(os.getpid()).cpu_s - cpu_s
    crowd.reset_counts()
    await crowd.stop()
    if steps.errors:
        raise NotMeasuredError(f"{kind}: {steps.errors}")
    return Turn(steps, seconds, cpu_s)


def _report(turns: dict[str, list[Turn]]) -> str:
    base = next(iter(turns))
    rows = []
    for kind, rates in turns.items():
        ratios = [turn.per_s / other.per_s for turn, other in zip(rates, turns[base], strict=True)]
        cpu = [turn.cpu_us / other.cpu_us for turn, other in zip(rates, turns[base], strict=True)]
        rows.append(
            (
                kind,
                f"{statistics.median(turn.per_s for turn in rates):,.0f}",
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
                f"{statistics.median(turn.steps.mean_batch for turn in rates):.1f}",
                f"{statistics.median(turn.cpu_us for turn in rates):.1f}",
                f"{statistics.median(cpu):.2f}",
                f"{statistics.median(turn.steps.percentile_ms(0.5) for turn in rates):.1f}",
                f"{statistics.median(turn.steps.percentile_ms(0.99) for turn in rates):.1f}",
            )
        )
    header = (
        "steps",
        "a second",
        f"over {base}",
        "in a batch",
        "CPU us",
        f"over {base}",
        "p50 ms",
        "p99 ms",
    )
    return f"{machine()}.\n\n{table(header, rows)}"


def _report_steady(by_kind: dict[str, list[Steps]], options: argparse.Namespace) -> str:
    base, rows = next(iter(by_kind)), []
    for kind, steps in by_kind.items():
        both = [
            (mine.percentile_ms(0.99), other.percentile_ms(0.99))
            for mine, other in zip(steps, by_kind[base], strict=True)
        ]
        ratios = [mine / other for mine, other in both]
        rows.append(
            (
                kind,
                f"{statistics.median(step.count for step in steps) / options.seconds:,.0f}",
                f"{statistics.median(step.mean_batch for step in steps):.1f}",
                f"{statistics.median(step.percentile_ms(0.5) for step in steps):.1f}",
                f"{statistics.median(mine for mine, _ in both):.1f}",
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
            )
        )
    header = ("steps", "a second", "in a batch", "p50 ms", "p99 ms", f"p99 over {base}")
    return f"{machine()}.\n\n{table(header, rows)}"


if __name__ == "__main__":
    sys.exit(main())
