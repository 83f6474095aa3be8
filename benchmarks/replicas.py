"""`python -m benchmarks.replicas`: what replicas of a repository bring, and what they cost.

A Python model and one with batching are asked through the gateway, of one process and of several in
turns. Told is the CPU time of a request at each kind of process, the memory of all, and how evenly
the replicas are asked. What so many replicas reach on so many cores is computed of these times: a
loop and a worker have one core each, the gateway as many as there are.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.family import cpu_of_each, members
from benchmarks.load import http_load
from benchmarks.loading import ready
from benchmarks.model_times import RowQuestion
from benchmarks.process import Service, running
from benchmarks.report import machine, table
from benchmarks.repositories import write_models

_MODELS = ("one", "one_batched", "ensemble_batched")
_QUESTION = RowQuestion("x", [float(number) for number in range(16)], lambda found: True)
_CORES = (2, 4, 8, 16)
_GATEWAY = "pipeline-gatewa"  # as much of its name as the system keeps


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of CPU that a request takes: at the loop, at the busiest worker, of all, gateway."""

    loop: float
    worker: float
    workers: float
    gateway: float

    def capacity(self, replicas: int, cores: int) -> float:
        """Return requests/s: a loop and a worker have a core at most, and nobody more than all."""
        of_one = 1 / max(self.loop, self.worker)
        return min(replicas * of_one, cores / (self.loop + self.workers + self.gateway))


def main() -> int:
    """Print tables of what was measured, and of what follows for more cores."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replicas")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a stretch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=64)
    given = parser.parse_args()
    measured, computed = [], []
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="bench-"))
        write_models(Path(folder), ".")
        one, several = (
            stack.enter_context(
                running("repository", folder, "--edge=gateway", f"--replicas={count}")
            )
            for count in (1, given.replicas)
        )
        for service in (one, several):
            service.first_answer(lambda service=service: ready(service.http_port))
        for model in _MODELS:
            for service in (one, several):
                stretch(service, model, given.clients, 1.0)
            rounds = [
                [stretch(each, model, given.clients, given.seconds) for each in (one, several)]
                for _ in range(given.rounds)
            ]
            measured.append(row_of(model, rounds))
            costs = sorted((of_one[1] for of_one, _ in rounds), key=lambda each: each.loop)
            middle = costs[len(costs) // 2]
            measured[-1] += [f"{1e6 * each:.0f}" for each in (middle.loop, middle.workers)]
            measured[-1].append(f"{1e6 * middle.gateway:.0f}")
            computed.append(gains(model, middle, given.replicas))
        memory = [service.holdings().private_bytes / 2**20 for service in (one, several)]
    print(machine())
    head = ("model", "one, requests/s", f"{given.replicas}", "ratio")
    print(table((*head, "CPU us: loop", "workers", "gateway"), measured))
    cores = (f"{count} cores" for count in _CORES)
    print(table((f"computed: {given.replicas} over one", *cores), computed))
    print(f"memory, MiB: one {memory[0]:.0f}, {given.replicas} replicas {memory[1]:.0f}")
    return 0


def stretch(service: Service, model: str, clients: int, seconds: float) -> tuple[float, Costs]:
    """Load the model; return requests/s, and the costs of a request where there is one loop."""
    url = f"http://127.0.0.1:{service.http_port}/v2/models/{model}/infer"
    before = cpu_of_each(service.pid)
    load = http_load(url, _QUESTION, clients, seconds)
    spent = {pid: cpu - before.get(pid, 0.0) for pid, cpu in cpu_of_each(service.pid).items()}
    gateway = sum(spent.pop(pid, 0.0) for pid in members(service.pid, _GATEWAY))
    figures = [spent.pop(service.pid), max(spent.values()), sum(spent.values()), gateway]
    return load.requests / load.seconds, Costs(*(each / load.requests for each in figures))


def row_of(model: str, rounds: Sequence[Sequence[tuple[float, Costs]]]) -> list[str]:
    """Return the medians of both sides, and the median of the rounds' ratios."""
    sides = [statistics.median(per_s for per_s, _ in side) for side in zip(*rounds, strict=True)]
    ratio = statistics.median(several[0] / one[0] for one, several in rounds)
    return [model, *(f"{side:,.0f}" for side in sides), f"{ratio:.2f}"]


def gains(model: str, costs: Costs, replicas: int) -> list[str]:
    """Return how many times as much several replicas answer, by the number of cores."""
    pairs = ((costs.capacity(replicas, cores), costs.capacity(1, cores)) for cores in _CORES)
    return [model, *(f"{several / one:.2f}" for several, one in pairs)]


if __name__ == "__main__":
    sys.exit(main())
