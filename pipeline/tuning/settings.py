"""Settings of a service that may be tried, and the trials of some of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class OpSettings(NamedTuple):
    """The settings of one Op; `delay_ms` is how long a batch waits to grow, 0: it does not."""

    concurrency: int
    batch_size: int
    delay_ms: float = 0.0


Settings = tuple[OpSettings, ...]
"""Those of all Ops, in the order of `Space.ops`."""


@dataclass(frozen=True, slots=True)
class OpSpace:
    """The values that one Op's settings may have, each in rising order.

    `in_processes`: its workers are processes, which do not wait for the server's GIL.
    """

    name: str
    concurrency: tuple[int, ...]
    batch_size: tuple[int, ...] = (1,)
    delay_ms: tuple[float, ...] = (0.0,)
    in_processes: bool = False

    def all(self) -> Iterator[OpSettings]:
        """Yield each choice once: without batches there is nothing to wait for."""
        for workers, size in itertools.product(self.concurrency, self.batch_size):
            for delay_ms in self.delay_ms if size > 1 else (0.0,):
                yield OpSettings(workers, size, delay_ms)


@dataclass(frozen=True, slots=True)
class Space:
    """The Ops whose settings are searched, and the number of requests at the same time.

    `cores` are the cores that the service may compute on.
    """

    ops: tuple[OpSpace, ...]
    clients: int
    cores: float

    def all(self) -> Iterator[Settings]:
        """Yield every choice: what a full sweep tries."""
        return itertools.product(*(op.all() for op in self.ops))

    @property
    def size(self) -> int:
        """The number of choices."""
        count = 1
        for op in self.ops:
            count *= sum(1 for _ in op.all())
        return count

    def changed(self, settings: Settings, place: int) -> Iterator[Settings]:
        """Yield `settings` with each choice for the Op at `place`."""
        for choice in self.ops[place].all():
            yield (*settings[:place], choice, *settings[place + 1 :])


@dataclass(frozen=True, slots=True)
class OpMeasurement:
    """One Op in a trial.

    `visits` is how many of its spans a request takes, `busy` the mean number of its workers at
    work, `batches` the (requests, ms, how many such batches) that were seen.
    """

    visits: float
    busy: float
    batches: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """A run of a service with some settings. Times in ms, memory in MiB.

    `cpu` is how many cores it used. `problem` says why the settings are of no use: requests
    failed, or the server did not start; the figures are nothing then.
    """

    settings: Settings
    per_s: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    memory_mb: float = 0.0
    cpu: float = 0.0
    ops: Mapping[str, OpMeasurement] = field(default_factory=dict)
    worker_mb: float = 0.0
    problem: str = ""
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Goal:
    """The aim: most requests/s, or with `for_latency` the least p99; None: no such limit."""

    for_latency: bool = False
    p99_ms: float | None = None
    memory_mb: float | None = None

    def allows(self, p99_ms: float, memory_mb: float) -> bool:
        """Return whether these are within the limits."""
        is_quick = self.p99_ms is None or p99_ms <= self.p99_ms
        return is_quick and (self.memory_mb is None or memory_mb <= self.memory_mb)

    def score(self, per_s: float, p99_ms: float) -> float:
        """Return how good that is: of two services the one with more is better."""
        if self.for_latency:
            return 1e3 / p99_ms if p99_ms > 0 else 0.0
        return per_s

    def score_of(self, trial: Trial) -> float:
        """Return how good a trial was; 0: it failed, or is beyond a limit."""
        if trial.problem or not self.allows(trial.p99_ms, trial.memory_mb):
            return 0.0
        return self.score(trial.per_s, trial.p99_ms)
