"""`python -m benchmarks.fleet`: a fleet as a simulation, and beside it as far as one machine goes.

The simulation has a real engine for each node, on a clock of its own; what it takes of CPU at the
edge and at a replica, and the way between them, are measured first. It needs the tests' doubles:
PYTHONPATH=.:tests/support.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from doubles import Engine, run_virtual

from benchmarks.ask import Question, ask_http
from benchmarks.family import members, usage_of
from benchmarks.load import Load, http_load
from benchmarks.process import Service, running
from benchmarks.report import machine, table, write
from pipeline import Op, RequestOp

_PERFORMANCE = Path(__file__).parents[1] / "docs" / "performance.md"
_BEGIN = "<!-- fleet: written by `python -m benchmarks.fleet --write` -->"
_QUESTION = Question("x", "1", lambda answer: answer["x"] == "1")
_EDGE = "pipeline-gatewa"  # as the system cuts names
_WARM_S = 1.0
_OP_S = 0.02
_WORKERS = 8


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU time of a request at the edge and at a replica, and its way between them, there alone."""

    edge_s: float
    replica_s: float
    hop_s: float


@dataclass(frozen=True, slots=True)
class Fleet:
    """Machines that are simulated.

    `rate`: requests a second that come, at random; 0: `clients` ask again when they are answered.
    """

    nodes: int
    edges: int = 1
    edge_cores: int = 2
    workers: int = _WORKERS
    op_s: float = _OP_S
    rate: float = 0.0
    clients: int = 0
    seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class FleetResult:
    """Outcome: answers a second, their times, and the share of time that each part is busy."""

    throughput: float
    p50_ms: float
    p99_ms: float
    edge_busy: float = 0.0
    replica_busy: float = 0.0
    workers_busy: float = 0.0


# Simulated ----------------------------------------------------------------------------------


class Cores:
    """Cores that work on what comes in order of arrival."""

    def __init__(self, count: int, loop: asyncio.AbstractEventLoop) -> None:
        self._free_at = [0.0] * count
        self._loop = loop
        self.used_s = 0.0

    async def use(self, seconds: float) -> None:
        """Wait for a core, and have it for so long."""
        now = self._loop.time()
        ends = max(now, heapq.heappop(self._free_at)) + seconds
        heapq.heappush(self._free_at, ends)
        self.used_s += seconds
        await asyncio.sleep(ends - now)


class _Sleep(Op):
    def preprocess(self, input_dicts: Any) -> Any:
        return input_dicts["@DAGExecutor"]


class Node:
    """A replica: the core of its event loop, and its engine with workers that sleep."""

    def __init__(self, fleet: Fleet, loop: asyncio.AbstractEventLoop) -> None:
        self.core = Cores(1, loop)
        config = {"op": {"sleep": {"concurrency": fleet.workers}}, "queue_size": 100_000}
        op = _Sleep("sleep", RequestOp())
        self.engine = Engine(op, config, {"sleep": fleet.op_s})


def simulate(fleet: Fleet, costs: Costs) -> FleetResult:
    """Return what callers of a fleet find."""
    result: FleetResult = run_virtual(_simulate(fleet, costs))
    return result


async def _simulate(fleet: Fleet, costs: Costs) -> FleetResult:
    loop = asyncio.get_running_loop()
    edges = [Cores(fleet.edge_cores, loop) for _ in range(fleet.edges)]
    nodes = [Node(fleet, loop) for _ in range(fleet.nodes)]
    for node in nodes:
        await node.engine.executor.start()
    turns, took = itertools.count(), []
    begins, chance = loop.time(), random.Random(7)

    async def ask() -> None:
        number, came = next(turns), loop.time()
        edge, node = edges[number % len(edges)], nodes[number % len(nodes)]
        await edge.use(costs.edge_s / 2)
        await asyncio.sleep(costs.hop_s)
        await node.core.use(costs.replica_s)
        await node.engine.ask(x="1")
        await asyncio.sleep(costs.hop_s)
        await edge.use(costs.edge_s / 2)
        took.append(loop.time() - came)

    async def client() -> None:
        while loop.time() < begins + fleet.seconds:
            await ask()

    tasks = [asyncio.create_task(client()) for _ in range(fleet.clients)]
    due = begins
    while fleet.rate and due < begins + fleet.seconds:
        due += chance.expovariate(fleet.rate)
        await asyncio.sleep(max(0.0, due - loop.time()))
        tasks.append(asyncio.create_task(ask()))
    await asyncio.gather(*tasks)
    passed = loop.time() - begins
    for node in nodes:
        await node.engine.executor.stop(0.0)
    count = len(took)
    return FleetResult(
        count / passed,
        statistics.median(took) * 1000,
        sorted(took)[int(count * 0.99)] * 1000,
        sum(edge.used_s for edge in edges) / passed / fleet.edges / fleet.edge_cores,
        sum(node.core.used_s for node in nodes) / passed / fleet.nodes,
        count * fleet.op_s / passed / fleet.nodes / fleet.workers,
    )


