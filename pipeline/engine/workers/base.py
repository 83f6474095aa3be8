"""The seam between the dispatcher and where stages run: thread, process, cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from pipeline.engine.binding import BoundOp
from pipeline.engine.stages import CallWatch
from pipeline.op import Op


class Job(Protocol):
    """Something that a worker runs with its own copy of an Op. `run` raises nothing."""

    def run(self, op: BoundOp, watch: CallWatch, clock_ns: Callable[[], int]) -> None: ...


class Worker(Protocol):
    """What the dispatcher may know of a worker."""

    @property
    def number(self) -> int:
        """Its place among the Op's workers, from 0."""

    @property
    def job(self) -> Job | None:
        """The job that it works on."""

    @property
    def call_started(self) -> float | None:
        """`time.monotonic` of the running call of `process`, if one is running."""


class Workers(Protocol):
    """All workers of one Op. Called on the event loop only."""

    @property
    def count(self) -> int:
        """Workers that take jobs: those that are stuck are not among them."""

    async def start(self) -> None:
        """Initialise the Op and start its workers; raises InitError."""

    def submit(self, job: Job) -> None:
        """Queue a job; the callback of the pool is called on the loop when it is done."""

    def busy(self) -> Iterable[Worker]:
        """The workers that have a job now."""

    def replace(self, worker: Worker, job: Job | None) -> bool:
        """Give `worker` up and put another in its place, which starts with `job`.

        False if too many are stuck already: then `job` will not run.
        """

    async def stop(self, timeout_s: float) -> int:
        """End all workers; returns how many did not end in time."""


class WorkersFactory(Protocol):
    """Makes the workers of an Op; the one place that knows of their kind."""

    def __call__(
        self, op: Op, on_done: Callable[[Worker, Job], None], on_change: Callable[[], None]
    ) -> Workers: ...


class Loop(Protocol):
    """What the engine needs of an event loop; tests pass one with a clock of their own."""

    def time(self) -> float: ...
    def call_soon(self, callback: Callable[[], None]) -> object: ...
    def call_at(
        self, when: float, callback: Callable[..., None], *args: object
    ) -> asyncio.TimerHandle: ...
    def create_future(self) -> asyncio.Future[object]: ...
