"""The seam between the dispatcher and where stages run: thread, process, cluster."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pipeline.config.schema import ServiceConfig
from pipeline.engine.model_calls import ModelHost
from pipeline.engine.op.channel import Item
from pipeline.engine.run.bound_op import BoundOp
from pipeline.engine.run.payload import LOCAL, MemoryDomain
from pipeline.engine.run.stages import BatchRun, CallWatch
from pipeline.engine.state import WorkersState
from pipeline.errors import PipelineError
from pipeline.op import Op
from pipeline.predictors.base import ModelMetadata

SetUp = Callable[[Op, int], None]
"""Gives an Op the predictor of the worker with this number."""


class Job(Protocol):
    """Something that a worker runs with its own copy of an Op. `run` raises nothing."""

    @property
    def worker(self) -> int | None:
        """The number of the worker that has to run it, if they are addressable; None: any."""

    def run(self, op: BoundOp, watch: CallWatch, clock_ns: Callable[[], int]) -> None: ...


class Worker(Protocol):
    """View of a worker, as the dispatcher has it.

    Attributes:
        number: its place among the Op's workers, from 0.
        job: that it works on.
        job_started: `time.monotonic` of when it took up `job`; None if it did not yet.
        call_started: `time.monotonic` of the running call of `process`, if one is running.
    """

    @property
    def number(self) -> int: ...
    @property
    def job(self) -> object | None: ...
    @property
    def job_started(self) -> float | None: ...
    @property
    def call_started(self) -> float | None: ...


class Workers(Protocol):
    """All workers of one Op. Called on the event loop only. `WorkersBase` has the defaults.

    Attributes:
        memory_domain: what their payloads are read from; LOCAL: plain objects of this process.
        keeps_progress: whether what a job has got to is seen in the job itself, so that another
            worker can go on with it; else a job that hangs is started over.
        addressable: whether a job goes to the worker that its `worker` names.
        runs_slices: whether they run a StreamRun slice by slice.
        ahead: batches that each gets while it is busy, so that it never waits for the next one.
        takes_convoys: whether the item of a batch may be a Convoy.
        stream_type: the run of a stream's requests; None: StreamRun.
        visit_type: the job that they take for a request that goes by itself; None: only batches.
            Item: they run it, where its Op has no `process`. A subclass: they hand it on.
        lender: lends idle workers to trips; None: they run no Op but their own.
    """

    @property
    def memory_domain(self) -> MemoryDomain: ...
    @property
    def keeps_progress(self) -> bool: ...
    @property
    def addressable(self) -> bool: ...
    @property
    def runs_slices(self) -> bool: ...
    @property
    def ahead(self) -> int: ...
    @property
    def takes_convoys(self) -> bool: ...
    @property
    def stream_type(self) -> type[BatchRun] | None: ...
    @property
    def visit_type(self) -> type[Item] | None: ...
    @property
    def lender(self) -> Lender | None: ...
    @property
    def count(self) -> int:
        """Workers that take jobs: those that are stuck, or being restarted, are not among them."""

    def convoy_size(self, rows: int) -> int:
        """Return how many requests of so many samples may pass the Op unbatched; 0: none does."""

    @property
    def is_ready(self) -> bool:
        """Return whether jobs are taken, and all is well with every worker or soon will be."""

    @property
    def note(self) -> ModelMetadata | None:
        """Of the model that the workers have loaded; None before, and for none."""

    def state(self) -> WorkersState:
        """Return how they stand."""

    @property
    def outage(self) -> PipelineError | None:
        """Return why no job will be run any more, or not soon; None while there is hope."""

    async def start(self) -> None:
        """Initialise the Op and start its workers; raises InitError."""

    def submit(self, jobs: Sequence[Any]) -> None:
        """Queue jobs; the pool's owner is told on the loop when each is done, or lost."""

    def joined(self, run: Any) -> None:
        """Take note that requests have joined a StreamRun that a worker is at."""

    def busy(self) -> Iterable[Worker]:
        """Return the workers that have a job now."""

    def replace(self, worker: Worker, job: Job | None) -> bool:
        """Give `worker` up and put another in its place, which starts with `job`.

        False if too many are stuck already: then `job` will not run.
        """

    def forget(self, data_id: int) -> None:
        """Let hooks know that nobody waits any more for what they may be working on."""

    async def stop(self, timeout_s: float) -> int:
        """End all workers; returns how many did not end in time."""


class Borrower(Protocol):
    """A job of one worker that borrows others: a trip.

    Attributes:
        walker: the worker whose thread runs it.
        step_ns: when the step that runs began, by `time.monotonic_ns`.
    """

    @property
    def walker(self) -> Any: ...
    @property
    def step_ns(self) -> int: ...

    def take_out(self) -> tuple[int, Any, Any] | None:
        """Make the step that runs a batch of its worker's own; None if no step runs just now."""


