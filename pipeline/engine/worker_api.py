"""The interface between the dispatcher and workers: threads, processes, a cluster."""

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
        """The number of the worker that has to run it, if workers are addressable; None: any."""

    def run(self, op: BoundOp, watch: CallWatch, clock_ns: Callable[[], int]) -> None: ...


class Worker(Protocol):
    """A worker, as the dispatcher sees it.

    Attributes:
        number: its place among the Op's workers, from 0.
        job: the job that it has.
        job_started: `time.monotonic` when it began `job`; None if it has not begun.
        call_started: `time.monotonic` of the running call of `process`; None: no call runs.
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
        memory_domain: the memory of their payloads; LOCAL: plain objects of this process.
        keeps_progress: whether the job itself shows its progress, so that another worker can
            continue
            it; otherwise a job that hangs is started again.
        addressable: whether a job goes to the worker that its `worker` names.
        runs_slices: whether they run a StreamRun slice by slice.
        ahead: how many batches each worker gets while it is busy, so that it need not wait.
        takes_convoys: whether an item of a batch may be a convoy.
        stream_type: the class of a stream's runs; None: StreamRun.
        visit_type: the job for a request that skips the scheduler; None: they take only batches.
            Item: they run it, if its Op has no `process`. A subclass: they pass it to others.
        lender: lends idle workers to trips; None: they run only their own Op.
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
        """Return how many workers take jobs; stuck and starting workers do not count."""

    def convoy_size(self, rows: int) -> int:
        """Return how many requests of so many samples may pass the Op as a convoy; 0: none."""

    @property
    def is_ready(self) -> bool:
        """Return whether jobs are taken, and every worker is healthy or will be soon."""

    async def check_models(self) -> bool:
        """Return whether every worker's model says that it is ready; most models are not asked."""

    @property
    def note(self) -> ModelMetadata | None:
        """Metadata of the model that the workers have loaded; None: not loaded yet, or no model."""

    def state(self) -> WorkersState:
        """Return the current state."""

    @property
    def outage(self) -> PipelineError | None:
        """Return why no job will run any more, or not soon; None: there is no outage."""

    async def start(self) -> None:
        """Initialise the Op and start its workers; raises InitError."""

    def submit(self, jobs: Sequence[Any]) -> None:
        """Queue jobs; the owner's `done` or `lost` is called on the loop for each."""

    def joined(self, run: Any) -> None:
        """Note that requests have joined a StreamRun that a worker runs."""

    def busy(self) -> Iterable[Worker]:
        """Return the workers that have a job now."""

    def replace(self, worker: Worker, job: Job | None) -> bool:
        """Give `worker` up and replace it by a new one, which starts with `job`.

        Returns False if too many are stuck already: then `job` will not run.
        """

    def forget(self, data_id: int) -> None:
        """Tell running hooks that nobody waits for this request any more."""

    async def stop(self, timeout_s: float) -> int:
        """End all workers; return how many did not end in time."""


class Borrower(Protocol):
    """A job of one worker that borrows other workers: a trip.

    Attributes:
        walker: the worker whose thread runs it.
        step_ns: when the running step began, by `time.monotonic_ns`.
    """

    @property
    def walker(self) -> Any: ...
    @property
    def step_ns(self) -> int: ...

    def take_out(self) -> tuple[int, Any, Any] | None:
        """Turn the running step into a batch of its worker; None if no step runs now."""


class Lender(Protocol):
    """Workers of this process that trips may use, from any thread, while they are idle.

    Attributes:
        idle: the idle workers. Any thread takes the last one, or returns one that it has used.
        backlog: jobs that wait for one of them, and have priority.
    """

    idle: list[Any]
    backlog: deque[Any]

    def employ(self, worker: Any) -> None:
        """Have a worker that became idle take the waiting jobs."""

    def states(self) -> Iterable[dict[str, Any]]:
        """Return the attributes of each worker's copy of the Op."""

    def part(self, trip: Borrower) -> tuple[int, Any, Any] | None:
        """Take a trip from the worker that runs it, on the loop.

        The running step becomes a job of the worker that was borrowed for it, and the worker that
        began the trip is idle. Returns (place of the step, its worker, its run); None if no step
        runs now.
        """