# Measured -----------------------------------------------------------------------------------


def measured(nodes: int, clients: int, seconds: float) -> FleetResult:
    """Return what callers of a real edge before so many real servers find, on this machine."""
    arguments = ("gateway", "sleep", str(nodes), str(_OP_S * 1000), str(_WORKERS))
    with running(*arguments) as made:
        load, _, _ = _loaded(made, "sleep", clients, seconds)
    return FleetResult(load.requests / load.seconds, load.p50_ms, load.p99_ms)


def costs_here(seconds: float) -> Costs:
    """Return what a request takes here, of the edge's CPU and of the server's behind it."""
    with running("gateway", "echo", "1") as made:
        load, edge_s, all_s = _loaded(made, "echo", 32, seconds)
        lone, _, _ = _loaded(made, "echo", 1, seconds)
    edge, replica = edge_s / load.requests, (all_s - edge_s) / load.requests
    hop_s = max(0.0, lone.p50_ms / 1000 - edge - replica) / 2
    return Costs(edge, replica, hop_s)


def _loaded(service: Service, name: str, clients: int, seconds: float) -> tuple[Load, float, float]:
    """Return what a service did, the CPU time of its edge meanwhile, and that of all it has."""
    url = f"http://127.0.0.1:{service.http_port}/{name}/prediction"
    service.first_answer(lambda: ask_http(url, _QUESTION))
    http_load(url, _QUESTION, clients, _WARM_S)
    (edge,) = members(service.pid, _EDGE)
    before, edge_before = service.usage().cpu_s, usage_of(edge).cpu_s
    load = http_load(url, _QUESTION, clients, seconds)
    return load, usage_of(edge).cpu_s - edge_before, service.usage().cpu_s - before


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, simulate, print and, if asked to, write into docs/performance.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    given = parser.parse_args(arguments)
    costs = costs_here(given.seconds)
    print(costs)
    text = "\n\n".join([machine(), _costs(costs), _beside(costs, given.seconds), _large(costs)])
    print(text)
    if given.write:
        write(f"{text}\n", _PERFORMANCE, _BEGIN)
    return 0


def _costs(costs: Costs) -> str:
    return (
        f"A request takes {costs.edge_s * 1e6:.0f} us of CPU at the edge and "
        f"{costs.replica_s * 1e6:.0f} us at a replica; its way between them takes "
        f"{costs.hop_s * 1e6:.0f} us each way on this machine, with its wake-ups."
    )


def _beside(costs: Costs, seconds: float) -> str:
    """Compare both at sizes that are there; two cores are the edge's and the servers' together."""
    rows = []
    for nodes in (1, 2, 4):
        clients = nodes * _WORKERS
        real = measured(nodes, clients, seconds)
        fleet = Fleet(nodes, clients=clients, seconds=seconds)
        made = simulate(fleet, costs)
        rows.append(
            [
                str(nodes),
                *(f"{result.throughput:,.0f}" for result in (real, made)),
                f"{made.throughput / real.throughput:.2f}",
                *(f"{result.p50_ms:.1f}" for result in (real, made)),
                *(f"{result.p99_ms:.1f}" for result in (real, made)),
            ]
        )
    names = [
        "nodes",
        "requests/s",
        "simulated",
        "ratio",
        "p50 ms",
        "simulated",
        "p99 ms",
        "simulated",
    ]
    return table(names, rows)


def _large(costs: Costs) -> str:
    """Simulate 100 nodes and more and more requests, of a quick Op."""
    far = replace(costs, hop_s=max(costs.hop_s, 100e-6))
    rows = []
    for edges, rate in ((50, 250e3), (50, 500e3), (50, 1e6), (100, 1e6), (100, 2e6)):
        fleet = Fleet(100, edges, 4, workers=8, op_s=2e-4, rate=rate, seconds=0.02)
        result = simulate(fleet, far)
        rows.append(
            [
                f"{edges} x 4",
                f"{rate:,.0f}",
                f"{result.throughput:,.0f}",
                f"{result.p50_ms:.2f}",
                f"{result.p99_ms:.2f}",
                *(
                    f"{busy:.0%}"
                    for busy in (result.edge_busy, result.replica_busy, result.workers_busy)
                ),
            ]
        )
    names = ["edges x cores", "requests/s", "answered/s", "p50 ms", "p99 ms"]
    return table([*names, "edges busy", "loops busy", "workers busy"], rows)


if __name__ == "__main__":
    raise SystemExit(main())
