"""A service that is only simulated: events on a clock of its own, for searches of settings."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.tuning.settings import OpMeasurement, OpSettings, OpSpace, Settings, Space, Trial

_WARM = 0.2  # of the requests, which do not count
_NOISE = 0.03  # of a batch's time


@dataclass(frozen=True)
class SimulatedOp:
    """A batch of n takes `fixed_ms + n * each_ms`, the share `computed` of it on a core."""

    fixed_ms: float
    each_ms: float
    computed: float


@dataclass(frozen=True)
class SimulatedService:
    """Ops in a row; `parallel` of them compute at a time without slowing each other down."""

    space: Space
    ops: tuple[SimulatedOp, ...]
    parallel: float
    own_ms: float = 0.1
    worker_mb: float = 20.0

    def trial(self, settings: Settings, seed: int = 0, requests: int = 600) -> Trial:
        """Return what so many requests show of these settings."""
        return _Run(self, settings, random.Random(seed), requests).trial()


class _Run:
    def __init__(
        self, service: SimulatedService, settings: Settings, chance: random.Random, requests: int
    ) -> None:
        self.service, self.settings, self.chance = service, settings, chance
        self.wanted = requests
        count = len(settings)
        self.now = 0.0
        self.queues: list[deque[tuple[float, int]]] = [deque() for _ in range(count)]
        self.running = [0] * count
        self.busy_ms = [0.0] * count
        self.batches: list[dict[int, list[float]]] = [{} for _ in range(count)]
        self.events: list[tuple[float, int, int, tuple[int, ...]]] = []
        self.number = 0
        self.begun: dict[int, float] = {}
        self.latencies: list[tuple[float, float]] = []
        self.computed_ms = 0.0
        self.computing = 0.0

    def trial(self) -> Trial:
        for client in range(self.service.space.clients):
            self.begun[client] = 0.0
            self.queues[0].append((0.0, client))
        self.start(0)
        while len(self.latencies) < self.wanted:
            self.now, _, place, clients = heapq.heappop(self.events)
            if place >= 0:
                self.end(place, clients)
            else:
                self.start(-1 - place)
        return self.result()

    def end(self, place: int, clients: tuple[int, ...]) -> None:
        self.running[place] -= 1
        self.computing -= self.service.ops[place].computed
        following = place + 1
        if following == len(self.settings):
            for client in clients:
                self.latencies.append((self.now, self.now - self.begun[client]))
                self.begun[client] = self.now
            following = 0
        self.queues[following].extend((self.now, client) for client in clients)
        self.start(following)
        self.start(place)

    def start(self, place: int) -> None:
        queue, op = self.queues[place], self.settings[place]
        while queue and self.running[place] < op.concurrency:
            due = queue[0][0] + op.delay_ms
            if op.delay_ms and len(queue) < op.batch_size and self.now < due - 1e-9:
                self.push(due, -1 - place, ())
                return
            taken = tuple(queue.popleft()[1] for _ in range(min(len(queue), op.batch_size)))
            self.begin(place, taken, op)

    def begin(self, place: int, taken: tuple[int, ...], op: OpSettings) -> None:
        cost, size = self.service.ops[place], len(taken)
        alone_ms = (cost.fixed_ms + size * cost.each_ms) * (
            1 + self.chance.uniform(-_NOISE, _NOISE)
        )
        computed_ms = cost.computed * alone_ms + (self.service.own_ms * size if not place else 0)
        self.computing += cost.computed
        slower = max(1.0, self.computing / self.service.parallel)
        took_ms = (1 - cost.computed) * alone_ms + computed_ms * slower
        self.computed_ms += computed_ms
        self.busy_ms[place] += took_ms
        self.batches[place].setdefault(size, []).append(took_ms)
        self.running[place] += 1
        self.push(self.now + took_ms, place, taken)

    def push(self, when: float, place: int, taken: tuple[int, ...]) -> None:
        self.number += 1
        heapq.heappush(self.events, (when, self.number, place, taken))

    def result(self) -> Trial:
        counted = self.latencies[int(len(self.latencies) * _WARM) :]
        seconds = (counted[-1][0] - counted[0][0]) / 1e3 or 1e-3
        times = sorted(took for _, took in counted)
        ops = {
            space.name: OpMeasurement(
                visits=1.0,
                busy=self.busy_ms[place] / self.now,
                batches=tuple(
                    (float(size), sorted(took)[len(took) // 2], float(len(took)))
                    for size, took in sorted(self.batches[place].items())
                ),
            )
            for place, space in enumerate(self.service.space.ops)
        }
        processes = [
            op.concurrency
            for op, space in zip(self.settings, self.service.space.ops, strict=True)
            if space.in_processes
        ]
        return Trial(
            self.settings,
            per_s=len(counted) / seconds,
            p50_ms=times[len(times) // 2],
            p99_ms=times[int(0.99 * (len(times) - 1))],
            memory_mb=100.0 + self.service.worker_mb * sum(processes),
            cpu=self.computed_ms / self.now,
            ops=ops,
            worker_mb=self.service.worker_mb if processes else 0.0,
        )


def random_service(seed: int, ops: int | None = None) -> SimulatedService:
    """Return a service that chance has made: waiting, computing, threads or processes."""
    chance = random.Random(seed)
    count = ops or chance.choice((1, 1, 2, 3))
    cores = chance.choice((2, 4, 8, 16))
    in_processes = chance.random() < 0.4
    holds_gil = chance.random() < 0.5
    choices: Sequence[int] = (1, 2, 4, 8, 16)
    return SimulatedService(
        Space(
            tuple(
                OpSpace(
                    f"op{number}",
                    tuple(choices),
                    (1, 2, 4, 8, 16, 32),
                    (0.0, 2.0, 5.0),
                    in_processes,
                )
                for number in range(count)
            ),
            clients=chance.choice((8, 16, 32, 64)),
            cores=cores,
        ),
        tuple(
            SimulatedOp(
                10 ** chance.uniform(-0.5, 1.3),
                10 ** chance.uniform(-1.5, 0.7),
                chance.choice((0.0, 0.3, 0.9, 1.0)),
            )
            for _ in range(count)
        ),
        parallel=1.0 if holds_gil and not in_processes else float(cores),
    )