class Lender(Protocol):
    """Workers of this process that trips may use, from any thread, while they are idle.

    Attributes:
        idle: the idle workers. Any thread takes the last one, or adds one that it has used.
        backlog: jobs that wait for one of them, and come first.
    """

    idle: list[Any]
    backlog: deque[Any]

    def employ(self, worker: Any) -> None:
        """Have a worker, which was idle a moment ago, take what waits for it."""

    def states(self) -> Iterable[dict[str, Any]]:
        """Return the attributes of each worker's copy of the Op."""

    def part(self, trip: Borrower) -> tuple[int, Any, Any] | None:
        """Take a trip of one of these workers from it, on the loop.

        The step that runs becomes a job of the worker that was borrowed for it, and the worker
        that began the trip is idle. Returns (place of the step, its worker, its run); None if no
        step runs just now.
        """


class WorkersBase:
    """Base of workers: what `Workers` are, and take note of, where a kind says nothing else."""

    memory_domain: MemoryDomain = LOCAL
    keeps_progress: bool = False
    addressable: bool = False
    runs_slices: bool = False
    ahead: int = 0
    takes_convoys: bool = False
    stream_type: type[BatchRun] | None = None
    visit_type: type[Item] | None = None
    lender: Lender | None = None
    note: ModelMetadata | None = None

    def convoy_size(self, rows: int) -> int:
        return 0

    def joined(self, run: Any) -> None:
        """Ignore it: workers of this process see by themselves which requests join."""

    def forget(self, data_id: int) -> None:
        """Ignore it: workers of this process see their requests themselves."""


@runtime_checkable
class StableWorkers(Protocol):
    """Workers that can be told apart from those that they replace: sequences may stay with one."""

    def lives(self) -> Mapping[int, int]:
        """Return of each worker, by its number, which one it is: its successor is another one.

        A batch with `places` is run by the one that it was made for, or is lost.
        """


@runtime_checkable
class Resizable(Protocol):
    """Workers that may become more, or fewer, while they work. On the loop.

    Attributes:
        may_be_none: whether all of them may go, and what they had loaded with them.
    """

    @property
    def may_be_none(self) -> bool: ...

    @property
    def numbers(self) -> Collection[int]:
        """Numbers of the workers that there are, or are to be; not of those that were dismissed."""

    async def add(self, numbers: Sequence[int]) -> None:
        """Start workers of these numbers, which take jobs as soon as they can.

        Raises:
            InitError: one could not be started; then none of them is there.
        """

    def dismiss(self, numbers: Collection[int]) -> None:
        """Give these workers no more jobs; each ends when it is done with what it has begun."""

    async def have_left(self, timeout_s: float) -> bool:
        """Wait, so long at most, until all that were dismissed have ended; return whether."""


class WorkersOwner(Protocol):
    """Listener to the workers of an Op, on the event loop: its dispatcher."""

    def done(self, worker: Worker, job: Any) -> None:
        """`worker` is done with `job`."""

    def lost(self, job: Any, error: PipelineError) -> None:
        """Take note that a worker is gone, as `error` tells, with all that it did of `job`."""

    def workers_changed(self) -> None:
        """`count`, `is_ready` or `outage` is not what it was."""


class StreamOwner(WorkersOwner, Protocol):
    """Listener to the workers of an Op that is a generator."""

    def parts(self, run: Any, entries: Sequence[tuple[int, Any]]) -> None:
        """Take what a StreamRun makes, in order; see `engine.streams.run`."""


WorkersFactory = Callable[[Op, WorkersOwner], Workers]
"""Makes the workers of an Op; the one place that knows of their kind."""


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """Things that a server gives to each of its kinds of workers.

    Args:
        config: of the service.
        set_up: gives an Op the predictor of the worker with this number, where that worker runs.
        keep_logs: called first in a process that a kind starts, with what sends a log record home.
        on_record: takes such a record, in the server.
        processes: what workers are forked from that come while the server runs, if it has that.
        models: that an Op may ask, of a server that has some.
        base_dir: where files that the configuration names are looked for first.
        runtimes: functions "module:function" that import what the models of Ops need, where
            processes may be forked afterwards.
    """

    config: ServiceConfig
    set_up: SetUp
    keep_logs: Callable[[Callable[[bytes], None]], None] = lambda send: None
    on_record: Callable[[bytes], None] = lambda record: None
    processes: Any = None
    models: ModelHost | None = None
    base_dir: Path = Path()
    runtimes: Callable[[Sequence[Op]], Sequence[str]] = lambda ops: ()


class WorkerKind(Protocol):
    """One kind of workers in one server; the registry has, as `workers`, what makes it.

    It is made with the Ops that are configured so, and a WorkerContext.
    """

    def fork(self) -> None:
        """Fork what has to be forked while the process has no threads."""

    def attach(self, loop: asyncio.AbstractEventLoop, schedule: Callable[[], None]) -> None:
        """Take the running loop, and what to call there when results were taken in."""

    def workers(self, op: Op, count: int, owner: WorkersOwner) -> Workers:
        """Return `count` workers of an Op, which report to `owner`; not started."""

    async def close(self) -> None:
        """End what the workers had in common, after they were stopped."""


class Loop(Protocol):
    """Event loop, as far as the engine needs one; tests pass one with a clock of their own."""

    def time(self) -> float: ...
    def call_soon(self, callback: Callable[[], None]) -> asyncio.Handle: ...
    def call_at(
        self, when: float, callback: Callable[..., None], *args: object
    ) -> asyncio.TimerHandle: ...
    def create_future(self) -> asyncio.Future[object]: ...
