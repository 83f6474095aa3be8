"""A worker kind of a plug-in: batches run on the event loop itself, for Ops that take no time.

The entry point of the group `pipeline.workers` names InlineKind. config.yml then has its option
beside its name: `workers: inline`, `at_once: 16`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.state import WorkersState
from pipeline.engine.worker_api import Job, SetUp, Worker, WorkerContext, WorkersBase, WorkersOwner
from pipeline.op import Op


class InlineOptions(Struct, frozen=True):
    """Keys of config.yml."""

    at_once: Annotated[int, Meta(ge=1), "Most batches that run in one round of the loop."] = 8


class InlineKind:
    """See `pipeline.engine.worker_api.WorkerKind`."""

    Options = InlineOptions

    def __init__(self, ops: Sequence[Op], context: WorkerContext) -> None:
        self._set_up = context.set_up

    def fork(self) -> None:
        """Nothing is forked."""

    def attach(self, loop: asyncio.AbstractEventLoop, schedule: Callable[[], None]) -> None:
        """Take the loop, and what has Ops cut their next batches."""
        self._loop, self._schedule = loop, schedule

    def workers(self, op: Op, count: int, owner: WorkersOwner) -> InlineWorkers:
        """Return the only worker that an Op can have here."""
        return InlineWorkers(op, owner, self._loop, self._schedule, self._set_up)

    async def close(self) -> None:
        """Nothing is left to end."""


class InlineWorkers(WorkersBase):
    """See `pipeline.engine.worker_api.Workers` and `Worker`, which it is both."""

    keeps_progress = True
    outage = None
    number = 0
    job: Job | None = None
    job_started: float | None = None
    call_started: float | None = None

    def __init__(
        self,
        op: Op,
        owner: WorkersOwner,
        loop: asyncio.AbstractEventLoop,
        schedule: Callable[[], None],
        set_up: SetUp,
    ) -> None:
        self._op, self._owner, self._loop = op, owner, loop
        self._schedule, self._set_up = schedule, set_up
        self._at_once = InlineOptions(**op.pipeline_config.worker_options).at_once
        self._jobs: deque[Any] = deque()
        self._bound: BoundOp | None = None

    @property
    def count(self) -> int:
        return int(self.is_ready)

    @property
    def is_ready(self) -> bool:
        return self._bound is not None

    def state(self) -> WorkersState:
        return WorkersState("inline", 1, self.count, 0)

    async def start(self) -> None:
        self._set_up(self._op, 0)
        self._op.init_op()
        self._bound = BoundOp(self._op, 0)

    def submit(self, jobs: Sequence[Any]) -> None:
        if not self._jobs:
            self._loop.call_soon(self._run)
        self._jobs.extend(jobs)

    def _run(self) -> None:
        assert self._bound is not None
        for _ in range(min(self._at_once, len(self._jobs))):
            job = self._jobs.popleft()
            job.run(self._bound, self, time.monotonic_ns)
            self._owner.done(self, job)
        if self._jobs:
            self._loop.call_soon(self._run)
        self._schedule()

    def call_begins(self) -> None:
        """Nobody can look meanwhile."""

    def call_ends(self) -> None:
        """Nobody can look meanwhile."""

    def busy(self) -> Iterable[Worker]:
        return ()

    def replace(self, worker: Worker, job: Job | None) -> bool:
        return False

    async def stop(self, timeout_s: float) -> int:
        self._bound = None
        return 0