class WorkersBase:
    """Base of workers with the defaults of `Workers`."""

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

    async def check_models(self) -> bool:
        return True

    def joined(self, run: Any) -> None:
        """Do nothing: workers of this process see which requests join."""

    def forget(self, data_id: int) -> None:
        """Do nothing: workers of this process see their requests."""


@runtime_checkable
class StableWorkers(Protocol):
    """Workers that differ from their replacements, so that sequences can stay with one."""

    def lives(self) -> Mapping[int, int]:
        """Return the incarnation of each worker, by its number: it differs after a replacement.

        A batch with `places` runs at the worker that it was made for, or is lost.
        """


@runtime_checkable
class Resizable(Protocol):
    """Workers whose number can change while they work. On the loop.

    Attributes:
        may_be_none: whether all of them may leave, so that the model is unloaded.
    """

    @property
    def may_be_none(self) -> bool: ...

    @property
    def numbers(self) -> Collection[int]:
        """Numbers of the workers that run or start; dismissed workers do not count."""

    async def add(self, numbers: Sequence[int]) -> None:
        """Start workers with these numbers; each takes jobs as soon as it is ready.

        Raises:
            InitError: one could not be started; then none of them runs.
        """

    def dismiss(self, numbers: Collection[int]) -> None:
        """Give these workers no more jobs; each ends after the jobs that it has begun."""

    async def have_left(self, timeout_s: float) -> bool:
        """Wait until all dismissed workers have ended, but not longer; return whether they have."""


class WorkersOwner(Protocol):
    """Listener to the workers of an Op, on the event loop: its dispatcher."""

    def done(self, worker: Worker, job: Any) -> None:
        """Take a job that `worker` has finished."""

    def lost(self, job: Any, error: PipelineError) -> None:
        """Take a job that was lost with its worker, for the reason `error`."""

    def workers_changed(self) -> None:
        """Note a change of `count`, `is_ready` or `outage`."""


class StreamOwner(WorkersOwner, Protocol):
    """Listener to the workers of an Op that is a generator."""

    def parts(self, run: Any, entries: Sequence[tuple[int, Any]]) -> None:
        """Take the parts of a StreamRun, in order; see `engine.streams.run`."""


WorkersFactory = Callable[[Op, WorkersOwner], Workers]
"""Makes the workers of an Op; only this function knows their kind."""


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """Services of the server for each of its kinds of workers.

    Args:
        config: of the service.
        set_up: gives an Op the predictor of the worker with this number, in the worker's process.
        keep_logs: called first in a new process, with a function that sends log records to the
            server.
        on_record: takes such a record, in the server.
        processes: the zygotes from which workers are forked while the server runs; None: there are
            none.
        models: the models that an Op may call; None: the server has none.
        base_dir: the folder of relative file names in the configuration.
        runtimes: returns functions "module:function" that import what the models of Ops need,
            before
            processes are forked.
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
    """One kind of workers in one server; the registry's `workers` has the functions that make
    kinds.

    It is made with the Ops that are configured for it, and a WorkerContext.
    """

    def fork(self) -> None:
        """Fork what has to be forked while the process has no threads."""

    def attach(self, loop: asyncio.AbstractEventLoop, schedule: Callable[[], None]) -> None:
        """Take the running loop, and the function to call there after results came."""

    def workers(self, op: Op, count: int, owner: WorkersOwner) -> Workers:
        """Return `count` workers of an Op, which report to `owner`; they are not started."""

    async def close(self) -> None:
        """Close what the workers share, after they were stopped."""


class Loop(Protocol):
    """The part of an event loop that the engine needs; tests pass one with their own clock."""

    def time(self) -> float: ...
    def call_soon(self, callback: Callable[[], None]) -> asyncio.Handle: ...
    def call_at(
        self, when: float, callback: Callable[..., None], *args: object
    ) -> asyncio.TimerHandle: ...
    def create_future(self) -> asyncio.Future[object]: ...
